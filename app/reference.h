/* reference.h - a reference run of a model by another engine: reference.json and reference.safetensors.
 *
 * The format is that of tests/fixtures (README there): per prompt the ids, the greedy continuation, the
 * logits, the experts and the indexer's positions of every row. Gap tensors (router_gap, index_gap:
 * distance of the last chosen from the first not chosen) are optional.
 *
 * Threads: one owner. */
#ifndef APP_REFERENCE_H
#define APP_REFERENCE_H

#include "model/convert/safetensors.h"

#include <stdbool.h>

typedef struct {
    uint32_t prompt_len, greedy_count, logits_first_row;
    uint32_t rows;    /* of the ids tensor: prompt and greedy */
    uint32_t *ids;    /* owned */
    uint32_t *greedy; /* owned */
    float *logits;    /* owned [rows - logits_first_row][vocab] */
} app_reference_prompt;

typedef struct {
    double latent_eps;  /* NaN when the file does not say */
    int32_t dbg_prompt; /* -1: none */
    uint32_t prompt_count, vocab;
    app_reference_prompt *prompts; /* owned */
    md_st_file *file;              /* owned */
} app_reference;

/* dir holds reference.json and reference.safetensors. RT_EIO, RT_EFORMAT (named), RT_ENOMEM. */
RT_MUST_CHECK rt_status app_reference_open(const char *dir, app_reference *out, rt_err *err);
void app_reference_close(app_reference *reference); /* accepts a zeroed one */

/* The tensor "p<prompt>.layer<layer>.<name>" as malloc'd values of 4 bytes; *out is NULL when the
 * file has none. columns: its last dimension. RT_EFORMAT when it is not of `dtype` with `rows` rows. */
RT_MUST_CHECK rt_status app_reference_tensor(const app_reference *reference, const char *name,
                                             md_st_dtype dtype, void **out, uint32_t *rows,
                                             uint32_t *columns, rt_err *err);

#endif
