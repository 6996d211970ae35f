/* faulty_disk.c - pread with faults. */
#include "tests/support/faulty_disk.h"

#include "base/check.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { IN_A_ROW_MAX = 2 };

void faulty_disk_init(faulty_disk *disk, uint64_t seed, uint32_t percent, const char *only)
{
    memset(disk, 0, sizeof(*disk));
    RT_ASSERT(pthread_mutex_init(&disk->lock, NULL) == 0);
    disk->seed = seed;
    disk->percent = percent;
    disk->only = only;
}

static uint64_t mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9U;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebU;
    return x ^ x >> 31;
}

static bool is_meant(const faulty_disk *disk, int fd)
{
    char link[64], path[4096];
    ssize_t length;

    if (disk->only == NULL) return true;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    length = readlink(link, path, sizeof(path) - 1);
    if (length < 0) return false;
    path[length] = '\0';
    return strstr(path, disk->only) != NULL;
}

/* A number that decides about this read; 0: it is a good one. Under lock. */
static uint64_t fault_of(faulty_disk *disk, int fd, off_t offset)
{
    uint32_t i = 0;
    uint64_t random;

    while (i < disk->places && (disk->place[i].fd != fd || disk->place[i].offset != offset))
        i++;
    if (i == disk->places) {
        RT_ASSERT(disk->places < FAULTY_DISK_PLACES);
        disk->places++;
        disk->place[i].fd = fd;
        disk->place[i].offset = offset;
    }
    random = mix(disk->seed + mix((uint64_t)offset * 64 + (uint64_t)fd) +
                 mix(0x9e3779b97f4a7c15U * ++disk->place[i].reads));
    if (random % 100 >= disk->percent || disk->place[i].in_a_row == IN_A_ROW_MAX) {
        disk->place[i].in_a_row = 0;
        return 0;
    }
    disk->place[i].in_a_row++;
    disk->faults++;
    return random | 1;
}

static ssize_t faulty_pread(void *context, int fd, void *data, size_t bytes, off_t offset)
{
    faulty_disk *disk = context;
    uint64_t fault = 0;
    ssize_t got;

    pthread_mutex_lock(&disk->lock);
    disk->reads++;
    if (is_meant(disk, fd)) fault = fault_of(disk, fd, offset);
    pthread_mutex_unlock(&disk->lock);
    if (fault != 0 && (fault >> 32 & 1)) {
        errno = EIO;
        return -1;
    }
    got = pread(fd, data, bytes, offset);
    if (fault != 0 && got > 0) ((uint8_t *)data)[(fault >> 33) % (size_t)got] ^= 0x10;
    return got;
}

en_disk_ops faulty_disk_ops(faulty_disk *disk)
{
    return (en_disk_ops){.pread = faulty_pread, .context = disk};
}
