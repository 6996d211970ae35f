/* verb_status.c - a look at a model that takes less than a second: what is there, what fits, what next. */
#include "app/heat_file.h"
#include "app/model_advice.h"
#include "app/output.h"
#include "app/parse.h"
#include "app/sizing.h"
#include "app/verbs.h"
#include "base/budget.h"
#include "base/check.h"
#include "model/container/description.h"
#include "model/convert/disk_space.h"
#include "placement/planner.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    app_model_options session; /* as for a run: its memory, context and heat file */
    bool json;
} status_options;

static const rt_opt table[] = {
    {.name = "ram",
     .kind = RT_OPT_BYTES,
     .offset = offsetof(status_options, session.ram_bytes),
     .arg = "SIZE",
     .doc = "memory that a run would be given; default: what is available"},
    {.name = "ctx-size",
     .key = 'c',
     .kind = RT_OPT_UINT,
     .offset = offsetof(status_options, session.context),
     .arg = "C",
     .doc = "context that a run would be given; 0: what fits, up to 32768"},
    {.name = "heat",
     .kind = RT_OPT_TEXT,
     .offset = offsetof(status_options, session.heat),
     .arg = "FILE",
     .doc = "heat file; \"none\": do not look at any; default: heat.bin in the folder MODEL"},
    {.name = "json",
     .kind = RT_OPT_FLAG,
     .offset = offsetof(status_options, json),
     .doc = "print one JSON object"},
    {.name = NULL},
};

const rt_opt_spec app_spec_status = {
    .verb = "status",
    .args_doc = "MODEL",
    .doc = "Says what MODEL is (a container, a checkpoint, half a conversion), what of it is here, "
           "what fits in memory now, and the command to run next. Reads no weights.\v"
           "Exits 0 when the model can be run, 3 when something is still to be done or missing, 1 "
           "when it cannot be used.",
    .table = table,
    .positional_min = 1,
    .positional_max = 1,
};

typedef char size_text[24];

static const char *size(uint64_t bytes, size_text text)
{
    return rt_bytes_format(bytes, text, sizeof(size_text));
}

/* What of a container would lie in this machine's memory if it ran now with default options. */
typedef struct {
    bool known, runs;
    uint64_t available_bytes, least_bytes, all_bytes; /* to run at all; with every expert in RAM */
    uint32_t context;
    uint64_t experts, experts_in_ram;
} fit;

/* OFF: --heat none. LOCKED: there is none, and this user could not write it. */
typedef enum { HEAT_NONE, HEAT_OFF, HEAT_LOCKED, HEAT_FOUND, HEAT_BAD } heat_state;

typedef struct {
    app_model model;
    fit fits;
    heat_state heat;
    double heat_tokens, heat_confidence;
    rt_err heat_error;
    uint64_t free_bytes;
    int code;
} status_report;

/* All, or what is left beside the slots that experts from disk pass through. */
static uint64_t experts_that_fit(uint64_t budget, uint64_t record_bytes, uint32_t topk,
                                 uint64_t experts)
{
    uint64_t slots = budget / record_bytes;
    uint32_t transit = pl_transit_slots(budget, 0, record_bytes, PL_TRANSIT_PER_CHOICE * topk);

    if (slots >= experts) return experts;
    return slots > transit ? slots - transit : 0;
}

static rt_status look_at_fit(const md_container *container, const app_model_options *options,
                             fit *out, rt_err *err)
{
    rt_team_spec as_run = {.threads = app_threads(options, 1)}, alone = {.threads = 0};
    const md_config *config = md_container_config(container);
    uint64_t limit = app_ram_limit(options, 1), fixed, left;
    md_expert_layout layout = {0};
    rt_team *team = NULL;
    app_sizes sizes;
    rt_status status;

    /* Scratch grows with the threads; where not even they can be had, a look is still worth it. */
    if (rt_team_create(&as_run, &team, NULL) != RT_OK) RT_TRY(rt_team_create(&alone, &team, err));
    status = app_sizes_of(container, options, limit, 1, team, &sizes, err);
    rt_team_free(team);
    RT_TRY(status);
    for (uint32_t l = 0; l < config->layers; l++) {
        if (!config->sparse[l]) continue;
        md_container_expert_layout(container, l, &layout);
        out->experts += config->experts;
    }
    fixed = sizes.dense_bytes + sizes.kv_bytes + sizes.attention_scratch_bytes +
            sizes.expert_scratch_bytes;
    left = limit > fixed ? limit - fixed : 0;
    out->available_bytes = limit;
    out->least_bytes = fixed + sizes.experts_least_bytes;
    out->all_bytes = fixed + out->experts * layout.record_bytes;
    out->context = sizes.context;
    out->experts_in_ram = experts_that_fit(left, layout.record_bytes, config->topk, out->experts);
    out->runs = limit >= out->least_bytes;
    out->known = true;
    return RT_OK;
}

