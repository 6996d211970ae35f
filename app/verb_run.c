/* verb_run.c - a prompt in, text out. TOKEN:1 of docs/ARCHITECTURE.md starts here. */
#include "app/generation.h"
#include "app/heat_file.h"
#include "app/output.h"
#include "app/parse.h"
#include "app/run_output.h"
#include "app/run_prompt.h"
#include "app/session.h"
#include "app/verbs.h"
#include "kernels/select.h"
#include "model/text/stream.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

typedef struct {
    app_model_options model;
    const char *prompt, *ids, *system, *stop;
    uint64_t tokens, top_k, seed;
    double temperature, top_p, min_p;
    bool temperature_given, top_p_given, top_k_given, min_p_given, seed_given;
    bool raw, no_think, template_compat, ignore_eos, print_ids, json, profile, quiet;
} run_options;

#define ROW(field_) .offset = offsetof(run_options, field_)
#define GIVEN(field_) .given_offset = offsetof(run_options, field_)

static const rt_opt table[] = {
    {.name = "prompt",
     .key = 'p',
     .kind = RT_OPT_TEXT,
     ROW(prompt),
     .arg = "TEXT",
     .doc =
         "the user's text; without --prompt and --ids it is read from stdin, less one newline at "
         "its end"},
    {.name = "ids",
     .kind = RT_OPT_TEXT,
     ROW(ids),
     .arg = "LIST",
     .doc = "token ids instead of text, separated by commas or blanks; no template is applied",
     .excludes = "prompt|system|no-think|template-compat"},
    {.name = "system", .kind = RT_OPT_TEXT, ROW(system), .arg = "TEXT", .doc = "a system message"},
    {.name = "tokens",
     .key = 'n',
     .kind = RT_OPT_UINT,
     ROW(tokens),
     .arg = "N",
     .doc = "new tokens at most; default 0: until the context is full"},
    {.name = "temp",
     .kind = RT_OPT_FLOAT,
     ROW(temperature),
     .arg = "T",
     .min = 0,
     .max = 100,
     GIVEN(temperature_given),
     .doc = "temperature; 0: greedy; default from the model"},
    {.name = "top-p",
     .kind = RT_OPT_FLOAT,
     ROW(top_p),
     .arg = "P",
     .min = 1e-6,
     .max = 1,
     GIVEN(top_p_given),
     .doc = "nucleus; default from the model"},
    {.name = "top-k",
     .kind = RT_OPT_UINT,
     ROW(top_k),
     .arg = "K",
     .min = 0,
     .max = UINT32_MAX,
     GIVEN(top_k_given),
     .doc = "keep the K likeliest tokens; 0: all"},
    {.name = "min-p",
     .kind = RT_OPT_FLOAT,
     ROW(min_p),
     .arg = "P",
     .min = 0,
     .max = 1,
     GIVEN(min_p_given),
     .doc = "drop tokens less likely than P times the likeliest"},
    {.name = "seed",
     .key = 's',
     .kind = RT_OPT_UINT,
     ROW(seed),
     .arg = "S",
     GIVEN(seed_given),
     .doc = "seed of the sampler; default: a random one, which is printed"},
    {.name = "stop", .kind = RT_OPT_TEXT, ROW(stop), .arg = "TEXT", .doc = "end before this text"},
    {.name = "raw",
     .kind = RT_OPT_FLAG,
     ROW(raw),
     .doc = "no chat template: the prompt's tokens as they are, control tokens matched",
     .excludes = "system|no-think|template-compat"},
    {.name = "no-think", .kind = RT_OPT_FLAG, ROW(no_think), .doc = "switch thinking off"},
    {.name = "template-compat",
     .kind = RT_OPT_FLAG,
     ROW(template_compat),
     .doc = "match control tokens in user text too, as transformers does"},
    {.name = "ignore-eos",
     .kind = RT_OPT_FLAG,
     ROW(ignore_eos),
     .doc = "go on past end-of-sequence tokens"},
    {.name = "print-ids",
     .kind = RT_OPT_FLAG,
     ROW(print_ids),
     .doc = "print the new token ids instead of text",
     .excludes = "json"},
    {.name = "profile",
     .kind = RT_OPT_FLAG,
     ROW(profile),
     .doc = "say where the time went and what the wall is, on stderr and in --json"},
    {.name = "quiet",
     .key = 'q',
     .kind = RT_OPT_FLAG,
     ROW(quiet),
     .doc = "no settings and no closing line on stderr; errors are still said"},
    {.name = "json", .kind = RT_OPT_FLAG, ROW(json), .doc = "print one JSON object at the end"},
    APP_MODEL_OPTION_ROWS(run_options, model),
    {.name = NULL},
};

