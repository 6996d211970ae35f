/* measure_attention.c - the time of attention, of the indexer and of selection. */
#include "kernels/measure.h"

#include "base/check.h"
#include "kernels/attention.h"
#include "kernels/measure_pool.h"
#include "kernels/topk.h"

#include <stdlib.h>

enum {
    SPREAD = 3,          /* of SPREAD cached positions one is selected */
    PEAK_STEPS = 1 << 15 /* of the peak beside each pass: 50 to 100 us */
};

/* Marks in the time of a pass. */
enum { SCORES, SOFTMAX, VALUES, ALL, PARTS };

static void take_least(kn_measured *out, double start)
{
    double time = kn_thread_seconds() - start;

    if (time < out->seconds) out->seconds = time;
}

/* The pool filled with caches of `rows` rows each, like those of many layers: a pass takes the next
 * one, which has left the processor's caches since it was last read. */
typedef struct {
    kn_cache_view view;
    size_t cache_bytes, count;
} caches;

static caches fill_caches(kn_measure *measure, uint32_t rows, uint32_t width, bool bf16,
                          const float *values)
{
    char *pool = measure->pool.data;
    caches c = {
        .view = {.row_bytes = (size_t)width * (bf16 ? 2 : 4), .width = width, .bf16 = bf16}};

    c.cache_bytes = c.view.row_bytes * rows;
    c.count = measure->pool.bytes / c.cache_bytes;
    RT_ASSERT(c.count > 0);
    for (size_t i = 0; i < c.count * rows; i++)
        kn_cache_store(pool + i * c.view.row_bytes, bf16, values + i % 16, width);
    return c;
}

static kn_cache_view cache_at(const kn_measure *measure, const caches *c, size_t index)
{
    kn_cache_view view = c->view;

    view.rows = (const char *)measure->pool.data + index % c->count * c->cache_bytes;
    return view;
}

/* One query row; seconds by part. */
static void attention_pass(const kn_measure_attention_shape *shape, const kn_cache_view *cache,
                           const uint32_t *list, const float *q, float *score, float *sum, float *y,
                           double *seconds)
{
    const uint32_t heads = shape->heads, count = shape->positions;
    double mark[PARTS];

    mark[SCORES] = kn_thread_seconds();
    kn_attn_scores(score, q, cache->width, heads, cache, list, count, 0.05F);
    mark[SOFTMAX] = kn_thread_seconds();
    for (uint32_t h = 0; h < heads; h++)
        sum[h] = kn_softmax_exp(score + (size_t)h * count, count);
    mark[VALUES] = kn_thread_seconds();
    kn_attn_values(y, shape->rank, score, sum, heads, shape->rank, cache, list, count);
    mark[ALL] = kn_thread_seconds();
    seconds[ALL] = mark[ALL] - mark[SCORES];
    for (int i = 0; i < ALL; i++)
        seconds[i] = mark[i + 1] - mark[i];
}

static double peak_rate(void)
{
    kn_measured burst = kn_peak_burst(PEAK_STEPS);

    return burst.ops / burst.seconds;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *x, uint32_t n)
{
    qsort(x, n, sizeof(*x), compare);
    return x[n / 2];
}

