/* verifier.c - a probe on the engine compares sets and hidden states as they pass by; logits are
 * compared after each step. */
#include "app/verifier.h"

#include "base/check.h"
#include "base/stop.h"
#include "kernels/topk.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Below this distance between the last chosen and the first not chosen, correct engines may differ. */
static const double gap_exempt = 1e-5;

typedef struct {
    int32_t *router_ids; /* owned [rows][topk], NULL: not in the reference */
    int32_t *index_set;  /* owned [rows][index_topk], -1 padded */
    uint32_t topk, index_topk;
    float *dbg[5]; /* owned, of the dbg prompt: in the order of dbg_names */
    uint32_t dbg_rows[5];
} layer_reference;

static const struct {
    an_probe_kind kind;
    const char *name;
} dbg_names[5] = {
    {AN_PROBE_Q_RESID, "q_resid"}, {AN_PROBE_KV_LATENT, "kv_latent"},
    {AN_PROBE_ATTN, "attn"},       {AN_PROBE_MLP, "mlp"},
    {AN_PROBE_OUT, "out"},
};

typedef struct {
    const app_reference *reference;
    const md_config *config;
    app_verify_result *result;
    double tolerance;
    uint32_t prompt;
    uint32_t rows;
    layer_reference *layers;   /* owned [layers] */
    bool *exempt;              /* owned [rows] */
    float *embed, *final_norm; /* owned, of the dbg prompt */
    uint32_t embed_rows, final_rows;
    uint32_t deviation_order; /* of result->first_deviation */
} verifier;

static void free_prompt(verifier *v)
{
    for (uint32_t l = 0; v->layers != NULL && l < v->config->layers; l++) {
        free(v->layers[l].router_ids);
        free(v->layers[l].index_set);
        for (int k = 0; k < 5; k++)
            free(v->layers[l].dbg[k]);
    }
    free(v->layers);
    free(v->exempt);
    free(v->embed);
    free(v->final_norm);
    v->layers = NULL;
    v->exempt = NULL;
    v->embed = v->final_norm = NULL;
}

static rt_status get(const verifier *v, uint32_t layer, const char *what, md_st_dtype dtype,
                     void **out, uint32_t *columns, rt_err *err)
{
    char name[64];
    uint32_t rows = 0;

    snprintf(name, sizeof(name), "p%u.layer%u.%s", v->prompt, layer, what);
    RT_TRY(app_reference_tensor(v->reference, name, dtype, out, &rows, columns, err));
    if (*out != NULL && rows != v->rows) {
        free(*out);
        *out = NULL;
        return rt_fail(err, RT_EFORMAT, "reference.safetensors: %s has %u rows, the prompt %u",
                       name, rows, v->rows);
    }
    return RT_OK;
}

/* Marks the rows whose reference gap in this layer is too small to demand equality. */
static rt_status mark_exempt(verifier *v, uint32_t layer, const char *what, rt_err *err)
{
    void *data;
    uint32_t columns;

    RT_TRY(get(v, layer, what, MD_ST_F32, &data, &columns, err));
    if (data != NULL && columns != 1) {
        free(data);
        return rt_fail(err, RT_EFORMAT,
                       "reference.safetensors: p%u.layer%u.%s: expected one column, found %u",
                       v->prompt, layer, what, columns);
    }
    for (uint32_t r = 0; data != NULL && r < v->rows; r++)
        if ((double)((const float *)data)[r] < gap_exempt) v->exempt[r] = true;
    free(data);
    return RT_OK;
}

/* A hidden state's tensor, of exactly the columns that the engine's rows have. */
static rt_status get_hidden(const verifier *v, const char *name, uint32_t columns, float **out,
                            uint32_t *rows, rt_err *err)
{
    uint32_t found = 0;
    void *data;

    RT_TRY(app_reference_tensor(v->reference, name, MD_ST_F32, &data, rows, &found, err));
    if (data != NULL && found != columns) {
        free(data);
        return rt_fail(err, RT_EFORMAT, "reference.safetensors: %s: expected %u columns, found %u",
                       name, columns, found);
    }
    *out = data;
    return RT_OK;
}

static uint32_t dbg_columns(const md_config *config, int k)
{
    if (dbg_names[k].kind == AN_PROBE_Q_RESID) return config->q_rank;
    if (dbg_names[k].kind == AN_PROBE_KV_LATENT) return config->kv_rank;
    return config->hidden;
}

