/* idle.c - the steps of the wait. */
#include "transport/idle.h"

#include <sched.h>
#include <time.h>

/* Turns end on purpose long before a whole step has passed in time: 1.2 ms yielding and at 20 us, about
 * 10 ms at 50 us, then 200 us. A decode layer's reply comes within the first two. */
enum { YIELD_TURNS = 20, SHORT_TURNS = YIELD_TURNS + 60, MEDIUM_TURNS = SHORT_TURNS + 200 };

static const uint64_t SHORT_NS = 20000, MEDIUM_NS = 50000, LONG_NS = 200000;

uint64_t tr_idle_sleep_ns(uint32_t turn)
{
    if (turn < YIELD_TURNS) return 0;
    if (turn < SHORT_TURNS) return SHORT_NS;
    if (turn < MEDIUM_TURNS) return MEDIUM_NS;
    return LONG_NS;
}

void tr_idle_wait(tr_idle *idle, uint64_t left_ns)
{
    uint64_t sleep_ns = tr_idle_sleep_ns(idle->turns);
    struct timespec sleep = {0};

    if (idle->turns < UINT32_MAX) idle->turns++;
    if (sleep_ns > left_ns) sleep_ns = left_ns;
    if (sleep_ns == 0) {
        sched_yield();
        return;
    }
    sleep.tv_nsec = (long)sleep_ns;
    nanosleep(&sleep, NULL); /* a signal ends it: the caller looks at the stop flag next */
}
