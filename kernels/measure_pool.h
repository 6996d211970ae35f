/* measure_pool.h - what the measures share: the pool, the teams and the clock; internal. */
#ifndef KERNELS_MEASURE_POOL_H
#define KERNELS_MEASURE_POOL_H

#include "base/slab.h"
#include "base/team.h"
#include "kernels/measure.h"

#include <stdalign.h>

/* Processor time of one member, on a line of its own. */
typedef struct {
    alignas(64) double seconds;
} kn_measure_clock;

struct kn_measure {
    kn_measure_spec spec;
    rt_slab pool;
    rt_team *team[2];         /* owned; by kn_measure_threads */
    kn_measure_clock *clocks; /* owned [members of the larger team] */
};

double kn_thread_seconds(void);

/* Mean processor time of the team's members over one run of the chunks. */
double kn_measure_run(kn_measure *measure, kn_measure_threads threads, rt_team_job job,
                      void *context, size_t chunks);

/* One thread that only multiplies and adds, `steps` times 12 registers. */
kn_measured kn_peak_burst(uint32_t steps);

/* Repeatable values in (-size, size). */
void kn_measure_fill(float *x, size_t n, float size);

#endif
