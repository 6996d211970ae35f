/* verb_convert.c - a checkpoint in the release's layout becomes a container. */
#include "app/output.h"
#include "app/verbs.h"
#include "base/budget.h"
#include "base/options.h"
#include "base/team.h"
#include "model/convert/convert.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    const char *experts, *dense, *grid;
    double latent_eps;
    bool consume, dry_run, verify_only, json;
    uint64_t memory_bytes, threads;
    bool experts_given, dense_given, grid_given;
} convert_options;

enum { THREADS_MAX = 1024 };

static const rt_opt table[] = {
    {.name = "experts",
     .kind = RT_OPT_CHOICE,
     .offset = offsetof(convert_options, experts),
     .given_offset = offsetof(convert_options, experts_given),
     .arg = "FORMAT",
     .choices = "f32|bf16|q8|q4",
     .doc = "routed experts"},
    {.name = "dense",
     .kind = RT_OPT_CHOICE,
     .offset = offsetof(convert_options, dense),
     .given_offset = offsetof(convert_options, dense_given),
     .arg = "FORMAT",
     .choices = "f32|bf16|q8|q4",
     .doc = "attention, dense and shared MLPs, the MTP layer, the head"},
    {.name = "grid",
     .kind = RT_OPT_CHOICE,
     .offset = offsetof(convert_options, grid),
     .given_offset = offsetof(convert_options, grid_given),
     .arg = "GRID",
     .choices = "std|fine",
     .doc = "precision of the exact combine; fine is for comparing with references"},
    {.name = "latent-eps",
     .kind = RT_OPT_FLOAT,
     .offset = offsetof(convert_options, latent_eps),
     .arg = "X",
     .min = 1e-12,
     .max = 1.0,
     .doc = "eps of the two latent norms; without it rms_norm_eps of config.json"},
    {.name = "consume",
     .kind = RT_OPT_FLAG,
     .offset = offsetof(convert_options, consume),
     .doc = "delete each source shard once all that is in it is durable and read back"},
    {.name = "dry-run",
     .kind = RT_OPT_FLAG,
     .offset = offsetof(convert_options, dry_run),
     .doc = "check names, shapes, disk and memory and print what was found; write nothing"},
    {.name = "verify-only",
     .kind = RT_OPT_FLAG,
     .offset = offsetof(convert_options, verify_only),
     .doc = "compare a finished container with a fresh conversion of the source"},
    {.name = "memory",
     .kind = RT_OPT_BYTES,
     .offset = offsetof(convert_options, memory_bytes),
     .arg = "SIZE",
     .doc = "bound of all buffers; 2G unless given"},
    {.name = "threads",
     .kind = RT_OPT_UINT,
     .offset = offsetof(convert_options, threads),
     .arg = "N",
     .min = 0,
     .max = THREADS_MAX,
     .doc = "0: the usable cores"},
    {.name = "json",
     .kind = RT_OPT_FLAG,
     .offset = offsetof(convert_options, json),
     .doc = "print one JSON object"},
    {.name = NULL},
};

const rt_opt_spec app_spec_convert = {
    .verb = "convert",
    .args_doc = "SOURCE TARGET",
    .doc = "Converts the checkpoint in SOURCE (config.json, tokenizer.json, *.safetensors) into a "
           "container in TARGET. Interrupted, it goes on where it was when it is run again.\v"
           "The same source and options give the same model id on every machine. TARGET is new or "
           "empty, or an interrupted conversion: then what is there is read back, and only what is "
           "missing or damaged is converted. On a complete container --consume deletes nothing.",
    .table = table,
    .positional_min = 2,
    .positional_max = 2,
};

static void fill_spec(const convert_options *options, const char *const *positional,
                      md_convert_spec *out)
{
    *out = (md_convert_spec){
        .source = positional[0],
        .target = positional[1],
        .grid_fine = strcmp(options->grid, "fine") == 0,
        .grid_any = options->verify_only && !options->grid_given,
        .latent_eps = (float)options->latent_eps,
        .consume = options->consume,
        .dry_run = options->dry_run,
        .verify_only = options->verify_only,
        .memory_bytes = options->memory_bytes,
    };
    /* Verifying takes what was not asked for from the container. */
    if (!options->verify_only || options->experts_given)
        (void)kn_format_parse(options->experts, &out->expert_format);
    if (!options->verify_only || options->dense_given)
        (void)kn_format_parse(options->dense, &out->dense_format);
}

/* "15.2 MB" in a buffer of its own, for lines with several. */
typedef struct {
    char text[32];
} size_text;

