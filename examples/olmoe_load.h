/* olmoe_load.h - what the example keeps in memory, and how it gets there.
 *
 * Everything is open to see, unlike in the real engine: this is for reading.
 *
 * Threads: one owner; only ex_engine.team works with more. */
#ifndef EXAMPLES_OLMOE_LOAD_H
#define EXAMPLES_OLMOE_LOAD_H

#include "base/arena.h"
#include "base/slab.h"
#include "base/team.h"
#include "examples/olmoe_files.h"
#include "model/container/pack.h"
#include "model/expert.h"

typedef struct {
    float *input_norm, *post_norm, *q_norm, *k_norm; /* [hidden] */
    kn_qmat q, k, v, o;                              /* [hidden][hidden] */
    kn_qmat router;                                  /* [experts][hidden] */
    float *keys, *values; /* [positions][hidden]: what attention remembers of earlier tokens */
} ex_layer;

/* A place in the cache for one expert. */
typedef struct {
    uint32_t expert;
    uint64_t last_use; /* 0: empty */
    void *data;        /* an expert's record as it lies in the pack */
} ex_slot;

typedef struct {
    ex_shape shape;
    rt_team *team;   /* threads; owned */
    rt_arena *arena; /* the memory of all that has no owner named; owned */

    /* The weights that every token uses. */
    ex_layer *layers; /* [layers]; owned */
    kn_qmat embed;    /* [vocab][hidden]: a row for each token */
    float *last_norm; /* [hidden] */
    kn_qmat head;     /* [vocab][hidden] */
    float *inv_freq;  /* [head_dim/2]: how fast each pair of values turns, see rope */

    /* The token on its way. */
    float *x, *normed, *query, *attended, *part, *mixed; /* [hidden] */
    float *gate, *up;                                    /* [inter] */
    float *share, *score, *logits;                       /* [experts], [positions], [vocab] */
    uint32_t *chosen, *spare, *seen; /* [topk], [experts]; [positions]: 0, 1, 2 .. */

    /* The weights that few tokens use: all in a file, some in memory. */
    md_pack *pack;           /* owned */
    md_expert_layout layout; /* where gate, up and down lie in an expert's record */
    ex_slot *slots;          /* [layers][slots_per_layer]; owned */
    uint32_t slots_per_layer;
    rt_slab slot_memory; /* owned */
    uint64_t clock, hits, reads, read_bytes;
} ex_engine;

typedef struct {
    const char *dir;          /* the checkpoint: config.json, *.safetensors */
    const char *pack;         /* path of the pack of experts; NULL: in the checkpoint's folder */
    const char *format;       /* of the experts: "f32", "bf16", "q8", "q4" */
    uint32_t slots_per_layer; /* at least 1 */
    uint32_t threads;
} ex_spec;

/* Loads the checkpoint's dense part and opens the pack; the first run writes it.
 *   shape   ex_shape_read's, with the positions that will be needed
 *   Errors  RT_ENOMEM; RT_EIO, RT_ENOSPACE; RT_EFORMAT, RT_EUNSUPPORTED for a damaged or unknown
 *           checkpoint; RT_EFORMAT for a damaged pack, RT_EINVAL for another checkpoint's */
RT_MUST_CHECK rt_status ex_engine_open(const ex_spec *spec, const ex_shape *shape, ex_engine **out,
                                       rt_err *err);
void ex_engine_close(ex_engine *e); /* NULL allowed */

#endif
