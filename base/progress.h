/* progress.h - one stderr line that says how far a long job is, its rate and when it ends.
 *
 * On a terminal the line is redrawn; elsewhere a line is printed every ten seconds, so that logs of
 * unattended runs stay short. Nothing is printed for the first two seconds.
 *
 * Threads: rt_progress_add from any; the rest from the owner. */
#ifndef BASE_PROGRESS_H
#define BASE_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct rt_progress rt_progress;

/* what: "convert", borrowed. NULL is returned when memory is short; all calls accept NULL. */
rt_progress *rt_progress_begin(const char *what, uint64_t total_bytes, bool quiet);
void rt_progress_add(rt_progress *progress, uint64_t bytes);
void rt_progress_end(rt_progress *progress); /* prints the closing line if anything was printed */

#endif
