/* map.h - which node answers for which (layer, expert, slice): immutable, numbered by epoch.
 *
 * Whole experts, slices and (later) replicas are one mechanism: a map to (node, slice mask). Pure: no
 * I/O, no clock. Every process that builds a map from the same spec gets the same map.
 *
 * Threads: any after creation. */
#ifndef PLACEMENT_MAP_H
#define PLACEMENT_MAP_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    PL_NODES_MAX = 1024,
    PL_LAYERS_MAX = 1024,
    PL_EXPERTS_MAX = 4096,
    PL_SLICES_MAX = 32,     /* bits of a slice mask */
    PL_SHARE_MAX = 1 << 20, /* keeps every product of the apportionment in 64 bits */
};

typedef enum {
    PL_WHOLE, /* whole experts by count: each node's share of every layer */
    PL_SLICED /* every expert's slices spread over all nodes with a share */
} pl_mode;

typedef struct {
    uint32_t layers;    /* total, dense ones included */
    const bool *sparse; /* [layers]: which have experts; borrowed for the call */
    uint32_t experts, slices;
    uint32_t nodes;
    const uint32_t *share; /* [nodes] relative weights, 0: no experts; borrowed for the call */
    pl_mode mode;
    uint32_t epoch;
} pl_map_spec;

typedef struct pl_map pl_map;

typedef struct {
    uint16_t node;
    uint32_t slice_mask;
} pl_holding;

/* How shares become counts: of the experts of a layer (PL_WHOLE), or of the slices of an expert
 * (PL_SLICED), each node gets its exact share rounded down or up; who is rounded up is who is furthest
 * behind its share so far, over experts and layers. So an expert is spread as evenly as the shares
 * allow, and every layer's and the whole map's counts follow the shares too.
 *
 * Which ids a node gets is rotated: a layer's blocks of experts start at node (layer), an expert's
 * slices at node (layer + expert), counted over the nodes with a share, so that no node always has
 * the low ids.
 *   Errors  RT_EINVAL  no node has a share, no layer has experts, or a count is out of range (named)
 *           RT_ENOMEM */
RT_MUST_CHECK rt_status pl_map_create(const pl_map_spec *spec, pl_map **out, rt_err *err);
void pl_map_free(pl_map *map);

uint32_t pl_map_epoch(const pl_map *map);
uint32_t pl_map_nodes(const pl_map *map);

/* The nodes that together hold all slices of an expert, each slice once. [*count] entries, ascending
 * node; points into the map. A layer without experts: NULL and 0. */
const pl_holding *pl_map_holders(const pl_map *map, uint32_t layer, uint32_t expert,
                                 uint32_t *count);

/* Slices of an expert that `node` holds; 0: none. */
uint32_t pl_map_mask(const pl_map *map, uint32_t layer, uint32_t expert, uint32_t node);

/* Slices that a node holds over all layers (for inventories and tests). */
uint64_t pl_map_slice_count(const pl_map *map, uint32_t node);

#endif
