/* Maps: every slice held once, shares respected, load even, the same everywhere. */
#include "placement/map.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LAYERS = 13, DENSE = 3, LAYERS_ROOM = PL_LAYERS_MAX + 1, NODES_ROOM = PL_NODES_MAX + 1 };

static bool sparse[LAYERS_ROOM];
static uint32_t share[NODES_ROOM];

/* The first layers dense, as in the model; equal shares. */
static pl_map_spec spec_of(pl_mode mode, uint32_t experts, uint32_t slices, uint32_t nodes)
{
    for (uint32_t layer = 0; layer < LAYERS_ROOM; layer++)
        sparse[layer] = layer >= DENSE;
    for (uint32_t node = 0; node < NODES_ROOM; node++)
        share[node] = 1;
    return (pl_map_spec){.layers = LAYERS,
                         .sparse = sparse,
                         .experts = experts,
                         .slices = slices,
                         .nodes = nodes,
                         .share = share,
                         .mode = mode,
                         .epoch = 5};
}

static pl_map *create(const pl_map_spec *spec)
{
    pl_map *map = NULL;
    rt_err err = {0};

    if (pl_map_create(spec, &map, &err) != RT_OK) fail_msg("%s", err.text);
    return map;
}

static uint32_t all_slices(const pl_map_spec *spec)
{
    return spec->slices == 32 ? UINT32_MAX : (1u << spec->slices) - 1;
}

/* Slices of a layer by node, into counts [nodes]. */
static void count_layer(const pl_map *map, const pl_map_spec *spec, uint32_t layer,
                        uint64_t *counts)
{
    memset(counts, 0, spec->nodes * sizeof(*counts));
    for (uint32_t expert = 0; expert < spec->experts; expert++) {
        uint32_t count;
        const pl_holding *holders = pl_map_holders(map, layer, expert, &count);

        for (uint32_t i = 0; i < count; i++)
            counts[holders[i].node] += (uint32_t)__builtin_popcount(holders[i].slice_mask);
    }
}

static uint64_t spread(const uint64_t *counts, uint32_t n)
{
    uint64_t least = UINT64_MAX, most = 0;

    for (uint32_t i = 0; i < n; i++) {
        if (counts[i] < least) least = counts[i];
        if (counts[i] > most) most = counts[i];
    }
    return most - least;
}

/* Each slice of each expert exactly once, ascending nodes, only nodes with a share, and the other
 * queries say the same. */
static void check_map(const pl_map *map, const pl_map_spec *spec)
{
    uint64_t *totals = calloc(spec->nodes, sizeof(*totals));

    assert_non_null(totals);
    for (uint32_t layer = 0; layer < spec->layers; layer++)
        for (uint32_t expert = 0; expert < spec->experts; expert++) {
            uint32_t count = 99, seen = 0;
            const pl_holding *holders = pl_map_holders(map, layer, expert, &count);

            if (!spec->sparse[layer]) {
                assert_int_equal(count, 0);
                assert_null(holders);
                assert_int_equal(pl_map_mask(map, layer, expert, 0), 0);
                continue;
            }
            assert_true(count >= 1);
            for (uint32_t i = 0; i < count; i++) {
                assert_true(holders[i].node < spec->nodes && spec->share[holders[i].node] > 0);
                assert_true(i == 0 || holders[i].node > holders[i - 1].node);
                assert_int_not_equal(holders[i].slice_mask, 0);
                assert_int_equal(seen & holders[i].slice_mask, 0);
                seen |= holders[i].slice_mask;
                totals[holders[i].node] += (uint32_t)__builtin_popcount(holders[i].slice_mask);
                assert_int_equal(pl_map_mask(map, layer, expert, holders[i].node),
                                 holders[i].slice_mask);
            }
            assert_int_equal(seen, all_slices(spec));
        }
    for (uint32_t node = 0; node < spec->nodes; node++)
        assert_int_equal(pl_map_slice_count(map, node), totals[node]);
    assert_int_equal(pl_map_nodes(map), spec->nodes);
    assert_int_equal(pl_map_epoch(map), spec->epoch);
    free(totals);
}

