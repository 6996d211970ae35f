/* link_inproc.h - two link ends in one process that pass buffer pointers.
 *
 * One thread runs both roles: when an end's owner polls and nothing waits for it, the other end's
 * `driver` is run so that it can consume its frames and answer. That keeps one thread, one team and one
 * order of events, and makes a single process take the very way of a cluster.
 *
 * Threads: both ends belong to the same thread. */
#ifndef TRANSPORT_LINK_INPROC_H
#define TRANSPORT_LINK_INPROC_H

#include "transport/link.h"

/* Runs the role behind an end: it polls its own end (timeout 0) until nothing waits. */
typedef void (*tr_inproc_driver)(void *context);

/* Each end has one peer (0): the other. pool_bytes bounds the buffers in flight of an end. The ends are
 * closed in any order; the one left then sees its peer down. A poll never waits: when the driver brings
 * nothing, nothing can come, so the answer is RT_ETIMEOUT at once, whatever the timeout.
 * RT_ENOMEM. */
RT_MUST_CHECK rt_status tr_inproc_create(size_t pool_bytes, tr_link **a, tr_link **b, rt_err *err);

/* When a's owner waits, b's frames are handled by driver(context). */
void tr_inproc_set_driver(tr_link *b, tr_inproc_driver driver, void *context);

/* Test seam: delivers the frames that wait for `end` in the order pick gives (reply orders). */
/* Returns 0..waiting-1. */
typedef uint32_t (*tr_inproc_pick)(void *context, uint32_t waiting);
void tr_inproc_set_pick(tr_link *end, tr_inproc_pick pick, void *context);

#endif