/* A heat file that cannot be read is something to report, not a failure of reporting. */
static rt_status look_at_heat(status_report *report, const char *option, rt_err *err)
{
    pl_heat *heat = NULL;
    bool found = false;
    char *path = NULL;
    rt_status status;

    RT_TRY(app_heat_path(report->model.container, option, &path, err));
    if (path == NULL) {
        report->heat = HEAT_OFF;
        return RT_OK;
    }
    status = app_heat_load(path, report->model.container, &heat, &found, &report->heat_error);
    report->heat = status != RT_OK              ? HEAT_BAD
                   : found                      ? HEAT_FOUND
                   : app_heat_is_writable(path) ? HEAT_NONE
                                                : HEAT_LOCKED;
    free(path);
    if (status == RT_OK && found) {
        report->heat_tokens = pl_heat_tokens(heat);
        report->heat_confidence = pl_heat_confidence(heat);
    }
    pl_heat_free(heat);
    return RT_OK;
}

static int code_of(const status_report *report)
{
    const app_model *model = &report->model;

    switch (model->state) {
    case APP_MODEL_ABSENT:
    case APP_MODEL_NOTHING:
    case APP_MODEL_BROKEN:
        return APP_EXIT_FAILED;
    case APP_MODEL_CONFIG:
    case APP_MODEL_CHECKPOINT:
    case APP_MODEL_UNFINISHED:
        return APP_EXIT_DEGRADED;
    case APP_MODEL_CONTAINER:
        break;
    }
    if (!app_model_is_runnable(model) || report->heat == HEAT_BAD || !report->fits.runs)
        return APP_EXIT_DEGRADED;
    return APP_EXIT_OK;
}

/* Of a conversion, still to be written. */
static uint64_t unwritten_bytes(const app_model *model)
{
    return model->disk_bytes > model->done_bytes ? model->disk_bytes - model->done_bytes : 0;
}

static rt_status look(const char *path, const app_model_options *options, status_report *report,
                      rt_err *err)
{
    app_model *model = &report->model;

    RT_TRY(app_model_look(path, KN_Q4, KN_Q8, model, err));
    if (model->state != APP_MODEL_ABSENT) RT_TRY(md_disk_free(path, &report->free_bytes, err));
    if (model->container != NULL)
        RT_TRY(look_at_fit(model->container, options, &report->fits, err));
    if (model->state == APP_MODEL_CONTAINER) RT_TRY(look_at_heat(report, options->heat, err));
    report->code = code_of(report);
    return RT_OK;
}

/* ---- text ---- */

static double percent(uint64_t part, uint64_t whole)
{
    return whole == 0 ? 0 : 100.0 * (double)part / (double)whole;
}

static void print_state(const status_report *report)
{
    const app_model *model = &report->model;
    size_text a, b;

    switch (model->state) {
    case APP_MODEL_ABSENT:
    case APP_MODEL_NOTHING:
    case APP_MODEL_BROKEN:
        printf("state      %s: %s\n", app_model_state_name(model->state), model->reason.text);
        return;
    case APP_MODEL_CONFIG:
        printf("state      config.json alone: %s of weights to download\n",
               size(model->source_bytes, a));
        return;
    case APP_MODEL_CHECKPOINT:
        printf("state      %s, %s: %u weight files, %u missing, %s of about %s\n",
               model->foreign ? "model of the colibri engine" : "checkpoint",
               app_model_is_convertible(model) ? "complete, not converted" : "not usable yet",
               model->shards, model->shards_missing, size(model->shard_bytes, a),
               size(model->source_bytes, b));
        return;
    case APP_MODEL_UNFINISHED:
        printf(
            "state      unfinished conversion%s: %llu of %llu records, %s of about %s (%.0f %%)\n",
            model->running ? ", running now" : "", (unsigned long long)model->records_done,
            (unsigned long long)model->records, size(model->done_bytes, a),
            size(model->disk_bytes, b), percent(model->done_bytes, model->disk_bytes));
        return;
    case APP_MODEL_CONTAINER:
        if (model->records_held == model->records)
            printf("state      %s: %llu records, %s\n",
                   model->lacks_tokenizer ? "container without its tokenizer"
                                          : "complete container",
                   (unsigned long long)model->records, size(model->bytes, a));
        else
            printf("state      partial container: %llu of %llu records, %s of %s\n",
                   (unsigned long long)model->records_held, (unsigned long long)model->records,
                   size(model->held_bytes, a), size(model->bytes, b));
        return;
    }
}

