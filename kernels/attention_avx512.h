/* attention_avx512.h - what the files of attention with AVX-512 share; internal to this folder. */
#ifndef KERNELS_ATTENTION_AVX512_H
#define KERNELS_ATTENTION_AVX512_H

#include "kernels/attention_blocks.h"

#if KN_X86

#include <immintrin.h>

/* From how many heads on the lanes of scores are heads, not positions. */
enum { KN_HEAD_LANES_MIN = 8 };

/* For few heads, and for the indexer. */
extern const kn_attn_leaves kn_avx512_leaves;

/* Ones in the first `left` of 16 lanes. */
KN_AVX512_INLINE __mmask16 kn_mask16(size_t left)
{
    return (__mmask16)(left >= 16 ? 0xffffU : (1U << left) - 1U);
}

/* Up to 16 values of a cached row, widened; absent lanes are +0. */
KN_AVX512_INLINE __m512 kn_load16(const char *at, bool bf16, size_t left)
{
    const __mmask16 mask = kn_mask16(left);

    if (!bf16) return left >= 16 ? _mm512_loadu_ps(at) : _mm512_maskz_loadu_ps(mask, at);
    return _mm512_castsi512_ps(_mm512_slli_epi32(
        _mm512_cvtepu16_epi32(left >= 16 ? _mm256_loadu_si256((const __m256i *)(const void *)at)
                                         : _mm256_maskz_loadu_epi16(mask, at)),
        16));
}

/* `count` values of a cached row, widened; the columns missing to a register become +0. */
KN_AVX512_INLINE void kn_widen(float *to, const char *row, bool bf16, uint32_t count)
{
    const size_t size = bf16 ? 2 : 4;
    uint32_t i = 0;

    for (; i + 16 <= count; i += 16)
        _mm512_store_ps(to + i, kn_load16(row + i * size, bf16, 16));
    if (i < count) _mm512_store_ps(to + i, kn_load16(row + i * size, bf16, count - i));
}

#endif
#endif
