/* generation.c - the loop of one sequence. */
#include "app/generation.h"

#include "app/run_prompt.h"
#include "base/check.h"
#include "base/stop.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { PROGRESS_AFTER_S = 2 };

static bool is_eos(const app_generation_spec *spec, uint32_t id)
{
    for (uint32_t i = 0; i < spec->eos_count; i++)
        if (spec->eos[i] == id) return true;
    return false;
}

/* A long prefill says how far it is, on a terminal by redrawing its line. */
static void show_progress(uint64_t elapsed_ns, uint32_t done, uint32_t total, bool *shown)
{
    double seconds = (double)elapsed_ns * 1e-9;

    if (seconds < PROGRESS_AFTER_S || !isatty(STDERR_FILENO)) return;
    fprintf(stderr, "\rprefill %u/%u tokens, %.1f tok/s, %.0f s left ", done, total,
            (double)done / seconds, seconds / (double)done * (double)(total - done));
    *shown = true;
}

static rt_status prefill(an_engine *engine, const app_generation_spec *spec, an_seq *seq,
                         float *logits, app_generation *out, rt_err *err)
{
    uint64_t begin = rt_clock_now(&spec->clock);
    rt_status status = RT_OK;
    bool shown = false;

    for (uint32_t done = 0; status == RT_OK && done < spec->prompt_count;) {
        uint32_t left = spec->prompt_count - done;
        uint32_t count = left < spec->chunk ? left : spec->chunk;
        bool last = count == left;
        an_step_item item = {.seq = seq,
                             .tokens = spec->prompt + done,
                             .count = count,
                             .logits_from = last ? count - 1 : count,
                             .logits = last ? logits : NULL};

        status = an_engine_step(engine, &item, 1, err);
        done += count;
        out->prefill_ns = rt_clock_now(&spec->clock) - begin;
        if (status == RT_OK) out->prefilled = done;
        if (status == RT_OK) show_progress(out->prefill_ns, done, spec->prompt_count, &shown);
    }
    if (shown) fprintf(stderr, "\r%79s\r", "");
    return status;
}

static rt_status decode(an_engine *engine, const app_generation_spec *spec, an_seq *seq,
                        float *logits, app_generation *out, rt_err *err)
{
    uint64_t begin = rt_clock_now(&spec->clock);

    out->finish = APP_FINISH_LENGTH;
    for (;;) {
        uint32_t position = spec->prompt_count + out->generated;
        uint32_t id;
        rt_status picked;
        an_step_item item;

        if (out->generated >= spec->tokens_max || position >= spec->context) return RT_OK;
        rt_profile_enter(spec->profile, RT_PHASE_SAMPLING);
        picked = md_sampler_pick(spec->sampler, logits, position, &id);
        rt_profile_enter(spec->profile, RT_PHASE_OTHER);
        if (picked != RT_OK)
            return rt_fail(err, RT_ENUMERIC, "the logits of position %u are not finite",
                           position - 1);
        if (is_eos(spec, id)) {
            out->finish = APP_FINISH_EOS;
            out->eos = id;
            return RT_OK;
        }
        out->generated++;
        if (!spec->on_token(spec->context_of_token, id)) {
            out->finish = APP_FINISH_STOP_TEXT;
            return RT_OK;
        }
        /* The last token needs no pass of its own. */
        if (out->generated >= spec->tokens_max || position + 1 >= spec->context) return RT_OK;
        item = (an_step_item){.seq = seq, .tokens = &id, .count = 1, .logits = logits};
        RT_TRY(an_engine_step(engine, &item, 1, err));
        out->decode_steps++;
        out->decode_ns = rt_clock_now(&spec->clock) - begin;
    }
}

/* What the half that ends now took. */
static void take_profile(const app_generation_spec *spec, uint64_t *processor_ns, uint32_t tokens,
                         app_profile_part *out)
{
    rt_clock processor = rt_clock_process();
    uint64_t now;

    if (spec->profile == NULL) return;
    now = rt_clock_now(&processor);
    rt_profile_take(spec->profile, &out->counts);
    out->processor_ns = now - *processor_ns;
    out->tokens = tokens;
    *processor_ns = now;
}

/* TOKEN:3 the prompt in chunks, then a token at a time. */
rt_status app_generate(an_engine *engine, const app_generation_spec *spec, app_generation *out,
                       rt_err *err)
{
    an_seq *seq = NULL;
    rt_clock processor = rt_clock_process();
    uint64_t processor_ns = rt_clock_now(&processor);
    rt_status status;
    float *logits;

    *out = (app_generation){.finish = APP_FINISH_LENGTH};
    RT_TRY(app_prompt_check(spec->prompt, spec->prompt_count, spec->vocab, spec->context, err));
    logits = malloc((size_t)spec->vocab * sizeof(*logits));
    if (logits == NULL) return rt_fail(err, RT_ENOMEM, "logits of %u tokens", spec->vocab);
    status = an_seq_open(engine, &seq, err);
    if (spec->profile != NULL) rt_profile_start(spec->profile, &spec->clock);
    if (status == RT_OK) status = prefill(engine, spec, seq, logits, out, err);
    take_profile(spec, &processor_ns, status == RT_OK ? spec->prompt_count : 0,
                 &out->prefill_profile);
    if (status == RT_OK) status = decode(engine, spec, seq, logits, out, err);
    take_profile(spec, &processor_ns, out->decode_steps, &out->decode_profile);
    an_seq_close(seq);
    free(logits);
    return status;
}
