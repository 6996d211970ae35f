/* rope.h - rotary position embedding, interleaved pairs, rotated in place.
 *
 * Pair (v[2j], v[2j+1]) becomes (a*cos - b*sin, b*cos + a*sin), each as two products and one
 * subtraction or addition, all rounded (no fused step). Writing the result as two halves, as the
 * reference does, is only a permutation applied to queries and keys alike.
 *
 * Source of the formula: transformers, models/glm_moe_dsa; SPEC of GLM-5.2 section 5. */
#ifndef KERNELS_ROPE_H
#define KERNELS_ROPE_H

#include <stddef.h>
#include <stdint.h>

/* inv[j] = 1 / theta^(2j/dim), each step rounded to f32 (the exponent, the power, the quotient).
 * Computed at conversion and stored: inv [dim/2]. */
void kn_rope_inv_freq(double theta, uint32_t dim, float *inv);

/* cos/sin of (float)pos * inv[j] rounded to f32; our own sincos in f64, rounded once. [dim/2] each. */
void kn_rope_angles(uint32_t pos, const float *inv, uint32_t dim, float *cos_out, float *sin_out);

/* Rotates the first `dim` values of `count` vectors that lie `stride` floats apart. */
void kn_rope_apply(float *v, size_t stride, size_t count, const float *cos_in, const float *sin_in,
                   uint32_t dim);

#endif
