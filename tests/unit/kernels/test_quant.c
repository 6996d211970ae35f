/* Quantisers and float conversions: known answers, limits, and the same bytes by every variant. */
#include "kernels/quant.h"

#include "tests/support/numbers.h"
#include "tests/support/variants.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static float from_bits(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* ---- conversions */

/* The value of a finite f16 by its definition. */
static double half_value(uint16_t half)
{
    int exponent = half >> 10 & 31, fraction = half & 1023;
    double size = exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25);

    return (half & 0x8000) != 0 ? -size : size;
}

static void every_half_is_its_value_and_comes_back(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        float x = kn_f32_from_f16((uint16_t)h);

        if ((h & 0x7fff) > 0x7c00) {
            assert_true(isnan(x));
            assert_int_equal(kn_f16_from_f32(x), h | 0x200);
            continue;
        }
        if ((h & 0x7fff) == 0x7c00)
            assert_true(isinf(x) && (x < 0) == (h > 0x8000));
        else
            assert_true((double)x == half_value((uint16_t)h));
        assert_int_equal(signbit(x) != 0, h >> 15);
        assert_int_equal(kn_f16_from_f32(x), h);
    }
}

static void halves_round_to_nearest_even(void **state)
{
    (void)state;
    /* Between every two neighbours: the middle goes to the even one, a bit beside it to the near
     * one. */
    for (uint32_t h = 0; h < 0x7c00; h++) {
        float low = kn_f32_from_f16((uint16_t)h);
        float high = h == 0x7bff ? 65536.0F : kn_f32_from_f16((uint16_t)(h + 1));
        float middle = low + (high - low) / 2;

        assert_int_equal(kn_f16_from_f32(middle), h + (h & 1));
        assert_int_equal(kn_f16_from_f32(nextafterf(middle, 0)), h);
        assert_int_equal(kn_f16_from_f32(nextafterf(middle, 1e9F)), h + 1);
        assert_int_equal(kn_f16_from_f32(-nextafterf(middle, 1e9F)), 0x8000 | (h + 1));
    }
    assert_int_equal(kn_f16_from_f32(1e30F), 0x7c00);
    assert_int_equal(kn_f16_from_f32(-INFINITY), 0xfc00);
    assert_int_equal(kn_f16_from_f32(0x1p-140F), 0);
    assert_int_equal(kn_f16_from_f32(-0.0F), 0x8000);
}

static void bf16_rounds_to_nearest_even(void **state)
{
    test_random random = {1};

    (void)state;
    assert_int_equal(kn_bf16_from_f32(from_bits(0x3f808000)), 0x3f80);
    assert_int_equal(kn_bf16_from_f32(from_bits(0x3f818000)), 0x3f82);
    assert_int_equal(kn_bf16_from_f32(from_bits(0x3f808001)), 0x3f81);
    assert_int_equal(kn_bf16_from_f32(from_bits(0x3f807fff)), 0x3f80);
    assert_int_equal(kn_bf16_from_f32(from_bits(0x7f7fffff)), 0x7f80); /* to Inf */
    assert_int_equal(kn_bf16_from_f32(-INFINITY), 0xff80);
    assert_int_equal(kn_bf16_from_f32(from_bits(0x7f800001)), 0x7fc0); /* NaN stays NaN */
    assert_int_equal(kn_bf16_from_f32(from_bits(0xffffffff)), 0xffff);
    for (int i = 0; i < 100000; i++) {
        uint16_t b = (uint16_t)test_random_bits(&random);
        float x = kn_f32_from_bf16(b);

        if (!isnan(x)) assert_int_equal(kn_bf16_from_f32(x), b);
    }
}

/* ---- activations */

static void activations_become_the_documented_integers(void **state)
{
    float x[20] = {127, -127, 0.5F, 1.5F, 2.5F, -0.5F, -2.5F, 3.49F, -0.0F, 100};
    _Alignas(64) uint8_t memory[4096];
    static const int expected[10] = {127, -127, 0, 2, 2, 0, -2, 3, 0, 100};

    (void)state;
    x[16] = 3; /* the second group: columns 16..19 and zero padding */
    x[19] = -6;
    for (int v = 0; v < KN_VARIANT_COUNT; v++) {
        kn_rows rows;

        if (!test_variant_select(v)) continue;
        rows = kn_rows_quantise(x, 20, 1, 20, 16, memory);
        for (int i = 0; i < 10; i++)
            assert_int_equal(rows.q[i], expected[i]);
        assert_true(rows.scale[0] == 1.0F && rows.scale[1] == 6.0F / 127.0F);
        assert_int_equal(rows.sum[0], 127 - 127 + 2 + 2 - 2 + 3 + 100);
        assert_int_equal(rows.q[16], 64); /* 63.5 to even */
        assert_int_equal(rows.q[19], -127);
        for (int i = 20; i < 32; i++)
            assert_int_equal(rows.q[i], 0);
        assert_ptr_equal(rows.f32, x);
    }
}

