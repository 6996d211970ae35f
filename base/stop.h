/* stop.h - how a run ends from outside: SIGINT and SIGTERM set a flag that loops look at.
 *
 * A second signal ends the process at once. SIGPIPE is ignored: writing to a closed stdout is an
 * EPIPE that the writer turns into a quiet end.
 *
 * Threads: rt_stop_requested from any. */
#ifndef BASE_STOP_H
#define BASE_STOP_H

#include <stdbool.h>

void rt_stop_install(void); /* once, from main */
bool rt_stop_requested(void);
int rt_stop_signal(void); /* the signal's number, 0 if none came */

#endif
