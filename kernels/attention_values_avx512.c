/* attention_values_avx512.c - the values of attention with AVX-512.
 *
 * Lanes are columns. A panel of 80 positions and 64 columns is widened once and stays in the L1 cache
 * for all heads; six heads times 64 columns are 24 chains of fused adds that share ten loads (8 x 48 has
 * eleven, and neither divides the 512 columns). Between panels the sums wait in the output. */
#include "kernels/attention_avx512.h"

#include <string.h>

#if KN_X86

enum {
    LANES = 64,     /* heads of a pass over the positions */
    ROWS = 80,      /* positions of a panel: 20 KiB */
    PANEL = 64,     /* columns of a panel */
    PASS_MAX = 512, /* columns of a pass over the positions */
    HEADS = 6,
};
static_assert((int)ROWS <= (int)KN_WINDOW_MAX, "a window has room for a block");

typedef struct {
    _Alignas(64) float row[ROWS][PANEL];
    float e[LANES][ROWS];
} memory;

/* A panel for all heads of the pass. */
typedef struct {
    const float *row;
    uint32_t rows, heads;
    __mmask16 mask[4]; /* columns that exist */
    kn_ahead *ahead;
} panel_step;

KN_AVX512_INLINE void leaf(float *out, size_t out_stride, const float *e, const panel_step *step,
                           int heads)
{
    const float *row = step->row;
    __m512 acc[HEADS][4];

    KN_UNROLL
    for (int h = 0; h < heads; h++) {
        const float *at = out + (size_t)h * out_stride;

        KN_UNROLL
        for (int i = 0; i < 4; i++)
            acc[h][i] = _mm512_maskz_loadu_ps(step->mask[i], at + 16 * i);
    }
    for (uint32_t k = 0; k < step->rows;) {
        uint32_t end = step->rows - k < KN_AHEAD_STEPS ? step->rows : k + KN_AHEAD_STEPS;

        kn_ahead_ask(step->ahead);
        for (; k < end; k++, row += PANEL, e++) {
            __m512 v[4];

            KN_UNROLL
            for (int i = 0; i < 4; i++)
                v[i] = _mm512_load_ps(row + 16 * i);
            /* gcc 12 otherwise puts one of them on the stack: a fifth of the speed. */
            KN_UNROLL
            for (int i = 0; i < 4; i++)
                __asm__("" : "+v"(v[i]));
            KN_UNROLL
            for (int h = 0; h < heads; h++) {
                __m512 b = _mm512_set1_ps(e[(size_t)h * ROWS]);

                KN_UNROLL
                for (int i = 0; i < 4; i++)
                    acc[h][i] = _mm512_fmadd_ps(b, v[i], acc[h][i]);
            }
        }
    }
    KN_UNROLL
    for (int h = 0; h < heads; h++) {
        float *at = out + (size_t)h * out_stride;

        KN_UNROLL
        for (int i = 0; i < 4; i++)
            _mm512_mask_storeu_ps(at + 16 * i, step->mask[i], acc[h][i]);
    }
}

KN_AVX512_FN static void run_panel(float *out, size_t out_stride, const float (*e)[ROWS],
                                   const panel_step *step)
{
    for (uint32_t h = 0, n; h < step->heads; h += n) {
        n = kn_heads_step(step->heads - h, HEADS);
#define CASE(n) leaf(out + h * out_stride, out_stride, e[h], step, n)
        KN_HEADS_SWITCH(n, CASE)
#undef CASE
    }
}

KN_AVX512_FN static void widen_panel(memory *m, const char *const *row, uint32_t rows,
                                     const kn_cache_view *piece, uint32_t begin)
{
    uint32_t rest = piece->width - begin;

    for (uint32_t j = 0; j < rows; j++) {
        const char *at = row[j] + (size_t)begin * (piece->bf16 ? 2 : 4);

        if (rest < PANEL)
            kn_widen(m->row[j], at, piece->bf16, rest);
        else if (piece->bf16)
            kn_widen(m->row[j], at, true, PANEL);
        else
            kn_widen(m->row[j], at, false, PANEL);
    }
}

KN_AVX512_FN static void set_masks(panel_step *step, uint32_t columns)
{
    for (uint32_t i = 0; i < 4; i++)
        step->mask[i] = kn_mask16(columns > 16 * i ? columns - 16 * i : 0);
}

/* Some heads and columns over all positions. */
static void value_pass(memory *m, float *out, size_t out_stride, const float *e, uint32_t heads,
                       const kn_cache_view *piece, const uint32_t *list, uint32_t count)
{
    kn_row_window window = {.cache = piece,
                            .list = list,
                            .count = count,
                            .size = ROWS,
                            .steps = (heads + HEADS - 1) / HEADS *
                                     ((piece->width + PANEL - 1) / PANEL) * ROWS};

    if (piece->width % PANEL != 0)
        memset(m->row, 0, sizeof(m->row)); /* columns that do not exist */
    for (uint32_t i = 0; i < count; i += ROWS) {
        const char *const *row = kn_window_next(&window, i);
        panel_step step = {.row = m->row[0],
                           .rows = count - i < ROWS ? count - i : ROWS,
                           .heads = heads,
                           .ahead = &window.ahead};

        for (uint32_t h = 0; h < heads; h++)
            memcpy(m->e[h], e + (size_t)h * count + i, step.rows * sizeof(float));
        for (uint32_t r = 0; r < piece->width; r += PANEL) {
            widen_panel(m, row, step.rows, piece, r);
            set_masks(&step, piece->width - r);
            run_panel(out + r, out_stride, (const float(*)[ROWS])m->e, &step);
        }
    }
}

KN_AVX512_FN static void divide(float *out, uint32_t n, float by)
{
    const __m512 d = _mm512_set1_ps(by);

    for (uint32_t i = 0; i < n; i += 16) {
        const __mmask16 mask = kn_mask16(n - i);

        _mm512_mask_storeu_ps(out + i, mask,
                              _mm512_div_ps(_mm512_maskz_loadu_ps(mask, out + i), d));
    }
}

void kn_avx512_attn_values(float *out, size_t out_stride, const float *e, const float *sum,
                           uint32_t heads, uint32_t rank, const kn_cache_view *cache,
                           const uint32_t *list, uint32_t count)
{
    memory m;

    for (uint32_t h = 0; h < heads; h++)
        memset(out + h * out_stride, 0, rank * sizeof(float));
    for (uint32_t r = 0; r < rank; r += PASS_MAX) {
        kn_cache_view piece = *cache;

        piece.rows = (const char *)cache->rows + r * (cache->bf16 ? 2 : 4);
        piece.width = rank - r < PASS_MAX ? rank - r : PASS_MAX;
        for (uint32_t h = 0; h < heads; h += LANES)
            value_pass(&m, out + h * out_stride + r, out_stride, e + (size_t)h * count,
                       heads - h < LANES ? heads - h : LANES, &piece, list, count);
    }
    for (uint32_t h = 0; h < heads; h++)
        divide(out + h * out_stride, rank, sum[h]);
}

#endif
