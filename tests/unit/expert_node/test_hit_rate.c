/* test_hit_rate.c - how near the cache comes to the best set that does not change, under the real heat.
 *
 * A model of 256 tiny experts a layer, half of which fit. Each token draws eight of a layer without
 * replacement, in proportion to the choices of GLM-5.2 in data/: its flattest MoE layer and one from the
 * middle. The best static set holds the half that is drawn from most; it is counted over the very draws.
 * Everything follows from a seed. */
#include "expert_node/store.h"
#include "placement/heat_usage.h"

#include "base/file.h"
#include "tests/support/expert_rig.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum {
    DENSE = 1,
    LAYERS = 3,
    EXPERTS = 256,
    TOPK = 8,
    SLOTS = EXPERTS / 2, /* a layer's share of the budget; some are transit slots */
    REAL_LAYERS = 78,
    REAL_DENSE = 3,
    USAGE_BYTES_MAX = 1 << 20,
};

static const uint32_t real_layer[LAYERS] = {0, 3, 40};

typedef struct {
    char *dir;
    md_container *container;
    pl_map *map;
    pl_heat *heat; /* of the tiny model's experts: what is drawn from */
    en_store *store;
    uint32_t turn;                  /* expert e is drawn as the real one (e + turn) % EXPERTS */
    double weight[LAYERS][EXPERTS]; /* of the real ones */
    bool fixed[LAYERS][EXPERTS];    /* the best static set, of the real ones */
    uint64_t random;
} fixture;

static void read_weights(fixture *f)
{
    static bool sparse[REAL_LAYERS];
    pl_heat_spec spec = {.layers = REAL_LAYERS, .sparse = sparse, .experts = EXPERTS};
    pl_heat_entry top[SLOTS];
    pl_heat_usage usage;
    pl_heat *heat = NULL;
    rt_err err = {RT_OK, ""};
    uint32_t found;
    size_t bytes;
    char *text;

    for (uint32_t l = REAL_DENSE; l < REAL_LAYERS; l++)
        sparse[l] = true;
    assert_int_equal(rt_file_read(MOESAIC_FIXTURES "/../../data/glm52_heat.usage", USAGE_BYTES_MAX,
                                  &text, &bytes, &err),
                     RT_OK);
    assert_int_equal(pl_heat_create(&spec, &heat, &err), RT_OK);
    assert_int_equal(pl_heat_usage_read(text, bytes, REAL_LAYERS, "heat", heat, &usage, &err),
                     RT_OK);
    for (uint32_t l = DENSE; l < LAYERS; l++) {
        for (uint32_t e = 0; e < EXPERTS; e++)
            f->weight[l][e] = pl_heat_get(heat, real_layer[l], e) + 0.25;
        assert_int_equal(pl_heat_layer_top(heat, real_layer[l], top, SLOTS, &found), RT_OK);
        for (uint32_t i = 0; i < SLOTS; i++)
            f->fixed[l][top[i].expert] = true;
    }
    pl_heat_free(heat);
    free(text);
}

static void open_fixture(fixture *f, bool known)
{
    tiny_model_spec model = tiny_model_default();
    bool sparse[LAYERS] = {false, true, true};
    pl_heat_spec heat = {.layers = LAYERS, .sparse = sparse, .experts = EXPERTS};
    md_expert_layout layout;
    rt_err err = {RT_OK, ""};

    *f = (fixture){.random = 5};
    read_weights(f);
    model.experts = EXPERTS;
    model.topk = TOPK;
    model.expert_inter = 32;
    f->dir = tiny_model_build(&model);
    assert_int_equal(md_container_open(f->dir, &f->container, &err), RT_OK);
    f->map = expert_rig_map(f->container, PL_WHOLE, 1, false);
    md_container_expert_layout(f->container, DENSE, &layout);
    assert_int_equal(pl_heat_create(&heat, &f->heat, &err), RT_OK);
    for (uint32_t l = DENSE; l < LAYERS; l++)
        for (uint32_t e = 0; e < EXPERTS; e++)
            pl_heat_add(f->heat, l, e, f->weight[l][e]);
    en_store_spec spec = {.container = f->container,
                          .map = f->map,
                          .ram_bytes = (LAYERS - DENSE) * SLOTS * layout.record_bytes,
                          .heat = known ? f->heat : NULL,
                          .buffered = true,
                          .quiet = true};
    assert_int_equal(en_store_open(&spec, &f->store, &err), RT_OK);
}

