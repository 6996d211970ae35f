/* engine.h - the boundary of the attention node: a model, sequences, and one step for a batch of them.
 *
 * A step takes some rows of some sequences (a prefill chunk, one decode row, several rows to verify)
 * through all layers together. Batching, chunking and neighbours change no bit of any row (numerics
 * R2). Experts are always reached through the link, also in one process.
 *
 * Threads: one owner (with mpi the main thread); it runs the team. */
#ifndef ATTENTION_NODE_ENGINE_H
#define ATTENTION_NODE_ENGINE_H

#include "attention_node/look_ahead.h"
#include "base/budget.h"
#include "base/clock.h"
#include "base/profile.h"
#include "base/team.h"
#include "model/weights.h"
#include "placement/map.h"
#include "transport/link.h"

typedef struct an_engine an_engine;
typedef struct an_seq an_seq;

/* What passes by, for verify and profiling. data is borrowed for the call. Embedding and final norm
 * carry MD_NO_LAYER. */
typedef enum {
    AN_PROBE_EMBED,      /* f32 [rows][hidden] */
    AN_PROBE_Q_RESID,    /* f32 [rows][q_rank], after q_a_norm */
    AN_PROBE_KV_LATENT,  /* f32 [rows][kv_rank], after kv_a_norm (before rounding to the cache) */
    AN_PROBE_ATTN,       /* f32 [rows][hidden], o_proj output */
    AN_PROBE_ROUTER_IDS, /* uint32 [rows][topk], ascending */
    AN_PROBE_ROUTER_WEIGHTS, /* f32 [rows][topk] */
    AN_PROBE_INDEX_SET, /* one row: uint32 [count] ascending positions; only when selection took place */
    AN_PROBE_MLP,       /* f32 [rows][hidden], MoE or dense output incl. shared */
    AN_PROBE_OUT,       /* f32 [rows][hidden], after both residuals */
    AN_PROBE_FINAL_NORM, /* f32 [rows][hidden] */
} an_probe_kind;

typedef struct {
    an_probe_kind kind;
    uint32_t layer;
    an_seq *seq;
    uint32_t position; /* of the first row, in its sequence */
    uint32_t rows;     /* of this sequence in a row */
    uint32_t count;    /* values per row */
    const void *data;
} an_probe_event;

typedef void (*an_probe)(void *context, const an_probe_event *event);

typedef struct {
    const md_container *container; /* borrowed */
    const md_weights *weights;     /* borrowed */
    tr_link *link;                 /* borrowed; peer i is node i of the map */
    const pl_map *map;             /* borrowed, for the life of the engine */
    rt_team *team;                 /* borrowed */
    rt_clock clock;
    rt_profile *profile;  /* borrowed; NULL: none */
    uint32_t rows_max;    /* rows of one step (chunk + decode rows) */
    uint32_t context_max; /* positions of one sequence */
    uint32_t sequences_max;
    bool kv_bf16;
    bool float_activations;
    an_look_ahead look_ahead;  /* hints of the next layer's experts to the nodes */
    uint64_t reply_timeout_ns; /* per layer; a node that is silent longer is lost */
} an_engine_spec;

/* Bytes of caches and scratch for a spec; create books them in budget ("kv cache", "attention
 * scratch").  RT_ENOMEM with the table when they do not fit. */
uint64_t an_engine_kv_bytes(const md_config *config, uint32_t context, bool kv_bf16);
uint64_t an_engine_scratch_bytes(const an_engine_spec *spec);
RT_MUST_CHECK rt_status an_engine_create(const an_engine_spec *spec, rt_budget *budget,
                                         an_engine **out, rt_err *err);
void an_engine_free(an_engine *engine);

/* NULL probe: none. */
void an_engine_set_probe(an_engine *engine, an_probe probe, void *context);

/* RT_EBUSY: sequences_max are open. */
RT_MUST_CHECK rt_status an_seq_open(an_engine *engine, an_seq **out, rt_err *err);
void an_seq_close(an_seq *seq);
uint32_t an_seq_length(const an_seq *seq); /* positions in the cache */
/* Drops positions from `length` on: speculation, prefix reuse. Exact. */
void an_seq_truncate(an_seq *seq, uint32_t length);

typedef struct {
    an_seq *seq;
    const uint32_t *tokens; /* [count], appended at an_seq_length; borrowed for the call */
    uint32_t count;
    uint32_t logits_from; /* rows from this one on (0..count) get logits; count: none */
    float *logits;        /* out [count - logits_from][vocab]; NULL when none */
    float *hidden;        /* out [count][hidden] after the final norm; NULL when not wanted */
} an_step_item;

/* TOKEN:4 runs the items' rows (sum of counts <= rows_max) through the model. On an error every sequence is
 * as before the call.
 *   Errors  RT_EINVAL    a token id >= vocab, or a context is full (named)
 *           RT_EPEER     a node was lost; err names the peer that was waited for, and the layer
 *           RT_ENUMERIC  a value was not finite (layer and sequence are named)
 *           RT_ECANCELED a stop was requested between layers
 *           other        what an expert node reported (its name is in the text) */
RT_MUST_CHECK rt_status an_engine_step(an_engine *engine, an_step_item *items, uint32_t count,
                                       rt_err *err);

enum { AN_NODE_STATS_MAX = 64 };

typedef struct {
    uint64_t steps, rows, layers; /* layers: MoE layers dispatched */
    uint64_t total_ns, wait_ns;   /* in steps; waiting for replies with nothing else to do */
    uint64_t attention_ns, shared_ns, head_ns;
    uint64_t sent_bytes, received_bytes;
    uint64_t node_wait_ns[AN_NODE_STATS_MAX]; /* by which a node was the last to answer */
    uint32_t nodes;
} an_engine_stats;

/* How often the router chose each expert since the engine was created: [layers with MTP][experts], 0 in
 * dense layers; rows of a step that fails later count too. Borrowed; changes with every step. */
const uint64_t *an_engine_route_counts(const an_engine *engine);

/* Whether hints are given, and what the last trial found. */
an_look_ahead_trial an_engine_get_look_ahead(const an_engine *engine);
/* Where nothing is read from a disk, nothing can be read early. */
void an_engine_set_look_ahead(an_engine *engine, an_look_ahead mode);

an_engine_stats an_engine_get_stats(const an_engine *engine);
void an_engine_reset_stats(an_engine *engine);

#endif
