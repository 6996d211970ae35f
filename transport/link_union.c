/* link_union.c - the numbering of peers over several links, and whom a poll asks first.
 *
 * Remote links are asked before those whose poll computes: a frame that has come already must not wait
 * behind an expert of this process. */
#include "transport/link_union.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "transport/frame.h"

#include <stdlib.h>

enum { NO_PEER = 0xffffffff };

/* With several remote links each gets a short look in turn; none can wake us for the others. */
static const uint64_t LOOK_NS = 200000;

typedef struct {
    tr_link *link;     /* borrowed */
    uint32_t *peer_of; /* [link->peer_count]: number in the union or NO_PEER; owned */
} union_part;

typedef struct {
    tr_link link;         /* first */
    tr_union_peer *peers; /* [peer_count] owned */
    union_part *parts;    /* owned */
    uint32_t part_count, remote_count;
    uint32_t next; /* part to look at first, so that no peer starves the others */
    tr_union_pick pick;
    void *pick_context;
} union_link;

static rt_status union_acquire(tr_link *link, size_t bytes, tr_buf **out)
{
    const union_link *self = (const union_link *)link;
    rt_status status = RT_EBUSY;

    for (int same_thread = 0; same_thread <= 1; same_thread++)
        for (uint32_t i = 0; i < self->part_count; i++) {
            tr_link *part = self->parts[i].link;

            if (part->ops->same_thread != (same_thread != 0)) continue;
            status = tr_link_acquire(part, bytes, out);
            if (status != RT_EBUSY) return status;
        }
    return status;
}

static rt_status union_send(tr_link *link, uint32_t peer, tr_buf *buf)
{
    const union_link *self = (const union_link *)link;

    return tr_link_send(self->peers[peer].link, self->peers[peer].peer, buf);
}

/* Polls one part until it gives an event of a listed peer or its status. */
static rt_status poll_part(const union_link *self, uint32_t index, uint64_t timeout_ns,
                           tr_event *out)
{
    const union_part *part = &self->parts[index];

    for (;;) {
        tr_event event;
        rt_status status = tr_link_poll(part->link, timeout_ns, &event);

        if (status != RT_OK) return status;
        RT_ASSERT(event.peer < part->link->peer_count);
        if (part->peer_of[event.peer] != NO_PEER) {
            event.peer = part->peer_of[event.peer];
            *out = event;
            return RT_OK;
        }
        rt_log_debug("transport", "dropped an event of %s, which is no peer here",
                     tr_link_peer_name(part->link, event.peer));
        if (event.type == TR_EVENT_FRAME) tr_buf_release(event.buf);
    }
}

/* One look at every part of a kind, starting at `first`. */
static rt_status look(const union_link *self, uint32_t first, bool same_thread, uint64_t timeout_ns,
                      tr_event *out)
{
    for (uint32_t i = 0; i < self->part_count; i++) {
        uint32_t index = (first + i) % self->part_count;
        rt_status status;

        if (self->parts[index].link->ops->same_thread != same_thread) continue;
        status = poll_part(self, index, timeout_ns, out);
        if (status != RT_ETIMEOUT) return status;
    }
    return RT_ETIMEOUT;
}

static rt_status union_poll(tr_link *link, uint64_t timeout_ns, tr_event *out)
{
    union_link *self = (union_link *)link;
    rt_clock clock = rt_clock_real();
    uint64_t start = rt_clock_now(&clock);
    uint32_t first = self->next;
    bool once = true;

    if (self->pick != NULL) {
        first = self->pick(self->pick_context, self->part_count);
        RT_ASSERT(first < self->part_count);
    }
    self->next = (self->next + 1) % self->part_count;
    for (;;) {
        uint64_t waited = once ? 0 : rt_clock_now(&clock) - start;
        uint64_t left = waited < timeout_ns ? timeout_ns - waited : 0;
        rt_status status = look(self, first, false, 0, out);

        if (status == RT_ETIMEOUT) status = look(self, first, true, 0, out);
        if (status != RT_ETIMEOUT) return status;
        if (self->remote_count == 0 || left == 0) return RT_ETIMEOUT;
        status = look(self, first, false,
                      self->remote_count == 1 || left < LOOK_NS ? left : LOOK_NS, out);
        if (status != RT_ETIMEOUT) return status;
        once = false;
    }
}

static const char *union_peer_name(const tr_link *link, uint32_t peer)
{
    const union_link *self = (const union_link *)link;

    return tr_link_peer_name(self->peers[peer].link, self->peers[peer].peer);
}

static void union_close(tr_link *link)
{
    union_link *self = (union_link *)link;

    for (uint32_t i = 0; i < self->part_count; i++)
        free(self->parts[i].peer_of);
    free(self->parts);
    free(self->peers);
    free(self);
}

static const tr_link_ops union_ops = {
    .name = "union",
    .acquire = union_acquire,
    .send = union_send,
    .poll = union_poll,
    .peer_name = union_peer_name,
    .close = union_close,
};

/* The part of a link, added when it is new; NULL when memory is short. */
static union_part *part_of(union_link *self, tr_link *link)
{
    union_part *part = self->parts;

    for (uint32_t i = 0; i < self->part_count; i++)
        if (part[i].link == link) return &part[i];
    part += self->part_count;
    part->peer_of = malloc(link->peer_count * sizeof(*part->peer_of));
    if (part->peer_of == NULL) return NULL;
    for (uint32_t i = 0; i < link->peer_count; i++)
        part->peer_of[i] = NO_PEER;
    part->link = link;
    self->part_count++;
    if (!link->ops->same_thread) self->remote_count++;
    return part;
}

rt_status tr_union_create(const tr_union_peer *peers, uint32_t count, tr_link **out, rt_err *err)
{
    union_link *self;
    rt_status status = RT_ENOMEM;

    if (count == 0) return rt_fail(err, RT_EINVAL, "union of links: expected a peer, found none");
    self = calloc(1, sizeof(*self));
    if (self == NULL) return rt_fail(err, RT_ENOMEM, "union of links");
    self->link.ops = &union_ops;
    self->link.peer_count = count;
    self->peers = calloc(count, sizeof(*self->peers));
    self->parts = calloc(count, sizeof(*self->parts));
    if (self->peers == NULL || self->parts == NULL) goto fail;
    for (uint32_t i = 0; i < count; i++) {
        union_part *part;

        if (peers[i].peer >= peers[i].link->peer_count) {
            status = rt_fail(err, RT_EINVAL, "union peer %u: expected a peer below %u, found %u", i,
                             peers[i].link->peer_count, peers[i].peer);
            goto fail;
        }
        part = part_of(self, peers[i].link);
        if (part == NULL) goto fail;
        if (part->peer_of[peers[i].peer] != NO_PEER) {
            status = rt_fail(err, RT_EINVAL, "union peer %u: found again as peer %u",
                             part->peer_of[peers[i].peer], i);
            goto fail;
        }
        part->peer_of[peers[i].peer] = i;
        self->peers[i] = peers[i];
    }
    *out = &self->link;
    return RT_OK;
fail:
    union_close(&self->link);
    if (status == RT_ENOMEM) return rt_fail(err, RT_ENOMEM, "union of %u peers", count);
    return status;
}

void tr_union_set_pick(tr_link *link, tr_union_pick pick, void *context)
{
    union_link *self = (union_link *)link;

    RT_ASSERT(link->ops == &union_ops);
    self->pick = pick;
    self->pick_context = context;
}
