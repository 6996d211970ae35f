/* vec_avx2.h - what the AVX2 files share: partial loads and stores, sums, exp; internal.
 *
 * A tail of fewer than 8 values goes through masked loads (absent lanes are +0) and masked stores,
 * so that it runs the very operations of the rest. */
#ifndef KERNELS_VEC_AVX2_H
#define KERNELS_VEC_AVX2_H

#include "kernels/mathf_poly.h"
#include "kernels/ops.h"

#if KN_X86

#include <immintrin.h>
#include <math.h>

/* Ones in the first `left` lanes. */
KN_AVX2_INLINE __m256i kn_tail_mask(size_t left)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(left < 8 ? (int)left : 8),
                              _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

KN_AVX2_INLINE __m256 kn_load8(const float *x, size_t left)
{
    return left >= 8 ? _mm256_loadu_ps(x) : _mm256_maskload_ps(x, kn_tail_mask(left));
}

KN_AVX2_INLINE void kn_store8(float *out, size_t left, __m256 v)
{
    if (left >= 8)
        _mm256_storeu_ps(out, v);
    else
        _mm256_maskstore_ps(out, kn_tail_mask(left), v);
}

/* 8 bf16 values, widened. */
KN_AVX2_INLINE __m256 kn_load8_bf16(const void *at)
{
    __m128i b = _mm_loadu_si128((const __m128i *)at);

    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(b), 16));
}

/* The tree 4, 2, 1 over 8 lanes. */
KN_AVX2_INLINE float kn_tree8(__m256 v)
{
    __m128 a = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));

    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    a = _mm_add_ss(a, _mm_movehdup_ps(a));
    return _mm_cvtss_f32(a);
}

/* The tree 16, 8, 4, 2, 1 over 32 lanes. */
KN_AVX2_INLINE float kn_tree32(__m256 a, __m256 b, __m256 c, __m256 d)
{
    return kn_tree8(_mm256_add_ps(_mm256_add_ps(a, c), _mm256_add_ps(b, d)));
}

KN_AVX2_INLINE uint32_t kn_max_u32(__m256i v)
{
    __m128i a = _mm_max_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));

    a = _mm_max_epu32(a, _mm_shuffle_epi32(a, 0x4e));
    a = _mm_max_epu32(a, _mm_shuffle_epi32(a, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(a);
}

KN_AVX2_INLINE int32_t kn_sum_i32(__m256i v)
{
    __m128i a = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));

    a = _mm_add_epi32(a, _mm_shuffle_epi32(a, 0x4e));
    a = _mm_add_epi32(a, _mm_shuffle_epi32(a, 0xb1));
    return _mm_cvtsi128_si32(a);
}

/* kn_expf per lane, step for step. */
KN_AVX2_INLINE __m256 kn_exp8(__m256 x)
{
    const __m256 magic = _mm256_set1_ps(KN_ROUND_MAGIC);
    __m256 t = _mm256_fmadd_ps(x, _mm256_set1_ps(KN_LOG2E), magic);
    __m256 n = _mm256_sub_ps(t, magic);
    __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-KN_LN2_HI), x);
    __m256 p, over, under, nan;

    r = _mm256_fmadd_ps(n, _mm256_set1_ps(-KN_LN2_LO), r);
    p = _mm256_fmadd_ps(_mm256_set1_ps(KN_EXP_C5), r, _mm256_set1_ps(KN_EXP_C4));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(KN_EXP_C3));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(KN_EXP_C2));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(KN_EXP_C1));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(KN_EXP_C0));
    p = _mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r);
    p = _mm256_add_ps(p, _mm256_set1_ps(1.0F));
    p = _mm256_castsi256_ps(
        _mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(t), 23)));
    over = _mm256_cmp_ps(x, _mm256_set1_ps(KN_EXP_MAX), _CMP_GT_OQ);
    under = _mm256_cmp_ps(x, _mm256_set1_ps(KN_EXP_MIN), _CMP_LT_OQ);
    nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    p = _mm256_blendv_ps(p, _mm256_set1_ps(INFINITY), over);
    p = _mm256_andnot_ps(under, p);
    return _mm256_blendv_ps(p, _mm256_add_ps(x, x), nan);
}

#endif
#endif
