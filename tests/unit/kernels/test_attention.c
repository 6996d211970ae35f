/* Scores, softmax, values and index scores over lists of cached rows. */
#include "kernels/attention.h"

#include "kernels/mathf.h"
#include "kernels/norm.h"
#include "kernels/quant.h"
#include "tests/support/numbers.h"
#include "tests/support/variants.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { POSITIONS = 150, WIDTH_MAX = 600, HEADS_MAX = 15, PAD = 3 };

typedef struct {
    float *values; /* [POSITIONS][WIDTH_MAX + PAD] as stored, rounded */
    void *rows;    /* the same in the cache's format */
    float *q, *weight;
    float *found, *expected; /* [HEADS_MAX][max(POSITIONS, WIDTH_MAX) + PAD] */
    size_t out_floats;
    uint32_t list[POSITIONS];
} world;

static int setup(void **state)
{
    world *w = calloc(1, sizeof(*w));

    assert_non_null(w);
    w->out_floats = (size_t)HEADS_MAX * (WIDTH_MAX + PAD);
    w->values = calloc((size_t)POSITIONS * (WIDTH_MAX + PAD), sizeof(float));
    w->rows = calloc((size_t)POSITIONS * (WIDTH_MAX + PAD), sizeof(float));
    w->q = calloc(w->out_floats, sizeof(float));
    w->weight = calloc(HEADS_MAX, sizeof(float));
    w->found = calloc(w->out_floats, sizeof(float));
    w->expected = calloc(w->out_floats, sizeof(float));
    assert_true(w->values != NULL && w->rows != NULL && w->q != NULL && w->weight != NULL &&
                w->found != NULL && w->expected != NULL);
    *state = w;
    return 0;
}

static int teardown(void **state)
{
    world *w = *state;

    free(w->values);
    free(w->rows);
    free(w->q);
    free(w->weight);
    free(w->found);
    free(w->expected);
    free(w);
    return 0;
}

/* A cache of random rows of `width`, q of width + PAD per head, and a list that skips some. */
static kn_cache_view prepare(world *w, uint32_t width, bool bf16, uint64_t seed)
{
    test_random random = {seed};
    kn_cache_view view = {
        .rows = w->rows, .row_bytes = (width + PAD) * (bf16 ? 2 : 4), .width = width, .bf16 = bf16};

    test_random_fill(&random, w->values, (size_t)POSITIONS * width, 1);
    for (uint32_t t = 0; t < POSITIONS; t++) {
        char *row = (char *)w->rows + t * view.row_bytes;

        kn_cache_store(row, bf16, w->values + (size_t)t * width, width);
        kn_cache_load(w->values + (size_t)t * width, bf16, row, width);
    }
    test_random_fill(&random, w->q, (size_t)HEADS_MAX * (width + PAD), 0.3F);
    test_random_fill(&random, w->weight, HEADS_MAX, 0.5F);
    for (uint32_t i = 0, at = 0; i < POSITIONS; i++) {
        at += seed % 2 == 0 && i < 20 ? test_random_below(&random, 3) : 0;
        w->list[i] = at < POSITIONS ? at : POSITIONS - 1;
        at++;
    }
    return view;
}

static void clear(world *w, float *out)
{
    memset(out, 0x55, w->out_floats * sizeof(float));
}

static void rows_round_once_when_stored(void **state)
{
    float values[19], back[19];
    uint16_t row[20];
    test_random random = {1};

    (void)state;
    for (int v = 0; v < KN_VARIANT_COUNT; v++) {
        if (!test_variant_select(v)) continue;
        test_random_fill(&random, values, 19, 1);
        values[3] = NAN;
        values[4] = -INFINITY;
        values[5] = 3.4028234e38F;
        values[17] = NAN;
        row[19] = 0x5555;
        for (uint32_t n = 0; n <= 19; n++) {
            kn_cache_store(row, true, values, n);
            kn_cache_load(back, true, row, n);
            for (uint32_t i = 0; i < n; i++) {
                float expected = kn_f32_from_bf16(kn_bf16_from_f32(values[i]));

                assert_int_equal(row[i], kn_bf16_from_f32(values[i]));
                assert_true(test_floats_equal("row", &back[i], &expected, 1));
            }
        }
        assert_int_equal(row[19], 0x5555);
        kn_cache_store(back, false, values, 19);
        assert_memory_equal(back, values, sizeof(values));
    }
}

