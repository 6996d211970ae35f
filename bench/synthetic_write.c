/* synthetic_write.c - records are drawn, hashed and written by the members of a team, pack by pack. */
#include "bench/synthetic_write.h"

#include "base/budget.h"
#include "base/check.h"
#include "base/file.h"
#include "base/progress.h"
#include "base/stop.h"
#include "model/container/description.h"
#include "model/container/manifest.h"
#include "model/container/pack.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <xxhash.h>

enum { SPARE_BYTES = 64 << 20 /* left on the disk, beyond what is written */ };

typedef struct {
    const synthetic_spec *spec;
    char *part;                 /* DIR.part, owned */
    int part_fd;                /* owned; locked, so that no other run writes there */
    md_manifest_entry *entries; /* of the whole model, owned */
    uint64_t count;
    md_pack_entry *index; /* of the pack under way, owned: [count] */
    uint64_t index_count;
    md_pack_writer *pack; /* owned */
    uint8_t *memory;      /* a block for each member, owned */
    size_t block_bytes;
    rt_progress *progress;
    pthread_mutex_t lock; /* of the two below */
    rt_status status;
    rt_err err;
} writer;

static uint64_t disk_bytes_of(const md_manifest_entry *entries, uint64_t count)
{
    uint64_t bytes = 0;

    for (uint64_t i = 0; i < count; i++)
        bytes += (entries[i].bytes + MD_RECORD_ALIGN - 1) / MD_RECORD_ALIGN * MD_RECORD_ALIGN +
                 sizeof(md_pack_entry) + sizeof(entries[i]);
    return bytes;
}

rt_status synthetic_disk_bytes(const synthetic_recipe *recipe, uint64_t *out, rt_err *err)
{
    md_manifest_entry *entries;
    uint64_t count;

    RT_TRY(md_manifest_expected(&recipe->config, &recipe->info, &entries, &count, err));
    *out = disk_bytes_of(entries, count);
    free(entries);
    return RT_OK;
}

/* ---- what is there ---- */

static bool same_info(const md_container_info *a, const md_container_info *b)
{
    return a->expert_format == b->expert_format && a->dense_format == b->dense_format &&
           a->embed_format == b->embed_format && a->slice_width == b->slice_width &&
           memcmp(a->grid_q, b->grid_q, sizeof(a->grid_q)) == 0;
}

static bool all_held(const md_container *container)
{
    for (uint64_t i = 0; i < md_container_record_count(container); i++) {
        md_record record;

        md_container_record_at(container, i, &record);
        if (record.fd < 0) return false;
    }
    return true;
}

static bool same_config(const synthetic_spec *spec)
{
    char *path = rt_path_join(spec->dir, "config.json"), *text = NULL;
    size_t bytes = 0;
    bool same = path != NULL && rt_file_read(path, 1 << 20, &text, &bytes, NULL) == RT_OK &&
                bytes == strlen(spec->config_json) && memcmp(text, spec->config_json, bytes) == 0;

    free(text);
    free(path);
    return same;
}

/* Of the folder that dir is to be made in. */
static rt_status check_space(const synthetic_spec *spec, rt_err *err)
{
    char *parent = rt_path_parent(spec->dir);
    uint64_t needed, free_bytes;
    char needed_text[32], free_text[32];
    struct statvfs fs;
    int result;

    if (parent == NULL) return rt_fail(err, RT_ENOMEM, "%s", spec->dir);
    result = statvfs(parent, &fs);
    free(parent);
    if (result != 0) return rt_fail(err, RT_EIO, "%s: %s", spec->dir, strerror(errno));
    RT_TRY(synthetic_disk_bytes(spec->recipe, &needed, err));
    needed += SPARE_BYTES;
    free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (free_bytes >= needed) return RT_OK;
    return rt_fail(err, RT_ENOSPACE, "%s: the model takes %s, the disk has %s free", spec->dir,
                   rt_bytes_format(needed, needed_text, sizeof(needed_text)),
                   rt_bytes_format(free_bytes, free_text, sizeof(free_text)));
}

rt_status synthetic_is_there(const synthetic_spec *spec, bool *out, rt_err *err)
{
    md_container *container = NULL;
    struct stat info;
    bool same;

    if (lstat(spec->dir, &info) != 0) {
        if (errno != ENOENT) return rt_fail(err, RT_EIO, "%s: %s", spec->dir, strerror(errno));
        RT_TRY(check_space(spec, err));
        *out = false;
        return RT_OK;
    }
    if (md_container_open(spec->dir, &container, err) != RT_OK) {
        rt_err_prefix(err, "%s is there and is no container (remove it first): ", spec->dir);
        return RT_EINVAL;
    }
    same = same_config(spec) && same_info(&spec->recipe->info, md_container_get_info(container)) &&
           all_held(container);
    md_container_close(container);
    if (!same) return rt_fail(err, RT_EINVAL, "%s holds another model: remove it first", spec->dir);
    *out = true;
    return RT_OK;
}

