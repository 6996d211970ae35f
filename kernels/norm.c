/* norm.c - the public side of the sums and norms. */
#include "kernels/norm.h"

#include "base/check.h"
#include "kernels/ops.h"

#include <math.h>

float kn_sum(const float *x, size_t n)
{
    return kn_ops_active()->sum(x, n);
}

float kn_sum_squares(const float *x, size_t n)
{
    return kn_ops_active()->sum_squares(x, n);
}

void kn_rms_norm(float *out, size_t out_stride, const float *x, size_t x_stride,
                 const float *weight, size_t rows, size_t dim, float eps)
{
    const kn_ops *ops = kn_ops_active();

    RT_ASSERT(dim > 0 && (rows <= 1 || (out_stride >= dim && x_stride >= dim)));
    for (size_t r = 0; r < rows; r++) {
        const float *row = x + r * x_stride;
        float inv = 1.0F / sqrtf(ops->sum_squares(row, dim) / (float)dim + eps);

        ops->rms_apply(out + r * out_stride, row, weight, inv, dim);
    }
}

void kn_layer_norm(float *out, size_t out_stride, const float *x, size_t x_stride,
                   const float *weight, const float *bias, size_t rows, size_t dim, float eps)
{
    const kn_ops *ops = kn_ops_active();

    RT_ASSERT(dim > 0 && (rows <= 1 || (out_stride >= dim && x_stride >= dim)));
    for (size_t r = 0; r < rows; r++) {
        const float *row = x + r * x_stride;
        float *to = out + r * out_stride;
        float inv;

        ops->subtract(to, row, ops->sum(row, dim) / (float)dim, dim);
        inv = 1.0F / sqrtf(ops->sum_squares(to, dim) / (float)dim + eps);
        ops->layer_apply(to, weight, bias, inv, dim);
    }
}

void kn_add(float *x, const float *y, size_t n)
{
    kn_ops_active()->add(x, y, n);
}

void kn_scale(float *out, const float *x, float factor, size_t n)
{
    kn_ops_active()->scale(out, x, factor, n);
}