static void the_references_are_the_formulas(void **state)
{
    world *w = *state;
    kn_cache_view view = prepare(w, 80, true, 2);
    float sum[4];

    test_variant_select(KN_REF);
    kn_attn_scores(w->found, w->q, 83, 4, &view, w->list, 100, 0.25F);
    for (uint32_t h = 0; h < 4; h++) {
        double exact[100], total = 0, best = -INFINITY;

        for (uint32_t i = 0; i < 100; i++) {
            exact[i] = 0;
            for (uint32_t k = 0; k < 80; k++)
                exact[i] += (double)w->q[h * 83 + k] * w->values[w->list[i] * 80 + k];
            exact[i] *= 0.25;
            assert_true(fabs(w->found[h * 100 + i] - exact[i]) < 1e-5);
            best = fmax(best, exact[i]);
        }
        sum[h] = kn_softmax_exp(w->found + h * 100, 100);
        for (uint32_t i = 0; i < 100; i++)
            total += exp(exact[i] - best);
        assert_true(fabs(sum[h] / total - 1) < 1e-5);
        kn_attn_values(w->expected + h * 80, 80, w->found + h * 100, &sum[h], 1, 64, &view, w->list,
                       100);
        for (uint32_t r = 0; r < 64; r++) {
            double value = 0;

            for (uint32_t i = 0; i < 100; i++)
                value += exp(exact[i] - best) / total * w->values[w->list[i] * 80 + r];
            assert_true(fabs(w->expected[h * 80 + r] - value) < 1e-5);
        }
    }
    kn_index_scores(w->found, w->q, w->weight, 4, 80, &view, 100, 0.125F);
    for (uint32_t t = 0; t < 100; t++) {
        double total = 0;

        for (uint32_t h = 0; h < 4; h++) {
            double dot = 0;

            for (uint32_t k = 0; k < 80; k++)
                dot += (double)w->q[h * 80 + k] * w->values[t * 80 + k];
            total += w->weight[h] * fmax(dot * 0.125, 0);
        }
        assert_true(fabs(w->found[t] - total) < 1e-5);
    }
}

static void score_variants_equal_the_reference_over_odd_shapes(void **state)
{
    static const uint32_t widths[] = {1, 7, 8, 17, 143, 144, 145, 300, 576};
    static const uint32_t counts[] = {0, 1, 7, 8, 9, 15, 16, 17, 33, 47, 48, 49, 97, POSITIONS};
    world *w = *state;

    for (size_t a = 0; a < sizeof(widths) / sizeof(widths[0]); a++) {
        for (int bf16 = 0; bf16 < 2; bf16++) {
            kn_cache_view view = prepare(w, widths[a], bf16 != 0, a + 2);

            for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
                uint32_t heads = 1 + (uint32_t)(a + 4 * c) % HEADS_MAX;

                test_variant_select(KN_REF);
                clear(w, w->expected);
                kn_attn_scores(w->expected, w->q, widths[a] + PAD, heads, &view, w->list, counts[c],
                               0.0625F);
                for (int v = 1; v < KN_VARIANT_COUNT; v++) {
                    if (!test_variant_select(v)) continue;
                    clear(w, w->found);
                    kn_attn_scores(w->found, w->q, widths[a] + PAD, heads, &view, w->list,
                                   counts[c], 0.0625F);
                    assert_true(test_floats_equal("scores", w->found, w->expected, w->out_floats));
                }
            }
        }
    }
}

static void value_variants_equal_the_reference_over_odd_shapes(void **state)
{
    static const uint32_t ranks[] = {1, 8, 15, 16, 17, 47, 49, 191, 192, 193, 512};
    static const uint32_t counts[] = {0, 1, 5, 31, 32, 33, 70, POSITIONS};
    world *w = *state;
    float *e = calloc(HEADS_MAX * POSITIONS, sizeof(float)), sum[HEADS_MAX];
    test_random random = {5};

    assert_non_null(e);
    for (size_t a = 0; a < sizeof(ranks) / sizeof(ranks[0]); a++) {
        for (int bf16 = 0; bf16 < 2; bf16++) {
            kn_cache_view view = prepare(w, ranks[a] + 20, bf16 != 0, a + 2);

            for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
                uint32_t heads = 1 + (uint32_t)(a + 4 * c) % HEADS_MAX;

                for (uint32_t i = 0; i < heads * counts[c]; i++)
                    e[i] = kn_expf(-fabsf(test_random_normal(&random)) * 10);
                for (uint32_t h = 0; h < heads; h++)
                    sum[h] = kn_sum(e + (size_t)h * counts[c], counts[c]);
                test_variant_select(KN_REF);
                clear(w, w->expected);
                kn_attn_values(w->expected, ranks[a] + PAD, e, sum, heads, ranks[a], &view, w->list,
                               counts[c]);
                for (int v = 1; v < KN_VARIANT_COUNT; v++) {
                    if (!test_variant_select(v)) continue;
                    clear(w, w->found);
                    kn_attn_values(w->found, ranks[a] + PAD, e, sum, heads, ranks[a], &view,
                                   w->list, counts[c]);
                    assert_true(test_floats_equal("values", w->found, w->expected, w->out_floats));
                }
            }
        }
    }
    free(e);
}

