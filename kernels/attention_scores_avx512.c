/* attention_scores_avx512.c - scores of many heads with AVX-512.
 *
 * Lanes are heads: the queries are transposed once a call, a cached value is broadcast to them, and
 * all that rows need is widening (with positions as lanes, transposing every row took a tenth of the
 * time). Six positions times 64 heads are 24 chains of fused adds that share ten loads; fewer heads take
 * more positions instead. Sums of a block wait in one small buffer between pieces of columns; in the
 * scores themselves, whose rows lie thousands of bytes apart, they would push each other out of the
 * cache.
 *
 * Few heads would leave lanes empty: they take the way of attention_blocked.c. */
#include "kernels/attention_avx512.h"

#if KN_X86

enum {
    LANES = 64,     /* heads of a pass over the positions */
    CHAINS = 24,    /* registers of sums, of 32 */
    BLOCK = 48,     /* positions: a multiple of what a leaf takes */
    PIECE = 96,     /* columns of queries in the L1 cache: 24 KiB */
    WIDTH_MAX = 640 /* of cached rows */
};
static_assert((int)BLOCK <= (int)KN_WINDOW_MAX, "a window has room for a block");

typedef struct {
    _Alignas(64) float q[WIDTH_MAX][LANES]; /* [width][lanes]: fewer heads lie closer */
    float sum[BLOCK][LANES];                /* likewise */
    float row[CHAINS][PIECE];               /* of a leaf */
} memory;

typedef struct {
    memory *m;
    float *score;
    uint32_t heads, lanes, count, width;
    uint32_t rows; /* of a leaf: CHAINS registers hold rows x lanes */
    bool bf16;
    float scale;
} pass;

/* One leaf: a piece of columns of `rows` positions. */
typedef struct {
    const float *q, *row;
    uint32_t steps;
    bool first, last;
    float scale;
    kn_ahead *ahead;
} leaf_step;

KN_AVX512_INLINE void leaf(float *sum, const leaf_step *step, int vectors)
{
    const int rows = CHAINS / vectors;
    const float *q = step->q, *x = step->row;
    __m512 acc[CHAINS];

    KN_UNROLL_24
    for (int c = 0; c < CHAINS; c++)
        acc[c] = step->first ? _mm512_setzero_ps() : _mm512_load_ps(sum + 16 * c);
    for (uint32_t k = 0; k < step->steps;) {
        uint32_t end = step->steps - k < KN_AHEAD_STEPS ? step->steps : k + KN_AHEAD_STEPS;

        kn_ahead_ask(step->ahead);
        for (; k < end; k++, q += 16 * (size_t)vectors, x++) {
            __m512 v[4];

            KN_UNROLL
            for (int i = 0; i < vectors; i++)
                v[i] = _mm512_load_ps(q + 16 * i);
            /* gcc 12 otherwise puts one of them on the stack: a fifth of the speed. */
            KN_UNROLL
            for (int i = 0; i < vectors; i++)
                __asm__("" : "+v"(v[i]));
            KN_UNROLL_24
            for (int r = 0; r < rows; r++) {
                __m512 b = _mm512_set1_ps(x[(size_t)r * PIECE]);

                KN_UNROLL
                for (int i = 0; i < vectors; i++)
                    acc[r * vectors + i] = _mm512_fmadd_ps(b, v[i], acc[r * vectors + i]);
            }
        }
    }
    if (step->last) {
        KN_UNROLL_24
        for (int c = 0; c < CHAINS; c++)
            acc[c] = _mm512_mul_ps(acc[c], _mm512_set1_ps(step->scale));
    }
    KN_UNROLL_24
    for (int c = 0; c < CHAINS; c++)
        _mm512_store_ps(sum + 16 * c, acc[c]);
}

KN_AVX512_FN static void run_leaf(float *sum, const leaf_step *step, uint32_t lanes)
{
    if (lanes == 64)
        leaf(sum, step, 4);
    else if (lanes == 48)
        leaf(sum, step, 3);
    else if (lanes == 32)
        leaf(sum, step, 2);
    else
        leaf(sum, step, 1);
}

