/* partial.c - rows of integers in as few bytes as their values need. docs/wire.md is normative.
 *
 * The fast path is kind 1: at the grid that conversion chooses nearly every row fits int16. Values of
 * a wider row are little-endian two's complement of the block's width. */
#include "transport/partial.h"

#include "base/check.h"
#include "transport/frame.h"

#include <string.h>

enum { KIND_ZERO = 0, KIND_INT16 = 1, KIND_MIXED = 2, KIND_POISON = 255 };

static uint32_t blocks_of(uint32_t cols)
{
    return (cols + TR_PARTIAL_BLOCK - 1) / TR_PARTIAL_BLOCK;
}

static uint32_t block_cols(uint32_t cols, uint32_t block)
{
    uint32_t left = cols - block * TR_PARTIAL_BLOCK;

    return left < TR_PARTIAL_BLOCK ? left : TR_PARTIAL_BLOCK;
}

size_t tr_partial_bytes_max(uint32_t cols)
{
    return 1 + (size_t)8 * cols + blocks_of(cols);
}

/* The bits of all values folded together so that the width follows from the result alone: v ^ (v >> 63)
 * maps a value and its complement to the same non-negative number. */
static uint64_t fold32(const int32_t *v, uint32_t n)
{
    uint32_t bits = 0, any = 0;

    for (uint32_t i = 0; i < n; i++) {
        bits |= (uint32_t)(v[i] ^ (v[i] >> 31));
        any |= (uint32_t)v[i];
    }
    /* -1 folds to 0 but is not a zero row: one more bit tells them apart. */
    return any != 0 ? (uint64_t)bits << 1 | 1 : 0;
}

static uint64_t fold64(const int64_t *v, uint32_t n)
{
    uint64_t bits = 0, any = 0;

    for (uint32_t i = 0; i < n; i++) {
        bits |= (uint64_t)(v[i] ^ (v[i] >> 63));
        any |= (uint64_t)v[i];
    }
    return any != 0 ? bits << 1 | 1 : 0; /* bit 63 of `bits` is always 0 */
}

static uint8_t width_of(uint64_t folded)
{
    if (folded == 0) return 0;
    if (folded >> 8 == 0) return 1;
    if (folded >> 16 == 0) return 2;
    if (folded >> 24 == 0) return 3;
    if (folded >> 32 == 0) return 4;
    return 8;
}

static inline uint8_t *put(uint8_t *out, int64_t value, uint8_t width)
{
    memcpy(out, &value, width); /* little-endian host: the low bytes come first */
    return out + width;
}

/* A block's values. The width is a constant in each call, or every value would cost a call of memcpy:
 * that made mixed rows four times as dear as int16 ones. */
static inline __attribute__((always_inline)) void put32(uint8_t *out, const int32_t *v, uint32_t n,
                                                        uint8_t width)
{
    for (uint32_t i = 0; i < n; i++)
        out = put(out, v[i], width);
}

static inline __attribute__((always_inline)) void put64(uint8_t *out, const int64_t *v, uint32_t n,
                                                        uint8_t width)
{
    for (uint32_t i = 0; i < n; i++)
        out = put(out, v[i], width);
}

static uint8_t *put_block32(uint8_t *out, const int32_t *v, uint32_t n, uint8_t width)
{
    switch (width) {
    case 0:
        break;
    case 1:
        put32(out, v, n, 1);
        break;
    case 2:
        put32(out, v, n, 2);
        break;
    case 3:
        put32(out, v, n, 3);
        break;
    default:
        put32(out, v, n, 4);
        break;
    }
    return out + (size_t)n * width;
}

static uint8_t *put_block64(uint8_t *out, const int64_t *v, uint32_t n, uint8_t width)
{
    switch (width) {
    case 0:
        break;
    case 1:
        put64(out, v, n, 1);
        break;
    case 2:
        put64(out, v, n, 2);
        break;
    case 3:
        put64(out, v, n, 3);
        break;
    case 4:
        put64(out, v, n, 4);
        break;
    default:
        put64(out, v, n, 8);
        break;
    }
    return out + (size_t)n * width;
}

size_t tr_partial_write(uint8_t *out, const int32_t *sum, uint32_t cols)
{
    uint8_t width = width_of(fold32(sum, cols));
    uint8_t *codes = out + 1, *at = codes + blocks_of(cols);

    if (width == 0) {
        out[0] = KIND_ZERO;
        return 1;
    }
    if (width <= 2) {
        out[0] = KIND_INT16;
        for (uint32_t i = 0; i < cols; i++) {
            int16_t v = (int16_t)sum[i];

            memcpy(out + 1 + (size_t)2 * i, &v, 2);
        }
        return 1 + (size_t)2 * cols;
    }
    out[0] = KIND_MIXED;
    for (uint32_t block = 0; block < blocks_of(cols); block++) {
        const int32_t *v = sum + block * TR_PARTIAL_BLOCK;
        uint32_t n = block_cols(cols, block);

        codes[block] = width_of(fold32(v, n));
        at = put_block32(at, v, n, codes[block]);
    }
    return (size_t)(at - out);
}

