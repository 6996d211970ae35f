/* sizing.h - what a process decides at its start from the machine and the model: threads, memory,
 * context. Opening a session and planning one ask here, so that `plan` promises what `run` does.
 *
 * Threads: any. */
#ifndef APP_SIZING_H
#define APP_SIZING_H

#include "app/model_options.h"
#include "base/team.h"
#include "model/container/container.h"
#include "placement/map.h"

/* Threads of a process: as asked, else the usable cores over the ranks of the host. */
uint32_t app_threads(const app_model_options *options, uint32_t ranks_on_host);

/* The memory that a process may use: --ram, else what is available now, less 5 %, over the ranks. */
uint64_t app_ram_limit(const app_model_options *options, uint32_t ranks_on_host);

/* What the decisions are made from. */
typedef struct {
    const md_container *container; /* borrowed; may be a blueprint */
    const app_model_options *options;
    const pl_map *map; /* borrowed */
    rt_team *team;     /* borrowed; only its size counts */
    uint64_t limit_bytes;
    uint32_t node; /* of the map: which experts are this process's */
    bool attends;  /* it is the attention node */
    bool experts;  /* it holds experts */
    uint32_t rows_max;
} app_sizing;

/* The lines of a session's budget, in bytes, but for the experts themselves. What a process does not do
 * is 0. */
typedef struct {
    uint64_t limit_bytes;
    uint32_t threads, context;
    uint64_t dense_bytes, kv_bytes, attention_scratch_bytes, expert_scratch_bytes;
    uint64_t experts_least_bytes; /* with which the experts can be used from disk */
} app_sizes;

/* Chooses the context of an attention node: as asked, else the largest of 32k, 16k, ... down to 64 with
 * which the whole plan fits the limit; where experts lie in the same RAM, the cache of a context above
 * 512 takes at most half of what the dense weights leave. When nothing fits it is the least.
 *   Errors  RT_EINVAL  --ctx-size is beyond the model's */
RT_MUST_CHECK rt_status app_sizes_choose(const app_sizing *sizing, app_sizes *out, rt_err *err);

/* Whether the plan fits its limit.  RT_ENOMEM with every line, and what can be done. */
RT_MUST_CHECK rt_status app_sizes_check(const app_sizes *sizes, const app_model_options *options,
                                        rt_err *err);

/* Of a session of `nodes` processes, whole experts: the attention node's lines, and
 * expert_scratch_bytes of whoever holds experts (with one process, that is the same).
 *   limit_bytes  of each process
 *   Errors  RT_EINVAL (context, rows, nodes), RT_ENOMEM, RT_EUNSUPPORTED (no MoE layer) */
RT_MUST_CHECK rt_status app_sizes_of(const md_container *container,
                                     const app_model_options *options, uint64_t limit_bytes,
                                     uint32_t nodes, rt_team *team, app_sizes *out, rt_err *err);

#endif
