/* team.h - a fixed team of threads that runs one job at a time, split into chunks.
 *
 * OpenMP is used inside team.c only: one parallel region is kept open for the team's life, members
 * take chunks by an atomic counter (a descheduled thread never holds up the rest), and idle members
 * spin shortly if the machine has cores to spare, then sleep on a futex. A region per matrix would
 * cost 10-20 ms each as soon as threads exceed cores (docs/performance.md).
 *
 * Every member sets MXCSR to 0x1f80 when it starts and asserts it before each job: a library
 * loaded with -ffast-math turns on flush-to-zero for the whole thread.
 *
 * Threads: rt_team_run from one thread at a time (the owner, who is member 0). */
#ifndef BASE_TEAM_H
#define BASE_TEAM_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct rt_team rt_team;

/* chunk 0..chunks-1 in no order; member 0..rt_team_size-1 names the scratch to use. */
typedef void (*rt_team_job)(void *context, size_t chunk, uint32_t member);

typedef struct {
    uint32_t threads; /* 0 or 1: no threads, jobs run inline on the caller */
    uint32_t spin_us; /* longest spin before sleeping; 0: sleep at once */
} rt_team_spec;

RT_MUST_CHECK rt_status rt_team_create(const rt_team_spec *spec, rt_team **out, rt_err *err);
void rt_team_free(rt_team *team); /* joins the members; NULL allowed */

uint32_t rt_team_size(const rt_team *team); /* members including the caller, at least 1 */

/* Returns when every chunk has run. Chunk results must not depend on the member or the order. */
void rt_team_run(rt_team *team, rt_team_job job, void *context, size_t chunks);

/* Sets this thread's MXCSR to 0x1f80 (round to nearest, no flush to zero). Call once per thread
 * that computes outside a team. rt_float_env_assert checks it. */
void rt_float_env_set(void);
void rt_float_env_assert(void);

/* Processors this process may run on (affinity mask, then the cgroup's quota), at least 1. */
uint32_t rt_cpus_usable(void);

#endif