size_t tr_partial_write_wide(uint8_t *out, const int64_t *sum, uint32_t cols)
{
    uint8_t width = width_of(fold64(sum, cols));
    uint8_t *codes = out + 1, *at = codes + blocks_of(cols);

    if (width == 0) {
        out[0] = KIND_ZERO;
        return 1;
    }
    if (width <= 2) {
        out[0] = KIND_INT16;
        for (uint32_t i = 0; i < cols; i++)
            put(out + 1 + (size_t)2 * i, sum[i], 2);
        return 1 + (size_t)2 * cols;
    }
    out[0] = KIND_MIXED;
    for (uint32_t block = 0; block < blocks_of(cols); block++) {
        const int64_t *v = sum + block * TR_PARTIAL_BLOCK;
        uint32_t n = block_cols(cols, block);

        codes[block] = width_of(fold64(v, n));
        at = put_block64(at, v, n, codes[block]);
    }
    return (size_t)(at - out);
}

size_t tr_partial_write_poison(uint8_t *out)
{
    out[0] = KIND_POISON;
    return 1;
}

/* The bytes of the row at `in`, its kind included, all of them inside `bytes`. */
static rt_status row_bytes(const uint8_t *in, size_t bytes, uint32_t cols, size_t *out, rt_err *err)
{
    size_t need = 1, blocks = blocks_of(cols);

    if (bytes < 1) return rt_fail(err, RT_EPROTO, "partial sum: expected a row, found the end");
    switch (in[0]) {
    case KIND_ZERO:
    case KIND_POISON:
        break;
    case KIND_INT16:
        need += (size_t)2 * cols;
        break;
    case KIND_MIXED:
        need += blocks;
        if (bytes < need) break;
        for (uint32_t block = 0; block < blocks; block++) {
            uint8_t code = in[1 + block];

            if (code > 4 && code != 8)
                return rt_fail(err, RT_EPROTO,
                               "partial sum: width code of block %u: expected 0, 1, 2, 3, 4 or 8, "
                               "found %u",
                               block, code);
            need += (size_t)code * block_cols(cols, block);
        }
        break;
    default:
        return rt_fail(err, RT_EPROTO, "partial sum: kind: expected 0, 1, 2 or 255, found %u",
                       in[0]);
    }
    if (bytes < need)
        return rt_fail(err, RT_EPROTO, "partial sum: expected %zu bytes or more, found %zu", need,
                       bytes);
    *out = need;
    return RT_OK;
}

/* Sums wrap instead of being undefined: an honest peer stays far below, a lying one gains nothing. */
static void add(int64_t *acc, int64_t value)
{
    *acc = (int64_t)((uint64_t)*acc + (uint64_t)value);
}

static inline int64_t get(const uint8_t *in, uint8_t width)
{
    uint64_t bits = 0;
    uint32_t spare = 64 - 8u * width;

    memcpy(&bits, in, width);
    return (int64_t)(bits << spare) >> spare;
}

static inline __attribute__((always_inline)) void add_values(int64_t *acc, const uint8_t *in,
                                                             uint32_t n, uint8_t width)
{
    for (uint32_t i = 0; i < n; i++)
        add(&acc[i], get(in + (size_t)i * width, width));
}

/* A constant width in each call, as in put_block32. */
static void add_block(int64_t *acc, const uint8_t *in, uint32_t n, uint8_t width)
{
    switch (width) {
    case 0:
        break;
    case 1:
        add_values(acc, in, n, 1);
        break;
    case 2:
        add_values(acc, in, n, 2);
        break;
    case 3:
        add_values(acc, in, n, 3);
        break;
    case 4:
        add_values(acc, in, n, 4);
        break;
    default:
        add_values(acc, in, n, 8);
        break;
    }
}

static void add_mixed(int64_t *acc, uint32_t cols, const uint8_t *in)
{
    const uint8_t *codes = in + 1, *at = codes + blocks_of(cols);

    for (uint32_t block = 0; block < blocks_of(cols); block++) {
        uint32_t n = block_cols(cols, block);

        add_block(acc + block * TR_PARTIAL_BLOCK, at, n, codes[block]);
        at += (size_t)n * codes[block];
    }
}

rt_status tr_partial_add(int64_t *acc, uint32_t cols, const uint8_t *in, size_t bytes, size_t *used,
                         bool *poison, rt_err *err)
{
    size_t row;

    RT_ASSERT(cols > 0 && cols <= TR_COLS_MAX);
    RT_TRY(row_bytes(in, bytes, cols, &row, err));
    switch (in[0]) {
    case KIND_INT16:
        for (uint32_t i = 0; i < cols; i++) {
            int16_t v;

            memcpy(&v, in + 1 + (size_t)2 * i, 2);
            add(&acc[i], v);
        }
        break;
    case KIND_MIXED:
        add_mixed(acc, cols, in);
        break;
    case KIND_POISON:
        *poison = true;
        break;
    default: /* KIND_ZERO: row_bytes knows no other */
        break;
    }
    *used = row;
    return RT_OK;
}

rt_status tr_partial_check(const uint8_t *in, size_t bytes, uint32_t rows, uint32_t cols,
                           rt_err *err)
{
    size_t at = 0;

    RT_ASSERT(cols > 0 && cols <= TR_COLS_MAX);
    for (uint32_t row = 0; row < rows; row++) {
        size_t used;
        rt_status status = row_bytes(in + at, bytes - at, cols, &used, err);

        if (status != RT_OK) {
            rt_err_prefix(err, "row %u: ", row);
            return status;
        }
        at += used;
    }
    if (at != bytes)
        return rt_fail(err, RT_EPROTO, "partial sums of %u rows: expected %zu bytes, found %zu",
                       rows, at, bytes);
    return RT_OK;
}
