/* planner.h - where every part of a model goes on a machine, and what that lets it do.
 *
 * Takes sizes, budgets and rates as plain numbers and gives a placement by tier, the share of expert
 * uses that RAM will answer, seconds per token by cause, and the cause that limits. Each number of the
 * result is a sum or quotient of the input, so that a reader can check it by hand; nothing is fitted.
 *
 * One token, decoded alone. With one process everything is in its RAM or on its disk. With N nodes
 * (N > 1) the first attends and the other N - 1, alike, hold the experts.
 *
 * Speed is a range. The fast end takes every rate at its full value and lets disk reads overlap all
 * else; the slow end takes PL_SLOW of each rate and overlaps nothing. A prediction within 20 % would
 * be a measurement, which `moesaic bench` does.
 *
 * Pure: no I/O, no clock.
 * Threads: any. */
#ifndef PLACEMENT_PLANNER_H
#define PLACEMENT_PLANNER_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

enum { PL_CURVE_POINTS_MAX = 33, PL_PLAN_NODES_MAX = 1024, PL_PLAN_TOPK_MAX = 64 };

/* Of each rate at the slow end: what a kernel or a disk gives at worst once it shares its machine. */
#define PL_SLOW 0.6

/* Which share of the uses of a layer's experts falls on the hottest `fraction` of them: points of a
 * polyline from (0, 0) to (1, 1), both ascending. */
typedef struct {
    uint32_t count;
    double fraction[PL_CURVE_POINTS_MAX], share[PL_CURVE_POINTS_MAX];
} pl_curve;

/* GLM-5.2 as measured over 1,270 decoded tokens of ten topics (MIT-licensed trace
 * coactivation_glm52_overlay of doramirdor/mbolt), each layer's own hottest experts: 57.6, 82.4 and
 * 95.5 % for a quarter, a half and three quarters. */
pl_curve pl_curve_glm52(void);
/* Every expert alike. */
pl_curve pl_curve_flat(void);
/* RT_EINVAL: not a polyline as above (the first wrong point is named). */
RT_MUST_CHECK rt_status pl_curve_check(const pl_curve *curve, rt_err *err);
/* fraction is clipped to 0..1. The curve is valid. */
double pl_curve_at(const pl_curve *curve, double fraction);

/* How a store of experts divides RAM that does not hold all of them; the store and the plan ask here.
 * Transit slots take what is too cold for the cache while it is computed: `wanted` of them, at most an
 * eighth of the budget (cached records are hit more often), at least PL_TRANSIT_LEAST. reserved_bytes: of
 * the budget, for read buffers. The rest are cache slots, the same number in each layer; of these the
 * hottest are pinned as far as the heat is sure of itself, half at most, so that the rest can follow
 * what is asked now. */
enum {
    PL_TRANSIT_LEAST = 2, /* one being computed, one being read */
    PL_TRANSIT_PER_CHOICE =
        2, /* wanted, per expert of a token: one token computed, one read ahead */
};
uint32_t pl_transit_slots(uint64_t budget_bytes, uint64_t reserved_bytes, uint64_t record_bytes,
                          uint32_t wanted);
double pl_pinned_share(double heat_confidence); /* of a layer's cache slots */

/* Bytes of a model and of what runs it, from the functions that loading uses. */
typedef struct {
    uint64_t dense_bytes;       /* resident: all that is no routed expert */
    uint64_t dense_token_bytes; /* of them, read for one token (all but most of the embedding) */
    uint64_t kv_bytes, attention_scratch_bytes, expert_scratch_bytes;
    uint64_t record_bytes;    /* one routed expert, in RAM and on disk */
    uint32_t layers, experts; /* layers that have experts; experts of each */
    uint32_t topk;
    double heat_confidence; /* 0..1, pl_heat_confidence of what is known at start */
    double attention_flop;  /* scores, values and index of one token at the planned context */
    uint32_t row_out_bytes, row_back_bytes; /* of a token's row to one node, and its answer */
} pl_model;

typedef struct {
    uint64_t ram_bytes; /* of each node */
    uint32_t nodes;
    bool sliced;           /* every expert over all expert nodes; else whole experts */
    double ram_rate;       /* bytes/s a node reads from RAM, all threads */
    double disk_rate;      /* bytes/s; 0: there is no disk to read experts from */
    double flop_rate;      /* attention's, flop/s */
    double link_rate;      /* bytes/s; with one node not used, as is the next */
    double link_latency_s; /* a row out and its answer back, beside their bytes */
} pl_machine;

typedef enum {
    PL_TERM_DENSE,     /* dense weights from RAM */
    PL_TERM_EXPERTS,   /* experts from RAM */
    PL_TERM_DISK,      /* experts that RAM does not hold */
    PL_TERM_ATTENTION, /* arithmetic over the KV cache */
    PL_TERM_NETWORK,
    PL_TERM_COUNT
} pl_term;

/* "the disk": what a sentence about the limit calls it. */
const char *pl_term_name(pl_term term);

typedef struct {
    /* False: the first node, or an expert node, lacks missing_bytes of RAM; only the byte fields hold
     * then. */
    bool fits;
    uint64_t missing_bytes;
    uint64_t needed_bytes; /* RAM without which nothing runs, of the node that needs most */
    uint64_t all_bytes;    /* RAM of that node with which no expert is read from disk */

    uint64_t records;      /* routed experts of the model */
    uint64_t records_node; /* that one node answers for (its share in whole experts, rounded up) */
    uint64_t records_in_ram; /* over all nodes: all, or what the cache slots hold */
    uint64_t records_pinned; /* of them never given up */
    uint32_t transit_slots;  /* of each holder; 0 when it holds all that is its own */
    uint64_t ram_used_bytes; /* of the node that uses most */
    double hit_rate;         /* 0..1 */

    double term_s[PL_TERM_COUNT];      /* seconds of a token at the full rates */
    double token_bytes[PL_TERM_COUNT]; /* that they are quotients of (flop for attention) */
    double slow_tok_s, fast_tok_s;
    pl_term limit; /* the largest of term_s */

    /* The fewest nodes of this RAM that hold every expert: 1 when a process alone can. 0: not even
     * PL_PLAN_NODES_MAX, or the attention node itself does not fit. */
    uint32_t nodes_for_all;
} pl_plan;

/* RT_EINVAL: a number that makes no sense (named): no experts, a rate that is not positive, more nodes
 * than PL_PLAN_NODES_MAX. */
RT_MUST_CHECK rt_status pl_plan_make(const pl_model *model, const pl_machine *machine,
                                     const pl_curve *curve, pl_plan *out, rt_err *err);

/* Expected largest number of a token's topk experts that fall on one of `nodes` equal holders of whole
 * experts: 8 on 1, 5.1 on 2, 3.5 on 4. What whole-expert placement waits for at batch 1. */
double pl_plan_busiest(uint32_t topk, uint32_t nodes);

#endif
