/* quant_grid.h - constants of the quantisers, shared by all variants; internal to this folder.
 *
 * The q4 scale is searched on a fixed grid of amax / 7 times 0.60, 0.625 .. 1.10. The grid contains
 * amax / 8 (factor 0.875), which puts a negative extreme on -8; scales are never negative. Scales
 * are f16: what would round to 0 becomes 2^-24, what would round to Inf 65504. */
#ifndef KERNELS_QUANT_GRID_H
#define KERNELS_QUANT_GRID_H

#include "kernels/quant.h"

#define KN_QUANT_INF_BITS 0x7f800000U
#define KN_QUANT_TINY_BITS 0x0d800000U /* 2^-100 */

enum { KN_Q4_CANDIDATES = 21, KN_F16_MIN = 0x0001, KN_F16_MAX = 0x7bff };

static inline float kn_q4_factor(uint32_t candidate)
{
    return (float)(24 + candidate) / 40.0F;
}

/* A usable f16 for a scale that is not zero. */
static inline uint16_t kn_quant_scale_clamp(uint16_t half)
{
    return half < KN_F16_MIN ? KN_F16_MIN : half > KN_F16_MAX ? KN_F16_MAX : half;
}

/* The smallest f16 at or above amax / 127 (exactly: scale * 127 >= amax), 65504 at most. */
static inline uint16_t kn_quant_q8_scale(float amax)
{
    uint16_t half;

    if (amax == 0) return 0;
    half = kn_quant_scale_clamp(kn_f16_from_f32(amax / 127.0F));
    /* The product of an f16 and 127 has 18 bits: exact in f32. */
    if (half < KN_F16_MAX && kn_f32_from_f16(half) * 127.0F < amax) half++;
    return half;
}

#endif
