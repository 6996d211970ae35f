/* file.c - whole reads, whole writes and durable replacement, with errors that name the file. */
#include "base/file.h"

#include "base/check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static rt_status io_status(int error)
{
    return error == ENOSPC || error == EDQUOT ? RT_ENOSPACE : RT_EIO;
}

/* One read or write of a long transfer: its count, 0 at the end, -1 with errno. */
static ssize_t read_some(int fd, char *data, size_t bytes)
{
    ssize_t got;

    do {
        got = read(fd, data, bytes);
    } while (got < 0 && errno == EINTR);
    return got;
}

/* Reads to the end, growing as it goes: st_size is only a hint (0 for files of /proc, stale for a
 * file that is being written). */
static rt_status read_all(int fd, const char *path, size_t limit_bytes, size_t size_hint,
                          char **out, size_t *out_bytes, rt_err *err)
{
    size_t capacity = size_hint + 2, used = 0; /* one to see the end by, one for the 0 */
    char *data = malloc(capacity);
    rt_status status;

    if (data == NULL) return rt_fail(err, RT_ENOMEM, "%s: %zu bytes", path, capacity);
    for (;;) {
        ssize_t got = read_some(fd, data + used, capacity - 1 - used);

        if (got < 0) {
            status = rt_fail(err, RT_EIO, "read %s: %s", path, strerror(errno));
            goto fail;
        }
        if (got == 0) break;
        used += (size_t)got;
        if (used > limit_bytes) {
            status = rt_fail(err, RT_EFORMAT, "%s: expected at most %zu bytes, found more", path,
                             limit_bytes);
            goto fail;
        }
        if (used == capacity - 1) {
            char *larger = capacity < SIZE_MAX / 2 ? realloc(data, capacity * 2) : NULL;

            if (larger == NULL) {
                status = rt_fail(err, RT_ENOMEM, "%s: more than %zu bytes", path, capacity);
                goto fail;
            }
            data = larger;
            capacity *= 2;
        }
    }
    data[used] = '\0';
    *out = data;
    *out_bytes = used;
    return RT_OK;
fail:
    free(data);
    return status;
}

rt_status rt_file_read(const char *path, size_t limit_bytes, char **out, size_t *out_bytes,
                       rt_err *err)
{
    struct stat info;
    rt_status status;
    int fd;

    RT_ASSERT(limit_bytes < SIZE_MAX / 4);
    /* O_NONBLOCK: opening a FIFO must end in the check below, not in a wait for its writer. */
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return rt_fail(err, RT_EIO, "open %s: %s", path, strerror(errno));
    if (fstat(fd, &info) != 0) {
        status = rt_fail(err, RT_EIO, "stat %s: %s", path, strerror(errno));
    } else if (!S_ISREG(info.st_mode)) {
        status = rt_fail(err, RT_EFORMAT, "%s: expected a regular file", path);
    } else if ((uint64_t)info.st_size > limit_bytes) {
        status = rt_fail(err, RT_EFORMAT, "%s: expected at most %zu bytes, found %lld", path,
                         limit_bytes, (long long)info.st_size);
    } else {
        status = read_all(fd, path, limit_bytes, (size_t)info.st_size, out, out_bytes, err);
    }
    close(fd);
    return status;
}

static rt_status write_all(int fd, const char *path, const char *data, size_t bytes, rt_err *err)
{
    size_t used = 0;

    while (used < bytes) {
        ssize_t wrote = write(fd, data + used, bytes - used);

        if (wrote < 0 && errno == EINTR) continue;
        if (wrote < 0) return rt_fail(err, io_status(errno), "write %s: %s", path, strerror(errno));
        if (wrote == 0) return rt_fail(err, RT_EIO, "write %s: nothing was taken", path);
        used += (size_t)wrote;
    }
    return RT_OK;
}

/* Writes and fsyncs a new file; it is gone again on failure. */
static rt_status write_new(const char *path, const void *data, size_t bytes, rt_err *err)
{
    rt_status status;
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);

    if (fd < 0) return rt_fail(err, io_status(errno), "create %s: %s", path, strerror(errno));
    status = write_all(fd, path, (const char *)data, bytes, err);
    if (status == RT_OK && fsync(fd) != 0)
        status = rt_fail(err, io_status(errno), "fsync %s: %s", path, strerror(errno));
    if (close(fd) != 0 && status == RT_OK)
        status = rt_fail(err, io_status(errno), "close %s: %s", path, strerror(errno));
    if (status != RT_OK) unlink(path);
    return status;
}

