/* dense_mlp.h - the MLP of the layers without experts: down(silu(gate x) * up x).
 *
 * Threads: the engine's owner; runs the team. */
#ifndef ATTENTION_NODE_DENSE_MLP_H
#define ATTENTION_NODE_DENSE_MLP_H

#include "attention_node/rows.h"

/* out [rows][hidden]. */
void an_dense_run(const an_pass *pass, uint32_t layer, const kn_rows *x, float *out);

/* Arena bytes that a run takes and returns; member memory it uses. */
size_t an_dense_cost(const md_config *config, uint32_t rows);
size_t an_dense_member_bytes(const md_config *config);

#endif
