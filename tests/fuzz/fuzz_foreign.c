/* fuzz_foreign.c - a directory of the colibri engine as an attacker may write it, up to the records that are
 * made of it.
 *
 * The first byte chooses what the rest is: a shard's bytes as they are; numbers and a stamp from which a
 * format is told; a code for each tensor of a small model, which says how that is stored, so that the
 * checks behind the header are reached. Data is zeros: files are holes, and a zero is a good scale. */
#include "base/arena.h"
#include "base/check.h"
#include "base/file.h"
#include "model/convert/foreign_format.h"
#include "model/convert/import.h"
#include "model/convert/source.h"
#include "model/convert/unit.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char config_json[] =
    "{\"model_type\":\"glm_moe_dsa\",\"hidden_size\":64,\"index_head_dim\":16,\"index_n_heads\":4,"
    "\"index_topk\":8,\"indexer_types\":[\"full\",\"shared\"],\"intermediate_size\":96,"
    "\"kv_lora_rank\":32,\"max_position_embeddings\":4096,"
    "\"mlp_layer_types\":[\"dense\",\"sparse\"],\"moe_intermediate_size\":32,"
    "\"n_routed_experts\":3,\"n_shared_experts\":1,\"norm_topk_prob\":true,"
    "\"num_attention_heads\":2,\"num_experts_per_tok\":2,\"num_hidden_layers\":2,"
    "\"num_nextn_predict_layers\":1,\"q_lora_rank\":32,\"qk_nope_head_dim\":16,"
    "\"qk_rope_head_dim\":8,\"rms_norm_eps\":1e-05,\"rope_theta\":1e6,"
    "\"routed_scaling_factor\":2.5,\"v_head_dim\":24,\"vocab_size\":384}";

enum { HEADER_BYTES = 1 << 18, STAMP_BYTES = 1 << 16, NAMES_MAX = 256 };

/* The directory is this process's own; in memory where that can be. */
static char directory[32];

static void remove_directory(void)
{
    char *path = rt_path_join(directory, "out-00000.safetensors");

    if (path != NULL) (void)unlink(path);
    free(path);
    (void)rmdir(directory);
}

