/* quant_avx2.c - the quantisers with AVX2, byte-equal to quant_ref.c. */
#include "kernels/ops.h"

#include "base/check.h"
#include "kernels/quant_grid.h"
#include "kernels/vec_avx2.h"

#include <string.h>

#if KN_X86

enum { GROUP_VECTORS = 8 };

KN_AVX2_INLINE uint32_t amax_bits(const __m256 *v, uint32_t count)
{
    const __m256i mask = _mm256_set1_epi32(0x7fffffff);
    __m256i best = _mm256_setzero_si256();

    for (uint32_t i = 0; i < count; i++)
        best = _mm256_max_epu32(best, _mm256_and_si256(_mm256_castps_si256(v[i]), mask));
    return kn_max_u32(best);
}

/* Loads n <= 64 values, zero-padded to whole vectors; returns their number. */
KN_AVX2_INLINE uint32_t load_group(__m256 *v, const float *w, uint32_t n)
{
    uint32_t count = (n + 7) / 8;

    for (uint32_t i = 0; i < count; i++)
        v[i] = kn_load8(w + 8 * i, n - 8 * i);
    return count;
}

/* The low bytes of 8 small integers. */
KN_AVX2_INLINE __m128i pack8(__m256i q)
{
    __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1));

    return _mm_packs_epi16(words, words);
}

KN_AVX2_FN void kn_avx2_quantise_row(const float *x, uint32_t cols, uint32_t group, int8_t *q,
                                     float *scale, int32_t *sum)
{
    const __m256i limit = _mm256_set1_epi32(127);
    __m256 v[GROUP_VECTORS];

    for (uint32_t k = 0; k < cols; k += group, q += group, scale++, sum++) {
        uint32_t n = cols - k < group ? cols - k : group;
        uint32_t count = load_group(v, x + k, n);
        uint32_t bits = amax_bits(v, count);
        __m256i total = _mm256_setzero_si256();
        __m256 factor;
        float amax;

        *sum = 0;
        *scale = 0;
        if (bits >= KN_QUANT_INF_BITS || bits < KN_QUANT_TINY_BITS) {
            memset(q, 0, group);
            if (bits >= KN_QUANT_INF_BITS) *scale = NAN;
            continue;
        }
        memcpy(&amax, &bits, sizeof(amax));
        factor = _mm256_set1_ps(127.0F / amax);
        *scale = amax / 127.0F;
        for (uint32_t i = 0; i < count; i++) {
            __m256i r = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], factor));

            r = _mm256_max_epi32(_mm256_min_epi32(r, limit), _mm256_set1_epi32(-127));
            total = _mm256_add_epi32(total, r);
            _mm_storel_epi64((__m128i *)(void *)(q + 8 * i), pack8(r));
        }
        if (8 * count < group) memset(q + 8 * count, 0, group - 8 * count);
        *sum = kn_sum_i32(total);
    }
}

KN_AVX2_FN void kn_avx2_group_sums(const int8_t *q, size_t groups, uint32_t group, int32_t *sum)
{
    for (size_t g = 0; g < groups; g++, q += group) {
        __m256i total = _mm256_setzero_si256();

        for (uint32_t i = 0; i < group; i += 16) {
            __m256i wide =
                _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(q + i)));

            total = _mm256_add_epi32(total, _mm256_madd_epi16(wide, _mm256_set1_epi16(1)));
        }
        sum[g] = kn_sum_i32(total);
    }
}

/* q = round(clip(w / scale)), n values written. */
KN_AVX2_INLINE void quantise_with(const __m256 *w, uint32_t n, float scale, float low, float high,
                                  int8_t *q)
{
    const __m256 s = _mm256_set1_ps(scale);
    int8_t bytes[16];

    for (uint32_t i = 0; 8 * i < n; i++) {
        __m256 t = _mm256_div_ps(w[i], s);
        uint32_t left = n - 8 * i < 8 ? n - 8 * i : 8;

        t = _mm256_min_ps(_mm256_max_ps(t, _mm256_set1_ps(low)), _mm256_set1_ps(high));
        _mm_storeu_si128((__m128i *)(void *)bytes, pack8(_mm256_cvtps_epi32(t)));
        memcpy(q + 8 * i, bytes, left);
    }
}

