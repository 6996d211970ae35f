/* Selection: the defined order, ties, zeros, NaN. */
#include "kernels/topk.h"

#include "tests/support/numbers.h"
#include "tests/support/variants.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_MAX = 3000 };

/* By definition: i is taken when fewer than k others come before it. */
static uint32_t naive(uint32_t *out, const float *score, uint32_t n, uint32_t k)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t before = 0;

        for (uint32_t j = 0; j < n; j++)
            before += score[j] > score[i] || (score[j] == score[i] && j < i);
        if (before < k) out[count++] = i;
    }
    return count;
}

static void check(const float *score, uint32_t n, uint32_t k)
{
    static uint32_t expected[N_MAX], found[N_MAX + 1], scratch[N_MAX];
    uint32_t count = naive(expected, score, n, k);

    found[count] = 0x55555555;
    assert_true(kn_topk(found, score, n, k, scratch));
    assert_memory_equal(found, expected, count * sizeof(uint32_t));
    assert_int_equal(found[count], 0x55555555);
}

static void random_scores_give_the_defined_set(void **state)
{
    float score[N_MAX];
    test_random random = {1};

    (void)state;
    for (uint32_t n = 0; n < 300; n += n < 20 ? 1 : 31) {
        test_random_fill(&random, score, n, n % 3 == 0 ? 1e-20F : 5);
        for (uint32_t k = 0; k <= n + 2; k += 1 + n / 9)
            check(score, n, k);
    }
    test_random_fill(&random, score, N_MAX, 1);
    check(score, N_MAX, 2048);
    check(score, N_MAX, 8);
}

static void ties_go_to_the_lower_index(void **state)
{
    float score[N_MAX];
    test_random random = {2};

    (void)state;
    for (int round = 0; round < 60; round++) {
        uint32_t n = 1 + test_random_below(&random, 200);

        for (uint32_t i = 0; i < n; i++)
            score[i] = (float)test_random_below(&random, 1 + (uint32_t)round % 5) - 1;
        check(score, n, test_random_below(&random, n + 1));
    }
}

static void zeros_of_either_sign_tie(void **state)
{
    static const float score[] = {-0.0F, 0, -0.0F, 0, -1, 1};
    uint32_t out[6], scratch[6];

    (void)state;
    assert_true(kn_topk(out, score, 6, 3, scratch));
    assert_true(out[0] == 0 && out[1] == 1 && out[2] == 5);
    check(score, 6, 4);
}

static void infinities_and_denormals_are_ordered(void **state)
{
    static const float score[] = {-INFINITY, 0x1p-149F, INFINITY,   -0x1p-149F,
                                  0,         -3.4e38F,  3.4e38F,    INFINITY,
                                  1,         -INFINITY, -0x1p-126F, 0x1p-126F};

    (void)state;
    for (uint32_t k = 0; k <= 12; k++)
        check(score, 12, k);
}

static void a_nan_anywhere_is_reported_whatever_k(void **state)
{
    float score[40];
    uint32_t out[40], scratch[40];

    (void)state;
    for (uint32_t at = 0; at < 40; at++) {
        for (int i = 0; i < 40; i++)
            score[i] = (float)i;
        score[at] = at % 2 == 0 ? NAN : -NAN;
        assert_false(kn_topk(out, score, 40, 8, scratch));
        assert_false(kn_topk(out, score, 40, 0, scratch));
        assert_false(kn_topk(out, score, 40, 64, scratch));
        for (int v = 0; v < KN_VARIANT_COUNT; v++)
            if (test_variant_select(v)) assert_int_equal(kn_argmax(score, 40), UINT32_MAX);
    }
}

static void argmax_takes_the_lowest_of_equals(void **state)
{
    static const float score[] = {-1, 3, 2, 3, 3}, zeros[] = {-0.0F, 0}, low[] = {-INFINITY};
    float all[1003];

    (void)state;
    for (int v = 0; v < KN_VARIANT_COUNT; v++) {
        if (!test_variant_select(v)) continue;
        assert_int_equal(kn_argmax(score, 5), 1);
        assert_int_equal(kn_argmax(zeros, 2), 0);
        assert_int_equal(kn_argmax(low, 1), 0);
        for (int i = 0; i < 1003; i++)
            all[i] = i < 500 ? 0 : -0.0F;
        assert_int_equal(kn_argmax(all, 1003), 0);
        for (int i = 0; i < 1003; i++)
            all[i] = -INFINITY;
        assert_int_equal(kn_argmax(all, 1003), 0);
        for (uint32_t at = 0; at < 1003; at += at < 990 ? 37 : 1) {
            all[at] = 2;
            assert_int_equal(kn_argmax(all, 1003), at);
            assert_int_equal(kn_argmax(all, at + 1), at);
            all[1002] = NAN;
            assert_int_equal(kn_argmax(all, 1003), UINT32_MAX);
            all[at] = all[1002] = -INFINITY;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_scores_give_the_defined_set),
        cmocka_unit_test(ties_go_to_the_lower_index),
        cmocka_unit_test(zeros_of_either_sign_tie),
        cmocka_unit_test(infinities_and_denormals_are_ordered),
        cmocka_unit_test(a_nan_anywhere_is_reported_whatever_k),
        cmocka_unit_test(argmax_takes_the_lowest_of_equals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
