/* dsa_index.h - which positions a row attends to: DSA's indexer and IndexShare.
 *
 * A full layer scores every visible position with a small attention of its own and keeps the
 * index_topk best; a shared layer uses the very list of the full layer before it. While a row sees
 * no more than index_topk positions its list is all of them and no score is computed, but its index
 * key is written all the same: later rows will score it. SPEC section 7.
 *
 * Threads: the engine's owner; runs the team. */
#ifndef ATTENTION_NODE_DSA_INDEX_H
#define ATTENTION_NODE_DSA_INDEX_H

#include "attention_node/rows.h"

/* The lists of the step's rows, ascending positions; kept from a full layer for the shared ones. */
typedef struct {
    uint32_t layer;        /* whose lists these are; MD_NO_LAYER: none yet */
    const uint32_t **list; /* [rows], each into `all` or `chosen` */
    uint32_t *count;       /* [rows] */
    uint32_t list_max;     /* min(index_topk, context) */
    uint32_t *all;         /* [list_max]: 0, 1, 2 ... */
    uint32_t *chosen;      /* [rows_max][list_max] */
    uint32_t *choosing;    /* [rows_max] rows for which selection takes place */
} an_index_lists;

/* Memory of the lists, taken once from the pass's arena. */
size_t an_index_lists_cost(const md_config *config, uint32_t context, uint32_t rows_max);
void an_index_lists_init(an_index_lists *lists, const an_pass *pass, uint32_t rows_max);

/* What the projections of a full layer give for the step's rows. query and weight are used (and
 * computed) only when some row needs a selection. */
typedef struct {
    float *key;    /* [rows][index_dim] */
    float *query;  /* [rows][index_heads * index_dim] */
    float *weight; /* [rows][index_heads] */
} an_index_work;

/* Some row of the step sees more positions than index_topk. */
bool an_index_selects(const an_pass *pass);

/* One row, after the projections: key norm, rope, cache write; with `selects` also the query's rope
 * and the head weights' factor. */
void an_index_prepare(const an_pass *pass, uint32_t layer, uint32_t row, const an_index_work *work,
                      bool selects);

/* Sets the lists for a layer; every row has been prepared. On a shared layer it only checks that the
 * lists are those of its source.
 *   Errors  RT_ENUMERIC  a score is NaN; *bad_row is the first such row */
RT_MUST_CHECK rt_status an_index_choose(const an_pass *pass, uint32_t layer,
                                        const an_index_work *work, an_index_lists *lists,
                                        uint32_t *bad_row);
/* Arena bytes an_index_choose takes and returns. */
size_t an_index_choose_cost(uint32_t context, uint32_t members);

#endif
