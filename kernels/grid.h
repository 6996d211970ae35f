/* grid.h - the exact integer combine (numerics R3): expert outputs rounded once onto a fixed grid and
 * summed as integers, so that the sum has no order.
 *
 * A contribution is one slice of one expert for one row: v = y * ws, ws = w * 2^q exact, one f32
 * multiply; c = round-half-even(v). |v| <= 2^24 is added in int32 (127 such always fit); |v| < 2^55
 * moves the row to int64; NaN, Inf or more poisons the row. The magic-number trick with fma gives
 * other integers and is forbidden.
 *
 * Threads: any; an accumulator has one owner. */
#ifndef KERNELS_GRID_H
#define KERNELS_GRID_H

#include <stddef.h>
#include <stdint.h>

typedef enum { KN_GRID_NARROW, KN_GRID_WIDE, KN_GRID_POISON } kn_grid_class;

enum { KN_GRID_CONTRIBUTIONS_MAX = 127 };

/* The class of one contribution, tested on the bits before any conversion. */
kn_grid_class kn_grid_classify(const float *y, float ws, size_t n);

/* acc[i] += round-half-even(y[i] * ws). Narrow contributions only; the test is fused: when the
 * contribution is not narrow nothing is added and its class is returned. */
kn_grid_class kn_grid_add(int32_t *acc, const float *y, float ws, size_t n);

/* The same in int64, for a contribution of class NARROW or WIDE. */
void kn_grid_add_wide(int64_t *acc, const float *y, float ws, size_t n);

/* acc[i] += part[i] of another partial sum. */
void kn_grid_merge(int32_t *acc, const int32_t *part,
                   size_t n); /* asserted not to overflow in debug */
void kn_grid_widen(int64_t *acc, const int32_t *part, size_t n); /* acc += part */

/* out[i] = f32(total) * 2^-q: one round-half-even of the 64-bit integer, then an exact scaling. */
void kn_grid_finish(float *out, const int32_t *narrow, size_t n, int q);
void kn_grid_finish_wide(float *out, const int64_t *wide, size_t n, int q);

/* 2^q as f32, -126 <= q <= 127. */
float kn_exp2i(int q);

#endif
