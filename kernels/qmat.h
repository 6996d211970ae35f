/* qmat.h - a weight matrix as the kernels read it: shape, format and the bytes of the container.
 *
 * Every format interleaves 16 output rows (a tile), so that one vector lane is one output row and
 * no kernel ever sums across lanes (numerics R1: one ascending chain per output). Rows are padded
 * with zero weights to a multiple of 16. Tiles follow each other without gaps; each is a multiple of
 * 64 bytes. docs/container.md is the normative text of the layouts:
 *
 *   KN_F32   layout 1  per k: 16 f32 (64 bytes)                    cols as they are
 *   KN_BF16  layout 1  per k: 16 bf16 (32 bytes); an odd column count is padded with one zero k
 *   KN_Q8    layout 1  per group: 16 f16 scales (32 bytes), then per 4 k: 64 bytes, byte r*4+i is
 *                      row r, k+i, signed -127..127. A tile ends padded to 64 bytes.
 *   KN_Q4    layout 1  per group: 16 f16 scales (32 bytes), then per 8 k: 64 bytes, byte r*4+i holds
 *                      row r: low nibble k+i, high nibble k+4+i; the weight is nibble - 8. A tile
 *                      ends padded to 64 bytes.
 *
 * Columns of q formats are padded to a multiple of the group (zero weights: 0 and nibble 8). */
#ifndef KERNELS_QMAT_H
#define KERNELS_QMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum { KN_F32 = 1, KN_BF16 = 2, KN_Q8 = 3, KN_Q4 = 4 } kn_format; /* numbers are on disk */

enum { KN_TILE_ROWS = 16, KN_LAYOUT_ID = 1 };

typedef struct {
    kn_format format;
    uint32_t rows;    /* outputs, without padding */
    uint32_t cols;    /* inputs, without padding */
    uint32_t group;   /* 16, 32 or 64; of the contraction width, numerics R2 */
    const void *data; /* 64-byte aligned, kn_qmat_bytes long; borrowed */
} kn_qmat;

/* "f32", "bf16", "q8", "q4"; NULL for other numbers. */
const char *kn_format_name(kn_format format);
bool kn_format_parse(const char *name, kn_format *out);
static inline bool kn_format_is_int(kn_format format)
{
    return format == KN_Q8 || format == KN_Q4;
}

/* g(w): the largest of 64, 32, 16 that divides width and is <= limit; 16 when none does
 * (zero-padded). limit 0: no limit. */
uint32_t kn_group(uint32_t width, uint32_t limit);

static inline uint32_t kn_round_up(uint32_t value, uint32_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

/* Bytes of one tile of 16 rows, and of the whole matrix. */
size_t kn_qmat_tile_bytes(kn_format format, uint32_t cols, uint32_t group);
size_t kn_qmat_bytes(kn_format format, uint32_t rows, uint32_t cols, uint32_t group);

/* Quantises and interleaves rows row_begin .. row_begin+row_count of a matrix, into the tiles at
 * the start of `tiles` (tile row_begin/16 of the matrix first). Deterministic; the quantisers are
 * those of quant.h.
 *   row_begin  a multiple of 16;  row_count  a multiple of 16, or up to the last row
 *   src        [row_count][cols] f32, finite, row stride src_stride floats; borrowed
 *   tiles      kn_qmat_tile_bytes x ceil(row_count/16), 64-byte aligned; written whole, padding too */
void kn_qmat_pack(kn_format format, uint32_t cols, uint32_t group, const float *src,
                  size_t src_stride, uint32_t row_count, void *tiles);

/* The exact weights the kernels see, as f32 (scale * q for q formats): row `row`, [cols]. */
void kn_qmat_unpack_row(const kn_qmat *mat, uint32_t row, float *out);

/* A view of rows row_begin.. (a multiple of 16) of mat. */
kn_qmat kn_qmat_rows(const kn_qmat *mat, uint32_t row_begin, uint32_t row_count);

#endif
