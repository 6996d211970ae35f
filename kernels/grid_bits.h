/* grid_bits.h - limits and rounding of the exact combine; internal to this folder. */
#ifndef KERNELS_GRID_BITS_H
#define KERNELS_GRID_BITS_H

#include "kernels/grid.h"

#include <string.h>

#define KN_GRID_NARROW_BITS 0x4b800000U /* 2^24, still narrow */
#define KN_GRID_WIDE_BITS 0x5b000000U   /* 2^55, no longer wide */

/* From the largest |v| of a contribution as bits: NaN > Inf > finite. */
static inline kn_grid_class kn_grid_class_of(uint32_t max_bits)
{
    if (max_bits <= KN_GRID_NARROW_BITS) return KN_GRID_NARROW;
    return max_bits < KN_GRID_WIDE_BITS ? KN_GRID_WIDE : KN_GRID_POISON;
}

/* Round half to even, |v| < 2^55. From 2^23 on a float is an integer already; below, the addition
 * of 2^23 leaves a last bit of 1, so the addition itself rounds. (A fused y * ws + 2^23 would give
 * other integers: the product must be rounded to f32 first.) */
static inline int64_t kn_grid_round(float v)
{
    float size = v < 0 ? -v : v;

    if (size < 0x1p23F) size = size + 0x1p23F - 0x1p23F;
    return v < 0 ? -(int64_t)size : (int64_t)size;
}

#endif
