/* quant_grid.h - constants of the quantisers, shared by all variants; internal to this folder.
 *
 * The size of a q4 scale is searched on a fixed grid of amax / 7 times 0.60, 0.625 .. 1.10, which
 * contains amax / 8 (factor 0.875); its sign is searched too, so that either extreme can sit on -8,
 * the end that reaches farther. Scales are f16: what would round to 0 becomes 2^-24 in size, what
 * would round to Inf 65504. */
#ifndef KERNELS_QUANT_GRID_H
#define KERNELS_QUANT_GRID_H

#include "kernels/quant.h"

#define KN_QUANT_INF_BITS 0x7f800000U
#define KN_QUANT_TINY_BITS 0x0d800000U /* 2^-100 */

enum { KN_Q4_SIZES = 21, KN_F16_MIN = 0x0001, KN_F16_MAX = 0x7bff, KN_F16_SIGN = 0x8000 };

static inline float kn_q4_factor(uint32_t size)
{
    return (float)(24 + size) / 40.0F;
}

/* A usable f16 for the size of a scale that is not zero. */
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
