/* heat.c - counts in units that grow: a selection adds `unit`, and a count is worth count / unit. */
#include "placement/heat.h"

#include "base/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Where the unit is brought back to 1: far from both ends of a double, so that counts keep all their
 * bits. */
static const double UNIT_MAX = 0x1p64;

static const double CONFIDENCE_FROM = 0.25, CONFIDENCE_FULL = 16; /* selections per expert */

enum { NO_LAYER = 0xffffffff };

struct pl_heat {
    uint32_t layers, experts, sparse_layers;
    uint32_t *sparse_index; /* [layers]: among the layers with experts, or NO_LAYER; owned */
    double *count;          /* [sparse layers][experts] in 1/unit selections; owned */
    double unit;            /* what one selection adds now; 1 <= unit < UNIT_MAX */
    double half_life;       /* tokens */
    double tokens;
};

static rt_status check_spec(const pl_heat_spec *spec, uint32_t *sparse_layers, rt_err *err)
{
    *sparse_layers = 0;
    if (spec->layers == 0 || spec->layers > PL_HEAT_LAYERS_MAX)
        return rt_fail(err, RT_EINVAL, "heat: expected 1 to %d layers, found %u",
                       PL_HEAT_LAYERS_MAX, spec->layers);
    if (spec->experts == 0 || spec->experts > PL_HEAT_EXPERTS_MAX)
        return rt_fail(err, RT_EINVAL, "heat: expected 1 to %d experts, found %u",
                       PL_HEAT_EXPERTS_MAX, spec->experts);
    if (!(spec->half_life_tokens >= 0) || !isfinite(spec->half_life_tokens))
        return rt_fail(err, RT_EINVAL, "heat: expected a half-life of 0 or more tokens, found %g",
                       spec->half_life_tokens);
    for (uint32_t layer = 0; layer < spec->layers; layer++)
        *sparse_layers += spec->sparse[layer];
    if (*sparse_layers == 0)
        return rt_fail(err, RT_EINVAL, "heat: none of %u layers has experts", spec->layers);
    return RT_OK;
}

rt_status pl_heat_create(const pl_heat_spec *spec, pl_heat **out, rt_err *err)
{
    uint32_t sparse_layers, next = 0;
    pl_heat *heat;

    RT_TRY(check_spec(spec, &sparse_layers, err));
    heat = calloc(1, sizeof(*heat));
    if (heat == NULL) goto fail;
    heat->layers = spec->layers;
    heat->experts = spec->experts;
    heat->sparse_layers = sparse_layers;
    heat->unit = 1;
    heat->half_life =
        spec->half_life_tokens > 0 ? spec->half_life_tokens : PL_HEAT_HALF_LIFE_TOKENS;
    heat->sparse_index = calloc(spec->layers, sizeof(*heat->sparse_index));
    heat->count = calloc((size_t)sparse_layers * spec->experts, sizeof(*heat->count));
    if (heat->sparse_index == NULL || heat->count == NULL) goto fail;
    for (uint32_t layer = 0; layer < spec->layers; layer++)
        heat->sparse_index[layer] = spec->sparse[layer] ? next++ : NO_LAYER;
    *out = heat;
    return RT_OK;
fail:
    pl_heat_free(heat);
    return rt_fail(err, RT_ENOMEM, "heat of %u layers", spec->layers);
}

void pl_heat_free(pl_heat *heat)
{
    if (heat == NULL) return;
    free(heat->sparse_index);
    free(heat->count);
    free(heat);
}

static size_t count_total(const pl_heat *heat)
{
    return (size_t)heat->sparse_layers * heat->experts;
}

void pl_heat_clear(pl_heat *heat)
{
    memset(heat->count, 0, count_total(heat) * sizeof(*heat->count));
    heat->unit = 1;
    heat->tokens = 0;
}

uint32_t pl_heat_layers(const pl_heat *heat)
{
    return heat->layers;
}

uint32_t pl_heat_experts(const pl_heat *heat)
{
    return heat->experts;
}

uint32_t pl_heat_sparse_layers(const pl_heat *heat)
{
    return heat->sparse_layers;
}

bool pl_heat_sparse(const pl_heat *heat, uint32_t layer)
{
    RT_ASSERT(layer < heat->layers);
    return heat->sparse_index[layer] != NO_LAYER;
}

bool pl_heat_same_shape(const pl_heat *a, const pl_heat *b)
{
    return a->layers == b->layers && a->experts == b->experts &&
           memcmp(a->sparse_index, b->sparse_index, a->layers * sizeof(*a->sparse_index)) == 0;
}

