/* execute.h - the rows of one frame through the experts they name: exact partial sums.
 *
 * Each expert of the frame's union is computed once, for all rows that chose it. The unit of
 * parallel work is one (expert, slice): a complete small FFN whose contributions go into the
 * member's own int32 sums; members' sums are merged as integers, so neither the split nor the order
 * shows. The shared expert of the attention node runs through the same code in model/ffn.h and
 * kernels/grid.h.
 *
 * Threads: the node's owner thread; it runs the team. */
#ifndef EXPERT_NODE_EXECUTE_H
#define EXPERT_NODE_EXECUTE_H

#include "base/profile.h"
#include "base/team.h"
#include "expert_node/store.h"
#include "transport/frame.h"

typedef struct en_executor en_executor;

typedef struct {
    en_store *store;               /* borrowed */
    const md_container *container; /* borrowed */
    rt_team *team;                 /* borrowed */
    rt_profile *profile;           /* borrowed; NULL: none */
    uint32_t rows_max;             /* per frame; larger frames are refused */
    bool float_activations;
} en_executor_spec;

typedef struct {
    uint64_t frames, rows, experts; /* experts: (frame, expert) computations */
    uint64_t compute_ns;
} en_execute_stats;

RT_MUST_CHECK rt_status en_executor_create(const en_executor_spec *spec, en_executor **out,
                                           rt_err *err);
void en_executor_free(en_executor *executor);
uint64_t en_executor_bytes(const md_container *container, uint32_t rows_max, uint32_t members);

/* Computes a dispatch that tr_dispatch_read has checked and writes the reply's payload.
 *   payload  [en_reply_bytes_max]; *payload_bytes is set
 *   Errors   RT_EINVAL  an expert or slice this node does not own (named), a layer without experts,
 *                       or more than rows_max rows
 *            RT_EPROTO  rows in another encoding than this container and mode compute with, or a q
 *                       below -126
 *            RT_EIO, RT_EFORMAT  of the store;  RT_ENOMEM  for a wide sum beyond the pool */
RT_MUST_CHECK rt_status en_execute(en_executor *executor, const tr_dispatch_view *dispatch,
                                   uint8_t *payload, size_t *payload_bytes, rt_err *err);
/* en_store_hint and en_store_idle of the executor's store. */
void en_executor_hint(en_executor *executor, uint32_t layer, const uint16_t *experts,
                      uint32_t count);
void en_executor_idle(en_executor *executor);
size_t en_reply_bytes_max(uint32_t rows, uint32_t cols);
en_execute_stats en_executor_get_stats(const en_executor *executor);

#endif