static void index_variants_equal_the_reference_over_odd_shapes(void **state)
{
    static const uint32_t dims[] = {1, 6, 8, 33, 128, 255, 256, 257, 300};
    static const uint32_t counts[] = {0, 1, 8, 15, 16, 17, 48, 49, POSITIONS};
    world *w = *state;

    for (size_t a = 0; a < sizeof(dims) / sizeof(dims[0]); a++) {
        for (int bf16 = 0; bf16 < 2; bf16++) {
            kn_cache_view view = prepare(w, dims[a], bf16 != 0, a + 2);

            for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
                uint32_t heads = 1 + (uint32_t)(a + 4 * c) % HEADS_MAX;

                if (c == 3) w->q[2] = NAN; /* and -0 scores below: zero keys */
                test_variant_select(KN_REF);
                clear(w, w->expected);
                kn_index_scores(w->expected, w->q, w->weight, heads, dims[a], &view, counts[c],
                                c == 4 ? -0.0F : 0.088F);
                for (int v = 1; v < KN_VARIANT_COUNT; v++) {
                    if (!test_variant_select(v)) continue;
                    clear(w, w->found);
                    kn_index_scores(w->found, w->q, w->weight, heads, dims[a], &view, counts[c],
                                    c == 4 ? -0.0F : 0.088F);
                    assert_true(test_floats_equal("index", w->found, w->expected, w->out_floats));
                }
                w->q[2] = 0.5F;
            }
        }
    }
}

static void softmax_variants_equal_the_reference_at_every_length(void **state)
{
    world *w = *state;
    test_random random = {9};

    for (uint32_t n = 0; n <= 300; n++) {
        float expected, found;

        test_random_fill(&random, w->q, n, 20);
        if (n > 30 && n % 4 == 0) w->q[n / 2] = -INFINITY;
        test_variant_select(KN_REF);
        clear(w, w->expected);
        memcpy(w->expected, w->q, n * sizeof(float));
        expected = kn_softmax_exp(w->expected, n);
        assert_true(test_floats_equal("sum", &expected, &(float){kn_sum(w->expected, n)}, 1));
        for (int v = 1; v < KN_VARIANT_COUNT; v++) {
            if (!test_variant_select(v)) continue;
            clear(w, w->found);
            memcpy(w->found, w->q, n * sizeof(float));
            found = kn_softmax_exp(w->found, n);
            assert_true(test_floats_equal("sum", &found, &expected, 1));
            assert_true(test_floats_equal("exp", w->found, w->expected, w->out_floats));
        }
    }
}

static void a_nan_or_infinite_score_gives_a_nan_sum(void **state)
{
    static const float broken[] = {NAN, -NAN, INFINITY};
    float score[45];

    (void)state;
    for (int v = 0; v < KN_VARIANT_COUNT; v++) {
        if (!test_variant_select(v)) continue;
        for (int b = 0; b < 3; b++) {
            for (int at = 0; at < 45; at++) {
                for (int i = 0; i < 45; i++)
                    score[i] = (float)i;
                score[at] = broken[b];
                assert_true(isnan(kn_softmax_exp(score, 45)));
            }
        }
        for (int i = 0; i < 45; i++)
            score[i] = -INFINITY;
        assert_true(isnan(kn_softmax_exp(score, 45)));
        score[0] = -5;
        assert_true(kn_softmax_exp(score, 1) == 1 && score[0] == 1);
        assert_true(kn_softmax_exp(score, 0) == 0);
    }
}