const rt_opt_spec app_spec_run = {
    .verb = "run",
    .args_doc = "MODEL",
    .doc =
        "Generates text with the container in the folder MODEL and streams it to stdout.\v"
        "Under `mpirun -n N` rank 0 attends and the other ranks hold the experts; the tokens are "
        "the same for every N. A last line on stderr says how fast it went and what it waited for; "
        "docs/operations.md explains it and the fields of --json.",
    .table = table,
    .positional_min = 1,
    .positional_max = 1,
};

/* Command line over generation_config.json. */
static rt_status sampler_spec(const run_options *options, const md_generation *defaults,
                              md_sampler_spec *out, rt_err *err)
{
    *out = (md_sampler_spec){
        .temperature =
            options->temperature_given ? (float)options->temperature : defaults->temperature,
        .top_k = options->top_k_given ? (uint32_t)options->top_k : defaults->top_k,
        .top_p = options->top_p_given ? (float)options->top_p : defaults->top_p,
        .min_p = options->min_p_given ? (float)options->min_p : defaults->min_p,
        .seed = options->seed,
    };
    if (options->seed_given || out->temperature == 0) return RT_OK;
    if (getrandom(&out->seed, sizeof(out->seed), 0) != (ssize_t)sizeof(out->seed))
        return rt_fail(err, RT_EIO, "getrandom: %s", strerror(errno));
    out->seed &= UINT32_MAX; /* short enough to type again */
    return RT_OK;
}

/* A run of the head: all that can be wrong with what the user gave is found out by prepare. */
typedef struct {
    const run_options *options; /* borrowed */
    md_tokenizer *tokenizer;    /* owned */
    md_ids prompt;
    bool thinking;
    md_sampler_spec sampling;
    md_sampler *sampler; /* owned */
    app_output *output;  /* owned */
} head_run;

static void head_run_fini(head_run *run)
{
    app_output_free(run->output);
    md_sampler_free(run->sampler);
    md_ids_fini(&run->prompt);
    md_tokenizer_close(run->tokenizer);
}

/* ids: of --ids, or NULL. */
static rt_status prepare_prompt(app_session *session, head_run *run, const md_ids *ids, rt_err *err)
{
    const md_container *container = app_session_container(session);
    const run_options *options = run->options;
    app_prompt_spec spec = {.ids = ids,
                            .text = options->prompt,
                            .system = options->system,
                            .raw = options->raw,
                            .think = !options->no_think,
                            .template_compat = options->template_compat};
    size_t image_bytes;
    const void *image = md_container_tokenizer(container, &image_bytes);

    run->thinking = ids == NULL && !options->raw && !options->no_think;
    if (image == NULL)
        return rt_fail(
            err, RT_EIO,
            "%s/tokenizer.bin is missing: this copy serves expert nodes only; copy the file "
            "from a complete one",
            md_container_dir(container));
    RT_TRY(md_tokenizer_open(image, image_bytes, &run->tokenizer, err));
    RT_TRY(app_prompt_encode(&spec, run->tokenizer, &run->prompt, err));
    return app_prompt_check(run->prompt.ids, run->prompt.count,
                            md_container_config(container)->vocab, app_session_context(session),
                            err);
}

