/* engine_fixture.h - an engine on a seeded container whose expert nodes are played by the test. */
#ifndef TESTS_UNIT_ATTENTION_NODE_ENGINE_FIXTURE_H
#define TESTS_UNIT_ATTENTION_NODE_ENGINE_FIXTURE_H

#include "attention_node/engine.h"
#include "tests/support/fake_link.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { FIXTURE_NODES = 3, FIXTURE_ROWS = 12, FIXTURE_CONTEXT = 24, FIXTURE_SEQUENCES = 2 };

typedef struct {
    char *dir;
    md_container *container;
    md_weights *weights;
    pl_map *map;
    rt_team *team;
    fake_link *link;
    rt_budget budget;
    an_engine_spec spec;
    an_engine *engine; /* NULL until engine_fixture_start */
    rt_err err;
} engine_fixture;

static inline void engine_fixture_map(engine_fixture *f, uint32_t nodes, pl_map **out)
{
    const md_config *config = md_container_config(f->container);
    uint32_t share[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    md_expert_layout layout;
    pl_map_spec spec = {.layers = config->layers,
                        .sparse = config->sparse,
                        .experts = config->experts,
                        .nodes = nodes,
                        .share = share,
                        .mode = PL_SLICED,
                        .epoch = 1};

    md_container_expert_layout(f->container, config->layers - 1, &layout);
    spec.slices = layout.slices;
    assert_int_equal(pl_map_create(&spec, out, NULL), RT_OK);
}

/* Everything but the engine. */
static inline engine_fixture *engine_fixture_open(const tiny_model_spec *model)
{
    engine_fixture *f = calloc(1, sizeof(*f));
    rt_team_spec team = {.threads = 0};

    assert_non_null(f);
    f->dir = tiny_model_build(model);
    rt_budget_init(&f->budget, 1ULL << 30);
    assert_int_equal(md_container_open(f->dir, &f->container, &f->err), RT_OK);
    assert_int_equal(md_weights_load(f->container, false, &f->budget, &f->weights, &f->err), RT_OK);
    engine_fixture_map(f, FIXTURE_NODES, &f->map);
    assert_int_equal(rt_team_create(&team, &f->team, &f->err), RT_OK);
    f->link = fake_link_create(FIXTURE_NODES);
    f->link->sent = fake_link_answer_zeros;
    f->spec = (an_engine_spec){.container = f->container,
                               .weights = f->weights,
                               .link = &f->link->link,
                               .map = f->map,
                               .team = f->team,
                               .clock = rt_clock_virtual(&f->link->time),
                               .rows_max = FIXTURE_ROWS,
                               .context_max = FIXTURE_CONTEXT,
                               .sequences_max = FIXTURE_SEQUENCES,
                               .reply_timeout_ns = 1000000000};
    return f;
}

static inline void engine_fixture_start(engine_fixture *f)
{
    if (an_engine_create(&f->spec, &f->budget, &f->engine, &f->err) != RT_OK)
        fail_msg("%s", f->err.text);
}

static inline void engine_fixture_close(engine_fixture *f)
{
    an_engine_free(f->engine);
    fake_link_free(f->link);
    rt_team_free(f->team);
    pl_map_free(f->map);
    md_weights_free(f->weights);
    md_container_close(f->container);
    temp_dir_remove(f->dir);
    free(f);
}

static inline an_seq *engine_fixture_seq(engine_fixture *f)
{
    an_seq *seq;

    assert_int_equal(an_seq_open(f->engine, &seq, &f->err), RT_OK);
    return seq;
}

/* One step of tokens 1, 2, 3 ... of one sequence, without logits. */
static inline rt_status engine_fixture_step(engine_fixture *f, an_seq *seq, uint32_t count)
{
    uint32_t tokens[FIXTURE_CONTEXT + 8];
    an_step_item item = {.seq = seq, .tokens = tokens, .count = count, .logits_from = count};

    for (uint32_t i = 0; i < count; i++)
        tokens[i] = an_seq_length(seq) + i + 1;
    f->err = (rt_err){RT_OK, ""};
    return an_engine_step(f->engine, &item, 1, &f->err);
}

static inline void engine_fixture_text(const engine_fixture *f, const char *text)
{
    if (strstr(f->err.text, text) == NULL) fail_msg("expected '%s' in '%s'", text, f->err.text);
}

#endif
