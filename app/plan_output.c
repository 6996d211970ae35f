/* plan_output.c - prints a plan. */
#include "app/plan_output.h"

#include "app/output.h"
#include "base/budget.h"

#include <stdio.h>
#include <string.h>

typedef char size_text[24];

static const char *size(uint64_t bytes, size_text text)
{
    return rt_bytes_format(bytes, text, sizeof(size_text));
}

static const char *rate(double bytes_s, size_text text)
{
    return rt_bytes_format((uint64_t)bytes_s, text, sizeof(size_text));
}

/* ---- placement, for both forms ---- */

typedef struct {
    const char *part; /* also the name in JSON and in the session's budget */
    const char *node; /* "attention" or "experts"; with one process they are the same */
    const char *tier; /* "ram" or "disk" */
    uint64_t bytes;
    uint64_t records; /* of experts; 0 for the rest */
} place;

enum { PLACES_MAX = 10 };

/* The experts of one holder. */
static uint32_t list_experts(const app_plan *plan, place *out)
{
    const pl_plan *p = &plan->plan;
    uint64_t each = plan->model.record_bytes, held, pinned;
    uint32_t holders = plan->spec.nodes > 1 ? plan->spec.nodes - 1 : 1, n = 0;

    if (!p->fits) {
        held = p->records_node < PL_TRANSIT_LEAST ? p->records_node : PL_TRANSIT_LEAST;
        out[n++] = (place){"experts, at least", "experts", "ram", held * each, held};
        return n;
    }
    if (p->transit_slots == 0) {
        out[n++] = (place){"experts", "experts", "ram", p->records_node * each, p->records_node};
        return n;
    }
    held = p->records_in_ram / holders;
    pinned = p->records_pinned / holders;
    if (pinned > 0) out[n++] = (place){"experts, pinned", "experts", "ram", pinned * each, pinned};
    out[n++] = (place){"experts, cached", "experts", "ram", (held - pinned) * each, held - pinned};
    out[n++] = (place){"experts, in transit", "experts", "ram", p->transit_slots * each, 0};
    out[n++] = (place){"experts, on disk", "experts", "disk", (p->records_node - held) * each,
                       p->records_node - held};
    return n;
}

/* Bytes of one node. */
static uint32_t list_places(const app_plan *plan, place out[PLACES_MAX])
{
    const pl_model *m = &plan->model;
    uint32_t n = 0;

    out[n++] = (place){"dense weights", "attention", "ram", m->dense_bytes, 0};
    out[n++] = (place){"kv cache", "attention", "ram", m->kv_bytes, 0};
    out[n++] = (place){"attention scratch", "attention", "ram", m->attention_scratch_bytes, 0};
    out[n++] = (place){"expert scratch", "experts", "ram", m->expert_scratch_bytes, 0};
    return n + list_experts(plan, out + n);
}

/* ---- text ---- */

static void print_model(const app_plan *plan, const app_model *model)
{
    const md_config *c = md_container_config(model->container);
    const md_container_info *info = md_container_get_info(model->container);
    size_text whole, files, experts, dense, mtp, embed, source, here;

    printf("model      %s, %u layers (%u with experts), %u experts, top %u; from %s\n",
           c->model_type, c->layers, plan->model.layers, c->experts, c->topk,
           model->state == APP_MODEL_CONTAINER    ? "a container"
           : model->foreign                       ? "a model of the colibri engine"
           : model->state == APP_MODEL_CHECKPOINT ? "a checkpoint"
                                                  : "config.json alone");
    if (model->foreign) {
        printf("source     %s of integers and scales%s\n", size(model->shard_bytes, here),
               model->import_problem[0] != '\0'
                   ? "; import would refuse it (moesaic status says why), the formats are a guess"
                   : "");
    } else if (model->state != APP_MODEL_CONTAINER) {
        printf("download   %s in %llu tensors (%s)", size(model->source_bytes, source),
               (unsigned long long)model->source_tensors,
               strcmp(model->quant_method, "fp8") == 0 ? "FP8" : "BF16");
        if (model->state == APP_MODEL_CHECKPOINT)
            printf("; %s here", size(model->shard_bytes, here));
        printf("\n");
    }
    size(model->bytes, whole);
    size(model->disk_bytes, files);
    printf("container  %s%s%s%s: experts %s (%s), dense %s (%s), MTP layer %s, embedding %s "
           "(%s)\n",
           whole, strcmp(whole, files) == 0 ? "" : " (", strcmp(whole, files) == 0 ? "" : files,
           strcmp(whole, files) == 0 ? "" : " as files)", size(plan->experts_bytes, experts),
           kn_format_name(info->expert_format), size(plan->dense_bytes, dense),
           kn_format_name(info->dense_format), size(plan->mtp_bytes, mtp),
           size(plan->embed_bytes, embed), kn_format_name(info->embed_format));
}

