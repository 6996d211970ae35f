/* ledger.c - the durable list of converted records. */
#include "model/convert/ledger.h"

#include "base/check.h"
#include "base/file.h"
#include "model/container/file_header.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define LEDGER_MAGIC "MOELEDG\n"

enum { LEDGER_VERSION = 2, ENTRY_BYTES = 64, APPEND_BATCH = 256 };

typedef struct {
    char magic[8];
    uint32_t version, shard_count;
    uint32_t expert_format, dense_format, grid_fine, latent_eps_bits;
    uint32_t conversion_id, import;
    uint64_t config_hash;
    uint64_t records;
    uint64_t hash; /* XXH3-64 of the header with this field 0, then the shard table */
} disk_header;

typedef struct {
    md_key key;
    uint64_t bytes;
    uint64_t hash_low, hash_high;
    uint64_t power_bits;
    uint64_t number;   /* its place in the list: stale bytes of another place do not count */
    uint64_t reserved; /* 0 */
    uint64_t check;    /* XXH3-64 of the 56 bytes before, seeded with the header's hash */
} disk_entry;

static_assert(sizeof(disk_header) == 64, "a ledger header is 64 bytes on disk");
static_assert(offsetof(disk_header, hash) == 56, "the header's hash comes last");
static_assert(sizeof(disk_entry) == ENTRY_BYTES, "a ledger entry is 64 bytes on disk");
static_assert(offsetof(disk_entry, check) == 56, "an entry's check comes last");
static_assert(sizeof(md_source_shard) == 144, "a shard of the table is 144 bytes on disk");

struct md_ledger {
    int fd; /* owned; holds the lock unless read-only */
    char *dir, *path;
    md_ledger_options options;
    md_source_shard *shards; /* owned */
    uint32_t shard_count;
    uint64_t seed;            /* the header's hash */
    uint64_t entries_offset;  /* in the file */
    md_ledger_entry *entries; /* owned: those that were there at open */
    uint64_t entry_count;
    uint64_t next_number; /* of the next entry to append */
};

static uint64_t header_hash(const disk_header *header, const md_source_shard *shards)
{
    disk_header copy = *header;
    XXH3_state_t *state = XXH3_createState();
    uint64_t hash;

    if (state == NULL) return 0;
    copy.hash = 0;
    (void)XXH3_64bits_reset(state);
    (void)XXH3_64bits_update(state, &copy, sizeof(copy));
    (void)XXH3_64bits_update(state, shards, header->shard_count * sizeof(*shards));
    hash = XXH3_64bits_digest(state);
    (void)XXH3_freeState(state);
    return hash != 0 ? hash : 1;
}

static uint64_t entry_check(const disk_entry *entry, uint64_t seed)
{
    return XXH3_64bits_withSeed(entry, offsetof(disk_entry, check), seed);
}

/* ---- reading ---- */

static void options_from_header(const disk_header *header, md_ledger_options *out)
{
    *out = (md_ledger_options){
        .import = header->import != 0,
        .expert_format = (kn_format)header->expert_format,
        .dense_format = (kn_format)header->dense_format,
        .grid_fine = header->grid_fine != 0,
        .conversion_id = header->conversion_id,
        .config_hash = header->config_hash,
        .records = header->records,
    };
    memcpy(&out->latent_eps, &header->latent_eps_bits, sizeof(out->latent_eps));
}

static bool header_is_valid(const char *data, size_t bytes)
{
    disk_header header;

    if (bytes < sizeof(header)) return false;
    memcpy(&header, data, sizeof(header));
    if (memcmp(header.magic, LEDGER_MAGIC, sizeof(header.magic)) != 0) return false;
    if (header.shard_count > MD_SOURCE_SHARDS_MAX || header.records > MD_ENTRIES_MAX) return false;
    if ((bytes - sizeof(header)) / sizeof(md_source_shard) < header.shard_count) return false;
    return header.hash == header_hash(&header, (const md_source_shard *)(data + sizeof(header)));
}

