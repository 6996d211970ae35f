/* verb_run.c - a prompt in, text out. TOKEN:1 of docs/ARCHITECTURE.md starts here. */
#include "app/generation.h"
#include "app/heat_file.h"
#include "app/run_output.h"
#include "app/session.h"
#include "app/verbs.h"
#include "base/stop.h"
#include "kernels/select.h"
#include "model/text/chat_template.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum { PROMPT_MAX_BYTES = 64 << 20 };

typedef struct {
    app_model_options model;
    const char *prompt, *ids, *system, *stop;
    uint64_t tokens, top_k, seed;
    double temperature, top_p, min_p;
    bool temperature_given, top_p_given, top_k_given, min_p_given, seed_given;
    bool raw, no_think, template_compat, ignore_eos, print_ids, json, profile;
} run_options;

#define ROW(field_) .offset = offsetof(run_options, field_)
#define GIVEN(field_) .given_offset = offsetof(run_options, field_)

static const rt_opt table[] = {
    {.name = "prompt",
     .key = 'p',
     .kind = RT_OPT_TEXT,
     ROW(prompt),
     .arg = "TEXT",
     .doc = "the user's text; without --prompt and --ids it is read from stdin"},
    {.name = "ids",
     .kind = RT_OPT_TEXT,
     ROW(ids),
     .arg = "LIST",
     .doc = "token ids instead of text, separated by commas or blanks; no template is applied"},
    {.name = "system", .kind = RT_OPT_TEXT, ROW(system), .arg = "TEXT", .doc = "a system message"},
    {.name = "tokens",
     .key = 'n',
     .kind = RT_OPT_UINT,
     ROW(tokens),
     .arg = "N",
     .doc = "new tokens at most; 0: until the context is full"},
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
     .min = 0,
     .max = 1,
     GIVEN(top_p_given),
     .doc = "nucleus; default from the model"},
    {.name = "top-k",
     .kind = RT_OPT_UINT,
     ROW(top_k),
     .arg = "K",
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
     .doc = "no chat template: the prompt's tokens as they are, control tokens matched"},
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
     .doc = "print the new token ids instead of text"},
    {.name = "profile",
     .kind = RT_OPT_FLAG,
     ROW(profile),
     .doc = "say where the time went and what the wall is, on stderr and in --json"},
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
        "the same for every N. A last line on stderr says how fast it went and what it waited for.",
    .table = table,
    .positional_min = 1,
    .positional_max = 1,
};

static rt_status read_stdin(char **out, size_t *out_bytes, rt_err *err)
{
    size_t capacity = 65536, used = 0;
    char *text = malloc(capacity);

    if (isatty(STDIN_FILENO))
        fprintf(stderr, "moesaic run: reading the prompt from the terminal; end with Ctrl-D\n");
    while (text != NULL) {
        ssize_t got = read(STDIN_FILENO, text + used, capacity - used);

        if (got < 0 && errno == EINTR && !rt_stop_requested()) continue;
        if (got < 0) {
            free(text);
            return rt_fail(err, RT_EIO, "reading the prompt from stdin: %s", strerror(errno));
        }
        if (got == 0) {
            *out = text;
            *out_bytes = used;
            return RT_OK;
        }
        used += (size_t)got;
        if (used > PROMPT_MAX_BYTES) {
            free(text);
            return rt_fail(err, RT_EINVAL, "the prompt on stdin is larger than %d MiB",
                           PROMPT_MAX_BYTES >> 20);
        }
        if (used == capacity) {
            char *grown = realloc(text, capacity * 2);

            if (grown == NULL) break;
            text = grown;
            capacity *= 2;
        }
    }
    free(text);
    return rt_fail(err, RT_ENOMEM, "the prompt from stdin");
}

static rt_status parse_ids(const char *list, md_ids *out, rt_err *err)
{
    const char *at = list;

    while (*at != '\0') {
        size_t blanks = strspn(at, ", \t\n");
        unsigned long id;
        char *end;

        at += blanks;
        if (*at == '\0') break;
        errno = 0;
        id = strtoul(at, &end, 10);
        if (end == at || *at == '-' || *at == '+' || errno != 0 || id > UINT32_MAX ||
            (*end != '\0' && strchr(", \t\n", *end) == NULL))
            return rt_fail(err, RT_EINVAL,
                           "--ids: expected numbers separated by commas, found '%.20s'", at);
        RT_TRY(md_ids_push(out, (uint32_t)id, err));
        at = end;
    }
    return RT_OK;
}

/* TOKEN:2 text or ids from the user -> template -> token ids. */
static rt_status prompt_ids(const run_options *options, const md_tokenizer *tokenizer, md_ids *out,
                            rt_err *err)
{
    char *from_stdin = NULL;
    md_text text = {options->prompt, 0};
    rt_status status;

    if (options->ids != NULL) return parse_ids(options->ids, out, err);
    if (options->prompt != NULL) {
        text.count = strlen(options->prompt);
    } else {
        RT_TRY(read_stdin(&from_stdin, &text.count, err));
        text.bytes = from_stdin;
    }
    if (options->raw)
        status = md_tokenizer_encode(tokenizer, text, (md_match){.mode = MD_MATCH_ALL}, out, err);
    else
        status = md_chat_encode_prompt(tokenizer, options->system, text, !options->no_think,
                                       options->template_compat, out, err);
    free(from_stdin);
    return status;
}

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

