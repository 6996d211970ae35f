/* qmat.c - sizes, packing and unpacking of the interleaved weight layouts. */
#include "kernels/qmat.h"

#include "base/check.h"
#include "kernels/quant.h"

#include <string.h>

enum { SCALE_BYTES = KN_TILE_ROWS * 2, LINE_BYTES = 64, GROUP_MAX = 64 };

static const struct {
    kn_format format;
    const char *name;
} formats[] = {{KN_F32, "f32"}, {KN_BF16, "bf16"}, {KN_Q8, "q8"}, {KN_Q4, "q4"}};

const char *kn_format_name(kn_format format)
{
    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++)
        if (formats[i].format == format) return formats[i].name;
    return NULL;
}

bool kn_format_parse(const char *name, kn_format *out)
{
    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
        if (strcmp(formats[i].name, name) == 0) {
            *out = formats[i].format;
            return true;
        }
    }
    return false;
}

uint32_t kn_group(uint32_t width, uint32_t limit)
{
    for (uint32_t group = GROUP_MAX; group >= 16; group /= 2)
        if (width % group == 0 && (limit == 0 || group <= limit)) return group;
    return 16;
}

static bool group_is_valid(uint32_t group)
{
    return group == 16 || group == 32 || group == 64;
}

/* Bytes of one group of a tile: scales, then whole 64-byte lines. */
static size_t group_bytes(kn_format format, uint32_t group)
{
    return SCALE_BYTES + (size_t)KN_TILE_ROWS * group / (format == KN_Q4 ? 2 : 1);
}