/* The counts of a layer with experts. */
static double *layer_counts(const pl_heat *heat, uint32_t layer)
{
    RT_ASSERT(pl_heat_sparse(heat, layer));
    return heat->count + (size_t)heat->sparse_index[layer] * heat->experts;
}

void pl_heat_add(pl_heat *heat, uint32_t layer, uint32_t expert, double selections)
{
    RT_ASSERT(expert < heat->experts && selections >= 0 && selections <= PL_HEAT_COUNT_MAX);
    layer_counts(heat, layer)[expert] += selections * heat->unit;
}

void pl_heat_add_ids(pl_heat *heat, uint32_t layer, const uint32_t *expert, uint32_t count)
{
    double *counts = layer_counts(heat, layer);

    for (uint32_t i = 0; i < count; i++) {
        RT_ASSERT(expert[i] < heat->experts);
        counts[expert[i]] += heat->unit;
    }
}

static void multiply(pl_heat *heat, double factor)
{
    for (size_t i = 0; i < count_total(heat); i++)
        heat->count[i] *= factor;
}

void pl_heat_advance(pl_heat *heat, double tokens)
{
    RT_ASSERT(tokens >= 0 && isfinite(tokens));
    heat->tokens += tokens;
    heat->unit *= exp2(tokens / heat->half_life);
    if (heat->unit < UNIT_MAX) return;
    multiply(heat, 1 / heat->unit); /* by 0 when the unit overflowed: all is forgotten */
    heat->unit = 1;
}

void pl_heat_merge(pl_heat *into, const pl_heat *from)
{
    double factor = into->unit / from->unit;

    RT_ASSERT(pl_heat_same_shape(into, from));
    for (size_t i = 0; i < count_total(into); i++)
        into->count[i] += from->count[i] * factor;
    into->tokens += from->tokens;
}

void pl_heat_append(pl_heat *into, const pl_heat *from)
{
    double tokens = into->tokens + from->tokens;

    pl_heat_advance(into, from->tokens);
    pl_heat_merge(into, from);
    into->tokens = tokens;
}

void pl_heat_scale(pl_heat *heat, double factor)
{
    RT_ASSERT(factor >= 0 && isfinite(factor));
    multiply(heat, factor);
}

double pl_heat_tokens(const pl_heat *heat)
{
    return heat->tokens;
}

void pl_heat_set_tokens(pl_heat *heat, double tokens)
{
    RT_ASSERT(tokens >= 0 && isfinite(tokens));
    heat->tokens = tokens;
}

double pl_heat_get(const pl_heat *heat, uint32_t layer, uint32_t expert)
{
    RT_ASSERT(expert < heat->experts);
    return pl_heat_sparse(heat, layer) ? layer_counts(heat, layer)[expert] / heat->unit : 0;
}

static double sum(const double *values, size_t count)
{
    double total = 0;

    for (size_t i = 0; i < count; i++)
        total += values[i];
    return total;
}

double pl_heat_layer_total(const pl_heat *heat, uint32_t layer)
{
    if (!pl_heat_sparse(heat, layer)) return 0;
    return sum(layer_counts(heat, layer), heat->experts) / heat->unit;
}

double pl_heat_total(const pl_heat *heat)
{
    return sum(heat->count, count_total(heat)) / heat->unit;
}

double pl_heat_layer_limit(const pl_heat *heat, uint32_t topk)
{
    return heat->half_life / 0.69314718055994531 *
           topk; /* sum of topk * 2^(-t/half_life), t >= 0 */
}

double pl_heat_confidence(const pl_heat *heat)
{
    double each, total = 0;
    uint32_t layers = 0;

    /* Layers that never count (an MTP layer without drafts) say nothing about the others. */
    for (uint32_t layer = 0; layer < heat->layers; layer++) {
        double own = pl_heat_layer_total(heat, layer);

        total += own;
        layers += own > 0;
    }
    if (layers == 0) return 0;
    each = total / ((double)layers * heat->experts);
    if (each < CONFIDENCE_FROM) return 0;
    if (each >= CONFIDENCE_FULL) return 1;
    return (each - CONFIDENCE_FROM) / (CONFIDENCE_FULL - CONFIDENCE_FROM);
}

/* Hottest first, then by layer and id. */
static int compare_entries(const void *left, const void *right)
{
    const pl_heat_entry *a = left, *b = right;

    if (a->heat != b->heat) return a->heat > b->heat ? -1 : 1;
    if (a->layer != b->layer) return a->layer < b->layer ? -1 : 1;
    return a->expert < b->expert ? -1 : a->expert > b->expert;
}

