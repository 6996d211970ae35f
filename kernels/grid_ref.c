/* grid_ref.c - contributions onto the grid in plain C. */
#include "kernels/ops.h"

#include "kernels/grid_bits.h"

#include <string.h>

uint32_t kn_ref_grid_max(const float *y, float ws, size_t n)
{
    uint32_t best = 0;

    for (size_t i = 0; i < n; i++) {
        float v = y[i] * ws;
        uint32_t bits;

        memcpy(&bits, &v, sizeof(bits));
        bits &= 0x7fffffffU;
        if (bits > best) best = bits;
    }
    return best;
}

kn_grid_class kn_ref_grid_add(int32_t *acc, const float *y, float ws, size_t n)
{
    kn_grid_class found = kn_grid_class_of(kn_ref_grid_max(y, ws, n));

    if (found != KN_GRID_NARROW) return found;
    for (size_t i = 0; i < n; i++)
        acc[i] = (int32_t)((uint32_t)acc[i] + (uint32_t)kn_grid_round(y[i] * ws));
    return KN_GRID_NARROW;
}

void kn_ref_grid_finish(float *out, const int32_t *narrow, size_t n, float unit)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (float)narrow[i] * unit;
}
