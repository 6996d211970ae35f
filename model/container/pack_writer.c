/* pack_writer.c - creating a pack: sparse at final size, records in any order, header last.
 *
 * The header is what makes a pack readable, so it is written only after the records and the index
 * are durable, and taken away again when an interrupted conversion reopens the file. */
#include "model/container/pack.h"

#include "base/check.h"
#include "base/file.h"
#include "model/container/file_header.h"
#include "model/expert.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { HASH_CHUNK_BYTES = 1 << 20 };

static_assert(sizeof(md_pack_entry) == 40, "an index entry is 40 bytes on disk");

struct md_pack_writer {
    int fd;                 /* owned */
    char *path;             /* owned */
    md_pack_entry *entries; /* borrowed */
    uint64_t count;
    uint64_t file_bytes;
};

static uint64_t align_record(uint64_t bytes)
{
    return (bytes + MD_RECORD_ALIGN - 1) / MD_RECORD_ALIGN * MD_RECORD_ALIGN;
}

static int compare_entries(const void *a, const void *b)
{
    const md_pack_entry *left = a, *right = b;

    return md_key_compare(left->key, right->key);
}

uint64_t md_pack_layout(md_pack_entry *entries, uint64_t count)
{
    uint64_t offset = align_record(MD_HEADER_BYTES + count * sizeof(md_pack_entry));

    RT_ASSERT(count <= MD_ENTRIES_MAX);
    if (count > 0) qsort(entries, count, sizeof(entries[0]), compare_entries);
    for (uint64_t i = 0; i < count; i++) {
        entries[i].offset = offset;
        offset += align_record(entries[i].bytes);
    }
    return offset;
}

static uint64_t final_size(const md_pack_entry *entries, uint64_t count)
{
    if (count == 0) return align_record(MD_HEADER_BYTES);
    return entries[count - 1].offset + align_record(entries[count - 1].bytes);
}

static rt_status check_regular(const md_pack_writer *pack, struct stat *info, rt_err *err)
{
    if (fstat(pack->fd, info) != 0)
        return rt_fail(err, RT_EIO, "stat %s: %s", pack->path, strerror(errno));
    if (!S_ISREG(info->st_mode))
        return rt_fail(err, RT_EIO, "%s: expected a regular file", pack->path);
    return RT_OK;
}

/* Gives the file its size, also one that was cut short; takes the header of an old one away. */
static rt_status prepare_file(md_pack_writer *pack, rt_err *err)
{
    static const unsigned char no_header[MD_HEADER_BYTES];
    struct stat info;

    RT_TRY(check_regular(pack, &info, err));
    if ((uint64_t)info.st_size != pack->file_bytes &&
        ftruncate(pack->fd, (off_t)pack->file_bytes) != 0) {
        bool full = errno == ENOSPC || errno == EDQUOT || errno == EFBIG;

        return rt_fail(err, full ? RT_ENOSPACE : RT_EIO, "%s: %" PRIu64 " bytes: %s", pack->path,
                       pack->file_bytes, strerror(errno));
    }
    if (info.st_size == 0) return RT_OK;
    return rt_pwrite_full(pack->fd, no_header, sizeof(no_header), 0, pack->path, err);
}

static rt_status writer_new(const char *path, md_pack_entry *entries, uint64_t count,
                            md_pack_writer **out, rt_err *err)
{
    md_pack_writer *pack = calloc(1, sizeof(*pack));

    if (pack == NULL) return rt_fail(err, RT_ENOMEM, "pack writer");
    pack->fd = -1;
    pack->entries = entries;
    pack->count = count;
    pack->file_bytes = final_size(entries, count);
    pack->path = strdup(path);
    if (pack->path == NULL) {
        md_pack_writer_free(pack);
        return rt_fail(err, RT_ENOMEM, "pack writer");
    }
    *out = pack;
    return RT_OK;
}

rt_status md_pack_create(const char *path, md_pack_entry *entries, uint64_t count,
                         md_pack_writer **out, rt_err *err)
{
    md_pack_writer *pack = NULL;
    rt_status status;

    RT_TRY(writer_new(path, entries, count, &pack, err));
    pack->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (pack->fd < 0) {
        bool full = errno == ENOSPC || errno == EDQUOT;

        status = rt_fail(err, full ? RT_ENOSPACE : RT_EIO, "create %s: %s", path, strerror(errno));
        goto fail;
    }
    status = prepare_file(pack, err);
    if (status != RT_OK) goto fail;
    *out = pack;
    return RT_OK;
fail:
    md_pack_writer_free(pack);
    return status;
}

