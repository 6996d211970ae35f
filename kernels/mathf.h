/* mathf.h - exp, sigmoid, silu and log as fixed polynomials, the same bits on every machine.
 *
 * libm differs between versions and processors; these are plain sequences of IEEE operations and
 * fmaf, and their vector forms run the same sequence per lane. exp: error below 1.5 ulp over the
 * whole range, exp(-inf) = 0, overflow gives +inf, results below 2^-126 are flushed to +0, NaN stays
 * NaN. sigmoid(x) = 1 / (1 + exp(-x)); silu(x) = x / (1 + exp(-x)). */
#ifndef KERNELS_MATHF_H
#define KERNELS_MATHF_H

#include <stddef.h>

float kn_expf(float x);
float kn_logf(float x); /* x > 0; log(0) = -inf; negative gives NaN */
float kn_sigmoidf(float x);

void kn_sigmoid(float *out, const float *x, size_t n); /* out may alias x */

/* out[i] = silu(gate[i]) * up[i]; out may alias either. */
void kn_silu_mul(float *out, const float *gate, const float *up, size_t n);

/* f64, for conversion and tables only: errors below 2 ulp for finite arguments. */
double kn_exp2_f64(double x);
double kn_log2_f64(double x);                                   /* x > 0 */
void kn_sincos_f64(double x, double *sin_out, double *cos_out); /* |x| < 2^31 */

#endif
