/* quant_ref.c - the quantisers in plain C; they define the bytes. */
#include "kernels/ops.h"

#include "base/check.h"
#include "kernels/quant_grid.h"

#include <math.h>
#include <string.h>

/* Round half to even for |x| < 2^22: the sum's last bit is 1, so the addition itself rounds. */
static float round_even(float x)
{
    return x + 0x1.8p23F - 0x1.8p23F;
}

/* max |x| as bits: NaN > Inf > finite, so that one compare finds both. */
static uint32_t amax_bits(const float *x, uint32_t n)
{
    uint32_t best = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t u;

        memcpy(&u, &x[i], sizeof(u));
        u &= 0x7fffffffU;
        if (u > best) best = u;
    }
    return best;
}

static float clip(float x, float low, float high)
{
    return x < low ? low : x > high ? high : x;
}

void kn_ref_quantise_row(const float *x, uint32_t cols, uint32_t group, int8_t *q, float *scale,
                         int32_t *sum)
{
    for (uint32_t k = 0; k < cols; k += group, q += group, scale++, sum++) {
        uint32_t n = cols - k < group ? cols - k : group;
        uint32_t bits = amax_bits(x + k, n);
        float amax, factor;

        memset(q, 0, group);
        *sum = 0;
        *scale = 0;
        if (bits >= KN_QUANT_INF_BITS) {
            *scale = NAN;
            continue;
        }
        if (bits < KN_QUANT_TINY_BITS) continue;
        memcpy(&amax, &bits, sizeof(amax));
        factor = 127.0F / amax;
        *scale = amax / 127.0F;
        for (uint32_t i = 0; i < n; i++) {
            q[i] = (int8_t)clip(round_even(x[k + i] * factor), -127.0F, 127.0F);
            *sum += q[i];
        }
    }
}

void kn_ref_group_sums(const int8_t *q, size_t groups, uint32_t group, int32_t *sum)
{
    for (size_t g = 0; g < groups; g++, q += group) {
        sum[g] = 0;
        for (uint32_t i = 0; i < group; i++)
            sum[g] += q[i];
    }
}

uint16_t kn_ref_quant_q8_group(const float *w, uint32_t n, int8_t *q)
{
    uint32_t bits = amax_bits(w, n);
    float amax, scale;
    uint16_t half;

    RT_ASSERT(bits < KN_QUANT_INF_BITS);
    memcpy(&amax, &bits, sizeof(amax));
    half = kn_quant_q8_scale(amax);
    scale = kn_f32_from_f16(half);
    for (uint32_t i = 0; i < n; i++)
        q[i] = half == 0 ? 0 : (int8_t)round_even(clip(w[i] / scale, -127.0F, 127.0F));
    return half;
}

/* Squared error with one scale: 8 strided lanes, then the tree 4, 2, 1. */
static float q4_error(const float *w, uint32_t n, float scale)
{
    float lane[8] = {0};

    for (uint32_t i = 0; i < n; i++) {
        float q = round_even(clip(w[i] / scale, -8.0F, 7.0F));
        float e = fmaf(-scale, q, w[i]);

        lane[i % 8] = fmaf(e, e, lane[i % 8]);
    }
    for (uint32_t half = 4; half > 0; half /= 2)
        for (uint32_t i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
}

uint16_t kn_ref_quant_q4_group(const float *w, uint32_t n, int8_t *q)
{
    uint32_t bits = amax_bits(w, n);
    uint16_t best = 0;
    float amax, scale, best_error = 0;

    RT_ASSERT(bits < KN_QUANT_INF_BITS);
    memset(q, 0, n);
    if (bits == 0) return 0;
    memcpy(&amax, &bits, sizeof(amax));
    for (uint32_t c = 0; c < 2 * KN_Q4_SIZES; c++) {
        float size = amax / 7.0F * kn_q4_factor(c % KN_Q4_SIZES);
        uint16_t half = kn_quant_scale_clamp(kn_f16_from_f32(size));
        float error;

        if (c >= KN_Q4_SIZES) half |= KN_F16_SIGN;
        error = q4_error(w, n, kn_f32_from_f16(half));
        if (c == 0 || error < best_error) {
            best = half;
            best_error = error;
        }
    }
    scale = kn_f32_from_f16(best);
    for (uint32_t i = 0; i < n; i++)
        q[i] = (int8_t)round_even(clip(w[i] / scale, -8.0F, 7.0F));
    return best;
}
