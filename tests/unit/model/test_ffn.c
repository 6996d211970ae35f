/* test_ffn.c - a slice's network against the written formula, and the exact sum over any partition. */
#include "model/ffn.h"

#include "kernels/grid.h"
#include "kernels/mathf.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 3 };

/* An expert with known weights, packed whole. */
typedef struct {
    md_expert_layout layout;
    unsigned char *record;
    float *x; /* [ROWS][hidden] */
    void *x_quantised;
    kn_rows rows_int, rows_float;
} expert;

static float next_value(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(int32_t)*state * 0x1p-31f;
}

static void *aligned(size_t bytes)
{
    void *data = aligned_alloc(64, (bytes + 63) / 64 * 64);

    assert_non_null(data);
    memset(data, 0xa5, bytes);
    return data;
}

static void pack_random(const kn_qmat *mat, uint32_t *state)
{
    float *values = malloc((size_t)mat->rows * mat->cols * sizeof(*values));

    assert_non_null(values);
    for (size_t i = 0; i < (size_t)mat->rows * mat->cols; i++)
        values[i] = next_value(state) * 0.25f;
    kn_qmat_pack(mat->format, mat->cols, mat->group, values, mat->cols, mat->rows,
                 (void *)(uintptr_t)mat->data);
    free(values);
}

static void make_expert(expert *e, kn_format format, uint32_t hidden, uint32_t inter,
                        uint32_t width)
{
    uint32_t state = 7;

    md_expert_layout_init(&e->layout, format, hidden, inter, width);
    e->record = aligned(e->layout.record_bytes);
    for (uint32_t s = 0; s < e->layout.slices; s++) {
        md_slice slice = md_slice_view(&e->layout, s, e->record + md_slice_offset(&e->layout, s));

        pack_random(&slice.gate, &state);
        pack_random(&slice.up, &state);
        pack_random(&slice.down, &state);
    }
    e->x = aligned((size_t)ROWS * hidden * sizeof(float));
    for (size_t i = 0; i < (size_t)ROWS * hidden; i++)
        e->x[i] = next_value(&state) * 2.0f;
    e->x_quantised = aligned(kn_rows_quant_bytes(ROWS, hidden, e->layout.hidden_group));
    e->rows_float = kn_rows_float(e->x, hidden, ROWS, hidden);
    e->rows_int =
        kn_rows_quantise(e->x, hidden, ROWS, hidden, e->layout.hidden_group, e->x_quantised);
}

static void free_expert(expert *e)
{
    free(e->x_quantised);
    free(e->x);
    free(e->record);
}

static md_slice view(const expert *e, uint32_t s)
{
    return md_slice_view(&e->layout, s, e->record + md_slice_offset(&e->layout, s));
}

/* y [rows][hidden] of slice s. */
static float *run_slice(const expert *e, uint32_t s, const kn_rows *x)
{
    md_slice slice = view(e, s);
    float *y = aligned((size_t)x->rows * e->layout.hidden * sizeof(float));
    void *scratch = aligned(md_ffn_scratch_bytes(x->rows, slice.width, slice.down.group));

    md_ffn_slice(y, e->layout.hidden, x, &slice, scratch);
    free(scratch);
    return y;
}

/* The formula itself with float rows: one ascending fmaf chain per output. */
static void formula(const expert *e, uint32_t s, uint32_t row, float *y)
{
    md_slice slice = view(e, s);
    uint32_t hidden = e->layout.hidden, width = slice.width;
    const float *x = e->x + (size_t)row * hidden;
    float *h = malloc(width * sizeof(*h)), *w = malloc((hidden + width) * sizeof(*w));

    assert_true(h != NULL && w != NULL);
    for (uint32_t n = 0; n < width; n++) {
        float gate = 0.0f, up = 0.0f;

        kn_qmat_unpack_row(&slice.gate, n, w);
        for (uint32_t k = 0; k < hidden; k++)
            gate = fmaf(x[k], w[k], gate);
        kn_qmat_unpack_row(&slice.up, n, w);
        for (uint32_t k = 0; k < hidden; k++)
            up = fmaf(x[k], w[k], up);
        kn_silu_mul(&h[n], &gate, &up, 1);
    }
    for (uint32_t n = 0; n < hidden; n++) {
        y[n] = 0.0f;
        kn_qmat_unpack_row(&slice.down, n, w);
        for (uint32_t k = 0; k < width; k++)
            y[n] = fmaf(h[k], w[k], y[n]);
    }
    free(w);
    free(h);
}

static const kn_format formats[] = {KN_F32, KN_BF16, KN_Q8, KN_Q4, KN_Q8F32, KN_Q4F32};

static void float_rows_give_the_formula_bit_for_bit(void **state)
{
    (void)state;
    for (size_t f = 0; f < 6; f++) {
        expert e;
        float *expected;

        make_expert(&e, formats[f], 50, 40, 16);
        expected = aligned(50 * sizeof(float));
        for (uint32_t s = 0; s < e.layout.slices; s++) {
            float *y = run_slice(&e, s, &e.rows_float);

            for (uint32_t r = 0; r < ROWS; r++) {
                formula(&e, s, r, expected);
                assert_memory_equal(y + (size_t)r * 50, expected, 50 * sizeof(float));
            }
            free(y);
        }
        free(expected);
        free_expert(&e);
    }
}

