/* test_engine.c - the boundary: what is refused, what an error leaves as it was, what the probe sees. */
#include "tests/unit/attention_node/engine_fixture.h"

#include <math.h>
#include <stdio.h>

static int setup(void **state)
{
    tiny_model_spec model = tiny_model_default();

    *state = engine_fixture_open(&model);
    return 0;
}

static int setup_started(void **state)
{
    (void)setup(state);
    engine_fixture_start(*state);
    return 0;
}

static int teardown(void **state)
{
    engine_fixture_close(*state);
    return 0;
}

static void refuse_create(engine_fixture *f, rt_status status, const char *text)
{
    an_engine *engine = NULL;

    f->err = (rt_err){RT_OK, ""};
    assert_int_equal(an_engine_create(&f->spec, &f->budget, &engine, &f->err), status);
    assert_null(engine);
    engine_fixture_text(f, text);
}

static void create_names_the_setting_out_of_range(void **state)
{
    engine_fixture *f = *state;
    an_engine_spec good = f->spec;

    f->spec.rows_max = 0;
    refuse_create(f, RT_EINVAL, "rows");
    f->spec.rows_max = TR_ROWS_MAX + 1;
    refuse_create(f, RT_EINVAL, "4097");
    f->spec = good;
    f->spec.context_max = 0;
    refuse_create(f, RT_EINVAL, "context");
    f->spec.context_max = 4097;
    refuse_create(f, RT_EINVAL, "4096");
    f->spec = good;
    f->spec.sequences_max = 0;
    refuse_create(f, RT_EINVAL, "sequences");
}

static void create_refuses_a_map_of_more_nodes_than_peers(void **state)
{
    engine_fixture *f = *state;
    pl_map *map;

    engine_fixture_map(f, FIXTURE_NODES + 1, &map);
    f->spec.map = map;
    refuse_create(f, RT_EINVAL, "nodes");
    f->spec.map = f->map;
    pl_map_free(map);
}

static void create_refuses_what_the_budget_cannot_hold(void **state)
{
    engine_fixture *f = *state;

    rt_budget_init(&f->budget, 1000);
    refuse_create(f, RT_ENOMEM, "kv cache");
    rt_budget_init(&f->budget,
                   an_engine_kv_bytes(md_container_config(f->container), FIXTURE_CONTEXT, false) *
                           FIXTURE_SEQUENCES +
                       10);
    refuse_create(f, RT_ENOMEM, "attention scratch");
}

static void the_budget_books_caches_and_scratch(void **state)
{
    engine_fixture *f = *state;
    uint64_t before = rt_budget_left(&f->budget);

    engine_fixture_start(f);
    assert_int_equal(before - rt_budget_left(&f->budget),
                     an_engine_scratch_bytes(&f->spec) +
                         FIXTURE_SEQUENCES * an_engine_kv_bytes(md_container_config(f->container),
                                                                FIXTURE_CONTEXT, false));
}

static void sequences_are_bounded_and_reused(void **state)
{
    engine_fixture *f = *state;
    an_seq *seq[FIXTURE_SEQUENCES], *extra = NULL;

    for (int i = 0; i < FIXTURE_SEQUENCES; i++)
        seq[i] = engine_fixture_seq(f);
    assert_int_equal(an_seq_open(f->engine, &extra, &f->err), RT_EBUSY);
    assert_null(extra);
    assert_int_equal(engine_fixture_step(f, seq[0], 3), RT_OK);
    an_seq_close(seq[0]);
    extra = engine_fixture_seq(f);
    assert_int_equal(an_seq_length(extra), 0);
    an_seq_close(NULL);
}

static void a_token_outside_the_vocabulary_is_refused(void **state)
{
    engine_fixture *f = *state;
    uint32_t tokens[2] = {0, tiny_model_default().vocab};
    an_seq *seq = engine_fixture_seq(f);
    an_step_item item = {.seq = seq, .tokens = tokens, .count = 2, .logits_from = 2};

    assert_int_equal(an_engine_step(f->engine, &item, 1, &f->err), RT_EINVAL);
    engine_fixture_text(f, "position 1");
    engine_fixture_text(f, "96");
    assert_int_equal(an_seq_length(seq), 0);
}

static void a_full_context_is_refused_and_named(void **state)
{
    engine_fixture *f = *state;
    an_seq *seq = engine_fixture_seq(f);

    assert_int_equal(engine_fixture_step(f, seq, FIXTURE_ROWS), RT_OK);
    assert_int_equal(engine_fixture_step(f, seq, FIXTURE_ROWS), RT_OK);
    assert_int_equal(engine_fixture_step(f, seq, 1), RT_EINVAL);
    engine_fixture_text(f, "context");
    assert_int_equal(an_seq_length(seq), FIXTURE_CONTEXT);
    an_seq_truncate(seq, FIXTURE_CONTEXT - 1);
    assert_int_equal(engine_fixture_step(f, seq, 1), RT_OK);
}

