/* plan.c - gathers sizes, rates and heat, and has the planner put them together. */
#include "app/plan.h"

#include "app/heat_file.h"
#include "app/model_advice.h"
#include "base/budget.h"
#include "base/check.h"
#include "model/convert/disk_space.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    FRAME_BYTES = 128,  /* header and entries of a row in a frame */
    MARGIN_DIVISOR = 50 /* of a source, in flight during --consume: about three of 141 shards */
};

/* Where there is too little memory to measure it: a desktop of two channels and four cores. */
static const double READ_RATE_ASSUMED = 20e9, FLOP_RATE_ASSUMED = 50e9;

/* What cannot be measured from here: an NVMe disk, 1 GbE with TCP's overhead, and its round trip with
 * both processes' work on the frames. */
static const double DISK_RATE_ASSUMED = 2e9, LINK_RATE_ASSUMED = 117e6, LINK_LATENCY_S = 150e-6;

/* A heat file counts once half of what it says is more than chance. */
static const double CONFIDENCE_LEAST = 0.5;

const char *app_rate_source_name(app_rate_source source)
{
    static const char *const names[] = {"given", "measured", "assumed"};

    RT_ASSERT((unsigned)source < sizeof(names) / sizeof(names[0]));
    return names[source];
}

const char *app_heat_source_name(app_heat_source source)
{
    static const char *const names[] = {"file", "glm-5.2", "flat"};

    RT_ASSERT((unsigned)source < sizeof(names) / sizeof(names[0]));
    return names[source];
}

/* ---- sizes ---- */

static void add_parts(app_plan *plan, const md_container *container)
{
    uint32_t layers = md_container_config(container)->layers;

    for (uint64_t i = 0; i < md_container_record_count(container); i++) {
        md_record record;

        md_container_record_at(container, i, &record);
        if (record.key.kind == MD_EMBED)
            plan->embed_bytes += record.bytes;
        else if (record.key.layer != MD_NO_LAYER && record.key.layer >= layers)
            plan->mtp_bytes += record.bytes;
        else if (record.key.kind == MD_EXPERT)
            plan->experts_bytes += record.bytes;
        else
            plan->dense_bytes += record.bytes;
    }
}

/* Arithmetic of one token whose context is `positions` long. */
static double attention_flop(const md_config *c, uint32_t positions)
{
    double seen = positions < c->index_topk ? positions : c->index_topk, flop = 0;

    for (uint32_t l = 0; l < c->layers; l++) {
        flop += 2.0 * c->heads * seen * (2.0 * c->kv_rank + c->rope_dim);
        if (c->index_full[l] && positions > c->index_topk)
            flop += 2.0 * positions * c->index_heads * c->index_dim;
    }
    return flop;
}

static void fill_model(const md_container *container, const app_sizes *sizes, uint64_t embed_bytes,
                       pl_model *out)
{
    const md_config *c = md_container_config(container);
    md_expert_layout layout = {0};
    uint32_t sparse = 0;

    for (uint32_t l = 0; l < c->layers; l++) {
        if (!c->sparse[l]) continue;
        if (sparse++ == 0) md_container_expert_layout(container, l, &layout);
    }
    *out = (pl_model){
        .dense_bytes = sizes->dense_bytes,
        .dense_token_bytes = sizes->dense_bytes - embed_bytes + embed_bytes / c->vocab,
        .kv_bytes = sizes->kv_bytes,
        .attention_scratch_bytes = sizes->attention_scratch_bytes,
        .expert_scratch_bytes = sizes->expert_scratch_bytes,
        .record_bytes = layout.record_bytes,
        .layers = sparse,
        .experts = c->experts,
        .topk = c->topk,
        .attention_flop = attention_flop(c, sizes->context),
        /* int8 with a scale per group of 64 out, two bytes a column back (docs/wire.md). */
        .row_out_bytes = c->hidden + c->hidden / 16 + FRAME_BYTES,
        .row_back_bytes = 2 * c->hidden + FRAME_BYTES,
    };
}

/* What is still to be written beside what is here already. */
static rt_status add_disk(app_plan *plan, const app_model *model, rt_err *err)
{
    uint64_t here = model->shard_bytes, source = model->source_bytes, target = model->disk_bytes;
    uint64_t download = source > here ? source - here : 0;
    uint64_t margin = source / MARGIN_DIVISOR, grows = target > source ? target - source : 0;

    plan->disk_free_bytes = plan->spec.disk_free_bytes;
    if (!plan->spec.disk_given) RT_TRY(md_disk_free(model->dir, &plan->disk_free_bytes, err));
    if (model->state == APP_MODEL_CONTAINER) return RT_OK;
    plan->disk_needed_bytes = download + target + MD_DISK_RESERVE_BYTES;
    plan->disk_consume_bytes = download + grows + margin + MD_DISK_RESERVE_BYTES;
    if (plan->disk_consume_bytes > plan->disk_needed_bytes)
        plan->disk_consume_bytes = plan->disk_needed_bytes;
    return RT_OK;
}

