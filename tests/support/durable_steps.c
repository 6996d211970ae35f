/* durable_steps.c - the wrapped steps: each is counted, then does its work unless the plan says else. */
#include "tests/support/durable_steps.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static struct {
    durable_event what;
    int at;    /* which step, from 0 */
    int steps; /* counted so far */
    int error;
} plan;

/* What a file held before a write that is not synced yet. */
typedef struct undo {
    struct undo *next;
    int fd; /* a duplicate */
    ino_t inode;
    off_t offset, old_size;
    size_t old_bytes;
    uint8_t *old;
} undo;

static undo *undos; /* newest first; single-threaded runs only */

ssize_t __real_pwrite(int fd, const void *data, size_t bytes, off_t offset);
int __real_fdatasync(int fd);
int __real_fsync(int fd);
int __real_rename(const char *from, const char *to);
int __real_unlink(const char *path);
int __real_ftruncate(int fd, off_t size);
int __real_mkdir(const char *path, mode_t mode);
ssize_t __wrap_pwrite(int fd, const void *data, size_t bytes, off_t offset);
int __wrap_fdatasync(int fd);
int __wrap_fsync(int fd);
int __wrap_rename(const char *from, const char *to);
int __wrap_unlink(const char *path);
int __wrap_ftruncate(int fd, off_t size);
int __wrap_mkdir(const char *path, mode_t mode);

void durable_plan(durable_event what, int at, int error)
{
    plan.what = what;
    plan.at = at;
    plan.error = error;
    plan.steps = 0;
}

int durable_steps(void)
{
    return plan.steps;
}

static void lose_power(void)
{
    for (undo *u = undos; u != NULL; u = u->next) {
        if (u->old_bytes > 0) (void)__real_pwrite(u->fd, u->old, u->old_bytes, u->offset);
        (void)__real_ftruncate(u->fd, u->old_size);
    }
}

/* Counts a step; true: it fails with errno set. */
static bool step_fails(void)
{
    int number = plan.steps++;

    if (plan.what == DURABLE_NOTHING || number < plan.at) return false;
    if (number > plan.at && plan.what != DURABLE_ERRORS) return false;
    switch (plan.what) {
    case DURABLE_POWER_LOSS:
        lose_power();
        _exit(DURABLE_DIED);
    case DURABLE_KILL:
        _exit(DURABLE_DIED);
    case DURABLE_SIGNAL:
        (void)raise(SIGINT);
        return false;
    case DURABLE_CORRUPTION:
        return false; /* only writes know how */
    default:
        errno = plan.error;
        return true;
    }
}

static void remember(int fd, size_t bytes, off_t offset)
{
    struct stat info;
    ssize_t got;
    undo *u;

    if (plan.what != DURABLE_POWER_LOSS) return;
    u = calloc(1, sizeof(*u));
    assert_int_equal(fstat(fd, &info), 0);
    u->fd = dup(fd);
    u->inode = info.st_ino;
    u->offset = offset;
    u->old_size = info.st_size;
    u->old = malloc(bytes + 1);
    got = pread(fd, u->old, bytes, offset);
    u->old_bytes = got > 0 ? (size_t)got : 0;
    u->next = undos;
    undos = u;
}

static void forget(int fd)
{
    struct stat info;
    undo **at = &undos;

    if (plan.what != DURABLE_POWER_LOSS || fstat(fd, &info) != 0) return;
    while (*at != NULL) {
        undo *u = *at;

        if (u->inode != info.st_ino) {
            at = &u->next;
            continue;
        }
        *at = u->next;
        close(u->fd);
        free(u->old);
        free(u);
    }
}

ssize_t __wrap_pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
    bool corrupt = plan.what == DURABLE_CORRUPTION && plan.steps == plan.at && bytes >= 1024;
    ssize_t wrote;

    if (step_fails()) return -1;
    remember(fd, bytes, offset);
    wrote = __real_pwrite(fd, data, bytes, offset);
    if (corrupt && wrote > 0) {
        uint8_t byte = (uint8_t) ~*(const uint8_t *)data;

        (void)!__real_pwrite(fd, &byte, 1, offset);
    }
    return wrote;
}

/* The data need not reach a real disk: nobody cuts this machine's power. */
int __wrap_fdatasync(int fd)
{
    if (step_fails()) return -1;
    forget(fd);
    return 0;
}

int __wrap_fsync(int fd)
{
    if (step_fails()) return -1;
    forget(fd);
    return 0;
}

int __wrap_rename(const char *from, const char *to)
{
    return step_fails() ? -1 : __real_rename(from, to);
}

int __wrap_unlink(const char *path)
{
    return step_fails() ? -1 : __real_unlink(path);
}

int __wrap_ftruncate(int fd, off_t size)
{
    return step_fails() ? -1 : __real_ftruncate(fd, size);
}

int __wrap_mkdir(const char *path, mode_t mode)
{
    return step_fails() ? -1 : __real_mkdir(path, mode);
}