size_t kn_qmat_tile_bytes(kn_format format, uint32_t cols, uint32_t group)
{
    size_t bytes = 0;

    switch (format) {
    case KN_F32:
        return (size_t)cols * KN_TILE_ROWS * sizeof(float);
    case KN_BF16:
        return ((size_t)cols + (cols & 1)) * KN_TILE_ROWS * sizeof(uint16_t);
    case KN_Q8:
    case KN_Q4:
        RT_ASSERT(group_is_valid(group));
        bytes = kn_groups(cols, group) * group_bytes(format, group);
        return (bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
    }
    rt_assert_fail("format is one of kn_format", __FILE__, __LINE__);
}

size_t kn_qmat_bytes(kn_format format, uint32_t rows, uint32_t cols, uint32_t group)
{
    return ((size_t)rows + KN_TILE_ROWS - 1) / KN_TILE_ROWS *
           kn_qmat_tile_bytes(format, cols, group);
}

static void pack_f32_tile(const float *src, size_t stride, uint32_t rows, uint32_t cols, float *out)
{
    for (uint32_t k = 0; k < cols; k++)
        for (uint32_t r = 0; r < rows; r++)
            out[(size_t)k * KN_TILE_ROWS + r] = src[r * stride + k];
}

static void pack_bf16_tile(const float *src, size_t stride, uint32_t rows, uint32_t cols,
                           uint16_t *out)
{
    for (uint32_t k = 0; k < cols; k++)
        for (uint32_t r = 0; r < rows; r++)
            out[(size_t)k * KN_TILE_ROWS + r] = kn_bf16_from_f32(src[r * stride + k]);
}

/* q [16][64] of one group -> lines of 16 rows x 4 (q8) or 8 (q4) inputs. */
static void interleave_q8(const int8_t (*q)[GROUP_MAX], uint32_t group, uint8_t *out)
{
    for (uint32_t k = 0; k < group; k += 4, out += LINE_BYTES)
        for (uint32_t r = 0; r < KN_TILE_ROWS; r++)
            memcpy(out + r * 4, &q[r][k], 4);
}

static void interleave_q4(const int8_t (*q)[GROUP_MAX], uint32_t group, uint8_t *out)
{
    for (uint32_t k = 0; k < group; k += 8, out += LINE_BYTES) {
        for (uint32_t r = 0; r < KN_TILE_ROWS; r++) {
            for (uint32_t i = 0; i < 4; i++) {
                uint32_t low = (uint32_t)(q[r][k + i] + 8);
                uint32_t high = (uint32_t)(q[r][k + 4 + i] + 8);

                out[r * 4 + i] = (uint8_t)(low | high << 4);
            }
        }
    }
}

static void pack_int_tile(kn_format format, const float *src, size_t stride, uint32_t rows,
                          uint32_t cols, uint32_t group, uint8_t *out)
{
    int8_t q[KN_TILE_ROWS][GROUP_MAX];

    for (uint32_t k = 0; k < cols; k += group) {
        uint32_t n = cols - k < group ? cols - k : group;
        uint16_t scale[KN_TILE_ROWS] = {0};

        memset(q, 0, sizeof(q));
        for (uint32_t r = 0; r < rows; r++) {
            const float *w = src + r * stride + k;

            scale[r] =
                format == KN_Q4 ? kn_quant_q4_group(w, n, q[r]) : kn_quant_q8_group(w, n, q[r]);
        }
        memcpy(out, scale, SCALE_BYTES);
        if (format == KN_Q4)
            interleave_q4((const int8_t(*)[GROUP_MAX])q, group, out + SCALE_BYTES);
        else
            interleave_q8((const int8_t(*)[GROUP_MAX])q, group, out + SCALE_BYTES);
        out += group_bytes(format, group);
    }
}

void kn_qmat_pack(kn_format format, uint32_t cols, uint32_t group, const float *src,
                  size_t src_stride, uint32_t row_count, void *tiles)
{
    size_t tile_bytes = kn_qmat_tile_bytes(format, cols, group);
    uint8_t *out = tiles;

    RT_ASSERT(src_stride >= cols || row_count <= 1);
    for (uint32_t row = 0; row < row_count; row += KN_TILE_ROWS, out += tile_bytes) {
        uint32_t rows = row_count - row < KN_TILE_ROWS ? row_count - row : KN_TILE_ROWS;
        const float *from = src + (size_t)row * src_stride;

        /* Zeroed first: absent rows, the odd bf16 column and the end of a tile. A whole tile of a
         * q format without a gap is overwritten entirely; the cost of the memset is small. */
        memset(out, 0, tile_bytes);
        if (format == KN_F32)
            pack_f32_tile(from, src_stride, rows, cols, (float *)(void *)out);
        else if (format == KN_BF16)
            pack_bf16_tile(from, src_stride, rows, cols, (uint16_t *)(void *)out);
        else
            pack_int_tile(format, from, src_stride, rows, cols, group, out);
    }
}

void kn_qmat_unpack_row(const kn_qmat *mat, uint32_t row, float *out)
{
    size_t tile_bytes = kn_qmat_tile_bytes(mat->format, mat->cols, mat->group);
    const uint8_t *tile = (const uint8_t *)mat->data + row / KN_TILE_ROWS * tile_bytes;
    uint32_t r = row % KN_TILE_ROWS;

    RT_ASSERT(row < mat->rows);
    for (uint32_t k = 0; k < mat->cols; k++) {
        if (mat->format == KN_F32) {
            memcpy(&out[k], tile + ((size_t)k * KN_TILE_ROWS + r) * 4, 4);
        } else if (mat->format == KN_BF16) {
            uint16_t b;

            memcpy(&b, tile + ((size_t)k * KN_TILE_ROWS + r) * 2, 2);
            out[k] = kn_f32_from_bf16(b);
        } else {
            const uint8_t *block = tile + k / mat->group * group_bytes(mat->format, mat->group);
            const uint8_t *lines = block + SCALE_BYTES;
            uint32_t i = k % mat->group;
            uint16_t scale;
            int q;

            memcpy(&scale, block + r * 2, 2);
            if (mat->format == KN_Q8) {
                q = (int8_t)lines[i / 4 * LINE_BYTES + r * 4 + i % 4];
            } else {
                uint8_t byte = lines[i / 8 * LINE_BYTES + r * 4 + i % 4];

                q = (i % 8 < 4 ? byte & 15 : byte >> 4) - 8;
            }
            out[k] = kn_f32_from_f16(scale) * (float)q;
        }
    }
}

kn_qmat kn_qmat_rows(const kn_qmat *mat, uint32_t row_begin, uint32_t row_count)
{
    kn_qmat view = *mat;

    RT_ASSERT(row_begin % KN_TILE_ROWS == 0);
    RT_ASSERT(row_begin <= mat->rows && row_count <= mat->rows - row_begin);
    view.rows = row_count;
    view.data = (const uint8_t *)mat->data +
                row_begin / KN_TILE_ROWS * kn_qmat_tile_bytes(mat->format, mat->cols, mat->group);
    return view;
}
