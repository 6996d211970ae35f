/* engine_rig.h - an attention node and some expert nodes in one process, for tests of whole passes.
 *
 * Every node has an inproc link of its own; a union of their ends is what the engine sees, so that
 * placements over several nodes and orders of replies can be tried without other processes.
 *
 * Threads: one test. */
#ifndef TESTS_ORACLE_ENGINE_RIG_H
#define TESTS_ORACLE_ENGINE_RIG_H

#include "attention_node/engine.h"
#include "expert_node/node.h"

enum { ENGINE_RIG_NODES_MAX = 8 };

typedef struct {
    const char *dir; /* container */
    uint32_t nodes;  /* 0: 1 */
    pl_mode mode;
    uint32_t threads;                    /* of the team both roles share */
    uint32_t rows_max;                   /* 0: 64 */
    uint32_t context_max, sequences_max; /* 0: 256, 4 */
    bool kv_bf16, float_activations;
    uint64_t ram_bytes;      /* of each expert store; 0: all it could need */
    const char *mirrors;     /* of the container */
    const en_disk_ops *disk; /* NULL: the real one */
    an_look_ahead look_ahead;
    uint64_t permute; /* seed of the order in which nodes are asked for replies; 0: in turn */
} engine_rig_spec;

typedef struct {
    md_container *container;
    md_weights *weights;
    rt_team *team;
    pl_map *map;
    tr_link *near[ENGINE_RIG_NODES_MAX], *far[ENGINE_RIG_NODES_MAX], *joined;
    en_store *store[ENGINE_RIG_NODES_MAX];
    en_executor *executor[ENGINE_RIG_NODES_MAX];
    en_node *node[ENGINE_RIG_NODES_MAX];
    uint32_t nodes;
    uint64_t random;
    rt_budget budget;
    an_engine *engine;
} engine_rig;

/* Asserts success, with the error's text. */
void engine_rig_open(engine_rig *rig, const engine_rig_spec *spec);
void engine_rig_close(engine_rig *rig);

/* Prints an error's text and fails the test when status is not RT_OK. */
void engine_rig_check(rt_status status, const rt_err *err, const char *what);

/* Logits [count][vocab] of a new sequence fed `chunk` tokens a step; malloc'd. */
float *engine_rig_logits(engine_rig *rig, const uint32_t *tokens, uint32_t count, uint32_t chunk);

#endif
