/* head.h - logits for the rows that want them.
 *
 * Threads: the engine's owner; runs the team. */
#ifndef ATTENTION_NODE_HEAD_H
#define ATTENTION_NODE_HEAD_H

#include "attention_node/rows.h"

/* logits[i] [vocab] = lm_head x[i], for `rows` rows [hidden] after the final norm.
 *   Errors  RT_ENUMERIC  *bad_row is the first row with a logit that is not finite */
RT_MUST_CHECK rt_status an_head_run(const an_pass *pass, const float *x, uint32_t rows,
                                    float *const *logits, uint32_t *bad_row);

/* Arena bytes that a run takes and returns; member memory it uses. */
size_t an_head_cost(const md_config *config, uint32_t rows);
size_t an_head_member_bytes(const md_config *config, uint32_t rows);

#endif
