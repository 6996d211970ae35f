/* verb_heat.c - which experts a model's user needs most: shown, imported, forgotten. */
#include "app/heat_file.h"
#include "app/model_advice.h"
#include "app/output.h"
#include "app/parse.h"
#include "app/verbs.h"
#include "base/options.h"
#include "placement/heat_image.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *heat;
    uint64_t top;
    bool json;
} heat_options;

enum { TOP_DEFAULT = 10, TOP_MAX = 1 << 20 };

static const rt_opt table[] = {
    {.name = "heat",
     .kind = RT_OPT_TEXT,
     .offset = offsetof(heat_options, heat),
     .arg = "FILE",
     .doc = "the heat file; default: heat.bin in the folder MODEL"},
    {.name = "top",
     .kind = RT_OPT_UINT,
     .offset = offsetof(heat_options, top),
     .arg = "N",
     .min = 0,
     .max = TOP_MAX,
     .doc = "how many of the hottest experts are listed"},
    {.name = "json",
     .kind = RT_OPT_FLAG,
     .offset = offsetof(heat_options, json),
     .doc = "print one JSON object"},
    {.name = NULL},
};

const rt_opt_spec app_spec_heat = {
    .verb = "heat",
    .args_doc = "[import|reset] MODEL [USAGE_FILE]",
    .doc =
        "Prints how often each expert of the container in the folder MODEL was chosen lately: the "
        "hottest, the skew of each layer, and what share of the choices the hottest 25, 50 and 75 "
        "% take. `run` keeps this beside the model.\v"
        "`import` adds the counts of a usage text (lines 'layer expert count'), `reset` forgets "
        "everything. Skew is the Gini coefficient: 0 when all experts are chosen alike. Confidence "
        "says how far the counts are more than chance, and how much of a hot set is pinned by "
        "them.",
    .table = table,
    .positional_min = 1,
    .positional_max = 3,
};

/* ---- figures ---- */

typedef struct {
    uint32_t layer;
    double selections, skew;
    pl_heat_cover cover;
} layer_figures;

typedef struct {
    pl_heat_cover cover;
    double total, tokens, confidence;
    layer_figures *layers; /* [layer_count], owned */
    uint32_t layer_count;
    pl_heat_entry *top; /* [top_count], owned */
    uint32_t top_count;
} figures;

static void figures_fini(figures *f)
{
    free(f->layers);
    free(f->top);
}

/* f is zeroed; figures_fini also after a failure. */
static rt_status figures_of(const pl_heat *heat, uint32_t top, figures *f)
{
    f->total = pl_heat_total(heat);
    f->tokens = pl_heat_tokens(heat);
    f->confidence = pl_heat_confidence(heat);
    f->layers = calloc(pl_heat_sparse_layers(heat) + 1, sizeof(*f->layers));
    f->top = calloc((size_t)top + 1, sizeof(*f->top));
    if (f->layers == NULL || f->top == NULL) return RT_ENOMEM;
    RT_TRY(pl_heat_cover_of(heat, PL_HEAT_ALL, &f->cover));
    RT_TRY(pl_heat_top(heat, f->top, top, &f->top_count));
    while (f->top_count > 0 && f->top[f->top_count - 1].heat <= 0)
        f->top_count--; /* what was never chosen is not hot */
    for (uint32_t layer = 0; layer < pl_heat_layers(heat); layer++) {
        layer_figures *out = &f->layers[f->layer_count];

        if (!pl_heat_sparse(heat, layer)) continue;
        f->layer_count++;
        out->layer = layer;
        out->selections = pl_heat_layer_total(heat, layer);
        RT_TRY(pl_heat_cover_of(heat, layer, &out->cover));
        RT_TRY(pl_heat_skew(heat, layer, &out->skew));
    }
    return RT_OK;
}

/* ---- text ---- */

static double percent_of_layer(const figures *f, const pl_heat_entry *entry)
{
    for (uint32_t i = 0; i < f->layer_count; i++)
        if (f->layers[i].layer == entry->layer)
            return 100 * entry->heat / f->layers[i].selections; /* > 0: the entry is */
    return 0;
}

