/* config.h - what a checkpoint's config.json says, checked, as one value.
 *
 * The reader is a table of features per model_type (attention kind, indexer, router function,
 * groups, shared experts, rope, MTP, eps). Nothing assumes 256 experts, top-8, three dense layers
 * or a power-of-two head count. An unknown setting of a feature is refused by name, never guessed;
 * unknown keys are ignored, since releases add them freely. Source of the meanings: SPEC section 1.
 *
 * Threads: a config is a value; read it from anywhere. */
#ifndef MODEL_CONFIG_H
#define MODEL_CONFIG_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    MD_LAYERS_MAX = 256,   /* main layers plus MTP layers */
    MD_EXPERTS_MAX = 4096, /* per layer; fits the u16 of a dispatch entry */
    MD_TOPK_MAX = 32,
    MD_SHARED_MAX = 8,
    MD_EOS_MAX = 8,
    MD_NO_LAYER = 0xffff,
};

typedef struct {
    char model_type[32]; /* "glm_moe_dsa" */
    uint32_t hidden, layers, vocab;
    uint32_t context_max;                        /* max_position_embeddings */
    uint32_t heads, q_rank, kv_rank;             /* MLA */
    uint32_t nope_dim, rope_dim, v_dim;          /* query head = nope_dim + rope_dim */
    uint32_t index_heads, index_dim, index_topk; /* DSA */
    uint32_t inter;                              /* dense MLP width */
    uint32_t expert_inter, experts, topk, shared_experts;
    uint32_t mtp_layers; /* layers .. layers+mtp_layers-1 of the files */
    float rms_eps, routed_scale;
    double rope_theta;
    bool norm_topk;
    uint32_t eos[MD_EOS_MAX];
    uint32_t eos_count;
    bool sparse[MD_LAYERS_MAX];           /* MoE layer, else dense MLP; MTP layers are MoE */
    bool index_full[MD_LAYERS_MAX];       /* has its own indexer; MTP layers do */
    uint16_t index_source[MD_LAYERS_MAX]; /* nearest full layer at or before it */
} md_config;

/* Parses config.json text.
 *   Errors  RT_EFORMAT       not JSON, a key missing, of the wrong type or outside its range; the
 * text names key, expected and found RT_EUNSUPPORTED  another model_type, or a feature setting this
 * engine does not have */
RT_MUST_CHECK rt_status md_config_parse(const char *json, size_t bytes, md_config *out,
                                        rt_err *err);

static inline uint32_t md_config_layers_total(const md_config *config)
{
    return config->layers + config->mtp_layers;
}

/* Sampling defaults of generation_config.json. Missing keys leave the field as it is; eos is
 * overwritten when given (int or list). */
typedef struct {
    float temperature, top_p, min_p;
    uint32_t top_k;
    uint32_t eos[MD_EOS_MAX];
    uint32_t eos_count;
} md_generation;

RT_MUST_CHECK rt_status md_generation_parse(const char *json, size_t bytes, md_generation *out,
                                            rt_err *err);

#endif
