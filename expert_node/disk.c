/* disk.c - pread with O_DIRECT, and the ways back to a buffered read. */
#include "expert_node/disk.h"

#include "base/check.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

typedef enum { READ_DONE, READ_SHORT, READ_REFUSED, READ_FAILED } read_result;

static ssize_t real_pread(void *context, int fd, void *data, size_t bytes, off_t offset)
{
    (void)context;
    return pread(fd, data, bytes, offset);
}

en_disk_ops en_disk_real(void)
{
    return (en_disk_ops){.pread = real_pread};
}

size_t en_disk_bytes(const md_record *record)
{
    return (record->bytes + MD_RECORD_ALIGN - 1) / MD_RECORD_ALIGN * MD_RECORD_ALIGN;
}

/* A part of a record: `bytes` of it from `at` on, to data. */
typedef struct {
    const md_record *record;
    size_t at, bytes;
    uint8_t *data;
} part;

/* A transfer may end early at any block, or at the end of the file with the record complete. What
 * is left unaligned by a short transfer cannot go on with O_DIRECT and is read buffered instead. */
static read_result read_direct(const en_disk_ops *ops, const part *p, int *errno_out)
{
    size_t wanted = (p->bytes + MD_RECORD_ALIGN - 1) / MD_RECORD_ALIGN * MD_RECORD_ALIGN;
    size_t done = 0;

    while (done < p->bytes) {
        ssize_t got = ops->pread(ops->context, p->record->fd_direct, p->data + done, wanted - done,
                                 (off_t)(p->record->offset + p->at + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && (errno == EINVAL || errno == EOPNOTSUPP)) return READ_REFUSED;
        if (got < 0) {
            *errno_out = errno;
            return READ_FAILED;
        }
        done += (size_t)got;
        if (done < p->bytes && (got == 0 || done % MD_RECORD_ALIGN != 0)) return READ_REFUSED;
    }
    return READ_DONE;
}

static read_result read_buffered(const en_disk_ops *ops, const part *p, int *errno_out)
{
    size_t done = 0;

    while (done < p->bytes) {
        ssize_t got = ops->pread(ops->context, p->record->fd, p->data + done, p->bytes - done,
                                 (off_t)(p->record->offset + p->at + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            *errno_out = errno;
            return READ_FAILED;
        }
        if (got == 0) return READ_SHORT;
        done += (size_t)got;
    }
    return READ_DONE;
}

rt_status en_disk_judge(const md_record *record, md_hash128 found, rt_err *err)
{
    char name[64];

    if (found.low == record->hash.low && found.high == record->hash.high) return RT_OK;
    return rt_fail(err, RT_EFORMAT, "%s: %s: hash expected %016llx%016llx, found %016llx%016llx",
                   record->pack, md_key_format(record->key, name, sizeof(name)),
                   (unsigned long long)record->hash.high, (unsigned long long)record->hash.low,
                   (unsigned long long)found.high, (unsigned long long)found.low);
}

rt_status en_disk_fetch(const en_disk_ops *ops, const md_record *record, size_t at, size_t bytes,
                        void *data, atomic_bool *buffered, rt_err *err)
{
    const part p = {.record = record, .at = at, .bytes = bytes, .data = data};
    read_result result = READ_REFUSED;
    char name[64];
    int error = 0;

    RT_ASSERT((uintptr_t)data % MD_RECORD_ALIGN == 0 && at % MD_RECORD_ALIGN == 0);
    RT_ASSERT(at <= record->bytes && bytes <= record->bytes - at);
    RT_ASSERT(bytes % MD_RECORD_ALIGN == 0 || at + bytes == record->bytes);
    md_key_format(record->key, name, sizeof(name));
    if (record->fd < 0) return rt_fail(err, RT_EIO, "%s: %s: not held here", record->pack, name);
    if (record->fd_direct >= 0 && !atomic_load(buffered)) {
        result = read_direct(ops, &p, &error);
        if (result == READ_REFUSED) atomic_store(buffered, true);
    }
    if (result == READ_REFUSED) result = read_buffered(ops, &p, &error);
    if (result == READ_DONE) return RT_OK;
    return rt_fail(err, RT_EIO, "%s: %s: read of %llu bytes: %s", record->pack, name,
                   (unsigned long long)record->bytes,
                   result == READ_SHORT ? "the file ends before" : strerror(error));
}

rt_status en_disk_read(const en_disk_ops *ops, const md_record *record, void *data,
                       atomic_bool *buffered, rt_err *err)
{
    RT_TRY(en_disk_fetch(ops, record, 0, record->bytes, data, buffered, err));
    return en_disk_judge(record, md_hash_bytes(data, record->bytes), err);
}
