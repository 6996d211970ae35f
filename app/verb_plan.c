/* verb_plan.c - what a model needs and what a machine makes of it, before anything is downloaded. */
#include "app/output.h"
#include "app/plan_output.h"
#include "app/verbs.h"
#include "kernels/select.h"

#include <stdio.h>

typedef struct {
    app_model_options session;
    const char *experts, *dense, *heat;
    uint64_t nodes, vram_bytes, disk_bytes, disk_rate, read_rate, link_rate;
    double flop_rate_g;
    bool json;
} plan_options;

static const rt_opt table[] = {
    {.name = "ram",
     .kind = RT_OPT_BYTES,
     .offset = offsetof(plan_options, session.ram_bytes),
     .arg = "SIZE",
     .doc = "memory of each node, like 24G; default: what is available here"},
    {.name = "vram",
     .kind = RT_OPT_BYTES,
     .offset = offsetof(plan_options, vram_bytes),
     .arg = "SIZE",
     .doc = "must be 0: this version has no GPU tier"},
    {.name = "disk",
     .kind = RT_OPT_BYTES,
     .offset = offsetof(plan_options, disk_bytes),
     .arg = "SIZE",
     .doc = "free disk space; default: what is free where MODEL is"},
    {.name = "read-rate",
     .kind = RT_OPT_BYTES,
     .offset = offsetof(plan_options, read_rate),
     .arg = "SIZE",
     .doc = "bytes a second that a node reads from memory, like 40G; default: measured here"},
    {.name = "disk-rate",
     .kind = RT_OPT_BYTES,
     .offset = offsetof(plan_options, disk_rate),
     .arg = "SIZE",
     .doc = "bytes a second from the disk, like 2G; default: measured on MODEL's files"},
    {.name = "flop-rate",
     .kind = RT_OPT_FLOAT,
     .offset = offsetof(plan_options, flop_rate_g),
     .arg = "GFLOPS",
     .min = 0,
     .max = 1e9,
     .doc = "of attention, in Gflop/s; default: measured here"},
    {.name = "link-rate",
     .kind = RT_OPT_BYTES,
     .offset = offsetof(plan_options, link_rate),
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

static int explain(const app_model *model)
{
    char next[512];

    if (model->state == APP_MODEL_UNFINISHED)
        fprintf(stderr,
                "moesaic plan: %s: an unfinished conversion, %llu of %llu records are done\n",
                model->path, (unsigned long long)model->records_done,
                (unsigned long long)model->records);
    else
        fprintf(stderr, "moesaic plan: %s\n", model->reason.text);
    fprintf(stderr, "moesaic plan: %s\n", app_model_next(model, next, sizeof(next)));
    return APP_EXIT_FAILED;
}

static int print(const app_plan *plan, const app_model *model, bool json)
{
    if (!json)
        app_plan_print_text(plan, model);
    else if (!app_json_print("plan", app_plan_json(plan, model)))
        return APP_EXIT_FAILED;
    return plan->plan.fits ? APP_EXIT_OK : APP_EXIT_FAILED;
}

static int make_plan(const plan_options *options, const app_model *model)
{
    app_plan_spec asked = {.session = options->session,
                           .nodes = (uint32_t)options->nodes,
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
    if (status != RT_OK) {
        fprintf(stderr, "moesaic plan: %s\n", err.text);
        return APP_EXIT_FAILED;
    }
    return print(&plan, model, options->json);
}

int app_verb_plan(int argc, char **argv)
{
    plan_options options = {
        .session = APP_MODEL_OPTIONS_DEFAULT, .experts = "q4", .dense = "q8", .nodes = 1};
    kn_format experts = KN_Q4, dense = KN_Q8;
    const char *positional[1];
    uint32_t positional_count;
    app_model model = {0};
    rt_err err = {0};
    int code;

    switch (rt_options_parse(&app_spec_plan, argc, argv, &options, positional, &positional_count)) {
    case RT_PARSE_HELP:
        return APP_EXIT_OK;
    case RT_PARSE_USAGE:
        return APP_EXIT_USAGE;
    case RT_PARSE_OK:
        break;
    }
    if (options.vram_bytes > 0) {
        fprintf(stderr,
                "moesaic plan: --vram: this version has no GPU tier; give 0 or leave it out\n");
        return APP_EXIT_FAILED;
    }
    (void)kn_format_parse(options.experts, &experts);
    (void)kn_format_parse(options.dense, &dense);
    if (app_model_look(positional[0], experts, dense, &model, &err) != RT_OK) {
        fprintf(stderr, "moesaic plan: %s\n", err.text);
        code = APP_EXIT_FAILED;
    } else {
        code = model.container == NULL ? explain(&model) : make_plan(&options, &model);
    }
    app_model_free(&model);
    return code;
}
