/* attention_blocks.h - attention cut into blocks, with the inner loops of a variant as leaves;
 * internal to this folder.
 *
 * Gathering, transposing and tails are the same for AVX2 and AVX-512 (attention_avx2.c); only the
 * loops over fused adds differ. */
#ifndef KERNELS_ATTENTION_BLOCKS_H
#define KERNELS_ATTENTION_BLOCKS_H

#include "kernels/ops.h"

#if KN_X86

enum {
    KN_ATTN_BLOCK = 16,   /* positions of a score block */
    KN_SCORE_WIDTH = 192, /* columns of a piece: 12 KiB transposed */
    KN_INDEX_WIDTH = 256, /* the widest index key done in blocks: 16 KiB */
    KN_VALUE_ROWS = 32,
    KN_VALUE_WIDTH = 128 /* 16 KiB of widened rows */
};

typedef struct {
    uint32_t count;   /* stride of score */
    uint32_t left;    /* positions of this block that exist */
    uint32_t width;   /* of the piece */
    bool first, last; /* piece */
    float scale;
} kn_score_step;

typedef struct {
    /* Continues all heads' chains of a block of positions over one piece of columns. */
    void (*scores)(float *score, const float *q, size_t q_stride, uint32_t heads,
                   const float (*block)[KN_ATTN_BLOCK], const kn_score_step *step);
    /* Continues all heads' chains of `width` columns over `rows` positions. */
    void (*values)(float *out, size_t out_stride, const float *e, size_t e_stride, uint32_t heads,
                   const float (*block)[KN_VALUE_WIDTH], uint32_t rows, uint32_t width);
    /* The index scores of a block of positions. */
    void (*index)(float *total, const float *q, const float *weight, uint32_t heads, uint32_t dim,
                  const float (*block)[KN_ATTN_BLOCK], float key_scale);
} kn_attn_leaves;

void kn_attn_scores_blocked(const kn_attn_leaves *leaves, float *score, const float *q,
                            size_t q_stride, uint32_t heads, const kn_cache_view *cache,
                            const uint32_t *list, uint32_t count, float scale);
void kn_attn_values_blocked(const kn_attn_leaves *leaves, float *out, size_t out_stride,
                            const float *e, const float *sum, uint32_t heads, uint32_t rank,
                            const kn_cache_view *cache, const uint32_t *list, uint32_t count);
void kn_index_scores_blocked(const kn_attn_leaves *leaves, float *score, const float *q,
                             const float *weight, uint32_t heads, uint32_t dim,
                             const kn_cache_view *keys, uint32_t count, float key_scale);

#endif
#endif
