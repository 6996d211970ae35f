/* profile.h - where the time of a process goes: every moment belongs to exactly one phase.
 *
 * The owner says which phase begins; the time since the last such word belongs to the phase before.
 * So the phases' times add up to the wall by construction, nothing is counted twice and nothing is
 * missed, at the cost of one clock reading a change. A job of the team belongs to the phase its owner
 * is in. Rejected: a timer for each part, whose sum says nothing about what lies between the parts, and
 * samples, which need another thread and many seconds.
 *
 * The phases are named here, though they are of roles above, since attention and expert node of one
 * process share a profile: experts compute while the attention node polls its link.
 *
 * NULL stands for "no profile" everywhere, and costs a comparison.
 *
 * Threads: one owner. */
#ifndef BASE_PROFILE_H
#define BASE_PROFILE_H

#include "base/clock.h"

#include <stddef.h>
#include <stdint.h>

/* id, name in tables and JSON, and what it is in a sentence. */
#define RT_PHASES(X)                                                                               \
    X(OTHER, "other", "work outside of the layers")                                                \
    X(ROWS, "rows", "norms, quantising and adding of rows")                                        \
    X(PROJECTIONS, "attention_projections", "attention projections")                               \
    X(ATTENTION, "attention", "attention scores and values")                                       \
    X(INDEX, "index", "the choice of positions by the indexer")                                    \
    X(DENSE_MLP, "dense_mlp", "the dense MLP")                                                     \
    X(ROUTER, "router", "the router")                                                              \
    X(DISPATCH, "dispatch", "frames to and from the experts")                                      \
    X(COMBINE, "combine", "partial sums of experts")                                               \
    X(SHARED, "shared_expert", "the shared expert")                                                \
    X(EXPERTS_RAM, "experts_ram", "experts in memory")                                             \
    X(EXPERTS_STAGED, "experts_staged", "experts just read from disk")                             \
    X(DISK, "disk", "reading experts from disk")                                                   \
    X(REMOTE, "remote", "waiting for other nodes")                                                 \
    X(HEAD, "head", "the head")                                                                    \
    X(SAMPLING, "sampling", "sampling")

typedef enum {
#define RT_PHASE_ID(id_, name_, text_) RT_PHASE_##id_,
    RT_PHASES(RT_PHASE_ID)
#undef RT_PHASE_ID
        RT_PHASE_COUNT
} rt_phase;

const char *rt_phase_name(rt_phase phase);
const char *rt_phase_text(rt_phase phase);

typedef struct {
    uint64_t ns;
    uint64_t bytes; /* of weights or cache that the phase had to touch, each once a job */
} rt_phase_count;

typedef struct {
    rt_phase_count phase[RT_PHASE_COUNT];
    uint64_t wall_ns; /* that these counts cover; the sum of the phases' times */
} rt_profile_counts;

typedef struct rt_profile {
    rt_clock clock;
    uint64_t begin_ns; /* of the counts */
    uint64_t since_ns; /* when the current phase began, or was last counted */
    rt_phase current;
    rt_profile_counts counts;
} rt_profile;

/* Starts the time, in RT_PHASE_OTHER, with counts of zero. */
void rt_profile_start(rt_profile *profile, const rt_clock *clock);

/* The counts up to now, which then start again from zero in the current phase. */
void rt_profile_take(rt_profile *profile, rt_profile_counts *out);

/* Begins a phase and returns the one before, for rt_profile_enter at its end. */
rt_phase rt_profile_enter(rt_profile *profile, rt_phase phase);

/* The current phase touches bytes. */
static inline void rt_profile_bytes(rt_profile *profile, uint64_t bytes)
{
    if (profile != NULL) profile->counts.phase[profile->current].bytes += bytes;
}

/* One job did the work of two phases: of `whole` bytes that the current phase has touched since the
 * mark, `part` were for `to`, which gets them and the same share of the time. part <= whole
 * (asserted). */
uint64_t rt_profile_mark(rt_profile *profile);
void rt_profile_split(rt_profile *profile, uint64_t mark, rt_phase to, uint64_t part,
                      uint64_t whole);

/* Sum of the phases' times. */
uint64_t rt_profile_total_ns(const rt_profile_counts *counts);

#endif
