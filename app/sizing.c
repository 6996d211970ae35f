/* sizing.c - the decisions of a start, each a function of model, options and machine. */
#include "app/sizing.h"

#include "attention_node/engine.h"
#include "base/budget.h"
#include "base/check.h"
#include "expert_node/execute.h"

#include <stdlib.h>

enum { CONTEXT_DEFAULT = 32768, CONTEXT_LEAST = 512 };

uint32_t app_threads(const app_model_options *options, uint32_t ranks_on_host)
{
    uint32_t cpus = rt_cpus_usable();

    RT_ASSERT(ranks_on_host > 0);
    if (options->threads > 0) return (uint32_t)options->threads;
    return cpus > ranks_on_host ? cpus / ranks_on_host : 1;
}

uint64_t app_ram_limit(const app_model_options *options, uint32_t ranks_on_host)
{
    rt_budget budget;

    RT_ASSERT(ranks_on_host > 0);
    if (options->ram_bytes > 0) return options->ram_bytes;
    rt_budget_init(&budget, 0);
    return budget.limit_bytes / ranks_on_host;
}

rt_status app_context_choose(const md_config *config, const app_model_options *options,
                             uint64_t left_bytes, bool experts_here, uint32_t *out, rt_err *err)
{
    bool bf16 = options->kv[0] == 'b';
    uint32_t longest = config->context_max, context;

    if (options->context > longest)
        return rt_fail(err, RT_EINVAL, "--ctx-size %llu: the model's context is %u tokens",
                       (unsigned long long)options->context, longest);
    context = (uint32_t)options->context;
    if (context == 0) {
        context = longest < CONTEXT_DEFAULT ? longest : CONTEXT_DEFAULT;
        if (experts_here) left_bytes /= 2;
        while (context > CONTEXT_LEAST && an_engine_kv_bytes(config, context, bf16) > left_bytes)
            context /= 2;
    }
    *out = context;
    return RT_OK;
}

/* Of the map only the number of nodes counts here: whole experts on all but the attention node. */
static rt_status make_map(const md_config *config, uint32_t nodes, pl_map **out, rt_err *err)
{
    pl_map_spec spec = {.layers = config->layers,
                        .sparse = config->sparse,
                        .experts = config->experts,
                        .slices = 1,
                        .nodes = nodes,
                        .mode = PL_WHOLE,
                        .epoch = 1};
    uint32_t *share = calloc(nodes, sizeof(*share));
    rt_status status;

    if (share == NULL) return rt_fail(err, RT_ENOMEM, "%u nodes", nodes);
    for (uint32_t i = nodes > 1; i < nodes; i++)
        share[i] = 1;
    spec.share = share;
    status = pl_map_create(&spec, out, err);
    free(share);
    return status;
}

rt_status app_sizes_of(const md_container *container, const app_model_options *options,
                       uint64_t limit_bytes, uint32_t nodes, rt_team *team, app_sizes *out,
                       rt_err *err)
{
    const md_config *config = md_container_config(container);
    bool bf16 = options->kv[0] == 'b';
    app_sizes sizes = {.limit_bytes = limit_bytes, .threads = rt_team_size(team)};
    an_engine_spec engine = {.container = container,
                             .team = team,
                             .rows_max = (uint32_t)options->chunk,
                             .sequences_max = 1,
                             .kv_bf16 = bf16,
                             .float_activations = options->float_activations};
    uint64_t left;
    pl_map *map;

    if (nodes == 0 || nodes > PL_NODES_MAX)
        return rt_fail(err, RT_EINVAL, "nodes: expected 1 to %d, found %u", PL_NODES_MAX, nodes);
    sizes.dense_bytes = md_weights_bytes(container, false);
    left = limit_bytes > sizes.dense_bytes ? limit_bytes - sizes.dense_bytes : 0;
    RT_TRY(app_context_choose(config, options, left, nodes == 1, &sizes.context, err));
    RT_TRY(make_map(config, nodes, &map, err));
    engine.map = map;
    engine.context_max = sizes.context;
    sizes.kv_bytes = an_engine_kv_bytes(config, sizes.context, bf16);
    sizes.attention_scratch_bytes = an_engine_scratch_bytes(&engine);
    sizes.expert_scratch_bytes = en_executor_bytes(container, engine.rows_max, sizes.threads);
    pl_map_free(map);
    *out = sizes;
    return RT_OK;
}
