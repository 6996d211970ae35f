/* qmat.c - sizes, packing and unpacking of the interleaved weight layouts. */
#include "kernels/qmat.h"

#include "base/check.h"
#include "kernels/quant.h"

#include <string.h>

enum { LINE_BYTES = 64, GROUP_MAX = 64 };

static const struct {
    kn_format format;
    const char *name;
} formats[] = {{KN_F32, "f32"}, {KN_BF16, "bf16"},   {KN_Q8, "q8"},
               {KN_Q4, "q4"},   {KN_Q8F32, "q8f32"}, {KN_Q4F32, "q4f32"}};

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
    case KN_Q8F32:
    case KN_Q4F32:
        RT_ASSERT(group_is_valid(group));
        bytes = (size_t)kn_groups(cols, group) * kn_group_bytes(format, group);
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

/* One group of 16 rows on its way into a tile. */
typedef struct {
    int8_t q[KN_TILE_ROWS][GROUP_MAX];
    uint16_t scale16[KN_TILE_ROWS]; /* of q8 and q4 */
    float scale32[KN_TILE_ROWS];    /* of q8f32 and q4f32 */
} int_group;

static void interleave_q8(const int_group *from, uint32_t group, uint8_t *out)
{
    for (uint32_t k = 0; k < group; k += 4, out += LINE_BYTES)
        for (uint32_t r = 0; r < KN_TILE_ROWS; r++)
            memcpy(out + r * 4, &from->q[r][k], 4);
}

static void interleave_q4(const int_group *from, uint32_t group, uint8_t *out)
{
    for (uint32_t k = 0; k < group; k += 8, out += LINE_BYTES) {
        for (uint32_t r = 0; r < KN_TILE_ROWS; r++) {
            for (uint32_t i = 0; i < 4; i++) {
                uint32_t low = (uint32_t)(from->q[r][k + i] + 8);
                uint32_t high = (uint32_t)(from->q[r][k + 4 + i] + 8);

                out[r * 4 + i] = (uint8_t)(low | high << 4);
            }
        }
    }
}

/* Scales, then lines of 16 rows x 4 (q8) or 8 (q4) inputs. */
static void interleave(kn_format format, const int_group *from, uint32_t group, uint8_t *out)
{
    if (kn_format_has_f32_scales(format))
        memcpy(out, from->scale32, sizeof(from->scale32));
    else
        memcpy(out, from->scale16, sizeof(from->scale16));
    out += kn_scale_bytes(format);
    if (kn_format_is_q4(format))
        interleave_q4(from, group, out);
    else
        interleave_q8(from, group, out);
}

static void quantise_group(kn_format format, const float *w, uint32_t n, uint32_t r, int_group *to)
{
    switch (format) {
    case KN_Q8:
        to->scale16[r] = kn_quant_q8_group(w, n, to->q[r]);
        return;
    case KN_Q4:
        to->scale16[r] = kn_quant_q4_group(w, n, to->q[r]);
        return;
    case KN_Q8F32:
        to->scale32[r] = kn_quant_q8f32_group(w, n, to->q[r]);
        return;
    case KN_Q4F32:
        to->scale32[r] = kn_f32_from_f16(kn_quant_q4_group(w, n, to->q[r]));
        return;
    case KN_F32:
    case KN_BF16:
        break;
    }
    rt_assert_fail("format is a q format", __FILE__, __LINE__);
}

static void pack_int_tile(kn_format format, const float *src, size_t stride, uint32_t rows,
                          uint32_t cols, uint32_t group, uint8_t *out)
{
    for (uint32_t k = 0; k < cols; k += group) {
        uint32_t n = cols - k < group ? cols - k : group;
        int_group to = {0};

        for (uint32_t r = 0; r < rows; r++)
            quantise_group(format, src + r * stride + k, n, r, &to);
        interleave(format, &to, group, out);
        out += kn_group_bytes(format, group);
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

/* Copies n integers, all of which the format can hold. */
static void take_quantised(const int8_t *q, uint32_t n, bool q4, int8_t *out)
{
    int low = 0, high = 0;

    for (uint32_t i = 0; i < n; i++) {
        low = q[i] < low ? q[i] : low;
        high = q[i] > high ? q[i] : high;
    }
    RT_ASSERT(low >= (q4 ? -8 : -127) && high <= (q4 ? 7 : 127));
    memcpy(out, q, n);
}

void kn_qmat_pack_quantised(kn_format format, uint32_t cols, uint32_t group, const int8_t *q,
                            size_t q_stride, const float *scales, size_t scale_stride,
                            uint32_t scale_first, uint32_t scale_group, uint32_t row_count,
                            void *tiles)
{
    size_t tile_bytes = kn_qmat_tile_bytes(format, cols, group);

    RT_ASSERT(kn_format_has_f32_scales(format));
    RT_ASSERT(q_stride >= cols || row_count <= 1);
    for (uint32_t row = 0; row < row_count; row += KN_TILE_ROWS) {
        uint32_t rows = row_count - row < KN_TILE_ROWS ? row_count - row : KN_TILE_ROWS;
        uint8_t *tile = (uint8_t *)tiles + row / KN_TILE_ROWS * tile_bytes, *out = tile;

        for (uint32_t k = 0; k < cols; k += group, out += kn_group_bytes(format, group)) {
            uint32_t n = cols - k < group ? cols - k : group;
            size_t at = scale_group == 0 ? 0 : (scale_first + k) / scale_group;
            int_group to = {0};

            RT_ASSERT(scale_group == 0 || (scale_first + k + n - 1) / scale_group == at);
            for (uint32_t r = 0; r < rows; r++) {
                to.scale32[r] = scales[(size_t)(row + r) * scale_stride + at];
                take_quantised(q + (size_t)(row + r) * q_stride + k, n, kn_format_is_q4(format),
                               to.q[r]);
            }
            interleave(format, &to, group, out);
        }
        memset(out, 0, tile_bytes - (size_t)(out - tile));
    }
}

static float int_weight(const kn_qmat *mat, const uint8_t *tile, uint32_t r, uint32_t k)
{
    const uint8_t *scales =
        tile + (size_t)(k / mat->group) * kn_group_bytes(mat->format, mat->group);
    const uint8_t *lines = scales + kn_scale_bytes(mat->format);
    uint32_t i = k % mat->group;
    float scale;
    int q;

    if (kn_format_has_f32_scales(mat->format)) {
        memcpy(&scale, scales + r * 4, 4);
    } else {
        uint16_t half;

        memcpy(&half, scales + r * 2, 2);
        scale = kn_f32_from_f16(half);
    }
    if (kn_format_is_q4(mat->format)) {
        uint8_t byte = lines[i / 8 * LINE_BYTES + r * 4 + i % 4];

        q = (i % 8 < 4 ? byte & 15 : byte >> 4) - 8;
    } else {
        q = (int8_t)lines[i / 4 * LINE_BYTES + r * 4 + i % 4];
    }
    return scale * (float)q;
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
            out[k] = int_weight(mat, tile, r, k);
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
