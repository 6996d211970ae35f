/* mla.h - multi-head latent attention in its absorbed form, over the rows of a step.
 *
 * Per position the cache holds one latent and one rope key for all heads. The key half of kv_b is
 * applied to the query (u_h = UK_h^T q_h) and the value half to the summed latents (UV_h m_h), so that
 * prefill, decode, dense and sparse are the same function of a list of positions (numerics R4).
 * SPEC section 6.
 *
 * Threads: the engine's owner; runs the team. */
#ifndef ATTENTION_NODE_MLA_H
#define ATTENTION_NODE_MLA_H

#include "attention_node/dsa_index.h"

/* out [rows][hidden] = o_proj(attention over x), x the normed input of the layer. Writes the rows of
 * the step into the cache first; updates the lists on full layers.
 *   Errors  RT_ENUMERIC  *bad_row */
RT_MUST_CHECK rt_status an_mla_run(const an_pass *pass, uint32_t layer, const kn_rows *x,
                                   an_index_lists *lists, float *out, uint32_t *bad_row);

/* Arena bytes that a run takes and returns; member memory it uses. */
size_t an_mla_cost(const md_config *config, uint32_t rows, uint32_t context, uint32_t members);
size_t an_mla_member_bytes(const md_config *config, uint32_t context);

#endif