static void print_text(const figures *f, const char *path)
{
    printf("heat        %s\n", path);
    printf("seen        %.0f tokens; %.0f selections remembered, half-life %d tokens\n", f->tokens,
           f->total, PL_HEAT_HALF_LIFE_TOKENS);
    printf("confidence  %.0f %%\n", 100 * f->confidence);
    printf("coverage    hottest 25 %% of the experts %.1f %%, 50 %% %.1f %%, 75 %% %.1f %%\n",
           100 * f->cover.quarter, 100 * f->cover.half, 100 * f->cover.three_quarters);
    if (f->top_count > 0)
        printf("\n%5s  %6s  %12s  %s\n", "layer", "expert", "selections", "of layer");
    for (uint32_t i = 0; i < f->top_count; i++)
        printf("%5u  %6u  %12.1f  %6.2f %%\n", f->top[i].layer, f->top[i].expert, f->top[i].heat,
               percent_of_layer(f, &f->top[i]));
    printf("\n%5s  %12s  %5s  %6s  %6s  %6s\n", "layer", "selections", "skew", "25 %", "50 %",
           "75 %");
    for (uint32_t i = 0; i < f->layer_count; i++) {
        const layer_figures *l = &f->layers[i];

        printf("%5u  %12.1f  %5.2f  %6.1f  %6.1f  %6.1f\n", l->layer, l->selections, l->skew,
               100 * l->cover.quarter, 100 * l->cover.half, 100 * l->cover.three_quarters);
    }
}

/* ---- json ---- */

static json_t *cover_json(const pl_heat_cover *cover)
{
    return json_pack("{s:f, s:f, s:f}", "25", cover->quarter, "50", cover->half, "75",
                     cover->three_quarters);
}

static bool print_json(const figures *f, const md_container *container, const char *path,
                       bool found)
{
    json_t *layers = json_array(), *top = json_array(), *root;
    char id[65];

    for (uint32_t i = 0; i < f->layer_count; i++)
        (void)json_array_append_new(
            layers, json_pack("{s:i, s:f, s:f, s:o}", "layer", (int)f->layers[i].layer,
                              "selections", f->layers[i].selections, "skew", f->layers[i].skew,
                              "coverage", cover_json(&f->layers[i].cover)));
    for (uint32_t i = 0; i < f->top_count; i++)
        (void)json_array_append_new(top, json_pack("{s:i, s:i, s:f}", "layer", (int)f->top[i].layer,
                                                   "expert", (int)f->top[i].expert, "selections",
                                                   f->top[i].heat));
    md_model_id_format(md_container_get_info(container)->model_id, id);
    root =
        json_pack("{s:s, s:o, s:b, s:f, s:f, s:i, s:f, s:o, s:o, s:o}", "model_id", id, "file",
                  app_json_text(path), "found", found, "tokens", f->tokens, "selections", f->total,
                  "half_life_tokens", PL_HEAT_HALF_LIFE_TOKENS, "confidence", f->confidence,
                  "coverage", cover_json(&f->cover), "layers", layers, "top", top);
    return app_json_print("heat", root);
}

/* ---- what it does ---- */

static rt_status show(const md_container *container, const heat_options *options, const char *path,
                      rt_err *err)
{
    pl_heat *heat = NULL;
    figures f = {0};
    bool found = false;
    rt_status status = app_heat_load(path, container, &heat, &found, err);

    if (status == RT_OK && figures_of(heat, (uint32_t)options->top, &f) != RT_OK)
        status = rt_fail(err, RT_ENOMEM, "the figures of %s", path);
    if (status == RT_OK && options->json && !print_json(&f, container, path, found))
        status = rt_fail(err, RT_ENOMEM, "the JSON of %s", path);
    if (status == RT_OK && !options->json && found) print_text(&f, path);
    if (status == RT_OK && !found)
        fprintf(stderr, "moesaic heat: no %s yet: `moesaic run` writes it, or import one\n", path);
    figures_fini(&f);
    pl_heat_free(heat);
    return status;
}

/* JSON of an action, for scripts: what a person reads on stderr. */
static rt_status say_done(json_t *done, rt_err *err)
{
    return app_json_print("heat", done) ? RT_OK : rt_fail(err, RT_ENOMEM, "the JSON");
}

static rt_status import(const md_container *container, const heat_options *options,
                        const char *path, const char *usage_path, rt_err *err)
{
    pl_heat_usage usage;
    double scale;

    RT_TRY(app_heat_import(path, container, usage_path, &usage, &scale, err));
    fprintf(stderr, "moesaic heat: added %.0f selections of %llu expert%s from %s to %s\n",
            usage.selections, (unsigned long long)usage.lines, usage.lines == 1 ? "" : "s",
            usage_path, path);
    if (scale < 1)
        fprintf(
            stderr,
            "moesaic heat: counted at %.3g each, so that they are forgotten at the same rate as "
            "what this program counts\n",
            scale);
    if (!options->json) return RT_OK;
    return say_done(json_pack("{s:o, s:f, s:i, s:f}", "imported", app_json_text(path), "selections",
                              usage.selections, "experts", (int)usage.lines, "scale", scale),
                    err);
}

