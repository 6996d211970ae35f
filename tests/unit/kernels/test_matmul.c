/* Every variant of the matrix products equals the reference byte for byte, and the reference is
 * right. */
#include "kernels/matmul.h"

#include "tests/support/numbers.h"
#include "tests/support/variants.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS_MAX = 136, COLS_MAX = 224, TOKENS_MAX = 9, Y_STRIDE = ROWS_MAX + 3 };

typedef struct {
    float *weights; /* [ROWS_MAX][COLS_MAX] */
    float *x;       /* [TOKENS_MAX][COLS_MAX + 1] */
    void *tiles, *quantised;
    float y[TOKENS_MAX * Y_STRIDE + 1], expected[TOKENS_MAX * Y_STRIDE + 1];
    test_random random;
} bench;

typedef struct {
    kn_format format;
    bool int_rows;
    uint32_t rows, cols, group, tokens;
} shape;

static int setup(void **state)
{
    bench *b = calloc(1, sizeof(*b));

    assert_non_null(b);
    b->weights = calloc(ROWS_MAX * COLS_MAX, sizeof(float));
    b->x = calloc(TOKENS_MAX * (COLS_MAX + 1), sizeof(float));
    b->tiles = aligned_alloc(64, kn_qmat_bytes(KN_F32, ROWS_MAX + 16, COLS_MAX, 16));
    b->quantised = aligned_alloc(64, kn_rows_quant_bytes(TOKENS_MAX, COLS_MAX, 16) + 4096);
    assert_true(b->weights != NULL && b->x != NULL && b->tiles != NULL && b->quantised != NULL);
    b->random.state = 7;
    *state = b;
    return 0;
}

static int teardown(void **state)
{
    bench *b = *state;

    free(b->weights);
    free(b->x);
    free(b->tiles);
    free(b->quantised);
    free(b);
    return 0;
}

/* Random weights and rows of a shape, packed; the view of the rows is returned. */
static kn_rows prepare(bench *b, const shape *s, kn_qmat *w)
{
    test_random_fill(&b->random, b->weights, (size_t)s->rows * s->cols, 0.05F);
    test_random_fill(&b->random, b->x, (size_t)s->tokens * (s->cols + 1), 1.5F);
    kn_qmat_pack(s->format, s->cols, s->group, b->weights, s->cols, s->rows, b->tiles);
    *w = (kn_qmat){
        .format = s->format, .rows = s->rows, .cols = s->cols, .group = s->group, .data = b->tiles};
    if (s->int_rows)
        return kn_rows_quantise(b->x, s->cols + 1, s->tokens, s->cols, s->group, b->quantised);
    return kn_rows_float(b->x, s->cols + 1, s->tokens, s->cols);
}

/* y one float off any alignment; bytes that must stay are 0x55. */
static void multiply(float *y, const kn_rows *x, const kn_qmat *w, uint32_t begin, uint32_t end)
{
    memset(y, 0x55, (TOKENS_MAX * Y_STRIDE + 1) * sizeof(float));
    kn_matmul(y + 1, Y_STRIDE, x, w, begin, end);
}

static void check_variants(bench *b, const kn_rows *x, const kn_qmat *w, uint32_t begin,
                           uint32_t end)
{
    test_variant_select(KN_REF);
    multiply(b->expected, x, w, begin, end);
    for (int v = KN_REF + 1; v < KN_VARIANT_COUNT; v++) {
        if (!test_variant_select(v)) continue;
        multiply(b->y, x, w, begin, end);
        if (!test_floats_equal(kn_variant_name((kn_variant)v), b->y, b->expected,
                               TOKENS_MAX * Y_STRIDE + 1))
            fail_msg("format %s int rows %d, %u x %u group %u, %u tokens, rows %u to %u",
                     kn_format_name(w->format), x->q != NULL, w->rows, w->cols, w->group, x->rows,
                     begin, end);
    }
}

static void check_shape(bench *b, shape s)
{
    kn_qmat w;
    kn_rows x;

    test_variant_select(KN_REF);
    x = prepare(b, &s, &w);
    check_variants(b, &x, &w, 0, s.rows);
    if (s.rows > 16 && s.tokens < 4) check_variants(b, &x, &w, 16, s.rows);
    if (s.rows > 32 && s.tokens < 4) check_variants(b, &x, &w, 16, 32);
}

static const kn_format int_formats[] = {KN_Q8, KN_Q4, KN_Q8F32, KN_Q4F32};
enum { INT_FORMATS = sizeof(int_formats) / sizeof(int_formats[0]) };

