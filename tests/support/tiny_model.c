/* tiny_model.c - config.json as text, records by shape, packs, manifest, seal. */
#include "tests/support/tiny_model.h"

#include "base/check.h"
#include "kernels/quant.h"
#include "kernels/rope.h"
#include "model/container/manifest.h"
#include "model/container/pack.h"
#include "model/container/shape.h"
#include "tests/support/temp_dir.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { JSON_BYTES = 4096 };

typedef struct {
    const tiny_model_spec *spec;
    md_config config;
    md_container_info info;
    char *dir;
    char json[JSON_BYTES];
} builder;

tiny_model_spec tiny_model_default(void)
{
    return (tiny_model_spec){.seed = 1,
                             .hidden = 64,
                             .layers = 3,
                             .dense_layers = 1,
                             .vocab = 96,
                             .inter = 96,
                             .expert_inter = 144, /* 9 slices of 16 */
                             .experts = 8,
                             .topk = 2,
                             .heads = 4,
                             .q_rank = 32,
                             .kv_rank = 32,
                             .nope_dim = 16,
                             .rope_dim = 8,
                             .v_dim = 16,
                             .index_heads = 4,
                             .index_dim = 16,
                             .index_topk = 8,
                             .index_every = 2,
                             .expert_format = KN_Q4,
                             .dense_format = KN_Q8,
                             .grid_q = 13};
}

