/* pass.h - what every part of the forward pass shares: the model, the team, scratch, and the rows
 * of the step that runs.
 *
 * The rows of several sequences lie one after another, those of a sequence together and in
 * ascending position. No part but attention looks at which sequence a row belongs to (numerics
 * R2), so batching is nothing but more rows.
 *
 * Scratch: the arena holds what lives for a step or a layer; every member of the team has its own
 * piece of memory for what lives for one chunk of a job. Both are sized at start.
 *
 * Threads: the engine's owner; jobs on the team use their member's memory. */
#ifndef ATTENTION_NODE_PASS_H
#define ATTENTION_NODE_PASS_H

#include "attention_node/engine.h"
#include "attention_node/kv_cache.h"
#include "base/arena.h"
#include "kernels/quant.h"

typedef struct {
    const md_config *config;
    const md_weights *weights;
    an_kv *kv;
    rt_team *team;
    uint32_t members;
    rt_arena *arena;
    uint8_t *member_memory; /* [members][member_bytes], in the arena */
    size_t member_bytes;    /* a multiple of 64 */
    bool float_activations;
    rt_clock clock;
    rt_profile *profile;    /* NULL: none */
    uint64_t *route_counts; /* [layers with MTP][experts]: selections so far, the engine's */
    an_probe probe;         /* NULL: none */
    void *probe_context;

    /* The step. Arrays [rows]. */
    uint32_t rows;
    bool foresee; /* tell the nodes which experts the next layer may want */
    an_seq **seq;
    uint32_t *slot; /* in the KV cache */
    uint32_t *position;
    float *cos, *sin; /* [rows][rope_dim / 2] */
} an_pass;

/* Begins a phase of the profile; returns the one before, which its end enters again. */
static inline rt_phase an_pass_enter(const an_pass *pass, rt_phase phase)
{
    return pass->profile == NULL ? RT_PHASE_OTHER : rt_profile_enter(pass->profile, phase);
}

static inline void *an_pass_member(const an_pass *pass, uint32_t member)
{
    return pass->member_memory + pass->member_bytes * member;
}

static inline size_t an_align(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Tells the probe about rows of `count` 4-byte values that lie row_bytes apart, sequence by
 * sequence. Nothing without a probe. */
void an_pass_probe(const an_pass *pass, an_probe_kind kind, uint32_t layer, const void *data,
                   size_t row_bytes, uint32_t count);

#endif
