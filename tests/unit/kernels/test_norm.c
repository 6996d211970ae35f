/* Sums in 32 lanes, norms and elementwise steps. */
#include "kernels/norm.h"

#include "base/team.h"
#include "tests/support/numbers.h"
#include "tests/support/variants.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { N_MAX = 300, ROWS = 3, STRIDE = N_MAX + 5 };

/* The written order, once more and independently: pad to lanes, then the tree. */
static float lane_sum(const float *x, size_t n, int squares)
{
    float lane[32] = {0};

    for (size_t begin = 0; begin < n; begin += 32) {
        for (size_t i = 0; i < 32; i++) {
            float v = begin + i < n ? x[begin + i] : 0;

            lane[i] = squares ? fmaf(v, v, lane[i]) : lane[i] + v;
        }
    }
    for (size_t width = 16; width > 0; width /= 2)
        for (size_t i = 0; i < width; i++)
            lane[i] = lane[i] + lane[i + width];
    return lane[0];
}

static void sums_follow_the_lanes_and_the_tree_at_every_length(void **state)
{
    float x[N_MAX];
    test_random random = {1};

    (void)state;
    for (size_t n = 0; n <= N_MAX; n++) {
        test_random_fill(&random, x, n, 1);
        for (int v = 0; v < KN_VARIANT_COUNT; v++) {
            float sum, squares;

            if (!test_variant_select(v)) continue;
            sum = kn_sum(x, n);
            squares = kn_sum_squares(x, n);
            assert_true(test_floats_equal("sum", &sum, &(float){lane_sum(x, n, 0)}, 1));
            assert_true(test_floats_equal("squares", &squares, &(float){lane_sum(x, n, 1)}, 1));
        }
    }
}

static void zeros_of_either_sign_sum_to_plus_zero_and_nan_stays(void **state)
{
    float x[40];

    (void)state;
    for (int v = 0; v < KN_VARIANT_COUNT; v++) {
        if (!test_variant_select(v)) continue;
        for (int i = 0; i < 40; i++)
            x[i] = -0.0F;
        assert_true(signbit(kn_sum(x, 40)) == 0);
        assert_true(signbit(kn_sum(x, 0)) == 0);
        x[37] = NAN;
        assert_true(isnan(kn_sum(x, 40)) && isnan(kn_sum_squares(x, 40)));
        assert_true(kn_sum(x, 37) == 0);
    }
}

typedef struct {
    float x[ROWS * STRIDE], weight[N_MAX], bias[N_MAX];
} data;

static void fill(data *d, uint64_t seed)
{
    test_random random = {seed};

    test_random_fill(&random, d->x, (size_t)ROWS * STRIDE, 2);
    test_random_fill(&random, d->weight, N_MAX, 1);
    test_random_fill(&random, d->bias, N_MAX, 1);
}

static void rms_norm_is_the_formula(void **state)
{
    data d;
    float out[ROWS * STRIDE];

    (void)state;
    fill(&d, 2);
    test_variant_select(KN_REF);
    kn_rms_norm(out, STRIDE, d.x, STRIDE, d.weight, ROWS, N_MAX, 1e-5F);
    for (size_t r = 0; r < ROWS; r++) {
        double sum = 0;

        for (size_t i = 0; i < N_MAX; i++)
            sum += (double)d.x[r * STRIDE + i] * d.x[r * STRIDE + i];
        for (size_t i = 0; i < N_MAX; i++) {
            double exact = d.x[r * STRIDE + i] / sqrt(sum / N_MAX + 1e-5) * d.weight[i];

            assert_true(fabs(out[r * STRIDE + i] - exact) <= 5e-7 * fabs(exact));
        }
    }
}

static void layer_norm_is_the_formula(void **state)
{
    data d;
    float out[ROWS * STRIDE];

    (void)state;
    fill(&d, 3);
    test_variant_select(KN_REF);
    kn_layer_norm(out, STRIDE, d.x, STRIDE, d.weight, d.bias, ROWS, 128, 1e-6F);
    for (size_t r = 0; r < ROWS; r++) {
        double mean = 0, variance = 0;

        for (size_t i = 0; i < 128; i++)
            mean += d.x[r * STRIDE + i] / 128.0;
        for (size_t i = 0; i < 128; i++)
            variance += (d.x[r * STRIDE + i] - mean) * (d.x[r * STRIDE + i] - mean) / 128.0;
        for (size_t i = 0; i < 128; i++) {
            double exact =
                (d.x[r * STRIDE + i] - mean) / sqrt(variance + 1e-6) * d.weight[i] + d.bias[i];

            assert_true(fabs(out[r * STRIDE + i] - exact) <= 3e-6);
        }
    }
}