static size_text size_of(uint64_t bytes)
{
    size_text out;

    rt_bytes_format(bytes, out.text, sizeof(out.text));
    return out;
}

typedef unsigned long long number; /* for %llu */

static void print_plan_records(FILE *out, const convert_options *options,
                               const md_convert_result *result)
{
    fprintf(out, "records    %llu: %llu to convert, %llu done already and read back",
            (number)result->records_total,
            (number)(result->records_total - result->records_resumed),
            (number)result->records_resumed);
    if (result->records_lost > 0)
        fprintf(out, ", %llu done but missing or damaged", (number)result->records_lost);
    fprintf(out, "; experts %s, dense %s, grid %s\n", options->experts, options->dense,
            options->grid);
}

/* What a dry run has checked, and what the run would take. */
static void print_plan(FILE *out, const convert_options *options, const md_convert_spec *asked,
                       const md_convert_result *result)
{
    fprintf(out,
            "source     %s: %llu shards, %llu tensors, %s: names, shapes and types are the "
            "model's (the weights are read when they are converted)\n",
            asked->source, (number)result->shards, (number)result->tensors,
            size_of(result->source_bytes).text);
    if (result->tensors_unused > 0)
        fprintf(out, "           %llu tensors are no part of this model and are left out\n",
                (number)result->tensors_unused);
    print_plan_records(out, options, result);
    fprintf(out, "target     %s: %s of records when complete; can be written to\n", asked->target,
            size_of(result->target_bytes).text);
    fprintf(out, "disk       needs %s (with %s in reserve), free are %s: fits\n",
            size_of(result->needed_bytes).text, size_of(result->reserve_bytes).text,
            size_of(result->free_bytes).text);
    fprintf(out, "memory     %llu records at once, %s of buffers of the %s allowed\n",
            (number)result->records_at_once, size_of(result->buffer_bytes).text,
            size_of(result->memory_bytes).text);
    if (asked->consume)
        fprintf(out,
                "consume    deletes %llu shards, %s, each when all that is made of it is durable "
                "and read back; config, tokenizer and index stay\n",
                (number)result->shards_deletable, size_of(result->deletable_bytes).text);
    fprintf(out, "dry run    nothing was written\n");
}

static bool was_complete(const md_convert_result *result)
{
    return result->source_bytes == 0 && result->records_resumed == result->records_total;
}

/* --consume leaves shards that no record needs, and all of them when there was nothing to convert:
 * what a container was made of is deleted only by the run that has read all of it back. */
static void say_kept(const md_convert_spec *asked, const md_convert_result *result)
{
    if (result->shards_kept == 0) return;
    if (was_complete(result))
        fprintf(stderr,
                "%llu shards (%s) are kept in %s: --consume deletes only what it converts. To free "
                "the space, check the container (moesaic convert %s %s --verify-only), then delete "
                "them yourself\n",
                (number)result->shards_kept, size_of(result->kept_bytes).text, asked->source,
                asked->source, asked->target);
    else
        fprintf(stderr, "%llu shards (%s) are kept in %s: nothing of them is in the container\n",
                (number)result->shards_kept, size_of(result->kept_bytes).text, asked->source);
}

static void print_text(const md_convert_spec *asked, const md_convert_result *result)
{
    char id[65];

    md_model_id_format(result->model_id, id);
    if (asked->verify_only) {
        fprintf(stderr, "%llu records compared", (number)result->records_total);
        if (result->records_absent > 0)
            fprintf(stderr, " (%llu by the manifest alone)", (number)result->records_absent);
        fprintf(stderr, ", %llu differ; model id %s\n", (number)result->mismatches, id);
    } else if (was_complete(result)) {
        fprintf(stderr, "%s is complete: %s, model id %s\n", asked->target,
                size_of(result->target_bytes).text, id);
    } else {
        fprintf(stderr, "converted %s into %s: %llu records (%llu resumed",
                size_of(result->source_bytes).text, size_of(result->target_bytes).text,
                (number)result->records_total, (number)result->records_resumed);
        if (result->records_lost > 0)
            fprintf(stderr, ", %llu converted again", (number)result->records_lost);
        fprintf(stderr, ") in %.1f s; %llu shards deleted; model id %s\n", result->seconds,
                (number)result->shards_deleted, id);
    }
}

