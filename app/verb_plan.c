/* verb_plan.c - what a model needs and what a machine makes of it, before anything is downloaded. */
#include "app/model_advice.h"
#include "app/output.h"
#include "app/parse.h"
#include "app/plan_output.h"
#include "app/verbs.h"
#include "base/budget.h"
#include "kernels/select.h"

#include <stdio.h>

typedef struct {
    app_model_options session;
    const char *experts, *dense, *heat;
    uint64_t nodes, vram_bytes, disk_bytes, disk_rate, read_rate, link_rate;
    double flop_rate_g;
    bool disk_given, read_rate_given, disk_rate_given, flop_rate_given, link_rate_given;
    bool json;
} plan_options;

static const rt_opt table[] = {
    {.name = "ram",
     .kind = RT_OPT_BYTES,
     .offset = offsetof(plan_options, session.ram_bytes),
     .arg = "SIZE",
     .doc =
         "memory that each node's process may take, like 28G of a machine with 32G; default: what "
         "is available here"},
    {.name = "vram",
     .kind = RT_OPT_BYTES,
     .offset = offsetof(plan_options, vram_bytes),
     .arg = "SIZE",
     .doc = "must be 0: this version has no GPU tier"},
    {.name = "disk",
     .kind = RT_OPT_BYTES,
     .offset = offsetof(plan_options, disk_bytes),
     .given_offset = offsetof(plan_options, disk_given),
     .arg = "SIZE",
     .doc = "free disk space; default: what is free where MODEL is"},
    {.name = "read-rate",
     .kind = RT_OPT_BYTES,
     .offset = offsetof(plan_options, read_rate),
     .given_offset = offsetof(plan_options, read_rate_given),
     .arg = "SIZE",
     .doc = "bytes a second that a node reads from memory, like 40G; default: measured here"},
    {.name = "disk-rate",
     .kind = RT_OPT_BYTES,
     .offset = offsetof(plan_options, disk_rate),
     .given_offset = offsetof(plan_options, disk_rate_given),
     .arg = "SIZE",
     .doc = "bytes a second from the disk, like 2G; default: measured on MODEL's files"},
    {.name = "flop-rate",
     .kind = RT_OPT_FLOAT,
     .offset = offsetof(plan_options, flop_rate_g),
     .given_offset = offsetof(plan_options, flop_rate_given),
     .arg = "GFLOPS",
     .min = 0,
     .max = 1e9,
     .doc = "of attention, in Gflop/s; default: measured here"},
    {.name = "link-rate",
     .kind = RT_OPT_BYTES,
     .offset = offsetof(plan_options, link_rate),
     .given_offset = offsetof(plan_options, link_rate_given),
     .arg = "SIZE",
     .doc = "bytes a second between nodes; default: 1 GbE is assumed"},
    {.name = "nodes",
     .key = 'n',
     .kind = RT_OPT_UINT,
     .offset = offsetof(plan_options, nodes),
     .arg = "N",
     .min = 1,
     .max = PL_PLAN_NODES_MAX,
     .doc = "processes on as many machines: one attends, the others hold the experts"},
    {.name = "slices",
     .kind = RT_OPT_FLAG,
     .offset = offsetof(plan_options, session.slices),
     .doc = "with --nodes: spread every expert's slices over the nodes"},
    {.name = "experts",
     .kind = RT_OPT_CHOICE,
     .offset = offsetof(plan_options, experts),
     .arg = "FORMAT",
     .choices = "f32|bf16|q8|q4",
     .doc = "routed experts of the conversion; a container has its own"},
    {.name = "dense",
     .kind = RT_OPT_CHOICE,
     .offset = offsetof(plan_options, dense),
     .arg = "FORMAT",
     .choices = "f32|bf16|q8|q4",
     .doc = "everything else"},
    {.name = "ctx-size",
     .key = 'c',
     .kind = RT_OPT_UINT,
     .offset = offsetof(plan_options, session.context),
     .arg = "C",
     .doc = "context in tokens; 0: what fits, up to 32768"},
    {.name = "kv",
     .kind = RT_OPT_CHOICE,
     .offset = offsetof(plan_options, session.kv),
     .arg = "F",
     .choices = "f32|bf16",
     .doc = "format of the KV cache"},
    {.name = "chunk",
     .kind = RT_OPT_UINT,
     .offset = offsetof(plan_options, session.chunk),
     .arg = "ROWS",
     .min = 1,
     .max = 4096,
     .doc = "rows of a prefill step"},
    {.name = "threads",
     .key = 't',
     .kind = RT_OPT_UINT,
     .offset = offsetof(plan_options, session.threads),
     .arg = "T",
     .min = 0,
     .max = 1024,
     .doc = "threads of a process; 0: the usable cores"},
    {.name = "heat",
     .kind = RT_OPT_TEXT,
     .offset = offsetof(plan_options, heat),
     .arg = "FILE",
     .doc = "heat file; \"none\": do not look at any; default: heat.bin in the folder MODEL"},
    {.name = "json",
     .kind = RT_OPT_FLAG,
     .offset = offsetof(plan_options, json),
     .doc = "print one JSON object"},
    {.name = NULL},
};

