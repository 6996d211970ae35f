/* attention_avx2.c - the inner loops of attention and index scores with AVX2, and softmax.
 *
 * Six heads times 16 lanes are twelve chains of fused adds: ten keep both multipliers busy, and
 * sixteen registers hold no more than twelve beside their operands. */
#include "kernels/attention_blocks.h"

#include "kernels/vec_avx2.h"

#include <string.h>

#if KN_X86

enum { HEADS = 6, LANES = 16 };

/* Continues `heads` chains, their multipliers `stride` apart, over `steps` rows of 16 values that
 * lie row_floats apart. */
KN_AVX2_INLINE void chains(__m256 (*acc)[2], const float *x, size_t stride, const float *rows,
                           size_t row_floats, uint32_t steps, kn_ahead *ahead, int heads)
{
    for (uint32_t k = 0; k < steps;) {
        uint32_t end = steps - k < KN_AHEAD_STEPS ? steps : k + KN_AHEAD_STEPS;

        kn_ahead_ask(ahead);
        for (; k < end; k++, rows += row_floats) {
            __m256 v0 = _mm256_loadu_ps(rows), v1 = _mm256_loadu_ps(rows + 8);

            KN_UNROLL
            for (int h = 0; h < heads; h++) {
                __m256 b = _mm256_broadcast_ss(x + (size_t)h * stride + k);

                acc[h][0] = _mm256_fmadd_ps(b, v0, acc[h][0]);
                acc[h][1] = _mm256_fmadd_ps(b, v1, acc[h][1]);
            }
        }
    }
}

/* Loads and stores up to 16 lanes of `heads` rows. */
KN_AVX2_INLINE void load_rows(__m256 (*acc)[2], const float *at, size_t stride, size_t left,
                              int heads)
{
    KN_UNROLL
    for (int h = 0; h < heads; h++, at += stride) {
        acc[h][0] = kn_load8(at, left);
        acc[h][1] = left > 8 ? kn_load8(at + 8, left - 8) : _mm256_setzero_ps();
    }
}

KN_AVX2_INLINE void store_rows(float *at, size_t stride, size_t left, __m256 (*acc)[2], int heads)
{
    KN_UNROLL
    for (int h = 0; h < heads; h++, at += stride) {
        kn_store8(at, left, acc[h][0]);
        if (left > 8) kn_store8(at + 8, left - 8, acc[h][1]);
    }
}

/* One step of heads over 16 positions. */
KN_AVX2_INLINE void score_heads(float *score, const float *q, size_t q_stride, const float *block,
                                size_t left, const kn_score_step *step, int heads)
{
    const __m256 scale = _mm256_set1_ps(step->scale);
    __m256 acc[HEADS][2];

    if (step->first) {
        KN_UNROLL
        for (int h = 0; h < heads; h++)
            acc[h][0] = acc[h][1] = _mm256_setzero_ps();
    } else {
        load_rows(acc, score, step->count, left, heads);
    }
    chains(acc, q, q_stride, block, KN_ATTN_BLOCK, step->width, step->ahead, heads);
    if (step->last) {
        KN_UNROLL
        for (int h = 0; h < heads; h++) {
            acc[h][0] = _mm256_mul_ps(acc[h][0], scale);
            acc[h][1] = _mm256_mul_ps(acc[h][1], scale);
        }
    }
    store_rows(score, step->count, left, acc, heads);
}

KN_AVX2_FN static void score_leaf(float *score, const float *q, size_t q_stride, uint32_t heads,
                                  const float (*block)[KN_ATTN_BLOCK], const kn_score_step *step)
{
    for (uint32_t h = 0, n; h < heads; h += n) {
        n = kn_heads_step(heads - h, HEADS);
        for (uint32_t i = 0; i < step->left; i += LANES) {
            float *to = score + (size_t)h * step->count + i;
            const float *qh = q + h * q_stride;

#define CASE(n) score_heads(to, qh, q_stride, &block[0][i], step->left - i, step, n)
            KN_HEADS_SWITCH(n, CASE)
#undef CASE
        }
    }
}

