/* Rotary embedding: tables against libm in f64, the rotation, and variants. */
#include "kernels/rope.h"

#include "tests/support/numbers.h"
#include "tests/support/variants.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { DIM_MAX = 128 };

static void inverse_frequencies_round_at_each_step(void **state)
{
    static const double thetas[] = {1e4, 1e6, 8e6};
    float inv[DIM_MAX / 2];

    (void)state;
    for (int t = 0; t < 3; t++) {
        for (uint32_t dim = 2; dim <= DIM_MAX; dim += 2) {
            kn_rope_inv_freq(thetas[t], dim, inv);
            assert_true(inv[0] == 1);
            for (uint32_t j = 0; j < dim / 2; j++) {
                float exponent = (float)(2 * j) / (float)dim;
                float power = (float)pow(thetas[t], (double)exponent);

                assert_true(inv[j] == 1.0F / power);
            }
        }
    }
}

static void angles_are_the_rounded_sine_and_cosine(void **state)
{
    static const uint32_t positions[] = {0, 1, 2, 77, 4095, 131071, 1048575, 16777217};
    float inv[32], c[32], s[32];
    uint32_t differ = 0;

    (void)state;
    kn_rope_inv_freq(8e6, 64, inv);
    for (size_t p = 0; p < sizeof(positions) / sizeof(positions[0]); p++) {
        kn_rope_angles(positions[p], inv, 64, c, s);
        for (uint32_t j = 0; j < 32; j++) {
            float angle = (float)positions[p] * inv[j];

            differ += c[j] != (float)cos((double)angle);
            differ += s[j] != (float)sin((double)angle);
            assert_true(fabs(c[j] - cos((double)angle)) < 6e-8);
            assert_true(fabs(s[j] - sin((double)angle)) < 6e-8);
        }
    }
    assert_int_equal(differ, 0); /* a tie of rounding is a 1 in 10^8 event */
}

static void a_rotation_turns_interleaved_pairs(void **state)
{
    (void)state;
    for (int v = 0; v < KN_VARIANT_COUNT; v++) {
        float x[4] = {1, 2, 3, 4};
        static const float c[2] = {0, 1}, s[2] = {1, 0};

        if (!test_variant_select(v)) continue;
        kn_rope_apply(x, 4, 1, c, s, 4);
        assert_true(x[0] == -2 && x[1] == 1 && x[2] == 3 && x[3] == 4);
    }
}

static void products_are_rounded_before_they_are_added(void **state)
{
    /* a*c - b*s cancels: with a fused step the rounding error of one product would remain. */
    static const float c[4] = {1.1F, 1.1F, 1.1F, 1.1F};

    (void)state;
    for (int v = 0; v < KN_VARIANT_COUNT; v++) {
        float x[8];

        if (!test_variant_select(v)) continue;
        for (int i = 0; i < 8; i++)
            x[i] = 1.7F;
        kn_rope_apply(x, 8, 1, c, c, 8);
        for (int i = 0; i < 8; i += 2)
            assert_true(x[i] == 0 && x[i + 1] == 2 * (1.7F * 1.1F));
    }
}

static void variants_equal_the_reference_for_every_dim_and_keep_the_rest(void **state)
{
    enum { COUNT = 5, STRIDE = DIM_MAX + 3 };
    float x[COUNT * STRIDE], expected[COUNT * STRIDE], found[COUNT * STRIDE];
    float inv[DIM_MAX / 2], c[DIM_MAX / 2], s[DIM_MAX / 2];
    test_random random = {1};

    (void)state;
    test_random_fill(&random, x, COUNT * STRIDE, 3);
    for (uint32_t dim = 0; dim <= DIM_MAX; dim += 2) {
        if (dim > 0) kn_rope_inv_freq(1e6, dim, inv);
        kn_rope_angles(1234 + dim, inv, dim, c, s);
        test_variant_select(KN_REF);
        memcpy(expected, x, sizeof(x));
        kn_rope_apply(expected, STRIDE, COUNT, c, s, dim);
        for (size_t i = 0; i < COUNT; i++)
            assert_memory_equal(expected + i * STRIDE + dim, x + i * STRIDE + dim,
                                (STRIDE - dim) * sizeof(float));
        for (int v = 1; v < KN_VARIANT_COUNT; v++) {
            if (!test_variant_select(v)) continue;
            memcpy(found, x, sizeof(x));
            kn_rope_apply(found, STRIDE, COUNT, c, s, dim);
            assert_true(test_floats_equal("rope", found, expected, COUNT * STRIDE));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(inverse_frequencies_round_at_each_step),
        cmocka_unit_test(angles_are_the_rounded_sine_and_cosine),
        cmocka_unit_test(a_rotation_turns_interleaved_pairs),
        cmocka_unit_test(products_are_rounded_before_they_are_added),
        cmocka_unit_test(variants_equal_the_reference_for_every_dim_and_keep_the_rest),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
