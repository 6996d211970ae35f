/* disk.h - one expert record from its pack: O_DIRECT where the filesystem takes it, else buffered.
 *
 * Why O_DIRECT: it reads 2.5 to 4 times faster than through the page cache here, and the cache
 * would hold a second copy of what the store already caches (docs/performance.md).
 *
 * Threads: any, each with its own memory; `buffered` flags may be shared (a flag only ever goes up). */
#ifndef EXPERT_NODE_DISK_H
#define EXPERT_NODE_DISK_H

#include "model/container/container.h"

#include <stdatomic.h>
#include <sys/types.h>

/* How bytes are read, so that a test can play a disk that fails or lies. */
typedef struct {
    ssize_t (*pread)(void *context, int fd, void *data, size_t bytes,
                     off_t offset); /* as pread(2) */
    void *context;
} en_disk_ops;

en_disk_ops en_disk_real(void);

/* The memory a read needs: the record rounded up to the alignment of O_DIRECT. */
size_t en_disk_bytes(const md_record *record);

/* Reads a part of a record, unchecked: `bytes` from `at` on. All but the last part are whole blocks of
 * the alignment.
 *   data      [en_disk_bytes - at], 4 KiB aligned; what follows the part in its last block is written too
 *   buffered  true: go through the page cache. Set when the filesystem refuses O_DIRECT, so that the
 *             caller does not ask it again
 *   Errors    RT_EIO     not held here, or the read failed; names pack and record */
RT_MUST_CHECK rt_status en_disk_fetch(const en_disk_ops *ops, const md_record *record, size_t at,
                                      size_t bytes, void *data, atomic_bool *buffered, rt_err *err);

/* Compares the hash of a record's bytes with the manifest's.
 *   Errors    RT_EFORMAT they differ (pack, record and both are named) */
RT_MUST_CHECK rt_status en_disk_judge(const md_record *record, md_hash128 found, rt_err *err);

/* The whole record, checked. Errors of both. */
RT_MUST_CHECK rt_status en_disk_read(const en_disk_ops *ops, const md_record *record, void *data,
                                     atomic_bool *buffered, rt_err *err);

#endif