/* ---- rates ---- */

/* 0 for a disk that has nothing to read yet. */
static rt_status measure_disk(const app_model *model, uint64_t record_bytes, double *out,
                              rt_err *err)
{
    app_disk_rate rate = {0};

    if (model->state == APP_MODEL_CONTAINER)
        RT_TRY(app_measure_container(model->container, &rate, err));
    else
        RT_TRY(app_measure_largest_file(model->dir, record_bytes, &rate, err));
    *out = rate.bytes_s;
    return RT_OK;
}

static rt_status fill_machine(app_plan *plan, const app_model *model, rt_err *err)
{
    const app_plan_spec *spec = &plan->spec;
    pl_machine *m = &plan->machine;

    *m = (pl_machine){.ram_bytes = plan->sizes.limit_bytes,
                      .nodes = spec->nodes,
                      .sliced = spec->session.slices,
                      .ram_rate = spec->read_rate,
                      .disk_rate = spec->disk_rate,
                      .flop_rate = spec->flop_rate,
                      .link_rate = spec->link_rate,
                      .link_latency_s = LINK_LATENCY_S};
    if (m->ram_rate <= 0) {
        RT_TRY(app_measure_ram(plan->sizes.threads, &m->ram_rate, err));
        plan->read_source = m->ram_rate > 0 ? APP_MEASURED : APP_ASSUMED;
        if (m->ram_rate <= 0) m->ram_rate = READ_RATE_ASSUMED;
    }
    if (m->flop_rate <= 0) {
        RT_TRY(app_measure_attention(md_container_config(model->container), plan->sizes.threads,
                                     &m->flop_rate, err));
        plan->flop_source = m->flop_rate > 0 ? APP_MEASURED : APP_ASSUMED;
        if (m->flop_rate <= 0) m->flop_rate = FLOP_RATE_ASSUMED;
    }
    if (m->disk_rate <= 0) {
        RT_TRY(measure_disk(model, plan->model.record_bytes, &m->disk_rate, err));
        plan->disk_source = m->disk_rate > 0 ? APP_MEASURED : APP_ASSUMED;
        if (m->disk_rate <= 0) m->disk_rate = DISK_RATE_ASSUMED;
    }
    if (m->link_rate <= 0) {
        m->link_rate = LINK_RATE_ASSUMED;
        plan->link_source = APP_ASSUMED;
    }
    return RT_OK;
}

/* ---- heat ---- */

static rt_status curve_of(const pl_heat *heat, pl_curve *out)
{
    *out = (pl_curve){.count = PL_CURVE_POINTS_MAX};
    for (uint32_t i = 1; i < out->count; i++) {
        out->fraction[i] = (double)i / (out->count - 1);
        RT_TRY(pl_heat_coverage(heat, PL_HEAT_ALL, out->fraction[i], &out->share[i]));
        /* Sums in another order may fall by a rounding. */
        if (out->share[i] < out->share[i - 1]) out->share[i] = out->share[i - 1];
        if (out->share[i] > 1) out->share[i] = 1;
    }
    out->share[out->count - 1] = 1;
    return RT_OK;
}

/* A file that cannot be used is no reason to know nothing: a run goes on without it as well. */
static rt_status read_heat(app_plan *plan, const md_container *container, pl_curve *curve,
                           rt_err *err)
{
    pl_heat *heat = NULL;
    char *path = NULL;
    bool found = false;
    rt_status status;

    RT_TRY(app_heat_path(container, plan->spec.heat, &path, err));
    if (path == NULL) return RT_OK;
    status = app_heat_load(path, container, &heat, &found, &plan->heat_error);
    free(path);
    if (status == RT_ENOMEM) return rt_fail(err, status, "%s", plan->heat_error.text);
    if (status != RT_OK) return RT_OK;
    if (found) {
        plan->heat_confidence = pl_heat_confidence(heat);
        plan->heat_tokens = pl_heat_tokens(heat);
    }
    if (plan->heat_confidence >= CONFIDENCE_LEAST) {
        status = curve_of(heat, curve);
        plan->heat_source = APP_HEAT_FILE;
    }
    pl_heat_free(heat);
    return status == RT_OK ? RT_OK : rt_fail(err, status, "heat curve");
}

