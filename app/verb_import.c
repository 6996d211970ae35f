/* verb_import.c - a quantised model of the colibri engine becomes a container, its weights unchanged. */
#include "app/convert_output.h"
#include "app/parse.h"
#include "app/verbs.h"
#include "base/options.h"

typedef struct {
    app_convert_options common;
    const char *indexer_from;
} import_options;

static const rt_opt table[] = {
    {.name = "indexer-from",
     .kind = RT_OPT_TEXT,
     .offset = offsetof(import_options, indexer_from),
     .arg = "HF_DIR",
     .doc = "the original checkpoint, for what SOURCE lacks of the indexer and the MTP layer: "
            "config.json, the index, and the shards with those tensors"},
    APP_CONVERT_OPTION_ROWS(import_options, common, "import"),
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
    import_options options = {.common = APP_CONVERT_OPTIONS_DEFAULT};
    const char *positional[2];
    md_convert_spec asked;
    int code;

    if (!app_parse(&app_spec_import, argc, argv, &options, positional, NULL, &code)) return code;
    asked = (md_convert_spec){
        .source = positional[0],
        .target = positional[1],
        .import = true,
        .indexer_from = options.indexer_from,
    };
    return app_convert_run("import", &options.common, &asked);
}
