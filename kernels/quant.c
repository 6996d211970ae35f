/* quant.c - float conversions and the public side of the quantisers. */
#include "kernels/quant.h"

#include "base/check.h"
#include "kernels/ops.h"

#include <math.h>
#include <string.h>

static uint32_t bits_of(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof(u));
    return u;
}

static float from_bits(uint32_t u)
{
    float x;

    memcpy(&x, &u, sizeof(x));
    return x;
}

uint16_t kn_bf16_from_f32(float x)
{
    uint32_t u = bits_of(x);

    if ((u & 0x7fffffffU) > 0x7f800000U) return (uint16_t)(u >> 16 | 0x40); /* NaN stays one */
    return (uint16_t)((u + 0x7fffU + (u >> 16 & 1)) >> 16);
}

uint16_t kn_f16_from_f32(float x)
{
    uint32_t u = bits_of(x);
    uint32_t sign = u >> 16 & 0x8000U;
    uint32_t a = u & 0x7fffffffU;
    uint32_t h;

    if (a > 0x7f800000U) return (uint16_t)(sign | 0x7e00U | (a >> 13 & 0x3ffU));
    if (a >= 0x477ff000U) return (uint16_t)(sign | 0x7c00U); /* 65520 and above round to Inf */
    if (a < 0x33000000U) return (uint16_t)sign;              /* below 2^-25 */
    if (a < 0x38800000U) {
        /* Subnormal half: the significand as an integer multiple of 2^-24. */
        uint32_t shift = 126 - (a >> 23);
        uint32_t significand = (a & 0x7fffffU) | 0x800000U;
        uint32_t rest = significand & ((1U << shift) - 1);
        uint32_t half = 1U << (shift - 1);

        h = significand >> shift;
        if (rest > half || (rest == half && (h & 1) != 0)) h++;
        return (uint16_t)(sign | h);
    }
    h = (a + 0xfffU + (a >> 13 & 1)) >> 13;
    return (uint16_t)(sign | (h - (112U << 10)));
}

float kn_f32_from_f16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000U) << 16;
    uint32_t exponent = half >> 10 & 0x1fU;
    uint32_t fraction = half & 0x3ffU;

    if (exponent == 0x1f) {
        uint32_t quiet = fraction != 0 ? 0x400000U : 0; /* as the conversion instruction does */

        return from_bits(sign | 0x7f800000U | quiet | fraction << 13);
    }
    if (exponent == 0) {
        float value = (float)fraction * 0x1p-24F;

        return sign != 0 ? -value : value;
    }
    return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

static size_t round_64(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

size_t kn_rows_quant_bytes(uint32_t rows, uint32_t cols, uint32_t group)
{
    size_t groups = kn_groups(cols, group);

    return round_64(rows * groups * group) + round_64(rows * groups * sizeof(float)) +
           round_64(rows * groups * sizeof(int32_t));
}

kn_rows kn_rows_quantise(const float *x, size_t stride, uint32_t rows, uint32_t cols,
                         uint32_t group, void *memory)
{
    const kn_ops *ops = kn_ops_active();
    size_t groups = kn_groups(cols, group);
    uint8_t *at = memory;
    int8_t *q = (int8_t *)at;
    float *scale = (float *)(void *)(at + round_64(rows * groups * group));
    int32_t *sum = (int32_t *)(void *)((uint8_t *)scale + round_64(rows * groups * sizeof(float)));

    RT_ASSERT(group == 16 || group == 32 || group == 64);
    RT_ASSERT(stride >= cols || rows <= 1);
    RT_ASSERT(((uintptr_t)memory & 3) == 0);
    for (uint32_t s = 0; s < rows; s++)
        ops->quantise_row(x + s * stride, cols, group, q + s * groups * group, scale + s * groups,
                          sum + s * groups);
    return (kn_rows){.rows = rows,
                     .cols = cols,
                     .group = group,
                     .f32_stride = stride,
                     .f32 = x,
                     .q = q,
                     .scale = scale,
                     .sum = sum};
}

kn_rows kn_rows_float(const float *x, size_t stride, uint32_t rows, uint32_t cols)
{
    RT_ASSERT(stride >= cols || rows <= 1);
    return (kn_rows){.rows = rows, .cols = cols, .f32_stride = stride, .f32 = x};
}

void kn_rows_sums(const int8_t *q, uint32_t rows, uint32_t cols, uint32_t group, int32_t *sum)
{
    RT_ASSERT(group == 16 || group == 32 || group == 64);
    kn_ops_active()->group_sums(q, (size_t)rows * kn_groups(cols, group), group, sum);
}

uint16_t kn_quant_q8_group(const float *w, uint32_t n, int8_t *q)
{
    RT_ASSERT(n >= 1 && n <= 64);
    return kn_ops_active()->quant_q8_group(w, n, q);
}

uint16_t kn_quant_q4_group(const float *w, uint32_t n, int8_t *q)
{
    RT_ASSERT(n >= 1 && n <= 64);
    return kn_ops_active()->quant_q4_group(w, n, q);
}

/* One plain function for all variants: it runs for a few tensors of an import only. */
float kn_quant_q8f32_group(const float *w, uint32_t n, int8_t *q)
{
    float amax = 0, scale;

    RT_ASSERT(n >= 1 && n <= 64);
    for (uint32_t i = 0; i < n; i++)
        if (fabsf(w[i]) > amax) amax = fabsf(w[i]);
    scale = amax / 127.0F;
    for (uint32_t i = 0; i < n; i++) {
        /* At most 190.5, with the smallest scales; the sum's last bit is 1, so it rounds itself. */
        float x = scale == 0 ? 0 : w[i] / scale + 0x1.8p23F - 0x1.8p23F;

        q[i] = (int8_t)(x < -127.0F ? -127.0F : x > 127.0F ? 127.0F : x);
    }
    return scale;
}