static void tiny_groups_are_zero_and_broken_ones_poison_only_themselves(void **state)
{
    float x[64];
    _Alignas(64) uint8_t memory[4096];
    static const float broken[3] = {NAN, INFINITY, -INFINITY};

    (void)state;
    for (int v = 0; v < KN_VARIANT_COUNT; v++) {
        if (!test_variant_select(v)) continue;
        for (int b = 0; b < 3; b++) {
            kn_rows rows;

            for (int i = 0; i < 64; i++)
                x[i] = i < 16 ? 0x1.fffffep-101F : i < 32 ? 0x1p-100F : i < 48 ? 1 : 2;
            x[40] = broken[b];
            rows = kn_rows_quantise(x, 64, 1, 64, 16, memory);
            assert_true(rows.scale[0] == 0 && rows.q[0] == 0 && rows.sum[0] == 0);
            assert_true(rows.scale[1] == 0x1p-100F / 127 && rows.q[16] == 127);
            assert_true(isnan(rows.scale[2]) && rows.sum[2] == 0);
            for (int i = 32; i < 48; i++)
                assert_int_equal(rows.q[i], 0);
            assert_int_equal(rows.sum[3], 16 * 127);
        }
    }
}

static void the_largest_floats_quantise_without_overflow(void **state)
{
    float x[16] = {3.4028234e38F, -3.4028234e38F, 1.7e38F};
    _Alignas(64) uint8_t memory[1024];

    (void)state;
    for (int v = 0; v < KN_VARIANT_COUNT; v++) {
        kn_rows rows;

        if (!test_variant_select(v)) continue;
        rows = kn_rows_quantise(x, 16, 1, 16, 16, memory);
        assert_true(isfinite(rows.scale[0]));
        assert_int_equal(rows.q[0], 127);
        assert_int_equal(rows.q[1], -127);
        assert_int_equal(rows.q[2], 63);
    }
}

static void activation_variants_equal_the_reference(void **state)
{
    enum { COLS_MAX = 200, ROWS = 3, STRIDE = COLS_MAX + 5 };
    float *x = calloc(ROWS * STRIDE, sizeof(float));
    size_t bytes = kn_rows_quant_bytes(ROWS, COLS_MAX, 16);
    uint8_t *expected = aligned_alloc(64, bytes), *found = aligned_alloc(64, bytes);
    int32_t sums[ROWS * 13];
    test_random random = {8};

    (void)state;
    assert_true(x != NULL && expected != NULL && found != NULL);
    for (uint32_t group = 16; group <= 64; group *= 2) {
        for (uint32_t cols = 1; cols <= COLS_MAX; cols += cols < 40 ? 1 : 7) {
            size_t used = kn_rows_quant_bytes(ROWS, cols, group);
            kn_rows rows;

            for (int i = 0; i < ROWS * STRIDE; i++)
                x[i] = test_random_normal(&random) *
                       ldexpf(1, (int)test_random_below(&random, 20) - 110);
            test_variant_select(KN_REF);
            memset(expected, 0, bytes);
            kn_rows_quantise(x, STRIDE, ROWS, cols, group, expected);
            for (int v = 1; v < KN_VARIANT_COUNT; v++) {
                if (!test_variant_select(v)) continue;
                memset(found, 0, bytes);
                rows = kn_rows_quantise(x, STRIDE, ROWS, cols, group, found);
                assert_memory_equal(found, expected, used);
                kn_rows_sums(rows.q, ROWS, cols, group, sums);
                assert_memory_equal(sums, rows.sum,
                                    ROWS * kn_groups(cols, group) * sizeof(int32_t));
            }
        }
    }
    free(x);
    free(expected);
    free(found);
}

/* ---- weights */

static void q8_weights_are_never_clipped_and_near(void **state)
{
    test_random random = {9};
    float w[64];
    int8_t q[64];

    (void)state;
    test_variant_select(KN_REF);
    for (int round = 0; round < 6000; round++) {
        uint32_t n = 1 + test_random_below(&random, 64);
        float amax = 0, scale;

        test_random_fill(&random, w, n, ldexpf(1, (int)test_random_below(&random, 24) - 14));
        for (uint32_t i = 0; i < n; i++)
            amax = fmaxf(amax, fabsf(w[i]));
        scale = kn_f32_from_f16(kn_quant_q8_group(w, n, q));
        assert_true((double)scale * 127 >= (double)amax);
        assert_true((double)scale * 127 <= (double)amax * 1.002 + 0x1p-16);
        for (uint32_t i = 0; i < n; i++)
            assert_true(fabs((double)w[i] - (double)scale * q[i]) <= (double)scale * 0.5000001);
    }
}