/* A conversion's formats are those it was begun with; the others' what convert would use. */
static void print_formats(const app_model *model)
{
    const md_container_info *info =
        model->container == NULL ? NULL : md_container_get_info(model->container);
    char id[65];

    if (model->state == APP_MODEL_UNFINISHED && model->records > 0)
        printf("formats    experts %s, dense %s\n", kn_format_name(model->conversion.expert_format),
               kn_format_name(model->conversion.dense_format));
    if (model->state != APP_MODEL_CONTAINER) return;
    md_model_id_format(info->model_id, id);
    printf("model      %s, id %.16s\n", md_container_config(model->container)->model_type, id);
    printf("formats    experts %s, dense %s, embedding %s\n", kn_format_name(info->expert_format),
           kn_format_name(info->dense_format), kn_format_name(info->embed_format));
}

static void print_missing(void *context, const char *pack, uint64_t records)
{
    (void)context;
    printf("missing    %llu records of %s\n", (unsigned long long)records, pack);
}

static void print_heat(const status_report *report)
{
    switch (report->heat) {
    case HEAT_FOUND:
        printf("heat       %.0f tokens, confidence %.0f %%\n", report->heat_tokens,
               100 * report->heat_confidence);
        break;
    case HEAT_BAD:
        printf("heat       not usable: %s\n", report->heat_error.text);
        break;
    case HEAT_LOCKED:
        printf("heat       none, and this user cannot write it there: run with --heat FILE\n");
        break;
    case HEAT_OFF:
        printf("heat       switched off (--heat none)\n");
        break;
    case HEAT_NONE:
        printf("heat       none yet: run keeps it\n");
        break;
    }
}

static void print_memory(const fit *f)
{
    size_text a, b, c;

    if (!f->runs)
        printf("memory     too little: %s available, at least %s needed; %s hold every expert\n",
               size(f->available_bytes, a), size(f->least_bytes, b), size(f->all_bytes, c));
    else
        printf("memory     %s available: %llu of %llu experts fit beside a context of %u tokens\n",
               size(f->available_bytes, a), (unsigned long long)f->experts_in_ram,
               (unsigned long long)f->experts, f->context);
}

/* With what the free space is needed for. */
static void print_disk(const status_report *report)
{
    const app_model *model = &report->model;
    uint64_t free_bytes = report->free_bytes;
    size_text a, b, c;

    printf("disk       %s free", size(free_bytes, a));
    if (model->state == APP_MODEL_CONTAINER && free_bytes < APP_HEAT_ROOM)
        printf(": full, the heat of experts cannot be kept beside the model");
    else if (model->state == APP_MODEL_UNFINISHED && unwritten_bytes(model) > 0)
        printf(", about %s still to be written%s", size(unwritten_bytes(model), b),
               free_bytes < unwritten_bytes(model)
                   ? ": make room, or convert with --consume, before the conversion is run again"
                   : "");
    else if (model->state == APP_MODEL_CONFIG)
        printf("; the weights are %s, a container %s (moesaic plan says more)",
               size(model->source_bytes, b), size(model->disk_bytes, c));
    else if (model->state == APP_MODEL_CHECKPOINT)
        printf(", the container takes %s%s", size(model->disk_bytes, b),
               free_bytes >= model->disk_bytes + MD_DISK_RESERVE_BYTES ? ""
               : model->foreign
                   ? ": make room"
                   : ": make room, or convert with --consume (moesaic plan says more)");
    printf("\n");
}

/* Where memory is short, that comes before what the model's state asks for. */
static const char *next_of(const status_report *report, char *text, size_t text_bytes)
{
    const app_model *model = &report->model;

    if (!app_model_is_runnable(model) || report->fits.runs)
        return app_model_next(model, text, text_bytes);
    snprintf(text, text_bytes,
             "get more memory, or a smaller --ctx-size: moesaic plan %s says how much",
             model->path);
    return text;
}

