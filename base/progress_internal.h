/* progress_internal.h - the progress line with its time and its target given, for tests. */
#ifndef BASE_PROGRESS_INTERNAL_H
#define BASE_PROGRESS_INTERNAL_H

#include "base/clock.h"
#include "base/progress.h"

/* fd is borrowed; terminal: redraw one line instead of printing many. */
rt_progress *rt_progress_begin_on(const char *what, uint64_t total_bytes, const rt_clock *clock,
                                  int fd, bool terminal);

#endif
