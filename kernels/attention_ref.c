/* attention_ref.c - attention over a list of cached rows in plain C. */
#include "kernels/ops.h"

#include "kernels/mathf.h"

#include <math.h>
#include <string.h>

static float row_value(const kn_cache_view *cache, uint32_t row, uint32_t k)
{
    const char *at = (const char *)cache->rows + row * cache->row_bytes;
    uint16_t b;
    float value;

    if (cache->bf16) {
        memcpy(&b, at + (size_t)k * 2, sizeof(b));
        return kn_f32_from_bf16(b);
    }
    memcpy(&value, at + (size_t)k * 4, sizeof(value));
    return value;
}

void kn_ref_attn_scores(float *score, const float *q, size_t q_stride, uint32_t heads,
                        const kn_cache_view *cache, const uint32_t *list, uint32_t count,
                        float scale)
{
    for (uint32_t h = 0; h < heads; h++) {
        for (uint32_t i = 0; i < count; i++) {
            float acc = 0;

            for (uint32_t k = 0; k < cache->width; k++)
                acc = fmaf(q[h * q_stride + k], row_value(cache, list[i], k), acc);
            score[(size_t)h * count + i] = acc * scale;
        }
    }
}

/* A NaN does not become the maximum, but its own exp is NaN and so is the sum. Equal zeros of
 * either sign give the same differences, so the maximum has no order. */
float kn_ref_softmax_exp(float *score, uint32_t count)
{
    float best = -INFINITY;

    for (uint32_t i = 0; i < count; i++)
        if (score[i] > best) best = score[i];
    for (uint32_t i = 0; i < count; i++)
        score[i] = kn_expf(score[i] - best);
    return kn_ref_sum(score, count);
}

void kn_ref_attn_values(float *out, size_t out_stride, const float *e, const float *sum,
                        uint32_t heads, uint32_t rank, const kn_cache_view *cache,
                        const uint32_t *list, uint32_t count)
{
    for (uint32_t h = 0; h < heads; h++) {
        for (uint32_t r = 0; r < rank; r++) {
            float acc = 0;

            for (uint32_t i = 0; i < count; i++)
                acc = fmaf(e[(size_t)h * count + i], row_value(cache, list[i], r), acc);
            out[h * out_stride + r] = acc / sum[h];
        }
    }
}

void kn_ref_index_scores(float *score, const float *q, const float *weight, uint32_t heads,
                         uint32_t dim, const kn_cache_view *keys, uint32_t count, float key_scale)
{
    for (uint32_t t = 0; t < count; t++) {
        float total = 0;

        for (uint32_t h = 0; h < heads; h++) {
            float acc = 0;

            for (uint32_t k = 0; k < dim; k++)
                acc = fmaf(q[(size_t)h * dim + k], row_value(keys, t, k), acc);
            acc *= key_scale;
            if (acc < 0) acc = 0; /* NaN stays; -0 adds what +0 adds */
            total = fmaf(weight[h], acc, total);
        }
        score[t] = total;
    }
}

void kn_ref_cache_store(void *row, bool bf16, const float *values, uint32_t count)
{
    char *at = row;

    if (!bf16) {
        memcpy(row, values, (size_t)count * sizeof(float));
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        uint16_t b = kn_bf16_from_f32(values[i]);

        memcpy(at + (size_t)i * 2, &b, sizeof(b));
    }
}

void kn_ref_cache_load(float *values, bool bf16, const void *row, uint32_t count)
{
    const char *at = row;

    if (!bf16) {
        memcpy(values, row, (size_t)count * sizeof(float));
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        uint16_t b;

        memcpy(&b, at + (size_t)i * 2, sizeof(b));
        values[i] = kn_f32_from_bf16(b);
    }
}
