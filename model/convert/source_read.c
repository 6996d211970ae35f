/* source_read.c - row blocks of a checkpoint's tensors as f32, exactly as stored. */
#include "model/convert/source_internal.h"

#include "base/check.h"
#include "kernels/quant.h"

#include <float.h>
#include <string.h>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "safetensors data is used as it lies");

enum { SCALE_ALIGN = 8 };

static size_t weight_part(uint32_t rows, uint32_t cols)
{
    size_t bytes = (size_t)rows * cols * sizeof(float);

    return (bytes + SCALE_ALIGN - 1) / SCALE_ALIGN * SCALE_ALIGN;
}

static uint32_t blocks(uint32_t count)
{
    return (count + MD_SOURCE_BLOCK - 1) / MD_SOURCE_BLOCK;
}

size_t md_source_raw_bytes(uint32_t rows, uint32_t cols)
{
    /* Any run of rows touches at most one block row more than its length fills. */
    return weight_part(rows, cols) + ((size_t)blocks(rows) + 1) * blocks(cols) * sizeof(float);
}

/* sign 1, exponent 4 (bias 7), mantissa 3; S.1111.111 is NaN and there is no infinity. */
static float e4m3_value(uint32_t code)
{
    uint32_t exponent = code >> 3 & 15, mantissa = code & 7;
    union {
        uint32_t u;
        float f;
    } scale;
    float value;

    if (exponent == 15 && mantissa == 7) return __builtin_nanf("");
    scale.u = (exponent == 0 ? 1 + 120 : exponent + 120) << 23; /* 2^(e-7), 2^-6 for subnormals */
    value = (exponent == 0 ? (float)mantissa * 0.125f : 1.0f + (float)mantissa * 0.125f) * scale.f;
    return code & 0x80 ? -value : value;
}

static void decode_bf16(const uint16_t *raw, size_t count, float *out)
{
    for (size_t i = 0; i < count; i++)
        out[i] = kn_f32_from_bf16(raw[i]);
}

/* scales: rows of blocks, the first being that of row_begin. */
static void decode_e4m3(const uint8_t *raw, const float *scales, uint32_t row_begin,
                        uint32_t row_count, uint32_t cols, float *out)
{
    uint32_t block_cols = blocks(cols);
    float table[256];

    for (uint32_t code = 0; code < 256; code++)
        table[code] = e4m3_value(code);
    for (uint32_t r = 0; r < row_count; r++) {
        uint32_t block_row = (row_begin + r) / MD_SOURCE_BLOCK - row_begin / MD_SOURCE_BLOCK;

        for (uint32_t b = 0; b < block_cols; b++) {
            float scale = scales[(size_t)block_row * block_cols + b];
            uint32_t end = (b + 1) * MD_SOURCE_BLOCK < cols ? (b + 1) * MD_SOURCE_BLOCK : cols;

            for (uint32_t c = b * MD_SOURCE_BLOCK; c < end; c++)
                out[(size_t)r * cols + c] = table[raw[(size_t)r * cols + c]] * scale;
        }
    }
}

/* The index of the first NaN or Inf, count when there is none. */
static size_t find_not_finite(const float *values, size_t count)
{
    uint32_t bad = 0;

    for (size_t i = 0; i < count; i++) {
        uint32_t bits;

        memcpy(&bits, &values[i], sizeof(bits));
        bad |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    if (!bad) return count;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;

        memcpy(&bits, &values[i], sizeof(bits));
        if ((bits & 0x7f800000u) == 0x7f800000u) return i;
    }
    return count;
}

static rt_status read_scales(const md_source *source, const md_source_matrix *matrix,
                             uint32_t row_begin, uint32_t row_count, float *scales, rt_err *err)
{
    const source_tensor *tensor = &source->tensors[matrix->scale];
    uint32_t first = row_begin / MD_SOURCE_BLOCK;
    uint32_t count = (row_begin + row_count - 1) / MD_SOURCE_BLOCK - first + 1;
    size_t row_bytes = (size_t)blocks(matrix->cols) * sizeof(float), bad;

    RT_TRY(md_st_read(source->shards[tensor->shard].file, tensor->tensor, first * row_bytes, scales,
                      count * row_bytes, err));
    bad = find_not_finite(scales, (size_t)count * blocks(matrix->cols));
    if (bad < (size_t)count * blocks(matrix->cols))
        return rt_fail(err, RT_EFORMAT, "%s: block row %zu, block column %zu is not finite",
                       tensor->name, first + bad / blocks(matrix->cols),
                       bad % blocks(matrix->cols));
    return RT_OK;
}

/* ---- integers ---- */

/* Two a byte, the even column in the low nibble, stored + 8. */
static void unpack_int4(const uint8_t *packed, uint32_t row_count, uint32_t cols, int8_t *q)
{
    size_t row_bytes = ((size_t)cols + 1) / 2;

    for (uint32_t r = 0; r < row_count; r++) {
        const uint8_t *row = packed + r * row_bytes;

        for (uint32_t c = 0; c < cols; c++)
            *q++ = (int8_t)((c % 2 == 0 ? row[c / 2] & 15 : row[c / 2] >> 4) - 8);
    }
}

static rt_status check_int8(const source_tensor *tensor, const int8_t *q, size_t count,
                            uint32_t row_begin, uint32_t cols, rt_err *err)
{
    size_t bad = 0;
    bool found = false;

    for (size_t i = 0; i < count; i++)
        found |= q[i] == INT8_MIN;
    if (!found) return RT_OK;
    while (q[bad] != INT8_MIN)
        bad++;
    return rt_fail(err, RT_EFORMAT, "%s: row %zu, column %zu: expected -127..127, found -128",
                   tensor->name, row_begin + bad / cols, bad % cols);
}

