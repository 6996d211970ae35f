/* link_union.h - several links seen as one, with one numbering of peers.
 *
 * Rank 0 with experts of its own has an inproc end and an mpi link; the attention node sees nodes
 * 0..n-1 and does not care. Polling looks at remote links first, then at inproc (whose poll computes),
 * then waits on the remote ones.
 *
 * Threads: the owner of all parts. */
#ifndef TRANSPORT_LINK_UNION_H
#define TRANSPORT_LINK_UNION_H

#include "transport/link.h"

typedef struct {
    tr_link *link; /* borrowed; outlives the union; polled by nobody else meanwhile */
    uint32_t peer; /* in that link */
} tr_union_peer;

/* peers [count] are copied. Events of peers of the parts that are not listed are dropped with a
 * debug log. Buffers come from the parts' pools, the remote ones' first.
 *   Errors  RT_EINVAL  a peer outside its link, or listed twice (named);  RT_ENOMEM */
RT_MUST_CHECK rt_status tr_union_create(const tr_union_peer *peers, uint32_t count, tr_link **out,
                                        rt_err *err);

/* Test seam: which of the `parts` links (in order of first listing) is polled first; the others follow
 * in order. Permutes the replies of several nodes in one process. */
typedef uint32_t (*tr_union_pick)(void *context, uint32_t parts);
void tr_union_set_pick(tr_link *link, tr_union_pick pick, void *context);

#endif
