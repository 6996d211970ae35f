/* topk.h - selection with a defined order: larger score, then lower index (numerics R5).
 * -0 equals +0. Threads: any. */
#ifndef KERNELS_TOPK_H
#define KERNELS_TOPK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The min(k, n) best of score[n], written to out in ascending index order. Partial selection: cost
 * is linear in n, not n log n.
 *   scratch  [n] uint32_t
 *   Returns  false when a score is NaN; out is undefined then */
bool kn_topk(uint32_t *out, const float *score, uint32_t n, uint32_t k, uint32_t *scratch);

/* Index of the largest value, lowest index on ties; UINT32_MAX when a value is NaN. n > 0. */
uint32_t kn_argmax(const float *x, uint32_t n);

#endif