rt_status rt_file_replace(const char *path, const void *data, size_t bytes, rt_err *err)
{
    size_t tmp_bytes = strlen(path) + sizeof(".tmp");
    char *tmp = malloc(tmp_bytes);
    char *dir = rt_path_parent(path);
    rt_status status;

    if (tmp == NULL || dir == NULL) {
        status = rt_fail(err, RT_ENOMEM, "%s", path);
        goto done;
    }
    snprintf(tmp, tmp_bytes, "%s.tmp", path);
    status = write_new(tmp, data, bytes, err);
    if (status != RT_OK) goto done;
    if (rename(tmp, path) != 0) {
        status = rt_fail(err, io_status(errno), "rename %s to %s: %s", tmp, path, strerror(errno));
        unlink(tmp);
        goto done;
    }
    status = rt_dir_sync(dir, err);
done:
    free(dir);
    free(tmp);
    return status;
}

/* Offsets come from files and peers; beyond off_t the kernel would see a negative number. */
static bool range_is_valid(size_t bytes, uint64_t offset)
{
    return offset <= INT64_MAX && bytes <= INT64_MAX - offset;
}

rt_status rt_pread_full(int fd, void *data, size_t bytes, uint64_t offset, const char *name,
                        rt_err *err)
{
    size_t used = 0;

    if (!range_is_valid(bytes, offset))
        return rt_fail(err, RT_EIO, "read %s: offset %llu is beyond any file", name,
                       (unsigned long long)offset);
    while (used < bytes) {
        ssize_t got = pread(fd, (char *)data + used, bytes - used, (off_t)(offset + used));

        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            return rt_fail(err, RT_EIO, "read %s at %llu: %s", name,
                           (unsigned long long)(offset + used), strerror(errno));
        if (got == 0)
            return rt_fail(err, RT_EIO, "read %s at %llu: expected %zu bytes, found %zu", name,
                           (unsigned long long)offset, bytes, used);
        used += (size_t)got;
    }
    return RT_OK;
}

rt_status rt_pwrite_full(int fd, const void *data, size_t bytes, uint64_t offset, const char *name,
                         rt_err *err)
{
    size_t used = 0;

    if (!range_is_valid(bytes, offset))
        return rt_fail(err, RT_EIO, "write %s: offset %llu is beyond any file", name,
                       (unsigned long long)offset);
    while (used < bytes) {
        ssize_t wrote = pwrite(fd, (const char *)data + used, bytes - used, (off_t)(offset + used));

        if (wrote < 0 && errno == EINTR) continue;
        if (wrote < 0)
            return rt_fail(err, io_status(errno), "write %s at %llu: %s", name,
                           (unsigned long long)(offset + used), strerror(errno));
        if (wrote == 0)
            return rt_fail(err, RT_EIO, "write %s at %llu: nothing was taken", name,
                           (unsigned long long)(offset + used));
        used += (size_t)wrote;
    }
    return RT_OK;
}

rt_status rt_dir_sync(const char *dir, rt_err *err)
{
    rt_status status = RT_OK;
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0) return rt_fail(err, RT_EIO, "open %s: %s", dir, strerror(errno));
    /* EINVAL: a file system without folder syncs (some network mounts); nothing more can be done.
     */
    if (fsync(fd) != 0 && errno != EINVAL)
        status = rt_fail(err, io_status(errno), "fsync %s: %s", dir, strerror(errno));
    close(fd);
    return status;
}

char *rt_path_join(const char *dir, const char *name)
{
    size_t dir_bytes = strlen(dir);
    const char *between = dir_bytes > 0 && dir[dir_bytes - 1] != '/' ? "/" : "";
    size_t bytes = dir_bytes + strlen(name) + 2;
    char *path = malloc(bytes);

    if (path != NULL) snprintf(path, bytes, "%s%s%s", dir, between, name);
    return path;
}

char *rt_path_parent(const char *path)
{
    char *parent = strdup(path);
    size_t length = parent == NULL ? 0 : strlen(parent);
    char *slash;

    if (parent == NULL) return NULL;
    while (length > 1 && parent[length - 1] == '/')
        parent[--length] = '\0';
    slash = strrchr(parent, '/');
    if (slash == NULL) {
        free(parent);
        return strdup(".");
    }
    slash[slash == parent ? 1 : 0] = '\0';
    return parent;
}
