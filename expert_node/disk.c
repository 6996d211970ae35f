/* disk.c - pread with O_DIRECT, and the ways back to a buffered read. */
#include "expert_node/disk.h"

#include "base/check.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

typedef enum { DIRECT_DONE, DIRECT_REFUSED, DIRECT_FAILED } direct_result;

size_t en_disk_bytes(const md_record *record)
{
    return (record->bytes + MD_RECORD_ALIGN - 1) / MD_RECORD_ALIGN * MD_RECORD_ALIGN;
}

/* A transfer may end early at any block, or at the end of the file with the record complete. What
 * is left unaligned by a short transfer cannot go on with O_DIRECT and is read buffered instead. */
static direct_result read_direct(const md_record *record, uint8_t *data, int *errno_out)
{
    size_t wanted = en_disk_bytes(record);
    size_t done = 0;

    while (done < record->bytes) {
        ssize_t got =
            pread(record->fd_direct, data + done, wanted - done, (off_t)(record->offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && (errno == EINVAL || errno == EOPNOTSUPP)) return DIRECT_REFUSED;
        if (got < 0) {
            *errno_out = errno;
            return DIRECT_FAILED;
        }
        done += (size_t)got;
        if (done < record->bytes && (got == 0 || done % MD_RECORD_ALIGN != 0)) {
            return DIRECT_REFUSED;
        }
    }
    return DIRECT_DONE;
}

static rt_status check_hash(const md_record *record, const void *data, rt_err *err)
{
    md_hash128 found = md_hash_bytes(data, record->bytes);
    char name[64];

    if (found.low == record->hash.low && found.high == record->hash.high) return RT_OK;
    return rt_fail(err, RT_EFORMAT, "%s: %s: hash expected %016llx%016llx, found %016llx%016llx",
                   record->pack, md_key_format(record->key, name, sizeof(name)),
                   (unsigned long long)record->hash.high, (unsigned long long)record->hash.low,
                   (unsigned long long)found.high, (unsigned long long)found.low);
}

rt_status en_disk_read(const md_record *record, void *data, bool *buffered, rt_err *err)
{
    char name[64];
    int error = 0;

    RT_ASSERT((uintptr_t)data % MD_RECORD_ALIGN == 0);
    if (record->fd >= 0 && record->fd_direct >= 0 && !*buffered) {
        switch (read_direct(record, data, &error)) {
        case DIRECT_DONE:
            return check_hash(record, data, err);
        case DIRECT_FAILED:
            return rt_fail(err, RT_EIO, "%s: %s: read of %llu bytes: %s", record->pack,
                           md_key_format(record->key, name, sizeof(name)),
                           (unsigned long long)record->bytes, strerror(error));
        case DIRECT_REFUSED:
            *buffered = true;
            break;
        }
    }
    return md_record_read(record, data, err);
}
