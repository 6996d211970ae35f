/* kv_cache.h - what attention keeps of every position: one row [latent | rope key] a layer, and an
 * index key on layers with an indexer of their own.
 *
 * A slot is the cache of one sequence: a contiguous table [context][row] per layer, so that a list of
 * positions is a list of rows and truncation is a smaller length. All slots are mapped at start
 * (memory is fixed then); pages that no position has touched cost nothing. Rejected: pages of a few
 * positions with a table, which would put a lookup into every kernel for a server's sake; the
 * scheduler that wants it can put it behind this header.
 *
 * Values are rounded once, when they are written (numerics R4).
 *
 * Threads: writes of distinct rows from any; the rest from the owner. */
#ifndef ATTENTION_NODE_KV_CACHE_H
#define ATTENTION_NODE_KV_CACHE_H

#include "kernels/attention.h"
#include "model/config.h"

typedef struct an_kv an_kv;

/* Bytes of one slot of `context` positions. */
uint64_t an_kv_slot_bytes(const md_config *config, uint32_t context, bool bf16);

/* RT_ENOMEM when the memory cannot be had. config is borrowed. */
RT_MUST_CHECK rt_status an_kv_create(const md_config *config, uint32_t context, uint32_t slots,
                                     bool bf16, an_kv **out, rt_err *err);
void an_kv_free(an_kv *kv);

uint32_t an_kv_context(const an_kv *kv);

/* Rows [latent | rope key] of a layer; width kv_rank + rope_dim. */
kn_cache_view an_kv_latent(const an_kv *kv, uint32_t slot, uint32_t layer);
/* Index keys of a full layer (asserted); width index_dim. */
kn_cache_view an_kv_index(const an_kv *kv, uint32_t slot, uint32_t layer);

/* Rounds and writes the row of `position`. values: [width]. */
void an_kv_put_latent(an_kv *kv, uint32_t slot, uint32_t layer, uint32_t position,
                      const float *values);
void an_kv_put_index(an_kv *kv, uint32_t slot, uint32_t layer, uint32_t position,
                     const float *values);

#endif