static void print_machine(const app_plan *plan)
{
    const pl_machine *m = &plan->machine;
    size_text ram, read, disk, link;

    if (m->nodes > 1)
        printf("nodes      %u: one attends, %u hold %s\n", m->nodes, m->nodes - 1,
               m->sliced ? "a slice of every expert" : "whole experts");
    printf("machine    %s of RAM%s, read at %s/s (%s) by %u threads; disk %s/s (%s); attention "
           "%.0f Gflop/s (%s)\n",
           size(m->ram_bytes, ram), m->nodes > 1 ? " each" : "", rate(m->ram_rate, read),
           app_rate_source_name(plan->read_source), plan->sizes.threads, rate(m->disk_rate, disk),
           app_rate_source_name(plan->disk_source), m->flop_rate * 1e-9,
           app_rate_source_name(plan->flop_source));
    if (m->nodes > 1)
        printf("network    %s/s (%s), %.0f us a round trip\n", rate(m->link_rate, link),
               app_rate_source_name(plan->link_source), m->link_latency_s * 1e6);
}

static void print_row(const char *first, const char *name, uint64_t ram, uint64_t disk)
{
    size_text ram_text = "-", disk_text = "-";

    if (ram > 0) size(ram, ram_text);
    if (disk > 0) size(disk, disk_text);
    printf("%-10s %-34s %8s %12s %12s\n", first, name, "-", ram_text, disk_text);
}

static void name_place(const app_plan *plan, const place *at, char *text, size_t text_bytes)
{
    if (at->records > 0)
        snprintf(text, text_bytes, "%s, %llu of %llu", at->part, (unsigned long long)at->records,
                 (unsigned long long)plan->plan.records_node);
    else if (strcmp(at->part, "experts, in transit") == 0)
        snprintf(text, text_bytes, "%s, %u slots", at->part, plan->plan.transit_slots);
    else if (strcmp(at->part, "kv cache") == 0)
        snprintf(text, text_bytes, "kv cache, %u tokens", plan->sizes.context);
    else
        snprintf(text, text_bytes, "%s", at->part);
}

static void print_places(const app_plan *plan)
{
    static const char *const nodes[] = {"attention", "experts"};
    bool several = plan->spec.nodes > 1;
    place places[PLACES_MAX];
    uint32_t count = list_places(plan, places);

    printf("\n%-10s %-34s %8s %12s %12s\n", "placement", "", "VRAM", "RAM", "disk");
    for (int n = 0; n < (several ? 2 : 1); n++) {
        uint64_t ram = 0, disk = 0;

        for (uint32_t i = 0; i < count; i++) {
            bool in_ram = strcmp(places[i].tier, "ram") == 0;
            char name[64];

            if (several && strcmp(places[i].node, nodes[n]) != 0) continue;
            *(in_ram ? &ram : &disk) += places[i].bytes;
            name_place(plan, &places[i], name, sizeof(name));
            print_row("", name, in_ram ? places[i].bytes : 0, in_ram ? 0 : places[i].bytes);
        }
        print_row("",
                  !several ? "total"
                  : n == 0 ? "total, attention node"
                           : "total, expert node",
                  ram, disk);
    }
}

