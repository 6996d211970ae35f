/* clock.h - time as a value that is passed in, so that protocol code runs under virtual time.
 *
 * Threads: the real clock from any; a virtual one from its owner only. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

typedef struct rt_clock {
    uint64_t (*now_ns)(void *context); /* monotonic, starts anywhere */
    void *context;
} rt_clock;

rt_clock rt_clock_real(void); /* CLOCK_MONOTONIC */

/* Processor time that all threads of this process have used. */
rt_clock rt_clock_process(void);

typedef struct {
    uint64_t ns;
} rt_virtual_time;

/* Reads time->ns; the owner moves it. `time` is borrowed and outlives the clock. */
rt_clock rt_clock_virtual(rt_virtual_time *time);

static inline uint64_t rt_clock_now(const rt_clock *clock)
{
    return clock->now_ns(clock->context);
}

#endif