static rt_status load_layer(verifier *v, uint32_t l, rt_err *err)
{
    layer_reference *layer = &v->layers[l];
    char name[64];
    void *data;

    RT_TRY(get(v, l, "router_idx", MD_ST_I32, &data, &layer->topk, err));
    layer->router_ids = data;
    RT_TRY(get(v, l, "topk", MD_ST_I32, &data, &layer->index_topk, err));
    layer->index_set = data;
    if ((layer->router_ids != NULL && layer->topk != v->config->topk) ||
        (layer->index_set != NULL && layer->index_topk != v->config->index_topk))
        return rt_fail(err, RT_EFORMAT,
                       "reference.safetensors: layer %u of prompt %u does not fit the model", l,
                       v->prompt);
    RT_TRY(mark_exempt(v, l, "router_gap", err));
    RT_TRY(mark_exempt(v, l, "index_gap", err));
    for (int k = 0; k < 5 && (int32_t)v->prompt == v->reference->dbg_prompt; k++) {
        snprintf(name, sizeof(name), "dbg.layer%u.%s", l, dbg_names[k].name);
        RT_TRY(get_hidden(v, name, dbg_columns(v->config, k), &layer->dbg[k], &layer->dbg_rows[k],
                          err));
    }
    return RT_OK;
}

static rt_status load_prompt(verifier *v, uint32_t prompt, rt_err *err)
{
    v->prompt = prompt;
    v->rows = v->reference->prompts[prompt].rows;
    v->layers = calloc(v->config->layers, sizeof(*v->layers));
    v->exempt = calloc(v->rows, sizeof(*v->exempt));
    if (v->layers == NULL || v->exempt == NULL)
        return rt_fail(err, RT_ENOMEM, "reference of a prompt");
    for (uint32_t l = 0; l < v->config->layers; l++)
        RT_TRY(load_layer(v, l, err));
    if ((int32_t)prompt != v->reference->dbg_prompt) return RT_OK;
    RT_TRY(get_hidden(v, "dbg.embed", v->config->hidden, &v->embed, &v->embed_rows, err));
    RT_TRY(get_hidden(v, "dbg.final_norm", v->config->hidden, &v->final_norm, &v->final_rows, err));
    return RT_OK;
}

/* |a - b|; what is not finite is the largest difference there is, since neither a comparison nor JSON
 * can carry a NaN. */
static double distance(float a, float b)
{
    double diff = fabs((double)a - (double)b);

    return diff < DBL_MAX ? diff : DBL_MAX;
}

/* Compares rows of a hidden state with a dbg tensor [dbg_rows][columns]. order: the place of the tensor
 * in the computation, so that the earliest deviation is the one that is named. */
static void compare_hidden(verifier *v, const an_probe_event *event, const float *expected,
                           uint32_t dbg_rows, const char *name, uint32_t order)
{
    const float *found = event->data;

    if (expected == NULL) return;
    for (uint32_t r = 0; r < event->rows && event->position + r < dbg_rows; r++) {
        const float *e = expected + (size_t)(event->position + r) * event->count;
        double worst = 0;

        for (uint32_t c = 0; c < event->count; c++) {
            double diff = distance(e[c], found[(size_t)r * event->count + c]);

            if (diff > worst) worst = diff;
        }
        if (worst > v->result->max_hidden_diff) v->result->max_hidden_diff = worst;
        if (worst > v->tolerance && order < v->deviation_order) {
            v->deviation_order = order;
            if (order == 0 || order == (v->config->layers + 1) * 8)
                snprintf(v->result->first_deviation, sizeof(v->result->first_deviation),
                         "%s: %.3g at row %u", name, worst, event->position + r);
            else
                snprintf(v->result->first_deviation, sizeof(v->result->first_deviation),
                         "layer %u %s: %.3g at row %u", event->layer, name, worst,
                         event->position + r);
        }
    }
}

static void count_set(app_count *count, bool exempt, bool equal)
{
    if (exempt) {
        count->exempt++;
        return;
    }
    count->total++;
    if (equal) count->equal++;
}

static void compare_router(verifier *v, const an_probe_event *event)
{
    const layer_reference *layer = &v->layers[event->layer];
    const uint32_t *found = event->data;

    if (layer->router_ids == NULL) return;
    for (uint32_t r = 0; r < event->rows; r++) {
        uint32_t row = event->position + r;
        bool equal = memcmp(layer->router_ids + (size_t)row * layer->topk,
                            found + (size_t)r * layer->topk, layer->topk * sizeof(uint32_t)) == 0;

        count_set(&v->result->router_sets, v->exempt[row], equal);
    }
}

static void compare_index(verifier *v, const an_probe_event *event)
{
    const layer_reference *layer = &v->layers[event->layer];
    bool equal;

    if (layer->index_set == NULL) return;
    equal = event->count <= layer->index_topk &&
            memcmp(layer->index_set + (size_t)event->position * layer->index_topk, event->data,
                   event->count * sizeof(uint32_t)) == 0 &&
            (event->count == layer->index_topk ||
             layer->index_set[(size_t)event->position * layer->index_topk + event->count] == -1);
    count_set(&v->result->index_sets, v->exempt[event->position], equal);
}

