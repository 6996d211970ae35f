/* frame.h - the bytes that cross between nodes for one MoE layer. docs/wire.md is normative.
 *
 * Fixed little-endian structs rather than protobuf: at 75 layers a token, encoding is on the token
 * path, and a header of known size lets a receiver bound everything before it reads on. Nothing a peer
 * sends is a pointer, an unchecked index or an allocation size.
 *
 * Payload of DISPATCH: rows first, so that kernels read them in place (the buffer is 64-byte aligned):
 *   TR_ROWS_INT8  int8 [rows][cols padded to group], then f32 scale [rows][groups]
 *   TR_ROWS_F32   f32 [rows][cols]
 * then u16 entry_count[rows] padded to 8 bytes, then entries [entries] of tr_entry, row by row.
 * Payload of REPLY: `rows` partial sums in the order of the dispatch (partial.h).
 * Payload of ERROR: UTF-8 text, at most TR_ERROR_TEXT_MAX bytes; status is in the header.
 * Payload of CONTROL: one protobuf message (control.h).
 * Payload of HINT: u16 experts [entries] of `layer`, which the sender foresees for it. Never answered;
 * either side may drop it. */
#ifndef TRANSPORT_FRAME_H
#define TRANSPORT_FRAME_H

#include "base/status.h"

#include <assert.h>
#include <stdint.h>

enum {
    TR_FRAME_MAGIC = 0x3145534d, /* "MSE1" little-endian */
    TR_PROTOCOL_MIN = 1,         /* range of protocol versions this build speaks */
    TR_PROTOCOL_MAX = 1,
    TR_ROWS_MAX = 4096,      /* rows of one frame; bounds every allocation a frame can cause */
    TR_ROW_ENTRIES_MAX = 64, /* entries of one row */
    TR_COLS_MAX = 65536,
    TR_ERROR_TEXT_MAX = 512,
    TR_CONTROL_MAX = 1 << 20,
    TR_HINT_MAX = 256, /* experts of a hint */
    TR_FRAME_ALIGN = 64,
    TR_FRAME_BYTES_MAX = 1 << 30, /* header included; an int counts it, as MPI wants */
    /* (entry, slice) pairs of one row: as many contributions as an int32 sum always holds (R3) */
    TR_ROW_CONTRIBUTIONS_MAX = 127,
};

typedef enum {
    TR_DISPATCH = 1,
    TR_REPLY = 2,
    TR_ERROR = 3,
    TR_CONTROL = 4,
    TR_HINT = 5
} tr_frame_type;
typedef enum { TR_ROWS_NONE = 0, TR_ROWS_INT8 = 1, TR_ROWS_F32 = 2 } tr_row_encoding;

typedef struct {
    uint32_t magic;
    uint16_t version;
    uint8_t type;     /* tr_frame_type */
    uint8_t encoding; /* tr_row_encoding */
    uint64_t request; /* one layer's dispatch; replies echo it */
    uint32_t attempt; /* of this frame within the request; replies echo it */
    uint32_t epoch;   /* placement map the sender routed with */
    uint16_t layer;
    uint16_t rows;
    uint16_t group;   /* columns of one activation scale, a multiple of 16; 0 unless TR_ROWS_INT8 */
    int8_t q;         /* grid exponent, numerics R3 */
    uint8_t reserved; /* 0 */
    uint32_t cols;    /* hidden size */
    uint32_t entries; /* DISPATCH: all rows' entries */
    uint32_t deadline_us; /* DISPATCH: time left when sent; 0: none */
    uint32_t status;      /* ERROR: rt_status number; else 0 */
    uint64_t payload_bytes;
    uint64_t hash; /* XXH3-64 of the header with this field 0, then of the payload (seeded by it) */
} tr_frame_header;

static_assert(sizeof(tr_frame_header) == 64, "the frame header is 64 bytes on the wire");
static_assert(offsetof(tr_frame_header, hash) == 56, "no hidden padding");

typedef struct {
    uint16_t expert;
    uint16_t reserved;   /* 0 */
    uint32_t slice_mask; /* slices of this expert to compute; not 0 */
    float weight;        /* router weight; finite */
} tr_entry;