static rt_status prepare(app_session *session, head_run *run, const md_ids *ids, rt_err *err)
{
    const md_container *container = app_session_container(session);
    const run_options *options = run->options;
    md_text stop = {options->stop, options->stop == NULL ? 0 : strlen(options->stop)};
    app_output_spec output = {.mode = options->json        ? APP_OUTPUT_JSON
                                      : options->print_ids ? APP_OUTPUT_IDS
                                                           : APP_OUTPUT_TEXT,
                              .stop = options->stop == NULL ? NULL : &stop,
                              .quiet = options->quiet};

    RT_TRY(prepare_prompt(session, run, ids, err));
    RT_TRY(sampler_spec(options, md_container_generation(container), &run->sampling, err));
    RT_TRY(md_sampler_create(&run->sampling, md_container_config(container)->vocab, &run->sampler,
                             err));
    output.tokenizer = run->tokenizer;
    output.thinking = run->thinking;
    output.sampled = run->sampling.temperature > 0;
    output.seed = run->sampling.seed;
    return app_output_create(&output, &run->output, err);
}

static void say_settings(const app_session *session, const head_run *run)
{
    const md_sampler_spec *sampler = &run->sampling;
    uint32_t nodes = app_session_nodes(session);
    char id[65];

    if (run->options->quiet) return;
    md_model_id_format(md_container_get_info(app_session_container(session))->model_id, id);
    fprintf(stderr,
            "moesaic: model %.16s, %u node%s, kernels %s, kv %s, context %u, chunk %u, prompt %zu "
            "token%s, ",
            id, nodes, nodes == 1 ? "" : "s", kn_variant_name(kn_selected()),
            run->options->model.kv, app_session_context(session), app_session_chunk(session),
            run->prompt.count, run->prompt.count == 1 ? "" : "s");
    if (sampler->temperature == 0)
        fprintf(stderr, "greedy");
    else
        fprintf(stderr, "temp %g top-p %g top-k %u min-p %g seed %llu",
                (double)sampler->temperature, (double)sampler->top_p, sampler->top_k,
                (double)sampler->min_p, (unsigned long long)sampler->seed);
    fprintf(stderr, "%s\n", run->thinking ? ", thinking on (--no-think switches it off)" : "");
}

static void eos_of(const md_container *container, const uint32_t **eos, uint32_t *count)
{
    const md_generation *generation = md_container_generation(container);
    const md_config *config = md_container_config(container);

    *eos = generation->eos_count > 0 ? generation->eos : config->eos;
    *count = generation->eos_count > 0 ? generation->eos_count : config->eos_count;
}

static rt_status generate(app_session *session, head_run *run, rt_err *err)
{
    const md_container *container = app_session_container(session);
    const run_options *options = run->options;
    app_generation generation = {0};
    app_generation_spec spec = {
        .prompt = run->prompt.ids,
        .prompt_count = (uint32_t)run->prompt.count,
        .tokens_max = options->tokens == 0 || options->tokens > UINT32_MAX
                          ? UINT32_MAX
                          : (uint32_t)options->tokens,
        .context = app_session_context(session),
        .chunk = app_session_chunk(session),
        .vocab = md_container_config(container)->vocab,
        .sampler = run->sampler,
        .on_token = app_output_token,
        .context_of_token = run->output,
        .profile = app_session_profile(session),
        .clock = rt_clock_real(),
    };
    rt_status status;

    if (!options->ignore_eos) eos_of(container, &spec.eos, &spec.eos_count);
    say_settings(session, run);
    status = app_generate(app_session_engine(session), &spec, &generation, err);
    return app_output_finish(run->output, session, &generation, spec.prompt_count, status, err);
}

static rt_status run_head(app_session *session, const run_options *options, const md_ids *ids,
                          rt_err *err)
{
    head_run run = {.options = options};
    rt_status status = prepare(session, &run, ids, err);

    if (status == RT_OK) status = app_session_load(session, err);
    if (status == RT_OK) status = generate(session, &run, err);
    head_run_fini(&run);
    return status;
}

