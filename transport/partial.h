/* partial.h - a row's partial sum on the wire: lossless, as few bytes as its values need.
 *
 * kind 0: a zero row. kind 1: all int16 (2 * cols bytes, the fast path). kind 2: mixed: one width code
 * a block of 64 columns, from {0,1,2,3,4,8} bytes, then the blocks (the last may be short). kind 255:
 * poison, a contribution was not finite or beyond 2^55. A row is: u8 kind, then its bytes.
 *
 * Threads: any. */
#ifndef TRANSPORT_PARTIAL_H
#define TRANSPORT_PARTIAL_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

enum { TR_PARTIAL_BLOCK = 64 };

/* The most a row can take: 1 + 8 * cols + ceil(cols / 64). */
size_t tr_partial_bytes_max(uint32_t cols);

/* Write one row; return the bytes written. out has tr_partial_bytes_max(cols). */
size_t tr_partial_write(uint8_t *out, const int32_t *sum, uint32_t cols);
size_t tr_partial_write_wide(uint8_t *out, const int64_t *sum, uint32_t cols);
size_t tr_partial_write_poison(uint8_t *out);

/* Adds one row at in [bytes] to acc [cols] and gives the bytes it took. A poison row sets *poison
 * and adds nothing. RT_EPROTO: an unknown kind or code, or the row does not fit `bytes`; acc is then
 * undefined. */
RT_MUST_CHECK rt_status tr_partial_add(int64_t *acc, uint32_t cols, const uint8_t *in, size_t bytes,
                                       size_t *used, bool *poison, rt_err *err);

/* Walks `rows` rows without adding: the whole payload must be exactly these rows. Run it on a reply
 * before anything is added, so that a bad reply leaves the sums untouched. */
RT_MUST_CHECK rt_status tr_partial_check(const uint8_t *in, size_t bytes, uint32_t rows,
                                         uint32_t cols, rt_err *err);

#endif
