/* matmul_tiles.h - walks the tiles of a product and the token blocks of each; internal.
 *
 * A kernel computes one tile (16 outputs) for a block of a few tokens, so that a weight is unpacked
 * once for all of them. Tokens run inside tiles: a tile of 50-100 KB stays in the second-level
 * cache while it is read again. */
#ifndef KERNELS_MATMUL_TILES_H
#define KERNELS_MATMUL_TILES_H

#include "kernels/ops.h"

#include <string.h>

enum { KN_LINE_BYTES = 64, KN_TOKENS_MAX = 8 };

/* What is asked for ahead while a tile is used, and how far that moves on with a line of weights and
 * with the scales of a group. An address, not a pointer: it may lie behind the matrix. */
typedef struct {
    uintptr_t at;
    uint32_t line, scales;
} kn_tile_ahead;

static inline void kn_prefetch(kn_tile_ahead *ahead)
{
    __builtin_prefetch((const void *)ahead->at);
    ahead->at += ahead->line;
}

/* f32 scales fill a line of their own, which is asked for too; f16 scales share one. */
static inline void kn_prefetch_scales(kn_tile_ahead *ahead, bool f32_scales)
{
    if (f32_scales) __builtin_prefetch((const void *)ahead->at);
    ahead->at += ahead->scales;
}

/* Bytes of a group's scales where the format is a constant of the kernel. */
static inline size_t kn_scales_size(bool f32_scales)
{
    return KN_TILE_ROWS * (f32_scales ? sizeof(float) : sizeof(uint16_t));
}

/* Writes out[t][0..16) at stride out_stride for tokens s .. s+T of x, T fixed per kernel. */
typedef void (*kn_tile_kernel)(const uint8_t *tile, const kn_rows *x, uint32_t s, float *out,
                               size_t out_stride, kn_tile_ahead ahead);

/* When one block takes all tokens, weights are asked for a little ahead. With more blocks each asks
 * for its part of the next tile, evenly over its run: memory then works all the time, not only
 * during the first block. Where prefetching does not pay the line at hand is asked for. */
static inline kn_tile_ahead kn_tile_ahead_of(const uint8_t *tile, const kn_qmat *w,
                                             size_t tile_bytes, size_t bytes, uint32_t block,
                                             uint32_t blocks)
{
    kn_tile_ahead ahead = {(uintptr_t)tile, KN_LINE_BYTES, kn_scale_bytes(w->format)};
    uint32_t parts = 1;

    if (bytes == 0) return ahead;
    if (blocks == 1) {
        ahead.at += bytes;
        return ahead;
    }
    /* A power of two, so that a part of a line is whole; 32 leaves a byte of the scales. */
    while (parts < 32 && 2 * parts <= blocks)
        parts *= 2;
    ahead.at += tile_bytes + tile_bytes / parts * block;
    ahead.line /= parts;
    ahead.scales /= parts;
    return ahead;
}

/* kernel[T - 1] for T = 1 .. tokens. A last tile of fewer than 16 rows goes through a buffer:
 * outputs beyond the matrix are not the caller's to lose. */
static inline void kn_tiles_run(const kn_tile_kernel *kernel, uint32_t tokens, float *y,
                                size_t y_stride, const kn_rows *x, const kn_qmat *w,
                                uint32_t row_begin, uint32_t row_end)
{
    size_t tile_bytes = kn_qmat_tile_bytes(w->format, w->cols, w->group);
    const uint8_t *tile = (const uint8_t *)w->data + row_begin / KN_TILE_ROWS * tile_bytes;
    size_t ahead_bytes = kn_prefetch_bytes();
    uint32_t blocks = (x->rows + tokens - 1) / tokens;
    float buffer[KN_TOKENS_MAX][KN_TILE_ROWS];

    for (uint32_t n = row_begin; n < row_end; n += KN_TILE_ROWS, tile += tile_bytes) {
        uint32_t live = row_end - n < KN_TILE_ROWS ? row_end - n : KN_TILE_ROWS;

        for (uint32_t s = 0; s < x->rows;) {
            uint32_t count = x->rows - s < tokens ? x->rows - s : tokens;
            float *out = y + s * y_stride + n;
            kn_tile_ahead ahead =
                kn_tile_ahead_of(tile, w, tile_bytes, ahead_bytes, s / tokens, blocks);

            if (live == KN_TILE_ROWS) {
                kernel[count - 1](tile, x, s, out, y_stride, ahead);
            } else {
                kernel[count - 1](tile, x, s, buffer[0], KN_TILE_ROWS, ahead);
                for (uint32_t t = 0; t < count; t++)
                    memcpy(out + t * y_stride, buffer[t], live * sizeof(float));
            }
            s += count;
        }
    }
}

/* 4 activations as one register lane; rows of q need no alignment. */
static inline int32_t kn_load_i32(const int8_t *at)
{
    int32_t value;

    memcpy(&value, at, sizeof(value));
    return value;
}

/* One call of a float kernel: T tokens times one or several tiles, over `cols` inputs. A chain that
 * is not at its first inputs is continued from out. */