static rt_status run_node(app_session *session, rt_err *err)
{
    RT_TRY(app_session_load(session, err));
    return app_session_serve(session, err);
}

/* What the router chose in this run, as a heat of its own. */
static rt_status heat_of_run(app_session *session, pl_heat **out, rt_err *err)
{
    const md_container *container = app_session_container(session);
    const an_engine *engine = app_session_engine(session);
    const uint64_t *counts = an_engine_route_counts(engine);
    pl_heat *heat;

    RT_TRY(app_heat_create(container, &heat, err));
    for (uint32_t layer = 0; layer < pl_heat_layers(heat); layer++)
        for (uint32_t e = 0; pl_heat_sparse(heat, layer) && e < pl_heat_experts(heat); e++)
            pl_heat_add(heat, layer, e, (double)counts[(size_t)layer * pl_heat_experts(heat) + e]);
    pl_heat_set_tokens(heat, (double)an_engine_get_stats(engine).rows);
    *out = heat;
    return RT_OK;
}

/* However the run ended: what was computed was needed. A heat that cannot be kept is no failure. */
static void save_heat(app_session *session, const char *option)
{
    const md_container *container = app_session_container(session);
    pl_heat *heat = NULL;
    char *path = NULL;
    rt_err err = {0};
    rt_status status;

    if (app_session_engine(session) == NULL ||
        an_engine_get_stats(app_session_engine(session)).rows == 0)
        return;
    status = app_heat_path(container, option, &path, &err);
    if (status == RT_OK && path != NULL) {
        status = heat_of_run(session, &heat, &err);
        if (status == RT_OK) status = app_heat_append(path, container, heat, &err);
    }
    if (status != RT_OK)
        fprintf(stderr, "moesaic run: heat not kept (--heat FILE or none): %s\n", err.text);
    pl_heat_free(heat);
    free(path);
}

/* What the option table cannot say. */
static bool check_options(const run_options *options, md_ids *ids, rt_err *err)
{
    if (options->prompt != NULL && options->prompt[0] == '\0')
        return rt_fail(err, RT_EINVAL, "--prompt: the prompt is empty") == RT_OK;
    if (options->stop != NULL &&
        (options->stop[0] == '\0' || strlen(options->stop) > MD_STREAM_STOP_BYTES_MAX))
        return rt_fail(err, RT_EINVAL, "--stop: expected a text of 1 to %d bytes, found %zu",
                       MD_STREAM_STOP_BYTES_MAX, strlen(options->stop)) == RT_OK;
    return options->ids == NULL || app_prompt_ids_parse(options->ids, ids, err) == RT_OK;
}

static rt_status run(const char *model_dir, const run_options *options, const md_ids *ids,
                     rt_err *err)
{
    app_session_spec spec = {
        .model_dir = model_dir, .options = options->model, .profile = options->profile};
    app_session *session = NULL;
    rt_status status = app_session_open(&spec, &session, err);

    if (status == RT_OK)
        status = app_session_is_head(session) ? run_head(session, options, ids, err)
                                              : run_node(session, err);
    /* Said before the session ends: after a loss the launcher may kill this rank at any moment. */
    if (status != RT_OK && err->text[0] != '\0') fprintf(stderr, "moesaic run: %s\n", err->text);
    if (session != NULL && app_session_is_head(session)) save_heat(session, options->model.heat);
    app_session_close(session, status, err->text);
    return status;
}

int app_verb_run(int argc, char **argv)
{
    run_options options = {.model = APP_MODEL_OPTIONS_DEFAULT};
    const char *positional[1];
    md_ids ids = {0};
    rt_err err = {0};
    int code;

    if (!app_parse(&app_spec_run, argc, argv, &options, positional, NULL, &code)) return code;
    if (!check_options(&options, &ids, &err))
        code = app_usage_error("run", "%s", err.text);
    else
        code = run(positional[0], &options, options.ids == NULL ? NULL : &ids, &err) == RT_OK
                   ? APP_EXIT_OK
                   : APP_EXIT_FAILED;
    md_ids_fini(&ids);
    return code;
}