#define SCALE_MAX (FLT_MAX / 128) /* its product with any integer is finite */

static rt_status read_code_scales(const md_source *source, const md_source_matrix *matrix,
                                  uint32_t row_begin, uint32_t row_count, float *scales,
                                  rt_err *err)
{
    const source_tensor *tensor = &source->tensors[matrix->scale];
    size_t per_row = md_source_scales_per_row(matrix), count = row_count * per_row, bad;

    RT_TRY(md_st_read(source->shards[tensor->shard].file, tensor->tensor,
                      row_begin * per_row * sizeof(float), scales, count * sizeof(float), err));
    bad = 0;
    while (bad < count && scales[bad] <= SCALE_MAX && scales[bad] >= -SCALE_MAX)
        bad++; /* a NaN is neither */
    if (bad == count) return RT_OK;
    return rt_fail(err, RT_EFORMAT,
                   "%s: row %zu, scale %zu of %zu: expected a finite one, found %g", tensor->name,
                   row_begin + bad / per_row, bad % per_row, per_row, (double)scales[bad]);
}

rt_status md_source_read_codes(const md_source *source, const md_source_matrix *matrix,
                               uint32_t row_begin, uint32_t row_count, int8_t *q, float *scales,
                               void *raw, rt_err *err)
{
    const source_tensor *tensor = &source->tensors[matrix->weight];
    const md_st_file *file = source->shards[tensor->shard].file;
    size_t row_bytes = matrix->bits == 8 ? matrix->cols : ((size_t)matrix->cols + 1) / 2;
    size_t count = (size_t)row_count * matrix->cols;

    RT_ASSERT(matrix->bits == 8 || matrix->bits == 4);
    RT_ASSERT(row_count > 0 && row_begin < matrix->rows && row_count <= matrix->rows - row_begin);
    RT_TRY(md_st_read(file, tensor->tensor, row_begin * row_bytes,
                      matrix->bits == 8 ? (void *)q : raw, row_count * row_bytes, err));
    if (matrix->bits == 4) unpack_int4(raw, row_count, matrix->cols, q);
    if (matrix->bits == 8) RT_TRY(check_int8(tensor, q, count, row_begin, matrix->cols, err));
    return read_code_scales(source, matrix, row_begin, row_count, scales, err);
}

void md_source_multiply(const md_source_matrix *matrix, uint32_t row_count, const int8_t *q,
                        const float *scales, float *out)
{
    uint32_t per_row = md_source_scales_per_row(matrix);

    for (uint32_t r = 0; r < row_count; r++, scales += per_row)
        for (uint32_t c = 0; c < matrix->cols; c++)
            *out++ = (float)*q++ * scales[matrix->scale_group > 0 ? c / matrix->scale_group : 0];
}

/* raw holds what is read, the integers and the scales: with four columns or more and eight or more
 * of them a scale that is less than their f32 values take. */
static rt_status read_integers(const md_source *source, const md_source_matrix *matrix,
                               uint32_t row_begin, uint32_t row_count, float *out, void *raw,
                               rt_err *err)
{
    size_t codes = ((size_t)row_count * matrix->cols + SCALE_ALIGN - 1) / SCALE_ALIGN * SCALE_ALIGN;
    size_t packed = matrix->bits == 4 ? codes : 0;
    int8_t *q = (int8_t *)raw + packed;
    float *scales = (float *)((char *)raw + packed + codes);

    RT_ASSERT(packed + codes +
                  (size_t)row_count * md_source_scales_per_row(matrix) * sizeof(float) <=
              md_source_raw_bytes(row_count, matrix->cols));
    RT_TRY(md_source_read_codes(source, matrix, row_begin, row_count, q, scales, raw, err));
    md_source_multiply(matrix, row_count, q, scales, out);
    return RT_OK;
}

rt_status md_source_read_rows(const md_source *source, const md_source_matrix *matrix,
                              uint32_t row_begin, uint32_t row_count, float *out, void *raw,
                              rt_err *err)
{
    const source_tensor *tensor = &source->tensors[matrix->weight];
    const md_st_file *file = source->shards[tensor->shard].file;
    md_st_dtype dtype = tensor->tensor->dtype;
    size_t count = (size_t)row_count * matrix->cols, bad;
    size_t row_bytes = matrix->cols * md_st_dtype_bytes(dtype);
    float *scales = (float *)((char *)raw + weight_part(row_count, matrix->cols));

    RT_ASSERT(row_count > 0 && row_begin < matrix->rows && row_count <= matrix->rows - row_begin);
    if (matrix->bits > 0) return read_integers(source, matrix, row_begin, row_count, out, raw, err);
    RT_TRY(md_st_read(file, tensor->tensor, row_begin * row_bytes,
                      dtype == MD_ST_F32 ? (void *)out : raw, row_count * row_bytes, err));
    if (dtype == MD_ST_BF16) decode_bf16(raw, count, out);
    if (dtype == MD_ST_F8_E4M3) {
        RT_TRY(read_scales(source, matrix, row_begin, row_count, scales, err));
        decode_e4m3(raw, scales, row_begin, row_count, matrix->cols, out);
    }
    bad = find_not_finite(out, count);
    if (bad < count)
        return rt_fail(err, RT_EFORMAT, "%s: row %zu, column %zu is not finite", tensor->name,
                       row_begin + bad / matrix->cols, bad % matrix->cols);
    return RT_OK;
}