static rt_status read_header(md_ledger *ledger, const char *data, rt_err *err)
{
    disk_header header;

    memcpy(&header, data, sizeof(header));
    if (header.version != LEDGER_VERSION)
        return rt_fail(err, RT_EFORMAT, "%s: expected version %d, found %u", ledger->path,
                       LEDGER_VERSION, header.version);
    options_from_header(&header, &ledger->options);
    if (kn_format_name(ledger->options.expert_format) == NULL ||
        kn_format_name(ledger->options.dense_format) == NULL)
        return rt_fail(err, RT_EFORMAT, "%s: unknown formats %u and %u", ledger->path,
                       header.expert_format, header.dense_format);
    ledger->seed = header.hash;
    ledger->shard_count = header.shard_count;
    ledger->entries_offset = sizeof(header) + header.shard_count * sizeof(md_source_shard);
    ledger->shards = calloc(header.shard_count + 1, sizeof(md_source_shard));
    if (ledger->shards == NULL) return rt_fail(err, RT_ENOMEM, "%s", ledger->path);
    memcpy(ledger->shards, data + sizeof(header), header.shard_count * sizeof(md_source_shard));
    for (uint32_t i = 0; i < header.shard_count; i++)
        if (memchr(ledger->shards[i].name, 0, sizeof(ledger->shards[i].name)) == NULL)
            return rt_fail(err, RT_EFORMAT, "%s: shard name %u has no end", ledger->path, i);
    return RT_OK;
}

static rt_status read_entries(md_ledger *ledger, const char *data, size_t bytes, rt_err *err)
{
    uint64_t count = (bytes - ledger->entries_offset) / ENTRY_BYTES;

    ledger->entries = calloc(count + 1, sizeof(*ledger->entries));
    if (ledger->entries == NULL) return rt_fail(err, RT_ENOMEM, "%s", ledger->path);
    for (uint64_t i = 0; i < count; i++) {
        disk_entry entry;
        md_ledger_entry *out = &ledger->entries[ledger->entry_count];

        memcpy(&entry, data + ledger->entries_offset + i * ENTRY_BYTES, sizeof(entry));
        if (entry.number != i || entry.check != entry_check(&entry, ledger->seed)) continue;
        *out = (md_ledger_entry){
            .key = entry.key,
            .bytes = entry.bytes,
            .hash = {entry.hash_low, entry.hash_high},
        };
        memcpy(&out->power, &entry.power_bits, sizeof(out->power));
        ledger->entry_count++;
        ledger->next_number = i + 1; /* what follows the last whole entry is overwritten */
    }
    return RT_OK;
}

static rt_status take_lock(int fd, const char *path, rt_err *err)
{
    struct stat mine, named;

    if (flock(fd, LOCK_EX | LOCK_NB) != 0)
        return errno == EWOULDBLOCK
                   ? rt_fail(err, RT_EBUSY, "%s: another conversion into this directory is running",
                             path)
                   : rt_fail(err, RT_EIO, "lock %s: %s", path, strerror(errno));
    /* The holder before us may have finished and deleted the file while we opened it. */
    if (fstat(fd, &mine) != 0 || stat(path, &named) != 0 || mine.st_ino != named.st_ino)
        return rt_fail(err, RT_EBUSY, "%s: another conversion just finished here; run again", path);
    return RT_OK;
}

static rt_status ledger_new(const char *dir, md_ledger **out, rt_err *err)
{
    md_ledger *ledger = calloc(1, sizeof(*ledger));

    if (ledger == NULL) return rt_fail(err, RT_ENOMEM, "ledger");
    ledger->fd = -1;
    ledger->dir = strdup(dir);
    ledger->path = rt_path_join(dir, MD_LEDGER_NAME);
    if (ledger->dir == NULL || ledger->path == NULL) {
        md_ledger_close(ledger);
        return rt_fail(err, RT_ENOMEM, "ledger");
    }
    *out = ledger;
    return RT_OK;
}

/* The header is synced before the first pack is created: without packs a bad one is a torn one. */
static rt_status packs_exist(const char *dir, bool *out, rt_err *err)
{
    char *path = rt_path_join(dir, "dense.bin");

    if (path == NULL) return rt_fail(err, RT_ENOMEM, "%s", dir);
    *out = access(path, F_OK) == 0;
    free(path);
    return RT_OK;
}

