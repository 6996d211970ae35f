/* norm_avx2.c - sums, norms, rope, sigmoid, silu and argmax with AVX2. */
#include "kernels/ops.h"

#include "kernels/vec_avx2.h"

#if KN_X86

KN_AVX2_FN float kn_avx2_sum(const float *x, size_t n)
{
    __m256 lane[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(),
                      _mm256_setzero_ps()};
    size_t i = 0;

    for (; i + 32 <= n; i += 32)
        for (size_t j = 0; j < 4; j++)
            lane[j] = _mm256_add_ps(lane[j], _mm256_loadu_ps(x + i + 8 * j));
    for (size_t j = 0; i < n; i += 8, j++)
        lane[j] = _mm256_add_ps(lane[j], kn_load8(x + i, n - i));
    return kn_tree32(lane[0], lane[1], lane[2], lane[3]);
}

KN_AVX2_FN float kn_avx2_sum_squares(const float *x, size_t n)
{
    __m256 lane[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(),
                      _mm256_setzero_ps()};
    size_t i = 0;

    for (; i + 32 <= n; i += 32) {
        for (size_t j = 0; j < 4; j++) {
            __m256 v = _mm256_loadu_ps(x + i + 8 * j);

            lane[j] = _mm256_fmadd_ps(v, v, lane[j]);
        }
    }
    for (size_t j = 0; i < n; i += 8, j++) {
        __m256 v = kn_load8(x + i, n - i);

        lane[j] = _mm256_fmadd_ps(v, v, lane[j]);
    }
    return kn_tree32(lane[0], lane[1], lane[2], lane[3]);
}

KN_AVX2_FN void kn_avx2_rms_apply(float *out, const float *x, const float *weight, float inv,
                                  size_t n)
{
    const __m256 factor = _mm256_set1_ps(inv);

    for (size_t i = 0; i < n; i += 8) {
        __m256 v = _mm256_mul_ps(kn_load8(x + i, n - i), factor);

        kn_store8(out + i, n - i, _mm256_mul_ps(v, kn_load8(weight + i, n - i)));
    }
}

KN_AVX2_FN void kn_avx2_subtract(float *out, const float *x, float value, size_t n)
{
    const __m256 v = _mm256_set1_ps(value);

    for (size_t i = 0; i < n; i += 8)
        kn_store8(out + i, n - i, _mm256_sub_ps(kn_load8(x + i, n - i), v));
}

KN_AVX2_FN void kn_avx2_layer_apply(float *out, const float *weight, const float *bias, float inv,
                                    size_t n)
{
    const __m256 factor = _mm256_set1_ps(inv);

    for (size_t i = 0; i < n; i += 8) {
        __m256 v = _mm256_mul_ps(kn_load8(out + i, n - i), factor);

        v = _mm256_mul_ps(v, kn_load8(weight + i, n - i));
        kn_store8(out + i, n - i, _mm256_add_ps(v, kn_load8(bias + i, n - i)));
    }
}

KN_AVX2_FN void kn_avx2_add(float *x, const float *y, size_t n)
{
    for (size_t i = 0; i < n; i += 8)
        kn_store8(x + i, n - i, _mm256_add_ps(kn_load8(x + i, n - i), kn_load8(y + i, n - i)));
}

KN_AVX2_FN void kn_avx2_scale(float *out, const float *x, float factor, size_t n)
{
    const __m256 f = _mm256_set1_ps(factor);

    for (size_t i = 0; i < n; i += 8)
        kn_store8(out + i, n - i, _mm256_mul_ps(kn_load8(x + i, n - i), f));
}

/* 1 + exp(-x) */
KN_AVX2_INLINE __m256 one_plus_exp_minus(__m256 x)
{
    const __m256 sign = _mm256_set1_ps(-0.0F);

    return _mm256_add_ps(_mm256_set1_ps(1.0F), kn_exp8(_mm256_xor_ps(x, sign)));
}

KN_AVX2_FN void kn_avx2_sigmoid(float *out, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i += 8) {
        __m256 d = one_plus_exp_minus(kn_load8(x + i, n - i));

        kn_store8(out + i, n - i, _mm256_div_ps(_mm256_set1_ps(1.0F), d));
    }
}

KN_AVX2_FN void kn_avx2_silu_mul(float *out, const float *gate, const float *up, size_t n)
{
    for (size_t i = 0; i < n; i += 8) {
        __m256 g = kn_load8(gate + i, n - i);
        __m256 silu = _mm256_div_ps(g, one_plus_exp_minus(g));

        kn_store8(out + i, n - i, _mm256_mul_ps(silu, kn_load8(up + i, n - i)));
    }
}

/* One pair per two lanes: even lanes subtract, odd lanes add. */
KN_AVX2_FN void kn_avx2_rope_apply(float *v, size_t stride, size_t count, const float *cos_in,
                                   const float *sin_in, uint32_t dim)
{
    const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);

    for (size_t i = 0; i < count; i++, v += stride) {
        uint32_t j = 0;

        for (; j + 4 <= dim / 2; j += 4) {
            __m256 c =
                _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(cos_in + j)), twice);
            __m256 s =
                _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(sin_in + j)), twice);
            __m256 x = _mm256_loadu_ps(v + 2 * j);
            __m256 swapped = _mm256_permute_ps(x, 0xb1);

            _mm256_storeu_ps(v + 2 * j,
                             _mm256_addsub_ps(_mm256_mul_ps(x, c), _mm256_mul_ps(swapped, s)));
        }
        if (j < dim / 2) kn_ref_rope_apply(v + 2 * j, 0, 1, cos_in + j, sin_in + j, dim - 2 * j);
    }
}

/* The largest value first, then the first place that holds it. */
KN_AVX2_FN uint32_t kn_avx2_argmax(const float *x, uint32_t n)
{
    __m256 best = _mm256_set1_ps(-INFINITY), nan = _mm256_setzero_ps();
    uint32_t i = 0;

    for (; i + 8 <= n; i += 8) {
        __m256 v = _mm256_loadu_ps(x + i);

        nan = _mm256_or_ps(nan, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
        best = _mm256_max_ps(v, best);
    }
    if (_mm256_movemask_ps(nan) != 0) return UINT32_MAX;
    best = _mm256_max_ps(best, _mm256_permute2f128_ps(best, best, 1));
    best = _mm256_max_ps(best, _mm256_permute_ps(best, 0x4e));
    best = _mm256_max_ps(best, _mm256_permute_ps(best, 0xb1));
    for (; i < n; i++) {
        if (x[i] != x[i]) return UINT32_MAX;
        best = _mm256_max_ps(best, _mm256_set1_ps(x[i]));
    }
    for (i = 0; i + 8 <= n; i += 8) {
        int equal = _mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(x + i), best, _CMP_EQ_OQ));

        if (equal != 0) return i + (uint32_t)__builtin_ctz((unsigned)equal);
    }
    while (x[i] != _mm256_cvtss_f32(best))
        i++;
    return i;
}

#endif
