/* mathf_poly.h - the constants of exp and log, shared by all variants; internal to this folder.
 *
 * exp(x) = 2^n (1 + r + r^2 q(r)), n = round(x / ln 2), r = x - n ln 2 in two parts. q is the
 * interpolant of (exp(r) - 1 - r) / r^2 at the Chebyshev nodes of |r| <= ln(2)/2, of degree 5
 * (error 1.6e-10); R of log likewise, of degree 3 over z <= 0.0295 (error 3.3e-11). ln 2's high
 * part has 15 bits, so that n times it is exact. */
#ifndef KERNELS_MATHF_POLY_H
#define KERNELS_MATHF_POLY_H

#define KN_LOG2E 0x1.715476p+0F
#define KN_LN2_HI 0x1.62e4p-1F
#define KN_LN2_LO 0x1.7f7d1cp-20F
#define KN_ROUND_MAGIC 0x1.8p23F /* adding it rounds to an integer, half to even */

#define KN_EXP_MAX 0x1.62e42ep+6F  /* the largest x with a finite exp(x): 88.7228 */
#define KN_EXP_MIN -0x1.5d589ep+6F /* the smallest x with exp(x) >= 2^-126: -87.3365 */
#define KN_EXP_C0 0x1p-1F
#define KN_EXP_C1 0x1.555556p-3F
#define KN_EXP_C2 0x1.5554e8p-5F
#define KN_EXP_C3 0x1.1110ep-7F
#define KN_EXP_C4 0x1.6d4334p-10F
#define KN_EXP_C5 0x1.a125p-13F

#define KN_LOG_C0 0x1.555556p-1F
#define KN_LOG_C1 0x1.9999ecp-2F
#define KN_LOG_C2 0x1.245c0ap-2F
#define KN_LOG_C3 0x1.dddaep-3F

#endif
