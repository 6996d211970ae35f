/* attention.h - scores, softmax and values over a list of cached positions, for one query row.
 *
 * Absorbed MLA: all heads read the same row [latent | rope key] of width rank + rope_dim, so heads
 * are the siblings of R1 and positions form the chain of the values. Prefill, decode, dense and
 * sparse are this one function of the list (numerics R4).
 *
 * Threads: any; a call works for one query row and a range of heads. */
#ifndef KERNELS_ATTENTION_H
#define KERNELS_ATTENTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A cache of rows of one layer and one sequence. */
typedef struct {
    const void *rows; /* row t at rows + t * row_bytes */
    size_t row_bytes;
    uint32_t width; /* values in a row */
    bool bf16;      /* else f32 */
} kn_cache_view;

/* score[h][i] = chain over k of fmaf(q[h][k], row(list[i])[k], acc), k ascending over the whole
 * width (latent, then rope part), then times scale.
 *   score  [heads][count];  q  [heads][q_stride] = absorbed query | rotated rope query
 *   list   [count] ascending positions */
void kn_attn_scores(float *score, const float *q, size_t q_stride, uint32_t heads,
                    const kn_cache_view *cache, const uint32_t *list, uint32_t count, float scale);

/* In place: e[i] = exp(s[i] - max s); returns kn_sum(e). NaN anywhere gives a NaN sum. */
float kn_softmax_exp(float *score, uint32_t count);

/* out[h][r] = (chain over i of fmaf(e[h][i], row(list[i])[r], acc)) / sum[h], r < rank. */
void kn_attn_values(float *out, size_t out_stride, const float *e, const float *sum, uint32_t heads,
                    uint32_t rank, const kn_cache_view *cache, const uint32_t *list,
                    uint32_t count);

/* Indexer: score[t] for t < count: per head a chain over dim of fmaf(q[h][k], key_t[k], acc), times
 * key_scale, then max(., +0), then a chain over heads ascending: acc = fmaf(weight[h], relu, acc).
 *   q  [heads][dim];  weight  [heads], already times heads^-0.5 */
void kn_index_scores(float *score, const float *q, const float *weight, uint32_t heads,
                     uint32_t dim, const kn_cache_view *keys, uint32_t count, float key_scale);

/* Writes one row of values into a cache row, rounded to its format (bf16: nearest even). */
void kn_cache_store(void *row, bool bf16, const float *values, uint32_t count);
void kn_cache_load(float *values, bool bf16, const void *row, uint32_t count);

#endif
