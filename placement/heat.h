/* heat.h - how often each (layer, expert) was chosen lately: decayed counts and what follows from them.
 *
 * A selection counts 1 when it happens and half of that half_life_tokens tokens later, so that a
 * heat forgets at a known rate and its size is bounded: an expert chosen by every p-th token
 * settles at half_life / (p * ln 2). Decay is one multiplication: instead of shrinking 19,200 counts
 * for every token, the weight of a new selection grows, and all are rescaled when it gets large.
 *
 * Pure: no I/O, no clock. heat_image.h makes bytes of it, heat_usage.h reads another
 * engine's text. The order of experts is everywhere: larger heat,
 * then lower layer, then lower id, so that two processes with the same heat pin the same experts.
 *
 * Threads: one owner; the const functions from any while nobody changes it. */
#ifndef PLACEMENT_HEAT_H
#define PLACEMENT_HEAT_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    PL_HEAT_LAYERS_MAX = 1024,
    PL_HEAT_EXPERTS_MAX = 4096,
    /* Some days of a desktop's use: long enough to average over topics, short enough to follow a
     * change of work. */
    PL_HEAT_HALF_LIFE_TOKENS = 131072,
};

/* Of one count, and of the tokens seen, in what files say: whole numbers up to here are exact. */
#define PL_HEAT_COUNT_MAX 0x1p53

typedef struct {
    uint32_t layers;         /* total, dense ones included */
    const bool *sparse;      /* [layers]: which have experts; borrowed for the call */
    uint32_t experts;        /* of each such layer */
    double half_life_tokens; /* > 0; 0: PL_HEAT_HALF_LIFE_TOKENS */
} pl_heat_spec;

typedef struct pl_heat pl_heat; /* opaque */

typedef struct {
    uint32_t layer, expert;
    double heat;
} pl_heat_entry;

/* All counts zero.
 *   Errors  RT_EINVAL  no layer has experts, or a number is out of range (named)
 *           RT_ENOMEM */
RT_MUST_CHECK rt_status pl_heat_create(const pl_heat_spec *spec, pl_heat **out, rt_err *err);
void pl_heat_free(pl_heat *heat);  /* NULL allowed */
void pl_heat_clear(pl_heat *heat); /* as created */

uint32_t pl_heat_layers(const pl_heat *heat);
uint32_t pl_heat_experts(const pl_heat *heat);
bool pl_heat_sparse(const pl_heat *heat, uint32_t layer);
uint32_t pl_heat_sparse_layers(const pl_heat *heat); /* how many layers have experts */
/* Same layers, sparse layers and experts: what merge asks for. */
bool pl_heat_same_shape(const pl_heat *a, const pl_heat *b);

/* Counting. layer must be sparse and expert in range (asserted): check what comes from peers before.
 * `selections` need not be whole (an imported or scaled count); 0 to PL_HEAT_COUNT_MAX (asserted).
 * None of these allocates. */
void pl_heat_add(pl_heat *heat, uint32_t layer, uint32_t expert, double selections);
/* Every id of a layer's routing once: expert [count]. */
void pl_heat_add_ids(pl_heat *heat, uint32_t layer, const uint32_t *expert, uint32_t count);
/* Time passes: all counts lose 2^-(tokens/half_life). tokens may be a fraction (a node that sees layers
 * advances by rows / sparse layers with each). O(1) but for a rare rescaling. */
void pl_heat_advance(pl_heat *heat, double tokens);
/* into += from, both as of now; tokens seen are added, nothing decays. Shapes equal (asserted). */
void pl_heat_merge(pl_heat *into, const pl_heat *from);
/* The same when `from` came after `into`, which therefore decays by from's tokens: how a run's counts
 * join those of the runs before it. */
void pl_heat_append(pl_heat *into, const pl_heat *from);
/* All counts times factor, finite and >= 0. */
void pl_heat_scale(pl_heat *heat, double factor);

/* Tokens that advance was told of (and merged ones); never decays. set: for a file's reader. */
double pl_heat_tokens(const pl_heat *heat);
void pl_heat_set_tokens(pl_heat *heat, double tokens);

/* Decayed selections, as of now. */
double pl_heat_get(const pl_heat *heat, uint32_t layer, uint32_t expert); /* 0 in a dense layer */
double pl_heat_layer_total(const pl_heat *heat, uint32_t layer);
double pl_heat_total(const pl_heat *heat);

/* The largest total that a layer can reach by counting topk of each token: what an imported count is
 * scaled down to, lest it outlive the half-life. */
double pl_heat_layer_limit(const pl_heat *heat, uint32_t topk);

/* 0..1: how far the counts are signal. 0 below 1/4 selection per expert (of layers with selections), 1
 * from 16 on (512 tokens for 256 experts and top-8), linear in between. An auto-pin pins this share of
 * what it could. */
double pl_heat_confidence(const pl_heat *heat);

/* Hottest first. out has room for `count`; *found <= count, less only when the model (the layer) has
 * fewer experts. Experts with heat 0 are listed too, last. RT_ENOMEM. */
RT_MUST_CHECK rt_status pl_heat_top(const pl_heat *heat, pl_heat_entry *out, uint32_t count,
                                    uint32_t *found);
RT_MUST_CHECK rt_status pl_heat_layer_top(const pl_heat *heat, uint32_t layer, pl_heat_entry *out,
                                          uint32_t count, uint32_t *found);

/* The hit rate of a store that holds just the hottest experts. */
typedef struct {
    double quarter, half, three_quarters; /* share of selections, 0..1; 0 when there are none */
} pl_heat_cover;

/* Share of the selections that fall on the hottest `fraction` (0..1) of the experts, of one layer or,
 * with layer = PL_HEAT_ALL, of each layer's own hottest (slots per layer are uniform, so this is what
 * a store gets). A fraction that is not a whole number of experts counts the last in part. RT_ENOMEM. */
#define PL_HEAT_ALL UINT32_MAX
RT_MUST_CHECK rt_status pl_heat_coverage(const pl_heat *heat, uint32_t layer, double fraction,
                                         double *out);
RT_MUST_CHECK rt_status pl_heat_cover_of(const pl_heat *heat, uint32_t layer, pl_heat_cover *out);

/* Gini coefficient of a layer's counts: 0 when all experts are chosen alike (or never), near 1 when one
 * takes all. RT_ENOMEM. */
RT_MUST_CHECK rt_status pl_heat_skew(const pl_heat *heat, uint32_t layer, double *out);

#endif
