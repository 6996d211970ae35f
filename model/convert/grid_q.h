/* grid_q.h - the exponent of a layer's integer grid (numerics R3), predicted from its weights.
 *
 * q only sets the precision of the exact combine, never a limit, so a prediction is enough: the rms
 * of a MoE layer's output row for an input of unit rms, from the norms of the weights.
 *
 *   P_e^2 = (3/8)/H * sum_j |G_j o n|^2 |U_j o n|^2 |D_:j|^2     n: the post-attention norm's
 * weight P^2   = (s^2/k) * median_e P_e^2 + P_shared^2                s: scaling factor, k: experts
 * a token q     = B - round(log2(4 P)), within -40..60                 B: 13, or 22 for --grid fine
 *
 * The median and not the mean: one super expert must not coarsen the layer. The factor 4: trained
 * experts answer their inputs 4 to 8 times stronger than independent ones would (docs/numerics.md).
 * All in f64 in the order written in grid_q.c, so that the same source gives the same q anywhere.
 *
 * Threads: any, each with its own state. */
#ifndef MODEL_CONVERT_GRID_Q_H
#define MODEL_CONVERT_GRID_Q_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MD_GRID_BITS = 13, MD_GRID_BITS_FINE = 22, MD_GRID_Q_MIN = -40, MD_GRID_Q_MAX = 60 };

/* |row o n|^2 for each of `rows` rows of gate or up: out [rows]. norm [hidden]. */
void md_grid_row_norms(const float *weights, uint32_t rows, uint32_t hidden, const float *norm,
                       double *out);

/* Adds the squares of `rows` rows of down to its column norms: out [inter], zeroed by the caller
 * before the first rows; rows come in ascending order. */
void md_grid_column_norms(const float *weights, uint32_t rows, uint32_t inter, double *out);

/* P_e^2 of one expert. */
double md_grid_expert_power(const double *gate, const double *up, const double *down,
                            uint32_t inter, uint32_t hidden);

/* The median; an even count gives the mean of the middle two. Sorts powers. count > 0. */
double md_grid_median(double *powers, uint32_t count);

/* q of a layer. routed_power: the median of the routed experts' P_e^2. */
int8_t md_grid_q(double routed_power, double shared_power, float routed_scale, uint32_t topk,
                 bool fine);

#endif
