/* matmul_ref.c - the matrix products in plain C: every output one ascending chain. */
#include "kernels/ops.h"

#include <math.h>
#include <string.h>

enum { LINE_BYTES = 64 };

static const uint8_t *tile_of(const kn_qmat *w, uint32_t row)
{
    return (const uint8_t *)w->data +
           row / KN_TILE_ROWS * kn_qmat_tile_bytes(w->format, w->cols, w->group);
}

static float load_scale(kn_format format, const uint8_t *group, uint32_t r)
{
    uint16_t half;
    float scale;

    if (kn_format_has_f32_scales(format)) {
        memcpy(&scale, group + r * 4, sizeof(scale));
        return scale;
    }
    memcpy(&half, group + r * 2, sizeof(half));
    return kn_f32_from_f16(half);
}

static int weight_q4(const uint8_t *lines, uint32_t r, uint32_t k)
{
    uint8_t byte = lines[k / 8 * LINE_BYTES + r * 4 + k % 4];

    return (k % 8 < 4 ? byte & 15 : byte >> 4) - 8;
}

static int weight_q8(const uint8_t *lines, uint32_t r, uint32_t k)
{
    return (int8_t)lines[k / 4 * LINE_BYTES + r * 4 + k % 4];
}

static void matmul_int(float *y, size_t y_stride, const kn_rows *x, const kn_qmat *w,
                       uint32_t row_begin, uint32_t row_end,
                       int (*weight)(const uint8_t *, uint32_t, uint32_t))
{
    uint32_t groups = kn_groups(w->cols, w->group);
    uint32_t group_bytes = kn_group_bytes(w->format, w->group);

    for (uint32_t s = 0; s < x->rows; s++) {
        const int8_t *q = x->q + (size_t)s * groups * w->group;
        const float *scale = x->scale + (size_t)s * groups;

        for (uint32_t n = row_begin; n < row_end; n++) {
            const uint8_t *at = tile_of(w, n);
            uint32_t r = n % KN_TILE_ROWS;
            float acc = 0;

            for (uint32_t g = 0; g < groups; g++, at += group_bytes) {
                const uint8_t *lines = at + kn_scale_bytes(w->format);
                int32_t sum = 0;

                for (uint32_t k = 0; k < w->group; k++)
                    sum += weight(lines, r, k) * q[g * w->group + k];
                acc = fmaf(load_scale(w->format, at, r) * scale[g], (float)sum, acc);
            }
            y[s * y_stride + n] = acc;
        }
    }
}

void kn_ref_matmul_q4(float *y, size_t y_stride, const kn_rows *x, const kn_qmat *w,
                      uint32_t row_begin, uint32_t row_end)
{
    matmul_int(y, y_stride, x, w, row_begin, row_end, weight_q4);
}

void kn_ref_matmul_q8(float *y, size_t y_stride, const kn_rows *x, const kn_qmat *w,
                      uint32_t row_begin, uint32_t row_end)
{
    matmul_int(y, y_stride, x, w, row_begin, row_end, weight_q8);
}

/* Weight k of row r of a tile as f32, whatever the format. */
static float weight_float(const kn_qmat *w, const uint8_t *tile, uint32_t r, uint32_t k)
{
    float value;
    uint16_t b;

    switch (w->format) {
    case KN_F32:
        memcpy(&value, tile + ((size_t)k * KN_TILE_ROWS + r) * 4, 4);
        return value;
    case KN_BF16:
        memcpy(&b, tile + ((size_t)k * KN_TILE_ROWS + r) * 2, 2);
        return kn_f32_from_bf16(b);
    case KN_Q8:
    case KN_Q4:
    case KN_Q8F32:
    case KN_Q4F32: {
        const uint8_t *at = tile + (size_t)(k / w->group) * kn_group_bytes(w->format, w->group);
        const uint8_t *lines = at + kn_scale_bytes(w->format);
        int q = kn_format_is_q4(w->format) ? weight_q4(lines, r, k % w->group)
                                           : weight_q8(lines, r, k % w->group);

        return load_scale(w->format, at, r) * (float)q;
    }
    }
    return 0;
}

void kn_ref_matmul_float(float *y, size_t y_stride, const kn_rows *x, const kn_qmat *w,
                         uint32_t row_begin, uint32_t row_end)
{
    for (uint32_t s = 0; s < x->rows; s++) {
        const float *xs = x->f32 + s * x->f32_stride;

        for (uint32_t n = row_begin; n < row_end; n++) {
            const uint8_t *tile = tile_of(w, n);
            float acc = 0;

            for (uint32_t k = 0; k < w->cols; k++)
                acc = fmaf(xs[k], weight_float(w, tile, n % KN_TILE_ROWS, k), acc);
            y[s * y_stride + n] = acc;
        }
    }
}
