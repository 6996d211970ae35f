/* expert_rig.h - one expert node over a tiny model, and dispatch frames for it.
 *
 * Threads: one test. */
#ifndef TESTS_SUPPORT_EXPERT_RIG_H
#define TESTS_SUPPORT_EXPERT_RIG_H

#include "expert_node/execute.h"

typedef struct {
    const char *dir; /* of the container */
    pl_mode mode;
    uint32_t nodes, node; /* equal shares; 0 nodes: one */
    uint32_t threads;     /* of the team */
    uint64_t ram_bytes;   /* 0: all */
    uint32_t rows_max;    /* 0: 64 */
    bool float_activations, with_mtp;
} expert_rig_spec;

typedef struct {
    md_container *container;
    pl_map *map;
    rt_team *team;
    en_store *store;
    en_executor *executor;
    uint32_t node;
} expert_rig;

/* Assert success. */
void expert_rig_open(expert_rig *rig, const expert_rig_spec *spec);
void expert_rig_close(expert_rig *rig);
pl_map *expert_rig_map(const md_container *container, pl_mode mode, uint32_t nodes, bool with_mtp);

/* One layer's rows before they are cut into frames. */
typedef struct {
    uint32_t rows, hidden, layer;
    int q;
    float *x;              /* owned [rows][hidden] */
    uint16_t *entry_count; /* owned [rows] */
    tr_entry *entries;     /* owned, row by row */
    uint32_t entry_total;
} expert_rows;

/* Rows from a seed: each chooses topk different experts, with all slices. */
void expert_rows_make(expert_rows *rows, const md_container *container, uint32_t layer,
                      uint32_t count, uint64_t seed);
void expert_rows_free(expert_rows *rows);

/* A sealed dispatch frame of row_count rows from row_begin on, 64-byte aligned; free() it. Entries
 * are limited to what `node` of map holds (NULL map: as they are). int8: as the container computes
 * unless float_activations. Returns NULL when no entry is left. */
uint8_t *expert_frame(const expert_rows *rows, const md_container *container, const pl_map *map,
                      uint32_t node, bool float_activations, uint32_t row_begin, uint32_t row_count,
                      size_t *bytes);

/* Computes a frame; payload [*payload_bytes] is malloc'd on RT_OK. */
rt_status expert_rig_execute(const expert_rig *rig, const uint8_t *frame, size_t bytes,
                             uint8_t **payload, size_t *payload_bytes, rt_err *err);

/* Adds a payload of `count` rows to sums [count][hidden]; poison [count] is set where it says so. */
void expert_payload_add(const uint8_t *payload, size_t bytes, uint32_t count, uint32_t hidden,
                        int64_t *sums, bool *poison);

#endif
