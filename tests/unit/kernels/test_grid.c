/* The exact combine: rounding, classes, and sums that have no order. */
#include "kernels/grid.h"

#include "tests/support/numbers.h"
#include "tests/support/variants.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void halves_go_to_even_and_minus_zero_vanishes(void **state)
{
    static const float y[] = {0.5F,     1.5F,      2.5F,        -0.5F,      -1.5F,       -2.5F,
                              3.5F,     -0.0F,     0.49999997F, 8388607.5F, -8388607.5F, 1e-40F,
                              16777216, -16777216, 8388609,     4194304.5F, 4194305.5F,  0.75F};
    static const int32_t expected[] = {0,        2,         2,       0,       -2,       -2,
                                       4,        0,         0,       8388608, -8388608, 0,
                                       16777216, -16777216, 8388609, 4194304, 4194306,  1};
    enum { N = sizeof(y) / sizeof(y[0]) };

    (void)state;
    for (int v = 0; v < KN_VARIANT_COUNT; v++) {
        int32_t acc[N] = {0};
        int64_t wide[N] = {0};
        float out[N];

        if (!test_variant_select(v)) continue;
        assert_int_equal(kn_grid_add(acc, y, 1, N), KN_GRID_NARROW);
        kn_grid_add_wide(wide, y, 1, N);
        for (int i = 0; i < N; i++) {
            assert_int_equal(acc[i], expected[i]);
            assert_int_equal(wide[i], expected[i]);
        }
        kn_grid_finish(out, acc, N, 0);
        assert_true(out[7] == 0 && !signbit(out[7]) && !signbit(out[3]));
    }
}

static void the_product_is_rounded_before_the_grid(void **state)
{
    /* Fusing the scaling with the rounding gives other integers: find such values and see that the
     * two-step result is used. */
    test_random random = {1};
    uint32_t differ = 0;

    (void)state;
    for (int round = 0; round < 2000; round++) {
        float y[64], ws = 8192.0F * (1 + test_random_normal(&random) * 0.1F);

        test_random_fill(&random, y, 64, 40);
        for (int v = 0; v < KN_VARIANT_COUNT; v++) {
            int32_t acc[64] = {0};

            if (!test_variant_select(v)) continue;
            assert_int_equal(kn_grid_add(acc, y, ws, 64), KN_GRID_NARROW);
            for (int i = 0; i < 64; i++) {
                float product = y[i] * ws;

                assert_int_equal(acc[i], (int32_t)nearbyint((double)product));
                differ += acc[i] != (int32_t)nearbyint((double)y[i] * (double)ws);
            }
        }
    }
    assert_true(differ > 0);
}

static void classes_are_decided_at_their_limits(void **state)
{
    static const struct {
        float value;
        kn_grid_class found;
    } cases[] = {
        {0, KN_GRID_NARROW},
        {0x1p24F, KN_GRID_NARROW},
        {-0x1p24F, KN_GRID_NARROW},
        {0x1.000002p24F, KN_GRID_WIDE},
        {-0x1.000002p24F, KN_GRID_WIDE},
        {0x1p31F, KN_GRID_WIDE},
        {0x1.fffffep54F, KN_GRID_WIDE},
        {0x1p55F, KN_GRID_POISON},
        {-0x1p55F, KN_GRID_POISON},
        {3e38F, KN_GRID_POISON},
        {INFINITY, KN_GRID_POISON},
        {-INFINITY, KN_GRID_POISON},
        {NAN, KN_GRID_POISON},
        {-NAN, KN_GRID_POISON},
    };
    enum { N = 37 };

    (void)state;
    for (int v = 0; v < KN_VARIANT_COUNT; v++) {
        if (!test_variant_select(v)) continue;
        for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
            for (int at = 0; at < N; at++) {
                float y[N];
                int32_t acc[N], before[N];

                for (int i = 0; i < N; i++) {
                    y[i] = (float)(i * 1000) + 0.25F;
                    before[i] = acc[i] = i * 77 - 900;
                }
                y[at] = cases[c].value;
                if (at > 0) y[at - 1] = -3e5F; /* a finite neighbour must not hide a NaN */
                assert_int_equal(kn_grid_classify(y, 1, N), cases[c].found);
                assert_int_equal(kn_grid_add(acc, y, 1, N), cases[c].found);
                if (cases[c].found != KN_GRID_NARROW) assert_memory_equal(acc, before, sizeof(acc));
            }
        }
    }
}

