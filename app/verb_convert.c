/* verb_convert.c - a checkpoint in the release's layout becomes a container. */
#include "app/convert_output.h"
#include "app/verbs.h"
#include "base/options.h"

#include <stdio.h>
#include <string.h>

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

int app_verb_convert(int argc, char **argv)
{
    convert_options options = {.experts = "q4", .dense = "q8", .grid = "std"};
    const char *positional[2];
    md_convert_spec asked;
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
    fill_spec(&options, positional, &asked);
    return app_convert_run("convert", &asked, options.threads, options.json);
}