/* Up to eight tiles and a part of one: kernels take one, two or four tiles at once. */
static const uint32_t row_counts[] = {1, 5, 16, 17, 31, 40, 64, 77, ROWS_MAX};
enum { ROW_COUNTS = sizeof(row_counts) / sizeof(row_counts[0]) };

static void float_variants_equal_the_reference_over_odd_shapes(void **state)
{
    static const uint32_t cols[] = {1, 2, 3, 8, 17, 64, 145, 200};
    static const kn_format formats[] = {KN_F32, KN_BF16};

    for (int f = 0; f < 2; f++)
        for (uint32_t c = 0; c < sizeof(cols) / sizeof(cols[0]); c++)
            for (uint32_t r = 0; r < ROW_COUNTS; r++)
                for (uint32_t tokens = 1 + (c + r) % 2; tokens <= TOKENS_MAX; tokens += 2)
                    check_shape(*state,
                                (shape){formats[f], false, row_counts[r], cols[c], 16, tokens});
}

static void integer_variants_equal_the_reference_over_odd_shapes(void **state)
{
    static const uint32_t cols[] = {1, 3, 16, 31, 64, 129, 200};

    for (int f = 0; f < INT_FORMATS; f++)
        for (uint32_t group = 16; group <= 64; group *= 2)
            for (uint32_t c = 0; c < sizeof(cols) / sizeof(cols[0]); c++)
                for (uint32_t r = c % 2; r < ROW_COUNTS; r += 2)
                    for (uint32_t tokens = 1 + r / 2 % 2; tokens <= TOKENS_MAX; tokens += 2)
                        check_shape(*state, (shape){int_formats[f], true, row_counts[r], cols[c],
                                                    group, tokens});
}

static void quantised_weights_with_float_rows_equal_the_reference(void **state)
{

    for (int f = 0; f < INT_FORMATS; f++)
        for (uint32_t group = 16; group <= 64; group *= 2)
            for (uint32_t cols = 1; cols <= 200; cols += 66)
                for (uint32_t r = 1; r < ROW_COUNTS; r += 3)
                    for (uint32_t tokens = 1; tokens <= TOKENS_MAX; tokens += 1 + r % 2)
                        check_shape(*state, (shape){int_formats[f], false, row_counts[r], cols,
                                                    group, tokens});
}

static void extreme_integers_do_not_saturate(void **state)
{
    bench *b = *state;

    for (int f = 0; f < INT_FORMATS; f++) {
        shape s = {int_formats[f], true, 16, 192, 64, 5};
        kn_qmat w;
        kn_rows x;
        int8_t *q;

        test_variant_select(KN_REF);
        x = prepare(b, &s, &w);
        /* Every byte of the weights 0xff, 0x7f, 0x80 in turn, but plain scales: any stored byte and
         * any activation, -128 too, must give the exact sum. */
        for (uint32_t g = 0; g < 3; g++) {
            static const uint8_t bytes[3] = {0xff, 0x7f, 0x80};
            size_t scales = kn_format_has_f32_scales(int_formats[f]) ? 64 : 32;
            size_t size = scales + (size_t)16 * 64 / (kn_format_is_q4(int_formats[f]) ? 2 : 1);

            memset((uint8_t *)b->tiles + g * size + scales, bytes[g], size - scales);
        }
        q = (int8_t *)b->quantised;
        for (uint32_t i = 0; i < 5 * 192; i++)
            q[i] = i < 192 ? -128 : i < 384 ? 127 : (int8_t)(i % 2 == 0 ? -128 : 127);
        kn_rows_sums(q, 5, 192, 64, (int32_t *)(void *)(uintptr_t)x.sum);
        check_variants(b, &x, &w, 0, 16);
    }
}

static void a_nan_scale_of_a_row_reaches_every_output_of_that_row_only(void **state)
{
    bench *b = *state;
    shape s = {KN_Q4, true, 32, 128, 64, 3};

    for (int v = KN_REF; v < KN_VARIANT_COUNT; v++) {
        kn_qmat w;
        kn_rows x;

        if (!test_variant_select(v)) continue;
        prepare(b, &s, &w);
        b->x[129 + 70] = INFINITY;
        x = kn_rows_quantise(b->x, 129, 3, 128, 64, b->quantised);
        multiply(b->y, &x, &w, 0, 32);
        for (uint32_t t = 0; t < 3; t++)
            for (uint32_t n = 0; n < 32; n++)
                assert_true(isnan(b->y[1 + t * Y_STRIDE + n]) == (t == 1));
    }
}

