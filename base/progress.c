/* progress.c - draws at most when a draw is due; whoever adds at that moment draws. */
#include "base/progress.h"

#include "base/budget.h"
#include "base/progress_internal.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { LINE_BYTES = 256 };

static const uint64_t SECOND_NS = 1000000000;
static const uint64_t SILENT_NS = 2000000000;  /* a job this short needs no line */
static const uint64_t REDRAW_NS = 200000000;   /* on a terminal: as fast as an eye reads */
static const uint64_t PRINT_NS = 10000000000u; /* elsewhere: six lines a minute */

struct rt_progress {
    const char *what; /* borrowed */
    uint64_t total_bytes;
    rt_clock clock;
    int fd; /* borrowed */
    bool terminal;
    uint64_t start_ns;
    _Atomic uint64_t done_bytes;
    _Atomic uint64_t due_ns;
    _Atomic bool printed;
};

rt_progress *rt_progress_begin_on(const char *what, uint64_t total_bytes, const rt_clock *clock,
                                  int fd, bool terminal)
{
    rt_progress *progress = calloc(1, sizeof(*progress));

    if (progress == NULL) return NULL;
    progress->what = what;
    progress->total_bytes = total_bytes;
    progress->clock = *clock;
    progress->fd = fd;
    progress->terminal = terminal;
    progress->start_ns = rt_clock_now(clock);
    atomic_init(&progress->due_ns, progress->start_ns + (terminal ? SILENT_NS : PRINT_NS));
    return progress;
}

rt_progress *rt_progress_begin(const char *what, uint64_t total_bytes, bool quiet)
{
    rt_clock clock = rt_clock_real();

    if (quiet) return NULL;
    return rt_progress_begin_on(what, total_bytes, &clock, STDERR_FILENO, isatty(STDERR_FILENO));
}

/* "1h02m", "3m20s", "12s". */
static const char *format_duration(uint64_t seconds, char *text, size_t text_bytes)
{
    unsigned long long s = seconds;

    if (s >= 3600)
        snprintf(text, text_bytes, "%lluh%02llum", s / 3600, s % 3600 / 60);
    else if (s >= 60)
        snprintf(text, text_bytes, "%llum%02llus", s / 60, s % 60);
    else
        snprintf(text, text_bytes, "%llus", s);
    return text;
}

static void write_line(const rt_progress *progress, const char *body, bool last)
{
    char line[LINE_BYTES];
    const char *end = progress->terminal && !last ? "" : "\n";
    int used =
        snprintf(line, sizeof(line), "%s%s%s", progress->terminal ? "\r\033[K" : "", body, end);
    size_t bytes;
    ssize_t wrote;

    if (used < 0) return;
    bytes = (size_t)used < sizeof(line) ? (size_t)used : sizeof(line) - 1;
    do {
        wrote = write(progress->fd, line, bytes);
    } while (wrote < 0 && errno == EINTR);
}

static void draw(rt_progress *progress, uint64_t now_ns)
{
    uint64_t done = atomic_load(&progress->done_bytes), total = progress->total_bytes;
    double seconds = (double)(now_ns - progress->start_ns) / (double)SECOND_NS;
    double rate = seconds > 0 ? (double)done / seconds : 0;
    char done_text[32], total_text[32], rate_text[32], eta_text[32] = "?", body[LINE_BYTES - 16];

    rt_bytes_format(done, done_text, sizeof(done_text));
    rt_bytes_format((uint64_t)rate, rate_text, sizeof(rate_text));
    if (total == 0) {
        snprintf(body, sizeof(body), "%s %s, %s/s", progress->what, done_text, rate_text);
    } else {
        double left = done < total ? (double)(total - done) : 0;

        if (rate > 0 && left / rate < 1e9)
            format_duration((uint64_t)(left / rate + 0.5), eta_text, sizeof(eta_text));
        snprintf(body, sizeof(body), "%s %s of %s (%.1f %%), %s/s, %s left", progress->what,
                 done_text, rt_bytes_format(total, total_text, sizeof(total_text)),
                 100.0 * (double)done / (double)total, rate_text, eta_text);
    }
    write_line(progress, body, false);
    atomic_store(&progress->printed, true);
}

void rt_progress_add(rt_progress *progress, uint64_t bytes)
{
    uint64_t now_ns, due_ns;

    if (progress == NULL) return;
    atomic_fetch_add(&progress->done_bytes, bytes);
    now_ns = rt_clock_now(&progress->clock);
    due_ns = atomic_load(&progress->due_ns);
    /* The exchange lets one of several threads draw. */
    if (now_ns >= due_ns &&
        atomic_compare_exchange_strong(&progress->due_ns, &due_ns,
                                       now_ns + (progress->terminal ? REDRAW_NS : PRINT_NS)))
        draw(progress, now_ns);
}

void rt_progress_end(rt_progress *progress)
{
    char done_text[32], rate_text[32], time_text[32], body[LINE_BYTES - 16];
    uint64_t done, elapsed_ns;

    if (progress == NULL) return;
    if (atomic_load(&progress->printed)) {
        done = atomic_load(&progress->done_bytes);
        elapsed_ns = rt_clock_now(&progress->clock) - progress->start_ns;
        snprintf(body, sizeof(body), "%s %s in %s, %s/s", progress->what,
                 rt_bytes_format(done, done_text, sizeof(done_text)),
                 format_duration(elapsed_ns / SECOND_NS, time_text, sizeof(time_text)),
                 rt_bytes_format((uint64_t)((double)done * 1e9 / (double)(elapsed_ns + 1)),
                                 rate_text, sizeof(rate_text)));
        write_line(progress, body, true);
    }
    free(progress);
}
