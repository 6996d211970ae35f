/* mathf64.c - exp2, log2, sine and cosine in f64 for tables and conversion.
 *
 * They are ours because rope tables and grids decide tokens, and libm's last bit differs between
 * versions. Taylor series to the last bit: speed does not matter here. */
#include "kernels/mathf.h"

#include "base/check.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

enum { EXP2_TERMS = 14, SIN_TERMS = 8, COS_TERMS = 9 };

#define ROUND_MAGIC 0x1.8p52

/* ln(2)^k / k!, k = 1 .. 14 */
static const double exp2_terms[EXP2_TERMS] = {
    0x1.62e42fefa39efp-1,  0x1.ebfbdff82c58fp-3,  0x1.c6b08d704a0c0p-5,  0x1.3b2ab6fba4e77p-7,
    0x1.5d87fe78a6731p-10, 0x1.430912f86c787p-13, 0x1.ffcbfc588b0c7p-17, 0x1.62c0223a5c824p-20,
    0x1.b5253d395e7c4p-24, 0x1.e4cf5158b8ecap-28, 0x1.e8cac7351bb25p-32, 0x1.c3bd650fc2986p-36,
    0x1.816193166d0f9p-40, 0x1.314964d5878a9p-44};
/* (-1)^k / (2k+1)!, k = 1 .. 8, and (-1)^k / (2k)!, k = 1 .. 9 */
static const double sin_terms[SIN_TERMS] = {
    -0x1.5555555555555p-3,  0x1.1111111111111p-7,  -0x1.a01a01a01a01ap-13, 0x1.71de3a556c734p-19,
    -0x1.ae64567f544e4p-26, 0x1.6124613a86d09p-33, -0x1.ae7f3e733b81fp-41, 0x1.952c77030ad4ap-49};
static const double cos_terms[COS_TERMS] = {
    -0x1.0000000000000p-1,  0x1.5555555555555p-5,   -0x1.6c16c16c16c17p-10,
    0x1.a01a01a01a01ap-16,  -0x1.27e4fb7789f5cp-22, 0x1.1eed8eff8d898p-29,
    -0x1.93974a8c07c9dp-37, 0x1.ae7f3e733b81fp-45,  -0x1.6827863b97d97p-53};

/* sum of terms[i] * z^i, from the last to the first. */
static double horner(const double *terms, int count, double z)
{
    double p = terms[count - 1];

    for (int i = count - 2; i >= 0; i--)
        p = fma(p, z, terms[i]);
    return p;
}

/* 2^exponent for a normal result. */
static double power_of_two(int exponent)
{
    uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

double kn_exp2_f64(double x)
{
    double n, p;
    int exponent;

    if (x != x) return x;
    if (x >= 1024) return INFINITY;
    if (x < -1080) return 0;
    n = x + ROUND_MAGIC - ROUND_MAGIC;
    p = fma(horner(exp2_terms, EXP2_TERMS, x - n), x - n, 1.0);
    /* In two steps: 2^n alone may be out of range while the result is not. */
    exponent = (int)n / 2;
    return p * power_of_two(exponent) * power_of_two((int)n - exponent);
}

double kn_log2_f64(double x)
{
    const double scale_hi = 0x1.71547652b82fep+1, scale_lo = 0x1.777d0ffda0d24p-55; /* 2 / ln 2 */
    uint64_t bits;
    int exponent = 0;
    double f, d, s, s_lo, z, series, p, p_lo, hi;

    if (x != x || x < 0) return NAN;
    if (x == 0) return -INFINITY;
    if (x == INFINITY) return x;
    if (x < 0x1p-1022) {
        x *= 0x1p54;
        exponent = -54;
    }
    memcpy(&bits, &x, sizeof(bits));
    bits += 0x3ff0000000000000U - 0x3fe6a09e667f3bcdU; /* m in [sqrt(1/2), sqrt(2)) */
    exponent += (int)(bits >> 52) - 1023;
    bits = (bits & 0xfffffffffffffU) + 0x3fe6a09e667f3bcdU;
    memcpy(&x, &bits, sizeof(x));
    /* log2(m) = 2/ln2 (s + s^3/3 + s^5/5 ...), s = (m-1)/(m+1) carried in two parts. */
    f = x - 1.0;
    d = 2.0 + f;
    s = f / d;
    s_lo = (fma(-s, d, f) - s * (f - (d - 2.0))) / d;
    z = s * s;
    series = 1.0 / 27.0;
    for (int k = 25; k >= 3; k -= 2)
        series = fma(series, z, 1.0 / (double)k);
    p = scale_hi * s;
    p_lo = fma(scale_hi, s, -p) + scale_hi * s_lo + scale_lo * s + p * (z * series);
    hi = (double)exponent + p;
    return hi + (((double)exponent - hi) + p + p_lo);
}

void kn_sincos_f64(double x, double *sin_out, double *cos_out)
{
    const double half_pi_1 = 0x1.921fb54442d18p+0, half_pi_2 = 0x1.1a62633145c07p-54,
                 half_pi_3 = -0x1.f1976b7ed8fbcp-110;
    double n, r, r_lo, w, z, sine, cosine, swap;
    int quadrant;

    RT_ASSERT(x > -0x1p31 && x < 0x1p31);
    n = x * 0x1.45f306dc9c883p-1 + ROUND_MAGIC - ROUND_MAGIC;
    /* x - n * half_pi_1 is exact: both are multiples of 2^-53 or finer only when n is 0, and the
     * difference is below 1. */
    z = fma(-n, half_pi_1, x);
    w = n * half_pi_2;
    r = z - w;
    r_lo = (z - r) - w - fma(n, half_pi_2, -w) - n * half_pi_3;
    z = r * r;
    sine = fma(r * z, horner(sin_terms, SIN_TERMS, z), r_lo) + r;
    cosine = fma(z, horner(cos_terms, COS_TERMS, z), -r * r_lo) + 1.0;
    /* n is below 2^31 / (pi/2): its low two bits name the quadrant, also when it is negative. */
    quadrant = (int)((uint32_t)(int64_t)n & 3U);
    if ((quadrant & 1) != 0) {
        swap = sine;
        sine = cosine;
        cosine = -swap;
    }
    *sin_out = (quadrant & 2) != 0 ? -sine : sine;
    *cos_out = (quadrant & 2) != 0 ? -cosine : cosine;
}