static void every_slice_is_held_once(void **state)
{
    static const uint32_t experts[] = {1, 2, 7, 16, 33}, slices[] = {1, 2, 5, 8, 32};

    (void)state;
    for (int mode = PL_WHOLE; mode <= PL_SLICED; mode++)
        for (uint32_t nodes = 1; nodes <= 8; nodes++)
            for (size_t e = 0; e < 5; e++)
                for (size_t s = 0; s < 5; s++) {
                    pl_map_spec spec = spec_of((pl_mode)mode, experts[e], slices[s], nodes);
                    pl_map *map;

                    for (int uneven = 0; uneven < 2; uneven++) {
                        for (uint32_t node = 0; uneven && node < nodes; node++)
                            share[node] = node * 7 % 5; /* node 0 none */
                        if (uneven && nodes == 1) continue;
                        map = create(&spec);
                        check_map(map, &spec);
                        pl_map_free(map);
                    }
                }
}

static void whole_experts_have_one_holder(void **state)
{
    pl_map_spec spec = spec_of(PL_WHOLE, 16, 8, 3);
    pl_map *map = create(&spec);

    (void)state;
    for (uint32_t expert = 0; expert < 16; expert++) {
        uint32_t count;
        const pl_holding *holders = pl_map_holders(map, 4, expert, &count);

        assert_int_equal(count, 1);
        assert_int_equal(holders[0].slice_mask, 0xff);
    }
    pl_map_free(map);
}

static void equal_shares_differ_by_one_expert_a_layer(void **state)
{
    (void)state;
    for (uint32_t nodes = 1; nodes <= 8; nodes++) {
        pl_map_spec spec = spec_of(PL_WHOLE, 256, 1, nodes);
        pl_map *map = create(&spec);
        uint64_t counts[8];

        for (uint32_t layer = DENSE; layer < LAYERS; layer++) {
            count_layer(map, &spec, layer, counts);
            assert_true(spread(counts, nodes) <= 1);
        }
        for (uint32_t node = 0; node < nodes; node++)
            counts[node] = pl_map_slice_count(map, node);
        assert_true(spread(counts, nodes) <= 1);
        pl_map_free(map);
    }
}

static void a_sliced_expert_is_spread_as_evenly_as_can_be(void **state)
{
    (void)state;
    for (uint32_t nodes = 1; nodes <= 12; nodes++) {
        pl_map_spec spec = spec_of(PL_SLICED, 37, 8, nodes);
        pl_map *map = create(&spec);
        uint64_t counts[12];

        for (uint32_t layer = DENSE; layer < LAYERS; layer++) {
            for (uint32_t expert = 0; expert < 37; expert++) {
                uint32_t count;
                const pl_holding *holders = pl_map_holders(map, layer, expert, &count);

                assert_int_equal(count, nodes < 8 ? nodes : 8);
                for (uint32_t i = 0; i < count; i++) {
                    uint32_t held = (uint32_t)__builtin_popcount(holders[i].slice_mask);

                    assert_true(held == 8 / nodes || held == (8 + nodes - 1) / nodes);
                }
            }
            count_layer(map, &spec, layer, counts);
            assert_true(spread(counts, nodes) <= 2); /* a layer goes on where the last one ended */
        }
        for (uint32_t node = 0; node < nodes; node++)
            counts[node] = pl_map_slice_count(map, node);
        assert_true(spread(counts, nodes) <= 1);
        pl_map_free(map);
    }
}

static void a_nodes_slices_of_an_expert_lie_together(void **state)
{
    pl_map_spec spec = spec_of(PL_SLICED, 16, 8, 3);
    pl_map *map = create(&spec);

    (void)state;
    for (uint32_t expert = 0; expert < 16; expert++)
        for (uint32_t node = 0; node < 3; node++) {
            uint32_t mask = pl_map_mask(map, 5, expert, node);

            mask >>= __builtin_ctz(mask);
            assert_int_equal(mask & (mask + 1), 0); /* one run: one read of the record */
        }
    pl_map_free(map);
}

