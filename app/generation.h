/* generation.h - one sequence from prompt to end: prefill in chunks, then a token at a time.
 *
 * Threads: the engine's owner. */
#ifndef APP_GENERATION_H
#define APP_GENERATION_H

#include "app/profile_output.h"
#include "attention_node/engine.h"
#include "model/text/sampler.h"

typedef enum {
    APP_FINISH_EOS,
    APP_FINISH_STOP_TEXT, /* or on_token's other reasons */
    APP_FINISH_LENGTH,
} app_finish;

/* Called for each new token before it is used, in order. false ends the generation (a stop text, a
 * closed output). */
typedef bool (*app_token_fn)(void *context, uint32_t id);

typedef struct {
    const uint32_t *prompt; /* [prompt_count], borrowed */
    uint32_t prompt_count;
    uint32_t tokens_max; /* new tokens at most; the context bounds them too */
    uint32_t context;
    uint32_t chunk;
    uint32_t vocab;
    const uint32_t *eos; /* [eos_count]; 0: none (--ignore-eos) */
    uint32_t eos_count;
    md_sampler *sampler; /* borrowed */
    app_token_fn on_token;
    void *context_of_token;
    rt_profile *profile; /* the engine's; NULL: none */
    rt_clock clock;
} app_generation_spec;

typedef struct {
    app_finish finish;
    uint32_t eos;       /* which one, when finish is APP_FINISH_EOS */
    uint32_t prefilled; /* tokens of the prompt that went through the model */
    uint32_t generated; /* tokens handed to on_token, end-of-sequence not among them */
    uint64_t prefill_ns, decode_ns;
    uint32_t decode_steps;
    app_profile_part prefill_profile, decode_profile; /* of the spec's profile */
} app_generation;

/* *out is kept up to date also when it fails, for the closing line.
 *   Errors  those of app_prompt_check and of an_engine_step */
RT_MUST_CHECK rt_status app_generate(an_engine *engine, const app_generation_spec *spec,
                                     app_generation *out, rt_err *err);

#endif