const rt_opt_spec app_spec_plan = {
    .verb = "plan",
    .args_doc = "MODEL",
    .doc =
        "Says what there is to download and to convert, where every part of the model goes on this "
        "machine (or one described by the options), the hit rate and speed to expect, what "
        "limits it and what to do. MODEL is a config.json, a checkpoint's folder or a "
        "container's.\v"
        "Exits 0 when the model would run (also from disk), 1 when it would not. Sizes take K, "
        "M, G, T as powers of 1024; results are printed in powers of 1000.",
    .table = table,
    .positional_min = 1,
    .positional_max = 1,
};

static int print(const app_plan *plan, const app_model *model, bool json)
{
    if (!json)
        app_plan_print_text(plan, model);
    else if (!app_json_print("plan", app_plan_json(plan, model)))
        return APP_EXIT_FAILED;
    return plan->plan.fits ? APP_EXIT_OK : APP_EXIT_FAILED;
}

/* A rate of nothing plans nothing. NULL: all are well. */
static const char *zero_rate(const plan_options *options)
{
    if (options->read_rate_given && options->read_rate == 0) return "--read-rate";
    if (options->disk_rate_given && options->disk_rate == 0) return "--disk-rate";
    if (options->flop_rate_given && options->flop_rate_g <= 0) return "--flop-rate";
    if (options->link_rate_given && options->link_rate == 0) return "--link-rate";
    return NULL;
}

/* "TEXT; this process may take X (ulimit)" where a limit of the process may be the reason. */
static int failed(const plan_options *options, const rt_err *err)
{
    uint64_t left = rt_process_limit_left();
    char text[sizeof(err->text) + 160], size[24];

    if (left == UINT64_MAX || err->status == RT_EINVAL)
        return app_failed("plan", options->json, err->text);
    snprintf(text, sizeof(text),
             "%s; the limits of this process leave it %s: raise them (ulimit -v unlimited, ulimit "
             "-d unlimited)",
             err->text, rt_bytes_format(left, size, sizeof(size)));
    return app_failed("plan", options->json, text);
}

static int make_plan(const plan_options *options, const app_model *model)
{
    app_plan_spec asked = {.session = options->session,
                           .nodes = (uint32_t)options->nodes,
                           .disk_given = options->disk_given,
                           .disk_free_bytes = options->disk_bytes,
                           .read_rate = (double)options->read_rate,
                           .disk_rate = (double)options->disk_rate,
                           .flop_rate = options->flop_rate_g * 1e9,
                           .link_rate = (double)options->link_rate,
                           .heat = options->heat};
    rt_team_spec team_spec = {.threads = app_threads(&options->session, 1)};
    rt_team *team = NULL;
    app_plan plan;
    rt_err err = {0};
    rt_status status = kn_select("auto", &err);

    if (status == RT_OK) status = rt_team_create(&team_spec, &team, &err);
    if (status == RT_OK) status = app_plan_make(model, &asked, team, &plan, &err);
    rt_team_free(team);
    if (status != RT_OK) return failed(options, &err);
    return print(&plan, model, options->json);
}

int app_verb_plan(int argc, char **argv)
{
    plan_options options = {
        .session = APP_MODEL_OPTIONS_DEFAULT, .experts = "q4", .dense = "q8", .nodes = 1};
    kn_format experts = KN_Q4, dense = KN_Q8;
    const char *positional[1];
    app_model model = {0};
    rt_err err = {0};
    int code;

    if (!app_parse(&app_spec_plan, argc, argv, &options, positional, NULL, &code)) return code;
    if (zero_rate(&options) != NULL)
        return app_usage_error("plan", "%s: expected more than 0; leave it out for the default",
                               zero_rate(&options));
    if (options.vram_bytes > 0)
        return app_failed("plan", options.json,
                          "--vram: this version has no GPU tier; give 0 or leave it out");
    (void)kn_format_parse(options.experts, &experts);
    (void)kn_format_parse(options.dense, &dense);
    if (app_model_look(positional[0], experts, dense, &model, &err) != RT_OK)
        code = failed(&options, &err);
    else if (model.container == NULL)
        code = app_model_refuse("plan", &model, options.json);
    else
        code = make_plan(&options, &model);
    app_model_free(&model);
    return code;
}