/* A file that --heat names may be anything: only a heat, whole or damaged, is removed. */
static rt_status check_is_heat(const char *path, rt_err *err)
{
    static const char magic[] = PL_HEAT_IMAGE_MAGIC;
    char begin[sizeof(magic) - 1];
    FILE *file = fopen(path, "rb");
    size_t got;

    if (file == NULL) return RT_OK; /* removing says why */
    got = fread(begin, 1, sizeof(begin), file);
    (void)fclose(file);
    if (got == 0 || (got == sizeof(begin) && memcmp(begin, magic, got) == 0)) return RT_OK;
    return rt_fail(err, RT_EFORMAT,
                   "%s: expected a heat file, found other bytes: not removed (if it is of no use "
                   "to you, remove it yourself)",
                   path);
}

static rt_status reset(const heat_options *options, const char *path, rt_err *err)
{
    bool existed;

    if (options->heat != NULL) RT_TRY(check_is_heat(path, err));
    RT_TRY(app_heat_reset(path, &existed, err));
    fprintf(stderr, existed ? "moesaic heat: removed %s\n" : "moesaic heat: there is no %s\n",
            path);
    if (!options->json) return RT_OK;
    return say_done(json_pack("{s:o, s:b}", "reset", app_json_text(path), "existed", (int)existed),
                    err);
}

typedef enum { DO_SHOW, DO_IMPORT, DO_RESET, DO_NOTHING } action;

static action action_of(const char *const *positional, uint32_t count)
{
    if (strcmp(positional[0], "import") == 0) return count == 3 ? DO_IMPORT : DO_NOTHING;
    if (strcmp(positional[0], "reset") == 0) return count == 2 ? DO_RESET : DO_NOTHING;
    return count == 1 ? DO_SHOW : DO_NOTHING;
}

static rt_status act(action what, const heat_options *options, const char *const *positional,
                     const md_container *container, rt_err *err)
{
    char *path = NULL;
    rt_status status = app_heat_path(container, options->heat, &path, err);

    if (status == RT_OK && path == NULL)
        status = rt_fail(err, RT_EINVAL, "--heat: expected a file, found 'none'");
    if (status == RT_OK && what == DO_SHOW) status = show(container, options, path, err);
    if (status == RT_OK && what == DO_IMPORT)
        status = import(container, options, path, positional[2], err);
    if (status == RT_OK && what == DO_RESET) status = reset(options, path, err);
    /* Where it cannot be written, it can be elsewhere. */
    if (what == DO_IMPORT && path != NULL &&
        (status == RT_ENOSPACE || (status == RT_EIO && !app_heat_is_writable(path))))
        status = rt_fail(err, status, "%s (%s, or keep the heat elsewhere: --heat FILE)", err->text,
                         status == RT_ENOSPACE ? "make room" : "become a user who may");
    free(path);
    return status;
}

static int act_on_model(action what, const heat_options *options, const char *const *positional)
{
    app_model model = {0};
    rt_err err = {0};
    int code = APP_EXIT_OK;
    rt_status status =
        app_model_look(positional[what == DO_SHOW ? 0 : 1], KN_Q4, KN_Q8, &model, &err);

    if (status == RT_OK && model.state != APP_MODEL_CONTAINER) {
        code = app_model_refuse("heat", &model, options->json);
    } else {
        if (status == RT_OK) status = act(what, options, positional, model.container, &err);
        if (status != RT_OK) code = app_failed("heat", options->json, err.text);
    }
    app_model_free(&model);
    return code;
}

int app_verb_heat(int argc, char **argv)
{
    heat_options options = {.top = TOP_DEFAULT};
    const char *positional[3];
    uint32_t positional_count;
    action what;
    int code;

    if (!app_parse(&app_spec_heat, argc, argv, &options, positional, &positional_count, &code))
        return code;
    what = action_of(positional, positional_count);
    if (what == DO_NOTHING)
        return app_usage_error("heat",
                               "expected MODEL, import MODEL USAGE_FILE or reset MODEL, found "
                               "'%s'%s (a model in a folder of that name: ./%s)",
                               positional[0], positional_count > 1 ? " and more" : " alone",
                               positional[0]);
    return act_on_model(what, &options, positional);
}