static rt_status choose_curve(app_plan *plan, const app_model *model, pl_curve *out, rt_err *err)
{
    bool glm = strcmp(md_container_config(model->container)->model_type, "glm_moe_dsa") == 0;

    plan->heat_source = glm ? APP_HEAT_GLM52 : APP_HEAT_FLAT;
    *out = glm ? pl_curve_glm52() : pl_curve_flat();
    if (model->state != APP_MODEL_CONTAINER) return RT_OK;
    return read_heat(plan, model->container, out, err);
}

/* ---- the way out of too little RAM ---- */

static rt_status try_dense_q4(app_plan *plan, const app_model *model, rt_team *team,
                              const pl_curve *curve, rt_err *err)
{
    const app_plan_spec *spec = &plan->spec;
    const md_config *config = md_container_config(model->container);
    const md_container_info *info = md_container_get_info(model->container);
    app_plan other = {.spec = *spec};
    app_model_options options = spec->session;
    md_container_info smaller;
    md_container *container = NULL;
    rt_status status;

    options.context = plan->sizes.context;

    if (plan->plan.fits || model->state == APP_MODEL_CONTAINER || model->foreign ||
        info->dense_format == KN_Q4)
        return RT_OK;
    md_container_info_init(&smaller, config, info->expert_format, KN_Q4);
    RT_TRY(md_container_blueprint(model->dir, config, &smaller, &container, err));
    status = app_sizes_of(container, &options, plan->sizes.limit_bytes, spec->nodes, team,
                          &other.sizes, err);
    if (status == RT_OK) {
        add_parts(&other, container);
        fill_model(container, &other.sizes, other.embed_bytes, &other.model);
        status = pl_plan_make(&other.model, &plan->machine, curve, &other.plan, err);
    }
    md_container_close(container);
    if (status == RT_OK) plan->dense_q4_needed_bytes = other.plan.needed_bytes;
    return status;
}

rt_status app_plan_make(const app_model *model, const app_plan_spec *spec, rt_team *team,
                        app_plan *out, rt_err *err)
{
    app_plan plan = {.spec = *spec};
    pl_curve curve;

    RT_ASSERT(model->container != NULL);
    RT_TRY(app_sizes_of(model->container, &spec->session, app_ram_limit(&spec->session, 1),
                        spec->nodes, team, &plan.sizes, err));
    add_parts(&plan, model->container);
    fill_model(model->container, &plan.sizes, plan.embed_bytes, &plan.model);
    RT_TRY(add_disk(&plan, model, err));
    RT_TRY(fill_machine(&plan, model, err));
    RT_TRY(choose_curve(&plan, model, &curve, err));
    plan.model.heat_confidence = plan.heat_confidence;
    RT_TRY(pl_plan_make(&plan.model, &plan.machine, &curve, &plan.plan, err));
    RT_TRY(try_dense_q4(&plan, model, team, &curve, err));
    *out = plan;
    return RT_OK;
}

const char *app_speed_format(double tok_s, char *text, size_t text_bytes)
{
    int digits = tok_s >= 10 ? 0 : tok_s >= 1 ? 1 : tok_s >= 0.1 ? 2 : 3;

    snprintf(text, text_bytes, "%.*f", digits, tok_s);
    return text;
}

/* ---- advice ---- */

static void say(app_advice *advice, const char *fmt, ...) RT_PRINTF(2, 3);

static void say(app_advice *advice, const char *fmt, ...)
{
    va_list args;

    if (advice->count == APP_ADVICE_LINES) return;
    va_start(args, fmt);
    vsnprintf(advice->line[advice->count++], APP_ADVICE_BYTES, fmt, args);
    va_end(args);
}

typedef char size_text[24];

static const char *size(uint64_t bytes, size_text text)
{
    return rt_bytes_format(bytes, text, sizeof(size_text));
}

static void advise_too_little(const app_plan *plan, const app_model *model, app_advice *out)
{
    const pl_plan *p = &plan->plan;
    uint64_t head =
        plan->model.dense_bytes + plan->model.kv_bytes + plan->model.attention_scratch_bytes;
    bool several = plan->spec.nodes > 1, attends = p->needed_bytes == head || !several;
    uint32_t context = plan->sizes.context;
    size_text needed, missing, all, kv;

    say(out, "Too little RAM: %s is needed%s, %s more than there is.%s",
        size(p->needed_bytes, needed),
        !several  ? ""
        : attends ? " on the attention node"
                  : " on an expert node",
        size(p->missing_bytes, missing),
        attends ? " The dense weights lie in one process whole: more nodes do not make this less."
                : "");
    if (context > 1024)
        say(out, "A context of 1024 tokens (--ctx-size 1024) saves %s.",
            size(plan->sizes.kv_bytes / context * (context - 1024), kv));
    if (plan->dense_q4_needed_bytes > 0)
        say(out,
            "Converted with --dense q4 it needs %s%s, at a price in accuracy "
            "(docs/numerics.md).",
            size(plan->dense_q4_needed_bytes, needed),
            plan->dense_q4_needed_bytes <= plan->machine.ram_bytes ? ", which fits"
                                                                   : ", still too much");
    if (!several && model->state == APP_MODEL_CONTAINER)
        say(out, "%s holds every expert as well.", size(p->all_bytes, all));
    else if (!several)
        say(out, "With every expert in RAM a process alone needs %s.", size(p->all_bytes, all));
}