static void say_settings(const app_session *session, const run_options *options,
                         const md_sampler_spec *sampler, uint32_t prompt_count)
{
    char id[65];

    md_model_id_format(md_container_get_info(app_session_container(session))->model_id, id);
    fprintf(stderr,
            "moesaic: model %.16s, %u node%s, kernels %s, kv %s, context %u, chunk %u, prompt %u "
            "tokens, ",
            id, app_session_nodes(session), app_session_nodes(session) == 1 ? "" : "s",
            kn_variant_name(kn_selected()), options->model.kv, app_session_context(session),
            app_session_chunk(session), prompt_count);
    if (sampler->temperature == 0)
        fprintf(stderr, "greedy\n");
    else
        fprintf(stderr, "temp %g top-p %g top-k %u min-p %g seed %llu\n",
                (double)sampler->temperature, (double)sampler->top_p, sampler->top_k,
                (double)sampler->min_p, (unsigned long long)sampler->seed);
}

static void eos_of(const md_container *container, const uint32_t **eos, uint32_t *count)
{
    const md_generation *generation = md_container_generation(container);
    const md_config *config = md_container_config(container);

    *eos = generation->eos_count > 0 ? generation->eos : config->eos;
    *count = generation->eos_count > 0 ? generation->eos_count : config->eos_count;
}

static rt_status generate(app_session *session, const run_options *options,
                          const md_tokenizer *tokenizer, const md_ids *prompt, rt_err *err)
{
    const md_container *container = app_session_container(session);
    md_text stop = {options->stop, options->stop == NULL ? 0 : strlen(options->stop)};
    app_output_spec output_spec = {.tokenizer = tokenizer,
                                   .mode = options->json        ? APP_OUTPUT_JSON
                                           : options->print_ids ? APP_OUTPUT_IDS
                                                                : APP_OUTPUT_TEXT,
                                   .stop = options->stop == NULL ? NULL : &stop};
    md_sampler_spec sampling;
    app_output *output = NULL;
    md_sampler *sampler = NULL;
    app_generation generation = {0};
    app_generation_spec generation_spec = {
        .prompt = prompt->ids,
        .prompt_count = (uint32_t)prompt->count,
        .tokens_max = options->tokens == 0 || options->tokens > UINT32_MAX
                          ? UINT32_MAX
                          : (uint32_t)options->tokens,
        .context = app_session_context(session),
        .chunk = app_session_chunk(session),
        .vocab = md_container_config(container)->vocab,
        .on_token = app_output_token,
        .profile = app_session_profile(session),
        .clock = rt_clock_real(),
    };
    rt_status status = sampler_spec(options, md_container_generation(container), &sampling, err);

    if (!options->ignore_eos) eos_of(container, &generation_spec.eos, &generation_spec.eos_count);
    if (status == RT_OK)
        status = md_sampler_create(&sampling, generation_spec.vocab, &sampler, err);
    if (status == RT_OK) status = app_output_create(&output_spec, &output, err);
    if (status == RT_OK) {
        say_settings(session, options, &sampling, (uint32_t)prompt->count);
        generation_spec.sampler = sampler;
        generation_spec.context_of_token = output;
        status = app_generate(app_session_engine(session), &generation_spec, &generation, err);
        status =
            app_output_finish(output, session, &generation, (uint32_t)prompt->count, status, err);
    }
    app_output_free(output);
    md_sampler_free(sampler);
    return status;
}

static rt_status run_head(app_session *session, const run_options *options, rt_err *err)
{
    md_tokenizer *tokenizer = NULL;
    md_ids prompt = {0};
    size_t image_bytes;
    const void *image = md_container_tokenizer(app_session_container(session), &image_bytes);
    rt_status status = md_tokenizer_open(image, image_bytes, &tokenizer, err);

    if (status == RT_OK) status = prompt_ids(options, tokenizer, &prompt, err);
    if (status == RT_OK) status = generate(session, options, tokenizer, &prompt, err);
    md_ids_fini(&prompt);
    md_tokenizer_close(tokenizer);
    return status;
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

    if (an_engine_get_stats(app_session_engine(session)).rows == 0) return;
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

int app_verb_run(int argc, char **argv)
{
    run_options options = {.model = APP_MODEL_OPTIONS_DEFAULT};
    app_session_spec session_spec;
    app_session *session = NULL;
    const char *positional[1];
    uint32_t positional_count;
    rt_err err = {0};
    rt_status status;

    switch (app_options_parse(&app_spec_run, argc, argv, &options, positional, &positional_count)) {
    case RT_PARSE_HELP:
        return APP_EXIT_OK;
    case RT_PARSE_USAGE:
        return APP_EXIT_USAGE;
    case RT_PARSE_OK:
        break;
    }
    if (options.prompt != NULL && options.ids != NULL) {
        fprintf(stderr, "moesaic run: give --prompt or --ids, not both\n");
        return APP_EXIT_USAGE;
    }
    session_spec = (app_session_spec){
        .model_dir = positional[0], .options = options.model, .profile = options.profile};
    status = app_session_open(&session_spec, &session, &err);
    if (status == RT_OK)
        status = app_session_is_head(session) ? run_head(session, &options, &err)
                                              : app_session_serve(session, &err);
    /* Said before the session ends: after a loss the launcher may kill this rank at any moment. */
    if (status != RT_OK && err.text[0] != '\0') fprintf(stderr, "moesaic run: %s\n", err.text);
    if (session != NULL && app_session_is_head(session)) save_heat(session, options.model.heat);
    app_session_close(session, status, err.text);
    return status == RT_OK ? APP_EXIT_OK : APP_EXIT_FAILED;
}