static void a_head_does_not_depend_on_its_neighbours_or_the_tail(void **state)
{
    world *w = *state;
    kn_cache_view view = prepare(w, 100, false, 3);
    float alone[POSITIONS];

    for (int v = 0; v < KN_VARIANT_COUNT; v++) {
        if (!test_variant_select(v)) continue;
        kn_attn_scores(w->found, w->q, 103, 9, &view, w->list, 61, 0.1F);
        for (uint32_t h = 0; h < 9; h++) {
            kn_attn_scores(alone, w->q + h * 103, 103, 1, &view, w->list, 61, 0.1F);
            assert_memory_equal(alone, w->found + h * 61, 61 * sizeof(float));
            for (uint32_t i = 0; i < 61; i += 13) {
                kn_attn_scores(alone, w->q + h * 103, 103, 1, &view, w->list + i, 1, 0.1F);
                assert_memory_equal(alone, w->found + h * 61 + i, sizeof(float));
            }
        }
    }
}

/* Scores, softmax and values of more heads and wider rows than one pass of any variant takes. */
static void many_heads_and_wide_rows_equal_the_reference(void **state)
{
    enum { HEADS = 133, WIDTH = 661, COUNT = 101, STRIDE = WIDTH + 2 };
    static const struct {
        uint32_t heads, width, rank, count;
    } cases[] = {
        {16, 576, 512, 96},  {17, 577, 513, 97}, {31, 144, 130, 24}, {32, 288, 256, 48},
        {33, 80, 64, 47},    {47, 575, 511, 95}, {48, 145, 144, 49}, {64, 576, 512, COUNT},
        {65, 576, 520, 100}, {72, 640, 640, 6},  {80, 641, 641, 13}, {HEADS, WIDTH, WIDTH, 65},
    };
    size_t score_floats = (size_t)HEADS * COUNT, out_floats = (size_t)HEADS * STRIDE;
    float *q = calloc(out_floats, sizeof(float)), *rows = calloc(COUNT * WIDTH, sizeof(float));
    float *score = calloc(2 * score_floats, sizeof(float));
    float *out = calloc(2 * out_floats, sizeof(float)), sum[2][HEADS];
    uint32_t list[COUNT];
    test_random random = {7};

    (void)state;
    assert_true(q != NULL && rows != NULL && score != NULL && out != NULL);
    test_random_fill(&random, q, out_floats, 0.3F);
    for (uint32_t i = 0; i < COUNT; i++)
        list[i] = COUNT - 1 - i; /* any order will do */
    for (size_t c = 0; c < 2 * sizeof(cases) / sizeof(cases[0]); c++) {
        uint32_t heads = cases[c / 2].heads, count = cases[c / 2].count;
        kn_cache_view view = {.rows = rows, .width = cases[c / 2].width, .bf16 = c % 2 != 0};

        view.row_bytes = view.width * (view.bf16 ? 2 : sizeof(float));
        for (uint32_t i = 0; i < COUNT; i++)
            kn_cache_store((char *)rows + i * view.row_bytes, view.bf16, q + i * 3, view.width);
        for (int v = 0; v < KN_VARIANT_COUNT; v++) {
            float *s = score + (v == KN_REF ? 0 : score_floats);
            float *o = out + (v == KN_REF ? 0 : out_floats), *of = sum[v != KN_REF];

            if (!test_variant_select(v)) continue;
            memset(s, 0x55, score_floats * sizeof(float));
            memset(o, 0x55, out_floats * sizeof(float));
            kn_attn_scores(s, q, STRIDE, heads, &view, list, count, 0.05F);
            for (uint32_t h = 0; h < heads; h++)
                of[h] = kn_softmax_exp(s + (size_t)h * count, count);
            kn_attn_values(o, STRIDE, s, of, heads, cases[c / 2].rank, &view, list, count);
            if (v == KN_REF) continue;
            assert_true(test_floats_equal("exp", s, score, score_floats));
            assert_true(test_floats_equal("sum", of, sum[0], heads));
            assert_true(test_floats_equal("values", o, out, out_floats));
        }
    }
    free(q);
    free(rows);
    free(score);
    free(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_round_once_when_stored),
        cmocka_unit_test(the_references_are_the_formulas),
        cmocka_unit_test(score_variants_equal_the_reference_over_odd_shapes),
        cmocka_unit_test(value_variants_equal_the_reference_over_odd_shapes),
        cmocka_unit_test(index_variants_equal_the_reference_over_odd_shapes),
        cmocka_unit_test(many_heads_and_wide_rows_equal_the_reference),
        cmocka_unit_test(softmax_variants_equal_the_reference_at_every_length),
        cmocka_unit_test(a_nan_or_infinite_score_gives_a_nan_sum),
        cmocka_unit_test(a_head_does_not_depend_on_its_neighbours_or_the_tail),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
