/* stop.h - how a run ends from outside: SIGINT and SIGTERM set a flag that loops look at.
 *
 * A second signal ends the process at once. SIGPIPE and SIGXFSZ are ignored: writing to a closed
 * stdout is an EPIPE that the writer turns into a quiet end, a file beyond its limit an EFBIG that
 * is an error like a full disk.
 *
 * Threads: rt_stop_requested from any. */
#ifndef BASE_STOP_H
#define BASE_STOP_H

#include <stdbool.h>

void rt_stop_install(void); /* once, from main */
bool rt_stop_requested(void);
int rt_stop_signal(void); /* the signal's number, 0 if none came */

/* Last words for calls into a library that may never return: after a loss Open MPI can block in its own
 * error report until the launcher kills the process. While the main thread is inside such a call and
 * `whom` is set, a stop that has not been answered within RT_STOP_GRACE_MS is answered by the handler: it
 * writes one line that names whom on stderr and ends the process with exit code 1.
 *
 * rt_stop_waiting_for: who is waited for ("rank 2 (host a, pid 17)"; borrowed until it is set again),
 * NULL: nobody; gives whom it was before, for who waits inside another's wait. rt_stop_blocking: the calls themselves, marked by who makes them. Both cost a store. */
enum { RT_STOP_GRACE_MS = 400 };
const char *rt_stop_waiting_for(const char *whom);
void rt_stop_blocking(bool inside);

#endif
