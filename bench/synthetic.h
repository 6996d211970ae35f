/* synthetic.h - models made of numbers from a seed, with the true shapes and the true heat of GLM-5.2.
 *
 * Nothing is quantised: the bytes of a container are drawn at once, q4 and q8 values as sums of two
 * uniform numbers (bell-shaped, mean 0), scales so that every stage of the forward pass has the size it
 * has in a trained model. So a model comes as fast as the disk takes it, and activations stay finite for
 * any depth.
 *
 * What is made to resemble the real model: shapes, formats, how often each expert is chosen (the router
 * bias), how well the next layer's router can be foretold (the size of a layer's output next to the
 * residual stream is chosen for about 72 %), how sharp attention and the distribution of tokens are. What is not: sense.
 *
 * All arithmetic is exact or IEEE in a written order, so the same recipe gives the same model id
 * anywhere.
 *
 * Threads: any; a recipe does not change. */
#ifndef BENCH_SYNTHETIC_H
#define BENCH_SYNTHETIC_H

#include "model/container/shape.h"
#include "placement/heat.h"

enum { SYNTHETIC_RECIPE = 1 /* raised when the same options would give other bytes */ };

typedef struct {
    md_config config;
    md_container_info info;
    uint64_t seed;
    float *bias; /* [layers with MTP][experts]; owned */
} synthetic_recipe;

/* Numbers of one tile, row or vector: independent of who draws it and when. */
typedef struct {
    uint64_t state;
} synthetic_rng;

static inline uint64_t synthetic_next(synthetic_rng *rng)
{
    uint64_t z = rng->state += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* The generator of part `part` of a record. */
synthetic_rng synthetic_rng_of(uint64_t seed, md_key key, uint64_t part);

/* grid_q of every MoE layer, from the sizes of the weights to come. info's formats and slice width are
 * set. */
void synthetic_set_grid(synthetic_recipe *recipe);

/* A record comes in blocks, so that it is hashed and written while it is in the cache. */
uint64_t synthetic_block_bytes(const synthetic_recipe *recipe, md_key key); /* of the largest */
uint64_t synthetic_block_count(const synthetic_recipe *recipe, md_key key);
/* Block `block` into data (64-byte aligned); returns its bytes. */
size_t synthetic_fill(const synthetic_recipe *recipe, md_key key, uint64_t block, void *data);

/* Biases for which a layer's router chooses expert e with frequency share[e] (sums to topk, each below
 * 1): found by simulation with a fixed number of samples. bias [experts].  RT_ENOMEM */
RT_MUST_CHECK rt_status synthetic_bias_solve(const double *share, uint32_t experts, uint32_t topk,
                                             uint64_t seed, float *bias, rt_err *err);

/* What share of a layer's tokens choose each of `experts` experts, from a layer of real heat with any
 * number of experts: every k-th of it, or repeated. share [experts] sums to topk. */
void synthetic_shares(const pl_heat *heat, uint32_t layer, uint32_t experts, uint32_t topk,
                      double *share);

#endif