typedef struct {
    const uint8_t *tile;
    size_t tile_bytes;
    uint32_t cols, group;
    bool first;
    const uint8_t *ahead; /* lines to ask for, as many as cols */
    const float *x;
    size_t x_stride;
    float *out;
    size_t out_stride;
} kn_float_job;

typedef void (*kn_float_kernel)(const kn_float_job *job);

enum {
    KN_FLOAT_TOKENS = 4,
    /* Inputs taken at once when there are more tokens than a kernel takes: 8 KiB of f32 a tile, so
     * that the tiles at hand stay in the first-level cache for all tokens. */
    KN_FLOAT_COLS = 128
};

/* By tokens - 1: the kernel for one tile, and the one for `tiles` tiles at once. */
typedef struct {
    kn_float_kernel one[KN_FLOAT_TOKENS];
    kn_float_kernel many[KN_FLOAT_TOKENS];
    uint32_t tiles[KN_FLOAT_TOKENS];
    uint32_t tokens;    /* the most */
    uint32_t col_bytes; /* of one input of a tile; 0: all inputs are taken at once */
} kn_float_kernels;

/* Tile by tile; a last tile of fewer than 16 rows goes through a buffer. */
static inline void kn_float_single(kn_float_job job, const kn_float_kernels *kernels,
                                   uint32_t count, uint32_t rows)
{
    float buffer[KN_FLOAT_TOKENS][KN_TILE_ROWS] = {{0}};

    for (; rows >= KN_TILE_ROWS; rows -= KN_TILE_ROWS) {
        kernels->one[count - 1](&job);
        job.tile += job.tile_bytes;
        job.out += KN_TILE_ROWS;
    }
    if (rows > 0) {
        float *out = job.out;
        size_t stride = job.out_stride;

        for (uint32_t t = 0; t < count && !job.first; t++)
            memcpy(buffer[t], out + t * stride, rows * sizeof(float));
        job.out = buffer[0];
        job.out_stride = KN_TILE_ROWS;
        kernels->one[count - 1](&job);
        for (uint32_t t = 0; t < count; t++)
            memcpy(out + t * stride, buffer[t], rows * sizeof(float));
    }
}

/* Each block of tokens asks for the inputs that come next in one of the tiles, so that memory works
 * while the blocks compute; the rest ask for what is there. */
static inline const uint8_t *kn_float_ahead(const uint8_t *at, size_t tile_bytes, size_t piece,
                                            uint32_t block, uint32_t rows)
{
    if (kn_prefetch_bytes() == 0 || block >= rows / KN_TILE_ROWS) return at;
    return at + block * tile_bytes + piece;
}

/* Outputs n .. n+rows of all tokens. */
static inline void kn_float_columns(const kn_float_kernels *kernels, float *y, size_t y_stride,
                                    const kn_rows *x, const kn_qmat *w, uint32_t n, uint32_t rows)
{
    size_t tile_bytes = kn_qmat_tile_bytes(w->format, w->cols, w->group);
    const uint8_t *tile = (const uint8_t *)w->data + n / KN_TILE_ROWS * tile_bytes;
    bool whole = kernels->col_bytes == 0 || x->rows <= kernels->tokens;
    uint32_t cols = whole ? w->cols : KN_FLOAT_COLS;
    size_t piece = (size_t)cols * kernels->col_bytes;

    for (uint32_t k = 0; k < w->cols; k += cols) {
        for (uint32_t s = 0; s < x->rows; s += kernels->tokens) {
            uint32_t left = x->rows - s;
            uint32_t count = left < kernels->tokens ? left : kernels->tokens;
            const uint8_t *at = tile + (size_t)k * kernels->col_bytes;
            kn_float_job job = {.tile = at,
                                .tile_bytes = tile_bytes,
                                .cols = w->cols - k < cols ? w->cols - k : cols,
                                .group = w->group,
                                .first = k == 0,
                                .x = x->f32 + s * x->f32_stride + k,
                                .x_stride = x->f32_stride,
                                .out = y + s * y_stride + n,
                                .out_stride = y_stride};

            job.ahead =
                whole ? at : kn_float_ahead(at, tile_bytes, piece, s / kernels->tokens, rows);
            if (rows == kernels->tiles[count - 1] * KN_TILE_ROWS)
                kernels->many[count - 1](&job);
            else
                kn_float_single(job, kernels, count, rows);
        }
    }
}

static inline void kn_float_run(const kn_float_kernels *kernels, float *y, size_t y_stride,
                                const kn_rows *x, const kn_qmat *w, uint32_t row_begin,
                                uint32_t row_end)
{
    uint32_t first = x->rows < kernels->tokens ? x->rows : kernels->tokens;
    uint32_t step;

    if (x->rows == 0) return;
    step = kernels->tiles[first - 1] * KN_TILE_ROWS;
    for (uint32_t n = row_begin; n < row_end; n += step)
        kn_float_columns(kernels, y, y_stride, x, w, n, row_end - n < step ? row_end - n : step);
}

#endif