static void close_fixture(fixture *f)
{
    en_store_close(f->store);
    pl_heat_free(f->heat);
    pl_map_free(f->map);
    md_container_close(f->container);
    temp_dir_remove(f->dir);
}

static double uniform(uint64_t *state)
{
    *state = *state * 6364136223846793005U + 1442695040888963407U;
    return (double)(*state >> 11) * 0x1p-53;
}

/* Draws a layer's experts. Returns how many of them the best static set has. */
static uint32_t draw(fixture *f, uint32_t layer, en_want *wants)
{
    bool taken[EXPERTS] = {false};
    double total = 0;
    uint32_t held = 0;

    for (uint32_t e = 0; e < EXPERTS; e++)
        total += f->weight[layer][e];
    for (uint32_t i = 0; i < TOPK; i++) {
        double at = uniform(&f->random) * total;
        uint32_t chosen = 0;
        for (uint32_t e = 0; e < EXPERTS && at >= 0; e++) {
            if (taken[e]) continue;
            chosen = e;
            at -= f->weight[layer][e];
        }
        taken[chosen] = true;
        total -= f->weight[layer][chosen];
        held += f->fixed[layer][chosen];
        wants[i] = (en_want){(chosen + f->turn) % EXPERTS, 1};
    }
    return held;
}

/* Points of hits that the cache is under the best static set over so many tokens. */
static double points_under(fixture *f, uint32_t tokens)
{
    uint64_t held = 0, before = en_store_get_stats(f->store).hits;
    rt_err err = {RT_OK, ""};

    for (uint32_t t = 0; t < tokens; t++) {
        for (uint32_t layer = DENSE; layer < LAYERS; layer++) {
            en_want wants[TOPK];
            held += draw(f, layer, wants);
            en_store_begin(f->store, layer, wants, TOPK, 1);
            for (uint32_t i = 0; i < TOPK; i++) {
                en_record record;
                uint32_t index;
                assert_int_equal(en_store_take(f->store, true, &index, &record, &err), RT_OK);
                en_store_release(f->store, &record);
            }
            en_store_end(f->store);
        }
    }
    return 100.0 * ((double)held - (double)(en_store_get_stats(f->store).hits - before)) /
           (double)((uint64_t)tokens * TOPK * (LAYERS - DENSE));
}

static void with_a_known_heat_it_hits_within_2_points_of_the_best_static_set(void **state)
{
    static fixture f;
    double under;

    (void)state;
    open_fixture(&f, true);
    under = points_under(&f, 300);
    print_message("points under the static set: %.2f\n", under);
    assert_true(under < 2);
    close_fixture(&f);
}

static void started_with_nothing_it_does_after_600_tokens(void **state)
{
    static fixture f;
    double first, later;

    (void)state;
    open_fixture(&f, false);
    first = points_under(&f, 600);
    later = points_under(&f, 400);
    print_message("points under the static set: %.2f in 600 tokens, %.2f in the next 400\n", first,
                  later);
    assert_true(first > later); /* it learns */
    assert_true(later < 2);
    close_fixture(&f);
}

static void when_the_heat_moves_to_other_experts_it_follows(void **state)
{
    static fixture f;
    double moved, later;

    (void)state;
    open_fixture(&f, false);
    (void)points_under(&f, 500);
    f.turn = 64;
    moved = points_under(&f, 500);
    later = points_under(&f, 500);
    print_message("points under the static set: %.2f in 500 tokens after, %.2f in the next 500\n",
                  moved, later);
    assert_true(moved > 5); /* it was another set before */
    assert_true(later < 7);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(with_a_known_heat_it_hits_within_2_points_of_the_best_static_set),
        cmocka_unit_test(started_with_nothing_it_does_after_600_tokens),
        cmocka_unit_test(when_the_heat_moves_to_other_experts_it_follows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
