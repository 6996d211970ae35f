/* ffn.h - y = down(silu(gate x) * up x) for one slice or one dense MLP, in reference order.
 *
 * The expert node, the shared expert and the dense layers use this one function, so a slice gives
 * the same bits wherever it is computed. With a q format h = silu*up is quantised by groups of the
 * intermediate width before down; with --float-activations, and for float formats, it stays f32.
 *
 * Threads: any, each with its own scratch. */
#ifndef MODEL_FFN_H
#define MODEL_FFN_H

#include "kernels/quant.h"
#include "model/expert.h"

/* Scratch for `rows` rows of a slice `width` wide (h twice, its quantised form). */
size_t md_ffn_scratch_bytes(uint32_t rows, uint32_t width, uint32_t inter_group);

/* y [x->rows][y_stride] = the slice's output, hidden values a row.
 *   x  [rows] of hidden values: int8 rows (x->q) for q formats unless float activations are wanted
 *   scratch  64-byte aligned, md_ffn_scratch_bytes */
void md_ffn_slice(float *y, size_t y_stride, const kn_rows *x, const md_slice *slice,
                  void *scratch);

#endif