static void more_rows_than_a_step_has_are_refused(void **state)
{
    engine_fixture *f = *state;
    an_seq *seq = engine_fixture_seq(f);

    assert_int_equal(engine_fixture_step(f, seq, FIXTURE_ROWS + 1), RT_EINVAL);
    engine_fixture_text(f, "rows");
    assert_int_equal(an_seq_length(seq), 0);
}

static void a_sequence_twice_in_a_step_is_refused(void **state)
{
    engine_fixture *f = *state;
    uint32_t token = 1;
    an_seq *seq = engine_fixture_seq(f);
    an_step_item items[2] = {{.seq = seq, .tokens = &token, .count = 1, .logits_from = 1},
                             {.seq = seq, .tokens = &token, .count = 1, .logits_from = 1}};

    assert_int_equal(an_engine_step(f->engine, items, 2, &f->err), RT_EINVAL);
    engine_fixture_text(f, "twice");
    assert_int_equal(an_engine_step(f->engine, items, 1, &f->err), RT_OK);
}

static void a_step_of_no_rows_does_nothing(void **state)
{
    engine_fixture *f = *state;
    an_step_item item = {.seq = engine_fixture_seq(f)};

    assert_int_equal(an_engine_step(f->engine, &item, 1, &f->err), RT_OK);
    assert_int_equal(an_engine_step(f->engine, NULL, 0, &f->err), RT_OK);
    assert_int_equal(f->link->sent_frames, 0);
}

/* Logits and final rows reach the item that asked, whatever else is in the step. */
static void rows_come_back_to_the_item_that_wants_them(void **state)
{
    enum { HIDDEN = 64, VOCAB = 96 };
    engine_fixture *f = *state;
    uint32_t tokens[5] = {5, 6, 7, 8, 9};
    float all[5 * VOCAB], last[2 * VOCAB], hidden[5 * HIDDEN];
    an_seq *a = engine_fixture_seq(f), *b = engine_fixture_seq(f);
    an_step_item items[2] = {
        {.seq = a, .tokens = tokens, .count = 5, .logits = all, .hidden = hidden},
        {.seq = b, .tokens = tokens, .count = 5, .logits_from = 3, .logits = last}};

    memset(hidden, 0xff, sizeof(hidden));
    assert_int_equal(an_engine_step(f->engine, items, 2, &f->err), RT_OK);
    assert_memory_equal(all + 3 * VOCAB, last, sizeof(last));
    assert_memory_not_equal(all, all + VOCAB, VOCAB * sizeof(float));
    for (int i = 0; i < 5 * HIDDEN; i++)
        assert_true(isfinite(hidden[i]));
}

typedef struct {
    char order[512];
    uint32_t index_positions[64], index_sets;
    an_seq *seq[2];
} seen;

static void watch(void *context, const an_probe_event *event)
{
    static const char *const names[] = {"embed",   "q",     "kv",  "attn", "ids",
                                        "weights", "index", "mlp", "out",  "final"};
    seen *s = context;
    size_t used = strlen(s->order);

    assert_true(event->seq == s->seq[0] || event->seq == s->seq[1]);
    if (event->kind == AN_PROBE_INDEX_SET) {
        const uint32_t *set = event->data;

        assert_int_equal(event->rows, 1);
        for (uint32_t i = 0; i < event->count; i++)
            assert_true(set[i] <= event->position && (i == 0 || set[i] > set[i - 1]));
        s->index_positions[s->index_sets++] = event->position;
        return;
    }
    if (event->kind == AN_PROBE_KV_LATENT && event->position > 0) return; /* one a row */
    if (event->seq == s->seq[0])
        snprintf(s->order + used, sizeof(s->order) - used, "%s%d ", names[event->kind],
                 event->layer == MD_NO_LAYER ? -1 : (int)event->layer);
}