static double q4_error(const float *w, uint32_t n, double scale)
{
    double sum = 0;

    for (uint32_t i = 0; i < n; i++) {
        double q = nearbyint(fmin(fmax(w[i] / scale, -8), 7));

        sum += (w[i] - scale * q) * (w[i] - scale * q);
    }
    return sum;
}

static void q4_scales_are_the_best_of_the_grid(void **state)
{
    test_random random = {10};
    float w[64];
    int8_t q[64];

    (void)state;
    test_variant_select(KN_REF);
    for (int round = 0; round < 3000; round++) {
        uint32_t n = round % 2 == 0 ? 64 : 1 + test_random_below(&random, 64);
        double amax = 0, best = INFINITY, found = 0, scale;

        test_random_fill(&random, w, n, 0.02F);
        for (uint32_t i = 0; i < n; i++)
            amax = fmax(amax, fabs((double)w[i]));
        for (int c = 0; c <= 20; c++) {
            float candidate = (float)amax / 7.0F * (float)(0.60 + 0.025 * c);
            double size = (double)kn_f32_from_f16(kn_f16_from_f32(candidate));

            best = fmin(best, fmin(q4_error(w, n, size), q4_error(w, n, -size)));
        }
        scale = (double)kn_f32_from_f16(kn_quant_q4_group(w, n, q));
        for (uint32_t i = 0; i < n; i++) {
            assert_in_range(q[i] + 8, 0, 15);
            found += (w[i] - scale * q[i]) * (w[i] - scale * q[i]);
        }
        /* The search sums in f32: a tie within its rounding may fall either way. */
        assert_true(found <= best * 1.00001 + 1e-30);
    }
}

/* 8, 7 and -7 fit without an error only when 8 is on -8. */
static void a_positive_extreme_can_sit_on_minus_eight(void **state)
{
    float w[16] = {8, 7, -7, 1, -1};
    static const int8_t expected[16] = {-8, -7, 7, -1, 1};
    int8_t q[16];

    (void)state;
    for (int variant = 0; variant < KN_VARIANT_COUNT; variant++) {
        if (!test_variant_select(variant)) continue;
        assert_int_equal(kn_quant_q4_group(w, 16, q), 0xbc00); /* -1 */
        assert_memory_equal(q, expected, sizeof(q));
        for (int i = 0; i < 16; i++)
            w[i] = -w[i];
        assert_int_equal(kn_quant_q4_group(w, 16, q), 0x3c00);
        assert_memory_equal(q, expected, sizeof(q));
        for (int i = 0; i < 16; i++)
            w[i] = -w[i];
    }
}

static void q4_ties_take_the_first_candidate(void **state)
{
    /* {7}: the positive size 1 and the negative 0.875 (on -8) fit exactly; {-8}: the positive 0.875
     * does first. {a tiny value}: every candidate is the least f16 in size. */
    float w[16] = {7}, v[16] = {-8}, tiny[16] = {1e-9F};
    int8_t q[16];

    (void)state;
    for (int variant = 0; variant < KN_VARIANT_COUNT; variant++) {
        if (!test_variant_select(variant)) continue;
        assert_int_equal(kn_quant_q4_group(w, 16, q), 0x3c00);
        assert_int_equal(q[0], 7);
        assert_int_equal(kn_quant_q4_group(v, 16, q), 0x3c00);
        assert_int_equal(q[0], -8);
        assert_int_equal(kn_quant_q4_group(tiny, 16, q), 1);
        assert_int_equal(q[0], 0);
    }
}

static void scales_at_the_limits_of_f16_stay_finite(void **state)
{
    float zero[16] = {0}, huge[16] = {1e30F, -1e30F, 65504.0F * 3}, least[16] = {0x1p-149F};
    float edge[16] = {65504.0F * 127, 65504.0F};
    int8_t q[16];

    (void)state;
    for (int v = 0; v < KN_VARIANT_COUNT; v++) {
        if (!test_variant_select(v)) continue;
        assert_int_equal(kn_quant_q4_group(zero, 16, q), 0);
        assert_int_equal(kn_quant_q8_group(zero, 16, q), 0);
        for (int i = 0; i < 16; i++)
            assert_int_equal(q[i], 0);
        assert_int_equal(kn_quant_q4_group(huge, 16, q), 0x7bff);
        assert_true(q[0] == 7 && q[1] == -8 && q[2] == 3 && q[3] == 0);
        assert_int_equal(kn_quant_q8_group(huge, 16, q), 0x7bff);
        assert_true(q[0] == 127 && q[1] == -127 && q[2] == 3 && q[3] == 0);
        assert_int_equal(kn_quant_q8_group(edge, 16, q), 0x7bff);
        assert_true(q[0] == 127 && q[1] == 1);
        assert_int_equal(kn_quant_q4_group(least, 16, q), 1);
        assert_int_equal(q[0], 0);
        assert_int_equal(kn_quant_q8_group(least, 16, q), 1);
        assert_int_equal(q[0], 0);
    }
}

