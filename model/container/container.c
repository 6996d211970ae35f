/* container.c - opening a model directory and finding its records.
 *
 * Order of trust: moesaic.json says how to read config.json and the manifest; both must then hash
 * to the model id it states; the manifest must list exactly the records this config has; and a
 * pack's index must agree with the manifest. After that no length or key needs checking again, only
 * bytes (md_record_read). */
#include "model/container/container.h"

#include "base/check.h"
#include "base/file.h"
#include "model/container/description.h"
#include "model/container/manifest.h"
#include "model/container/model_id.h"
#include "model/container/pack.h"
#include "model/container/shape.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CONFIG_BYTES_MAX = 16 << 20, DESCRIPTION_BYTES_MAX = 1 << 20 };

/* One per file that the manifest names, held here or not. */
typedef struct {
    char *path;    /* owned; NULL: no such pack in this model */
    md_pack *pack; /* owned; NULL: not held */
} pack_slot;

struct md_container {
    char *dir; /* owned */
    char *config_json;
    size_t config_bytes;
    md_config config;
    md_generation generation;
    md_container_info info;
    md_image_stamp tokenizer_stamp;
    void *tokenizer; /* owned [tokenizer_stamp.bytes]; NULL when the file is not here */
    md_manifest_entry *entries;
    uint64_t count;
    uint64_t *offsets; /* [count], in the pack; 0: not held */
    pack_slot *slots;  /* [layers total + 1]: experts per layer, then dense */
    uint32_t slot_count;
};

/* Reads dir/name whole. */
static rt_status read_part(const md_container *container, const char *name, size_t limit,
                           char **out, size_t *bytes, rt_err *err)
{
    char *path = rt_path_join(container->dir, name);
    rt_status status;

    if (path == NULL) return rt_fail(err, RT_ENOMEM, "%s/%s", container->dir, name);
    status = rt_file_read(path, limit, out, bytes, err);
    free(path);
    return status;
}

/* Whether dir/name is there, told apart from a directory that is not. */
static rt_status part_exists(const md_container *container, const char *name, bool *out,
                             rt_err *err)
{
    char *path = rt_path_join(container->dir, name);
    rt_status status = RT_OK;
    struct stat info;

    if (path == NULL) return rt_fail(err, RT_ENOMEM, "%s/%s", container->dir, name);
    *out = stat(path, &info) == 0;
    if (!*out && errno != ENOENT) status = rt_fail(err, RT_EIO, "%s: %s", path, strerror(errno));
    free(path);
    return status;
}

/* Errors of parsed text name the file; this names the directory before it. */
static rt_status in_dir(const md_container *container, rt_status status, rt_err *err)
{
    if (status != RT_OK) rt_err_prefix(err, "%s: ", container->dir);
    return status;
}

static rt_status check_finished(const md_container *container, rt_err *err)
{
    struct stat info;
    bool finished = false;

    if (stat(container->dir, &info) != 0)
        return rt_fail(err, RT_EIO, "%s: %s", container->dir, strerror(errno));
    RT_TRY(part_exists(container, MD_DESCRIPTION_NAME, &finished, err));
    if (!finished)
        return rt_fail(err, RT_EFORMAT,
                       "%s: expected %s, found none: not a container, or an unfinished conversion "
                       "(run convert or import again to finish it)",
                       container->dir, MD_DESCRIPTION_NAME);
    return RT_OK;
}

static rt_status read_config_part(md_container *container, rt_err *err)
{
    RT_TRY(read_part(container, "config.json", CONFIG_BYTES_MAX, &container->config_json,
                     &container->config_bytes, err));
    return in_dir(
        container,
        md_config_parse(container->config_json, container->config_bytes, &container->config, err),
        err);
}

/* Without generation_config.json: plain sampling, and the stop ids of config.json. */
static rt_status read_generation_part(md_container *container, rt_err *err)
{
    const md_config *config = &container->config;
    md_generation *generation = &container->generation;
    bool there = false;
    char *json = NULL;
    size_t bytes = 0;
    rt_status status;

    generation->temperature = 1.0f;
    generation->top_p = 1.0f;
    memcpy(generation->eos, config->eos, sizeof(generation->eos));
    generation->eos_count = config->eos_count;
    RT_TRY(part_exists(container, "generation_config.json", &there, err));
    if (!there) return RT_OK;
    RT_TRY(read_part(container, "generation_config.json", CONFIG_BYTES_MAX, &json, &bytes, err));
    status = in_dir(container, md_generation_parse(json, bytes, generation, err), err);
    free(json);
    RT_TRY(status);
    for (uint32_t i = 0; i < generation->eos_count; i++) {
        if (generation->eos[i] >= config->vocab)
            return rt_fail(err, RT_EFORMAT,
                           "%s/generation_config.json: eos_token_id: expected ids below %" PRIu32
                           ", found %" PRIu32,
                           container->dir, config->vocab, generation->eos[i]);
    }
    return RT_OK;
}

