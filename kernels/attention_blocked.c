/* attention_blocked.c - attention and index scores cut into blocks that serve all heads.
 *
 * Scores: lanes are positions. A block of cached rows is transposed once into a small buffer.
 * Values: lanes are columns of the latent; a block of rows is widened once. Long chains are cut
 * into pieces that fit the L1 cache; between two pieces the accumulators wait in the output, which
 * loses nothing. The inner loops are the leaves of a variant. */
#include "kernels/attention_blocks.h"

#include "kernels/vec_avx2.h"

#include <string.h>

#if KN_X86

static float row_value(const kn_cache_view *cache, const char *row, uint32_t k)
{
    float value;

    kn_ref_cache_load(&value, cache->bf16, row + (size_t)k * (cache->bf16 ? 2 : 4), 1);
    return value;
}

/* to[k][i] = rows' columns begin .. begin+width. */
KN_AVX2_FN static void transpose_block(float (*to)[KN_ATTN_BLOCK], const kn_cache_view *cache,
                                       const char *const *row, uint32_t begin, uint32_t width)
{
    size_t value_bytes = cache->bf16 ? 2 : 4;
    uint32_t whole = width / 8 * 8;

    for (uint32_t i = 0; i < KN_ATTN_BLOCK; i += 8) {
        for (uint32_t k = 0; k < whole; k += 8) {
            size_t offset = (begin + k) * value_bytes;

            if (cache->bf16)
                kn_transpose_8(&to[k][i], KN_ATTN_BLOCK, row + i, offset, true);
            else
                kn_transpose_8(&to[k][i], KN_ATTN_BLOCK, row + i, offset, false);
        }
    }
    for (uint32_t k = whole; k < width; k++)
        for (uint32_t i = 0; i < KN_ATTN_BLOCK; i++)
            to[k][i] = row_value(cache, row[i], begin + k);
}

static_assert((int)KN_ATTN_BLOCK <= (int)KN_WINDOW_MAX && (int)KN_VALUE_ROWS <= (int)KN_WINDOW_MAX,
              "a window has room for a block");

/* Absent positions repeat the last; what is computed from them is never stored. */
static void find_rows(kn_row_window *w, uint32_t begin)
{
    uint32_t left = w->count - begin;

    for (uint32_t j = 0; j < w->size; j++) {
        size_t at = begin + (j < left ? j : left - 1);

        if (w->list != NULL) at = w->list[at];
        w->row[w->now][j] = (const char *)w->cache->rows + at * w->cache->row_bytes;
    }
}

const char *const *kn_window_next(kn_row_window *w, uint32_t begin)
{
    const char *const *row = w->row[w->now];
    uint32_t asks = w->steps / KN_AHEAD_STEPS / w->size; /* for a row */

    if (begin == 0) find_rows(w, 0);
    w->ahead = (kn_ahead){0};
    if (w->count - begin <= w->size) return row;
    w->now ^= 1;
    find_rows(w, begin + w->size);
    if (asks == 0) asks = 1;
    w->ahead.row = w->row[w->now];
    w->ahead.size = w->size;
    w->ahead.bytes = w->cache->width * (w->cache->bf16 ? 2 : 4);
    w->ahead.step = (w->ahead.bytes + asks - 1) / asks;
    w->ahead.lines = (w->ahead.step + 63) / 64;
    return row;
}

/* Steps of a leaf over `width` columns and as many lanes for each head. */
static uint32_t leaf_steps(const kn_attn_leaves *leaves, uint32_t heads, uint32_t steps,
                           uint32_t lanes)
{
    return (heads + leaves->heads - 1) / leaves->heads * steps *
           ((lanes + leaves->lanes - 1) / leaves->lanes);
}

KN_AVX2_FN void kn_attn_scores_blocked(const kn_attn_leaves *leaves, float *score, const float *q,
                                       size_t q_stride, uint32_t heads, const kn_cache_view *cache,
                                       const uint32_t *list, uint32_t count, float scale)
{
    _Alignas(64) float block[KN_SCORE_WIDTH][KN_ATTN_BLOCK];
    kn_row_window window = {.cache = cache, .list = list, .count = count, .size = KN_ATTN_BLOCK};

    window.steps = leaf_steps(leaves, heads, cache->width, KN_ATTN_BLOCK);
    for (uint32_t i = 0; i < count; i += KN_ATTN_BLOCK) {
        const char *const *row = kn_window_next(&window, i);

        for (uint32_t k = 0; k < cache->width; k += KN_SCORE_WIDTH) {
            uint32_t rest = cache->width - k;
            kn_score_step step = {.count = count,
                                  .left = count - i < KN_ATTN_BLOCK ? count - i : KN_ATTN_BLOCK,
                                  .width = rest < KN_SCORE_WIDTH ? rest : KN_SCORE_WIDTH,
                                  .first = k == 0,
                                  .last = rest <= KN_SCORE_WIDTH,
                                  .scale = scale,
                                  .ahead = &window.ahead};

            transpose_block(block, cache, row, k, step.width);
            leaves->scores(score + i, q + k, q_stride, heads, (const float(*)[KN_ATTN_BLOCK])block,
                           &step);
        }
    }
}

