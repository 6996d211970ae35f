/* tiny_model.h - a small valid container made of numbers from a seed, without a checkpoint.
 *
 * For tests of the roles: shapes and formats are chosen freely, no conversion is involved, and a
 * patch may put into a record what no conversion would write (NaN, huge weights) with a valid hash.
 *
 * Threads: one test. */
#ifndef TESTS_SUPPORT_TINY_MODEL_H
#define TESTS_SUPPORT_TINY_MODEL_H

#include "model/container/container.h"

/* Changes a record's bytes before they are hashed and written. */
typedef void (*tiny_model_patch)(void *context, md_key key, void *record, size_t bytes);

typedef struct {
    uint64_t seed;
    uint32_t hidden, layers, dense_layers, vocab; /* the first dense_layers have no experts */
    uint32_t inter;                               /* of dense layers */
    uint32_t expert_inter, experts, topk;
    uint32_t heads, q_rank, kv_rank, nope_dim, rope_dim, v_dim;
    uint32_t index_heads, index_dim, index_topk,
        index_every; /* full layers: 0, every, 2 every .. */
    bool mtp;
    kn_format expert_format, dense_format;
    int grid_q;             /* of every MoE layer */
    tiny_model_patch patch; /* NULL: none */
    void *patch_context;
} tiny_model_spec;

/* hidden 64, 3 layers (1 dense), 8 experts of 144 in 9 slices, topk 2, q4 and q8. */
tiny_model_spec tiny_model_default(void);

/* Builds the container in a new temporary folder; asserts success. Free with temp_dir_remove. */
char *tiny_model_build(const tiny_model_spec *spec);

/* Flips one bit of an expert's record in its pack: the hash no longer matches. */
void tiny_model_damage(const char *dir, uint32_t layer, uint32_t expert);

/* Deterministic numbers for tests: uniform in [-1, 1). */
float tiny_model_uniform(uint64_t *state);

#endif