static rt_status read_description_part(md_container *container, rt_err *err)
{
    char *text = NULL;
    size_t bytes = 0;
    rt_status status;

    RT_TRY(read_part(container, MD_DESCRIPTION_NAME, DESCRIPTION_BYTES_MAX, &text, &bytes, err));
    status = md_description_parse(text, bytes, &container->config, &container->info,
                                  &container->tokenizer_stamp, err);
    free(text);
    return in_dir(container, status, err);
}

static rt_status check_entry(const md_manifest_entry *found, const md_manifest_entry *expected,
                             rt_err *err)
{
    char found_key[64], expected_key[64];

    md_key_format(expected->key, expected_key, sizeof(expected_key));
    if (md_key_compare(found->key, expected->key) != 0)
        return rt_fail(err, RT_EFORMAT, "manifest.bin: expected %s, found %s", expected_key,
                       md_key_format(found->key, found_key, sizeof(found_key)));
    if (found->bytes != expected->bytes)
        return rt_fail(err, RT_EFORMAT,
                       "manifest.bin: %s: expected %" PRIu64 " bytes, found %" PRIu64, expected_key,
                       expected->bytes, found->bytes);
    return RT_OK;
}

static rt_status check_manifest(const md_container *container, rt_err *err)
{
    md_manifest_entry *expected = NULL;
    uint64_t count = 0;
    rt_status status;

    RT_TRY(md_manifest_expected(&container->config, &container->info, &expected, &count, err));
    status = RT_OK;
    if (count != container->count)
        status =
            rt_fail(err, RT_EFORMAT, "manifest.bin: expected %" PRIu64 " records, found %" PRIu64,
                    count, container->count);
    for (uint64_t i = 0; status == RT_OK && i < count; i++)
        status = check_entry(&container->entries[i], &expected[i], err);
    free(expected);
    return status;
}

static rt_status check_model_id(const md_container *container, rt_err *err)
{
    char stated[65], computed[65];
    uint8_t id[32] = {0};

    RT_TRY(md_model_id_compute(container->config_json, container->config_bytes, &container->config,
                               &container->info, &container->tokenizer_stamp, container->entries,
                               container->count, id, err));
    if (memcmp(id, container->info.model_id, sizeof(id)) == 0) return RT_OK;
    md_model_id_format(container->info.model_id, stated);
    md_model_id_format(id, computed);
    return rt_fail(
        err, RT_EFORMAT,
        "%s: expected model id %s (moesaic.json), found %s: config.json, manifest.bin or "
        "moesaic.json was changed",
        container->dir, stated, computed);
}

static rt_status read_manifest_part(md_container *container, rt_err *err)
{
    char *path = rt_path_join(container->dir, "manifest.bin");
    rt_status status;

    if (path == NULL) return rt_fail(err, RT_ENOMEM, "%s/manifest.bin", container->dir);
    status = md_manifest_read(path, &container->entries, &container->count, err);
    free(path);
    if (status == RT_OK) status = in_dir(container, check_manifest(container, err), err);
    if (status == RT_OK) status = check_model_id(container, err);
    return status;
}

static uint32_t slot_of(const md_container *container, md_key key)
{
    return key.kind == MD_EXPERT ? key.layer : container->slot_count - 1;
}

/* The index of key's entry, or count. */
static uint64_t find_entry(const md_container *container, md_key key)
{
    uint64_t low = 0, high = container->count;

    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        int order = md_key_compare(container->entries[middle].key, key);

        if (order == 0) return middle;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return container->count;
}

static rt_status name_packs(md_container *container, rt_err *err)
{
    container->slot_count = md_config_layers_total(&container->config) + 1;
    container->slots = calloc(container->slot_count, sizeof(container->slots[0]));
    container->offsets = calloc(container->count, sizeof(container->offsets[0]));
    if (container->slots == NULL || container->offsets == NULL)
        return rt_fail(err, RT_ENOMEM, "packs of %s", container->dir);
    for (uint64_t i = 0; i < container->count; i++) {
        md_key key = container->entries[i].key;
        pack_slot *slot = &container->slots[slot_of(container, key)];
        char name[32];

        if (slot->path != NULL) continue;
        slot->path = rt_path_join(container->dir, md_pack_name(key, name, sizeof(name)));
        if (slot->path == NULL) return rt_fail(err, RT_ENOMEM, "packs of %s", container->dir);
    }
    return RT_OK;
}

