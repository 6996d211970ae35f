/* forward.h - the layers, in the order of the paper.
 *
 * Threads: the engine's owner; runs the team. */
#ifndef ATTENTION_NODE_FORWARD_H
#define ATTENTION_NODE_FORWARD_H

#include "attention_node/dsa_index.h"
#include "attention_node/moe.h"

/* Buffers of the step, [rows_max][hidden] each. */
typedef struct {
    float *x;      /* the residual stream */
    float *normed; /* input of the part that runs */
    float *y;      /* its output */
} an_stream;

/* Embeds tokens [pass->rows] into stream->x, runs every layer, and leaves the rows after the final
 * norm in stream->normed.
 *   Errors  as an_engine_step */
RT_MUST_CHECK rt_status an_forward_run(const an_pass *pass, const uint32_t *tokens,
                                       const an_stream *stream, an_index_lists *lists, an_moe *moe,
                                       an_engine_stats *stats, rt_err *err);

/* Records RT_ENUMERIC for a row of the step. */
rt_status an_forward_numeric(const an_pass *pass, uint32_t layer, uint32_t row, const char *what,
                             rt_err *err);

/* Arena bytes that a run takes and returns; member memory it uses. */
size_t an_forward_cost(const an_engine_spec *spec);
size_t an_forward_member_bytes(const an_engine_spec *spec);

#endif
