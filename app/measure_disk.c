/* measure_disk.c - how fast experts would come from a disk: reads of their size, by O_DIRECT. */
#include "app/measure.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/slab.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    READS_MAX = 48,        /* 1 GB of GLM-5.2's experts */
    READS_LEAST = 8,       /* of a file that is worth measuring */
    WRITE_BLOCK = 4 << 20, /* of the scratch file */
    WRITE_MS = 1500,
    LIMIT_MS = 700,
    PAGE = MD_RECORD_ALIGN,
};

/* One read to be timed. */
typedef struct {
    int fd, fd_direct; /* -1: none */
    uint64_t offset, bytes;
} disk_read;

typedef struct {
    rt_slab slab;
    rt_clock clock;
    uint64_t spent_ns;
    bool refused; /* O_DIRECT, at the first read that met it */
} reader;

static uint64_t padded(uint64_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

static rt_status reader_init(reader *r, uint64_t bytes_max, rt_err *err)
{
    *r = (reader){.clock = rt_clock_real()};
    RT_TRY(rt_slab_alloc(padded(bytes_max), &r->slab, err));
    memset(r->slab.data, 0, r->slab.bytes); /* the first touch of a page is not the disk's time */
    return RT_OK;
}

/* *got bytes by one descriptor; false with errno set on an error. */
static bool read_by(int fd, void *data, uint64_t wanted, uint64_t offset, uint64_t *got)
{
    *got = 0;
    while (*got < wanted) {
        ssize_t n = pread(fd, (char *)data + *got, wanted - *got, (off_t)(offset + *got));

        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return false;
        if (n == 0) break;
        *got += (uint64_t)n;
    }
    return true;
}

static rt_status timed_read(reader *r, const disk_read *read, const char *name, rt_err *err)
{
    uint64_t begin = rt_clock_now(&r->clock), got = 0;
    bool ok = false, direct = read->fd_direct >= 0 && !r->refused;

    if (direct) {
        ok = read_by(read->fd_direct, r->slab.data, padded(read->bytes), read->offset, &got);
        if (!ok && (errno == EINVAL || errno == EOPNOTSUPP)) r->refused = true;
        if (!ok && !r->refused) return rt_fail(err, RT_EIO, "%s: %s", name, strerror(errno));
    }
    if (!ok) {
        begin = rt_clock_now(&r->clock);
        if (!read_by(read->fd, r->slab.data, read->bytes, read->offset, &got))
            return rt_fail(err, RT_EIO, "%s: %s", name, strerror(errno));
    }
    if (got < read->bytes)
        return rt_fail(err, RT_EIO, "%s: expected %llu bytes at %llu, found %llu", name,
                       (unsigned long long)read->bytes, (unsigned long long)read->offset,
                       (unsigned long long)got);
    r->spent_ns += rt_clock_now(&r->clock) - begin;
    return RT_OK;
}

static bool time_is_up(const reader *r)
{
    return r->spent_ns >= (uint64_t)LIMIT_MS * 1000000;
}

static void add_read(app_disk_rate *out, const reader *r, uint64_t bytes, bool has_direct)
{
    out->reads++;
    out->bytes += bytes;
    out->bytes_s = (double)out->bytes / ((double)(r->spent_ns > 0 ? r->spent_ns : 1) * 1e-9);
    out->direct = has_direct && !r->refused;
}

/* ---- a container ---- */

static void check_record(const md_record *record, const void *data, app_disk_rate *out)
{
    md_hash128 found = md_hash_bytes(data, record->bytes);
    char name[64];

    if (memcmp(&found, &record->hash, sizeof(found)) == 0) return;
    if (out->damaged++ == 0)
        snprintf(out->what, sizeof(out->what), "%s in %.80s",
                 md_key_format(record->key, name, sizeof(name)), record->pack);
}

/* Of those that a run reads: MTP layers' experts have another format. */
static bool is_wanted(const md_container *container, const md_record *record)
{
    return record->key.kind == MD_EXPERT && record->fd >= 0 &&
           record->key.layer < md_container_config(container)->layers;
}

static uint64_t largest_record(const md_container *container, uint64_t *experts)
{
    uint64_t largest = 0;

    *experts = 0;
    for (uint64_t i = 0; i < md_container_record_count(container); i++) {
        md_record record;

        md_container_record_at(container, i, &record);
        if (!is_wanted(container, &record)) continue;
        (*experts)++;
        if (record.bytes > largest) largest = record.bytes;
    }
    return largest;
}

rt_status app_measure_container(const md_container *container, app_disk_rate *out, rt_err *err)
{
    app_disk_rate rate = {.what = "expert records"};
    uint64_t experts, largest = largest_record(container, &experts), seen = 0, step;
    rt_status status = RT_OK;
    reader r;

    *out = rate;
    if (experts == 0) return RT_OK;
    RT_TRY(reader_init(&r, largest, err));
    step = experts > READS_MAX ? experts / READS_MAX : 1;
    for (uint64_t i = 0; i < md_container_record_count(container) && status == RT_OK; i++) {
        md_record record;
        disk_read read;

        md_container_record_at(container, i, &record);
        if (!is_wanted(container, &record) || seen++ % step != 0) continue;
        read = (disk_read){record.fd, record.fd_direct, record.offset, record.bytes};
        status = timed_read(&r, &read, record.pack, err);
        if (status != RT_OK) break;
        add_read(&rate, &r, record.bytes, record.fd_direct >= 0);
        check_record(&record, r.slab.data, &rate);
        if (time_is_up(&r)) break;
    }
    rt_slab_free(&r.slab);
    if (status == RT_OK) *out = rate;
    return status;
}

/* ---- a file ---- */

/* Reads spread over the file, in an order that no read-ahead guesses. */
static rt_status measure_file(int fd, int fd_direct, uint64_t file_bytes, uint64_t read_bytes,
                              const char *name, app_disk_rate *out, rt_err *err)
{
    uint64_t size = padded(read_bytes), places = file_bytes / size;
    rt_status status = RT_OK;
    reader r;

    if (places == 0) return RT_OK;
    RT_TRY(reader_init(&r, size, err));
    for (uint64_t i = 0; i < places && i < READS_MAX && !time_is_up(&r); i++) {
        /* A stride near the golden section visits each place once before any twice. */
        uint64_t stride = places * 618 / 1000 | 1, place = i * stride % places;
        disk_read read = {fd, fd_direct, place * size, size};

        status = timed_read(&r, &read, name, err);
        if (status != RT_OK) break;
        add_read(out, &r, size, fd_direct >= 0);
    }
    rt_slab_free(&r.slab);
    return status;
}

static char *largest_file(const char *dir, uint64_t least_bytes, uint64_t *bytes)
{
    DIR *list = opendir(dir);
    const struct dirent *entry;
    char *largest = NULL;

    *bytes = 0;
    while (list != NULL && (entry = readdir(list)) != NULL) {
        char *path = rt_path_join(dir, entry->d_name);
        struct stat info;

        if (path != NULL && stat(path, &info) == 0 && S_ISREG(info.st_mode) &&
            (uint64_t)info.st_size >= least_bytes && (uint64_t)info.st_size > *bytes) {
            free(largest);
            largest = path;
            *bytes = (uint64_t)info.st_size;
        } else {
            free(path);
        }
    }
    if (list != NULL) (void)closedir(list);
    return largest;
}

rt_status app_measure_largest_file(const char *dir, uint64_t read_bytes, app_disk_rate *out,
                                   rt_err *err)
{
    app_disk_rate rate = {0};
    uint64_t bytes;
    char *path = largest_file(dir, read_bytes * READS_LEAST, &bytes);
    rt_status status = RT_OK;
    int fd, fd_direct;

    *out = rate;
    if (path == NULL) return RT_OK;
    fd = open(path, O_RDONLY | O_CLOEXEC);
    fd_direct = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (fd < 0)
        status = rt_fail(err, RT_EIO, "%s: %s", path, strerror(errno));
    else
        status = measure_file(fd, fd_direct, bytes, read_bytes, path, &rate, err);
    if (fd >= 0) (void)close(fd);
    if (fd_direct >= 0) (void)close(fd_direct);
    snprintf(rate.what, sizeof(rate.what), "%.150s", path);
    free(path);
    if (status == RT_OK) *out = rate;
    return status;
}

/* ---- a scratch file ---- */

/* A file in dir that never has a name; by an unlinked one where the filesystem knows no O_TMPFILE. */
static rt_status open_scratch(const char *dir, int *out, rt_err *err)
{
    int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

    if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) {
        char *path = rt_path_join(dir, ".moesaic-doctor-XXXXXX");

        if (path == NULL) return rt_fail(err, RT_ENOMEM, "%s", dir);
        fd = mkostemp(path, O_CLOEXEC);
        if (fd >= 0) (void)unlink(path);
        free(path);
    }
    if (fd < 0) {
        return rt_fail(err, errno == ENOSPC || errno == EDQUOT ? RT_ENOSPACE : RT_EIO, "%s: %s",
                       dir, strerror(errno));
    }
    *out = fd;
    return RT_OK;
}