/* Every record of a pack must be one of the model's, in the file where it belongs. */
static rt_status place_records(md_container *container, uint32_t slot, rt_err *err)
{
    const md_pack *pack = container->slots[slot].pack;
    const md_pack_entry *entries = md_pack_entries(pack);

    for (uint64_t i = 0; i < md_pack_count(pack); i++) {
        uint64_t index = find_entry(container, entries[i].key);
        const md_manifest_entry *expected = &container->entries[index];
        char key[64];

        md_key_format(entries[i].key, key, sizeof(key));
        if (index == container->count || slot_of(container, entries[i].key) != slot)
            return rt_fail(err, RT_EFORMAT, "%s: expected records of this model and file, found %s",
                           md_pack_path(pack), key);
        if (entries[i].bytes != expected->bytes ||
            memcmp(&entries[i].hash, &expected->hash, sizeof(expected->hash)) != 0)
            return rt_fail(err, RT_EFORMAT,
                           "%s: %s: expected %" PRIu64 " bytes with hash %016" PRIx64 "%016" PRIx64
                           ", found %" PRIu64 " with %016" PRIx64 "%016" PRIx64,
                           md_pack_path(pack), key, expected->bytes, expected->hash.high,
                           expected->hash.low, entries[i].bytes, entries[i].hash.high,
                           entries[i].hash.low);
        container->offsets[index] = entries[i].offset;
    }
    return RT_OK;
}

static rt_status open_packs(md_container *container, rt_err *err)
{
    RT_TRY(name_packs(container, err));
    for (uint32_t i = 0; i < container->slot_count; i++) {
        pack_slot *slot = &container->slots[i];
        struct stat info;

        if (slot->path == NULL) continue;
        if (stat(slot->path, &info) != 0) {
            if (errno == ENOENT) continue;
            return rt_fail(err, RT_EIO, "%s: %s", slot->path, strerror(errno));
        }
        RT_TRY(md_pack_open(slot->path, &slot->pack, err));
        RT_TRY(place_records(container, i, err));
    }
    return RT_OK;
}

static rt_status read_image(md_container *container, int fd, const char *path, rt_err *err)
{
    const md_image_stamp *stamp = &container->tokenizer_stamp;
    md_hash128 hash;
    struct stat info;

    if (fstat(fd, &info) != 0) return rt_fail(err, RT_EIO, "stat %s: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode) || (uint64_t)info.st_size != stamp->bytes)
        return rt_fail(err, RT_EFORMAT, "%s: expected %" PRIu64 " bytes, found %" PRId64, path,
                       stamp->bytes, (int64_t)info.st_size);
    /* Read, not mapped: the file may be cut or rewritten while we use it. */
    container->tokenizer = malloc(stamp->bytes + 1);
    if (container->tokenizer == NULL)
        return rt_fail(err, RT_ENOMEM, "%s: %" PRIu64 " bytes", path, stamp->bytes);
    RT_TRY(rt_pread_full(fd, container->tokenizer, stamp->bytes, 0, path, err));
    hash = md_hash_bytes(container->tokenizer, stamp->bytes);
    if (memcmp(&hash, &stamp->hash, sizeof(hash)) != 0)
        return rt_fail(err, RT_EFORMAT,
                       "%s: expected hash %016" PRIx64 "%016" PRIx64 ", found %016" PRIx64
                       "%016" PRIx64,
                       path, stamp->hash.high, stamp->hash.low, hash.high, hash.low);
    return RT_OK;
}

/* An expert node's partial copy needs no tokenizer. */
static rt_status read_tokenizer(md_container *container, rt_err *err)
{
    char *path = rt_path_join(container->dir, MD_TOKENIZER_NAME);
    rt_status status = RT_OK;
    int fd;

    if (path == NULL) return rt_fail(err, RT_ENOMEM, "%s/%s", container->dir, MD_TOKENIZER_NAME);
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0) {
        status = read_image(container, fd, path, err);
        (void)close(fd);
    } else if (errno != ENOENT) {
        status = rt_fail(err, RT_EIO, "open %s: %s", path, strerror(errno));
    }
    free(path);
    return status;
}

