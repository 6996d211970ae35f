/* node.c - frame in, frame out. Whatever a peer sends, the node answers and lives on. */
#include "expert_node/node.h"

#include "base/log.h"

#include <stdlib.h>

struct en_node {
    tr_link *link;                 /* borrowed */
    en_executor *executor;         /* borrowed */
    const md_container *container; /* borrowed */
    rt_profile *profile;           /* borrowed */
    uint32_t experts_limit;
};

rt_status en_node_create(const en_node_spec *spec, en_node **out, rt_err *err)
{
    en_node *node = calloc(1, sizeof(*node));

    if (node == NULL) return rt_fail(err, RT_ENOMEM, "expert node");
    node->link = spec->link;
    node->executor = spec->executor;
    node->container = spec->container;
    node->profile = spec->profile;
    node->experts_limit = spec->experts_limit;
    *out = node;
    return RT_OK;
}

void en_node_free(en_node *node)
{
    free(node);
}

/* asked: the head of the frame that is answered; zeros when not even that could be believed. */
static rt_status send_error(en_node *node, uint32_t peer, const tr_frame_header *asked,
                            const rt_err *err)
{
    tr_buf *buf;

    if (err->status != RT_ECANCELED) /* a stop is no fault */
        rt_log_warn("expert", "%s: %s: %s", tr_link_peer_name(node->link, peer),
                    rt_status_name(err->status), err->text);
    if (tr_link_acquire(node->link, TR_ERROR_BYTES_MAX, &buf) != RT_OK) return RT_EPEER;
    buf->length = tr_error_write(buf->data, asked, err->status, err->text);
    return tr_link_send(node->link, peer, buf) == RT_OK ? RT_OK : RT_EPEER;
}

static tr_dispatch_limits limits_of(const en_node *node, const tr_frame_header *head)
{
    const md_config *config = md_container_config(node->container);
    tr_dispatch_limits limits = {.cols = config->hidden,
                                 .experts = node->experts_limit,
                                 .slices = MD_SLICES_MAX,
                                 .layers = md_config_layers_total(config)};
    md_expert_layout layout;

    limits.group = kn_group(config->hidden, 0);
    if (head->layer < limits.layers && config->sparse[head->layer]) {
        md_container_expert_layout(node->container, head->layer, &layout);
        limits.group = layout.hidden_group;
        limits.slices = layout.slices;
    }
    return limits;
}

/* TOKEN:9 a dispatch frame -> records of the store -> partial sums -> the reply in *out, or the error
 * that goes instead. */
static rt_status answer(en_node *node, const tr_buf *buf, const tr_frame_header *asked,
                        tr_buf **out, rt_err *err)
{
    tr_frame_header head = tr_answer_head(asked, TR_REPLY);
    tr_dispatch_limits limits = limits_of(node, asked);
    tr_dispatch_view view;
    size_t payload_bytes, reply_max;
    tr_buf *reply;
    rt_status status;

    RT_TRY(tr_dispatch_read(buf->data, buf->length, &limits, &view, err));
    reply_max = sizeof(head) + en_reply_bytes_max(asked->rows, asked->cols);
    status = tr_link_acquire(node->link, reply_max, &reply);
    if (status != RT_OK) {
        return rt_fail(err, status, "no buffer of %zu bytes for the reply", reply_max);
    }
    status = en_execute(node->executor, &view, reply->data + sizeof(head), &payload_bytes, err);
    if (status != RT_OK) {
        tr_buf_release(reply);
        return status;
    }
    reply->length = sizeof(head) + payload_bytes;
    tr_frame_seal(reply->data, reply->length, &head);
    *out = reply;
    return RT_OK;
}

static void log_peer_error(const en_node *node, uint32_t peer, const tr_buf *buf,
                           const tr_frame_header *head)
{
    char text[TR_ERROR_TEXT_MAX + 1];

    tr_error_text(buf->data, head, text, sizeof(text));
    rt_log_warn("expert", "%s reports status %u: %s", tr_link_peer_name(node->link, peer),
                head->status, text);
}

static rt_status take_frame(en_node *node, uint32_t peer, tr_buf *buf)
{
    tr_frame_header head = {0};
    tr_buf *reply = NULL;
    rt_err err = {RT_OK, ""};
    rt_status status;

    status = tr_frame_check(buf->data, buf->length, &head, &err);
    if (status == RT_OK && head.type == TR_ERROR) {
        log_peer_error(node, peer, buf, &head);
        tr_buf_release(buf);
        return RT_OK;
    }
    if (status == RT_OK && head.type == TR_HINT) {
        en_executor_hint(node->executor, head.layer, tr_hint_experts(buf->data, &head),
                         head.entries);
        tr_buf_release(buf);
        return RT_OK;
    }
    if (status == RT_OK && head.type == TR_DISPATCH) {
        status = answer(node, buf, &head, &reply, &err);
    } else if (status == RT_OK) {
        status = rt_fail(&err, RT_EPROTO, "expert node: frame type expected %d, found %u",
                         TR_DISPATCH, head.type);
    }
    tr_buf_release(buf); /* before sending: its memory may serve the peer's next frame */
    if (status != RT_OK) return send_error(node, peer, &head, &err);
    return tr_link_send(node->link, peer, reply) == RT_OK ? RT_OK : RT_EPEER;
}

rt_status en_node_frame(en_node *node, uint32_t peer, tr_buf *buf)
{
    rt_phase before = rt_profile_enter(node->profile, RT_PHASE_DISPATCH);
    rt_status status = take_frame(node, peer, buf);

    rt_profile_enter(node->profile, before);
    return status;
}

void en_node_drive(void *context)
{
    en_node *node = context;
    tr_event event;

    while (tr_link_poll(node->link, 0, &event) == RT_OK) {
        if (event.type != TR_EVENT_FRAME) {
            rt_log_info("expert", "%s is gone", tr_link_peer_name(node->link, event.peer));
            continue;
        }
        if (en_node_frame(node, event.peer, event.buf) != RT_OK) {
            rt_log_warn("expert", "%s: the answer could not be sent",
                        tr_link_peer_name(node->link, event.peer));
        }
    }
    en_executor_idle(node->executor);
}