KN_AVX2_FN uint16_t kn_avx2_quant_q8_group(const float *w, uint32_t n, int8_t *q)
{
    __m256 v[GROUP_VECTORS];
    uint32_t bits = amax_bits(v, load_group(v, w, n));
    uint16_t half;
    float amax;

    RT_ASSERT(bits < KN_QUANT_INF_BITS);
    memcpy(&amax, &bits, sizeof(amax));
    half = kn_quant_q8_scale(amax);
    if (half == 0)
        memset(q, 0, n);
    else
        quantise_with(v, n, kn_f32_from_f16(half), -127.0F, 127.0F, q);
    return half;
}

/* The sizes of the candidate scales as f16 bits and as f32. */
KN_AVX2_INLINE void candidates(float amax, uint16_t *half, float *scale)
{
    const __m256 base = _mm256_set1_ps(amax / 7.0F);

    for (int i = 0; i < 24; i += 8) {
        __m256i c = _mm256_add_epi32(_mm256_setr_epi32(24, 25, 26, 27, 28, 29, 30, 31),
                                     _mm256_set1_epi32(i));
        __m256 factor = _mm256_div_ps(_mm256_cvtepi32_ps(c), _mm256_set1_ps(40.0F));
        __m128i h = _mm256_cvtps_ph(_mm256_mul_ps(base, factor), _MM_FROUND_TO_NEAREST_INT);

        h = _mm_max_epu16(h, _mm_set1_epi16(KN_F16_MIN));
        h = _mm_min_epu16(h, _mm_set1_epi16(KN_F16_MAX));
        _mm_storeu_si128((__m128i *)(void *)(half + i), h);
        _mm256_storeu_ps(scale + i, _mm256_cvtph_ps(h));
    }
}

KN_AVX2_INLINE __m256 squared_error(__m256 acc, __m256 w, __m256 t, __m256 scale, float low,
                                    float high)
{
    __m256 e;

    t = _mm256_min_ps(_mm256_max_ps(t, _mm256_set1_ps(low)), _mm256_set1_ps(high));
    t = _mm256_round_ps(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    e = _mm256_fnmadd_ps(scale, t, w);
    return _mm256_fmadd_ps(e, e, acc);
}

/* The errors of +scale and -scale. Dividing and rounding are symmetric, so -scale is +scale with
 * the range -7..8: one division, the costly part, serves both. */
KN_AVX2_INLINE void signed_errors(float *error, const __m256 *w, uint32_t count, float scale)
{
    const __m256 s = _mm256_set1_ps(scale);
    __m256 plus = _mm256_setzero_ps(), minus = _mm256_setzero_ps();

    for (uint32_t i = 0; i < count; i++) {
        __m256 t = _mm256_div_ps(w[i], s);

        plus = squared_error(plus, w[i], t, s, -8.0F, 7.0F);
        minus = squared_error(minus, w[i], t, s, -7.0F, 8.0F);
    }
    error[0] = kn_tree8(plus);
    error[1] = kn_tree8(minus);
}

KN_AVX2_FN uint16_t kn_avx2_quant_q4_group(const float *w, uint32_t n, int8_t *q)
{
    __m256 v[GROUP_VECTORS];
    uint32_t count = load_group(v, w, n);
    uint32_t bits = amax_bits(v, count);
    uint16_t half[24];
    float scale[24];
    float amax, error[2], least[2] = {0};
    uint32_t best[2] = {0}, sign;

    RT_ASSERT(bits < KN_QUANT_INF_BITS);
    if (bits == 0) {
        memset(q, 0, n);
        return 0;
    }
    memcpy(&amax, &bits, sizeof(amax));
    candidates(amax, half, scale);
    for (uint32_t c = 0; c < KN_Q4_SIZES; c++) {
        signed_errors(error, v, count, scale[c]);
        for (int i = 0; i < 2; i++) {
            if (c == 0 || error[i] < least[i]) {
                best[i] = c;
                least[i] = error[i];
            }
        }
    }
    sign = least[1] < least[0] ? 1 : 0;
    quantise_with(v, n, sign != 0 ? -scale[best[1]] : scale[best[0]], -8.0F, 7.0F, q);
    return (uint16_t)(half[best[sign]] | (sign != 0 ? KN_F16_SIGN : 0));
}

#endif
