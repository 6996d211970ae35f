/* sizing.c - the decisions of a start, each a function of model, options and machine. */
#include "app/sizing.h"

#include "attention_node/engine.h"
#include "base/budget.h"
#include "base/check.h"
#include "expert_node/execute.h"
#include "expert_node/store.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    CONTEXT_DEFAULT = 32768,
    CONTEXT_MODEST = 512, /* up to here the cache comes before the experts' comfort */
    CONTEXT_LEAST = 64,
};

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

static uint64_t needed_bytes(const app_sizes *sizes)
{
    return sizes->dense_bytes + sizes->kv_bytes + sizes->attention_scratch_bytes +
           sizes->expert_scratch_bytes + sizes->experts_least_bytes;
}

static bool is_context_good(const app_sizes *sizes, bool experts)
{
    if (needed_bytes(sizes) > sizes->limit_bytes) return false;
    return !experts || sizes->context <= CONTEXT_MODEST ||
           sizes->kv_bytes <= (sizes->limit_bytes - sizes->dense_bytes) / 2;
}

/* The lines that follow from a context. */
static void set_context(const app_sizing *sizing, uint32_t context, app_sizes *sizes)
{
    const app_model_options *options = sizing->options;
    bool bf16 = options->kv[0] == 'b';
    an_engine_spec engine = {.container = sizing->container,
                             .team = sizing->team,
                             .map = sizing->map,
                             .rows_max = sizing->rows_max,
                             .context_max = context,
                             .sequences_max = 1,
                             .kv_bf16 = bf16,
                             .float_activations = options->float_activations};

    sizes->context = context;
    sizes->kv_bytes = an_engine_kv_bytes(md_container_config(sizing->container), context, bf16);
    sizes->attention_scratch_bytes = an_engine_scratch_bytes(&engine);
}

rt_status app_sizes_choose(const app_sizing *sizing, app_sizes *out, rt_err *err)
{
    const app_model_options *options = sizing->options;
    uint32_t longest = md_container_config(sizing->container)->context_max, context;
    app_sizes sizes = {.limit_bytes = sizing->limit_bytes, .threads = rt_team_size(sizing->team)};

    if (sizing->experts) {
        sizes.expert_scratch_bytes =
            en_executor_bytes(sizing->container, sizing->rows_max, sizes.threads);
        sizes.experts_least_bytes = en_store_least_bytes(sizing->container, sizing->map,
                                                         sizing->node, false, options->scrub);
    }
    if (sizing->attends) {
        if (options->context > longest)
            return rt_fail(err, RT_EINVAL,
                           "--ctx-size: expected at most %u, the model's context, found %llu",
                           longest, (unsigned long long)options->context);
        sizes.dense_bytes = md_weights_bytes(sizing->container, false);
        context = (uint32_t)options->context;
        if (context == 0) context = longest < CONTEXT_DEFAULT ? longest : CONTEXT_DEFAULT;
        set_context(sizing, context, &sizes);
        while (options->context == 0 && context > CONTEXT_LEAST &&
               !is_context_good(&sizes, sizing->experts)) {
            context = context / 2 > CONTEXT_LEAST ? context / 2 : CONTEXT_LEAST;
            set_context(sizing, context, &sizes);
        }
    }
    *out = sizes;
    return RT_OK;
}

rt_status app_sizes_check(const app_sizes *sizes, const app_model_options *options, rt_err *err)
{
    struct {
        const char *name;
        uint64_t bytes;
    } lines[] = {{"dense weights", sizes->dense_bytes},
                 {"kv cache", sizes->kv_bytes},
                 {"attention scratch", sizes->attention_scratch_bytes},
                 {"expert scratch", sizes->expert_scratch_bytes},
                 {"experts, at least", sizes->experts_least_bytes}};
    uint64_t needed = needed_bytes(sizes);
    char table[320], needed_text[32], limit_text[32];
    int used = 0;

    if (needed <= sizes->limit_bytes) return RT_OK;
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        char text[32];

        if (lines[i].bytes == 0) continue;
        used += snprintf(table + used, sizeof(table) - (size_t)used, "\n  %-18s %10s",
                         lines[i].name, rt_bytes_format(lines[i].bytes, text, sizeof(text)));
        RT_ASSERT(used > 0 && (size_t)used < sizeof(table));
    }
    rt_bytes_format(needed, needed_text, sizeof(needed_text));
    rt_bytes_format(sizes->limit_bytes, limit_text, sizeof(limit_text));
    if (sizes->context == 0)
        return rt_fail(
            err, RT_ENOMEM,
            "memory: at least %s needed, %s may be used%s\nraise --ram, or lower --chunk",
            needed_text, limit_text, table);
    return rt_fail(err, RT_ENOMEM,
                   "memory: at least %s needed for a context of %u tokens, %s may be used%s\n"
                   "raise --ram, or lower --ctx-size or --chunk%s",
                   needed_text, sizes->context, limit_text, table,
                   options->kv[0] == 'b' ? "" : ", or take --kv bf16");
}

/* Of the map only the number of nodes counts here: whole experts on all but the attention node. */
static rt_status make_map(const md_container *container, uint32_t nodes, pl_map **out, rt_err *err)
{
    const md_config *config = md_container_config(container);
    md_expert_layout layout = {.slices = 1};
    pl_map_spec spec = {.layers = config->layers,
                        .sparse = config->sparse,
                        .experts = config->experts,
                        .nodes = nodes,
                        .mode = PL_WHOLE,
                        .epoch = 1};
    uint32_t *share = calloc(nodes, sizeof(*share));
    rt_status status;

    if (share == NULL) return rt_fail(err, RT_ENOMEM, "%u nodes", nodes);
    for (uint32_t i = nodes > 1; i < nodes; i++)
        share[i] = 1;
    for (uint32_t l = config->layers; l-- > 0;)
        if (config->sparse[l]) md_container_expert_layout(container, l, &layout);
    spec.share = share;
    spec.slices = layout.slices;
    status = pl_map_create(&spec, out, err);
    free(share);
    return status;
}

rt_status app_sizes_of(const md_container *container, const app_model_options *options,
                       uint64_t limit_bytes, uint32_t nodes, rt_team *team, app_sizes *out,
                       rt_err *err)
{
    app_sizing sizing = {.container = container,
                         .options = options,
                         .team = team,
                         .limit_bytes = limit_bytes,
                         .attends = true,
                         .experts = nodes == 1,
                         .rows_max = (uint32_t)options->chunk};
    pl_map *map;
    rt_status status;

    if (nodes == 0 || nodes > PL_NODES_MAX)
        return rt_fail(err, RT_EINVAL, "nodes: expected 1 to %d, found %u", PL_NODES_MAX, nodes);
    RT_TRY(make_map(container, nodes, &map, err));
    sizing.map = map;
    status = app_sizes_choose(&sizing, out, err);
    if (status == RT_OK && nodes > 1)
        out->expert_scratch_bytes =
            en_executor_bytes(container, sizing.rows_max, rt_team_size(team));
    pl_map_free(map);
    return status;
}
