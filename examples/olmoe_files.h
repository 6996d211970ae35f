/* olmoe_files.h - what the example reads besides weights: config.json, and the reference outputs
 * that --verify compares with.
 *
 * Apart from olmoe.c because there is nothing to learn here about MoE: only how files are distrusted.
 *
 * Threads: any. */
#ifndef EXAMPLES_OLMOE_FILES_H
#define EXAMPLES_OLMOE_FILES_H

#include "base/status.h"

#include <stdint.h>

enum { EX_HEAD_DIM_MAX = 1024 };

typedef struct {
    uint32_t layers, hidden, heads, head_dim, inter, experts, topk, vocab, positions;
    double rope_theta, norm_eps;
} ex_shape;

/* From DIR/config.json.
 *   Errors  RT_EIO, RT_EFORMAT  not there, not JSON, a number out of range
 *           RT_EUNSUPPORTED     a setting that would change what is computed; named */
RT_MUST_CHECK rt_status ex_shape_read(const char *dir, ex_shape *out, rt_err *err);

typedef struct {
    uint32_t *tokens; /* [count]: the prompt, then what the reference said next */
    uint32_t count, prompt_count;
    float *logits; /* [count][vocab]: row t predicts token t+1 */
} ex_prompt;

/* All prompts of DIR/reference.json with their logits from DIR/reference.safetensors.
 *   Errors  RT_EIO, RT_EFORMAT, RT_ENOMEM */
RT_MUST_CHECK rt_status ex_reference_read(const char *dir, const ex_shape *shape, ex_prompt **out,
                                          uint32_t *count, rt_err *err);
void ex_reference_free(ex_prompt *prompts, uint32_t count); /* NULL allowed */

/* "65,12,7" -> malloc'd ids below vocab. RT_EINVAL. */
RT_MUST_CHECK rt_status ex_ids_parse(const char *text, uint32_t vocab, uint32_t **out,
                                     uint32_t *count, rt_err *err);

#endif