static json_t *result_json(const md_convert_spec *asked, const md_convert_result *result)
{
    static const uint8_t no_id[32];
    char id[65] = "";

    if (memcmp(result->model_id, no_id, sizeof(no_id)) != 0)
        md_model_id_format(result->model_id, id);
    return json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:I, s:I, s:b}", "model_id", id,
        "source_bytes", (json_int_t)result->source_bytes, "target_bytes",
        (json_int_t)result->target_bytes, "records_total", (json_int_t)result->records_total,
        "records_done", (json_int_t)result->records_done, "records_resumed",
        (json_int_t)result->records_resumed, "records_lost", (json_int_t)result->records_lost,
        "shards_deleted", (json_int_t)result->shards_deleted, "shards_kept",
        (json_int_t)result->shards_kept, "seconds", result->seconds, "mismatches",
        (json_int_t)result->mismatches, "records_absent", (json_int_t)result->records_absent,
        "dry_run", (int)asked->dry_run);
}

/* The numbers of the plan: what print_plan prints. */
static json_t *plan_json(const md_convert_spec *asked, const md_convert_result *result)
{
    json_t *root = json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "shards", (json_int_t)result->shards,
        "tensors", (json_int_t)result->tensors, "tensors_unused",
        (json_int_t)result->tensors_unused, "free_bytes", (json_int_t)result->free_bytes,
        "needed_bytes", (json_int_t)result->needed_bytes, "reserve_bytes",
        (json_int_t)result->reserve_bytes, "records_at_once", (json_int_t)result->records_at_once,
        "buffer_bytes", (json_int_t)result->buffer_bytes, "memory_bytes",
        (json_int_t)result->memory_bytes);

    if (root != NULL && asked->consume)
        (void)json_object_set_new(root, "consume",
                                  json_pack("{s:I, s:I}", "shards",
                                            (json_int_t)result->shards_deletable, "bytes",
                                            (json_int_t)result->deletable_bytes));
    return root;
}

static int print_json(const md_convert_spec *asked, const md_convert_result *result)
{
    json_t *root = result_json(asked, result), *plan = plan_json(asked, result);

    if (root != NULL && (plan == NULL || json_object_update(root, plan) != 0)) {
        json_decref(root);
        root = NULL;
    }
    json_decref(plan);
    return app_json_print("convert", root) ? APP_EXIT_OK : APP_EXIT_FAILED;
}

/* Errors quote names from files, which must not write to the terminal as they like. */
static void make_printable(char *text)
{
    for (; *text != '\0'; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f) *text = '?';
}

static int convert(const convert_options *options, const char *const *positional)
{
    rt_team_spec team_spec = {.threads = options->threads > 0 ? (uint32_t)options->threads
                                                              : rt_cpus_usable()};
    md_convert_result result;
    md_convert_spec asked;
    rt_team *team = NULL;
    rt_err err = {0};
    rt_status status;

    fill_spec(options, positional, &asked);
    status = rt_team_create(&team_spec, &team, &err);
    if (status == RT_OK) status = md_convert(&asked, team, &result, &err);
    rt_team_free(team);
    if (status != RT_OK) {
        bool resumable = status == RT_ECANCELED && !asked.dry_run && !asked.verify_only;

        make_printable(err.text);
        fprintf(stderr, "moesaic convert: %s%s\n", err.text,
                resumable ? ": what is done is kept, run again to resume" : "");
        return APP_EXIT_FAILED;
    }
    if (asked.dry_run && result.source_bytes > 0)
        print_plan(options->json ? stderr : stdout, options, &asked, &result);
    else
        print_text(&asked, &result);
    if (asked.consume) say_kept(&asked, &result);
    if (options->json && print_json(&asked, &result) != APP_EXIT_OK) return APP_EXIT_FAILED;
    return result.mismatches == 0 ? APP_EXIT_OK : APP_EXIT_FAILED;
}

int app_verb_convert(int argc, char **argv)
{
    convert_options options = {.experts = "q4", .dense = "q8", .grid = "std"};
    const char *positional[2];
    uint32_t positional_count;

    switch (
        rt_options_parse(&app_spec_convert, argc, argv, &options, positional, &positional_count)) {
    case RT_PARSE_HELP:
        return APP_EXIT_OK;
    case RT_PARSE_USAGE:
        return APP_EXIT_USAGE;
    case RT_PARSE_OK:
        break;
    }
    if (options.dry_run && options.verify_only) {
        fprintf(stderr, "moesaic convert: --dry-run and --verify-only exclude each other\n");
        return APP_EXIT_USAGE;
    }
    if (options.consume && options.verify_only) {
        fprintf(stderr, "moesaic convert: --consume and --verify-only exclude each other\n");
        return APP_EXIT_USAGE;
    }
    return convert(&options, positional);
}