static void the_probe_sees_every_stage_in_order(void **state)
{
    engine_fixture *f = *state;
    uint32_t tokens[10] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    seen s = {.seq = {engine_fixture_seq(f), engine_fixture_seq(f)}};
    an_step_item items[2] = {{.seq = s.seq[0], .tokens = tokens, .count = 10, .logits_from = 10},
                             {.seq = s.seq[1], .tokens = tokens, .count = 2, .logits_from = 2}};

    an_engine_set_probe(f->engine, watch, &s);
    assert_int_equal(an_engine_step(f->engine, items, 2, &f->err), RT_OK);
    assert_string_equal(s.order, "embed-1 q0 kv0 attn0 mlp0 out0 "
                                 "q1 kv1 attn1 ids1 weights1 mlp1 out1 "
                                 "q2 kv2 attn2 ids2 weights2 mlp2 out2 final-1 ");
    /* index_topk 8: positions 8 and 9, on the full layers 0 and 2. */
    assert_int_equal(s.index_sets, 4);
    assert_int_equal(s.index_positions[0], 8);
    assert_int_equal(s.index_positions[3], 9);
    an_engine_set_probe(f->engine, NULL, NULL);
}

static void routes_are_counted_per_layer_and_expert(void **state)
{
    engine_fixture *f = *state;
    const md_config *config = md_container_config(f->container);
    const uint64_t *counts = an_engine_route_counts(f->engine);
    an_seq *seq = engine_fixture_seq(f);
    uint64_t sum[3] = {0};

    assert_int_equal(config->layers, 3);
    assert_int_equal(engine_fixture_step(f, seq, 5), RT_OK);
    assert_int_equal(engine_fixture_step(f, seq, 2), RT_OK);
    for (uint32_t layer = 0; layer < 3; layer++) {
        for (uint32_t e = 0; e < config->experts; e++) {
            assert_true(counts[layer * config->experts + e] <= 7); /* a row takes an expert once */
            sum[layer] += counts[layer * config->experts + e];
        }
    }
    assert_int_equal(sum[0], 0);
    assert_int_equal(sum[1], 7 * config->topk);
    assert_int_equal(sum[2], 7 * config->topk);
}

static void kv_bytes_grow_with_context_and_format(void **state)
{
    engine_fixture *f = *state;
    const md_config *config = md_container_config(f->container);
    uint64_t one = an_engine_kv_bytes(config, 1, false);

    assert_true(one > 0);
    assert_int_equal(an_engine_kv_bytes(config, 100, false), 100 * one);
    assert_true(an_engine_kv_bytes(config, 100, true) < 100 * one);
}

static void put_nan(void *context, md_key key, void *record, size_t bytes)
{
    const md_key *target = context;
    const float nan_value = NAN;

    if (md_key_compare(key, *target) == 0)
        memcpy((char *)record + bytes / 4 * 4 - 4, &nan_value, 4);
}

static void check_numeric(md_key target, const char *text)
{
    tiny_model_spec model = tiny_model_default();
    engine_fixture *f;
    an_seq *seq;

    model.patch = put_nan;
    model.patch_context = &target;
    f = engine_fixture_open(&model);
    engine_fixture_start(f);
    seq = engine_fixture_seq(f);
    assert_int_equal(engine_fixture_step(f, seq, 3), RT_ENUMERIC);
    engine_fixture_text(f, text);
    assert_int_equal(an_seq_length(seq), 0);
    engine_fixture_close(f);
}

static void a_value_that_is_not_finite_names_its_layer(void **state)
{
    (void)state;
    check_numeric((md_key){1, MD_INPUT_NORM, 0}, "layer 1: attention output");
    check_numeric((md_key){0, MD_POST_NORM, 0}, "layer 0: mlp output");
    check_numeric((md_key){2, MD_POST_NORM, 0}, "layer 2: a router or expert value");
    check_numeric((md_key){2, MD_ROUTER_BIAS, 0}, "layer 2: a router or expert value");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
#define STARTED(name) cmocka_unit_test_setup_teardown(name, setup_started, teardown)
    const struct CMUnitTest tests[] = {
        TEST(create_names_the_setting_out_of_range),
        TEST(create_refuses_a_map_of_more_nodes_than_peers),
        TEST(create_refuses_what_the_budget_cannot_hold),
        TEST(the_budget_books_caches_and_scratch),
        STARTED(sequences_are_bounded_and_reused),
        STARTED(a_token_outside_the_vocabulary_is_refused),
        STARTED(a_full_context_is_refused_and_named),
        STARTED(more_rows_than_a_step_has_are_refused),
        STARTED(a_sequence_twice_in_a_step_is_refused),
        STARTED(a_step_of_no_rows_does_nothing),
        STARTED(rows_come_back_to_the_item_that_wants_them),
        STARTED(the_probe_sees_every_stage_in_order),
        STARTED(routes_are_counted_per_layer_and_expert),
        STARTED(kv_bytes_grow_with_context_and_format),
        cmocka_unit_test(a_value_that_is_not_finite_names_its_layer),
    };
#undef TEST
#undef STARTED

    return cmocka_run_group_tests(tests, NULL, NULL);
}
