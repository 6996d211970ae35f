/* rope.c - rope tables and the rotation. */
#include "kernels/rope.h"

#include "base/check.h"
#include "kernels/mathf.h"
#include "kernels/ops.h"

void kn_rope_inv_freq(double theta, uint32_t dim, float *inv)
{
    double log_theta = kn_log2_f64(theta);

    RT_ASSERT(dim % 2 == 0 && theta > 0);
    for (uint32_t j = 0; j < dim / 2; j++) {
        float exponent = (float)(2 * j) / (float)dim;
        float power = (float)kn_exp2_f64((double)exponent * log_theta);

        inv[j] = 1.0F / power;
    }
}

void kn_rope_angles(uint32_t pos, const float *inv, uint32_t dim, float *cos_out, float *sin_out)
{
    RT_ASSERT(dim % 2 == 0);
    for (uint32_t j = 0; j < dim / 2; j++) {
        float angle = (float)pos * inv[j];
        double sine, cosine;

        kn_sincos_f64((double)angle, &sine, &cosine);
        cos_out[j] = (float)cosine;
        sin_out[j] = (float)sine;
    }
}

void kn_ref_rope_apply(float *v, size_t stride, size_t count, const float *cos_in,
                       const float *sin_in, uint32_t dim)
{
    for (size_t i = 0; i < count; i++, v += stride) {
        for (uint32_t j = 0; j < dim / 2; j++) {
            float a = v[2 * j], b = v[2 * j + 1];
            float ac = a * cos_in[j], bs = b * sin_in[j];
            float bc = b * cos_in[j], as = a * sin_in[j];

            v[2 * j] = ac - bs;
            v[2 * j + 1] = bc + as;
        }
    }
}

void kn_rope_apply(float *v, size_t stride, size_t count, const float *cos_in, const float *sin_in,
                   uint32_t dim)
{
    RT_ASSERT(dim % 2 == 0 && (count <= 1 || stride >= dim));
    kn_ops_active()->rope_apply(v, stride, count, cos_in, sin_in, dim);
}
