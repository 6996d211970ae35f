/* record.h - names of what a container holds. docs/container.md is normative.
 *
 * A record is one tensor (or an expert, or the heads of uk_t / uv back to back) in the bytes that
 * the kernels read. Keys are numbers, not names, so that indexes are small and sorted. */
#ifndef MODEL_CONTAINER_RECORD_H
#define MODEL_CONTAINER_RECORD_H

#include "model/config.h"

#include <assert.h>

/* Numbers are on disk: append, never renumber. `dense` = format of --dense, `f32` = always f32. */
typedef enum {
    MD_EMBED = 1,         /* [vocab][hidden] row-major, bf16 (f32 with --dense f32) */
    MD_LM_HEAD = 2,       /* dense [vocab][hidden] */
    MD_FINAL_NORM = 3,    /* f32 [hidden] */
    MD_ROPE_INV_FREQ = 4, /* f32 [rope_dim/2] */
    MD_INPUT_NORM = 16,   /* f32 [hidden] */
    MD_POST_NORM = 17,    /* f32 [hidden] */
    MD_Q_A = 18,          /* dense [q_rank][hidden] */
    MD_Q_A_NORM = 19,     /* f32 [q_rank] */
    MD_Q_B = 20,          /* dense [heads*(nope+rope)][q_rank] */
    MD_KV_A = 21,         /* dense [kv_rank+rope][hidden] */
    MD_KV_A_NORM = 22,    /* f32 [kv_rank] */
    MD_UK_T = 23,         /* dense, per head [kv_rank][nope]: transposed key half of kv_b */
    MD_UV = 24,           /* dense, per head [v_dim][kv_rank]: value half of kv_b */
    MD_O = 25,            /* dense [hidden][heads*v_dim] */
    MD_INDEX_Q = 32,      /* dense [index_heads*index_dim][q_rank]: wq_b */
    MD_INDEX_K = 33,      /* dense [index_dim][hidden]: wk */
    MD_INDEX_K_NORM = 34, /* f32 [2][index_dim]: weight, bias */
    MD_INDEX_WEIGHT = 35, /* f32 matrix [index_heads][hidden]: weights_proj */
    MD_GATE = 48,         /* dense [inter][hidden] */
    MD_UP = 49,           /* dense [inter][hidden] */
    MD_DOWN = 50,         /* dense [hidden][inter] */
    MD_ROUTER = 64,       /* f32 matrix [experts][hidden] */
    MD_ROUTER_BIAS = 65,  /* f32 [experts] */
    MD_SHARED = 66,       /* expert record, dense format, in dense.bin */
    MD_EXPERT = 67,       /* expert record, in experts-LLL.bin; index = expert */
    MD_ENORM = 80,        /* MTP: f32 [hidden] */
    MD_HNORM = 81,
    MD_HEAD_NORM = 82,
    MD_EH_PROJ = 83, /* MTP: dense [hidden][2*hidden] */
} md_record_kind;

typedef struct {
    uint16_t layer; /* MD_NO_LAYER for the four global kinds */
    uint16_t kind;  /* md_record_kind */
    uint32_t index; /* expert, else 0 */
} md_key;

static_assert(sizeof(md_key) == 8, "a key is 8 bytes on disk");

static inline int md_key_compare(md_key a, md_key b)
{
    if (a.layer != b.layer) return a.layer < b.layer ? -1 : 1;
    if (a.kind != b.kind) return a.kind < b.kind ? -1 : 1;
    if (a.index != b.index) return a.index < b.index ? -1 : 1;
    return 0;
}

typedef struct {
    uint64_t low, high;
} md_hash128; /* XXH3-128 of a record's bytes */

/* "layer 12 expert 200", for errors. Returns text. */
const char *md_key_format(md_key key, char *text, size_t text_bytes);
const char *md_kind_name(uint16_t kind); /* "q_a"; "?" for unknown */

#endif