/* ---- records ---- */

static bool failed(writer *w)
{
    bool result;

    (void)pthread_mutex_lock(&w->lock);
    if (w->status == RT_OK && rt_stop_requested())
        w->status = rt_fail(&w->err, RT_ECANCELED, "stopped by signal %d", rt_stop_signal());
    result = w->status != RT_OK;
    (void)pthread_mutex_unlock(&w->lock);
    return result;
}

static void note(writer *w, rt_status status, const rt_err *err)
{
    (void)pthread_mutex_lock(&w->lock);
    if (w->status == RT_OK) {
        w->status = status;
        w->err = *err;
    }
    (void)pthread_mutex_unlock(&w->lock);
}

static rt_status write_record(writer *w, md_pack_entry *entry, uint8_t *block, rt_err *err)
{
    const synthetic_recipe *recipe = w->spec->recipe;
    uint64_t blocks = synthetic_block_count(recipe, entry->key), offset = 0;
    XXH3_state_t *state = XXH3_createState();
    rt_status status = RT_OK;
    XXH128_hash_t hash;

    if (state == NULL) return rt_fail(err, RT_ENOMEM, "hash");
    (void)XXH3_128bits_reset(state);
    for (uint64_t b = 0; b < blocks && status == RT_OK && !failed(w); b++) {
        size_t bytes = synthetic_fill(recipe, entry->key, b, block);

        (void)XXH3_128bits_update(state, block, bytes);
        status = md_pack_write(w->pack, entry, offset, block, bytes, err);
        offset += bytes;
        rt_progress_add(w->progress, bytes);
    }
    hash = XXH3_128bits_digest(state);
    entry->hash = (md_hash128){hash.low64, hash.high64};
    RT_ASSERT(status != RT_OK || failed(w) || offset == entry->bytes);
    (void)XXH3_freeState(state);
    return status;
}

static void record_job(void *context, size_t chunk, uint32_t member)
{
    writer *w = context;
    rt_err err = {0};
    rt_status status;

    if (failed(w)) return;
    status = write_record(w, &w->index[chunk], w->memory + member * w->block_bytes, &err);
    if (status != RT_OK) note(w, status, &err);
}

/* ---- packs ---- */

/* The entries from `first` on that belong to its pack, which are not all neighbours. */
static void collect(writer *w, uint64_t first)
{
    char name[32], own[32];

    md_pack_name(w->entries[first].key, name, sizeof(name));
    w->index_count = 0;
    for (uint64_t i = first; i < w->count; i++)
        if (strcmp(md_pack_name(w->entries[i].key, own, sizeof(own)), name) == 0)
            w->index[w->index_count++] =
                (md_pack_entry){.key = w->entries[i].key, .bytes = w->entries[i].bytes};
    (void)md_pack_layout(w->index, w->index_count);
}

/* Both lists are in key order. */
static void keep_hashes(writer *w, uint64_t first)
{
    uint64_t next = 0;

    for (uint64_t i = first; i < w->count && next < w->index_count; i++)
        if (md_key_compare(w->entries[i].key, w->index[next].key) == 0)
            w->entries[i].hash = w->index[next++].hash;
    RT_ASSERT(next == w->index_count);
}

static rt_status write_pack(writer *w, uint64_t first, rt_err *err)
{
    char name[32];
    char *path = rt_path_join(w->part, md_pack_name(w->entries[first].key, name, sizeof(name)));
    rt_status status;

    if (path == NULL) return rt_fail(err, RT_ENOMEM, "%s", name);
    collect(w, first);
    (void)unlink(path); /* of an interrupted run, maybe of another size */
    status = md_pack_create(path, w->index, w->index_count, &w->pack, err);
    if (status == RT_OK) {
        rt_team_run(w->spec->team, record_job, w, w->index_count);
        if (failed(w)) {
            *err = w->err;
            status = w->status;
        }
    }
    if (status == RT_OK) status = md_pack_finish(w->pack, err);
    if (status == RT_OK) keep_hashes(w, first);
    md_pack_writer_free(w->pack);
    w->pack = NULL;
    free(path);
    return status;
}

static bool begins_pack(const writer *w, uint64_t at)
{
    md_key key = w->entries[at].key;

    return at == 0 || (key.kind == MD_EXPERT && key.index == 0);
}

static rt_status write_packs(writer *w, rt_err *err)
{
    RT_ASSERT(w->entries[0].key.kind != MD_EXPERT); /* dense.bin comes first */
    for (uint64_t i = 0; i < w->count; i++)
        if (begins_pack(w, i)) RT_TRY(write_pack(w, i, err));
    return RT_OK;
}

/* ---- the rest ---- */

