/* ffn.c - one slice's feed-forward network, in the one order that every holder computes. */
#include "model/ffn.h"

#include "base/check.h"
#include "kernels/mathf.h"
#include "kernels/matmul.h"

static size_t align64(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Floats between rows of gate and up outputs; whole cache lines keep rows apart. */
static size_t h_stride(uint32_t width)
{
    return kn_round_up(width, 16);
}

static size_t h_bytes(uint32_t rows, uint32_t width)
{
    return align64(rows * h_stride(width) * sizeof(float));
}

size_t md_ffn_scratch_bytes(uint32_t rows, uint32_t width, uint32_t inter_group)
{
    return 2 * h_bytes(rows, width) + align64(kn_rows_quant_bytes(rows, width, inter_group));
}

/* TOKEN:9 one slice of one expert over its rows. */
void md_ffn_slice(float *y, size_t y_stride, const kn_rows *x, const md_slice *slice, void *scratch)
{
    unsigned char *bytes = scratch;
    uint32_t rows = x->rows, width = slice->width;
    size_t stride = h_stride(width);
    float *gate = scratch;
    float *up = (float *)(void *)(bytes + h_bytes(rows, width));
    void *quantised = bytes + 2 * h_bytes(rows, width);
    kn_rows h;

    RT_ASSERT((uintptr_t)scratch % 64 == 0);
    RT_ASSERT(slice->gate.rows == width && slice->up.rows == width && slice->down.cols == width);
    RT_ASSERT(slice->gate.cols == x->cols && slice->down.rows == x->cols);
    kn_matmul(gate, stride, x, &slice->gate, 0, width);
    kn_matmul(up, stride, x, &slice->up, 0, width);
    for (uint32_t r = 0; r < rows; r++)
        kn_silu_mul(gate + r * stride, gate + r * stride, up + r * stride, width);
    if (kn_format_is_int(slice->down.format) && x->q != NULL)
        h = kn_rows_quantise(gate, stride, rows, width, slice->down.group, quantised);
    else
        h = kn_rows_float(gate, stride, rows, width);
    kn_matmul(y, y_stride, &h, &slice->down, 0, slice->down.rows);
}