/* Counts stay within one of the exact share, in each layer and in sum. */
static void shares_are_respected(void **state)
{
    static const uint32_t given[6] = {3, 0, 1, 7, 2, 5}; /* 18 in all */

    (void)state;
    for (int mode = PL_WHOLE; mode <= PL_SLICED; mode++) {
        pl_map_spec spec = spec_of((pl_mode)mode, 160, 8, 6);
        uint32_t units = mode == PL_WHOLE ? 8 : 1; /* slices that are placed together */
        uint64_t counts[6];
        pl_map *map;

        memcpy(share, given, sizeof(given));
        map = create(&spec);
        check_map(map, &spec);
        for (uint32_t node = 0; node < 6; node++) {
            double exact = (double)(LAYERS - DENSE) * 160 * 8 * given[node] / 18;
            double found = (double)pl_map_slice_count(map, node);

            assert_true(found - exact < 2 * units && exact - found < 2 * units);
        }
        for (uint32_t layer = DENSE; layer < LAYERS; layer++) {
            count_layer(map, &spec, layer, counts);
            for (uint32_t node = 0; node < 6; node++) {
                double exact = 160.0 * 8 * given[node] / 18;

                assert_true((double)counts[node] - exact < 3 * units);
                assert_true(exact - (double)counts[node] < 3 * units);
            }
        }
        pl_map_free(map);
    }
}

/* One layer alone would round its share to nothing; over the layers it gets what it asked for. */
static void a_small_share_is_served_over_time(void **state)
{
    (void)state;
    for (int mode = PL_WHOLE; mode <= PL_SLICED; mode++) {
        pl_map_spec spec = spec_of((pl_mode)mode, 16, 4, 2);
        pl_map *map;
        double exact, found;

        spec.layers = 103; /* 100 with experts */
        share[0] = 999;
        map = create(&spec);
        exact = 100.0 * 16 * 4 / 1000;
        found = (double)pl_map_slice_count(map, 1);
        assert_true(found - exact <= 4 && exact - found <= 4);
        pl_map_free(map);
    }
}

static void low_ids_move_from_node_to_node(void **state)
{
    (void)state;
    for (int mode = PL_WHOLE; mode <= PL_SLICED; mode++) {
        pl_map_spec spec = spec_of((pl_mode)mode, 16, 8, 4);
        pl_map *map = create(&spec);
        uint32_t first_holders = 0;

        for (uint32_t layer = DENSE; layer < LAYERS; layer++)
            for (uint32_t node = 0; node < 4; node++)
                if ((pl_map_mask(map, layer, 0, node) & 1) != 0) first_holders |= 1u << node;
        assert_int_equal(first_holders, 0xf);
        pl_map_free(map);
    }
}

static void the_first_slice_of_experts_moves_too(void **state)
{
    pl_map_spec spec = spec_of(PL_SLICED, 16, 8, 4);
    pl_map *map = create(&spec);

    (void)state;
    for (uint32_t expert = 0; expert < 16; expert++)
        assert_int_equal(pl_map_mask(map, 5, expert, (5 + expert) % 4) & 1, 1);
    pl_map_free(map);
}

static void the_same_spec_gives_the_same_map(void **state)
{
    (void)state;
    for (int mode = PL_WHOLE; mode <= PL_SLICED; mode++) {
        pl_map_spec spec = spec_of((pl_mode)mode, 64, 8, 5);
        pl_map *first, *second;

        share[2] = 3;
        first = create(&spec);
        second = create(&spec);
        for (uint32_t layer = 0; layer < LAYERS; layer++)
            for (uint32_t expert = 0; expert < 64; expert++)
                for (uint32_t node = 0; node < 5; node++)
                    assert_int_equal(pl_map_mask(first, layer, expert, node),
                                     pl_map_mask(second, layer, expert, node));
        pl_map_free(first);
        pl_map_free(second);
    }
}

/* The bytes of a map are what nodes agree on without exchanging it: a changed rule must be seen. */
static void the_rule_is_what_it_was(void **state)
{
    static const uint16_t whole[10] = {2, 2, 2, 2, 0, 0, 0, 1, 1, 1};
    static const uint32_t sliced[3][3] = {
        {0x38, 0xc0, 0x07}, {0x07, 0x38, 0xc0}, {0xc0, 0x07, 0x38}};
    pl_map_spec spec = spec_of(PL_WHOLE, 10, 8, 3);
    pl_map *map;

    (void)state;
    map = create(&spec);
    for (uint32_t expert = 0; expert < 10; expert++) {
        uint32_t count;

        assert_int_equal(pl_map_holders(map, 5, expert, &count)->node, whole[expert]);
    }
    pl_map_free(map);
    spec.mode = PL_SLICED;
    map = create(&spec);
    for (uint32_t expert = 0; expert < 3; expert++)
        for (uint32_t node = 0; node < 3; node++)
            assert_int_equal(pl_map_mask(map, 5, expert, node), sliced[expert][node]);
    pl_map_free(map);
}