static void a_scale_that_is_not_finite_poisons(void **state)
{
    float y[3] = {0, 1, 2};
    int32_t acc[3] = {1, 2, 3};

    (void)state;
    for (int v = 0; v < KN_VARIANT_COUNT; v++) {
        if (!test_variant_select(v)) continue;
        assert_int_equal(kn_grid_add(acc, y, NAN, 3), KN_GRID_POISON);
        assert_int_equal(kn_grid_add(acc, y, INFINITY, 3), KN_GRID_POISON);
        assert_int_equal(kn_grid_classify(y, NAN, 3), KN_GRID_POISON);
        assert_int_equal(kn_grid_classify(y, NAN, 0), KN_GRID_NARROW);
        assert_true(acc[0] == 1 && acc[1] == 2 && acc[2] == 3);
    }
}

static void as_many_contributions_as_allowed_fit_int32(void **state)
{
    enum { N = 11 };
    float y[N];

    (void)state;
    for (int i = 0; i < N; i++)
        y[i] = i % 2 == 0 ? 0x1p24F : -0x1p24F;
    for (int v = 0; v < KN_VARIANT_COUNT; v++) {
        int32_t acc[N] = {0};

        if (!test_variant_select(v)) continue;
        for (int c = 0; c < KN_GRID_CONTRIBUTIONS_MAX; c++)
            assert_int_equal(kn_grid_add(acc, y, 1, N), KN_GRID_NARROW);
        for (int i = 0; i < N; i++)
            assert_int_equal(acc[i], (i % 2 == 0 ? 127 : -127) * (1 << 24));
    }
}

enum { COLS = 256, CONTRIBUTIONS = 72, NODES_MAX = 9 };

typedef struct {
    float y[CONTRIBUTIONS][COLS];
    float ws[CONTRIBUTIONS];
    __int128 exact[COLS];
} fuzz_row;

/* Rows like those of real layers: Gaussian, some with spikes of up to 2^38 grid steps. */
static void make_row(fuzz_row *row, test_random *random, int number)
{
    memset(row->exact, 0, sizeof(row->exact));
    for (int c = 0; c < CONTRIBUTIONS; c++) {
        float w = fabsf(test_random_normal(random)) * 0.3F + 0.01F;

        row->ws[c] = w * kn_exp2i(13);
        test_random_fill(random, row->y[c], COLS, 1);
        if (number % 3 == 0 && c % 9 == 4)
            row->y[c][test_random_below(random, COLS)] *=
                ldexpf(1, (int)test_random_below(random, 25));
        for (int i = 0; i < COLS; i++) {
            float v = row->y[c][i] * row->ws[c];

            row->exact[i] += (__int128)llrint(nearbyint((double)v));
        }
    }
}

typedef struct {
    int32_t narrow[COLS];
    int64_t wide[COLS];
    int is_wide;
} node_sum;

static void node_add(node_sum *node, const float *y, float ws)
{
    kn_grid_class found = kn_grid_add(node->narrow, y, ws, COLS);

    assert_int_not_equal(found, KN_GRID_POISON);
    if (found == KN_GRID_NARROW) return;
    kn_grid_add_wide(node->wide, y, ws, COLS);
    node->is_wide = 1;
}

