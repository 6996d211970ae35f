/* clock.c - the sources of time: the machine's, the process's and the test's. */
#include "base/clock.h"

#include "base/check.h"

#include <stddef.h>
#include <time.h>

static uint64_t real_now_ns(void *context)
{
    struct timespec now;

    (void)context;
    RT_ASSERT(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t virtual_now_ns(void *context)
{
    return ((const rt_virtual_time *)context)->ns;
}

static uint64_t process_now_ns(void *context)
{
    struct timespec now;

    (void)context;
    RT_ASSERT(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now) == 0);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

rt_clock rt_clock_real(void)
{
    rt_clock clock = {.now_ns = real_now_ns, .context = NULL};

    return clock;
}

rt_clock rt_clock_process(void)
{
    rt_clock clock = {.now_ns = process_now_ns, .context = NULL};

    return clock;
}

rt_clock rt_clock_virtual(rt_virtual_time *time)
{
    rt_clock clock = {.now_ns = virtual_now_ns, .context = time};

    RT_ASSERT(time != NULL);
    return clock;
}