static uint64_t next_u64(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

float tiny_model_uniform(uint64_t *state)
{
    return (float)(next_u64(state) >> 40) * 0x1p-23f - 1.0f;
}

static void check_ok(rt_status status, const rt_err *err)
{
    if (status == RT_OK) return;
    fprintf(stderr, "tiny model: %s: %s\n", rt_status_name(status), err->text);
    RT_ASSERT(status == RT_OK);
}

static void write_config(builder *b)
{
    const tiny_model_spec *s = b->spec;
    char pattern[MD_LAYERS_MAX + 1] = "";
    rt_err err = {RT_OK, ""};
    int bytes;

    for (uint32_t i = 0; i < s->layers; i++) {
        pattern[i] = i % s->index_every == 0 ? 'F' : 'S';
    }
    bytes = snprintf(
        b->json, sizeof(b->json),
        "{\"architectures\": [\"GlmMoeDsaForCausalLM\"], \"model_type\": \"glm_moe_dsa\",\n"
        "\"hidden_size\": %u, \"num_hidden_layers\": %u, \"vocab_size\": %u,\n"
        "\"max_position_embeddings\": 4096, \"num_attention_heads\": %u,\n"
        "\"num_key_value_heads\": %u, \"q_lora_rank\": %u, \"kv_lora_rank\": %u,\n"
        "\"qk_nope_head_dim\": %u, \"qk_rope_head_dim\": %u, \"v_head_dim\": %u,\n"
        "\"index_n_heads\": %u, \"index_head_dim\": %u, \"index_topk\": %u,\n"
        "\"index_topk_pattern\": \"%s\", \"intermediate_size\": %u,\n"
        "\"moe_intermediate_size\": %u, \"n_routed_experts\": %u, \"num_experts_per_tok\": %u,\n"
        "\"n_shared_experts\": 1, \"num_nextn_predict_layers\": %d,\n"
        "\"first_k_dense_replace\": %u, \"norm_topk_prob\": true,\n"
        "\"routed_scaling_factor\": 2.5, \"rms_norm_eps\": 1e-05,\n"
        "\"rope_parameters\": {\"rope_theta\": 8000000, \"rope_type\": \"default\"},\n"
        "\"scoring_func\": \"sigmoid\", \"topk_method\": \"noaux_tc\", \"hidden_act\": \"silu\",\n"
        "\"tie_word_embeddings\": false, \"eos_token_id\": [%u]}\n",
        s->hidden, s->layers, s->vocab, s->heads, s->heads, s->q_rank, s->kv_rank, s->nope_dim,
        s->rope_dim, s->v_dim, s->index_heads, s->index_dim, s->index_topk, pattern, s->inter,
        s->expert_inter, s->experts, s->topk, s->mtp ? 1 : 0, s->dense_layers, s->vocab - 1);
    RT_ASSERT(bytes > 0 && bytes < JSON_BYTES);
    check_ok(md_config_parse(b->json, (size_t)bytes, &b->config, &err), &err);
    free(temp_dir_write(b->dir, "config.json", b->json, (size_t)bytes));
    /* Nothing in these tests reads text: any image does. */
    free(temp_dir_write(b->dir, "tokenizer.bin", "tiny", 4));
}

static void describe(builder *b)
{
    const tiny_model_spec *s = b->spec;

    b->info = (md_container_info){.expert_format = s->expert_format,
                                  .dense_format = s->dense_format,
                                  .embed_format = s->dense_format == KN_F32 ? KN_F32 : KN_BF16,
                                  .slice_width = md_slice_width(&b->config),
                                  .latent_eps = 1e-6f,
                                  .conversion_id = MD_CONVERSION_ID};
    for (uint32_t i = 0; i < md_config_layers_total(&b->config); i++) {
        if (b->config.sparse[i]) b->info.grid_q[i] = (int8_t)s->grid_q;
    }
}

/* Weights with outputs about as large as the inputs. */
static void fill_matrix(kn_format format, uint32_t rows, uint32_t cols, uint32_t group, void *tiles,
                        uint64_t *state)
{
    float *values = calloc((size_t)rows * cols, sizeof(*values));
    float range = sqrtf(3.0f / (float)cols);

    RT_ASSERT(values != NULL);
    for (size_t i = 0; i < (size_t)rows * cols; i++) {
        values[i] = tiny_model_uniform(state) * range;
    }
    kn_qmat_pack(format, cols, group, values, cols, rows, tiles);
    free(values);
}

static void fill_expert(const builder *b, md_key key, uint8_t *data, uint64_t *state)
{
    md_expert_layout layout;

    md_record_expert_layout(&b->config, &b->info, key, &layout);
    for (uint32_t i = 0; i < layout.slices; i++) {
        uint8_t *at = data + md_slice_offset(&layout, i);
        md_slice slice = md_slice_view(&layout, i, at);
        const kn_qmat *parts[] = {&slice.gate, &slice.up, &slice.down};
        for (int p = 0; p < 3; p++) {
            const kn_qmat *mat = parts[p];
            fill_matrix(mat->format, mat->rows, mat->cols, mat->group,
                        at + ((const uint8_t *)mat->data - at), state);
        }
    }
}

static void fill_vector(const builder *b, md_key key, const md_shape *shape, float *values,
                        uint64_t *state)
{
    bool norm = key.kind != MD_ROUTER_BIAS;

    if (key.kind == MD_ROPE_INV_FREQ) {
        kn_rope_inv_freq(b->config.rope_theta, b->config.rope_dim, values);
        return;
    }
    for (uint32_t r = 0; r < shape->rows; r++) {
        for (uint32_t c = 0; c < shape->cols; c++) {
            float base = norm && r == 0 ? 1.0f : 0.0f; /* row 1 is a bias */
            values[(size_t)r * shape->cols + c] = base + 0.1f * tiny_model_uniform(state);
        }
    }
}

static void fill_record(const builder *b, md_key key, const md_shape *shape, void *data)
{
    uint64_t state = b->spec->seed * 0x100000001b3u ^
                     ((uint64_t)key.layer << 48 | (uint64_t)key.kind << 32 | key.index);

    switch (shape->form) {
    case MD_FORM_VECTOR:
        fill_vector(b, key, shape, data, &state);
        break;
    case MD_FORM_ROWS:
        for (size_t i = 0; i < (size_t)shape->rows * shape->cols; i++) {
            float value = tiny_model_uniform(&state);
            if (shape->format == KN_F32) {
                ((float *)data)[i] = value;
            } else {
                ((uint16_t *)data)[i] = kn_bf16_from_f32(value);
            }
        }
        break;
    case MD_FORM_MATRIX:
    case MD_FORM_HEADS:
        for (uint32_t i = 0; i < shape->count; i++) {
            fill_matrix(shape->format, shape->rows, shape->cols, shape->group,
                        (uint8_t *)data + i * (shape->bytes / shape->count), &state);
        }
        break;
    case MD_FORM_EXPERT:
        fill_expert(b, key, data, &state);
        break;
    }
}

/* One pack: the entries of `keys` whose file is `name`. Their hashes are set. */
static void write_pack(builder *b, const char *name, md_manifest_entry *keys, uint64_t count)
{
    md_pack_entry *entries = calloc(count, sizeof(*entries));
    uint64_t used = 0;
    md_pack_writer *pack;
    char path[512], own[64];
    rt_err err = {RT_OK, ""};

    RT_ASSERT(entries != NULL);
    for (uint64_t i = 0; i < count; i++) {
        if (strcmp(md_pack_name(keys[i].key, own, sizeof(own)), name) != 0) continue;
        entries[used++] = (md_pack_entry){.key = keys[i].key, .bytes = keys[i].bytes};
    }
    (void)md_pack_layout(entries, used);
    snprintf(path, sizeof(path), "%s/%s", b->dir, name);
    check_ok(md_pack_create(path, entries, used, &pack, &err), &err);
    for (uint64_t i = 0; i < used; i++) {
        size_t bytes = entries[i].bytes;
        void *data = aligned_alloc(MD_RECORD_ALIGN, (bytes + 4095) / 4096 * 4096);
        md_shape shape = {.form = MD_FORM_VECTOR};
        RT_ASSERT(data != NULL);
        memset(data, 0, bytes);
        RT_ASSERT(md_record_shape(&b->config, &b->info, entries[i].key, &shape));
        fill_record(b, entries[i].key, &shape, data);
        if (b->spec->patch != NULL) {
            b->spec->patch(b->spec->patch_context, entries[i].key, data, bytes);
        }
        entries[i].hash = md_hash_bytes(data, bytes);
        check_ok(md_pack_write(pack, &entries[i], 0, data, bytes, &err), &err);
        free(data);
        for (uint64_t k = 0; k < count; k++) {
            if (md_key_compare(keys[k].key, entries[i].key) == 0) keys[k].hash = entries[i].hash;
        }
    }
    check_ok(md_pack_finish(pack, &err), &err);
    md_pack_writer_free(pack);
    free(entries);
}

char *tiny_model_build(const tiny_model_spec *spec)
{
    builder *b = calloc(1, sizeof(*b));
    md_manifest_entry *keys;
    uint64_t count;
    char name[64], path[512];
    char *dir;
    rt_err err = {RT_OK, ""};

    RT_ASSERT(b != NULL);
    b->spec = spec;
    b->dir = dir = temp_dir_make();
    write_config(b);
    describe(b);
    check_ok(md_manifest_expected(&b->config, &b->info, &keys, &count, &err), &err);
    write_pack(b, "dense.bin", keys, count);
    for (uint32_t layer = 0; layer < md_config_layers_total(&b->config); layer++) {
        md_key key = {(uint16_t)layer, MD_EXPERT, 0};
        if (!b->config.sparse[layer]) continue;
        write_pack(b, md_pack_name(key, name, sizeof(name)), keys, count);
    }
    snprintf(path, sizeof(path), "%s/manifest.bin", dir);
    check_ok(md_manifest_write(path, keys, count, &err), &err);
    check_ok(md_container_seal(dir, b->json, strlen(b->json), keys, count, &b->info, &err), &err);
    free(keys);
    free(b);
    return dir;
}

void tiny_model_damage(const char *dir, uint32_t layer, uint32_t expert)
{
    md_container *container;
    md_key key = {(uint16_t)layer, MD_EXPERT, expert};
    md_record record;
    rt_err err = {RT_OK, ""};
    uint8_t byte;
    off_t at;
    int fd;

    check_ok(md_container_open(dir, &container, &err), &err);
    RT_ASSERT(md_container_find(container, key, &record));
    fd = open(record.pack, O_RDWR | O_CLOEXEC);
    RT_ASSERT(fd >= 0);
    at = (off_t)(record.offset + record.bytes / 2);
    RT_ASSERT(pread(fd, &byte, 1, at) == 1);
    byte ^= 0x10;
    RT_ASSERT(pwrite(fd, &byte, 1, at) == 1);
    close(fd);
    md_container_close(container);
}
