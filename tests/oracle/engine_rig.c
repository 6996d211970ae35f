/* engine_rig.c - the parts of a session, put together in a test's process. */
#include "tests/oracle/engine_rig.h"

#include "transport/link_inproc.h"
#include "transport/link_union.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

void engine_rig_check(rt_status status, const rt_err *err, const char *what)
{
    if (status == RT_OK) return;
    fail_msg("%s: %s: %s", what, rt_status_name(status), err->text);
}

static uint32_t pick_part(void *context, uint32_t parts)
{
    uint64_t *state = context;

    *state = *state * 6364136223846793005U + 1442695040888963407U;
    return (uint32_t)(*state >> 33) % parts;
}

static void open_model(engine_rig *rig, const engine_rig_spec *spec)
{
    rt_team_spec team = {.threads = spec->threads};
    rt_err err = {RT_OK, ""};

    engine_rig_check(rt_team_create(&team, &rig->team, &err), &err, "team");
    engine_rig_check(md_container_open(spec->dir, &rig->container, &err), &err, spec->dir);
    engine_rig_check(md_weights_load(rig->container, false, &rig->budget, &rig->weights, &err),
                     &err, "weights");
}

static void open_map(engine_rig *rig, pl_mode mode)
{
    const md_config *config = md_container_config(rig->container);
    uint32_t share[ENGINE_RIG_NODES_MAX];
    pl_map_spec spec = {.layers = md_config_layers_total(config),
                        .sparse = config->sparse,
                        .experts = config->experts,
                        .nodes = rig->nodes,
                        .share = share,
                        .mode = mode,
                        .epoch = 1};
    md_expert_layout layout;
    rt_err err = {RT_OK, ""};
    uint32_t layer = 0;

    while (!config->sparse[layer])
        layer++;
    md_container_expert_layout(rig->container, layer, &layout);
    spec.slices = layout.slices;
    for (uint32_t node = 0; node < rig->nodes; node++)
        share[node] = 1;
    engine_rig_check(pl_map_create(&spec, &rig->map, &err), &err, "map");
}

static void open_node(engine_rig *rig, const engine_rig_spec *spec, uint32_t node,
                      uint32_t rows_max)
{
    en_store_spec store = {.container = rig->container,
                           .map = rig->map,
                           .node = node,
                           .ram_bytes = spec->ram_bytes > 0 ? spec->ram_bytes : 1ULL << 30,
                           .mirrors = spec->mirrors,
                           .disk = spec->disk,
                           .quiet = true};
    en_executor_spec executor = {.container = rig->container,
                                 .team = rig->team,
                                 .rows_max = rows_max,
                                 .float_activations = spec->float_activations};
    en_node_spec node_spec = {.container = rig->container,
                              .experts_limit = md_container_config(rig->container)->experts};
    rt_err err = {RT_OK, ""};

    engine_rig_check(tr_inproc_create(64 << 20, &rig->near[node], &rig->far[node], &err), &err,
                     "link");
    engine_rig_check(en_store_open(&store, &rig->store[node], &err), &err, "store");
    executor.store = rig->store[node];
    engine_rig_check(en_executor_create(&executor, &rig->executor[node], &err), &err, "executor");
    node_spec.link = rig->far[node];
    node_spec.executor = rig->executor[node];
    engine_rig_check(en_node_create(&node_spec, &rig->node[node], &err), &err, "node");
    tr_inproc_set_driver(rig->far[node], en_node_drive, rig->node[node]);
}

void engine_rig_open(engine_rig *rig, const engine_rig_spec *spec)
{
    tr_union_peer peers[ENGINE_RIG_NODES_MAX];
    an_engine_spec engine = {.clock = rt_clock_real(),
                             .rows_max = spec->rows_max > 0 ? spec->rows_max : 64,
                             .context_max = spec->context_max > 0 ? spec->context_max : 256,
                             .sequences_max = spec->sequences_max > 0 ? spec->sequences_max : 4,
                             .kv_bf16 = spec->kv_bf16,
                             .float_activations = spec->float_activations,
                             .look_ahead = spec->look_ahead,
                             .reply_timeout_ns = 10000000000U};
    rt_err err = {RT_OK, ""};

    memset(rig, 0, sizeof(*rig));
    rig->nodes = spec->nodes > 0 ? spec->nodes : 1;
    assert_true(rig->nodes <= ENGINE_RIG_NODES_MAX);
    rt_budget_init(&rig->budget, 4ULL << 30);
    open_model(rig, spec);
    open_map(rig, spec->mode);
    for (uint32_t node = 0; node < rig->nodes; node++) {
        open_node(rig, spec, node, engine.rows_max);
        peers[node] = (tr_union_peer){rig->near[node], 0};
    }
    engine_rig_check(tr_union_create(peers, rig->nodes, &rig->joined, &err), &err, "union");
    rig->random = spec->permute;
    if (spec->permute != 0) tr_union_set_pick(rig->joined, pick_part, &rig->random);
    engine.container = rig->container;
    engine.weights = rig->weights;
    engine.link = rig->joined;
    engine.map = rig->map;
    engine.team = rig->team;
    engine_rig_check(an_engine_create(&engine, &rig->budget, &rig->engine, &err), &err, "engine");
}

void engine_rig_close(engine_rig *rig)
{
    an_engine_free(rig->engine);
    tr_link_close(rig->joined);
    for (uint32_t node = 0; node < rig->nodes; node++) {
        en_node_free(rig->node[node]);
        en_executor_free(rig->executor[node]);
        en_store_close(rig->store[node]);
        tr_link_close(rig->near[node]);
        tr_link_close(rig->far[node]);
    }
    pl_map_free(rig->map);
    md_weights_free(rig->weights);
    md_container_close(rig->container);
    rt_team_free(rig->team);
}

float *engine_rig_logits(engine_rig *rig, const uint32_t *tokens, uint32_t count, uint32_t chunk)
{
    size_t vocab = md_container_config(rig->container)->vocab;
    float *logits = malloc(count * vocab * sizeof(*logits));
    rt_err err = {RT_OK, ""};
    an_seq *seq;

    assert_non_null(logits);
    engine_rig_check(an_seq_open(rig->engine, &seq, &err), &err, "sequence");
    for (uint32_t at = 0; at < count; at += chunk) {
        an_step_item item = {.seq = seq,
                             .tokens = tokens + at,
                             .count = count - at < chunk ? count - at : chunk,
                             .logits = logits + at * vocab};

        engine_rig_check(an_engine_step(rig->engine, &item, 1, &err), &err, "step");
    }
    an_seq_close(seq);
    return logits;
}