/* Up to *bytes; less, but `least`, when the disk is slow: then *bytes says how many. */
static rt_status fill_scratch(int fd, uint64_t least, uint64_t *bytes, const char *dir, rt_err *err)
{
    rt_clock clock = rt_clock_real();
    uint64_t begin = rt_clock_now(&clock), at;
    uint64_t noise = 0x9e3779b97f4a7c15;
    uint64_t *block = malloc(WRITE_BLOCK);
    rt_status status = RT_OK;

    if (block == NULL) return rt_fail(err, RT_ENOMEM, "scratch file");
    for (size_t i = 0; i < WRITE_BLOCK / sizeof(*block);
         i++) { /* disks compress and dedupe zeros */
        noise ^= noise << 13;
        noise ^= noise >> 7;
        noise ^= noise << 17;
        block[i] = noise;
    }
    for (at = 0; at < *bytes && status == RT_OK; at += WRITE_BLOCK) {
        if (at >= least && rt_clock_now(&clock) - begin > (uint64_t)WRITE_MS * 1000000) break;
        block[0] = at;
        status = rt_pwrite_full(fd, block, WRITE_BLOCK, at, dir, err);
        /* To the disk as it goes: else all of the time would be spent after the last look at it. */
        if (status == RT_OK && fdatasync(fd) != 0)
            status = rt_fail(err, errno == ENOSPC ? RT_ENOSPACE : RT_EIO, "%s: %s", dir,
                             strerror(errno));
    }
    free(block);
    if (status == RT_OK) *bytes = at;
    return status;
}

rt_status app_measure_scratch_file(const char *dir, uint64_t file_bytes, uint64_t read_bytes,
                                   app_disk_rate *out, rt_err *err)
{
    uint64_t bytes = (file_bytes + WRITE_BLOCK - 1) / WRITE_BLOCK * WRITE_BLOCK;
    app_disk_rate rate = {0};
    int fd = -1, fd_direct = -1;
    char self[64];
    rt_status status = open_scratch(dir, &fd, err);

    if (status == RT_OK) status = fill_scratch(fd, padded(read_bytes), &bytes, dir, err);
    if (status == RT_OK) {
        snprintf(self, sizeof(self), "/proc/self/fd/%d", fd);
        fd_direct = open(self, O_RDONLY | O_CLOEXEC | O_DIRECT);
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        status = measure_file(fd, fd_direct, bytes, read_bytes, dir, &rate, err);
    }
    if (fd >= 0) (void)close(fd);
    if (fd_direct >= 0) (void)close(fd_direct);
    snprintf(rate.what, sizeof(rate.what), "a scratch file in %.120s", dir);
    if (status == RT_OK) *out = rate;
    return status;
}
