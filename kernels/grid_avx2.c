/* grid_avx2.c - contributions onto the grid with AVX2.
 *
 * The conversion gives 0x80000000 for NaN, Inf and everything beyond int32, silently; the range is
 * therefore tested on the bits of |v| by an unsigned maximum (max_ps would lose a NaN). The add is
 * optimistic and undone when the test fails: integer wrap-around makes that exact. */
#include "kernels/ops.h"

#include "kernels/grid_bits.h"
#include "kernels/vec_avx2.h"

#if KN_X86

KN_AVX2_INLINE __m256i size_bits(__m256 v)
{
    return _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x7fffffff));
}

KN_AVX2_FN uint32_t kn_avx2_grid_max(const float *y, float ws, size_t n)
{
    const __m256 factor = _mm256_set1_ps(ws);
    __m256i best = _mm256_setzero_si256();
    size_t i = 0;

    for (; i + 8 <= n; i += 8)
        best = _mm256_max_epu32(best, size_bits(_mm256_mul_ps(_mm256_loadu_ps(y + i), factor)));
    if (i < n) {
        /* Absent lanes are 0 * ws: NaN when ws is not finite, hence masked. */
        __m256i bits = size_bits(_mm256_mul_ps(kn_load8(y + i, n - i), factor));

        best = _mm256_max_epu32(best, _mm256_and_si256(bits, kn_tail_mask(n - i)));
    }
    return kn_max_u32(best);
}

enum { STEP = 32 }; /* all loads before all stores: acc and y often lie 4 KiB multiples apart */

/* acc += or -= the contributions of whole steps; returns the largest |v| as bits. */
KN_AVX2_INLINE uint32_t grid_steps(int32_t *acc, const float *y, float ws, size_t whole,
                                   bool subtract)
{
    const __m256 factor = _mm256_set1_ps(ws);
    __m256i best = _mm256_setzero_si256();

    for (size_t i = 0; i < whole; i += STEP) {
        __m256i sum[STEP / 8];

        KN_UNROLL
        for (int j = 0; j < STEP / 8; j++) {
            __m256i at = _mm256_loadu_si256((const __m256i *)(const void *)(acc + i + 8 * j));
            __m256 v = _mm256_mul_ps(_mm256_loadu_ps(y + i + 8 * j), factor);
            __m256i c = _mm256_cvtps_epi32(v);

            best = _mm256_max_epu32(best, size_bits(v));
            sum[j] = subtract ? _mm256_sub_epi32(at, c) : _mm256_add_epi32(at, c);
        }
        KN_UNROLL
        for (int j = 0; j < STEP / 8; j++)
            _mm256_storeu_si256((__m256i *)(void *)(acc + i + 8 * j), sum[j]);
    }
    return kn_max_u32(best);
}

KN_AVX2_FN kn_grid_class kn_avx2_grid_add(int32_t *acc, const float *y, float ws, size_t n)
{
    size_t whole = n / STEP * STEP;
    uint32_t tail = kn_ref_grid_max(y + whole, ws, n - whole);
    uint32_t steps = grid_steps(acc, y, ws, whole, false);
    kn_grid_class found = kn_grid_class_of(steps > tail ? steps : tail);

    if (found == KN_GRID_NARROW)
        (void)kn_ref_grid_add(acc + whole, y + whole, ws, n - whole);
    else
        (void)grid_steps(acc, y, ws, whole, true);
    return found;
}

KN_AVX2_FN void kn_avx2_grid_finish(float *out, const int32_t *narrow, size_t n, float unit)
{
    const __m256 factor = _mm256_set1_ps(unit);
    size_t whole = n / 8 * 8;

    for (size_t i = 0; i < whole; i += 8) {
        __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)(narrow + i));

        _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_cvtepi32_ps(v), factor));
    }
    kn_ref_grid_finish(out + whole, narrow + whole, n - whole, unit);
}

#endif