static_assert(sizeof(tr_entry) == 12, "an entry is 12 bytes on the wire");

/* A dispatch as seen in a frame; pointers go into the frame and live as long as it. */
typedef struct {
    tr_frame_header head;
    const int8_t *q; /* TR_ROWS_INT8 */
    const float *scale;
    const float *f32;            /* TR_ROWS_F32 */
    const uint16_t *entry_count; /* [rows] */
    const tr_entry *entries;
} tr_dispatch_view;

/* Bytes of a whole dispatch frame, header included. */
size_t tr_dispatch_bytes(tr_row_encoding encoding, uint32_t rows, uint32_t cols, uint32_t group,
                         uint32_t entries);

/* The same view with writable pointers into frame [tr_dispatch_bytes], to be filled in place. */
typedef struct {
    int8_t *q;
    float *scale;
    float *f32;
    uint16_t *entry_count;
    tr_entry *entries;
} tr_dispatch_fill;
void tr_dispatch_layout(void *frame, tr_row_encoding encoding, uint32_t rows, uint32_t cols,
                        uint32_t group, uint32_t entries, tr_dispatch_fill *out);

/* Writes the header (magic, version, payload_bytes = frame_bytes - 64, hash) over the first 64 bytes
 * of a frame whose payload is complete. head: type, encoding, request ... as the caller wants them. */
void tr_frame_seal(void *frame, size_t frame_bytes, const tr_frame_header *head);

/* Checks what arrived: length, magic, version, type, hash, caps. RT_EPROTO names the field, expected and
 * found. On success *head is a copy. */
RT_MUST_CHECK rt_status tr_frame_check(const void *frame, size_t frame_bytes, tr_frame_header *head,
                                       rt_err *err);

typedef struct {
    uint32_t cols, group, experts, slices, layers; /* what the receiver's model has */
} tr_dispatch_limits;

/* Checks a DISPATCH frame that passed tr_frame_check against the model and gives its view: entries'
 * experts and slice masks in range, no expert twice in a row, at most TR_ROW_CONTRIBUTIONS_MAX slices
 * a row, weights and scales finite, no -128 among the int8 values, counts adding up. The frame is
 * 64-byte aligned. */
RT_MUST_CHECK rt_status tr_dispatch_read(const void *frame, size_t frame_bytes,
                                         const tr_dispatch_limits *limits, tr_dispatch_view *out,
                                         rt_err *err);

/* The head of an answer to a dispatch: request, attempt, epoch, layer, rows, q and cols are echoed, all
 * else is 0. type: TR_REPLY or TR_ERROR (then the caller sets status). */
tr_frame_header tr_answer_head(const tr_frame_header *dispatch, tr_frame_type type);

/* Seals a HINT of experts [count], 1..TR_HINT_MAX (asserted), into frame [tr_hint_bytes]. */
static inline size_t tr_hint_bytes(uint32_t count)
{
    return sizeof(tr_frame_header) + count * sizeof(uint16_t);
}
void tr_hint_write(void *frame, uint32_t epoch, uint32_t layer, const uint16_t *experts,
                   uint32_t count);

/* The experts [head->entries] of a checked HINT frame, in the frame. Neither they nor the layer are
 * known to be of the receiver's model. */
const uint16_t *tr_hint_experts(const void *frame, const tr_frame_header *head);

enum { TR_ERROR_BYTES_MAX = 64 + TR_ERROR_TEXT_MAX };

/* Seals an ERROR frame answering `dispatch` into frame [TR_ERROR_BYTES_MAX] and returns its bytes. The
 * text is cut at a character so that it fits. status: not RT_OK. */
size_t tr_error_write(void *frame, const tr_frame_header *dispatch, rt_status status,
                      const char *text);

/* The text of a checked ERROR frame, fit for a log: control characters and malformed UTF-8 become '?'.
 * out [out_bytes] is always terminated. */
void tr_error_text(const void *frame, const tr_frame_header *head, char *out, size_t out_bytes);

#endif
