/* control.h - the messages between nodes that are not a layer's rows: joining, progress, counters, end.
 *
 * Plain structs here; the protobuf types behind them stop at control.c. A message that decodes has
 * passed every check of docs/wire.md, so its users check nothing again. Decoding allocates at most
 * TR_CONTROL_DECODE_BYTES whatever the peer sends.
 *
 * Order: an expert node sends HELLO, rank 0 answers WELCOME or REJECT; the node loads its share (PROGRESS)
 * and sends READY; then dispatches, and STATS between them; STOP ends it, and is answered by STOP.
 *
 * Threads: any; encoding uses the link and so belongs to its owner. */
#ifndef TRANSPORT_CONTROL_H
#define TRANSPORT_CONTROL_H

#include "transport/link.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TR_MODEL_ID_BYTES = 32,
    TR_HOST_BYTES = 256, /* with the terminating 0 */
    TR_REJECT_BYTES = 513,
    TR_REASON_BYTES = 257,
    TR_NODES_MAX = 1024,
    TR_SHARE_MAX = 1 << 20,
    TR_CONTROL_DECODE_BYTES = 256 << 10,
};

typedef enum {
    TR_CONTROL_HELLO = 1,
    TR_CONTROL_WELCOME,
    TR_CONTROL_REJECT,
    TR_CONTROL_PROGRESS,
    TR_CONTROL_READY,
    TR_CONTROL_STATS_REQUEST,
    TR_CONTROL_STATS_REPLY,
    TR_CONTROL_STOP,
} tr_control_type;

typedef enum { TR_ROLE_ATTENTION = 1, TR_ROLE_EXPERT = 2 } tr_role;

typedef struct {
    uint32_t protocol_min, protocol_max; /* 1..65535 */
    uint32_t numerics_id;                /* not 0 */
    uint8_t model_id[TR_MODEL_ID_BYTES];
    tr_role role;
    char host[TR_HOST_BYTES]; /* not empty */
    uint32_t pid;             /* not 0 */
} tr_hello;

/* From rank 0 after it has accepted a HELLO: all that the node needs to build the map and its share. */
typedef struct {
    uint32_t protocol;
    uint32_t node_index; /* in share */
    uint32_t epoch;
    bool sliced; /* else whole experts */
    uint32_t nodes;
    uint32_t share[TR_NODES_MAX]; /* [nodes]; at least one is not 0 */
    bool float_activations;
    uint32_t rows_max; /* of a dispatch, 1..TR_ROWS_MAX */
    bool with_mtp;
} tr_welcome;

typedef struct {
    rt_status status; /* not RT_OK */
    char text[TR_REJECT_BYTES];
} tr_reject;

typedef struct {
    uint64_t done_bytes, total_bytes;
} tr_progress;

typedef struct {
    uint64_t records, records_in_ram, ram_bytes;
} tr_ready;

typedef struct {
    uint64_t hits, reads, read_bytes; /* records from RAM; from disk */
    uint64_t wait_ns, compute_ns;
    uint64_t frames, rows;
    uint64_t hits_pinned;               /* of hits, those that stay in RAM for good */
    uint64_t ahead_reads, ahead_useful; /* because of a hint; of those, wanted afterwards */
} tr_stats;

typedef struct {
    bool clean; /* the work is done; else something failed */
    char reason[TR_REASON_BYTES];
} tr_stop;

typedef struct {
    tr_control_type type;
    union {
        tr_hello hello;
        tr_welcome welcome;
        tr_reject reject;
        tr_progress progress;
        tr_ready ready;
        tr_stats stats_reply;
        tr_stop stop;
    };
} tr_control;

/* A sealed CONTROL frame in a buffer of the link, ready to be sent. Texts are cleaned (control characters
 * and malformed UTF-8 become '?'); other values are the caller's to get right. As tr_link_acquire. */
RT_MUST_CHECK rt_status tr_control_encode(tr_link *link, const tr_control *message, tr_buf **out);

/* Encodes and sends.  As tr_link_acquire and tr_link_send. */
RT_MUST_CHECK rt_status tr_control_send(tr_link *link, uint32_t peer, const tr_control *message);

/* Checks the frame (tr_frame_check) and decodes it.
 *   Errors  RT_EPROTO  not a CONTROL frame, not a message, or a field outside its range: message, field,
 *                      expected and found are named; or decoding wants too much memory */
RT_MUST_CHECK rt_status tr_control_decode(const void *frame, size_t frame_bytes, tr_control *out,
                                          rt_err *err);

const char *tr_control_name(tr_control_type type); /* "hello" */

/* Can the two work together? The text names expected (mine) and found (theirs), fit for a REJECT.
 *   Errors  RT_EUNSUPPORTED  protocol ranges do not overlap, or the numerics ids differ
 *           RT_EFORMAT       another model: both ids in hex
 *           RT_EINVAL        both have the same role */
RT_MUST_CHECK rt_status tr_hello_check(const tr_hello *mine, const tr_hello *theirs, rt_err *err);

/* The newest protocol of two hellos that passed the check. */
uint32_t tr_hello_protocol(const tr_hello *mine, const tr_hello *theirs);

/* "0f3a..." of TR_MODEL_ID_BYTES bytes into text [2 * TR_MODEL_ID_BYTES + 1]; returns text. */
const char *tr_model_id_text(const uint8_t *id, char *text);

#endif
