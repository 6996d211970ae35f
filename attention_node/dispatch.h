/* dispatch.h - one layer's rows grouped by the nodes that own their experts, as frames.
 *
 * Grouped by node and not by expert: a message costs more than a row, and a node usually owns several
 * of a row's experts. Each row goes to a node once, with all its entries there. What a frame holds is
 * a pure function of routes and map; sending is the driver's (moe.h).
 *
 * Pure: no clock, socket, thread, or allocation after create.
 * Threads: one owner. */
#ifndef ATTENTION_NODE_DISPATCH_H
#define ATTENTION_NODE_DISPATCH_H

#include "kernels/quant.h"
#include "placement/map.h"
#include "transport/frame.h"

typedef struct an_dispatch an_dispatch;

RT_MUST_CHECK rt_status an_dispatch_create(uint32_t nodes, uint32_t rows_max, an_dispatch **out,
                                           rt_err *err);
void an_dispatch_free(an_dispatch *dispatch);
size_t an_dispatch_memory_bytes(uint32_t nodes, uint32_t rows_max);

/* One layer. All pointers are borrowed until the layer completes. */
typedef struct {
    uint64_t request; /* of this dispatch; replies echo it */
    uint32_t layer;
    int q;            /* grid exponent */
    const kn_rows *x; /* the rows; int8 frames need x->q */
    bool int8;
    uint32_t topk;
    const uint32_t *id;  /* [rows][topk] */
    const float *weight; /* [rows][topk], finite */
    const pl_map *map;   /* one epoch for the whole layer */
} an_dispatch_layer;

/* Groups the rows. map has at most `nodes` nodes, x->rows <= rows_max (asserted). */
void an_dispatch_plan(an_dispatch *dispatch, const an_dispatch_layer *layer);

const an_dispatch_layer *an_dispatch_get_layer(const an_dispatch *dispatch);
uint32_t an_dispatch_nodes(const an_dispatch *dispatch);

/* Rows that go to a node, ascending, in the order of its frame; *count 0: it gets no frame. */
const uint32_t *an_dispatch_rows(const an_dispatch *dispatch, uint32_t node, uint32_t *count);

/* Length of a node's frame, and the frame itself, sealed. frame is 64-byte aligned. */
size_t an_dispatch_frame_bytes(const an_dispatch *dispatch, uint32_t node);
void an_dispatch_write(const an_dispatch *dispatch, uint32_t node, uint32_t attempt,
                       uint32_t deadline_us, void *frame);

#endif
