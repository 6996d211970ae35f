/* verb_convert.c - a checkpoint in the release's layout becomes a container. */
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
     .doc = "eps of the two latent norms (default: rms_norm_eps of config.json)"},
    {.name = "consume",
     .kind = RT_OPT_FLAG,
     .offset = offsetof(convert_options, consume),
     .doc = "delete each source shard once all that is in it is durable and read back"},
    {.name = "dry-run",
     .kind = RT_OPT_FLAG,
     .offset = offsetof(convert_options, dry_run),
     .doc = "check names, shapes and disk; write nothing"},
    {.name = "verify-only",
     .kind = RT_OPT_FLAG,
     .offset = offsetof(convert_options, verify_only),
     .doc = "compare a finished container with a fresh conversion of the source"},
    {.name = "memory",
     .kind = RT_OPT_BYTES,
     .offset = offsetof(convert_options, memory_bytes),
     .arg = "SIZE",
     .doc = "bound of all buffers; default 2G"},
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
           "The same source and options give the same model id on every machine.",
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

static void print_text(const md_convert_spec *asked, const md_convert_result *result)
{
    char source[32], target[32], free_text[32], needed[32], buffers[32], id[65];

    rt_bytes_format(result->source_bytes, source, sizeof(source));
    rt_bytes_format(result->target_bytes, target, sizeof(target));
    rt_bytes_format(result->free_bytes, free_text, sizeof(free_text));
    md_model_id_format(result->model_id, id);
    if (asked->dry_run && result->source_bytes > 0) {
        fprintf(stderr,
                "would convert %s into %s: %llu records, %llu of them done; needs %s of disk (%s "
                "free) and %s of buffers\n",
                source, target, (unsigned long long)result->records_total,
                (unsigned long long)result->records_resumed,
                rt_bytes_format(result->needed_bytes, needed, sizeof(needed)), free_text,
                rt_bytes_format(result->buffer_bytes, buffers, sizeof(buffers)));
        return;
    }
    if (asked->verify_only)
        fprintf(stderr, "%llu records compared, %llu differ; model id %s\n",
                (unsigned long long)result->records_total, (unsigned long long)result->mismatches,
                id);
    else if (result->records_done == 0 && result->records_resumed == result->records_total)
        fprintf(stderr, "%s is complete: %s, model id %s\n", asked->target, target, id);
    else
        fprintf(stderr,
                "converted %s into %s: %llu records (%llu resumed) in %.1f s; %llu shards deleted; "
                "model id %s\n",
                source, target, (unsigned long long)result->records_total,
                (unsigned long long)result->records_resumed, result->seconds,
                (unsigned long long)result->shards_deleted, id);
}

static int print_json(const md_convert_spec *asked, const md_convert_result *result)
{
    char id[65] = "";
    json_t *root;
    char *text;
    static const uint8_t no_id[32];

    if (memcmp(result->model_id, no_id, sizeof(no_id)) != 0)
        md_model_id_format(result->model_id, id);
    root = json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:I, s:b}", "model_id", id,
        "source_bytes", (json_int_t)result->source_bytes, "target_bytes",
        (json_int_t)result->target_bytes, "records_total", (json_int_t)result->records_total,
        "records_done", (json_int_t)result->records_done, "records_resumed",
        (json_int_t)result->records_resumed, "shards_deleted", (json_int_t)result->shards_deleted,
        "free_bytes", (json_int_t)result->free_bytes, "needed_bytes",
        (json_int_t)result->needed_bytes, "buffer_bytes", (json_int_t)result->buffer_bytes,
        "seconds", result->seconds, "mismatches", (json_int_t)result->mismatches, "dry_run",
        (int)asked->dry_run);
    text = root == NULL ? NULL : json_dumps(root, JSON_COMPACT);
    json_decref(root);
    if (text == NULL) return APP_EXIT_FAILED;
    printf("%s\n", text);
    free(text);
    return APP_EXIT_OK;
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
        fprintf(stderr, "moesaic convert: %s\n", err.text);
        if (status == RT_ECANCELED)
            fprintf(stderr, "moesaic convert: what is done is kept; run again to resume\n");
        return APP_EXIT_FAILED;
    }
    print_text(&asked, &result);
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
