/* grid.c - the public side of the exact combine and its scalar parts. */
#include "kernels/grid.h"

#include "base/check.h"
#include "kernels/grid_bits.h"
#include "kernels/ops.h"

#include <string.h>

float kn_exp2i(int q)
{
    uint32_t bits = (uint32_t)(q + 127) << 23;
    float value;

    RT_ASSERT(q >= -126 && q <= 127);
    memcpy(&value, &bits, sizeof(value));
    return value;
}

kn_grid_class kn_grid_classify(const float *y, float ws, size_t n)
{
    return kn_grid_class_of(kn_ops_active()->grid_max(y, ws, n));
}

kn_grid_class kn_grid_add(int32_t *acc, const float *y, float ws, size_t n)
{
    return kn_ops_active()->grid_add(acc, y, ws, n);
}

/* Rare (a few rows in early layers), so plain C serves every variant. */
void kn_grid_add_wide(int64_t *acc, const float *y, float ws, size_t n)
{
    for (size_t i = 0; i < n; i++)
        acc[i] += kn_grid_round(y[i] * ws);
}

void kn_grid_merge(int32_t *acc, const int32_t *part, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        RT_DEBUG_ASSERT((int64_t)acc[i] + part[i] ==
                        (int32_t)((uint32_t)acc[i] + (uint32_t)part[i]));
        acc[i] = (int32_t)((uint32_t)acc[i] + (uint32_t)part[i]);
    }
}

void kn_grid_widen(int64_t *acc, const int32_t *part, size_t n)
{
    for (size_t i = 0; i < n; i++)
        acc[i] += part[i];
}

void kn_grid_finish(float *out, const int32_t *narrow, size_t n, int q)
{
    kn_ops_active()->grid_finish(out, narrow, n, kn_exp2i(-q));
}

void kn_grid_finish_wide(float *out, const int64_t *wide, size_t n, int q)
{
    float unit = kn_exp2i(-q);

    for (size_t i = 0; i < n; i++)
        out[i] = (float)wide[i] * unit;
}
