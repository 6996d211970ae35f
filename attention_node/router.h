/* router.h - which experts a row goes to, and with what weight. All in f32.
 *
 * s = sigmoid(W x) gives the weights, s + bias chooses (SPEC section 8). Experts are listed in
 * ascending id, which is also the order of the sum that normalises the weights.
 *
 * Threads: the engine's owner; runs the team. */
#ifndef ATTENTION_NODE_ROUTER_H
#define ATTENTION_NODE_ROUTER_H

#include "attention_node/rows.h"

/* The choice for one row.
 *   logit    [experts], overwritten
 *   bias     [experts]
 *   scratch  [2 * experts] of 4 bytes
 *   id, weight  out [topk]
 *   Returns  false when a logit is NaN */
bool an_router_pick(const md_config *config, float *logit, const float *bias, void *scratch,
                    uint32_t *id, float *weight);

/* id, weight: out [rows][topk].
 *   Errors  RT_ENUMERIC  *bad_row */
RT_MUST_CHECK rt_status an_router_run(const an_pass *pass, uint32_t layer, const kn_rows *x,
                                      uint32_t *id, float *weight, uint32_t *bad_row);

/* Arena bytes that a run takes and returns; member memory it uses. */
size_t an_router_cost(const md_config *config, uint32_t rows);
size_t an_router_member_bytes(const md_config *config);

#endif
