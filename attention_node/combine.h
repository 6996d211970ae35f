/* combine.h - the sums of one layer while replies come in: who still owes one, and what they add up to.
 *
 * Integer sums have no order, so replies are added as they come, the shared expert at any time between
 * (numerics R3). A reply counts once: duplicates, and replies to an earlier request or another
 * attempt, are dropped. A reply is checked whole before any of it is added.
 *
 * Pure: no clock, socket, thread, or allocation after create.
 * Threads: one owner, but an_combine_sums and an_combine_finish of distinct rows from any. */
#ifndef ATTENTION_NODE_COMBINE_H
#define ATTENTION_NODE_COMBINE_H

#include "attention_node/dispatch.h"

typedef struct an_combine an_combine;

RT_MUST_CHECK rt_status an_combine_create(uint32_t nodes, uint32_t rows_max, uint32_t cols,
                                          an_combine **out, rt_err *err);
void an_combine_free(an_combine *combine);
size_t an_combine_memory_bytes(uint32_t nodes, uint32_t rows_max, uint32_t cols);

/* Starts a layer: zero sums, a reply owed by every node that gets a frame of the plan (attempt 0).
 * dispatch is borrowed until the layer completes or the next begin. */
void an_combine_begin(an_combine *combine, const an_dispatch *dispatch);

typedef enum {
    AN_REPLY_ADDED,
    AN_REPLY_DROPPED, /* stale, a duplicate, or not for this layer at all */
} an_reply;

/* Takes a frame that came from `node`; the frame stays the caller's. From a node that owes nothing any
 * frame is dropped unread.
 *   Errors  RT_EPROTO  not a frame, not one that an expert node sends, or a reply that does not fit
 *                      what was asked; nothing was added
 *           other      the status of an ERROR frame, with its text */
RT_MUST_CHECK rt_status an_combine_frame(an_combine *combine, uint32_t node, const void *frame,
                                         size_t frame_bytes, an_reply *reply, rt_err *err);

/* Nodes that still owe a reply; the lowest of them (asserted to exist). */
uint32_t an_combine_owed(const an_combine *combine);
uint32_t an_combine_first_owing(const an_combine *combine);
bool an_combine_owes(const an_combine *combine, uint32_t node);

/* Forgets the layer, after a failure: every later reply to it is stale. */
void an_combine_abandon(an_combine *combine);

/* For contributions made here: sums [cols] of a row, and its mark that one was not finite. */
int64_t *an_combine_sums(an_combine *combine, uint32_t row);
void an_combine_poison(an_combine *combine, uint32_t row);

/* out [cols] = the row's sum as f32; false when a contribution was poison. Nothing is owed any more
 * (asserted). */
bool an_combine_finish(const an_combine *combine, uint32_t row, float *out);

#endif
