/* attention_avx512.c - the inner loops of attention with AVX-512: eight heads times 48 positions, or
 * 48 columns, are 24 chains of fused adds: of the shapes that fit the registers the fastest (8 x 32
 * gives 12 % less). Absent lanes are computed and not stored: only a list's last block has some. */
#include "kernels/attention_avx512.h"

#include "kernels/mathf_poly.h"

#if KN_X86

#include <math.h>
#include <string.h>

enum { HEADS = 8, VECTORS = 3, LANES = 16 * VECTORS };

typedef struct {
    __mmask16 part[VECTORS];
} lane_mask;

KN_AVX512_INLINE lane_mask mask_of(size_t left)
{
    uint64_t ones = left >= LANES ? UINT64_MAX : ((uint64_t)1 << left) - 1;

    return (lane_mask){{(__mmask16)(ones & 0xffffU), (__mmask16)(ones >> 16 & 0xffffU),
                        (__mmask16)(ones >> 32 & 0xffffU)}};
}

/* Continues `heads` chains, their multipliers `stride` apart, over `steps` rows of 48 values that
 * lie row_floats apart. */
KN_AVX512_INLINE void chains(__m512 (*acc)[VECTORS], const float *x, size_t stride,
                             const float *rows, size_t row_floats, uint32_t steps, kn_ahead *ahead,
                             int heads)
{
    for (uint32_t k = 0; k < steps;) {
        uint32_t end = steps - k < KN_AHEAD_STEPS ? steps : k + KN_AHEAD_STEPS;

        kn_ahead_ask(ahead);
        for (; k < end; k++, rows += row_floats) {
            __m512 v[VECTORS];

            KN_UNROLL
            for (int i = 0; i < VECTORS; i++)
                v[i] = _mm512_loadu_ps(rows + 16 * i);
            /* gcc 12 otherwise puts one of them on the stack: a fifth of the speed. */
            KN_UNROLL
            for (int i = 0; i < VECTORS; i++)
                __asm__("" : "+v"(v[i]));
            KN_UNROLL
            for (int h = 0; h < heads; h++) {
                __m512 b = _mm512_set1_ps(x[(size_t)h * stride + k]);

                KN_UNROLL
                for (int i = 0; i < VECTORS; i++)
                    acc[h][i] = _mm512_fmadd_ps(b, v[i], acc[h][i]);
            }
        }
    }
}

KN_AVX512_INLINE void load_rows(__m512 (*acc)[VECTORS], const float *at, size_t stride,
                                lane_mask mask, int heads)
{
    KN_UNROLL
    for (int h = 0; h < heads; h++, at += stride) {
        KN_UNROLL
        for (int i = 0; i < VECTORS; i++)
            acc[h][i] = _mm512_maskz_loadu_ps(mask.part[i], at + 16 * i);
    }
}

KN_AVX512_INLINE void store_rows(float *at, size_t stride, lane_mask mask, __m512 (*acc)[VECTORS],
                                 int heads)
{
    KN_UNROLL
    for (int h = 0; h < heads; h++, at += stride) {
        KN_UNROLL
        for (int i = 0; i < VECTORS; i++)
            _mm512_mask_storeu_ps(at + 16 * i, mask.part[i], acc[h][i]);
    }
}

KN_AVX512_INLINE void score_heads(float *score, const float *q, size_t q_stride, const float *block,
                                  const kn_score_step *step, int heads)
{
    const lane_mask mask = mask_of(step->left);
    __m512 acc[HEADS][VECTORS];

    if (step->first) {
        KN_UNROLL
        for (int h = 0; h < heads; h++) {
            KN_UNROLL
            for (int i = 0; i < VECTORS; i++)
                acc[h][i] = _mm512_setzero_ps();
        }
    } else {
        load_rows(acc, score, step->count, mask, heads);
    }
    chains(acc, q, q_stride, block, KN_ATTN_BLOCK, step->width, step->ahead, heads);
    if (step->last) {
        const __m512 scale = _mm512_set1_ps(step->scale);

        KN_UNROLL
        for (int h = 0; h < heads; h++) {
            KN_UNROLL
            for (int i = 0; i < VECTORS; i++)
                acc[h][i] = _mm512_mul_ps(acc[h][i], scale);
        }
    }
    store_rows(score, step->count, mask, acc, heads);
}

KN_AVX512_FN static void score_leaf(float *score, const float *q, size_t q_stride, uint32_t heads,
                                    const float (*block)[KN_ATTN_BLOCK], const kn_score_step *step)
{
    for (uint32_t h = 0, n; h < heads; h += n) {
        float *to = score + (size_t)h * step->count;
        const float *qh = q + h * q_stride;

        n = kn_heads_step(heads - h, HEADS);
#define CASE(n) score_heads(to, qh, q_stride, block[0], step, n)
        KN_HEADS_SWITCH(n, CASE)
#undef CASE
    }
}

