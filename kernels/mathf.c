/* mathf.c - scalar exp, log and sigmoid, and the public side of the vector forms. */
#include "kernels/mathf.h"

#include "kernels/mathf_poly.h"
#include "kernels/ops.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

float kn_expf(float x)
{
    float t, n, r, p;
    uint32_t exponent, bits;

    if (x != x) return x + x;
    if (x > KN_EXP_MAX) return INFINITY;
    if (x < KN_EXP_MIN) return 0;
    t = fmaf(x, KN_LOG2E, KN_ROUND_MAGIC);
    n = t - KN_ROUND_MAGIC;
    r = fmaf(n, -KN_LN2_HI, x);
    r = fmaf(n, -KN_LN2_LO, r);
    p = fmaf(KN_EXP_C5, r, KN_EXP_C4);
    p = fmaf(p, r, KN_EXP_C3);
    p = fmaf(p, r, KN_EXP_C2);
    p = fmaf(p, r, KN_EXP_C1);
    p = fmaf(p, r, KN_EXP_C0);
    p = fmaf(p, r * r, r) + 1.0F;
    /* The low bits of t are n: shifted, they are added to the exponent of p. */
    memcpy(&exponent, &t, sizeof(exponent));
    memcpy(&bits, &p, sizeof(bits));
    bits += exponent << 23;
    memcpy(&p, &bits, sizeof(p));
    return p;
}

float kn_logf(float x)
{
    uint32_t bits;
    int exponent = 0;
    float e, f, half_square, s, z, tail;

    if (x != x || x < 0) return NAN;
    if (x == 0) return -INFINITY;
    if (x == INFINITY) return x;
    if (x < 0x1p-126F) {
        x *= 0x1p23F;
        exponent = -23;
    }
    memcpy(&bits, &x, sizeof(bits));
    /* x = m * 2^exponent with m in [sqrt(1/2), sqrt(2)): near 1 the exponent is 0. */
    bits += 0x3f800000U - 0x3f3504f3U;
    exponent += (int)(bits >> 23) - 127;
    bits = (bits & 0x7fffffU) + 0x3f3504f3U;
    memcpy(&x, &bits, sizeof(x));
    /* log(1 + f) = f - f^2/2 + s (f^2/2 + z R(z)), s = f / (2 + f), z = s^2. */
    f = x - 1.0F;
    e = (float)exponent;
    s = f / (2.0F + f);
    z = s * s;
    half_square = 0.5F * f * f;
    tail = fmaf(KN_LOG_C3, z, KN_LOG_C2);
    tail = fmaf(tail, z, KN_LOG_C1);
    tail = fmaf(tail, z, KN_LOG_C0) * z;
    tail = fmaf(s, half_square + tail, e * KN_LN2_LO) - half_square;
    return fmaf(e, KN_LN2_HI, f + tail);
}

float kn_sigmoidf(float x)
{
    return 1.0F / (1.0F + kn_expf(-x));
}

void kn_ref_sigmoid(float *out, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = kn_sigmoidf(x[i]);
}

void kn_ref_silu_mul(float *out, const float *gate, const float *up, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = gate[i] / (1.0F + kn_expf(-gate[i])) * up[i];
}

void kn_sigmoid(float *out, const float *x, size_t n)
{
    kn_ops_active()->sigmoid(out, x, n);
}

void kn_silu_mul(float *out, const float *gate, const float *up, size_t n)
{
    kn_ops_active()->silu_mul(out, gate, up, n);
}