static void a_thousand_nodes_share_a_model(void **state)
{
    static uint64_t counts[PL_NODES_MAX];

    (void)state;
    for (int mode = PL_WHOLE; mode <= PL_SLICED; mode++) {
        pl_map_spec spec = spec_of((pl_mode)mode, 64, 8, PL_NODES_MAX);
        pl_map *map = create(&spec);

        for (uint32_t node = 0; node < PL_NODES_MAX; node++)
            counts[node] = pl_map_slice_count(map, node);
        assert_true(spread(counts, PL_NODES_MAX) <= (mode == PL_WHOLE ? 8u : 1u));
        check_map(map, &spec);
        pl_map_free(map);
    }
}

static void expect_refused(const pl_map_spec *spec, const char *part)
{
    pl_map *map = NULL;
    rt_err err = {0};

    assert_int_equal(pl_map_create(spec, &map, &err), RT_EINVAL);
    assert_null(map);
    if (strstr(err.text, part) == NULL) fail_msg("expected '%s' in '%s'", part, err.text);
}

static void specs_out_of_range_are_named(void **state)
{
    pl_map_spec good = spec_of(PL_WHOLE, 16, 8, 4), spec;

    (void)state;
#define REFUSED(field, value, part)                                                                \
    do {                                                                                           \
        spec = good;                                                                               \
        spec.field = (value);                                                                      \
        expect_refused(&spec, part);                                                               \
    } while (0)
    REFUSED(layers, 0, "layers: expected 1 to 1024, found 0");
    REFUSED(layers, PL_LAYERS_MAX + 1, "found 1025");
    REFUSED(layers, DENSE, "expected a layer with experts, found none");
    REFUSED(experts, 0, "experts: expected 1 to 4096, found 0");
    REFUSED(experts, PL_EXPERTS_MAX + 1, "experts: expected 1 to 4096, found 4097");
    REFUSED(slices, 0, "slices: expected 1 to 32, found 0");
    REFUSED(slices, 33, "slices: expected 1 to 32, found 33");
    REFUSED(nodes, 0, "nodes: expected 1 to 1024, found 0");
    REFUSED(nodes, PL_NODES_MAX + 1, "nodes: expected 1 to 1024, found 1025");
    REFUSED(mode, (pl_mode)7, "mode: expected 0 or 1, found 7");
#undef REFUSED
    share[2] = PL_SHARE_MAX + 1;
    expect_refused(&good, "share of node 2: expected at most 1048576, found 1048577");
    memset(share, 0, sizeof(share));
    expect_refused(&good, "expected a node with a share, found none of 4");
}

static void the_largest_shares_do_not_overflow(void **state)
{
    pl_map_spec spec = spec_of(PL_WHOLE, PL_EXPERTS_MAX, 32, PL_NODES_MAX);
    pl_map *map;

    (void)state;
    spec.layers = DENSE + 1;
    for (uint32_t node = 0; node < PL_NODES_MAX; node++)
        share[node] = PL_SHARE_MAX - node % 2;
    map = create(&spec);
    check_map(map, &spec);
    pl_map_free(map);
    pl_map_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_slice_is_held_once),
        cmocka_unit_test(whole_experts_have_one_holder),
        cmocka_unit_test(equal_shares_differ_by_one_expert_a_layer),
        cmocka_unit_test(a_sliced_expert_is_spread_as_evenly_as_can_be),
        cmocka_unit_test(a_nodes_slices_of_an_expert_lie_together),
        cmocka_unit_test(shares_are_respected),
        cmocka_unit_test(a_small_share_is_served_over_time),
        cmocka_unit_test(low_ids_move_from_node_to_node),
        cmocka_unit_test(the_first_slice_of_experts_moves_too),
        cmocka_unit_test(the_same_spec_gives_the_same_map),
        cmocka_unit_test(the_rule_is_what_it_was),
        cmocka_unit_test(a_thousand_nodes_share_a_model),
        cmocka_unit_test(specs_out_of_range_are_named),
        cmocka_unit_test(the_largest_shares_do_not_overflow),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
