/* attention_blocks.h - attention cut into blocks, with the inner loops of a variant as leaves;
 * internal to this folder.
 *
 * Gathering and transposing are the same for AVX2 and AVX-512 (attention_blocked.c); only the loops
 * over fused adds differ. They take a few heads at a time, each with its own chain per lane. */
#ifndef KERNELS_ATTENTION_BLOCKS_H
#define KERNELS_ATTENTION_BLOCKS_H

#include "kernels/ops.h"

#if KN_X86

#include <assert.h>
#include <immintrin.h>

enum {
    KN_ATTN_BLOCK = 48,   /* positions of a score block */
    KN_SCORE_WIDTH = 144, /* columns of a piece: 27 KiB transposed */
    KN_INDEX_WIDTH = 256, /* the widest index key done in blocks */
    KN_VALUE_ROWS = 32,
    KN_VALUE_WIDTH = 192, /* columns of a piece: 24 KiB of widened rows */
    KN_WINDOW_MAX = 80    /* positions of the largest block of any variant */
};

/* How many of `left` heads a leaf takes next: `most` (6 or 8), or what a tail is made of. */
static inline uint32_t kn_heads_step(uint32_t left, uint32_t most)
{
    return left >= most ? most : left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

/* Calls CASE with n as a constant, which the loops over heads need. */
#define KN_HEADS_SWITCH(n, CASE)                                                                   \
    if (n == HEADS)                                                                                \
        CASE(HEADS);                                                                               \
    else if (n == 4)                                                                               \
        CASE(4);                                                                                   \
    else if (n == 2)                                                                               \
        CASE(2);                                                                                   \
    else                                                                                           \
        CASE(1);

/* The rows of the next block, which lie anywhere in memory: a leaf asks for a few lines of them
 * every KN_AHEAD_STEPS steps of its loops, so that they are in the second-level cache when their
 * turn comes. Asked for in one burst they would hold up the loads of the block at hand; one a step
 * costs a tenth of the speed. */
typedef struct {
    const char *const *row; /* [size] */
    uint32_t size, bytes;   /* rows, and bytes of each: row by row, as a prefetcher likes it */
    uint32_t next, at;      /* row and byte */
    uint32_t step, lines;   /* bytes to ask for at a time, and the lines they may fill */
} kn_ahead;

enum { KN_AHEAD_STEPS = 8 };

/* As many lines each time: a branch that is foretold wrongly costs more than to ask twice. */
static inline void kn_ahead_ask(kn_ahead *ahead)
{
    uintptr_t at;

    if (ahead->next >= ahead->size) return;
    at = (uintptr_t)ahead->row[ahead->next] + ahead->at;
    for (uint32_t i = 0; i < ahead->lines; i++, at += 64)
        __builtin_prefetch((const void *)at, 0, 2);
    ahead->at += ahead->step;
    if (ahead->at < ahead->bytes) return;
    ahead->at = 0;
    ahead->next++;
}

/* The rows of this block of positions and of the next one. */
typedef struct {
    const kn_cache_view *cache;
    const uint32_t *list; /* NULL: all positions */
    uint32_t count, size; /* positions in all and of a block */
    uint32_t steps;       /* of the leaf's loops, over one block */
    uint32_t now;
    const char *row[2][KN_WINDOW_MAX];
    kn_ahead ahead;
} kn_row_window;

/* Returns the rows of the block at `begin` and sets up asking for those of the next one. They need
 * no alignment, so a row may touch a line more than it fills. */
const char *const *kn_window_next(kn_row_window *w, uint32_t begin);

/* 16 bytes of one row in the low half, of another in the high half. */
KN_AVX2_INLINE __m256i kn_load_halves(const char *low, const char *high)
{
    return _mm256_inserti128_si256(
        _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)low)),
        _mm_loadu_si128((const __m128i *)(const void *)high), 1);
}

/* v[i] holds four columns of rows i (low half) and i + 4; afterwards the rows of column i. */
KN_AVX2_INLINE void kn_transpose_quads(__m256 *v)
{
    __m256 a = _mm256_unpacklo_ps(v[0], v[1]), b = _mm256_unpackhi_ps(v[0], v[1]);
    __m256 c = _mm256_unpacklo_ps(v[2], v[3]), d = _mm256_unpackhi_ps(v[2], v[3]);

    v[0] = _mm256_shuffle_ps(a, c, 0x44);
    v[1] = _mm256_shuffle_ps(a, c, 0xee);
    v[2] = _mm256_shuffle_ps(b, d, 0x44);
    v[3] = _mm256_shuffle_ps(b, d, 0xee);
}

/* Eight columns of eight rows. Halves of two rows meet when they are loaded, so that no shuffle
 * crosses halves: those have one port on Intel's processors, the others two. */
KN_AVX2_INLINE void kn_transpose_8(float *to, size_t to_stride, const char *const *row,
                                   size_t offset, bool bf16)
{
    __m256 left[4], right[4];

    KN_UNROLL
    for (int i = 0; i < 4; i++) {
        __m256i v = kn_load_halves(row[i] + offset, row[i + 4] + offset);

        if (bf16) {
            const __m256i zero = _mm256_setzero_si256();

            left[i] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, v));
            right[i] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, v));
        } else {
            left[i] = _mm256_castsi256_ps(v);
            right[i] =
                _mm256_castsi256_ps(kn_load_halves(row[i] + offset + 16, row[i + 4] + offset + 16));
        }
    }
    kn_transpose_quads(left);
    kn_transpose_quads(right);
    KN_UNROLL
    for (size_t i = 0; i < 4; i++) {
        _mm256_storeu_ps(to + i * to_stride, left[i]);
        _mm256_storeu_ps(to + (i + 4) * to_stride, right[i]);
    }
}

typedef struct {
    uint32_t count;   /* stride of score */
    uint32_t left;    /* positions of this block that exist */
    uint32_t width;   /* of the piece */
    bool first, last; /* piece */
    float scale;
    kn_ahead *ahead;
} kn_score_step;

typedef struct {
    uint32_t heads, lanes; /* of one loop */
    /* Widens one row of a cache. NULL, as is values: kn_attn_values_blocked is not used. */
    void (*load)(float *values, bool bf16, const void *row, uint32_t count);
    /* Continues all heads' chains of a block of positions over one piece of columns. */
    void (*scores)(float *score, const float *q, size_t q_stride, uint32_t heads,
                   const float (*block)[KN_ATTN_BLOCK], const kn_score_step *step);
    /* Continues all heads' chains of `width` columns over `rows` positions. */
    void (*values)(float *out, size_t out_stride, const float *e, size_t e_stride, uint32_t heads,
                   const float (*block)[KN_VALUE_WIDTH], uint32_t rows, uint32_t width,
                   kn_ahead *ahead);
    /* The index scores of a block of positions. */
    void (*index)(float *total, const float *q, const float *weight, uint32_t heads, uint32_t dim,
                  const float (*block)[KN_ATTN_BLOCK], float key_scale, kn_ahead *ahead);
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
