/* exp, log, sigmoid, silu and the f64 functions: accuracy, edges, and the same bytes everywhere. */
#include "kernels/mathf.h"

#include "tests/support/numbers.h"
#include "tests/support/variants.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static float from_bits(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

static void exp_is_within_one_and_a_half_ulp(void **state)
{
    double worst = 0;

    (void)state;
    for (int sign = 0; sign < 2; sign++) {
        for (uint32_t bits = 0x30000000U; bits < 0x42b20000U; bits += 97) {
            float x = from_bits(bits | (uint32_t)sign << 31);
            double exact = exp((double)x);

            if (exact > 3.4028235677973366e38 || exact < 0x1p-126) continue;
            worst = fmax(worst, test_ulps(kn_expf(x), exact));
        }
    }
    printf("exp: at most %.3f ulp\n", worst);
    assert_true(worst < 1.5);
}

static void exp_has_defined_edges(void **state)
{
    const float last = from_bits(0x42b17217U), first = from_bits(0xc2aeac4fU);

    (void)state;
    assert_true(kn_expf(0) == 1 && kn_expf(-0.0F) == 1);
    assert_true(kn_expf(0x1p-149F) == 1);
    assert_true(kn_expf(INFINITY) == INFINITY);
    assert_true(kn_expf(-INFINITY) == 0 && !signbit(kn_expf(-INFINITY)));
    assert_true(isfinite(kn_expf(last)));
    assert_true(kn_expf(nextafterf(last, 100)) == INFINITY);
    assert_true(kn_expf(3e38F) == INFINITY && kn_expf(-3e38F) == 0);
    assert_true(kn_expf(first) >= 0x1p-126F);
    assert_true(kn_expf(nextafterf(first, -100)) == 0);
    assert_true(isnan(kn_expf(NAN)) && isnan(kn_expf(-NAN)));
}

static void exp_never_decreases(void **state)
{
    float last = 0;

    (void)state;
    for (int i = -873000; i < 887000; i++) {
        float y = kn_expf((float)i * 1e-4F);

        assert_true(y >= last);
        last = y;
    }
}

static void log_is_within_one_and_a_half_ulp(void **state)
{
    double worst = 0;

    (void)state;
    for (uint32_t bits = 1; bits < 0x7f800000U; bits += 1009) {
        float x = from_bits(bits);

        worst = fmax(worst, test_ulps(kn_logf(x), log((double)x)));
    }
    for (uint32_t bits = 0x3f700000U; bits < 0x3f900000U; bits += 7) {
        if (bits == 0x3f800000U) continue;
        worst = fmax(worst, test_ulps(kn_logf(from_bits(bits)), log((double)from_bits(bits))));
    }
    printf("log: at most %.3f ulp\n", worst);
    assert_true(worst < 1.5);
    assert_true(kn_logf(1) == 0);
    assert_true(kn_logf(0) == -INFINITY && kn_logf(-0.0F) == -INFINITY);
    assert_true(kn_logf(INFINITY) == INFINITY);
    assert_true(isnan(kn_logf(-1)) && isnan(kn_logf(NAN)) && isnan(kn_logf(-INFINITY)));
}

enum { SAMPLES = 4099 };

/* Values of all sizes and all special ones. */
static void fill_samples(float *x, uint64_t seed)
{
    static const float special[] = {0,         -0.0F,  INFINITY, -INFINITY, NAN,
                                    88.7228F,  88.73F, -87.33F,  -87.34F,   1e38F,
                                    0x1p-149F, -1e38F, 100,      -100,      -0x1p-130F};
    test_random random = {seed};

    for (size_t i = 0; i < SAMPLES; i++) {
        x[i] = test_random_normal(&random) * ldexpf(1, (int)test_random_below(&random, 14) - 5);
        if (i % 10 == 3) x[i] = special[i / 10 % (sizeof(special) / sizeof(special[0]))];
    }
}

static void sigmoid_and_silu_are_their_formulas(void **state)
{
    float x[SAMPLES], up[SAMPLES], sigmoid[SAMPLES], silu[SAMPLES];

    (void)state;
    fill_samples(x, 1);
    fill_samples(up, 2);
    test_variant_select(KN_REF);
    kn_sigmoid(sigmoid, x, SAMPLES);
    kn_silu_mul(silu, x, up, SAMPLES);
    for (size_t i = 0; i < SAMPLES; i++) {
        double exact = 1 / (1 + exp(-(double)x[i]));

        assert_true(test_floats_equal("scalar", &sigmoid[i], &(float){kn_sigmoidf(x[i])}, 1));
        if (isnan(x[i])) {
            assert_true(isnan(sigmoid[i]) && isnan(silu[i]));
            continue;
        }
        if (exact > 0x1p-125) assert_true(test_ulps(sigmoid[i], exact) < 3);
        if (x[i] > -80 && x[i] < 1e30F && fabsf(up[i]) < 1e6F && fabsf(up[i]) > 1e-6F &&
            fabsf(x[i]) > 1e-6F)
            assert_true(fabs(silu[i] / (x[i] * exact * up[i]) - 1) < 4e-7);
    }
}