/* As many as show three digits of small values. */
static int decimals_of(double value)
{
    return value >= 10 ? 1 : value >= 1 ? 2 : value >= 0.1 ? 3 : 4;
}

static void print_speed(const app_plan *plan)
{
    const pl_plan *p = &plan->plan;
    size_text slow, fast;

    printf("\nhit rate   %.1f %% of expert uses find their expert in RAM", 100 * p->hit_rate);
    if (plan->heat_source == APP_HEAT_FILE)
        printf(" (this model's heat, %.0f tokens)\n", plan->heat_tokens);
    else if (plan->heat_source == APP_HEAT_GLM52)
        printf(" (GLM-5.2's heat curve over 1,270 tokens;%s)\n",
               plan->heat_error.status != RT_OK ? " the heat file cannot be used"
               : plan->heat_tokens > 0          ? " the heat file knows too few tokens yet"
                                                : " no heat file");
    else
        printf(" (all experts alike: no heat file)\n");
    printf("speed      %s to %s tokens/s; the limit: %s\n",
           app_speed_format(p->slow_tok_s, slow, sizeof(slow)),
           app_speed_format(p->fast_tok_s, fast, sizeof(fast)), pl_term_name(p->limit));
    for (int t = 0; t < PL_TERM_COUNT; t++) {
        size_text text;

        if (p->term_s[t] <= 0) continue;
        printf("%-10s %-28s %9.*f ms a token", "", pl_term_name((pl_term)t),
               decimals_of(1e3 * p->term_s[t]), 1e3 * p->term_s[t]);
        if (t == PL_TERM_ATTENTION)
            printf("   %.3g Gflop at %u tokens of context\n", 1e-9 * p->token_bytes[t],
                   plan->sizes.context);
        else
            printf("   %s\n", size((uint64_t)p->token_bytes[t], text));
    }
    printf("%-10s fast: full rates, disk reads overlapped; slow: %.0f %% of each, nothing "
           "overlapped\n",
           "", 100 * PL_SLOW);
}

void app_plan_print_text(const app_plan *plan, const app_model *model)
{
    app_advice advice;

    print_model(plan, model);
    print_machine(plan);
    print_places(plan);
    if (plan->plan.fits) print_speed(plan);
    app_plan_advise(plan, model, &advice);
    printf("\n");
    for (uint32_t i = 0; i < advice.count; i++)
        printf("%-10s %s\n", i == 0 ? "advice" : "", advice.line[i]);
}

/* ---- json ---- */

static json_t *whole(uint64_t value)
{
    return json_integer((json_int_t)value);
}

static json_t *model_json(const app_plan *plan, const app_model *model)
{
    const md_config *c = md_container_config(model->container);
    const md_container_info *info = md_container_get_info(model->container);

    return json_pack(
        "{s:s, s:s, s:i, s:i, s:i, s:i, s:s, s:s, s:s}", "from", app_model_state_name(model->state),
        "model_type", c->model_type, "layers", (int)c->layers, "moe_layers",
        (int)plan->model.layers, "experts", (int)c->experts, "topk", (int)c->topk, "experts_format",
        kn_format_name(info->expert_format), "dense_format", kn_format_name(info->dense_format),
        "embed_format", kn_format_name(info->embed_format));
}

static json_t *container_json(const app_plan *plan, const app_model *model)
{
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "file_bytes", whole(model->disk_bytes),
                     "bytes", whole(model->bytes), "experts_bytes", whole(plan->experts_bytes),
                     "dense_bytes", whole(plan->dense_bytes), "mtp_bytes", whole(plan->mtp_bytes),
                     "embed_bytes", whole(plan->embed_bytes), "record_bytes",
                     whole(plan->model.record_bytes));
}

