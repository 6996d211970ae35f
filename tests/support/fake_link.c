/* fake_link.c - a queue of events and a clock that waiting moves. */
#include "tests/support/fake_link.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { QUEUE_MAX = 256 };

static void release(tr_buf *buf)
{
    fake_link *link = buf->owner;

    link->buffers--;
    free(buf->data);
    free(buf);
}

static tr_buf *make_buffer(fake_link *link, size_t bytes)
{
    tr_buf *buf = calloc(1, sizeof(*buf));
    size_t capacity = (bytes + 63) / 64 * 64;

    assert_non_null(buf);
    buf->data = aligned_alloc(64, capacity > 0 ? capacity : 64);
    assert_non_null(buf->data);
    buf->capacity = capacity;
    buf->release = release;
    buf->owner = link;
    link->buffers++;
    return buf;
}

static rt_status fake_acquire(tr_link *base, size_t bytes, tr_buf **out)
{
    fake_link *link = (fake_link *)base;

    if (link->busy > 0) {
        link->busy--;
        return RT_EBUSY;
    }
    *out = make_buffer(link, bytes);
    return RT_OK;
}

static rt_status fake_send(tr_link *base, uint32_t peer, tr_buf *buf)
{
    fake_link *link = (fake_link *)base;

    link->sent_frames++;
    if (link->send_status == RT_OK && link->sent != NULL)
        link->sent(link->sent_context, link, peer, buf->data, buf->length);
    tr_buf_release(buf);
    return link->send_status;
}

static rt_status fake_poll(tr_link *base, uint64_t timeout_ns, tr_event *out)
{
    fake_link *link = (fake_link *)base;

    link->polls++;
    if (link->queued == 0) {
        if (link->stop) return RT_ECANCELED;
        link->time.ns += timeout_ns;
        return RT_ETIMEOUT;
    }
    *out = link->queue[0];
    link->queued--;
    memmove(link->queue, link->queue + 1, link->queued * sizeof(*link->queue));
    return RT_OK;
}

static const char *fake_peer_name(const tr_link *base, uint32_t peer)
{
    static const char *const names[] = {"node zero", "node one", "node two", "node three"};

    (void)base;
    return peer < sizeof(names) / sizeof(*names) ? names[peer] : "a node";
}

static void fake_close(tr_link *base)
{
    (void)base;
}

static const tr_link_ops fake_ops = {
    .name = "fake",
    .acquire = fake_acquire,
    .send = fake_send,
    .poll = fake_poll,
    .peer_name = fake_peer_name,
    .close = fake_close,
};

fake_link *fake_link_create(uint32_t peers)
{
    fake_link *link = calloc(1, sizeof(*link));

    assert_non_null(link);
    link->link.ops = &fake_ops;
    link->link.peer_count = peers;
    link->queue = calloc(QUEUE_MAX, sizeof(*link->queue));
    assert_non_null(link->queue);
    return link;
}

void fake_link_free(fake_link *link)
{
    for (uint32_t i = 0; i < link->queued; i++)
        if (link->queue[i].type == TR_EVENT_FRAME) tr_buf_release(link->queue[i].buf);
    assert_int_equal(link->buffers, 0);
    free(link->queue);
    free(link);
}

void fake_link_push(fake_link *link, uint32_t peer, const void *frame, size_t bytes)
{
    tr_buf *buf = make_buffer(link, bytes);

    assert_true(link->queued < QUEUE_MAX);
    memcpy(buf->data, frame, bytes);
    buf->length = bytes;
    link->queue[link->queued++] = (tr_event){.type = TR_EVENT_FRAME, .peer = peer, .buf = buf};
}

void fake_link_push_down(fake_link *link, uint32_t peer)
{
    assert_true(link->queued < QUEUE_MAX);
    link->queue[link->queued++] = (tr_event){.type = TR_EVENT_PEER_DOWN, .peer = peer};
}

uint8_t *fake_link_reply(const uint8_t *dispatch, const uint8_t *payload, size_t payload_bytes,
                         size_t *bytes)
{
    tr_frame_header asked, head;
    uint8_t *frame;

    memcpy(&asked, dispatch, sizeof(asked));
    head = tr_answer_head(&asked, TR_REPLY);
    *bytes = sizeof(head) + payload_bytes;
    frame = aligned_alloc(64, (*bytes + 63) / 64 * 64);
    assert_non_null(frame);
    if (payload_bytes > 0) memcpy(frame + sizeof(head), payload, payload_bytes);
    tr_frame_seal(frame, *bytes, &head);
    return frame;
}

void fake_link_answer_zeros(void *context, fake_link *link, uint32_t peer, const uint8_t *frame,
                            size_t bytes)
{
    static const uint8_t zeros[TR_ROWS_MAX]; /* kind 0: a zero row */
    tr_frame_header head;
    size_t reply_bytes;
    uint8_t *reply;

    (void)context;
    (void)bytes;
    memcpy(&head, frame, sizeof(head));
    reply = fake_link_reply(frame, zeros, head.rows, &reply_bytes);
    fake_link_push(link, peer, reply, reply_bytes);
    free(reply);
}
