/* map.c - a map is a table of holdings, filled once by one apportionment.
 *
 * Apportioning: `credit` of a node is what its share has earned so far less what it was given, in
 * units of 1 / total share, so that all arithmetic is exact integers and every process gets the same
 * map. Rejected: largest remainders of each layer alone, which give a small share nothing in any
 * layer, and dealing slices out in turn, which knows no shares. */
#include "placement/map.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

enum { NO_LAYER = 0xffffffff };

struct pl_map {
    uint32_t layers, experts, slices, nodes, epoch;
    uint32_t stride;        /* holdings an expert has room for */
    uint32_t *sparse_index; /* [layers]: among the layers with experts, or NO_LAYER */
    pl_holding *holdings;   /* [sparse layers][experts][stride] */
    uint16_t *counts;       /* [sparse layers][experts] */
    uint64_t *slice_counts; /* [nodes] */
};

/* The nodes with a share, and where each stands. */
typedef struct {
    uint32_t active;
    uint64_t total;
    uint16_t *node;  /* [active] */
    uint64_t *share; /* [active] */
    int64_t *credit; /* [active] in 1 / total */
    uint32_t *count; /* [active]: given in this step */
} shares;

static void shares_free(shares *s)
{
    free(s->node);
    free(s->share);
    free(s->credit);
    free(s->count);
}

static rt_status shares_init(const pl_map_spec *spec, shares *s, rt_err *err)
{
    memset(s, 0, sizeof(*s));
    s->node = calloc(spec->nodes, sizeof(*s->node));
    s->share = calloc(spec->nodes, sizeof(*s->share));
    s->credit = calloc(spec->nodes, sizeof(*s->credit));
    s->count = calloc(spec->nodes, sizeof(*s->count));
    if (s->node == NULL || s->share == NULL || s->credit == NULL || s->count == NULL) {
        shares_free(s);
        return rt_fail(err, RT_ENOMEM, "shares of %u nodes", spec->nodes);
    }
    for (uint32_t node = 0; node < spec->nodes; node++) {
        if (spec->share[node] == 0) continue;
        s->node[s->active] = (uint16_t)node;
        s->share[s->active] = spec->share[node];
        s->total += spec->share[node];
        s->active++;
    }
    return RT_OK;
}

/* The node furthest behind its share among those not yet rounded up; ties to the first from `start`
 * on. Nodes whose share came out whole are never rounded up. */
static uint32_t furthest_behind(const shares *s, uint64_t units, uint32_t start)
{
    uint32_t best = s->active;

    for (uint32_t i = 0; i < s->active; i++) {
        uint32_t n = start + i < s->active ? start + i : start + i - s->active;
        uint64_t earned = units * s->share[n];

        if (earned % s->total == 0 || s->count[n] > earned / s->total) continue;
        if (best == s->active || s->credit[n] > s->credit[best]) best = n;
    }
    RT_ASSERT(best < s->active);
    return best;
}

/* Splits `units` into s->count. */
static void apportion(shares *s, uint32_t units, uint32_t start)
{
    uint32_t left = units;

    for (uint32_t n = 0; n < s->active; n++) {
        uint64_t earned = units * s->share[n];

        s->count[n] = (uint32_t)(earned / s->total);
        s->credit[n] += (int64_t)(earned % s->total);
        left -= s->count[n];
    }
    for (; left > 0; left--) {
        uint32_t n = furthest_behind(s, units, start);

        s->count[n]++;
        s->credit[n] -= (int64_t)s->total;
    }
}

static size_t expert_index(const pl_map *map, uint32_t sparse_layer, uint32_t expert)
{
    return (size_t)sparse_layer * map->experts + expert;
}

/* Holdings stay ascending by node; there are at most 32. */
static void give(pl_map *map, size_t index, uint16_t node, uint32_t mask)
{
    pl_holding *holdings = &map->holdings[index * map->stride];
    uint32_t at = map->counts[index];

    RT_ASSERT(at < map->stride);
    for (; at > 0 && holdings[at - 1].node > node; at--)
        holdings[at] = holdings[at - 1];
    holdings[at] = (pl_holding){.node = node, .slice_mask = mask};
    map->counts[index]++;
    map->slice_counts[node] += (uint32_t)__builtin_popcount(mask);
}

static uint32_t low_bits(uint32_t count)
{
    return count >= 32 ? UINT32_MAX : (1u << count) - 1;
}

static void place_whole(pl_map *map, shares *s, uint32_t layer, uint32_t sparse_layer)
{
    uint32_t start = layer % s->active, expert = 0;

    apportion(s, map->experts, start);
    for (uint32_t i = 0; i < s->active; i++) {
        uint32_t n = (start + i) % s->active;

        for (uint32_t given = 0; given < s->count[n]; given++, expert++)
            give(map, expert_index(map, sparse_layer, expert), s->node[n], low_bits(map->slices));
    }
    RT_ASSERT(expert == map->experts);
}

static void place_sliced(pl_map *map, shares *s, uint32_t layer, uint32_t sparse_layer)
{
    for (uint32_t expert = 0; expert < map->experts; expert++) {
        uint32_t start = (layer + expert) % s->active, slice = 0;

        apportion(s, map->slices, start);
        for (uint32_t i = 0; i < s->active && slice < map->slices; i++) {
            uint32_t n = (start + i) % s->active;

            if (s->count[n] == 0) continue;
            give(map, expert_index(map, sparse_layer, expert), s->node[n],
                 low_bits(s->count[n]) << slice);
            slice += s->count[n];
        }
        RT_ASSERT(slice == map->slices);
    }
}