/* The hottest `count` of layers first..last; all are sorted, which is rare and cheap enough. */
static rt_status top_of(const pl_heat *heat, uint32_t first, uint32_t last, pl_heat_entry *out,
                        uint32_t count, uint32_t *found)
{
    pl_heat_entry *all = calloc(count_total(heat), sizeof(*all));
    uint32_t used = 0;

    if (all == NULL) return RT_ENOMEM;
    for (uint32_t layer = first; layer <= last; layer++) {
        if (!pl_heat_sparse(heat, layer)) continue;
        for (uint32_t expert = 0; expert < heat->experts; expert++)
            all[used++] = (pl_heat_entry){layer, expert, pl_heat_get(heat, layer, expert)};
    }
    qsort(all, used, sizeof(*all), compare_entries);
    if (count > used) count = used;
    if (count > 0) memcpy(out, all, count * sizeof(*all));
    *found = count;
    free(all);
    return RT_OK;
}

rt_status pl_heat_top(const pl_heat *heat, pl_heat_entry *out, uint32_t count, uint32_t *found)
{
    return top_of(heat, 0, heat->layers - 1, out, count, found);
}

rt_status pl_heat_layer_top(const pl_heat *heat, uint32_t layer, pl_heat_entry *out, uint32_t count,
                            uint32_t *found)
{
    RT_ASSERT(layer < heat->layers);
    return top_of(heat, layer, layer, out, count, found);
}

static int compare_descending(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;

    return a > b ? -1 : a < b;
}

/* A layer's counts, largest first, into sorted [experts]; returns their sum. */
static double sort_layer(const pl_heat *heat, uint32_t layer, double *sorted)
{
    memcpy(sorted, layer_counts(heat, layer), heat->experts * sizeof(*sorted));
    qsort(sorted, heat->experts, sizeof(*sorted), compare_descending);
    return sum(sorted, heat->experts);
}

/* Sum of the first `fraction` of the sorted counts, the last one in part. */
static double hottest(const double *sorted, uint32_t experts, double fraction)
{
    double wanted = fraction * experts;
    uint32_t whole = (uint32_t)wanted;
    double total = sum(sorted, whole);

    if (whole < experts) total += sorted[whole] * (wanted - whole);
    return total;
}

/* Shares of the selections for some fractions at once: every layer is sorted once. */
static rt_status coverage_of(const pl_heat *heat, uint32_t layer, const double *fraction,
                             double *out, uint32_t count)
{
    bool all = layer == PL_HEAT_ALL;
    uint32_t first = all ? 0 : layer, last = all ? heat->layers - 1 : layer;
    double total = 0;
    double *sorted = calloc(heat->experts, sizeof(*sorted));

    RT_ASSERT(last < heat->layers);
    if (sorted == NULL) return RT_ENOMEM;
    memset(out, 0, count * sizeof(*out));
    for (uint32_t l = first; l <= last; l++) {
        if (!pl_heat_sparse(heat, l)) continue;
        total += sort_layer(heat, l, sorted);
        for (uint32_t i = 0; i < count; i++)
            out[i] += hottest(sorted, heat->experts, fraction[i]);
    }
    for (uint32_t i = 0; i < count; i++)
        out[i] = total > 0 ? out[i] / total : 0;
    free(sorted);
    return RT_OK;
}

rt_status pl_heat_coverage(const pl_heat *heat, uint32_t layer, double fraction, double *out)
{
    double result;

    RT_ASSERT(fraction >= 0 && fraction <= 1);
    RT_TRY(coverage_of(heat, layer, &fraction, &result, 1));
    *out = result;
    return RT_OK;
}

rt_status pl_heat_cover_of(const pl_heat *heat, uint32_t layer, pl_heat_cover *out)
{
    static const double fraction[3] = {0.25, 0.5, 0.75};
    double result[3];

    RT_TRY(coverage_of(heat, layer, fraction, result, 3));
    *out = (pl_heat_cover){result[0], result[1], result[2]};
    return RT_OK;
}

rt_status pl_heat_skew(const pl_heat *heat, uint32_t layer, double *out)
{
    double *sorted = calloc(heat->experts, sizeof(*sorted));
    double total, weighted = 0;
    uint32_t n = heat->experts;

    if (sorted == NULL) return RT_ENOMEM;
    total = sort_layer(heat, layer, sorted);
    /* G = sum_i (n + 1 - 2 i) x_i / (n sum x), x descending and i from 1. */
    for (uint32_t i = 0; i < n; i++)
        weighted += ((double)n - 1 - 2.0 * i) * sorted[i];
    *out = total > 0 ? weighted / (n * total) : 0;
    free(sorted);
    return RT_OK;
}
