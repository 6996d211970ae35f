/* verb_convert.c - a checkpoint in the release's layout becomes a container. */
#include "app/convert_output.h"
#include "app/parse.h"
#include "app/verbs.h"
#include "base/options.h"

typedef struct {
    app_convert_options common;
    const char *experts, *dense;
    bool consume, experts_given, dense_given;
} convert_options;

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
    {.name = "consume",
     .kind = RT_OPT_FLAG,
     .offset = offsetof(convert_options, consume),
     .excludes = "verify-only",
     .doc = "delete each source shard once all that is in it is durable and read back"},
    APP_CONVERT_OPTION_ROWS(convert_options, common, "conversion"),
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

int app_verb_convert(int argc, char **argv)
{
    convert_options options = {
        .common = APP_CONVERT_OPTIONS_DEFAULT, .experts = "q4", .dense = "q8"};
    const char *positional[2];
    md_convert_spec asked;
    int code;

    if (!app_parse(&app_spec_convert, argc, argv, &options, positional, NULL, &code)) return code;
    asked = (md_convert_spec){
        .source = positional[0], .target = positional[1], .consume = options.consume};
    /* Verifying takes what was not asked for from the container. */
    if (!options.common.verify_only || options.experts_given)
        (void)kn_format_parse(options.experts, &asked.expert_format);
    if (!options.common.verify_only || options.dense_given)
        (void)kn_format_parse(options.dense, &asked.dense_format);
    return app_convert_run("convert", &options.common, &asked);
}