static void advise_disk_tier(const app_plan *plan, app_advice *out)
{
    const pl_plan *p = &plan->plan;
    size_text token, all, each;

    say(out,
        "%llu of %llu experts do not fit in RAM and are read from disk when needed, %s a token: "
        "put "
        "the container on the fastest NVMe disk; more RAM helps most.",
        (unsigned long long)(p->records - p->records_in_ram), (unsigned long long)p->records,
        size((uint64_t)p->token_bytes[PL_TERM_DISK], token));
    if (p->nodes_for_all > 1)
        say(out, "All experts in RAM: %u nodes of %s (mpirun -n %u), or %s in one.",
            p->nodes_for_all, size(plan->machine.ram_bytes, each), p->nodes_for_all,
            size(plan->spec.nodes == 1
                     ? p->all_bytes
                     : plan->model.dense_bytes + plan->model.kv_bytes +
                           plan->model.attention_scratch_bytes + plan->model.expert_scratch_bytes +
                           p->records * plan->model.record_bytes,
                 all));
}

static void advise_storage(const app_plan *plan, const app_model *model, app_advice *out)
{
    uint64_t free_bytes = plan->disk_free_bytes;
    const char *what =
        model->state == APP_MODEL_CONFIG ? "Download and conversion take" : "The conversion takes";
    size_text needed, consumed, left;

    if (model->state == APP_MODEL_CONTAINER && free_bytes < APP_HEAT_ROOM)
        say(out, "The disk is full (%s free): the heat of experts cannot be kept beside the model.",
            size(free_bytes, left));
    if (plan->disk_needed_bytes == 0) return;
    if (model->foreign) {
        say(out, "Import takes %s of disk, %s is free%s", size(plan->disk_needed_bytes, needed),
            size(free_bytes, left),
            free_bytes >= plan->disk_needed_bytes ? "." : ": use a larger disk.");
        return;
    }
    size(plan->disk_needed_bytes, needed);
    size(plan->disk_consume_bytes, consumed);
    size(free_bytes, left);
    if (free_bytes >= plan->disk_needed_bytes)
        say(out, "%s %s of disk; %s is free. With --consume about %s.", what, needed, left,
            consumed);
    else if (free_bytes >= plan->disk_consume_bytes)
        say(out, "%s %s of disk, %s is free: convert with --consume, which takes about %s.", what,
            needed, left, consumed);
    else
        say(out, "%s %s of disk, with --consume about %s; only %s is free: use a larger disk.",
            what, needed, consumed, left);
}

void app_plan_advise(const app_plan *plan, const app_model *model, app_advice *out)
{
    const pl_plan *p = &plan->plan;

    out->count = 0;
    if (model->state == APP_MODEL_CONTAINER && !app_model_is_runnable(model)) {
        char next[APP_NEXT_BYTES];

        say(out, "This copy is not whole (%llu of %llu records%s): %s.",
            (unsigned long long)model->records_held, (unsigned long long)model->records,
            model->lacks_tokenizer ? ", no tokenizer" : "",
            app_model_next(model, next, sizeof(next)));
    }
    if (!p->fits)
        advise_too_little(plan, model, out);
    else if (p->records_in_ram < p->records)
        advise_disk_tier(plan, out);
    else
        say(out, "Everything fits in RAM.");
    if (p->fits && p->limit == PL_TERM_DENSE)
        say(out, "The attention node's memory is the limit: more nodes for experts hardly help.");
    if (p->fits && p->limit == PL_TERM_NETWORK)
        say(out, "The network is the limit: fewer nodes, or a faster link (--link-rate), help.");
    advise_storage(plan, model, out);
    if (model->state == APP_MODEL_CHECKPOINT && !app_model_is_convertible(model)) {
        char next[APP_NEXT_BYTES];

        say(out, "The checkpoint is not usable yet: %s.",
            app_model_next(model, next, sizeof(next)));
    }
    if (plan->heat_error.status != RT_OK)
        say(out, "The heat file is not used: %s", plan->heat_error.text);
}