static void on_probe(void *context, const an_probe_event *event)
{
    verifier *v = context;
    const uint32_t last = (v->config->layers + 1) * 8;

    switch (event->kind) {
    case AN_PROBE_EMBED:
        compare_hidden(v, event, v->embed, v->embed_rows, "embed", 0);
        return;
    case AN_PROBE_FINAL_NORM:
        compare_hidden(v, event, v->final_norm, v->final_rows, "final_norm", last);
        return;
    case AN_PROBE_ROUTER_IDS:
        compare_router(v, event);
        return;
    case AN_PROBE_INDEX_SET:
        compare_index(v, event);
        return;
    case AN_PROBE_ROUTER_WEIGHTS:
        return; /* their effect shows in mlp */
    default:
        break;
    }
    for (uint32_t k = 0; k < 5; k++)
        if (dbg_names[k].kind == event->kind && event->layer < v->config->layers)
            compare_hidden(v, event, v->layers[event->layer].dbg[k],
                           v->layers[event->layer].dbg_rows[k], dbg_names[k].name,
                           (event->layer + 1) * 8 + k);
}

/* Compares the logits of rows first.. of the prompt. */
static void compare_logits(verifier *v, const float *logits, uint32_t first, uint32_t rows)
{
    const app_reference_prompt *prompt = &v->reference->prompts[v->prompt];
    uint32_t vocab = v->reference->vocab;
    app_verify_result *result = v->result;

    for (uint32_t r = 0; r < rows; r++) {
        uint32_t row = first + r;
        const float *found = logits + (size_t)r * vocab;
        uint32_t best = kn_argmax(found, vocab);

        if (row + 1 >= prompt->prompt_len && row + 1 - prompt->prompt_len < prompt->greedy_count)
            count_set(&result->greedy, v->exempt[row],
                      best == prompt->greedy[row + 1 - prompt->prompt_len]);
        if (v->exempt[row]) result->exempt_rows++;
        if (row < prompt->logits_first_row) continue;
        const float *expected = prompt->logits + (size_t)(row - prompt->logits_first_row) * vocab;

        count_set(&result->positions, v->exempt[row], best == kn_argmax(expected, vocab));
        for (uint32_t c = 0; c < vocab && !v->exempt[row]; c++) {
            double diff = distance(found[c], expected[c]);

            if (diff <= result->max_logit_diff) continue;
            result->max_logit_diff = diff;
            result->worst_prompt = v->prompt;
            result->worst_row = row;
        }
    }
}

static rt_status step(verifier *v, an_engine *engine, an_seq *seq, float *logits, uint32_t first,
                      uint32_t count, rt_err *err)
{
    an_step_item item = {
        .seq = seq,
        .tokens = v->reference->prompts[v->prompt].ids + first,
        .count = count,
        .logits_from = 0,
        .logits = logits,
    };

    RT_TRY(an_engine_step(engine, &item, 1, err));
    compare_logits(v, logits, first, count);
    return RT_OK;
}

static rt_status verify_prompt(verifier *v, an_engine *engine, uint32_t prompt, uint32_t chunk,
                               float *logits, rt_err *err)
{
    const app_reference_prompt *p = &v->reference->prompts[prompt];
    an_seq *seq = NULL;
    rt_status status = load_prompt(v, prompt, err);

    if (status == RT_OK) status = an_seq_open(engine, &seq, err);
    for (uint32_t row = 0; status == RT_OK && row < p->rows;) {
        uint32_t left = row < p->prompt_len ? p->prompt_len - row : 1;
        uint32_t count = left < chunk ? left : chunk;

        status = step(v, engine, seq, logits, row, count, err);
        row += count;
    }
    an_seq_close(seq);
    free_prompt(v);
    if (status != RT_OK) rt_err_prefix(err, "prompt %u: ", prompt);
    return status;
}

rt_status app_verify(an_engine *engine, const md_config *config, const app_reference *reference,
                     uint32_t chunk, double tolerance, app_verify_result *out, rt_err *err)
{
    app_verify_result result = {0};
    verifier v = {.reference = reference,
                  .config = config,
                  .result = &result,
                  .tolerance = tolerance,
                  .deviation_order = UINT32_MAX};
    rt_status status = RT_OK;
    float *logits;

    RT_ASSERT(chunk > 0);
    if (reference->vocab != config->vocab)
        return rt_fail(err, RT_EFORMAT, "reference has a vocabulary of %u, the model %u",
                       reference->vocab, config->vocab);
    logits = malloc((size_t)chunk * config->vocab * sizeof(*logits));
    if (logits == NULL) return rt_fail(err, RT_ENOMEM, "logits of %u rows", chunk);
    an_engine_set_probe(engine, on_probe, &v);
    for (uint32_t p = 0; status == RT_OK && p < reference->prompt_count; p++)
        status = verify_prompt(&v, engine, p, chunk, logits, err);
    an_engine_set_probe(engine, NULL, NULL);
    free(logits);
    if (status == RT_OK) *out = result;
    return status;
}