static void int_rows_quantise_h_and_stay_near_the_formula(void **state)
{
    (void)state;
    for (size_t f = 2; f < 6; f++) {
        expert e;
        float expected[128], *y, error = 0.0f, size = 0.0f;

        make_expert(&e, formats[f], 128, 64, 32);
        y = run_slice(&e, 1, &e.rows_int);
        for (uint32_t r = 0; r < ROWS; r++) {
            formula(&e, 1, r, expected);
            for (uint32_t i = 0; i < 128; i++) {
                float difference = y[r * 128 + i] - expected[i];

                error += difference * difference;
                size += expected[i] * expected[i];
            }
        }
        /* Two roundings to 8 bits: near 1 %, and never nothing (h must have been rounded). */
        assert_true(error > 0.0f && error < 0.03f * 0.03f * size);
        free(y);
        free_expert(&e);
    }
}

static void rows_do_not_see_each_other(void **state)
{
    (void)state;
    for (size_t f = 0; f < 6; f++) {
        bool whole = kn_format_is_int(formats[f]);
        expert e;
        float *all;

        make_expert(&e, formats[f], 64, 32, 16);
        all = run_slice(&e, 0, whole ? &e.rows_int : &e.rows_float);
        for (uint32_t r = 0; r < ROWS; r++) {
            void *memory = aligned(kn_rows_quant_bytes(1, 64, 64));
            kn_rows one = whole ? kn_rows_quantise(e.x + r * 64, 64, 1, 64, 64, memory)
                                : kn_rows_float(e.x + r * 64, 64, 1, 64);
            float *y = run_slice(&e, 0, &one);

            assert_memory_equal(y, all + r * 64, 64 * sizeof(float));
            free(y);
            free(memory);
        }
        free(all);
        free_expert(&e);
    }
}

static void y_beyond_hidden_is_left_alone(void **state)
{
    expert e;
    float y[ROWS * 60];
    md_slice slice;
    void *scratch;

    (void)state;
    make_expert(&e, KN_Q8, 50, 40, 16);
    slice = view(&e, 2);
    for (size_t i = 0; i < ROWS * 60; i++)
        y[i] = 1234.0f;
    scratch = aligned(md_ffn_scratch_bytes(ROWS, slice.width, slice.down.group));
    md_ffn_slice(y, 60, &e.rows_int, &slice, scratch);
    for (uint32_t r = 0; r < ROWS; r++) {
        assert_true(y[r * 60 + 49] != 1234.0f);
        for (uint32_t i = 50; i < 60; i++)
            assert_true(y[r * 60 + i] == 1234.0f);
    }
    free(scratch);
    free_expert(&e);
}

/* Partial sums of the slices in `mask` of row r, on the grid. */
static void add_part(int32_t *acc, const expert *e, uint32_t mask, uint32_t r)
{
    const kn_rows *x = kn_format_is_int(e->layout.format) ? &e->rows_int : &e->rows_float;

    for (uint32_t s = 0; s < e->layout.slices; s++) {
        float *y;

        if ((mask >> s & 1) == 0) continue;
        y = run_slice(e, s, x);
        assert_int_equal(kn_grid_add(acc, y + (size_t)r * e->layout.hidden, 0.37f * kn_exp2i(13),
                                     e->layout.hidden),
                         KN_GRID_NARROW);
        free(y);
    }
}

static void sum_over_slices_is_the_same_for_every_partition(void **state)
{
    (void)state;
    for (size_t f = 0; f < 6; f++) {
        int32_t whole[64] = {0};
        expert e;

        make_expert(&e, formats[f], 64, 128, 16); /* 8 slices */
        assert_int_equal(e.layout.slices, 8);
        add_part(whole, &e, 0xff, 1);
        for (uint32_t mask = 0; mask < 256; mask += 15) {
            int32_t mine[64] = {0}, theirs[64] = {0};

            add_part(mine, &e, mask, 1);
            add_part(theirs, &e, ~mask & 0xff, 1);
            kn_grid_merge(theirs, mine, 64);
            assert_memory_equal(theirs, whole, sizeof(whole));
        }
        free_expert(&e);
    }
}

static void not_a_number_reaches_the_output(void **state)
{
    expert e;
    float *y;

    (void)state;
    make_expert(&e, KN_Q4, 64, 32, 16);
    e.x[64 + 5] = NAN;
    e.rows_int = kn_rows_quantise(e.x, 64, ROWS, 64, 64, e.x_quantised);
    y = run_slice(&e, 0, &e.rows_int);
    assert_true(isnan(y[64]));
    assert_false(isnan(y[0]) || isnan(y[128]));
    free(y);
    free_expert(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(float_rows_give_the_formula_bit_for_bit),
        cmocka_unit_test(int_rows_quantise_h_and_stay_near_the_formula),
        cmocka_unit_test(rows_do_not_see_each_other),
        cmocka_unit_test(y_beyond_hidden_is_left_alone),
        cmocka_unit_test(sum_over_slices_is_the_same_for_every_partition),
        cmocka_unit_test(not_a_number_reaches_the_output),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
