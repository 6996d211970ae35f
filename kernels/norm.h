/* norm.h - sums without siblings, RMS norm and layer norm.
 *
 * A sum that has no sibling outputs (numerics R1 B) uses 32 strided lanes: lane i takes x[i],
 * x[i+32], ... ascending, the tail is padded with +0; then lanes are added as a tree: lane i +=
 * lane i+16, then 8, 4, 2, 1. Squares are accumulated by fmaf.
 *
 * Threads: any; rows are independent. */
#ifndef KERNELS_NORM_H
#define KERNELS_NORM_H

#include <stddef.h>

float kn_sum(const float *x, size_t n);
float kn_sum_squares(const float *x, size_t n);

/* out[r][d] = (x[r][d] * inv) * weight[d], inv = 1 / sqrtf(sum_squares / dim + eps)
 *   out, x  [rows][stride] f32; out may alias x.   weight  [dim] f32 */
void kn_rms_norm(float *out, size_t out_stride, const float *x, size_t x_stride,
                 const float *weight, size_t rows, size_t dim, float eps);

/* m = sum / dim; d = x - m; inv = 1 / sqrtf(sum_squares(d) / dim + eps); out = (d * inv) * weight
 * + bias, multiply and add rounded separately. out may alias x. */
void kn_layer_norm(float *out, size_t out_stride, const float *x, size_t x_stride,
                   const float *weight, const float *bias, size_t rows, size_t dim, float eps);

/* x += y, and out = x * factor, elementwise. */
void kn_add(float *x, const float *y, size_t n);
void kn_scale(float *out, const float *x, float factor, size_t n);

#endif
