/* plan.h - what a model needs and how fast it would be on a machine, real or only described.
 *
 * Sizes come from the functions that loading uses (app/sizing.h, the manifest), so a plan and a run of
 * the same options book the same bytes. Rates that are not given are measured here for half a second
 * each; what cannot be measured (a disk with nothing on it yet, a network, memory when there is hardly
 * any) is assumed and said so.
 *
 * Threads: main. */
#ifndef APP_PLAN_H
#define APP_PLAN_H

#include "app/measure.h"
#include "app/model_look.h"
#include "app/sizing.h"
#include "placement/planner.h"

/* Rates in bytes/s, attention's in flop/s; 0: measure, or assume what cannot be measured. */
typedef struct {
    app_model_options session; /* as for a run; ram_bytes 0: what is available */
    uint32_t nodes;            /* 1: a process alone */
    bool disk_given;           /* disk_free_bytes; else what is free where the model is */
    uint64_t disk_free_bytes;
    double read_rate, disk_rate, flop_rate, link_rate;
    const char *heat; /* as app_heat_path takes it */
} app_plan_spec;

typedef enum { APP_GIVEN, APP_MEASURED, APP_ASSUMED } app_rate_source;
typedef enum { APP_HEAT_FILE, APP_HEAT_GLM52, APP_HEAT_FLAT } app_heat_source;

typedef struct {
    app_plan_spec spec;
    app_sizes sizes;
    pl_model model;
    pl_machine machine;
    pl_plan plan;
    app_rate_source read_source, disk_source, flop_source, link_source;
    app_heat_source heat_source;
    double heat_confidence, heat_tokens; /* of the model's file; 0: there is none */
    rt_err heat_error; /* why that file was not used; its status RT_OK: it was fine */

    uint64_t experts_bytes, mtp_bytes, dense_bytes, embed_bytes; /* of the container's records */
    uint64_t disk_free_bytes;
    /* What a download and a conversion still take, and with --consume (estimated: `convert --dry-run`
     * knows once the shards are here). 0: a container. */
    uint64_t disk_needed_bytes, disk_consume_bytes;
    /* RAM that a conversion with --dense q4 would need instead; 0 when that is no way out. */
    uint64_t dense_q4_needed_bytes;
} app_plan;

/* model: a CONFIG, a CHECKPOINT or a CONTAINER (asserted).
 *   Errors  those of its parts; of the planner's RT_EINVAL */
RT_MUST_CHECK rt_status app_plan_make(const app_model *model, const app_plan_spec *spec,
                                      rt_team *team, app_plan *out, rt_err *err);

const char *app_rate_source_name(app_rate_source source); /* "given", "measured", "assumed" */
const char *app_heat_source_name(app_heat_source source); /* "file", "glm-5.2", "flat" */

/* Tokens/s with the digits that count, without an exponent. Returns text. */
const char *app_speed_format(double tok_s, char *text, size_t text_bytes);

enum { APP_ADVICE_LINES = 8, APP_ADVICE_BYTES = 640 };

typedef struct {
    uint32_t count;
    char line[APP_ADVICE_LINES][APP_ADVICE_BYTES];
} app_advice;

/* What follows from a plan, most important first. */
void app_plan_advise(const app_plan *plan, const app_model *model, app_advice *out);

#endif