KN_AVX2_INLINE void value_heads(float *out, size_t out_stride, const float (*e)[KN_VALUE_ROWS],
                                const float *block, uint32_t rows, size_t left, kn_ahead *ahead,
                                int heads)
{
    __m256 acc[HEADS][2];

    load_rows(acc, out, out_stride, left, heads);
    chains(acc, e[0], KN_VALUE_ROWS, block, KN_VALUE_WIDTH, rows, ahead, heads);
    store_rows(out, out_stride, left, acc, heads);
}

KN_AVX2_FN static void value_leaf(float *out, size_t out_stride, const float *e, size_t e_stride,
                                  uint32_t heads, const float (*block)[KN_VALUE_WIDTH],
                                  uint32_t rows, uint32_t width, kn_ahead *ahead)
{
    _Alignas(64) float packed[HEADS][KN_VALUE_ROWS];

    for (uint32_t h = 0, n; h < heads; h += n) {
        n = kn_heads_step(heads - h, HEADS);
        for (uint32_t i = 0; i < n; i++)
            memcpy(packed[i], e + (h + i) * e_stride, rows * sizeof(float));
        for (uint32_t r = 0; r < width; r += LANES) {
            float *to = out + h * out_stride + r;

#define CASE(n)                                                                                    \
    value_heads(to, out_stride, (const float(*)[KN_VALUE_ROWS])packed, &block[0][r], rows,         \
                width - r, ahead, n)
            KN_HEADS_SWITCH(n, CASE)
#undef CASE
        }
    }
}

/* Adds `heads` index heads to the totals of 16 positions. */
KN_AVX2_INLINE void index_heads(__m256 *total, const float *q, const float *weight,
                                const float *block, uint32_t dim, float key_scale, kn_ahead *ahead,
                                int heads)
{
    const __m256 scale = _mm256_set1_ps(key_scale), zero = _mm256_setzero_ps();
    __m256 acc[HEADS][2];

    KN_UNROLL
    for (int h = 0; h < heads; h++)
        acc[h][0] = acc[h][1] = zero;
    chains(acc, q, dim, block, KN_ATTN_BLOCK, dim, ahead, heads);
    KN_UNROLL
    for (int h = 0; h < heads; h++) {
        __m256 w = _mm256_set1_ps(weight[h]);

        /* max_ps gives its second operand when that is NaN: a NaN stays. */
        KN_UNROLL
        for (int j = 0; j < 2; j++)
            total[j] =
                _mm256_fmadd_ps(w, _mm256_max_ps(zero, _mm256_mul_ps(acc[h][j], scale)), total[j]);
    }
}

KN_AVX2_FN static void index_leaf(float *total, const float *q, const float *weight, uint32_t heads,
                                  uint32_t dim, const float (*block)[KN_ATTN_BLOCK],
                                  float key_scale, kn_ahead *ahead)
{
    for (uint32_t i = 0; i < KN_ATTN_BLOCK; i += LANES) {
        __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};

        for (uint32_t h = 0, n; h < heads; h += n) {
            n = kn_heads_step(heads - h, HEADS);
#define CASE(n)                                                                                    \
    index_heads(sum, q + (size_t)h * dim, weight + h, &block[0][i], dim, key_scale, ahead, n)
            KN_HEADS_SWITCH(n, CASE)
#undef CASE
        }
        _mm256_storeu_ps(total + i, sum[0]);
        _mm256_storeu_ps(total + i + 8, sum[1]);
    }
}

