/* attention_avx2.c - attention and index scores with AVX2.
 *
 * Scores: lanes are positions. A block of 16 cached rows is transposed once into a small buffer and
 * serves all heads. Values: lanes are columns of the latent; a block of rows is widened once and
 * serves all heads. Long chains are cut into pieces that fit the L1 cache; between two pieces the
 * accumulators wait in the output, which loses nothing. */
#include "kernels/attention_blocks.h"

#include "kernels/vec_avx2.h"

#include <string.h>

#if KN_X86

enum { HEADS = 4 }; /* 8 chains of fused adds side by side */

KN_AVX2_INLINE __m256 load_row8(const kn_cache_view *cache, const char *row, uint32_t k)
{
    if (cache->bf16) return kn_load8_bf16(row + (size_t)k * 2);
    return _mm256_loadu_ps((const float *)(const void *)(row + (size_t)k * 4));
}

static float row_value(const kn_cache_view *cache, const char *row, uint32_t k)
{
    float value;

    kn_ref_cache_load(&value, cache->bf16, row + (size_t)k * (cache->bf16 ? 2 : 4), 1);
    return value;
}

KN_AVX2_INLINE void transpose8(__m256 *v)
{
    __m256 t[8], u[8];

    KN_UNROLL
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(v[i], v[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
    }
    KN_UNROLL
    for (int i = 0; i < 8; i += 4) {
        u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    KN_UNROLL
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
        v[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
}

/* to[k][16] = rows' columns begin .. begin+width. */
KN_AVX2_FN static void transpose_block(float (*to)[KN_ATTN_BLOCK], const kn_cache_view *cache,
                                       const char *const *row, uint32_t begin, uint32_t width)
{
    uint32_t k = 0;

    for (; k + 8 <= width; k += 8) {
        for (uint32_t half = 0; half < KN_ATTN_BLOCK; half += 8) {
            __m256 v[8];

            KN_UNROLL
            for (uint32_t i = 0; i < 8; i++)
                v[i] = load_row8(cache, row[half + i], begin + k);
            transpose8(v);
            KN_UNROLL
            for (uint32_t i = 0; i < 8; i++)
                _mm256_storeu_ps(&to[k + i][half], v[i]);
        }
    }
    for (; k < width; k++)
        for (uint32_t i = 0; i < KN_ATTN_BLOCK; i++)
            to[k][i] = row_value(cache, row[i], begin + k);
}

/* Continues `heads` (1 or 4) chains of 16 positions over a piece: acc[h][2]. */
KN_AVX2_INLINE void score_piece(__m256 (*acc)[2], const float (*block)[KN_ATTN_BLOCK],
                                const float *q, size_t q_stride, uint32_t width, int heads)
{
    for (uint32_t k = 0; k < width; k++) {
        __m256 v0 = _mm256_loadu_ps(block[k]), v1 = _mm256_loadu_ps(block[k] + 8);

        KN_UNROLL
        for (int h = 0; h < heads; h++) {
            __m256 b = _mm256_broadcast_ss(q + (size_t)h * q_stride + k);

            acc[h][0] = _mm256_fmadd_ps(b, v0, acc[h][0]);
            acc[h][1] = _mm256_fmadd_ps(b, v1, acc[h][1]);
        }
    }
}

KN_AVX2_INLINE void score_heads(float *score, const float *q, size_t q_stride,
                                const float (*block)[KN_ATTN_BLOCK], const kn_score_step *step,
                                int heads)
{
    __m256 acc[HEADS][2];
    size_t second = step->left > 8 ? step->left - 8 : 0;

    KN_UNROLL
    for (int h = 0; h < heads; h++) {
        float *at = score + (size_t)h * step->count;

        acc[h][0] = step->first ? _mm256_setzero_ps() : kn_load8(at, step->left);
        acc[h][1] = step->first || second == 0 ? _mm256_setzero_ps() : kn_load8(at + 8, second);
    }
    score_piece(acc, block, q, q_stride, step->width, heads);
    KN_UNROLL
    for (int h = 0; h < heads; h++) {
        float *at = score + (size_t)h * step->count;
        __m256 scale = _mm256_set1_ps(step->scale);

        if (step->last) {
            acc[h][0] = _mm256_mul_ps(acc[h][0], scale);
            acc[h][1] = _mm256_mul_ps(acc[h][1], scale);
        }
        kn_store8(at, step->left, acc[h][0]);
        if (second > 0) kn_store8(at + 8, second, acc[h][1]);
    }
}

KN_AVX2_FN static void score_leaf(float *score, const float *q, size_t q_stride, uint32_t heads,
                                  const float (*block)[KN_ATTN_BLOCK], const kn_score_step *step)
{
    uint32_t h = 0;

    for (; h + HEADS <= heads; h += HEADS)
        score_heads(score + (size_t)h * step->count, q + h * q_stride, q_stride, block, step,
                    HEADS);
    for (; h < heads; h++)
        score_heads(score + (size_t)h * step->count, q + h * q_stride, q_stride, block, step, 1);
}

KN_AVX2_FN void kn_attn_scores_blocked(const kn_attn_leaves *leaves, float *score, const float *q,
                                       size_t q_stride, uint32_t heads, const kn_cache_view *cache,
                                       const uint32_t *list, uint32_t count, float scale)
{
    float block[KN_SCORE_WIDTH][KN_ATTN_BLOCK];
    const char *row[KN_ATTN_BLOCK];

    for (uint32_t i = 0; i < count; i += KN_ATTN_BLOCK) {
        uint32_t left = count - i < KN_ATTN_BLOCK ? count - i : KN_ATTN_BLOCK;

        /* Absent positions repeat the last one; their lanes are never stored. */
        for (uint32_t j = 0; j < KN_ATTN_BLOCK; j++)
            row[j] =
                (const char *)cache->rows + list[i + (j < left ? j : left - 1)] * cache->row_bytes;
        for (uint32_t k = 0; k < cache->width; k += KN_SCORE_WIDTH) {
            uint32_t rest = cache->width - k;
            kn_score_step step = {.count = count,
                                  .left = left,
                                  .width = rest < KN_SCORE_WIDTH ? rest : KN_SCORE_WIDTH,
                                  .first = k == 0,
                                  .last = rest <= KN_SCORE_WIDTH,
                                  .scale = scale};

            transpose_block(block, cache, row, k, step.width);
            leaves->scores(score + i, q + k, q_stride, heads, (const float(*)[KN_ATTN_BLOCK])block,
                           &step);
        }
    }
}

KN_AVX2_FN float kn_avx2_softmax_exp(float *score, uint32_t count)
{
    __m256 best = _mm256_set1_ps(-INFINITY);
    __m256 lane[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(),
                      _mm256_setzero_ps()};
    __m128 a;
    uint32_t i = 0;

    /* max_ps(v, best) gives best when v is NaN, as the reference's comparison does. */
    for (; i + 8 <= count; i += 8)
        best = _mm256_max_ps(_mm256_loadu_ps(score + i), best);
    a = _mm_max_ps(_mm256_castps256_ps128(best), _mm256_extractf128_ps(best, 1));
    a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    a = _mm_max_ss(a, _mm_movehdup_ps(a));
    for (; i < count; i++)
        a = _mm_max_ss(_mm_load_ss(score + i), a);
    best = _mm256_set1_ps(_mm_cvtss_f32(a));
    for (i = 0; i < count; i += 8) {
        size_t left = count - i;
        __m256 e = kn_exp8(_mm256_sub_ps(kn_load8(score + i, left), best));

        if (left < 8) e = _mm256_and_ps(e, _mm256_castsi256_ps(kn_tail_mask(left)));
        kn_store8(score + i, left, e);
        lane[i / 8 % 4] = _mm256_add_ps(lane[i / 8 % 4], e);
    }
    return kn_tree32(lane[0], lane[1], lane[2], lane[3]);
}

/* Continues `heads` chains over `rows` positions for 16 columns. */
KN_AVX2_INLINE void value_heads(float *out, size_t out_stride, const float *e, size_t e_stride,
                                const float (*block)[KN_VALUE_WIDTH], uint32_t rows, size_t left,
                                int heads)
{
    __m256 acc[HEADS][2];
    size_t second = left > 8 ? left - 8 : 0;

    KN_UNROLL
    for (int h = 0; h < heads; h++) {
        float *at = out + (size_t)h * out_stride;

        acc[h][0] = kn_load8(at, left);
        acc[h][1] = second > 0 ? kn_load8(at + 8, second) : _mm256_setzero_ps();
    }
    for (uint32_t i = 0; i < rows; i++) {
        __m256 v0 = _mm256_loadu_ps(block[i]), v1 = _mm256_loadu_ps(block[i] + 8);

        KN_UNROLL
        for (int h = 0; h < heads; h++) {
            __m256 b = _mm256_broadcast_ss(e + (size_t)h * e_stride + i);

            acc[h][0] = _mm256_fmadd_ps(b, v0, acc[h][0]);
            acc[h][1] = _mm256_fmadd_ps(b, v1, acc[h][1]);
        }
    }
    KN_UNROLL
    for (int h = 0; h < heads; h++) {
        float *at = out + (size_t)h * out_stride;

        kn_store8(at, left, acc[h][0]);
        if (second > 0) kn_store8(at + 8, second, acc[h][1]);
    }
}

/* Adds positions of one block to columns begin .. begin+width of all heads. */
KN_AVX2_FN static void value_leaf(float *out, size_t out_stride, const float *e, size_t e_stride,
                                  uint32_t heads, const float (*block)[KN_VALUE_WIDTH],
                                  uint32_t rows, uint32_t width)
{
    for (uint32_t h = 0; h < heads;) {
        int step = h + HEADS <= heads ? HEADS : 1;

        for (uint32_t r = 0; r < width; r += 16) {
            float *to = out + h * out_stride + r;
            const float(*from)[KN_VALUE_WIDTH] =
                (const float(*)[KN_VALUE_WIDTH])(const void *)(&block[0][r]);

            if (step == HEADS)
                value_heads(to, out_stride, e + h * e_stride, e_stride, from, rows, width - r,
                            HEADS);
            else
                value_heads(to, out_stride, e + h * e_stride, e_stride, from, rows, width - r, 1);
        }
        h += (uint32_t)step;
    }
}

KN_AVX2_FN void kn_attn_values_blocked(const kn_attn_leaves *leaves, float *out, size_t out_stride,
                                       const float *e, const float *sum, uint32_t heads,
                                       uint32_t rank, const kn_cache_view *cache,
                                       const uint32_t *list, uint32_t count)
{
    float block[KN_VALUE_ROWS][KN_VALUE_WIDTH];
    size_t value_bytes = cache->bf16 ? 2 : 4;

    memset(block, 0, sizeof(block));
    for (uint32_t h = 0; h < heads; h++)
        memset(out + h * out_stride, 0, rank * sizeof(float));
    for (uint32_t r = 0; r < rank; r += KN_VALUE_WIDTH) {
        uint32_t width = rank - r < KN_VALUE_WIDTH ? rank - r : KN_VALUE_WIDTH;

        for (uint32_t i = 0; i < count; i += KN_VALUE_ROWS) {
            uint32_t rows = count - i < KN_VALUE_ROWS ? count - i : KN_VALUE_ROWS;

            for (uint32_t j = 0; j < rows; j++)
                kn_avx2_cache_load(block[j], cache->bf16,
                                   (const char *)cache->rows + list[i + j] * cache->row_bytes +
                                       r * value_bytes,
                                   width);
            leaves->values(out + r, out_stride, e + i, count, heads,
                           (const float(*)[KN_VALUE_WIDTH])block, rows, width);
        }
    }
    for (uint32_t h = 0; h < heads; h++) {
        float *at = out + h * out_stride;
        const __m256 d = _mm256_set1_ps(sum[h]);

        for (uint32_t r = 0; r < rank; r += 8)
            kn_store8(at + r, rank - r, _mm256_div_ps(kn_load8(at + r, rank - r), d));
    }
}

/* Adds `heads` index heads to the totals of 16 positions. */
KN_AVX2_INLINE void index_heads(__m256 *total, const float *q, const float *weight,
                                const float (*block)[KN_ATTN_BLOCK], uint32_t dim, float key_scale,
                                int heads)
{
    const __m256 scale = _mm256_set1_ps(key_scale), zero = _mm256_setzero_ps();
    __m256 acc[HEADS][2];

    KN_UNROLL
    for (int h = 0; h < heads; h++)
        acc[h][0] = acc[h][1] = zero;
    score_piece(acc, block, q, dim, dim, heads);
    KN_UNROLL
    for (int h = 0; h < heads; h++) {
        __m256 w = _mm256_set1_ps(weight[h]);

        /* max_ps gives its second operand when that is NaN: a NaN stays. */
        KN_UNROLL
        for (int j = 0; j < 2; j++)
            total[j] =
                _mm256_fmadd_ps(w, _mm256_max_ps(zero, _mm256_mul_ps(acc[h][j], scale)), total[j]);
    }
}

KN_AVX2_FN static void index_leaf(float *total, const float *q, const float *weight, uint32_t heads,
                                  uint32_t dim, const float (*block)[KN_ATTN_BLOCK],
                                  float key_scale)
{
    __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    uint32_t h = 0;

    for (; h + HEADS <= heads; h += HEADS)
        index_heads(sum, q + (size_t)h * dim, weight + h, block, dim, key_scale, HEADS);
    for (; h < heads; h++)
        index_heads(sum, q + (size_t)h * dim, weight + h, block, dim, key_scale, 1);
    _mm256_storeu_ps(total, sum[0]);
    _mm256_storeu_ps(total + 8, sum[1]);
}

KN_AVX2_FN void kn_index_scores_blocked(const kn_attn_leaves *leaves, float *score, const float *q,
                                        const float *weight, uint32_t heads, uint32_t dim,
                                        const kn_cache_view *keys, uint32_t count, float key_scale)
{
    float block[KN_INDEX_WIDTH][KN_ATTN_BLOCK], total[KN_ATTN_BLOCK];
    const char *row[KN_ATTN_BLOCK];

    if (dim > KN_INDEX_WIDTH) {
        kn_ref_index_scores(score, q, weight, heads, dim, keys, count, key_scale);
        return;
    }
    for (uint32_t t = 0; t < count; t += KN_ATTN_BLOCK) {
        uint32_t left = count - t < KN_ATTN_BLOCK ? count - t : KN_ATTN_BLOCK;

        for (uint32_t j = 0; j < KN_ATTN_BLOCK; j++)
            row[j] = (const char *)keys->rows + (t + (j < left ? j : left - 1)) * keys->row_bytes;
        transpose_block(block, keys, row, 0, dim);
        leaves->index(total, q, weight, heads, dim, (const float(*)[KN_ATTN_BLOCK])block,
                      key_scale);
        memcpy(score + t, total, left * sizeof(float));
    }
}

static const kn_attn_leaves avx2_leaves = {score_leaf, value_leaf, index_leaf};

void kn_avx2_attn_scores(float *score, const float *q, size_t q_stride, uint32_t heads,
                         const kn_cache_view *cache, const uint32_t *list, uint32_t count,
                         float scale)
{
    kn_attn_scores_blocked(&avx2_leaves, score, q, q_stride, heads, cache, list, count, scale);
}

void kn_avx2_attn_values(float *out, size_t out_stride, const float *e, const float *sum,
                         uint32_t heads, uint32_t rank, const kn_cache_view *cache,
                         const uint32_t *list, uint32_t count)
{
    kn_attn_values_blocked(&avx2_leaves, out, out_stride, e, sum, heads, rank, cache, list, count);
}

void kn_avx2_index_scores(float *score, const float *q, const float *weight, uint32_t heads,
                          uint32_t dim, const kn_cache_view *keys, uint32_t count, float key_scale)
{
    kn_index_scores_blocked(&avx2_leaves, score, q, weight, heads, dim, keys, count, key_scale);
}

KN_AVX2_FN void kn_avx2_cache_store(void *row, bool bf16, const float *values, uint32_t count)
{
    uint32_t i = 0;

    if (!bf16) {
        memcpy(row, values, (size_t)count * sizeof(float));
        return;
    }
    for (; i + 8 <= count; i += 8) {
        __m256 v = _mm256_loadu_ps(values + i);
        __m256i u = _mm256_castps_si256(v);
        __m256i high = _mm256_srli_epi32(u, 16);
        __m256i even = _mm256_and_si256(high, _mm256_set1_epi32(1));
        __m256i rounded = _mm256_srli_epi32(
            _mm256_add_epi32(u, _mm256_add_epi32(even, _mm256_set1_epi32(0x7fff))), 16);
        __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));

        rounded = _mm256_blendv_epi8(rounded, _mm256_or_si256(high, _mm256_set1_epi32(0x40)), nan);
        rounded = _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded, rounded), 0xd8);
        _mm_storeu_si128((__m128i *)(void *)((uint16_t *)row + i), _mm256_castsi256_si128(rounded));
    }
    kn_ref_cache_store((uint16_t *)row + i, true, values + i, count - i);
}

KN_AVX2_FN void kn_avx2_cache_load(float *values, bool bf16, const void *row, uint32_t count)
{
    uint32_t i = 0;

    if (!bf16) {
        memcpy(values, row, (size_t)count * sizeof(float));
        return;
    }
    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(values + i, kn_load8_bf16((const uint16_t *)row + i));
    kn_ref_cache_load(values + i, true, (const uint16_t *)row + i, count - i);
}

#endif