rt_status kn_measure_attention(kn_measure *measure, const kn_measure_attention_shape *shape,
                               kn_measured_attention *out, rt_err *err)
{
    const uint32_t heads = shape->heads, count = shape->positions, passes = measure->spec.passes;
    const uint32_t width = shape->rank + shape->rope_dim;
    size_t score_floats = (size_t)heads * count, q_floats = (size_t)heads * width + 16;
    size_t out_floats = (size_t)heads * shape->rank, ratios = (size_t)PARTS * passes;
    kn_measured best[PARTS] = {{1e9, 0, 2.0 * heads * width * count},
                               {1e9, 0, 0},
                               {1e9, 0, 2.0 * heads * shape->rank * count},
                               {1e9, 0, 0}};
    rt_slab scratch = {0};
    caches all;
    double *ratio, peak;
    float *q, *score, *sum, *y;
    uint32_t *list;

    best[ALL].ops = best[SCORES].ops + best[VALUES].ops;
    RT_TRY(rt_slab_alloc(sizeof(double) * ratios +
                             sizeof(float) * (score_floats + q_floats + out_floats + heads + count),
                         &scratch, err));
    ratio = scratch.data;
    score = (float *)(void *)(ratio + ratios);
    q = score + score_floats;
    y = q + q_floats;
    sum = y + out_floats;
    list = (uint32_t *)(void *)(sum + heads);
    kn_measure_fill(q, q_floats, 1);
    for (uint32_t i = 0; i < count; i++)
        list[i] = i * SPREAD + i % 2;
    all = fill_caches(measure, count * SPREAD, width, shape->bf16, q);
    peak = peak_rate();
    for (uint32_t pass = 0; pass < passes; pass++) {
        kn_cache_view cache = cache_at(measure, &all, pass);
        double seconds[PARTS], after, beside;

        attention_pass(shape, &cache, list, q, score, sum, y, seconds);
        after = peak_rate();
        beside = after > peak ? after : peak;
        peak = after;
        for (uint32_t i = 0; i < PARTS; i++) {
            ratio[i * passes + pass] = best[i].ops / seconds[i] / beside;
            if (seconds[i] < best[i].seconds) best[i].seconds = seconds[i];
        }
    }
    *out = (kn_measured_attention){
        .scores = best[SCORES], .softmax = best[SOFTMAX], .values = best[VALUES], .all = best[ALL]};
    out->of_peak.scores = median(ratio + SCORES * passes, passes);
    out->of_peak.values = median(ratio + VALUES * passes, passes);
    out->of_peak.all = median(ratio + ALL * passes, passes);
    rt_slab_free(&scratch);
    return RT_OK;
}

rt_status kn_measure_index(kn_measure *measure, uint32_t heads, uint32_t dim, uint32_t count,
                           bool bf16, kn_measured *out, rt_err *err)
{
    size_t q_floats = (size_t)heads * dim + 16;
    kn_measured best = {1e9, (double)count * dim * (bf16 ? 2 : 4), 2.0 * heads * dim * count};
    rt_slab scratch = {0};
    caches all;
    float *q, *weight, *score;

    RT_TRY(rt_slab_alloc(sizeof(float) * (q_floats + heads + count), &scratch, err));
    q = scratch.data;
    weight = q + q_floats;
    score = weight + heads;
    kn_measure_fill(q, q_floats + heads, 1);
    all = fill_caches(measure, count, dim, bf16, q);
    for (uint32_t pass = 0; pass < measure->spec.passes; pass++) {
        kn_cache_view keys = cache_at(measure, &all, pass);
        double start = kn_thread_seconds();

        kn_index_scores(score, q, weight, heads, dim, &keys, count, 0.1F);
        take_least(&best, start);
    }
    rt_slab_free(&scratch);
    *out = best;
    return RT_OK;
}

rt_status kn_measure_topk(kn_measure *measure, uint32_t n, uint32_t k, kn_measured *out,
                          rt_err *err)
{
    kn_measured best = {1e9, (double)n * sizeof(float), 0};
    rt_slab scratch = {0};
    float *score;
    uint32_t *chosen, *spare;

    RT_TRY(rt_slab_alloc(sizeof(float) * 3 * n, &scratch, err));
    score = scratch.data;
    spare = (uint32_t *)(void *)(score + n);
    chosen = spare + n;
    kn_measure_fill(score, n, 4);
    for (uint32_t pass = 0; pass < measure->spec.passes; pass++) {
        double start = kn_thread_seconds();
        bool good = kn_topk(chosen, score, n, k, spare);

        RT_ASSERT(good);
        take_least(&best, start);
    }
    rt_slab_free(&scratch);
    *out = best;
    return RT_OK;
}