static const char *dir_name(void)
{
    if (directory[0] != '\0') return directory;
    snprintf(directory, sizeof(directory), "%s/moesaic-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    RT_ASSERT(mkdtemp(directory) != NULL);
    RT_ASSERT(atexit(remove_directory) == 0);
    return directory;
}

static void write_shard(const void *data, size_t bytes, uint64_t file_bytes)
{
    char *path = rt_path_join(dir_name(), "out-00000.safetensors");
    int fd;

    RT_ASSERT(path != NULL);
    fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    RT_ASSERT(fd >= 0);
    RT_ASSERT(rt_pwrite_full(fd, data, bytes, 0, path, NULL) == RT_OK);
    RT_ASSERT(ftruncate(fd, (off_t)file_bytes) == 0);
    close(fd);
    free(path);
}

/* ---- numbers and a stamp ---- */

static void infer(const uint8_t *data, size_t size)
{
    struct {
        uint32_t rows, cols;
        uint64_t bytes, scales;
    } in;
    char stamp[32] = "";
    md_foreign_tensor tensor = {.name = "w"};
    md_foreign_layout layout;
    rt_err err = {0};

    if (size < sizeof(in)) return;
    memcpy(&in, data, sizeof(in));
    if (in.rows == 0 || in.cols == 0) return; /* the config's sizes are not */
    size -= sizeof(in);
    memcpy(stamp, data + sizeof(in), size < sizeof(stamp) ? size : sizeof(stamp) - 1);
    tensor.rows = in.rows;
    tensor.cols = in.cols;
    tensor.weight_bytes = in.bytes;
    tensor.scale_count = in.scales;
    tensor.stamp = stamp[0] != '\0' ? stamp : NULL;
    if (md_foreign_infer(&tensor, &layout, &err) != RT_OK) {
        RT_ASSERT(err.status != RT_OK && err.text[0] != '\0');
        return;
    }
    RT_ASSERT(layout.kind <= MD_FOREIGN_INT4_GROUPED && (layout.bits == 4 || layout.bits == 8));
    RT_ASSERT((layout.group != 0) == (layout.kind == MD_FOREIGN_INT4_GROUPED));
}

/* ---- a model ---- */

typedef struct {
    const md_config *config;
    const uint8_t *codes;
    size_t code_count, next, header, stamps;
    uint64_t data_bytes;
    uint32_t name_count;
    const char *names[NAMES_MAX]; /* owned: several records may be of one tensor */
    char text[HEADER_BYTES], stamp_text[STAMP_BYTES];
} model;

static void shape_of(const model *m, const md_unit *unit, const char *name, uint64_t *rows,
                     uint64_t *cols)
{
    const md_shape *shape = &unit->shape;

    *rows = shape->form == MD_FORM_VECTOR ? 1 : shape->rows;
    *cols = shape->cols;
    if (shape->form == MD_FORM_HEADS) {
        *rows = (uint64_t)m->config->heads * (m->config->nope_dim + m->config->v_dim);
        *cols = m->config->kv_rank;
    } else if (strstr(name, "_layernorm.") != NULL) {
        *rows = 1;
    } else if (shape->form == MD_FORM_EXPERT && strstr(name, "down_proj") != NULL) {
        *rows = shape->cols;
        *cols = shape->rows;
    }
}

static void put(model *m, const char *name, const char *dtype, uint64_t rows, uint64_t cols,
                uint64_t bytes)
{
    char shape[64];

    if (rows > 1)
        snprintf(shape, sizeof(shape), "%llu,%llu", (unsigned long long)rows,
                 (unsigned long long)cols);
    else
        snprintf(shape, sizeof(shape), "%llu", (unsigned long long)cols);
    m->header += (size_t)snprintf(
        m->text + m->header, sizeof(m->text) - m->header,
        ",\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%llu,%llu]}", name, dtype,
        shape, (unsigned long long)m->data_bytes, (unsigned long long)(m->data_bytes + bytes));
    RT_ASSERT(m->header < sizeof(m->text));
    m->data_bytes += bytes;
}

static void put_stamp(model *m, const char *name, const char *kind)
{
    m->stamps += (size_t)snprintf(m->stamp_text + m->stamps, sizeof(m->stamp_text) - m->stamps,
                                  "%s\\\"%s\\\":\\\"%s\\\"", m->stamps > 0 ? "," : "", name, kind);
    RT_ASSERT(m->stamps < sizeof(m->stamp_text));
}

/* Low 4 bits: how it is stored; bit 4: two dimensions; bit 5: a stamp; bit 6: a scale less. */
static void add_tensor(void *context, const md_unit *unit, const char *name)
{
    model *m = context;
    uint8_t code = m->next < m->code_count ? m->codes[m->next] : 0;
    uint64_t rows, cols, scales;
    uint32_t how = code & 15, group = 4u << (how > 2 ? how - 2 : 0);
    char scale_name[160];

    for (uint32_t i = 0; i < m->name_count; i++)
        if (strcmp(m->names[i], name) == 0) return;
    RT_ASSERT(m->name_count < NAMES_MAX);
    m->names[m->name_count] = strdup(name);
    RT_ASSERT(m->names[m->name_count++] != NULL);
    m->next++;
    shape_of(m, unit, name, &rows, &cols);
    snprintf(scale_name, sizeof(scale_name), "%s.qs", name);
    if (how == 15) return;
    if (how == 14) put(m, name, "F8_E4M3", rows, cols, rows * cols);
    if (how == 13) put(m, name, "BF16", rows, cols, rows * cols * 2);
    if (how == 12 || (how == 0 && rows == 1)) put(m, name, "F32", rows, cols, rows * cols * 4);
    if (how >= 12 || (how == 0 && rows == 1)) return;
    if (how == 11) { /* sizes that fit nothing, mostly */
        put(m, name, "U8", 1, code * rows, code * rows);
        scales = code % 7;
    } else {
        uint64_t row_bytes = how <= 1 ? cols : (cols + 1) / 2;

        put(m, name, "U8", code & 16 ? rows : 1, code & 16 ? row_bytes : rows * row_bytes,
            rows * row_bytes);
        scales = how <= 2 ? rows : rows * ((cols + group - 1) / group);
    }
    if (code & 64 && scales > 0) scales--;
    if (code & 32) put_stamp(m, name, md_foreign_kind_name((md_foreign_kind)(code >> 5)));
    put(m, scale_name, "F32", 1, scales, scales * 4);
}

static rt_status discard(void *context, uint64_t offset, const void *data, size_t bytes,
                         rt_err *err)
{
    uint64_t *at = context;

    (void)data;
    (void)err;
    RT_ASSERT(offset == *at);
    *at += bytes;
    return RT_OK;
}

/* All records of what the look found good. */
static void convert(const md_config *config, const md_import *found)
{
    md_foreign_spec spec = {.dir = dir_name(), .layers = config->layers};
    md_source *source = NULL;
    md_container_info info;
    md_plan plan = {0};

    md_container_info_init(&info, config, found->expert_format, found->dense_format);
    RT_ASSERT(md_source_open_foreign(&spec, NULL, 0, &source, NULL) == RT_OK);
    RT_ASSERT(md_plan_create(config, &info, &plan, NULL) == RT_OK);
    RT_ASSERT(md_plan_resolve(&plan, config, source, NULL) == RT_OK);
    RT_ASSERT(md_import_check(&plan, config, &info, source, NULL) == RT_OK);
    for (uint64_t i = 0; i < plan.count; i++) {
        uint64_t at = 0;
        md_unit_sink sink = {discard, &at};
        md_unit_result result;
        rt_arena *arena = NULL;

        RT_ASSERT(rt_arena_create(md_unit_memory(&plan.units[i], config), &arena, NULL) == RT_OK);
        RT_ASSERT(md_unit_convert(&plan.units[i], config, &info, source, arena, &sink, &result,
                                  NULL) == RT_OK); /* zeros are good weights */
        RT_ASSERT(at == plan.units[i].shape.bytes);
        rt_arena_free(arena);
    }
    RT_ASSERT(md_source_check_unchanged(source, NULL) == RT_OK);
    md_plan_free(&plan);
    md_source_close(source);
}

static void look(const md_config *config)
{
    md_import found;
    rt_err err = {0};

    if (md_import_look(dir_name(), NULL, config, &found, &err) == RT_OK)
        convert(config, &found);
    else
        RT_ASSERT(err.status != RT_OK && err.text[0] != '\0');
}

static void write_model(const md_config *config, const uint8_t *codes, size_t count)
{
    static model m;
    static unsigned char file[8 + HEADER_BYTES + STAMP_BYTES];
    md_container_info info;
    md_plan plan = {0};
    uint64_t length;

    m = (model){.config = config, .codes = codes, .code_count = count};
    md_container_info_init(&info, config, KN_F32, KN_F32);
    RT_ASSERT(md_plan_create(config, &info, &plan, NULL) == RT_OK);
    md_plan_visit_names(&plan, config, add_tensor, &m);
    md_plan_free(&plan);
    length =
        (uint64_t)snprintf((char *)file + 8, sizeof(file) - 8,
                           "{\"__metadata__\":{\"colibri.fmt\":\"{%s}\"}%s}", m.stamp_text, m.text);
    RT_ASSERT(length < sizeof(file) - 8);
    for (int i = 0; i < 8; i++)
        file[i] = (unsigned char)(length >> 8 * i);
    write_shard(file, 8 + length, 8 + length + m.data_bytes);
    for (uint32_t i = 0; i < m.name_count; i++)
        free((char *)(uintptr_t)m.names[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static md_config config;
    rt_err err;

    if (size == 0) return 0;
    if (config.hidden == 0)
        RT_ASSERT(md_config_parse(config_json, sizeof(config_json) - 1, &config, &err) == RT_OK);
    switch (data[0] % 3) {
    case 0:
        write_model(&config, data + 1, size - 1);
        look(&config);
        break;
    case 1:
        infer(data + 1, size - 1);
        break;
    default:
        write_shard(data + 1, size - 1, size - 1);
        look(&config);
        break;
    }
    return 0;
}
