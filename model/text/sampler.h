/* sampler.h - one token id from a row of logits, the same id on every machine.
 *
 * Randomness is counter-based (Philox4x32-10): the draw for a position depends on seed, choice and
 * position alone, so it is the same for any batch, chunking, rank count or retry, and a draft token
 * can be checked against the very token that would have been sampled. The key is the seed; the
 * counter holds the position and the choice (which of several answers to one request).
 *
 * Order of the filters, as in transformers: temperature, top_k, top_p, min_p. Candidates are
 * ordered by logit, then by lower id; probabilities come from kn_expf and are summed in double in a
 * fixed order. A candidate list grows by selection from the largest down, until the draw is
 * decided.
 *
 * Threads: one owner. Allocates at create only. */
#ifndef MODEL_TEXT_SAMPLER_H
#define MODEL_TEXT_SAMPLER_H

#include "base/status.h"

#include <stdint.h>

typedef struct {
    float temperature; /* 0: greedy, the rest is ignored */
    uint32_t top_k;    /* 0: off */
    float top_p;       /* 1: off; the smallest set of likeliest tokens with at least this mass */
    float min_p;       /* 0: off; drops tokens less likely than min_p times the likeliest */
    uint64_t seed;
    uint32_t choice;
} md_sampler_spec;

typedef struct md_sampler md_sampler;

/* vocab: length of the rows, at least 1.
 *   Errors  RT_EINVAL  temperature negative or not finite, top_p outside (0, 1], min_p outside [0,
 * 1] RT_ENOMEM */
RT_MUST_CHECK rt_status md_sampler_create(const md_sampler_spec *spec, uint32_t vocab,
                                          md_sampler **out, rt_err *err);
void md_sampler_free(md_sampler *sampler); /* NULL allowed */

/* position: of the token that is chosen, counted from 0 in the sequence.
 *   Errors  RT_ENUMERIC  a NaN or +Inf among the logits, or nothing but -Inf */
RT_MUST_CHECK rt_status md_sampler_pick(md_sampler *sampler, const float *logits, uint64_t position,
                                        uint32_t *id);

/* The largest logit's lowest id. RT_ENUMERIC as above. */
RT_MUST_CHECK rt_status md_sampler_greedy(const float *logits, uint32_t vocab, uint32_t *id);

/* Philox4x32 with 10 rounds (Salmon et al. 2011): a pure function of counter and key. */
void md_philox4x32_10(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

#endif