static void vector_forms_equal_the_reference_at_every_length(void **state)
{
    float x[SAMPLES], up[SAMPLES], expected[2][SAMPLES], found[2][SAMPLES];

    (void)state;
    fill_samples(x, 3);
    fill_samples(up, 4);
    for (size_t n = 0; n <= SAMPLES; n += n < 40 ? 1 : SAMPLES - 40) {
        test_variant_select(KN_REF);
        memset(expected, 0x55, sizeof(expected));
        kn_sigmoid(expected[0], x, n);
        kn_silu_mul(expected[1], x, up, n);
        for (int v = 1; v < KN_VARIANT_COUNT; v++) {
            if (!test_variant_select(v)) continue;
            memset(found, 0x55, sizeof(found));
            kn_sigmoid(found[0], x, n);
            kn_silu_mul(found[1], x, up, n);
            assert_true(test_floats_equal("sigmoid", found[0], expected[0], SAMPLES));
            assert_true(test_floats_equal("silu", found[1], expected[1], SAMPLES));
            memcpy(found[0], x, sizeof(x)); /* out aliases its inputs */
            kn_silu_mul(found[0], found[0], up, n);
            assert_true(test_floats_equal("silu in place", found[0], expected[1], n));
        }
    }
}

/* ---- f64 */

static double ulps64(double x, double exact)
{
    int exponent;

    frexp(exact, &exponent);
    return fabs(x - exact) / ldexp(1, (exponent < -1021 ? -1021 : exponent) - 53);
}

static void exp2_and_log2_are_within_two_ulp(void **state)
{
    test_random random = {5};
    double worst_exp = 0, worst_log = 0;

    (void)state;
    for (int i = 0; i < 200000; i++) {
        double u = (double)(test_random_bits(&random) >> 11) * 0x1p-53;
        double x = (u - 0.5) * (i % 2 == 0 ? 2040 : 4), y = exp2((u - 0.5) * 2000);

        if (i % 3 == 0) y = 1 + (u - 0.5) * ldexp(1, -(i % 40));
        worst_exp = fmax(worst_exp, ulps64(kn_exp2_f64(x), exp2(x)));
        if (y != 1) worst_log = fmax(worst_log, ulps64(kn_log2_f64(y), log2(y)));
    }
    printf("exp2 %.2f, log2 %.2f ulp of libm\n", worst_exp, worst_log);
    assert_true(worst_exp < 2 && worst_log < 2);
    for (int e = -1074; e < 1024; e++) {
        assert_true(kn_exp2_f64(e) == ldexp(1, e));
        assert_true(kn_log2_f64(ldexp(1, e)) == e);
    }
    assert_true(kn_exp2_f64(1024) == INFINITY && kn_exp2_f64(-1100) == 0);
    assert_true(kn_exp2_f64(-INFINITY) == 0 && isnan(kn_exp2_f64(NAN)));
    assert_true(kn_log2_f64(0) == -INFINITY && isnan(kn_log2_f64(-1)) && isnan(kn_log2_f64(NAN)));
    assert_true(kn_log2_f64(INFINITY) == INFINITY);
}

static void check_sincos(double x)
{
    double s, c;

    kn_sincos_f64(x, &s, &c);
    assert_true(fabs(s - sin(x)) <= 1e-12 * fabs(sin(x)) + 1e-18);
    assert_true(fabs(c - cos(x)) <= 1e-12 * fabs(cos(x)) + 1e-18);
}

static void sine_and_cosine_agree_with_libm_up_to_two_to_the_31(void **state)
{
    test_random random = {6};
    double s, c;

    (void)state;
    for (int i = 0; i < 200000; i++) {
        double u = (double)(test_random_bits(&random) >> 11) * 0x1p-53;

        check_sincos((u - 0.5) * ldexp(1, i % 33)); /* up to 2^31 */
    }
    /* Next to the multiples of pi/2, where one of the two is small. */
    for (int i = 0; i < 30; i++) {
        for (int d = -2; d <= 2; d++) {
            double n = floor(ldexp(1, i)) + d;

            check_sincos(n * 1.5707963267948966);
            check_sincos((double)(float)(n * 1.5707963267948966));
        }
    }
    kn_sincos_f64(0, &s, &c);
    assert_true(s == 0 && c == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_within_one_and_a_half_ulp),
        cmocka_unit_test(exp_has_defined_edges),
        cmocka_unit_test(exp_never_decreases),
        cmocka_unit_test(log_is_within_one_and_a_half_ulp),
        cmocka_unit_test(sigmoid_and_silu_are_their_formulas),
        cmocka_unit_test(vector_forms_equal_the_reference_at_every_length),
        cmocka_unit_test(exp2_and_log2_are_within_two_ulp),
        cmocka_unit_test(sine_and_cosine_agree_with_libm_up_to_two_to_the_31),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
