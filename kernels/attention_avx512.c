/* attention_avx512.c - the inner loops of attention with AVX-512: a block of 16 positions, or 16
 * columns, is one register, and eight heads keep the multipliers busy. */
#include "kernels/attention_blocks.h"

#if KN_X86

#include <immintrin.h>

enum { HEADS = 8 };

KN_AVX512_INLINE __mmask16 mask_of(uint32_t left)
{
    return (__mmask16)(left >= 16 ? 0xffffU : (1U << left) - 1);
}

/* Continues `heads` chains, their multipliers `stride` apart, over `steps` rows of 16 values that
 * lie row_floats apart. */
KN_AVX512_INLINE void chains(__m512 *acc, const float *x, size_t stride, const float *rows,
                             size_t row_floats, uint32_t steps, int heads)
{
    for (uint32_t k = 0; k < steps; k++) {
        __m512 v = _mm512_loadu_ps(rows + k * row_floats);

        KN_UNROLL
        for (int h = 0; h < heads; h++)
            acc[h] = _mm512_fmadd_ps(_mm512_set1_ps(x[(size_t)h * stride + k]), v, acc[h]);
    }
}

KN_AVX512_INLINE void score_heads(float *score, const float *q, size_t q_stride,
                                  const float (*block)[KN_ATTN_BLOCK], const kn_score_step *step,
                                  int heads)
{
    const __mmask16 mask = mask_of(step->left);
    const __m512 scale = _mm512_set1_ps(step->scale);
    __m512 acc[HEADS];

    KN_UNROLL
    for (int h = 0; h < heads; h++)
        acc[h] = step->first ? _mm512_setzero_ps()
                             : _mm512_maskz_loadu_ps(mask, score + (size_t)h * step->count);
    chains(acc, q, q_stride, block[0], KN_ATTN_BLOCK, step->width, heads);
    KN_UNROLL
    for (int h = 0; h < heads; h++) {
        if (step->last) acc[h] = _mm512_mul_ps(acc[h], scale);
        _mm512_mask_storeu_ps(score + (size_t)h * step->count, mask, acc[h]);
    }
}

KN_AVX512_FN static void score_leaf(float *score, const float *q, size_t q_stride, uint32_t heads,
                                    const float (*block)[KN_ATTN_BLOCK], const kn_score_step *step)
{
    uint32_t h = 0;

    for (; h + HEADS <= heads; h += HEADS)
        score_heads(score + (size_t)h * step->count, q + h * q_stride, q_stride, block, step,
                    HEADS);
    for (; h < heads; h++)
        score_heads(score + (size_t)h * step->count, q + h * q_stride, q_stride, block, step, 1);
}

KN_AVX512_INLINE void value_heads(float *out, size_t out_stride, const float *e, size_t e_stride,
                                  const float *block, uint32_t rows, uint32_t left, int heads)
{
    const __mmask16 mask = mask_of(left);
    __m512 acc[HEADS];

    KN_UNROLL
    for (int h = 0; h < heads; h++)
        acc[h] = _mm512_maskz_loadu_ps(mask, out + (size_t)h * out_stride);
    chains(acc, e, e_stride, block, KN_VALUE_WIDTH, rows, heads);
    KN_UNROLL
    for (int h = 0; h < heads; h++)
        _mm512_mask_storeu_ps(out + (size_t)h * out_stride, mask, acc[h]);
}

KN_AVX512_FN static void value_leaf(float *out, size_t out_stride, const float *e, size_t e_stride,
                                    uint32_t heads, const float (*block)[KN_VALUE_WIDTH],
                                    uint32_t rows, uint32_t width)
{
    for (uint32_t h = 0; h < heads;) {
        uint32_t step = h + HEADS <= heads ? HEADS : 1;

        for (uint32_t r = 0; r < width; r += 16) {
            float *to = out + h * out_stride + r;

            if (step == HEADS)
                value_heads(to, out_stride, e + h * e_stride, e_stride, &block[0][r], rows,
                            width - r, HEADS);
            else
                value_heads(to, out_stride, e + h * e_stride, e_stride, &block[0][r], rows,
                            width - r, 1);
        }
        h += step;
    }
}

KN_AVX512_INLINE __m512 index_heads(__m512 total, const float *q, const float *weight,
                                    const float (*block)[KN_ATTN_BLOCK], uint32_t dim,
                                    float key_scale, int heads)
{
    const __m512 scale = _mm512_set1_ps(key_scale), zero = _mm512_setzero_ps();
    __m512 acc[HEADS];

    KN_UNROLL
    for (int h = 0; h < heads; h++)
        acc[h] = zero;
    chains(acc, q, dim, block[0], KN_ATTN_BLOCK, dim, heads);
    KN_UNROLL
    for (int h = 0; h < heads; h++) {
        /* max_ps gives its second operand when that is NaN: a NaN stays. */
        __m512 relu = _mm512_max_ps(zero, _mm512_mul_ps(acc[h], scale));

        total = _mm512_fmadd_ps(_mm512_set1_ps(weight[h]), relu, total);
    }
    return total;
}

KN_AVX512_FN static void index_leaf(float *total, const float *q, const float *weight,
                                    uint32_t heads, uint32_t dim,
                                    const float (*block)[KN_ATTN_BLOCK], float key_scale)
{
    __m512 sum = _mm512_setzero_ps();
    uint32_t h = 0;

    for (; h + HEADS <= heads; h += HEADS)
        sum = index_heads(sum, q + (size_t)h * dim, weight + h, block, dim, key_scale, HEADS);
    for (; h < heads; h++)
        sum = index_heads(sum, q + (size_t)h * dim, weight + h, block, dim, key_scale, 1);
    _mm512_storeu_ps(total, sum);
}

static const kn_attn_leaves avx512_leaves = {score_leaf, value_leaf, index_leaf};

void kn_avx512_attn_scores(float *score, const float *q, size_t q_stride, uint32_t heads,
                           const kn_cache_view *cache, const uint32_t *list, uint32_t count,
                           float scale)
{
    kn_attn_scores_blocked(&avx512_leaves, score, q, q_stride, heads, cache, list, count, scale);
}

void kn_avx512_attn_values(float *out, size_t out_stride, const float *e, const float *sum,
                           uint32_t heads, uint32_t rank, const kn_cache_view *cache,
                           const uint32_t *list, uint32_t count)
{
    kn_attn_values_blocked(&avx512_leaves, out, out_stride, e, sum, heads, rank, cache, list,
                           count);
}

void kn_avx512_index_scores(float *score, const float *q, const float *weight, uint32_t heads,
                            uint32_t dim, const kn_cache_view *keys, uint32_t count,
                            float key_scale)
{
    kn_index_scores_blocked(&avx512_leaves, score, q, weight, heads, dim, keys, count, key_scale);
}

#endif
