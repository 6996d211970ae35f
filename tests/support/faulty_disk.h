/* faulty_disk.h - a disk that fails reads or gives wrong bytes, decided by a seed.
 *
 * Whether a read of a place fails depends on the place and on how often it was read before, not on
 * threads or time. No place fails more than twice in a row, so that a reader that tries again gets
 * through.
 *
 * Threads: reads from any. */
#ifndef TESTS_SUPPORT_FAULTY_DISK_H
#define TESTS_SUPPORT_FAULTY_DISK_H

#include "expert_node/disk.h"

#include <pthread.h>

enum { FAULTY_DISK_PLACES = 4096 };

typedef struct {
    pthread_mutex_t lock;
    uint64_t seed;
    uint32_t percent;       /* of reads that go wrong: half of them fail, half lie */
    const char *only;       /* in files whose path contains this; NULL: all */
    uint64_t reads, faults; /* that happened */
    struct {
        int fd;
        off_t offset;
        uint32_t reads, in_a_row;
    } place[FAULTY_DISK_PLACES];
    uint32_t places;
} faulty_disk;

void faulty_disk_init(faulty_disk *disk, uint64_t seed, uint32_t percent, const char *only);
en_disk_ops faulty_disk_ops(faulty_disk *disk);

#endif
