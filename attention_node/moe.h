/* moe.h - one MoE layer: router, frames to the expert nodes, the shared expert, the sums.
 *
 * This is the driver around the pure state machines dispatch and combine: it feeds them events of the
 * link and the time. All frames leave before any reply is awaited; the shared expert runs meanwhile;
 * replies are added as they come.
 *
 * A node that is silent for reply_timeout_ns is lost: an error that names it. After a failed layer
 * late replies may still come; they carry an older request id and are dropped.
 *
 * Threads: the link's owner; runs the team. */
#ifndef ATTENTION_NODE_MOE_H
#define ATTENTION_NODE_MOE_H

#include "attention_node/rows.h"

typedef struct an_moe an_moe;

/* Counts of the engine's stats that belong here are kept in *stats (borrowed).
 *   Errors  RT_EINVAL  the map has more nodes than the link has peers */
RT_MUST_CHECK rt_status an_moe_create(const an_engine_spec *spec, an_engine_stats *stats,
                                      an_moe **out, rt_err *err);
void an_moe_free(an_moe *moe);
size_t an_moe_memory_bytes(const an_engine_spec *spec);

/* The rows of a layer are wanted as int8 too, by the experts or by the shared expert. */
bool an_moe_wants_int8(const an_moe *moe, const an_pass *pass, uint32_t layer);

/* out [rows][hidden] = routed and shared experts of x, the normed rows of the layer. x has int8 rows
 * when an_moe_wants_int8.
 *   Errors  RT_EPEER      a node is down or was silent for too long (named)
 *           RT_ENUMERIC   *bad_row, when it is < rows
 *           RT_ECANCELED  a stop was requested while waiting
 *           other         what a node reported, its name in the text */
RT_MUST_CHECK rt_status an_moe_run(an_moe *moe, const an_pass *pass, uint32_t layer,
                                   const kn_rows *x, float *out, uint32_t *bad_row, rt_err *err);

/* Tells the nodes which experts `layer` will choose if its rows are x; what a node's link has no room for
 * is not told. Takes no more of the arena than a run. */
void an_moe_foresee(an_moe *moe, const an_pass *pass, uint32_t layer, const kn_rows *x);

/* Arena bytes that a run takes and returns; member memory it uses. */
size_t an_moe_cost(const an_engine_spec *spec);
size_t an_moe_member_bytes(const an_engine_spec *spec);

#endif
