/* test_grid_q.c - the grid exponent follows its formula and does not depend on how rows are cut. */
#include "model/convert/grid_q.h"

#include "tests/support/numbers.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { HIDDEN = 75, INTER = 21 };

typedef struct {
    float gate[INTER * HIDDEN], up[INTER * HIDDEN], down[HIDDEN * INTER], norm[HIDDEN];
} expert;

static void fill(expert *e, uint64_t seed, float scale)
{
    test_random random = {seed};

    test_random_fill(&random, e->gate, INTER * HIDDEN, scale);
    test_random_fill(&random, e->up, INTER * HIDDEN, scale);
    test_random_fill(&random, e->down, HIDDEN * INTER, scale);
    test_random_fill(&random, e->norm, HIDDEN, 1.0f);
}

/* In rows cut at `step`. */
static double power_of(const expert *e, uint32_t step)
{
    double gate[INTER], up[INTER], down[INTER] = {0};

    for (uint32_t r = 0; r < INTER; r += step) {
        uint32_t n = INTER - r < step ? INTER - r : step;

        md_grid_row_norms(e->gate + r * HIDDEN, n, HIDDEN, e->norm, gate + r);
        md_grid_row_norms(e->up + r * HIDDEN, n, HIDDEN, e->norm, up + r);
    }
    for (uint32_t r = 0; r < HIDDEN; r += step) {
        uint32_t n = HIDDEN - r < step ? HIDDEN - r : step;

        md_grid_column_norms(e->down + r * INTER, n, INTER, down);
    }
    return md_grid_expert_power(gate, up, down, INTER, HIDDEN);
}

static double power_plain(const expert *e)
{
    long double sum = 0;

    for (int j = 0; j < INTER; j++) {
        long double g = 0, u = 0, d = 0;

        for (int c = 0; c < HIDDEN; c++) {
            long double n = e->norm[c];

            g += (long double)e->gate[j * HIDDEN + c] * e->gate[j * HIDDEN + c] * n * n;
            u += (long double)e->up[j * HIDDEN + c] * e->up[j * HIDDEN + c] * n * n;
            d += (long double)e->down[c * INTER + j] * e->down[c * INTER + j];
        }
        sum += g * u * d;
    }
    return (double)(0.375L / HIDDEN * sum);
}

static void the_power_is_the_formula(void **state)
{
    static expert e;

    (void)state;
    for (uint64_t seed = 1; seed < 5; seed++) {
        fill(&e, seed, 0.1f);
        assert_true(fabs(power_of(&e, INTER) / power_plain(&e) - 1) < 1e-13);
    }
}

static void the_power_does_not_depend_on_how_rows_are_cut(void **state)
{
    static expert e;
    double whole, cut;

    (void)state;
    fill(&e, 3, 0.05f);
    whole = power_of(&e, HIDDEN);
    for (uint32_t step = 1; step < 20; step++) {
        cut = power_of(&e, step);
        assert_memory_equal(&whole, &cut, sizeof(whole));
    }
}

static void the_median_is_the_middle_or_the_mean_of_two(void **state)
{
    double odd[] = {9, 1, 5}, even[] = {8, 2, 4, 100}, one[] = {7};

    (void)state;
    assert_true(md_grid_median(odd, 3) == 5);
    assert_true(md_grid_median(even, 4) == 6);
    assert_true(md_grid_median(one, 1) == 7);
}

/* 4 P = 2^e for P^2 = s^2/k * routed with s = 2, k = 4: routed = P^2. */
static double power_for(int e)
{
    return ldexp(1, 2 * (e - 2));
}

static void q_puts_the_typical_output_at_the_wanted_bit(void **state)
{
    (void)state;
    for (int e = -20; e <= 20; e++) {
        assert_int_equal(md_grid_q(power_for(e), 0, 2.0f, 4, false), MD_GRID_BITS - e);
        assert_int_equal(md_grid_q(power_for(e), 0, 2.0f, 4, true), MD_GRID_BITS_FINE - e);
        assert_int_equal(md_grid_q(0, power_for(e), 2.0f, 4, false), MD_GRID_BITS - e);
    }
    /* Halves of a bit: 4 P = 2^(3 +- 0.49) is still 3. */
    assert_int_equal(md_grid_q(power_for(3) * pow(2, 0.98), 0, 2.0f, 4, false), MD_GRID_BITS - 3);
    assert_int_equal(md_grid_q(power_for(3) * pow(2, -0.98), 0, 2.0f, 4, false), MD_GRID_BITS - 3);
    assert_int_equal(md_grid_q(power_for(3) * pow(2, 1.02), 0, 2.0f, 4, false), MD_GRID_BITS - 4);
    assert_int_equal(md_grid_q(power_for(-3) * pow(2, -1.02), 0, 2.0f, 4, false), MD_GRID_BITS + 4);
}

static void routed_and_shared_power_add_up(void **state)
{
    (void)state;
    /* P^2 = 2.5^2 / 8 * 64 + 14 = 64; log2(4 P) = 5. */
    assert_int_equal(md_grid_q(64, 14, 2.5f, 8, false), MD_GRID_BITS - 5);
}

static void q_stays_in_its_range_whatever_the_weights(void **state)
{
    (void)state;
    assert_int_equal(md_grid_q(0, 0, 2.5f, 8, false), MD_GRID_Q_MAX);
    assert_int_equal(md_grid_q(1e-60, 0, 2.5f, 8, false), MD_GRID_Q_MAX);
    assert_int_equal(md_grid_q(1e60, 0, 2.5f, 8, false), MD_GRID_Q_MIN);
    assert_int_equal(md_grid_q((double)INFINITY, 0, 2.5f, 8, true), MD_GRID_Q_MIN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_power_is_the_formula),
        cmocka_unit_test(the_power_does_not_depend_on_how_rows_are_cut),
        cmocka_unit_test(the_median_is_the_middle_or_the_mean_of_two),
        cmocka_unit_test(q_puts_the_typical_output_at_the_wanted_bit),
        cmocka_unit_test(routed_and_shared_power_add_up),
        cmocka_unit_test(q_stays_in_its_range_whatever_the_weights),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