rt_status md_container_open(const char *dir, md_container **out, rt_err *err)
{
    md_container *container = calloc(1, sizeof(*container));
    rt_status status;

    if (container == NULL) return rt_fail(err, RT_ENOMEM, "container %s", dir);
    container->dir = strdup(dir);
    status = container->dir != NULL ? RT_OK : rt_fail(err, RT_ENOMEM, "container %s", dir);
    if (status == RT_OK) status = check_finished(container, err);
    if (status == RT_OK) status = read_config_part(container, err);
    if (status == RT_OK) status = read_generation_part(container, err);
    if (status == RT_OK) status = read_description_part(container, err);
    if (status == RT_OK) status = read_manifest_part(container, err);
    if (status == RT_OK) status = open_packs(container, err);
    if (status == RT_OK) status = read_tokenizer(container, err);
    if (status != RT_OK) {
        md_container_close(container);
        return status;
    }
    *out = container;
    return RT_OK;
}

void md_container_info_init(md_container_info *out, const md_config *config,
                            kn_format expert_format, kn_format dense_format)
{
    *out = (md_container_info){
        .expert_format = expert_format,
        .dense_format = dense_format,
        /* bf16 would round what an import has to keep. */
        .embed_format =
            dense_format == KN_F32 || kn_format_has_f32_scales(dense_format) ? KN_F32 : KN_BF16,
        .slice_width = md_slice_width(config),
        .latent_eps = config->rms_eps,
        .conversion_id = MD_CONVERSION_ID,
    };
}

rt_status md_container_blueprint(const char *dir, const md_config *config,
                                 const md_container_info *info, md_container **out, rt_err *err)
{
    md_container *container = calloc(1, sizeof(*container));
    rt_status status;

    if (container == NULL) return rt_fail(err, RT_ENOMEM, "blueprint of %s", dir);
    container->config = *config;
    container->info = *info;
    container->dir = strdup(dir);
    status = container->dir != NULL ? RT_OK : rt_fail(err, RT_ENOMEM, "blueprint of %s", dir);
    if (status == RT_OK)
        status = md_manifest_expected(config, info, &container->entries, &container->count, err);
    if (status == RT_OK) status = name_packs(container, err);
    if (status != RT_OK) {
        md_container_close(container);
        return status;
    }
    *out = container;
    return RT_OK;
}

void md_container_close(md_container *container)
{
    if (container == NULL) return;
    for (uint32_t i = 0; container->slots != NULL && i < container->slot_count; i++) {
        md_pack_close(container->slots[i].pack);
        free(container->slots[i].path);
    }
    free(container->tokenizer);
    free(container->slots);
    free(container->offsets);
    free(container->entries);
    free(container->config_json);
    free(container->dir);
    free(container);
}

const char *md_container_dir(const md_container *container)
{
    return container->dir;
}

const md_config *md_container_config(const md_container *container)
{
    return &container->config;
}

const md_generation *md_container_generation(const md_container *container)
{
    return &container->generation;
}

const md_container_info *md_container_get_info(const md_container *container)
{
    return &container->info;
}

void md_container_expert_layout(const md_container *container, uint32_t layer,
                                md_expert_layout *out)
{
    RT_ASSERT(layer < md_config_layers_total(&container->config));
    md_record_expert_layout(&container->config, &container->info,
                            (md_key){(uint16_t)layer, MD_EXPERT, 0}, out);
}

void md_container_shared_layout(const md_container *container, md_expert_layout *out)
{
    md_record_expert_layout(&container->config, &container->info, (md_key){0, MD_SHARED, 0}, out);
}

bool md_container_find(const md_container *container, md_key key, md_record *out)
{
    uint64_t index = find_entry(container, key);

    if (index == container->count) return false;
    md_container_record_at(container, index, out);
    return true;
}

uint64_t md_container_record_count(const md_container *container)
{
    return container->count;
}

void md_container_record_at(const md_container *container, uint64_t index, md_record *out)
{
    const md_manifest_entry *entry;
    const pack_slot *slot;
    bool held;

    RT_ASSERT(index < container->count);
    entry = &container->entries[index];
    slot = &container->slots[slot_of(container, entry->key)];
    held = container->offsets[index] != 0;
    *out = (md_record){
        .key = entry->key,
        .bytes = entry->bytes,
        .offset = container->offsets[index],
        .hash = entry->hash,
        .fd = held ? md_pack_fd(slot->pack) : -1,
        .fd_direct = held ? md_pack_fd_direct(slot->pack) : -1,
        .pack = slot->path,
    };
}

const void *md_container_tokenizer(const md_container *container, size_t *bytes)
{
    *bytes = container->tokenizer != NULL ? container->tokenizer_stamp.bytes : 0;
    return container->tokenizer;
}
