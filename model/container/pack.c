/* pack.c - opening a finished pack: header, index and bounds are checked before anything is used.
 *
 * Records are read with pread, not mapped: a file that shrinks under a mapping would kill the
 * process with SIGBUS, and a read error must fail a record only. */
#include "model/container/pack.h"

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

struct md_pack {
    int fd, fd_direct;      /* owned */
    char *path;             /* owned */
    md_pack_entry *entries; /* owned */
    uint64_t count;
};

static rt_status pack_size(const md_pack *pack, uint64_t *out, rt_err *err)
{
    struct stat info;

    if (fstat(pack->fd, &info) != 0)
        return rt_fail(err, RT_EIO, "stat %s: %s", pack->path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return rt_fail(err, RT_EFORMAT, "%s: expected a regular file", pack->path);
    if (info.st_size < MD_RECORD_ALIGN)
        return rt_fail(err, RT_EFORMAT, "%s: expected at least %d bytes, found %" PRId64,
                       pack->path, MD_RECORD_ALIGN, (int64_t)info.st_size);
    *out = (uint64_t)info.st_size;
    return RT_OK;
}

/* Records follow each other in key order without gaps, so one place is right for each. */
static rt_status check_index(const md_pack *pack, uint64_t file_bytes, rt_err *err)
{
    uint64_t offset = MD_HEADER_BYTES + pack->count * sizeof(pack->entries[0]);
    char key[64], previous[64];

    for (uint64_t i = 0; i < pack->count; i++) {
        const md_pack_entry *entry = &pack->entries[i];

        offset = (offset + MD_RECORD_ALIGN - 1) / MD_RECORD_ALIGN * MD_RECORD_ALIGN;
        md_key_format(entry->key, key, sizeof(key));
        if (i > 0 && md_key_compare(entry[-1].key, entry->key) >= 0)
            return rt_fail(err, RT_EFORMAT,
                           "%s: expected keys in ascending order, found %s after %s", pack->path,
                           key, md_key_format(entry[-1].key, previous, sizeof(previous)));
        if (entry->offset != offset)
            return rt_fail(err, RT_EFORMAT, "%s: %s: expected offset %" PRIu64 ", found %" PRIu64,
                           pack->path, key, offset, entry->offset);
        if (entry->bytes == 0 || offset > file_bytes || entry->bytes > file_bytes - offset)
            return rt_fail(err, RT_EFORMAT,
                           "%s: %s: expected at most %" PRIu64 " bytes, found %" PRIu64, pack->path,
                           key, offset < file_bytes ? file_bytes - offset : 0, entry->bytes);
        offset += entry->bytes;
    }
    offset = (offset + MD_RECORD_ALIGN - 1) / MD_RECORD_ALIGN * MD_RECORD_ALIGN;
    if (offset != file_bytes)
        return rt_fail(err, RT_EFORMAT,
                       "%s: expected %" PRIu64 " bytes for its records, found %" PRIu64, pack->path,
                       offset, file_bytes);
    return RT_OK;
}

static rt_status read_index(md_pack *pack, rt_err *err)
{
    md_file_header header;
    uint64_t file_bytes = 0;
    size_t bytes;

    RT_TRY(pack_size(pack, &file_bytes, err));
    RT_TRY(rt_pread_full(pack->fd, &header, sizeof(header), 0, pack->path, err));
    RT_TRY(md_file_header_check(&header, MD_PACK_MAGIC, sizeof(pack->entries[0]), file_bytes,
                                pack->path, err));
    pack->count = header.count;
    bytes = pack->count * sizeof(pack->entries[0]);
    pack->entries = malloc(bytes > 0 ? bytes : 1);
    if (pack->entries == NULL) return rt_fail(err, RT_ENOMEM, "index of %s", pack->path);
    RT_TRY(rt_pread_full(pack->fd, pack->entries, bytes, MD_HEADER_BYTES, pack->path, err));
    RT_TRY(md_file_body_check(&header, pack->entries, pack->path, err));
    return check_index(pack, file_bytes, err);
}

rt_status md_pack_open(const char *path, md_pack **out, rt_err *err)
{
    md_pack *pack = calloc(1, sizeof(*pack));
    rt_status status;

    if (pack == NULL) return rt_fail(err, RT_ENOMEM, "pack");
    pack->fd = pack->fd_direct = -1;
    pack->path = strdup(path);
    if (pack->path == NULL) {
        status = rt_fail(err, RT_ENOMEM, "pack");
        goto fail;
    }
    /* O_NONBLOCK: a pipe in a pack's place must be refused, not waited for. */
    pack->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (pack->fd < 0) {
        status = rt_fail(err, RT_EIO, "open %s: %s", path, strerror(errno));
        goto fail;
    }
    status = read_index(pack, err);
    if (status != RT_OK) goto fail;
    pack->fd_direct = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    *out = pack;
    return RT_OK;
fail:
    md_pack_close(pack);
    return status;
}

void md_pack_close(md_pack *pack)
{
    if (pack == NULL) return;
    if (pack->fd >= 0) (void)close(pack->fd);
    if (pack->fd_direct >= 0) (void)close(pack->fd_direct);
    free(pack->entries);
    free(pack->path);
    free(pack);
}

uint64_t md_pack_count(const md_pack *pack)
{
    return pack->count;
}

const md_pack_entry *md_pack_entries(const md_pack *pack)
{
    return pack->entries;
}

int md_pack_fd(const md_pack *pack)
{
    return pack->fd;
}

int md_pack_fd_direct(const md_pack *pack)
{
    return pack->fd_direct;
}

const char *md_pack_path(const md_pack *pack)
{
    return pack->path;
}
