/* node.h - an expert node: answers dispatch frames on a link. Holds no request state.
 *
 * Threads: the link's owner thread. */
#ifndef EXPERT_NODE_NODE_H
#define EXPERT_NODE_NODE_H

#include "expert_node/execute.h"
#include "transport/link.h"

typedef struct en_node en_node;

typedef struct {
    tr_link *link;                 /* borrowed */
    en_executor *executor;         /* borrowed */
    const md_container *container; /* borrowed */
    rt_profile *profile;           /* borrowed; NULL: none */
    uint32_t experts_limit;        /* of entries, usually config->experts */
} en_node_spec;

RT_MUST_CHECK rt_status en_node_create(const en_node_spec *spec, en_node **out, rt_err *err);
void en_node_free(en_node *node);

/* Handles one frame: a dispatch is executed and answered (REPLY, or ERROR with status and text). Takes
 * buf. A malformed frame is answered by an ERROR frame and logged; the node lives on. An ERROR frame
 * is logged and not answered; a HINT is noted. The link's pool needs room for a reply of en_reply_bytes_max; without,
 * the answer is an ERROR of RT_EBUSY.
 *   Errors  RT_EPEER  the answer could not be sent */
RT_MUST_CHECK rt_status en_node_frame(en_node *node, uint32_t peer, tr_buf *buf);

/* tr_inproc_driver: handles every waiting frame of the node's link. context is the en_node. */
void en_node_drive(void *context);

#endif