static void weight_variants_equal_the_reference(void **state)
{
    test_random random = {11};
    float w[64];

    (void)state;
    for (int round = 0; round < 6000; round++) {
        uint32_t n = 1 + test_random_below(&random, 64);
        int8_t expected[2][64], found[2][64];
        uint16_t q8, q4;

        memset(expected, 0x55, sizeof(expected));
        memset(found, 0x55, sizeof(found));
        test_random_fill(&random, w, n, ldexpf(1, (int)test_random_below(&random, 60) - 35));
        if (round % 5 == 0) w[test_random_below(&random, n)] *= 30;
        if (round % 7 == 0) w[0] = -0.0F;
        test_variant_select(KN_REF);
        q8 = kn_quant_q8_group(w, n, expected[0]);
        q4 = kn_quant_q4_group(w, n, expected[1]);
        for (int v = 1; v < KN_VARIANT_COUNT; v++) {
            if (!test_variant_select(v)) continue;
            assert_int_equal(kn_quant_q8_group(w, n, found[0]), q8);
            assert_int_equal(kn_quant_q4_group(w, n, found[1]), q4);
            assert_memory_equal(found, expected, sizeof(found));
        }
    }
}

static void q8f32_weights_take_the_exact_scale(void **state)
{
    float w[64];
    int8_t q[64];
    test_random random = {31};

    (void)state;
    for (int round = 0; round < 200; round++) {
        uint32_t n = 1 + (uint32_t)round % 64;
        float amax = 0, scale;

        test_random_fill(&random, w, n, 0.1F);
        for (uint32_t i = 0; i < n; i++)
            amax = fmaxf(amax, fabsf(w[i]));
        scale = kn_quant_q8f32_group(w, n, q);
        assert_true(scale == amax / 127.0F);
        for (uint32_t i = 0; i < n; i++)
            assert_int_equal(q[i], (int)nearbyintf(w[i] / scale));
    }
}

static void q8f32_limits_stay_within_127(void **state)
{
    /* What amax becomes: nothing, a scale that is rounded to 0, to the smallest float (too small by
     * a third: clipped), and the largest. */
    static const struct {
        float amax, scale;
        int q;
    } cases[] = {{0, 0, 0},
                 {63 * 0x1p-149F, 0, 0},
                 {64 * 0x1p-149F, 0x1p-149F, 64},
                 {190 * 0x1p-149F, 0x1p-149F, 127},
                 {0x1.fffffep127F, 0x1.fffffep127F / 127.0F, 127}};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        float w[3] = {-cases[i].amax, 0, cases[i].amax};
        int8_t q[3];

        assert_true(kn_quant_q8f32_group(w, 3, q) == cases[i].scale);
        assert_int_equal(q[0], -cases[i].q);
        assert_int_equal(q[1], 0);
        assert_int_equal(q[2], cases[i].q);
    }
}

static void q8f32_ties_go_to_the_even_integer(void **state)
{
    float w[4] = {127, 2.5F, -3.5F, 0.5F};
    int8_t q[4];

    (void)state;
    assert_true(kn_quant_q8f32_group(w, 4, q) == 1);
    assert_int_equal(q[0], 127);
    assert_int_equal(q[1], 2);
    assert_int_equal(q[2], -4);
    assert_int_equal(q[3], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_half_is_its_value_and_comes_back),
        cmocka_unit_test(halves_round_to_nearest_even),
        cmocka_unit_test(bf16_rounds_to_nearest_even),
        cmocka_unit_test(activations_become_the_documented_integers),
        cmocka_unit_test(tiny_groups_are_zero_and_broken_ones_poison_only_themselves),
        cmocka_unit_test(the_largest_floats_quantise_without_overflow),
        cmocka_unit_test(activation_variants_equal_the_reference),
        cmocka_unit_test(q8_weights_are_never_clipped_and_near),
        cmocka_unit_test(q4_scales_are_the_best_of_the_grid),
        cmocka_unit_test(a_positive_extreme_can_sit_on_minus_eight),
        cmocka_unit_test(q4_ties_take_the_first_candidate),
        cmocka_unit_test(scales_at_the_limits_of_f16_stay_finite),
        cmocka_unit_test(weight_variants_equal_the_reference),
        cmocka_unit_test(q8f32_weights_take_the_exact_scale),
        cmocka_unit_test(q8f32_limits_stay_within_127),
        cmocka_unit_test(q8f32_ties_go_to_the_even_integer),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