/* to[k][j] = x[j][k] for j < lanes, a multiple of 8; absent rows repeat the last. */
KN_AVX512_FN static void transpose(float *to, size_t to_stride, const float *x, size_t stride,
                                   uint32_t rows, uint32_t lanes, uint32_t width)
{
    uint32_t whole = width / 8 * 8;

    for (uint32_t j = 0; j < lanes; j += 8) {
        const char *row[8];

        for (uint32_t i = 0; i < 8; i++)
            row[i] = (const char *)(x + (j + i < rows ? j + i : rows - 1) * stride);
        for (uint32_t k = 0; k < whole; k += 8)
            kn_transpose_8(to + k * to_stride + j, to_stride, row, k * sizeof(float), false);
        for (uint32_t k = whole; k < width; k++)
            for (uint32_t i = 0; i < 8; i++)
                to[k * to_stride + j + i] = x[(j + i < rows ? j + i : rows - 1) * stride + k];
    }
}

/* score[h][i] = sum[i][h] for the `left` positions of a block. */
static void store_scores(const pass *p, float *score, uint32_t left)
{
    const float *sum = p->m->sum[0];
    uint32_t whole_heads = p->heads / 8 * 8, whole = left / 8 * 8;

    transpose(score, p->count, sum, p->lanes, whole, whole, whole_heads);
    for (uint32_t h = 0; h < p->heads; h++)
        for (uint32_t i = h < whole_heads ? whole : 0; i < left; i++)
            score[(size_t)h * p->count + i] = sum[(size_t)i * p->lanes + h];
}

KN_AVX512_FN static void widen_rows(const pass *p, const char *const *row, uint32_t begin,
                                    uint32_t columns)
{
    for (uint32_t r = 0; r < p->rows; r++) {
        if (p->bf16)
            kn_widen(p->m->row[r], row[r] + (size_t)begin * 2, true, columns);
        else
            kn_widen(p->m->row[r], row[r] + (size_t)begin * 4, false, columns);
    }
}

static void score_block(const pass *p, const char *const *row, uint32_t left, kn_ahead *ahead)
{
    for (uint32_t k = 0; k < p->width; k += PIECE) {
        uint32_t rest = p->width - k;
        leaf_step step = {.q = p->m->q[0] + (size_t)k * p->lanes,
                          .row = p->m->row[0],
                          .steps = rest < PIECE ? rest : PIECE,
                          .first = k == 0,
                          .last = rest <= PIECE,
                          .scale = p->scale,
                          .ahead = ahead};

        for (uint32_t j = 0; j < left; j += p->rows) {
            widen_rows(p, row + j, k, step.steps);
            run_leaf(p->m->sum[0] + (size_t)j * p->lanes, &step, p->lanes);
        }
    }
}

static void score_pass(const pass *p, const kn_cache_view *cache, const uint32_t *list)
{
    kn_row_window window = {.cache = cache,
                            .list = list,
                            .count = p->count,
                            .size = BLOCK,
                            .steps = BLOCK / p->rows * p->width};

    for (uint32_t i = 0; i < p->count; i += BLOCK) {
        const char *const *row = kn_window_next(&window, i);
        uint32_t left = p->count - i < BLOCK ? p->count - i : BLOCK;

        score_block(p, row, left, &window.ahead);
        store_scores(p, p->score + i, left);
    }
}

void kn_avx512_attn_scores(float *score, const float *q, size_t q_stride, uint32_t heads,
                           const kn_cache_view *cache, const uint32_t *list, uint32_t count,
                           float scale)
{
    memory m;

    for (uint32_t h = 0, n; h < heads; h += n, q += n * q_stride, score += (size_t)n * count) {
        pass p = {.m = &m, .score = score, .count = count, .width = cache->width};

        n = heads - h < LANES ? heads - h : LANES;
        if (n < KN_HEAD_LANES_MIN || cache->width > WIDTH_MAX) {
            kn_attn_scores_blocked(&kn_avx512_leaves, score, q, q_stride, n, cache, list, count,
                                   scale);
            continue;
        }
        p.heads = n;
        p.lanes = (n + 15) / 16 * 16;
        p.rows = CHAINS * 16 / p.lanes;
        p.bf16 = cache->bf16;
        p.scale = scale;
        transpose(m.q[0], p.lanes, q, q_stride, n, p.lanes, cache->width);
        score_pass(&p, cache, list);
    }
}

#endif