/* The latents of all heads over one piece of columns. */
static void values_piece(const kn_attn_leaves *leaves, float *out, size_t out_stride,
                         const float *e, uint32_t heads, const kn_cache_view *piece,
                         const uint32_t *list, uint32_t count)
{
    _Alignas(64) float block[KN_VALUE_ROWS][KN_VALUE_WIDTH];
    kn_row_window window = {.cache = piece, .list = list, .count = count, .size = KN_VALUE_ROWS};

    window.steps = leaf_steps(leaves, heads, KN_VALUE_ROWS, piece->width);
    memset(block, 0, sizeof(block)); /* columns that do not exist */
    for (uint32_t i = 0; i < count; i += KN_VALUE_ROWS) {
        uint32_t rows = count - i < KN_VALUE_ROWS ? count - i : KN_VALUE_ROWS;
        const char *const *row = kn_window_next(&window, i);

        for (uint32_t j = 0; j < rows; j++)
            leaves->load(block[j], piece->bf16, row[j], piece->width);
        leaves->values(out, out_stride, e + i, count, heads, (const float(*)[KN_VALUE_WIDTH])block,
                       rows, piece->width, &window.ahead);
    }
}

KN_AVX2_FN void kn_attn_values_blocked(const kn_attn_leaves *leaves, float *out, size_t out_stride,
                                       const float *e, const float *sum, uint32_t heads,
                                       uint32_t rank, const kn_cache_view *cache,
                                       const uint32_t *list, uint32_t count)
{
    for (uint32_t h = 0; h < heads; h++)
        memset(out + h * out_stride, 0, rank * sizeof(float));
    for (uint32_t r = 0; r < rank; r += KN_VALUE_WIDTH) {
        kn_cache_view piece = *cache;

        piece.rows = (const char *)cache->rows + r * (cache->bf16 ? 2 : 4);
        piece.width = rank - r < KN_VALUE_WIDTH ? rank - r : KN_VALUE_WIDTH;
        values_piece(leaves, out + r, out_stride, e, heads, &piece, list, count);
    }
    for (uint32_t h = 0; h < heads; h++) {
        float *at = out + h * out_stride;
        const __m256 d = _mm256_set1_ps(sum[h]);

        for (uint32_t r = 0; r < rank; r += 8)
            kn_store8(at + r, rank - r, _mm256_div_ps(kn_load8(at + r, rank - r), d));
    }
}

KN_AVX2_FN void kn_index_scores_blocked(const kn_attn_leaves *leaves, float *score, const float *q,
                                        const float *weight, uint32_t heads, uint32_t dim,
                                        const kn_cache_view *keys, uint32_t count, float key_scale)
{
    _Alignas(64) float block[KN_INDEX_WIDTH][KN_ATTN_BLOCK];
    float total[KN_ATTN_BLOCK];
    kn_row_window window = {.cache = keys, .count = count, .size = KN_ATTN_BLOCK};

    if (dim > KN_INDEX_WIDTH) {
        kn_ref_index_scores(score, q, weight, heads, dim, keys, count, key_scale);
        return;
    }
    window.steps = leaf_steps(leaves, heads, dim, KN_ATTN_BLOCK);
    for (uint32_t t = 0; t < count; t += KN_ATTN_BLOCK) {
        uint32_t left = count - t < KN_ATTN_BLOCK ? count - t : KN_ATTN_BLOCK;
        const char *const *row = kn_window_next(&window, t);

        transpose_block(block, keys, row, 0, dim);
        leaves->index(total, q, weight, heads, dim, (const float(*)[KN_ATTN_BLOCK])block, key_scale,
                      &window.ahead);
        memcpy(score + t, total, left * sizeof(float));
    }
}

#endif
