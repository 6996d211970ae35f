/* quant.h - quantisers: activations at run time, weights at conversion. All are references and
 * numerics: their bytes never change without a new numerics id (activations) or conversion id
 * (weights).
 *
 * Activations (R2): per row and group, amax = max |x|; amax < 2^-100 gives q = 0, scale = 0; else
 * scale = amax / 127 and q = RNE(x * (127 / amax)) clipped to +-127. A group with a NaN or Inf gets
 * q = 0 and scale = NaN, which every later sum carries to the check that ends the request.
 *
 * Weights q8: scale = the smallest f16 at or above amax / 127, so that no weight is clipped;
 * q = RNE(w / scale) clipped to +-127. q4: of the f16 of amax / 7 * (0.60 .. 1.10 in steps of
 * 0.025), first all positive, then all negative, the scale with the smallest squared error, ties to
 * the first; q = RNE(w / scale) clipped to -8..7. A negative scale lets a positive extreme sit on
 * -8: 5-7 % less error on Gaussian weights for no byte and no time. A size that f16 would make 0 is
 * 2^-24, one that it would make Inf 65504 (then weights are clipped). Zero groups have scale +0; q8
 * scales are never negative. The error is summed in f32, 8 strided lanes and the tree 4, 2, 1
 * (docs/numerics.md). */
#ifndef KERNELS_QUANT_H
#define KERNELS_QUANT_H

#include "kernels/qmat.h"

/* Rows of activations. f32 is always there; q, scale and sum only when they were quantised.
 * Groups beyond cols are zero-padded. All pointers borrowed. */
typedef struct {
    uint32_t rows, cols, group;
    size_t f32_stride;  /* floats between rows of f32 */
    const float *f32;   /* [rows][f32_stride]; NULL when only the quantised form is at hand */
    const int8_t *q;    /* [rows][cols padded to group]; NULL: float activations */
    const float *scale; /* [rows][groups] */
    const int32_t *sum; /* [rows][groups]: sum of q over the group (offset correction) */
} kn_rows;

static inline uint32_t kn_groups(uint32_t cols, uint32_t group)
{
    return (cols + group - 1) / group;
}

/* Bytes of q, scale and sum for `rows` rows, each part rounded up to 64 bytes. */
size_t kn_rows_quant_bytes(uint32_t rows, uint32_t cols, uint32_t group);

/* Quantises x [rows][stride] into memory of kn_rows_quant_bytes and returns the view (f32 kept). */
kn_rows kn_rows_quantise(const float *x, size_t stride, uint32_t rows, uint32_t cols,
                         uint32_t group, void *memory);

/* A float view, for float formats and --float-activations. */
kn_rows kn_rows_float(const float *x, size_t stride, uint32_t rows, uint32_t cols);

/* Recomputes sum from q (rows that came over a wire carry only q and scale). */
void kn_rows_sums(const int8_t *q, uint32_t rows, uint32_t cols, uint32_t group, int32_t *sum);

/* One group of weights, n <= 64 finite values. Return the scale as f16 bits. */
uint16_t kn_quant_q8_group(const float *w, uint32_t n, int8_t *q);
uint16_t kn_quant_q4_group(const float *w, uint32_t n, int8_t *q);

/* The same for q8f32, whose scale is the f32 amax / 127: q = RNE(w / scale) clipped to +-127; a scale
 * that is 0 gives q = 0. */
float kn_quant_q8f32_group(const float *w, uint32_t n, int8_t *q);

/* IEEE conversions, round to nearest even; bit-exact and independent of F16C. */
uint16_t kn_f16_from_f32(float x);
float kn_f32_from_f16(uint16_t h);
uint16_t kn_bf16_from_f32(float x);
static inline float kn_f32_from_bf16(uint16_t b)
{
    union {
        uint32_t u;
        float f;
    } v;

    v.u = (uint32_t)b << 16;
    return v.f;
}

#endif