KN_AVX2_FN float kn_avx2_softmax_exp(float *score, uint32_t count)
{
    __m256 best = _mm256_set1_ps(-INFINITY);
    __m256 lane[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(),
                      _mm256_setzero_ps()};
    __m128 a;
    uint32_t i = 0;

    /* max_ps(v, best) gives best when v is NaN, as the reference's comparison does. */
    for (; i + 8 <= count; i += 8)
        best = _mm256_max_ps(_mm256_loadu_ps(score + i), best);
    a = _mm_max_ps(_mm256_castps256_ps128(best), _mm256_extractf128_ps(best, 1));
    a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    a = _mm_max_ss(a, _mm_movehdup_ps(a));
    for (; i < count; i++)
        a = _mm_max_ss(_mm_load_ss(score + i), a);
    best = _mm256_set1_ps(_mm_cvtss_f32(a));
    for (i = 0; i < count; i += 8) {
        size_t left = count - i;
        __m256 e = kn_exp8(_mm256_sub_ps(kn_load8(score + i, left), best));

        if (left < 8) e = _mm256_and_ps(e, _mm256_castsi256_ps(kn_tail_mask(left)));
        kn_store8(score + i, left, e);
        lane[i / 8 % 4] = _mm256_add_ps(lane[i / 8 % 4], e);
    }
    return kn_tree32(lane[0], lane[1], lane[2], lane[3]);
}

static const kn_attn_leaves avx2_leaves = {HEADS,      LANES,      kn_avx2_cache_load,
                                           score_leaf, value_leaf, index_leaf};

void kn_avx2_attn_scores(float *score, const float *q, size_t q_stride, uint32_t heads,
                         const kn_cache_view *cache, const uint32_t *list, uint32_t count,
                         float scale)
{
    kn_attn_scores_blocked(&avx2_leaves, score, q, q_stride, heads, cache, list, count, scale);
}

void kn_avx2_attn_values(float *out, size_t out_stride, const float *e, const float *sum,
                         uint32_t heads, uint32_t rank, const kn_cache_view *cache,
                         const uint32_t *list, uint32_t count)
{
    kn_attn_values_blocked(&avx2_leaves, out, out_stride, e, sum, heads, rank, cache, list, count);
}

void kn_avx2_index_scores(float *score, const float *q, const float *weight, uint32_t heads,
                          uint32_t dim, const kn_cache_view *keys, uint32_t count, float key_scale)
{
    kn_index_scores_blocked(&avx2_leaves, score, q, weight, heads, dim, keys, count, key_scale);
}

KN_AVX2_FN void kn_avx2_cache_store(void *row, bool bf16, const float *values, uint32_t count)
{
    uint32_t i = 0;

    if (!bf16) {
        memcpy(row, values, (size_t)count * sizeof(float));
        return;
    }
    for (; i + 8 <= count; i += 8) {
        __m256 v = _mm256_loadu_ps(values + i);
        __m256i u = _mm256_castps_si256(v);
        __m256i high = _mm256_srli_epi32(u, 16);
        __m256i even = _mm256_and_si256(high, _mm256_set1_epi32(1));
        __m256i rounded = _mm256_srli_epi32(
            _mm256_add_epi32(u, _mm256_add_epi32(even, _mm256_set1_epi32(0x7fff))), 16);
        __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));

        rounded = _mm256_blendv_epi8(rounded, _mm256_or_si256(high, _mm256_set1_epi32(0x40)), nan);
        rounded = _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded, rounded), 0xd8);
        _mm_storeu_si128((__m128i *)(void *)((uint16_t *)row + i), _mm256_castsi256_si128(rounded));
    }
    kn_ref_cache_store((uint16_t *)row + i, true, values + i, count - i);
}

KN_AVX2_FN void kn_avx2_cache_load(float *values, bool bf16, const void *row, uint32_t count)
{
    uint32_t i = 0;

    if (!bf16) {
        memcpy(values, row, (size_t)count * sizeof(float));
        return;
    }
    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(values + i, kn_load8_bf16((const uint16_t *)row + i));
    kn_ref_cache_load(values + i, true, (const uint16_t *)row + i, count - i);
}

#endif
