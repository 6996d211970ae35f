/* disk.h - one expert record from its pack: O_DIRECT where the filesystem takes it, else buffered.
 *
 * Why O_DIRECT: it reads 2.5 to 4 times faster than through the page cache here, and the cache
 * would hold a second copy of what the store already caches (docs/performance.md). The whole record
 * is always read, also when only some slices are wanted, because its hash covers all of it.
 *
 * Threads: any, each with its own memory and flag. */
#ifndef EXPERT_NODE_DISK_H
#define EXPERT_NODE_DISK_H

#include "model/container/container.h"

/* The memory a read needs: the record rounded up to the alignment of O_DIRECT. */
size_t en_disk_bytes(const md_record *record);

/* Reads a record and checks its hash.
 *   data      [en_disk_bytes], 4 KiB aligned
 *   buffered  in: go through the page cache. Set when the filesystem refuses O_DIRECT, so that the
 *             caller does not ask it again
 *   Errors    RT_EIO     not held here, or the read failed; names pack and record
 *             RT_EFORMAT the bytes do not match the manifest's hash */
RT_MUST_CHECK rt_status en_disk_read(const md_record *record, void *data, bool *buffered,
                                     rt_err *err);

#endif
