/* grid_q.c - the grid exponent from weights. Every order of summation is part of the model id. */
#include "model/convert/grid_q.h"

#include "base/check.h"
#include "kernels/mathf.h"

#include <stdlib.h>

enum { LANES = 8 }; /* independent chains: as fast as the memory, and still one written order */

/* Lane l sums the elements l, l+8, ... ascending; then (0+4)+(2+6) and (1+5)+(3+7). */
static double row_norm(const float *weights, uint32_t hidden, const float *norm)
{
    double lane[LANES] = {0};
    uint32_t c = 0;

    for (; c + LANES <= hidden; c += LANES) {
        for (uint32_t l = 0; l < LANES; l++) {
            double v = (double)weights[c + l] * (double)norm[c + l];

            lane[l] += v * v;
        }
    }
    for (uint32_t l = 0; c + l < hidden; l++) {
        double v = (double)weights[c + l] * (double)norm[c + l];

        lane[l] += v * v;
    }
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
           ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

void md_grid_row_norms(const float *weights, uint32_t rows, uint32_t hidden, const float *norm,
                       double *out)
{
    for (uint32_t r = 0; r < rows; r++)
        out[r] = row_norm(weights + (size_t)r * hidden, hidden, norm);
}

void md_grid_column_norms(const float *weights, uint32_t rows, uint32_t inter, double *out)
{
    for (uint32_t r = 0; r < rows; r++) {
        const float *row = weights + (size_t)r * inter;

        for (uint32_t j = 0; j < inter; j++)
            out[j] += (double)row[j] * (double)row[j];
    }
}

double md_grid_expert_power(const double *gate, const double *up, const double *down,
                            uint32_t inter, uint32_t hidden)
{
    double sum = 0;

    RT_ASSERT(hidden > 0);
    for (uint32_t j = 0; j < inter; j++)
        sum += gate[j] * up[j] * down[j];
    return 0.375 / (double)hidden * sum;
}

static int compare_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

double md_grid_median(double *powers, uint32_t count)
{
    RT_ASSERT(count > 0);
    qsort(powers, count, sizeof(*powers), compare_double);
    if (count % 2 == 1) return powers[count / 2];
    return (powers[count / 2 - 1] + powers[count / 2]) * 0.5;
}

int8_t md_grid_q(double routed_power, double shared_power, float routed_scale, uint32_t topk,
                 bool fine)
{
    double scale = (double)routed_scale;
    double power = scale * scale / (double)topk * routed_power + shared_power;
    int bits = fine ? MD_GRID_BITS_FINE : MD_GRID_BITS;
    double log_typical, wanted;
    int rounded;

    RT_ASSERT(topk > 0);
    /* All weights zero, or beyond f64: no scale to predict; any q is correct. */
    if (!(power > 0)) return MD_GRID_Q_MAX;
    if (!(power < 1e300)) return MD_GRID_Q_MIN;
    log_typical = 2.0 + 0.5 * kn_log2_f64(power); /* log2(4 P) */
    wanted = log_typical + 0.5;
    rounded = (int)wanted;
    if ((double)rounded > wanted) rounded--; /* floor: half rounds up */
    if (bits - rounded < MD_GRID_Q_MIN) return MD_GRID_Q_MIN;
    if (bits - rounded > MD_GRID_Q_MAX) return MD_GRID_Q_MAX;
    return (int8_t)(bits - rounded);
}