rt_status md_pack_look(const char *path, md_pack_entry *entries, uint64_t count,
                       md_pack_writer **out, rt_err *err)
{
    md_pack_writer *pack = NULL;
    struct stat info;
    rt_status status;

    RT_TRY(writer_new(path, entries, count, &pack, err));
    pack->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not block us */
    if (pack->fd >= 0)
        status = check_regular(pack, &info, err);
    else if (errno == ENOENT)
        status = RT_OK;
    else
        status = rt_fail(err, RT_EIO, "open %s: %s", path, strerror(errno));
    if (status != RT_OK || pack->fd < 0) {
        md_pack_writer_free(pack);
        pack = NULL;
    }
    if (status == RT_OK) *out = pack;
    return status;
}

rt_status md_pack_write(md_pack_writer *pack, const md_pack_entry *entry, uint64_t offset_in_record,
                        const void *data, size_t bytes, rt_err *err)
{
    RT_ASSERT(entry >= pack->entries && entry < pack->entries + pack->count);
    RT_ASSERT(offset_in_record <= entry->bytes && bytes <= entry->bytes - offset_in_record);
    return rt_pwrite_full(pack->fd, data, bytes, entry->offset + offset_in_record, pack->path, err);
}

static rt_status hash_range(const md_pack_writer *pack, const md_pack_entry *entry,
                            XXH3_state_t *state, void *chunk, rt_err *err)
{
    for (uint64_t done = 0; done < entry->bytes;) {
        uint64_t left = entry->bytes - done;
        size_t bytes = left < HASH_CHUNK_BYTES ? (size_t)left : HASH_CHUNK_BYTES;

        RT_TRY(rt_pread_full(pack->fd, chunk, bytes, entry->offset + done, pack->path, err));
        (void)XXH3_128bits_update(state, chunk, bytes);
        done += bytes;
    }
    return RT_OK;
}

rt_status md_pack_hash(md_pack_writer *pack, const md_pack_entry *entry, md_hash128 *out,
                       rt_err *err)
{
    XXH3_state_t *state = XXH3_createState();
    void *chunk = malloc(HASH_CHUNK_BYTES);
    rt_status status;

    if (state == NULL || chunk == NULL) {
        status = rt_fail(err, RT_ENOMEM, "hash of %s", pack->path);
        goto done;
    }
    /* Without this the page cache would answer, and a disk that lost the write would pass. Advice
     * only: a filesystem that ignores it costs certainty, not correctness. */
    (void)posix_fadvise(pack->fd, (off_t)entry->offset, (off_t)entry->bytes, POSIX_FADV_DONTNEED);
    (void)XXH3_128bits_reset(state);
    status = hash_range(pack, entry, state, chunk, err);
    if (status == RT_OK) {
        XXH128_hash_t hash = XXH3_128bits_digest(state);

        *out = (md_hash128){hash.low64, hash.high64};
    }
done:
    free(chunk);
    (void)XXH3_freeState(state);
    return status;
}

rt_status md_pack_sync(md_pack_writer *pack, rt_err *err)
{
    if (fdatasync(pack->fd) != 0) {
        bool full = errno == ENOSPC || errno == EDQUOT;

        return rt_fail(err, full ? RT_ENOSPACE : RT_EIO, "sync %s: %s", pack->path,
                       strerror(errno));
    }
    return RT_OK;
}

rt_status md_pack_finish(md_pack_writer *pack, rt_err *err)
{
    md_file_header header;

    RT_TRY(rt_pwrite_full(pack->fd, pack->entries, pack->count * sizeof(pack->entries[0]),
                          MD_HEADER_BYTES, pack->path, err));
    RT_TRY(md_pack_sync(pack, err));
    md_file_header_init(&header, MD_PACK_MAGIC, sizeof(pack->entries[0]), pack->count,
                        pack->file_bytes, pack->entries);
    RT_TRY(rt_pwrite_full(pack->fd, &header, sizeof(header), 0, pack->path, err));
    if (fsync(pack->fd) != 0)
        return rt_fail(err, RT_EIO, "sync %s: %s", pack->path, strerror(errno));
    return RT_OK;
}

void md_pack_writer_free(md_pack_writer *pack)
{
    if (pack == NULL) return;
    if (pack->fd >= 0) (void)close(pack->fd);
    free(pack->path);
    free(pack);
}