static json_t *machine_json(const app_plan *plan)
{
    const pl_machine *m = &plan->machine;

    return json_pack(
        "{s:o, s:i, s:b, s:i, s:f, s:s, s:f, s:s, s:f, s:s, s:f, s:s, s:f}", "ram_bytes",
        whole(m->ram_bytes), "nodes", (int)m->nodes, "sliced", (int)m->sliced, "threads",
        (int)plan->sizes.threads, "read_rate", m->ram_rate, "read_rate_source",
        app_rate_source_name(plan->read_source), "disk_rate", m->disk_rate, "disk_rate_source",
        app_rate_source_name(plan->disk_source), "flop_rate", m->flop_rate, "flop_rate_source",
        app_rate_source_name(plan->flop_source), "link_rate", m->link_rate, "link_rate_source",
        app_rate_source_name(plan->link_source), "link_latency_s", m->link_latency_s);
}

static json_t *places_json(const app_plan *plan)
{
    place places[PLACES_MAX];
    uint32_t count = list_places(plan, places);
    json_t *list = json_array();

    for (uint32_t i = 0; i < count; i++)
        (void)json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:o, s:o}", "part",
                                                    places[i].part, "node", places[i].node, "tier",
                                                    places[i].tier, "bytes", whole(places[i].bytes),
                                                    "records", whole(places[i].records)));
    return list;
}

static json_t *speed_json(const pl_plan *p)
{
    static const char *const names[PL_TERM_COUNT] = {"dense", "experts", "disk", "attention",
                                                     "network"};
    json_t *terms = json_object();

    for (int t = 0; t < PL_TERM_COUNT; t++)
        (void)json_object_set_new(terms, names[t],
                                  json_pack("{s:f, s:f}", "seconds", p->term_s[t],
                                            t == PL_TERM_ATTENTION ? "flop" : "bytes",
                                            p->token_bytes[t]));
    return json_pack("{s:f, s:f, s:s, s:s, s:o}", "slow_tok_s", p->slow_tok_s, "fast_tok_s",
                     p->fast_tok_s, "limit", names[p->limit], "limit_text", pl_term_name(p->limit),
                     "terms", terms);
}

json_t *app_plan_json(const app_plan *plan, const app_model *model)
{
    const pl_plan *p = &plan->plan;
    json_t *advice_json = json_array(), *root;
    app_advice advice;

    app_plan_advise(plan, model, &advice);
    for (uint32_t i = 0; i < advice.count; i++)
        (void)json_array_append_new(advice_json, app_json_text(advice.line[i]));
    root = json_pack(
        "{s:o, s:o, s:o, s:o, s:i, s:o, s:b, s:o, s:o, s:o, s:o, s:o, s:f, s:s, s:f, s:o, s:i, "
        "s:o}",
        "model", model_json(plan, model), "container", container_json(plan, model), "source",
        model->state == APP_MODEL_CONTAINER
            ? json_null()
            : json_pack("{s:o, s:o, s:o}", "bytes", whole(model->source_bytes), "tensors",
                        whole(model->source_tensors), "bytes_here", whole(model->shard_bytes)),
        "machine", machine_json(plan), "context", (int)plan->sizes.context, "placement",
        places_json(plan), "fits", (int)p->fits, "needed_bytes", whole(p->needed_bytes),
        "missing_bytes", whole(p->missing_bytes), "all_bytes", whole(p->all_bytes), "experts",
        whole(p->records), "experts_in_ram", whole(p->records_in_ram), "hit_rate", p->hit_rate,
        "heat", app_heat_source_name(plan->heat_source), "heat_tokens", plan->heat_tokens, "speed",
        p->fits ? speed_json(p) : json_null(), "nodes_for_all", (int)p->nodes_for_all, "advice",
        advice_json);
    if (root != NULL)
        (void)json_object_set_new(
            root, "heat_error",
            plan->heat_error.status == RT_OK ? json_null() : app_json_text(plan->heat_error.text));
    if (root != NULL)
        (void)json_object_set_new(root, "disk",
                                  json_pack("{s:o, s:o, s:o}", "free_bytes",
                                            whole(plan->disk_free_bytes), "needed_bytes",
                                            whole(plan->disk_needed_bytes), "consume_bytes",
                                            whole(plan->disk_consume_bytes)));
    return root;
}
