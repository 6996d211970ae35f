/* matmul.c - checks the shapes and hands over to the active variant. */
#include "kernels/matmul.h"

#include "base/check.h"
#include "kernels/ops.h"

/* TOKEN:9 the variant that was chosen at start does the work. */
void kn_matmul(float *y, size_t y_stride, const kn_rows *x, const kn_qmat *w, uint32_t row_begin,
               uint32_t row_end)
{
    const kn_ops *ops = kn_ops_active();

    RT_ASSERT(x->cols == w->cols);
    RT_ASSERT(row_begin % KN_TILE_ROWS == 0 && row_begin <= row_end && row_end <= w->rows);
    RT_ASSERT(row_end % KN_TILE_ROWS == 0 || row_end == w->rows);
    RT_ASSERT(((uintptr_t)w->data & 63) == 0);
    RT_ASSERT(y_stride >= row_end || x->rows <= 1);
    if (row_begin == row_end) return;
    if (kn_format_is_int(w->format) && x->q != NULL) {
        RT_ASSERT(x->group == w->group && x->scale != NULL && x->sum != NULL);
        if (kn_format_is_q4(w->format))
            ops->matmul_q4(y, y_stride, x, w, row_begin, row_end);
        else
            ops->matmul_q8(y, y_stride, x, w, row_begin, row_end);
        return;
    }
    RT_ASSERT(x->f32 != NULL && (x->f32_stride >= x->cols || x->rows <= 1));
    ops->matmul_float(y, y_stride, x, w, row_begin, row_end);
}
