/* rows.h - what is done to every row alone: norm, quantise once for all matrices that read it, add,
 * look for values that are not finite. And the linear maps of several matrices over the same rows.
 *
 * Split over the team by rows (or output tiles); results do not depend on the split.
 *
 * Threads: the engine's owner; runs the team. */
#ifndef ATTENTION_NODE_ROWS_H
#define ATTENTION_NODE_ROWS_H

#include "attention_node/pass.h"
#include "kernels/matmul.h"

#include <stdatomic.h>

/* Member memory that the calls below use, for rows up to cols wide. */
size_t an_rows_member_bytes(uint32_t cols);

/* out[r] = rms(x[r]) * weight; out may alias x. */
void an_rows_norm(const an_pass *pass, float *out, size_t out_stride, const float *x,
                  size_t x_stride, const float *weight, uint32_t rows, uint32_t dim, float eps);

/* The view that matrices read: float rows, and with `quantise` also their int8 form in the group of
 * cols, both in one view (each matrix takes what its format wants). The int8 form is taken from the
 * arena: an_rows_quant_cost. x is borrowed. */
kn_rows an_rows_view(const an_pass *pass, const float *x, size_t stride, uint32_t rows,
                     uint32_t cols, uint32_t group, bool quantise);
size_t an_rows_quant_cost(uint32_t rows, uint32_t cols, uint32_t group);

/* Rows first .. first+count of a view. */
kn_rows an_rows_part(const kn_rows *x, uint32_t first, uint32_t count);

/* x[r] += y[r]; both [rows][cols]. Returns the first row of x that then holds a NaN, or a value of 2^55
 * or more (a norm could not square it), or `rows`. */
uint32_t an_rows_add(const an_pass *pass, float *x, const float *y, uint32_t rows, uint32_t cols);

bool an_is_finite(const float *x, size_t count);

/* *lowest = min(*lowest, row), from any member: how a job names the first bad row. */
void an_note_lowest(_Atomic uint32_t *lowest, uint32_t row);

/* y[r] = w x[r]: one of several maps that run as one job of the team. */
typedef struct {
    float *y;
    size_t y_stride;
    const kn_rows *x;
    const kn_qmat *w;
} an_linear;

enum { AN_LINEAR_MAX = 8 };

/* Their bytes count for the current phase of the profile. */
void an_linear_run(const an_pass *pass, const an_linear *maps, uint32_t count);

static inline size_t an_qmat_bytes(const kn_qmat *w)
{
    return kn_qmat_bytes(w->format, w->rows, w->cols, w->group);
}

/* The activations a matrix of this format wants are int8. */
static inline bool an_wants_int8(const an_pass *pass, kn_format format)
{
    return kn_format_is_int(format) && !pass->float_activations;
}

#endif