/* Deals the contributions to nodes at random, in a random order, and adds up the nodes. */
static void combine(const fuzz_row *row, test_random *random, float *out)
{
    static node_sum nodes[NODES_MAX];
    uint32_t order[CONTRIBUTIONS], count = 1 + test_random_below(random, NODES_MAX);
    int32_t narrow[COLS] = {0};
    int64_t wide[COLS] = {0};
    int any_wide = 0;

    memset(nodes, 0, sizeof(nodes));
    for (uint32_t c = 0; c < CONTRIBUTIONS; c++) {
        uint32_t at = test_random_below(random, c + 1);

        order[c] = order[at];
        order[at] = c;
    }
    for (uint32_t c = 0; c < CONTRIBUTIONS; c++)
        node_add(&nodes[test_random_below(random, count)], row->y[order[c]], row->ws[order[c]]);
    for (uint32_t n = 0; n < count; n++) {
        kn_grid_merge(narrow, nodes[n].narrow, COLS);
        any_wide |= nodes[n].is_wide;
        for (int i = 0; i < COLS; i++)
            wide[i] += nodes[n].wide[i];
    }
    if (any_wide) {
        kn_grid_widen(wide, narrow, COLS);
        kn_grid_finish_wide(out, wide, COLS, 13);
    } else {
        kn_grid_finish(out, narrow, COLS, 13);
    }
}

static void the_sum_has_no_order_and_no_partition(void **state)
{
    static fuzz_row row;
    test_random random = {4};

    (void)state;
    for (int number = 0; number < 300; number++) {
        float expected[COLS], found[COLS];

        make_row(&row, &random, number);
        for (int i = 0; i < COLS; i++)
            expected[i] = (float)(int64_t)row.exact[i] * 0x1p-13F;
        for (int v = 0; v < KN_VARIANT_COUNT; v++) {
            if (!test_variant_select(v)) continue;
            combine(&row, &random, found);
            assert_true(test_floats_equal("sum", found, expected, COLS));
        }
    }
}

static void finishing_rounds_once_and_scales_exactly(void **state)
{
    static const int32_t narrow[] = {16777217, 16777219, -16777217, 2147483647, -2147483647 - 1,
                                     0,        1,        33554435,  7};
    static const int64_t wide[] = {(1LL << 54) + (1LL << 30), (1LL << 54) + (1LL << 30) + 1,
                                   -((1LL << 54) + (3LL << 30)), 5, 0};
    float out[9];

    (void)state;
    for (int v = 0; v < KN_VARIANT_COUNT; v++) {
        if (!test_variant_select(v)) continue;
        kn_grid_finish(out, narrow, 9, 3);
        assert_true(out[0] == 16777216.0F / 8 && out[1] == 16777220.0F / 8);
        assert_true(out[2] == -16777216.0F / 8 && out[3] == 0x1p28F && out[4] == -0x1p28F);
        assert_true(out[5] == 0 && out[6] == 0.125F && out[7] == 33554436.0F / 8);
        assert_true(out[8] == 0.875F);
    }
    kn_grid_finish_wide(out, wide, 5, -2);
    assert_true(out[0] == 0x1p56F && out[1] == 0x1.000002p56F && out[2] == -0x1.000004p56F);
    assert_true(out[3] == 20 && out[4] == 0);
}

static void powers_of_two_are_exact_over_the_whole_range(void **state)
{
    (void)state;
    for (int q = -126; q <= 127; q++)
        assert_true(kn_exp2i(q) == ldexpf(1, q));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(halves_go_to_even_and_minus_zero_vanishes),
        cmocka_unit_test(the_product_is_rounded_before_the_grid),
        cmocka_unit_test(classes_are_decided_at_their_limits),
        cmocka_unit_test(a_scale_that_is_not_finite_poisons),
        cmocka_unit_test(as_many_contributions_as_allowed_fit_int32),
        cmocka_unit_test(the_sum_has_no_order_and_no_partition),
        cmocka_unit_test(finishing_rounds_once_and_scales_exactly),
        cmocka_unit_test(powers_of_two_are_exact_over_the_whole_range),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