KN_AVX512_INLINE void index_heads(__m512 *total, const float *q, const float *weight,
                                  const float *block, uint32_t dim, float key_scale,
                                  kn_ahead *ahead, int heads)
{
    const __m512 scale = _mm512_set1_ps(key_scale), zero = _mm512_setzero_ps();
    __m512 acc[HEADS][VECTORS];

    KN_UNROLL
    for (int h = 0; h < heads; h++) {
        KN_UNROLL
        for (int j = 0; j < VECTORS; j++)
            acc[h][j] = zero;
    }
    chains(acc, q, dim, block, KN_ATTN_BLOCK, dim, ahead, heads);
    KN_UNROLL
    for (int h = 0; h < heads; h++) {
        __m512 w = _mm512_set1_ps(weight[h]);

        /* max_ps gives its second operand when that is NaN: a NaN stays. */
        KN_UNROLL
        for (int j = 0; j < VECTORS; j++)
            total[j] =
                _mm512_fmadd_ps(w, _mm512_max_ps(zero, _mm512_mul_ps(acc[h][j], scale)), total[j]);
    }
}

KN_AVX512_FN static void index_leaf(float *total, const float *q, const float *weight,
                                    uint32_t heads, uint32_t dim,
                                    const float (*block)[KN_ATTN_BLOCK], float key_scale,
                                    kn_ahead *ahead)
{
    __m512 sum[VECTORS] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};

    for (uint32_t h = 0, n; h < heads; h += n) {
        n = kn_heads_step(heads - h, HEADS);
#define CASE(n)                                                                                    \
    index_heads(sum, q + (size_t)h * dim, weight + h, block[0], dim, key_scale, ahead, n)
        KN_HEADS_SWITCH(n, CASE)
#undef CASE
    }
    for (int j = 0; j < VECTORS; j++)
        _mm512_storeu_ps(total + 16 * j, sum[j]);
}

/* kn_expf per lane, step for step. */
KN_AVX512_INLINE __m512 exp16(__m512 x)
{
    const __m512 magic = _mm512_set1_ps(KN_ROUND_MAGIC);
    __m512 t = _mm512_fmadd_ps(x, _mm512_set1_ps(KN_LOG2E), magic);
    __m512 n = _mm512_sub_ps(t, magic);
    __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-KN_LN2_HI), x);
    __mmask16 over = _mm512_cmp_ps_mask(x, _mm512_set1_ps(KN_EXP_MAX), _CMP_GT_OQ);
    __mmask16 under = _mm512_cmp_ps_mask(x, _mm512_set1_ps(KN_EXP_MIN), _CMP_LT_OQ);
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    __m512 p;

    r = _mm512_fmadd_ps(n, _mm512_set1_ps(-KN_LN2_LO), r);
    p = _mm512_fmadd_ps(_mm512_set1_ps(KN_EXP_C5), r, _mm512_set1_ps(KN_EXP_C4));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(KN_EXP_C3));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(KN_EXP_C2));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(KN_EXP_C1));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(KN_EXP_C0));
    p = _mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r);
    p = _mm512_add_ps(p, _mm512_set1_ps(1.0F));
    p = _mm512_castsi512_ps(
        _mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32(_mm512_castps_si512(t), 23)));
    p = _mm512_mask_mov_ps(p, over, _mm512_set1_ps(INFINITY));
    p = _mm512_mask_mov_ps(p, under, _mm512_setzero_ps());
    return _mm512_mask_add_ps(p, nan, x, x);
}

/* The 32 lanes of the sum are two registers. */
KN_AVX512_FN float kn_avx512_softmax_exp(float *score, uint32_t count)
{
    __m512 best = _mm512_set1_ps(-INFINITY);
    __m512 lane[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    __m256 a;
    __m128 m;

    /* max_ps(v, best) gives best when v is NaN, as the reference's comparison does. */
    for (uint32_t i = 0; i < count; i += 16)
        best = _mm512_max_ps(_mm512_mask_loadu_ps(best, kn_mask16(count - i), score + i), best);
    a = _mm256_max_ps(_mm512_castps512_ps256(best), _mm512_extractf32x8_ps(best, 1));
    m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    best = _mm512_set1_ps(_mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m))));
    for (uint32_t i = 0; i < count; i += 16) {
        const __mmask16 mask = kn_mask16(count - i);
        __m512 e = exp16(_mm512_sub_ps(_mm512_maskz_loadu_ps(mask, score + i), best));

        e = _mm512_maskz_mov_ps(mask, e);
        _mm512_mask_storeu_ps(score + i, mask, e);
        lane[i / 16 % 2] = _mm512_add_ps(lane[i / 16 % 2], e);
    }
    lane[0] = _mm512_add_ps(lane[0], lane[1]);
    a = _mm256_add_ps(_mm512_castps512_ps256(lane[0]), _mm512_extractf32x8_ps(lane[0], 1));
    m = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    m = _mm_add_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_add_ss(m, _mm_movehdup_ps(m)));
}

const kn_attn_leaves kn_avx512_leaves = {
    .heads = HEADS, .lanes = LANES, .scores = score_leaf, .index = index_leaf};

void kn_avx512_index_scores(float *score, const float *q, const float *weight, uint32_t heads,
                            uint32_t dim, const kn_cache_view *keys, uint32_t count,
                            float key_scale)
{
    kn_index_scores_blocked(&kn_avx512_leaves, score, q, weight, heads, dim, keys, count,
                            key_scale);
}

#endif