static rt_status check_count(rt_err *err, const char *what, uint32_t most, uint32_t found)
{
    if (found >= 1 && found <= most) return RT_OK;
    return rt_fail(err, RT_EINVAL, "placement: %s: expected 1 to %u, found %u", what, most, found);
}

static rt_status check_spec(const pl_map_spec *spec, rt_err *err)
{
    uint32_t with_experts = 0, with_share = 0;

    RT_TRY(check_count(err, "layers", PL_LAYERS_MAX, spec->layers));
    RT_TRY(check_count(err, "experts", PL_EXPERTS_MAX, spec->experts));
    RT_TRY(check_count(err, "slices", PL_SLICES_MAX, spec->slices));
    RT_TRY(check_count(err, "nodes", PL_NODES_MAX, spec->nodes));
    if (spec->mode != PL_WHOLE && spec->mode != PL_SLICED)
        return rt_fail(err, RT_EINVAL, "placement: mode: expected %d or %d, found %d", PL_WHOLE,
                       PL_SLICED, (int)spec->mode);
    for (uint32_t layer = 0; layer < spec->layers; layer++)
        with_experts += spec->sparse[layer];
    if (with_experts == 0)
        return rt_fail(err, RT_EINVAL, "placement: expected a layer with experts, found none");
    for (uint32_t node = 0; node < spec->nodes; node++) {
        if (spec->share[node] > PL_SHARE_MAX)
            return rt_fail(err, RT_EINVAL,
                           "placement: share of node %u: expected at most %d, found %u", node,
                           PL_SHARE_MAX, spec->share[node]);
        with_share += spec->share[node] > 0;
    }
    if (with_share == 0)
        return rt_fail(err, RT_EINVAL, "placement: expected a node with a share, found none of %u",
                       spec->nodes);
    return RT_OK;
}

/* Everything but the holdings' contents. */
static pl_map *allocate(const pl_map_spec *spec, uint32_t active)
{
    pl_map *map = calloc(1, sizeof(*map));
    size_t sparse = 0;

    if (map == NULL) return NULL;
    map->layers = spec->layers;
    map->experts = spec->experts;
    map->slices = spec->slices;
    map->nodes = spec->nodes;
    map->epoch = spec->epoch;
    map->stride = spec->mode == PL_WHOLE ? 1 : spec->slices < active ? spec->slices : active;
    map->sparse_index = calloc(spec->layers, sizeof(*map->sparse_index));
    map->slice_counts = calloc(spec->nodes, sizeof(*map->slice_counts));
    if (map->sparse_index == NULL || map->slice_counts == NULL) goto fail;
    for (uint32_t layer = 0; layer < spec->layers; layer++)
        map->sparse_index[layer] = spec->sparse[layer] ? (uint32_t)sparse++ : NO_LAYER;
    map->holdings = calloc(sparse * spec->experts * map->stride, sizeof(*map->holdings));
    map->counts = calloc(sparse * spec->experts, sizeof(*map->counts));
    if (map->holdings == NULL || map->counts == NULL) goto fail;
    return map;
fail:
    pl_map_free(map);
    return NULL;
}

rt_status pl_map_create(const pl_map_spec *spec, pl_map **out, rt_err *err)
{
    shares s;
    pl_map *map;

    RT_TRY(check_spec(spec, err));
    RT_TRY(shares_init(spec, &s, err));
    map = allocate(spec, s.active);
    if (map == NULL) {
        shares_free(&s);
        return rt_fail(err, RT_ENOMEM, "placement of %u layers of %u experts", spec->layers,
                       spec->experts);
    }
    for (uint32_t layer = 0; layer < spec->layers; layer++) {
        if (!spec->sparse[layer]) continue;
        if (spec->mode == PL_WHOLE)
            place_whole(map, &s, layer, map->sparse_index[layer]);
        else
            place_sliced(map, &s, layer, map->sparse_index[layer]);
    }
    shares_free(&s);
    *out = map;
    return RT_OK;
}

void pl_map_free(pl_map *map)
{
    if (map == NULL) return;
    free(map->sparse_index);
    free(map->holdings);
    free(map->counts);
    free(map->slice_counts);
    free(map);
}

uint32_t pl_map_epoch(const pl_map *map)
{
    return map->epoch;
}

uint32_t pl_map_nodes(const pl_map *map)
{
    return map->nodes;
}

const pl_holding *pl_map_holders(const pl_map *map, uint32_t layer, uint32_t expert,
                                 uint32_t *count)
{
    size_t index;

    RT_ASSERT(layer < map->layers && expert < map->experts);
    *count = 0;
    if (map->sparse_index[layer] == NO_LAYER) return NULL;
    index = expert_index(map, map->sparse_index[layer], expert);
    *count = map->counts[index];
    return &map->holdings[index * map->stride];
}

/* TOKEN:8 who holds what. */
uint32_t pl_map_mask(const pl_map *map, uint32_t layer, uint32_t expert, uint32_t node)
{
    uint32_t count;
    const pl_holding *holdings = pl_map_holders(map, layer, expert, &count);

    RT_ASSERT(node < map->nodes);
    for (uint32_t i = 0; i < count; i++)
        if (holdings[i].node == node) return holdings[i].slice_mask;
    return 0;
}

uint64_t pl_map_slice_count(const pl_map *map, uint32_t node)
{
    RT_ASSERT(node < map->nodes);
    return map->slice_counts[node];
}