/* All row functions into `out`, from the same data, also in place. */
static void run_all(const data *d, size_t n, float (*out)[ROWS * STRIDE])
{
    memset(out, 0x55, 6 * sizeof(out[0]));
    kn_rms_norm(out[0], STRIDE, d->x, STRIDE, d->weight, ROWS, n, 1e-5F);
    kn_layer_norm(out[1], STRIDE, d->x, STRIDE, d->weight, d->bias, ROWS, n, 1e-6F);
    memcpy(out[2], d->x, sizeof(d->x));
    kn_rms_norm(out[2], STRIDE, out[2], STRIDE, d->weight, ROWS, n, 1e-5F);
    memcpy(out[3], d->x, sizeof(d->x));
    kn_layer_norm(out[3], STRIDE, out[3], STRIDE, d->weight, d->bias, ROWS, n, 1e-6F);
    memcpy(out[4], d->x, sizeof(d->x));
    kn_add(out[4], d->weight, n);
    kn_scale(out[5], d->x, 0.37F, n);
}

static void variants_equal_the_reference_at_every_length_also_in_place(void **state)
{
    static float expected[6][ROWS * STRIDE], found[6][ROWS * STRIDE];
    data d;

    (void)state;
    for (size_t n = 1; n <= N_MAX; n += n < 70 ? 1 : 23) {
        fill(&d, 100 + n);
        test_variant_select(KN_REF);
        run_all(&d, n, expected);
        for (size_t r = 0; r < ROWS; r++) {
            assert_true(test_floats_equal("rms in place", expected[2] + r * STRIDE,
                                          expected[0] + r * STRIDE, n));
            assert_true(test_floats_equal("layer in place", expected[3] + r * STRIDE,
                                          expected[1] + r * STRIDE, n));
        }
        for (int v = 1; v < KN_VARIANT_COUNT; v++) {
            if (!test_variant_select(v)) continue;
            run_all(&d, n, found);
            assert_true(test_floats_equal("rows", found[0], expected[0], 6 * ROWS * STRIDE));
        }
    }
}

static void add_and_scale_are_single_roundings(void **state)
{
    float x[2] = {1, 3}, y[2] = {0x1p-24F, -3}, out[2];

    (void)state;
    for (int v = 0; v < KN_VARIANT_COUNT; v++) {
        float sum[2] = {x[0], x[1]};

        if (!test_variant_select(v)) continue;
        kn_add(sum, y, 2);
        assert_true(sum[0] == 1 && sum[1] == 0 && !signbit(sum[1]));
        kn_scale(out, x, 1.0F / 3.0F, 2);
        assert_true(out[0] == 1.0F / 3.0F && out[1] == 3 * (1.0F / 3.0F));
    }
}

static void denormals_are_neither_flushed_nor_taken_for_zero(void **state)
{
    float x[19], out[19];

    (void)state;
    rt_float_env_set();
    for (int i = 0; i < 19; i++)
        x[i] = 0x1p-149F * (float)(i + 1);
    for (int v = 0; v < KN_VARIANT_COUNT; v++) {
        if (!test_variant_select(v)) continue;
        kn_scale(out, x, 2, 19);
        for (int i = 0; i < 19; i++)
            assert_true(out[i] == 0x1p-148F * (float)(i + 1) && out[i] > 0);
        kn_add(out, x, 19);
        assert_true(out[18] == 0x1p-149F * 57);
        assert_true(kn_sum(x, 19) == 0x1p-149F * 190);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_follow_the_lanes_and_the_tree_at_every_length),
        cmocka_unit_test(zeros_of_either_sign_sum_to_plus_zero_and_nan_stays),
        cmocka_unit_test(rms_norm_is_the_formula),
        cmocka_unit_test(layer_norm_is_the_formula),
        cmocka_unit_test(variants_equal_the_reference_at_every_length_also_in_place),
        cmocka_unit_test(add_and_scale_are_single_roundings),
        cmocka_unit_test(denormals_are_neither_flushed_nor_taken_for_zero),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
