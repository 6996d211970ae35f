/* matmul.h - y = W x for a few rows of x, W in any format.
 *
 * Output y[s][n] is one chain, k (or group) ascending from acc = +0 (numerics R1):
 *   float formats          acc = fmaf(x_k, w_k, acc)
 *   q formats, int8 rows   acc = fmaf(scale_w * scale_x, (float)isum_g, acc) over groups g, where
 *                          isum_g is the exact integer sum of q_w * q_x and the product of the two
 *                          scales is one f32 multiply
 *   q formats, float rows  acc = fmaf(x_k, w'_k, acc), w' = f32(scale_w) * q_w rounded to f32
 * Vectorised across n; every variant is byte-equal to the reference (matmul_ref.c).
 *
 * Threads: any; calls are independent. No failure modes; shapes are asserted. */
#ifndef KERNELS_MATMUL_H
#define KERNELS_MATMUL_H

#include "kernels/qmat.h"
#include "kernels/quant.h"

/* Computes outputs row_begin..row_end of w for every row of x.
 *   y          [x->rows][y_stride], element [s][n] is written for row_begin <= n < row_end only
 *   x          x->cols == w->cols; int8 rows need x->group == w->group and a q format; a float
 *              format needs x->f32
 *   row_begin  a multiple of 16;  row_end  a multiple of 16 or w->rows
 * x with q set and a q format uses int8 rows (which need scale and sum); a NULL q uses float rows.
 * q may hold any int8, -128 too: a peer's row gives the same bits on every variant.
 * Speed: float formats take up to four tiles at once for few rows, so ranges of 64 rows are best. */
void kn_matmul(float *y, size_t y_stride, const kn_rows *x, const kn_qmat *w, uint32_t row_begin,
               uint32_t row_end);

#endif
