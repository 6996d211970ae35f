/* weights.h - the attention node's share of a container, loaded and named: everything but the routed
 * experts. Views point into slabs owned by md_weights.
 *
 * Threads: load from one; read from any. */
#ifndef MODEL_WEIGHTS_H
#define MODEL_WEIGHTS_H

#include "base/budget.h"
#include "base/slab.h"
#include "model/container/container.h"

typedef struct {
    const float *input_norm, *post_norm; /* [hidden] */
    kn_qmat q_a, q_b, kv_a, o;
    const float *q_a_norm, *kv_a_norm;
    const kn_qmat *uk_t, *uv; /* [heads] */
    bool has_indexer;
    kn_qmat index_q, index_k, index_weight; /* full layers only */
    const float *index_k_norm, *index_k_bias;
    bool sparse;
    kn_qmat gate, up, down; /* dense layers */
    kn_qmat router;         /* MoE layers */
    const float *router_bias;
    md_expert_layout shared_layout;
    const void *shared; /* expert record of the shared expert */
    int grid_q;
    const float *enorm, *hnorm, *head_norm; /* MTP layers */
    kn_qmat eh_proj;
} md_layer_weights;

typedef struct {
    const void *embed; /* [vocab][hidden] row-major */
    kn_format embed_format;
    kn_qmat lm_head;
    const float *final_norm, *rope_inv_freq;
    md_layer_weights *layers; /* [layers + mtp_layers] */
    const md_config *config;  /* borrowed from the container */
    float latent_eps;
} md_weights;

/* Bytes that loading will take (MTP layers' non-expert weights only with with_mtp). */
uint64_t md_weights_bytes(const md_container *container, bool with_mtp);

/* Reads and hash-checks every dense record; progress on stderr. The bytes are booked in budget under
 * "dense weights" first. RT_ENOMEM, RT_EIO (record not held), RT_EFORMAT (hash). */
RT_MUST_CHECK rt_status md_weights_load(const md_container *container, bool with_mtp,
                                        rt_budget *budget, md_weights **out, rt_err *err);
void md_weights_free(md_weights *weights);

/* out [hidden] f32. token < vocab is asserted. */
void md_weights_embed(const md_weights *weights, uint32_t token, float *out);

#endif