static rt_status write_file(const writer *w, const char *name, const void *data, size_t bytes,
                            rt_err *err)
{
    char *path = rt_path_join(w->part, name);
    rt_status status;

    if (path == NULL) return rt_fail(err, RT_ENOMEM, "%s", name);
    status = rt_file_replace(path, data, bytes, err);
    free(path);
    return status;
}

static rt_status write_manifest(const writer *w, rt_err *err)
{
    char *path = rt_path_join(w->part, "manifest.bin");
    rt_status status;

    if (path == NULL) return rt_fail(err, RT_ENOMEM, "manifest.bin");
    status = md_manifest_write(path, w->entries, w->count, err);
    free(path);
    return status;
}

static rt_status seal(const writer *w, rt_err *err)
{
    const synthetic_spec *spec = w->spec;
    md_container_info info = spec->recipe->info;

    RT_TRY(write_file(w, "config.json", spec->config_json, strlen(spec->config_json), err));
    RT_TRY(write_file(w, MD_TOKENIZER_NAME, spec->tokenizer, spec->tokenizer_bytes, err));
    RT_TRY(write_manifest(w, err));
    RT_TRY(md_container_seal(w->part, spec->config_json, strlen(spec->config_json), w->entries,
                             w->count, &info, err));
    if (rename(w->part, spec->dir) != 0)
        return rt_fail(err, RT_EIO, "rename %s to %s: %s", w->part, spec->dir, strerror(errno));
    return RT_OK;
}

/* What an interrupted run left may be of other options: packs that this model lacks would stay. */
static rt_status clear_part(const writer *w, rt_err *err)
{
    int fd = dup(w->part_fd);
    DIR *stream = fd >= 0 ? fdopendir(fd) : NULL;
    struct dirent *entry;

    if (stream == NULL) {
        if (fd >= 0) close(fd);
        return rt_fail(err, RT_EIO, "open %s: %s", w->part, strerror(errno));
    }
    while ((entry = readdir(stream)) != NULL) {
        const char *dot = strrchr(entry->d_name, '.');

        if (dot != NULL && (strcmp(dot, ".bin") == 0 || strcmp(dot, ".json") == 0))
            (void)unlinkat(w->part_fd, entry->d_name, 0);
    }
    closedir(stream);
    return RT_OK;
}

static rt_status take_part(writer *w, rt_err *err)
{
    if (mkdir(w->part, 0755) != 0 && errno != EEXIST)
        return rt_fail(err, RT_EIO, "create %s: %s", w->part, strerror(errno));
    w->part_fd = open(w->part, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (w->part_fd < 0) return rt_fail(err, RT_EIO, "open %s: %s", w->part, strerror(errno));
    if (flock(w->part_fd, LOCK_EX | LOCK_NB) != 0)
        return rt_fail(err, RT_EBUSY, "lock %s: %s (another run writes there)", w->part,
                       strerror(errno));
    return clear_part(w, err);
}

static rt_status prepare(writer *w, rt_err *err)
{
    const synthetic_recipe *recipe = w->spec->recipe;
    size_t dir_bytes = strlen(w->spec->dir);

    w->part = malloc(dir_bytes + sizeof(".part"));
    if (w->part == NULL) return rt_fail(err, RT_ENOMEM, "%s", w->spec->dir);
    memcpy(w->part, w->spec->dir, dir_bytes);
    memcpy(w->part + dir_bytes, ".part", sizeof(".part"));
    RT_TRY(md_manifest_expected(&recipe->config, &recipe->info, &w->entries, &w->count, err));
    for (uint64_t i = 0; i < w->count; i++) {
        uint64_t bytes = synthetic_block_bytes(recipe, w->entries[i].key);

        if (bytes > w->block_bytes) w->block_bytes = (bytes + 63) / 64 * 64;
    }
    w->index = calloc(w->count, sizeof(*w->index));
    w->memory = aligned_alloc(64, w->block_bytes * rt_team_size(w->spec->team));
    if (w->index == NULL || w->memory == NULL)
        return rt_fail(err, RT_ENOMEM, "blocks of %zu bytes", w->block_bytes);
    return take_part(w, err);
}

rt_status synthetic_write(const synthetic_spec *spec, rt_err *err)
{
    writer w = {.spec = spec, .part_fd = -1, .status = RT_OK};
    rt_status status;

    (void)pthread_mutex_init(&w.lock, NULL);
    status = prepare(&w, err);
    if (status == RT_OK) {
        w.progress = rt_progress_begin("synthetic", disk_bytes_of(w.entries, w.count), spec->quiet);
        status = write_packs(&w, err);
        rt_progress_end(w.progress);
    }
    if (status == RT_OK) status = seal(&w, err);
    free(w.memory);
    free(w.index);
    free(w.entries);
    if (w.part_fd >= 0) close(w.part_fd);
    free(w.part);
    (void)pthread_mutex_destroy(&w.lock);
    return status;
}
