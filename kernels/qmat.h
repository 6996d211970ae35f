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
 *   KN_Q8F32, KN_Q4F32 layout 1  as q8 and q4, but the 16 scales of a group are f32 (64 bytes). For
 *                      weights that come quantised from elsewhere: no bit of them is lost.
 *
 * Columns of q formats are padded to a multiple of the group (zero weights: 0 and nibble 8). */
#ifndef KERNELS_QMAT_H
#define KERNELS_QMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The numbers are on disk. */
typedef enum {
    KN_F32 = 1,
    KN_BF16 = 2,
    KN_Q8 = 3,
    KN_Q4 = 4,
    KN_Q8F32 = 5,
    KN_Q4F32 = 6
} kn_format;

enum { KN_TILE_ROWS = 16, KN_LAYOUT_ID = 1 };

typedef struct {
    kn_format format;
    uint32_t rows;    /* outputs, without padding */
    uint32_t cols;    /* inputs, without padding */
    uint32_t group;   /* 16, 32 or 64; of the contraction width, numerics R2 */
    const void *data; /* 64-byte aligned, kn_qmat_bytes long; borrowed */
} kn_qmat;

/* "f32", "bf16", "q8", "q4", "q8f32", "q4f32"; NULL for other numbers. What a container may hold:
 * which of them a user may convert to, the options say (the last two come from imports alone). */
const char *kn_format_name(kn_format format);
bool kn_format_parse(const char *name, kn_format *out);

static inline bool kn_format_is_q4(kn_format format)
{
    return format == KN_Q4 || format == KN_Q4F32;
}

static inline bool kn_format_has_f32_scales(kn_format format)
{
    return format == KN_Q8F32 || format == KN_Q4F32;
}

static inline bool kn_format_is_int(kn_format format)
{
    return format == KN_Q8 || format == KN_Q4 || kn_format_has_f32_scales(format);
}

/* Bytes of the 16 scales of a group, and of a group with its lines; q formats only. */
static inline uint32_t kn_scale_bytes(kn_format format)
{
    return KN_TILE_ROWS * (kn_format_has_f32_scales(format) ? 4 : 2);
}

static inline uint32_t kn_group_bytes(kn_format format, uint32_t group)
{
    return kn_scale_bytes(format) + KN_TILE_ROWS * group / (kn_format_is_q4(format) ? 2 : 1);
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

/* Interleaves rows that are quantised already, into the same tiles as kn_qmat_pack; nothing is
 * rounded. format is KN_Q8F32 or KN_Q4F32. The rows may be a range of columns of a wider source, as
 * the slices of `down` are: scales are found by the column of the source.
 *   q            [row_count][cols], row stride q_stride: -127..127 for q8f32, -8..7 for q4f32
 *   scales       finite, also negative or 0; row stride scale_stride; a row's first scale is that of
 *                the source's column 0
 *   scale_first  the source's column that column 0 here is
 *   scale_group  columns of the source per scale; 0: one scale per row. Each of our groups lies
 *                within one of these. */
void kn_qmat_pack_quantised(kn_format format, uint32_t cols, uint32_t group, const int8_t *q,
                            size_t q_stride, const float *scales, size_t scale_stride,
                            uint32_t scale_first, uint32_t scale_group, uint32_t row_count,
                            void *tiles);

/* The exact weights the kernels see, as f32 (scale * q for q formats): row `row`, [cols]. */
void kn_qmat_unpack_row(const kn_qmat *mat, uint32_t row, float *out);

/* A view of rows row_begin.. (a multiple of 16) of mat. */
kn_qmat kn_qmat_rows(const kn_qmat *mat, uint32_t row_begin, uint32_t row_count);

#endif
