/* pool.h - the buffers of a link end: bounded in sum, kept for reuse, valid until released.
 *
 * The token path allocates nothing: sizes repeat from layer to layer, so a released buffer serves the
 * next frame of its size class. The pool lives on until its last buffer comes back, since a buffer may
 * wait in another link's queue when its own link closes.
 *
 * Threads: one, the link's owner; buffers are released by the same thread. */
#ifndef TRANSPORT_POOL_H
#define TRANSPORT_POOL_H

#include "transport/link.h"

typedef struct tr_pool tr_pool;

/* NULL when memory is short. limit_bytes bounds the capacities of the buffers that are out. */
tr_pool *tr_pool_create(size_t limit_bytes);
void tr_pool_close(tr_pool *pool); /* NULL allowed */

/* As tr_link_acquire. length is 0. */
RT_MUST_CHECK rt_status tr_pool_acquire(tr_pool *pool, size_t bytes, tr_buf **out);
size_t tr_pool_out_bytes(const tr_pool *pool); /* capacities of the buffers that are out */

#endif
