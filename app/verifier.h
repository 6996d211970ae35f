/* verifier.h - runs a reference's prompts through an engine and counts what differs.
 *
 * Each prompt is prefilled in chunks and then decoded row by row along the reference's greedy tokens
 * (end-of-sequence ids are ignored), so both paths are compared at every position.
 *
 * Threads: the engine's owner. */
#ifndef APP_VERIFIER_H
#define APP_VERIFIER_H

#include "app/reference.h"
#include "attention_node/engine.h"

typedef struct {
    uint32_t equal, total, exempt; /* exempt rows are in neither */
} app_count;

typedef struct {
    app_count positions;   /* rows whose most likely token is the reference's */
    app_count greedy;      /* tokens of the greedy continuations */
    app_count router_sets; /* (row, MoE layer) */
    app_count index_sets;  /* (row, full layer) where a selection took place */
    double max_logit_diff; /* over rows that are not exempt */
    uint32_t worst_prompt, worst_row;
    uint32_t exempt_rows;   /* rows with a reference gap below 1e-5 in some layer */
    double max_hidden_diff; /* over the dbg tensors; 0 when there are none */
    char first_deviation
        [96]; /* "layer 3 attn: 0.0123 at row 4"; "" when none exceeds the tolerance */
} app_verify_result;

/* tolerance: for max_logit_diff's judgement and for the dbg tensors. logits and scratch come from the
 * heap.  Errors: those of the engine; RT_EFORMAT when the reference does not fit the model (named). */
RT_MUST_CHECK rt_status app_verify(an_engine *engine, const md_config *config,
                                   const app_reference *reference, uint32_t chunk, double tolerance,
                                   app_verify_result *out, rt_err *err);

#endif