static bool print_text(const status_report *report)
{
    const app_model *model = &report->model;
    char next[APP_NEXT_BYTES];

    print_state(report);
    print_formats(model);
    if (model->state == APP_MODEL_CONTAINER) {
        if (app_model_each_missing(model, print_missing, NULL) != RT_OK) return false;
        if (model->lacks_tokenizer) printf("missing    %s\n", MD_TOKENIZER_NAME);
        print_heat(report);
    }
    if (report->fits.known) print_memory(&report->fits);
    if (model->state != APP_MODEL_ABSENT) print_disk(report);
    printf("next       %s\n", next_of(report, next, sizeof(next)));
    return true;
}

/* ---- json ---- */

static json_t *whole(uint64_t value)
{
    return json_integer((json_int_t)value);
}

static void add_missing(void *list, const char *pack, uint64_t records)
{
    (void)records;
    (void)json_array_append_new(list, json_string(pack));
}

/* NULL when there is no memory for it. */
static json_t *missing_json(const app_model *model)
{
    json_t *list = json_array();

    if (list == NULL || model->state != APP_MODEL_CONTAINER) return list;
    if (app_model_each_missing(model, add_missing, list) != RT_OK) {
        json_decref(list);
        return NULL;
    }
    if (model->lacks_tokenizer) add_missing(list, MD_TOKENIZER_NAME, 0);
    return list;
}

static json_t *heat_json(const status_report *report)
{
    if (report->heat == HEAT_BAD)
        return json_pack("{s:o}", "error", app_json_text(report->heat_error.text));
    if (report->heat != HEAT_FOUND) return json_null();
    return json_pack("{s:f, s:f}", "tokens", report->heat_tokens, "confidence",
                     report->heat_confidence);
}

static json_t *memory_json(const fit *f)
{
    if (!f->known) return json_null();
    return json_pack("{s:o, s:o, s:o, s:b, s:i, s:o, s:o}", "available_bytes",
                     whole(f->available_bytes), "least_bytes", whole(f->least_bytes), "all_bytes",
                     whole(f->all_bytes), "runs", (int)f->runs, "context", (int)f->context,
                     "experts", whole(f->experts), "experts_in_ram", whole(f->experts_in_ram));
}

static bool print_json(const status_report *report)
{
    const app_model *model = &report->model;
    const md_container_info *info =
        model->state == APP_MODEL_CONTAINER ? md_container_get_info(model->container) : NULL;
    char next[APP_NEXT_BYTES], id[65] = "";
    json_t *root;

    if (info != NULL) md_model_id_format(info->model_id, id);
    root = json_pack(
        "{s:s, s:b, s:o, s:s, s:o, s:o, s:o, s:o, s:b, s:i, s:i, s:o, s:o, s:o, s:o, s:o, s:o}",
        "state", app_model_state_name(model->state), "ready", report->code == APP_EXIT_OK, "reason",
        app_json_text(model->reason.text), "model_id", id, "records", whole(model->records),
        "records_here", whole(info != NULL ? model->records_held : model->records_done), "bytes",
        whole(info != NULL ? model->bytes : model->disk_bytes), "bytes_here",
        whole(info != NULL ? model->held_bytes : model->done_bytes), "converting",
        (int)model->running, "shards", (int)model->shards, "shards_missing",
        (int)model->shards_missing, "source_bytes", whole(model->source_bytes), "missing",
        missing_json(model), "heat", heat_json(report), "memory", memory_json(&report->fits),
        "free_bytes", whole(report->free_bytes), "next",
        app_json_text(next_of(report, next, sizeof(next))));
    return app_json_print("status", root);
}

int app_verb_status(int argc, char **argv)
{
    status_options options = {.session = APP_MODEL_OPTIONS_DEFAULT};
    const char *positional[1];
    status_report report = {0};
    rt_err err = {0};
    int code;

    if (!app_parse(&app_spec_status, argc, argv, &options, positional, NULL, &code)) return code;
    if (look(positional[0], &options.session, &report, &err) != RT_OK)
        code = app_failed("status", options.json, err.text);
    else if (options.json ? print_json(&report) : print_text(&report))
        code = report.code;
    else
        code = options.json ? APP_EXIT_FAILED : app_failed("status", false, "out of memory");
    app_model_free(&report.model);
    return code;
}
