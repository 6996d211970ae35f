/* verb_status.c - a look at a model that takes less than a second: what is there, what fits, what next. */
#include "app/heat_file.h"
#include "app/model_look.h"
#include "app/output.h"
#include "app/sizing.h"
#include "app/verbs.h"
#include "base/budget.h"
#include "base/check.h"
#include "model/convert/disk_space.h"
#include "placement/planner.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    bool json;
} status_options;

static const rt_opt table[] = {
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
    uint64_t available_bytes, needed_bytes; /* needed: for all experts */
    uint32_t context;
    uint64_t experts, experts_in_ram;
} fit;

typedef enum { HEAT_NONE, HEAT_FOUND, HEAT_BAD } heat_state;

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

static rt_status look_at_fit(const md_container *container, fit *out, rt_err *err)
{
    app_model_options options = APP_MODEL_OPTIONS_DEFAULT;
    rt_team_spec inline_team = {.threads = 0};
    const md_config *config = md_container_config(container);
    uint64_t limit = app_ram_limit(&options, 1), fixed, left;
    md_expert_layout layout = {0};
    rt_team *team = NULL;
    app_sizes sizes;
    rt_status status;

    RT_TRY(rt_team_create(&inline_team, &team, err));
    status = app_sizes_of(container, &options, limit, 1, team, &sizes, err);
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
    out->needed_bytes = fixed + out->experts * layout.record_bytes;
    out->context = sizes.context;
    out->experts_in_ram = experts_that_fit(left, layout.record_bytes, config->topk, out->experts);
    out->runs = limit >= fixed + sizes.experts_least_bytes;
    out->known = true;
    return RT_OK;
}

/* A heat file that cannot be read is something to report, not a failure of reporting. */
static rt_status look_at_heat(status_report *report, rt_err *err)
{
    pl_heat *heat = NULL;
    bool found = false;
    char *path = NULL;
    rt_status status;

    RT_TRY(app_heat_path(report->model.container, NULL, &path, err));
    status = app_heat_load(path, report->model.container, &heat, &found, &report->heat_error);
    free(path);
    report->heat = status != RT_OK ? HEAT_BAD : found ? HEAT_FOUND : HEAT_NONE;
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
    if (model->records_held < model->records || report->heat == HEAT_BAD || !report->fits.runs)
        return APP_EXIT_DEGRADED;
    return APP_EXIT_OK;
}

static rt_status look(const char *path, status_report *report, rt_err *err)
{
    app_model *model = &report->model;

    RT_TRY(app_model_look(path, KN_Q4, KN_Q8, model, err));
    if (model->state != APP_MODEL_ABSENT) RT_TRY(md_disk_free(path, &report->free_bytes, err));
    if (model->container != NULL) RT_TRY(look_at_fit(model->container, &report->fits, err));
    if (model->state == APP_MODEL_CONTAINER) RT_TRY(look_at_heat(report, err));
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
        printf("state      %s, %s: %u weight files, %u missing, %s of %s\n",
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
            printf("state      complete container: %llu records, %s\n",
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

/* Names each file with records that are not held, once. */
static void print_missing_packs(const md_container *container)
{
    char last[32] = "";

    for (uint64_t i = 0; i < md_container_record_count(container); i++) {
        md_record record;
        char name[32];

        md_container_record_at(container, i, &record);
        if (record.fd >= 0) continue;
        md_pack_name(record.key, name, sizeof(name));
        if (strcmp(name, last) != 0) printf("missing    records of %s\n", name);
        snprintf(last, sizeof(last), "%s", name);
    }
}

static void print_text(const status_report *report)
{
    const app_model *model = &report->model;
    const fit *f = &report->fits;
    size_text a, b;
    char next[512];

    print_state(report);
    print_formats(model);
    if (model->state == APP_MODEL_CONTAINER && model->records_held < model->records)
        print_missing_packs(model->container);
    if (report->heat == HEAT_FOUND)
        printf("heat       %.0f tokens, confidence %.0f %%\n", report->heat_tokens,
               100 * report->heat_confidence);
    else if (report->heat == HEAT_BAD)
        printf("heat       not usable: %s\n", report->heat_error.text);
    else if (model->state == APP_MODEL_CONTAINER)
        printf("heat       none yet: run keeps it\n");
    if (f->known && !f->runs)
        printf("memory     too little: %s available, %s holds everything\n",
               size(f->available_bytes, a), size(f->needed_bytes, b));
    else if (f->known)
        printf("memory     %s available: %llu of %llu experts fit beside a context of %u tokens\n",
               size(f->available_bytes, a), (unsigned long long)f->experts_in_ram,
               (unsigned long long)f->experts, f->context);
    if (model->state != APP_MODEL_ABSENT)
        printf("disk       %s free\n", size(report->free_bytes, a));
    printf("next       %s\n", app_model_next(model, next, sizeof(next)));
}

/* ---- json ---- */

static json_t *whole(uint64_t value)
{
    return json_integer((json_int_t)value);
}

static json_t *missing_json(const app_model *model)
{
    json_t *list = json_array();
    char last[32] = "";

    if (model->state != APP_MODEL_CONTAINER) return list;
    for (uint64_t i = 0; i < md_container_record_count(model->container); i++) {
        md_record record;
        char name[32];

        md_container_record_at(model->container, i, &record);
        if (record.fd >= 0) continue;
        md_pack_name(record.key, name, sizeof(name));
        if (strcmp(name, last) != 0) (void)json_array_append_new(list, json_string(name));
        snprintf(last, sizeof(last), "%s", name);
    }
    return list;
}

static json_t *heat_json(const status_report *report)
{
    if (report->heat == HEAT_BAD)
        return json_pack("{s:o}", "error", app_json_text(report->heat_error.text));
    if (report->heat == HEAT_NONE) return json_null();
    return json_pack("{s:f, s:f}", "tokens", report->heat_tokens, "confidence",
                     report->heat_confidence);
}

static json_t *memory_json(const fit *f)
{
    if (!f->known) return json_null();
    return json_pack("{s:o, s:o, s:b, s:i, s:o, s:o}", "available_bytes", whole(f->available_bytes),
                     "all_bytes", whole(f->needed_bytes), "runs", (int)f->runs, "context",
                     (int)f->context, "experts", whole(f->experts), "experts_in_ram",
                     whole(f->experts_in_ram));
}

static bool print_json(const status_report *report)
{
    const app_model *model = &report->model;
    const md_container_info *info =
        model->state == APP_MODEL_CONTAINER ? md_container_get_info(model->container) : NULL;
    char next[512], id[65] = "";
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
        app_json_text(app_model_next(model, next, sizeof(next))));
    return app_json_print("status", root);
}

int app_verb_status(int argc, char **argv)
{
    status_options options = {0};
    const char *positional[1];
    uint32_t positional_count;
    status_report report = {0};
    rt_err err = {0};
    int code;

    switch (
        rt_options_parse(&app_spec_status, argc, argv, &options, positional, &positional_count)) {
    case RT_PARSE_HELP:
        return APP_EXIT_OK;
    case RT_PARSE_USAGE:
        return APP_EXIT_USAGE;
    case RT_PARSE_OK:
        break;
    }
    if (look(positional[0], &report, &err) != RT_OK) {
        fprintf(stderr, "moesaic status: %s\n", err.text);
        code = APP_EXIT_FAILED;
    } else {
        code = report.code;
        if (!options.json)
            print_text(&report);
        else if (!print_json(&report))
            code = APP_EXIT_FAILED;
    }
    app_model_free(&report.model);
    return code;
}
