/* log.c - builds a line on the stack and hands it to the kernel in one piece.
 *
 * Control characters of the text become '?': a peer's name or a file's path ends up in a line, and
 * must be able neither to forge a second line nor to steer a terminal. */
#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LINE_BYTES = 2048 }; /* below PIPE_BUF, so a pipe keeps lines whole too */

static const char *const level_names[] = {"error", "warn", "info", "debug"};
static _Atomic int current_level = RT_LOG_INFO;
static _Atomic int current_rank = -1;

rt_status rt_log_level_parse(const char *text, rt_log_level *out, rt_err *err)
{
    for (int i = 0; i <= RT_LOG_DEBUG; i++) {
        if (strcmp(text, level_names[i]) == 0) {
            *out = (rt_log_level)i;
            return RT_OK;
        }
    }
    return rt_fail(err, RT_EINVAL, "log level: expected error, warn, info or debug, found \"%s\"",
                   text);
}

void rt_log_set_level(rt_log_level level)
{
    atomic_store_explicit(&current_level, (int)level, memory_order_relaxed);
}

void rt_log_set_rank(int rank)
{
    atomic_store_explicit(&current_rank, rank, memory_order_relaxed);
}

/* __FILE__ is whatever path the build used; folder/file is what a reader can look up. */
static const char *short_path(const char *file)
{
    const char *last = strrchr(file, '/');

    if (last == NULL) return file;
    while (last > file && last[-1] != '/')
        last--;
    return last;
}

/* Appends like snprintf and returns the new length, never beyond the line. */
static size_t append(char *line, size_t used, const char *fmt, va_list args)
{
    int wrote = vsnprintf(line + used, LINE_BYTES - used, fmt, args);

    if (wrote < 0) return used;
    return (size_t)wrote < LINE_BYTES - used ? used + (size_t)wrote : LINE_BYTES - 1;
}

static size_t appendf(char *line, size_t used, const char *fmt, ...) RT_PRINTF(3, 4);

static size_t appendf(char *line, size_t used, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    used = append(line, used, fmt, args);
    va_end(args);
    return used;
}

static size_t append_head(char *line, rt_log_level level, const char *subsystem, const char *file,
                          int source_line)
{
    struct timespec now;
    struct tm utc;
    int rank = atomic_load_explicit(&current_rank, memory_order_relaxed);
    size_t used;

    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    used = strftime(line, LINE_BYTES, "%Y-%m-%dT%H:%M:%S", &utc);
    used = appendf(line, used, ".%03dZ %s %s ", (int)(now.tv_nsec / 1000000), level_names[level],
                   subsystem);
    if (rank >= 0) used = appendf(line, used, "rank %d ", rank);
    return appendf(line, used, "%s:%d ", short_path(file), source_line);
}

void rt_log_write(rt_log_level level, const char *subsystem, const char *file, int line,
                  const char *fmt, ...)
{
    char text[LINE_BYTES];
    int saved_errno = errno; /* a log line must not change what the caller reports next */
    va_list args;
    size_t used;
    ssize_t wrote;

    if ((int)level > atomic_load_explicit(&current_level, memory_order_relaxed)) return;
    used = append_head(text, level, subsystem, file, line);
    va_start(args, fmt);
    used = append(text, used, fmt, args);
    va_end(args);
    for (size_t i = 0; i < used; i++) {
        unsigned char c = (unsigned char)text[i];

        if (c < 0x20 || c == 0x7f) text[i] = '?';
    }
    text[used++] = '\n'; /* overwrites the terminating 0 */
    do {
        wrote = write(STDERR_FILENO, text, used);
    } while (wrote < 0 && errno == EINTR);
    errno = saved_errno;
}
