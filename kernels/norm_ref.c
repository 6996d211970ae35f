/* norm_ref.c - sums in 32 strided lanes and the elementwise steps of the norms, in plain C. */
#include "kernels/ops.h"

#include <math.h>

enum { LANES = 32 };

static float tree(float *lane)
{
    for (unsigned half = LANES / 2; half > 0; half /= 2)
        for (unsigned i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
}

/* The tail's padding with +0 needs no code: a lane starts at +0, so it is never -0 and adding +0
 * changes nothing. */
float kn_ref_sum(const float *x, size_t n)
{
    float lane[LANES] = {0};

    for (size_t i = 0; i < n; i++)
        lane[i % LANES] += x[i];
    return tree(lane);
}

float kn_ref_sum_squares(const float *x, size_t n)
{
    float lane[LANES] = {0};

    for (size_t i = 0; i < n; i++)
        lane[i % LANES] = fmaf(x[i], x[i], lane[i % LANES]);
    return tree(lane);
}

void kn_ref_rms_apply(float *out, const float *x, const float *weight, float inv, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = x[i] * inv * weight[i];
}

void kn_ref_subtract(float *out, const float *x, float value, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = x[i] - value;
}

void kn_ref_layer_apply(float *out, const float *weight, const float *bias, float inv, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = out[i] * inv * weight[i] + bias[i];
}

void kn_ref_add(float *x, const float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] += y[i];
}

void kn_ref_scale(float *out, const float *x, float factor, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = x[i] * factor;
}