static void no_rows_and_no_outputs_write_nothing(void **state)
{
    bench *b = *state;
    shape s = {KN_F32, false, 20, 8, 16, 2};

    for (int v = KN_REF; v < KN_VARIANT_COUNT; v++) {
        kn_qmat w;
        kn_rows x;

        if (!test_variant_select(v)) continue;
        x = prepare(b, &s, &w);
        multiply(b->y, &x, &w, 16, 16);
        x.rows = 0;
        memset(b->expected, 0x55, sizeof(b->expected));
        assert_memory_equal(b->y, b->expected, sizeof(b->y));
        multiply(b->y, &x, &w, 0, 20);
        assert_memory_equal(b->y, b->expected, sizeof(b->y));
    }
}

/* The reference against a sum in f64 over the very weights and activations it sees. */
static void the_reference_is_the_product(void **state)
{
    static const shape shapes[] = {
        {KN_F32, false, 33, 200, 16, 3},   {KN_BF16, false, 33, 199, 16, 3},
        {KN_Q8, true, 33, 200, 16, 3},     {KN_Q4, true, 33, 192, 64, 3},
        {KN_Q8, false, 33, 160, 32, 3},    {KN_Q4, false, 33, 200, 16, 3},
        {KN_Q8F32, true, 33, 200, 16, 3},  {KN_Q4F32, true, 33, 192, 64, 3},
        {KN_Q8F32, false, 33, 160, 32, 3}, {KN_Q4F32, false, 33, 200, 16, 3},
    };
    bench *b = *state;
    float row[COLS_MAX];

    test_variant_select(KN_REF);
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        const shape *s = &shapes[i];
        uint32_t groups = kn_groups(s->cols, s->group);
        kn_qmat w;
        kn_rows x = prepare(b, s, &w);

        multiply(b->y, &x, &w, 0, s->rows);
        for (uint32_t n = 0; n < s->rows; n++) {
            kn_qmat_unpack_row(&w, n, row);
            for (uint32_t t = 0; t < s->tokens; t++) {
                double sum = 0, size = 0;

                for (uint32_t k = 0; k < s->cols; k++) {
                    double value = x.f32[t * x.f32_stride + k];

                    if (s->int_rows)
                        value = (double)x.q[(size_t)t * groups * s->group + k] *
                                x.scale[t * groups + k / s->group];
                    sum += value * row[k];
                    size += fabs(value * row[k]);
                }
                assert_true(fabs(b->y[1 + t * Y_STRIDE + n] - sum) <= size * 1e-6);
            }
        }
    }
}

static void a_product_over_two_groups_is_the_written_chain(void **state)
{
    /* Known answer: scales and integers chosen so that the chain's rounding shows. */
    bench *b = *state;
    float w_row[32], x_row[33];
    kn_qmat w = {.format = KN_Q8, .rows = 1, .cols = 32, .group = 16, .data = b->tiles};
    kn_rows x;
    float sum = 0, acc = 0;

    for (uint32_t k = 0; k < 32; k++) {
        w_row[k] = (float)((int)(k * 37 % 255) - 127) / (k < 16 ? 64.0F : 1000.0F);
        x_row[k] = (float)((int)(k * 91 % 255) - 127) / 33.0F;
    }
    test_variant_select(KN_REF);
    kn_qmat_pack(KN_Q8, 32, 16, w_row, 32, 1, b->tiles);
    x = kn_rows_quantise(x_row, 32, 1, 32, 16, b->quantised);
    for (uint32_t g = 0; g < 2; g++) {
        const uint8_t *at = (const uint8_t *)b->tiles + g * (32 + 256);
        uint16_t half;
        int32_t exact = 0;

        memcpy(&half, at, sizeof(half));
        for (uint32_t k = 0; k < 16; k++)
            exact += (int8_t)at[32 + k / 4 * 64 + k % 4] * x.q[16 * g + k];
        acc = fmaf(kn_f32_from_f16(half) * x.scale[g], (float)exact, acc);
    }
    kn_matmul(&sum, 1, &x, &w, 0, 1);
    assert_memory_equal(&sum, &acc, sizeof(sum));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(float_variants_equal_the_reference_over_odd_shapes),
        cmocka_unit_test(integer_variants_equal_the_reference_over_odd_shapes),
        cmocka_unit_test(quantised_weights_with_float_rows_equal_the_reference),
        cmocka_unit_test(extreme_integers_do_not_saturate),
        cmocka_unit_test(a_nan_scale_of_a_row_reaches_every_output_of_that_row_only),
        cmocka_unit_test(no_rows_and_no_outputs_write_nothing),
        cmocka_unit_test(the_reference_is_the_product),
        cmocka_unit_test(a_product_over_two_groups_is_the_written_chain),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