rt_status md_ledger_open(const char *dir, bool read_only, md_ledger **out, rt_err *err)
{
    md_ledger *ledger = NULL;
    char *data = NULL;
    size_t bytes = 0;
    bool begun = false;
    rt_status status;

    RT_TRY(ledger_new(dir, &ledger, err));
    ledger->fd = open(ledger->path, (read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC);
    if (ledger->fd < 0 && (errno == ENOENT || errno == ENOTDIR)) {
        status = RT_OK;
        goto none;
    }
    if (ledger->fd < 0) {
        status = rt_fail(err, RT_EIO, "open %s: %s", ledger->path, strerror(errno));
        goto none;
    }
    status = read_only ? RT_OK : take_lock(ledger->fd, ledger->path, err);
    if (status == RT_OK)
        status = rt_file_read(ledger->path, (size_t)MD_ENTRIES_MAX * ENTRY_BYTES * 2, &data, &bytes,
                              err);
    if (status != RT_OK) goto none;
    if (!header_is_valid(data, bytes)) {
        status = packs_exist(dir, &begun, err);
        if (status == RT_OK && begun)
            status = rt_fail(err, RT_EFORMAT,
                             "%s is damaged: delete %s and convert again (with the whole source)",
                             ledger->path, dir);
        goto none;
    }
    status = read_header(ledger, data, err);
    if (status == RT_OK) status = read_entries(ledger, data, bytes, err);
    if (status != RT_OK) goto none;
    free(data);
    *out = ledger;
    return RT_OK;
none:
    free(data);
    md_ledger_close(ledger);
    if (status == RT_OK) *out = NULL;
    return status;
}

void md_ledger_close(md_ledger *ledger)
{
    if (ledger == NULL) return;
    if (ledger->fd >= 0) close(ledger->fd);
    free(ledger->entries);
    free(ledger->shards);
    free(ledger->path);
    free(ledger->dir);
    free(ledger);
}

/* ---- beginning ---- */

static void header_from_options(const md_ledger_options *options, uint32_t shard_count,
                                disk_header *out)
{
    *out = (disk_header){
        .magic = LEDGER_MAGIC,
        .version = LEDGER_VERSION,
        .shard_count = shard_count,
        .import = options->import,
        .expert_format = (uint32_t)options->expert_format,
        .dense_format = (uint32_t)options->dense_format,
        .grid_fine = options->grid_fine,
        .conversion_id = options->conversion_id,
        .config_hash = options->config_hash,
        .records = options->records,
    };
    memcpy(&out->latent_eps_bits, &options->latent_eps, sizeof(out->latent_eps_bits));
}

static rt_status write_header(md_ledger *ledger, rt_err *err)
{
    size_t table_bytes = ledger->shard_count * sizeof(md_source_shard);
    disk_header header;

    header_from_options(&ledger->options, ledger->shard_count, &header);
    header.hash = header_hash(&header, ledger->shards);
    ledger->seed = header.hash;
    ledger->entries_offset = sizeof(header) + table_bytes;
    if (ftruncate(ledger->fd, 0) != 0)
        return rt_fail(err, RT_EIO, "truncate %s: %s", ledger->path, strerror(errno));
    RT_TRY(rt_pwrite_full(ledger->fd, &header, sizeof(header), 0, ledger->path, err));
    RT_TRY(
        rt_pwrite_full(ledger->fd, ledger->shards, table_bytes, sizeof(header), ledger->path, err));
    if (fsync(ledger->fd) != 0)
        return rt_fail(err, errno == ENOSPC ? RT_ENOSPACE : RT_EIO, "sync %s: %s", ledger->path,
                       strerror(errno));
    return rt_dir_sync(ledger->dir, err);
}

/* Between our look at the target and this lock another process may have begun. */
static rt_status check_still_new(const md_ledger *ledger, rt_err *err)
{
    char *data = NULL;
    size_t bytes = 0;
    bool begun = false;

    RT_TRY(
        rt_file_read(ledger->path, (size_t)MD_ENTRIES_MAX * ENTRY_BYTES * 2, &data, &bytes, err));
    begun = begun || header_is_valid(data, bytes);
    free(data);
    if (begun)
        return rt_fail(err, RT_EBUSY, "%s: another conversion began here meanwhile; run again",
                       ledger->path);
    return RT_OK;
}

rt_status md_ledger_create(const char *dir, const md_ledger_options *options,
                           const md_source *source, md_ledger **out, rt_err *err)
{
    md_ledger *ledger = NULL;
    rt_status status;

    RT_TRY(ledger_new(dir, &ledger, err));
    ledger->options = *options;
    ledger->shard_count = md_source_shard_count(source);
    ledger->shards = calloc(ledger->shard_count, sizeof(*ledger->shards));
    if (ledger->shards == NULL) {
        status = rt_fail(err, RT_ENOMEM, "%s", ledger->path);
        goto fail;
    }
    for (uint32_t i = 0; i < ledger->shard_count; i++)
        ledger->shards[i] = *md_source_shard_at(source, i);
    ledger->fd = open(ledger->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (ledger->fd < 0) {
        status = rt_fail(err, errno == ENOSPC ? RT_ENOSPACE : RT_EIO, "create %s: %s", ledger->path,
                         strerror(errno));
        goto fail;
    }
    status = take_lock(ledger->fd, ledger->path, err);
    if (status == RT_OK) status = check_still_new(ledger, err);
    if (status == RT_OK) status = write_header(ledger, err);
    if (status != RT_OK) goto fail;
    *out = ledger;
    return RT_OK;
fail:
    md_ledger_close(ledger);
    return status;
}

/* Formats are an option of a conversion, and found in the source of an import. */
static rt_status check_formats(const md_ledger_options *held, const md_ledger_options *asked,
                               rt_err *err)
{
    bool experts = held->expert_format != asked->expert_format;
    const char *what = asked->import ? (experts ? "experts" : "dense weights")
                                     : (experts ? "--experts" : "--dense");

    if (!experts && held->dense_format == asked->dense_format) return RT_OK;
    return rt_fail(err, RT_EINVAL, "%s: the target holds %s, %s %s", what,
                   kn_format_name(experts ? held->expert_format : held->dense_format),
                   asked->import ? "the source has" : "asked",
                   kn_format_name(experts ? asked->expert_format : asked->dense_format));
}

rt_status md_ledger_check_options(const md_ledger_options *held, const md_ledger_options *asked,
                                  rt_err *err)
{
    if (held->import != asked->import)
        return rt_fail(err, RT_EINVAL, "it was begun by moesaic %s, which alone can finish it",
                       held->import ? "import" : "convert");
    if (held->conversion_id != asked->conversion_id)
        return rt_fail(err, RT_EINVAL,
                       "the target was made by conversion id %u, this program has %u",
                       held->conversion_id, asked->conversion_id);
    if (held->config_hash != asked->config_hash || held->records != asked->records)
        return rt_fail(err, RT_EINVAL,
                       "the target was made from another config.json than the source has");
    RT_TRY(check_formats(held, asked, err));
    if (held->grid_fine != asked->grid_fine)
        return rt_fail(err, RT_EINVAL, "--grid: the target holds %s, asked %s",
                       held->grid_fine ? "fine" : "std", asked->grid_fine ? "fine" : "std");
    if (memcmp(&held->latent_eps, &asked->latent_eps, sizeof(float)) != 0)
        return rt_fail(err, RT_EINVAL, "--latent-eps: the target holds %g, asked %g",
                       (double)held->latent_eps, (double)asked->latent_eps);
    return RT_OK;
}

const md_ledger_options *md_ledger_get_options(const md_ledger *ledger)
{
    return &ledger->options;
}

const md_source_shard *md_ledger_shards(const md_ledger *ledger, uint32_t *count)
{
    *count = ledger->shard_count;
    return ledger->shards;
}

const md_ledger_entry *md_ledger_entries(const md_ledger *ledger, uint64_t *count)
{
    *count = ledger->entry_count;
    return ledger->entries;
}

/* ---- appending and ending ---- */

rt_status md_ledger_append(md_ledger *ledger, const md_ledger_entry *entries, uint64_t count,
                           rt_err *err)
{
    disk_entry batch[APPEND_BATCH];

    for (uint64_t done = 0; done < count;) {
        uint64_t part = count - done < APPEND_BATCH ? count - done : APPEND_BATCH;

        for (uint64_t i = 0; i < part; i++) {
            const md_ledger_entry *entry = &entries[done + i];

            batch[i] = (disk_entry){
                .key = entry->key,
                .bytes = entry->bytes,
                .hash_low = entry->hash.low,
                .hash_high = entry->hash.high,
                .number = ledger->next_number + i,
            };
            memcpy(&batch[i].power_bits, &entry->power, sizeof(batch[i].power_bits));
            batch[i].check = entry_check(&batch[i], ledger->seed);
        }
        RT_TRY(rt_pwrite_full(ledger->fd, batch, part * ENTRY_BYTES,
                              ledger->entries_offset + ledger->next_number * ENTRY_BYTES,
                              ledger->path, err));
        ledger->next_number += part;
        done += part;
    }
    if (fdatasync(ledger->fd) != 0)
        return rt_fail(err, errno == ENOSPC ? RT_ENOSPACE : RT_EIO, "sync %s: %s", ledger->path,
                       strerror(errno));
    return RT_OK;
}

rt_status md_ledger_forget(md_ledger *ledger, rt_err *err)
{
    if (ftruncate(ledger->fd, (off_t)ledger->entries_offset) != 0 || fdatasync(ledger->fd) != 0)
        return rt_fail(err, RT_EIO, "truncate %s: %s", ledger->path, strerror(errno));
    ledger->next_number = 0;
    return RT_OK;
}

rt_status md_ledger_remove(md_ledger *ledger, rt_err *err)
{
    rt_status status;

    if (unlink(ledger->path) != 0)
        status = rt_fail(err, RT_EIO, "delete %s: %s", ledger->path, strerror(errno));
    else
        status = rt_dir_sync(ledger->dir, err);
    md_ledger_close(ledger);
    return status;
}
