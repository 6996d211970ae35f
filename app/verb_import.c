/* verb_import.c - a quantised model of the colibri engine becomes a container, its weights unchanged. */
#include "app/convert_output.h"
#include "app/verbs.h"
#include "base/options.h"

#include <stdio.h>
#include <string.h>

typedef struct {
    const char *indexer_from, *grid;
    double latent_eps;
    bool dry_run, verify_only, json;
    uint64_t memory_bytes, threads;
    bool grid_given;
} import_options;

enum { THREADS_MAX = 1024 };

static const rt_opt table[] = {
    {.name = "indexer-from",
     .kind = RT_OPT_TEXT,
     .offset = offsetof(import_options, indexer_from),
     .arg = "HF_DIR",
     .doc = "the original checkpoint, for what SOURCE lacks of the indexer and the MTP layer: "
            "config.json, the index, and the shards with those tensors"},
    {.name = "grid",
     .kind = RT_OPT_CHOICE,
     .offset = offsetof(import_options, grid),
     .given_offset = offsetof(import_options, grid_given),
     .arg = "GRID",
     .choices = "std|fine",
     .doc = "precision of the exact combine; fine is for comparing with references"},
    {.name = "latent-eps",
     .kind = RT_OPT_FLOAT,
     .offset = offsetof(import_options, latent_eps),
     .arg = "X",
     .min = 1e-12,
     .max = 1.0,
     .doc = "eps of the two latent norms; without it rms_norm_eps of config.json"},
    {.name = "dry-run",
     .kind = RT_OPT_FLAG,
     .offset = offsetof(import_options, dry_run),
     .doc = "check names, formats, disk and memory and print what was found; write nothing"},
    {.name = "verify-only",
     .kind = RT_OPT_FLAG,
     .offset = offsetof(import_options, verify_only),
     .doc = "compare a finished container with a fresh import of the source"},
    {.name = "memory",
     .kind = RT_OPT_BYTES,
     .offset = offsetof(import_options, memory_bytes),
     .arg = "SIZE",
     .doc = "bound of all buffers; 2G unless given"},
    {.name = "threads",
     .kind = RT_OPT_UINT,
     .offset = offsetof(import_options, threads),
     .arg = "N",
     .min = 0,
     .max = THREADS_MAX,
     .doc = "0: the usable cores"},
    {.name = "json",
     .kind = RT_OPT_FLAG,
     .offset = offsetof(import_options, json),
     .doc = "print one JSON object"},
    {.name = NULL},
};

const rt_opt_spec app_spec_import = {
    .verb = "import",
    .args_doc = "SOURCE TARGET",
    .doc =
        "Takes a model of the colibri engine in SOURCE (config.json, tokenizer.json, "
        "*.safetensors with int8 and int4 weights) over into a container in TARGET; every weight "
        "stays what it is. Interrupted, it goes on where it was when it is run again.\v"
        "Read are int8 and int4 with a scale per row, and int4 with a scale per group. The formats "
        "are the source's: q4f32 where all of the experts (or of the rest) is int4, else q8f32. "
        "What of the indexer and the MTP layer that engine's converter left out comes from the "
        "original checkpoint (--indexer-from).",
    .table = table,
    .positional_min = 2,
    .positional_max = 2,
};

int app_verb_import(int argc, char **argv)
{
    import_options options = {.grid = "std"};
    const char *positional[2];
    uint32_t positional_count;
    md_convert_spec asked;

    switch (
        rt_options_parse(&app_spec_import, argc, argv, &options, positional, &positional_count)) {
    case RT_PARSE_HELP:
        return APP_EXIT_OK;
    case RT_PARSE_USAGE:
        return APP_EXIT_USAGE;
    case RT_PARSE_OK:
        break;
    }
    if (options.dry_run && options.verify_only) {
        fprintf(stderr, "moesaic import: --dry-run and --verify-only exclude each other\n");
        return APP_EXIT_USAGE;
    }
    asked = (md_convert_spec){
        .source = positional[0],
        .target = positional[1],
        .import = true,
        .indexer_from = options.indexer_from,
        .grid_fine = strcmp(options.grid, "fine") == 0,
        .grid_any = options.verify_only && !options.grid_given,
        .latent_eps = (float)options.latent_eps,
        .dry_run = options.dry_run,
        .verify_only = options.verify_only,
        .memory_bytes = options.memory_bytes,
    };
    return app_convert_run("import", &asked, options.threads, options.json);
}
