/* shared_expert.h - the shared expert as expert number E of the layer: its slices, weight 1, onto the
 * same integer sums as everybody's. It runs while the expert nodes compute.
 *
 * Threads: the engine's owner; runs the team. */
#ifndef ATTENTION_NODE_SHARED_EXPERT_H
#define ATTENTION_NODE_SHARED_EXPERT_H

#include "attention_node/combine.h"
#include "attention_node/rows.h"

/* Called between parts of the work, so that the link goes on sending and receiving. */
typedef rt_status (*an_pump)(void *context);

/* Adds the shared expert's slices of x to the sums of rows 0..x->rows. Nothing when the model has
 * none. Returns what pump returned when that is not RT_OK. */
RT_MUST_CHECK rt_status an_shared_run(const an_pass *pass, uint32_t layer, const kn_rows *x,
                                      an_combine *combine, an_pump pump, void *pump_context);

/* Arena bytes that a run takes and returns; member memory it uses. layout: of the shared expert. */
size_t an_shared_cost(const md_expert_layout *layout, uint32_t members);
size_t an_shared_member_bytes(const md_expert_layout *layout);

#endif
