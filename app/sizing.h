/* sizing.h - what a process decides at its start from the machine and the model: threads, memory,
 * context. Opening a session and planning one ask here, so that `plan` promises what `run` does.
 *
 * Threads: any. */
#ifndef APP_SIZING_H
#define APP_SIZING_H

#include "app/model_options.h"
#include "base/team.h"
#include "model/container/container.h"

/* Threads of a process: as asked, else the usable cores over the ranks of the host. */
uint32_t app_threads(const app_model_options *options, uint32_t ranks_on_host);

/* The memory that a process may use: --ram, else what is available now, less 5 %, over the ranks. */
uint64_t app_ram_limit(const app_model_options *options, uint32_t ranks_on_host);

/* The context: as asked, else the largest power of two up to 32k whose cache takes at most what is left
 * once the dense weights are loaded, or half of it where experts lie in the same RAM.
 *   Errors  RT_EINVAL  --ctx-size is beyond the model's */
RT_MUST_CHECK rt_status app_context_choose(const md_config *config,
                                           const app_model_options *options, uint64_t left_bytes,
                                           bool experts_here, uint32_t *out, rt_err *err);

/* The lines of a session's budget, in bytes, but for the experts themselves. */
typedef struct {
    uint64_t limit_bytes;
    uint32_t threads, context;
    uint64_t dense_bytes, kv_bytes, attention_scratch_bytes, expert_scratch_bytes;
} app_sizes;

/* Of a session of `nodes` processes: the attention node's lines, and expert_scratch_bytes of whoever
 * holds experts (with one process, that is the same). `container` may be a blueprint.
 *   limit_bytes  of each process
 *   Errors  RT_EINVAL (context, rows, nodes), RT_ENOMEM, RT_EUNSUPPORTED (no MoE layer) */
RT_MUST_CHECK rt_status app_sizes_of(const md_container *container,
                                     const app_model_options *options, uint64_t limit_bytes,
                                     uint32_t nodes, rt_team *team, app_sizes *out, rt_err *err);

#endif
