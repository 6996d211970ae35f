/* link_inproc.c - two queues of buffer pointers, and who runs when.
 *
 * The queues are rings of pointers that grow while the pools' bounds allow buffers; nothing is copied.
 * An end that is closed leaves the other one alive: the pair is freed with its second end. */
#include "transport/link_inproc.h"

#include "base/check.h"
#include "base/stop.h"
#include "transport/pool.h"

#include <stdlib.h>
#include <string.h>

typedef struct inproc_pair inproc_pair;

typedef struct {
    tr_link link; /* first: a tr_link of ours is an end */
    inproc_pair *pair;
    tr_pool *pool; /* owned; of what this end sends */
    bool open, down_reported;
    tr_inproc_driver driver; /* of the role behind this end */
    void *driver_context;
    bool driving; /* the driver is on the stack */
    tr_inproc_pick pick;
    void *pick_context;
    tr_buf **waiting; /* frames for this end, oldest first: a ring, owned */
    uint32_t first, count, room;
} inproc_end;

struct inproc_pair {
    inproc_end end[2];
};

static inproc_end *other(const inproc_end *end)
{
    return &end->pair->end[end == &end->pair->end[0]];
}

static rt_status inproc_acquire(tr_link *link, size_t bytes, tr_buf **out)
{
    return tr_pool_acquire(((inproc_end *)link)->pool, bytes, out);
}

/* A ring of twice the room, the oldest frame first. */
static bool grow(inproc_end *end)
{
    uint32_t room = end->room > 0 ? end->room * 2 : 16;
    tr_buf **waiting = calloc(room, sizeof(*waiting));

    if (waiting == NULL) return false;
    for (uint32_t i = 0; i < end->count; i++)
        waiting[i] = end->waiting[(end->first + i) % end->room];
    free(end->waiting);
    end->waiting = waiting;
    end->room = room;
    end->first = 0;
    return true;
}

/* TOKEN:8 to the experts of this process: a pointer changes hands. */
static rt_status inproc_send(tr_link *link, uint32_t peer, tr_buf *buf)
{
    inproc_end *to = other((inproc_end *)link);

    (void)peer;
    if (!to->open) {
        tr_buf_release(buf);
        return RT_EPEER;
    }
    if (to->count == to->room && !grow(to)) {
        tr_buf_release(buf);
        return RT_ENOMEM;
    }
    to->waiting[(to->first + to->count) % to->room] = buf;
    to->count++;
    return RT_OK;
}

static tr_buf *take(inproc_end *end)
{
    uint32_t index = 0;
    tr_buf *buf;

    if (end->pick != NULL) {
        index = end->pick(end->pick_context, end->count);
        RT_ASSERT(index < end->count);
    }
    buf = end->waiting[(end->first + index) % end->room];
    /* Those before the one taken move up, so that the rest keeps its order. */
    for (; index > 0; index--)
        end->waiting[(end->first + index) % end->room] =
            end->waiting[(end->first + index - 1) % end->room];
    end->first = (end->first + 1) % end->room;
    end->count--;
    return buf;
}

static void drive(inproc_end *end)
{
    if (end->driver == NULL || end->driving || !end->open) return;
    end->driving = true;
    end->driver(end->driver_context);
    end->driving = false;
}

static rt_status inproc_poll(tr_link *link, uint64_t timeout_ns, tr_event *out)
{
    inproc_end *end = (inproc_end *)link;

    (void)timeout_ns; /* see the header: no wait can bring a frame */
    if (end->count == 0) {
        if (rt_stop_requested()) return RT_ECANCELED;
        drive(other(end));
    }
    if (end->count > 0) {
        *out = (tr_event){.type = TR_EVENT_FRAME, .peer = 0, .buf = take(end)};
        return RT_OK;
    }
    if (!other(end)->open && !end->down_reported) {
        end->down_reported = true;
        *out = (tr_event){.type = TR_EVENT_PEER_DOWN, .peer = 0};
        return RT_OK;
    }
    return RT_ETIMEOUT;
}

static const char *inproc_peer_name(const tr_link *link, uint32_t peer)
{
    (void)link;
    (void)peer;
    return "this process";
}

static void inproc_close(tr_link *link)
{
    inproc_end *end = (inproc_end *)link;

    RT_ASSERT(end->open && !end->driving);
    end->open = false;
    while (end->count > 0) {
        tr_buf_release(end->waiting[end->first]);
        end->first = (end->first + 1) % end->room;
        end->count--;
    }
    free(end->waiting);
    end->waiting = NULL;
    end->room = 0;
    tr_pool_close(end->pool);
    if (!other(end)->open) free(end->pair);
}

static const tr_link_ops inproc_ops = {
    .name = "inproc",
    .same_thread = true,
    .acquire = inproc_acquire,
    .send = inproc_send,
    .poll = inproc_poll,
    .peer_name = inproc_peer_name,
    .close = inproc_close,
};

rt_status tr_inproc_create(size_t pool_bytes, tr_link **a, tr_link **b, rt_err *err)
{
    inproc_pair *pair = calloc(1, sizeof(*pair));

    if (pair == NULL) goto fail;
    for (int i = 0; i < 2; i++) {
        inproc_end *end = &pair->end[i];

        end->link.ops = &inproc_ops;
        end->link.peer_count = 1;
        end->pair = pair;
        end->open = true;
        end->pool = tr_pool_create(pool_bytes);
        if (end->pool == NULL) goto fail;
    }
    *a = &pair->end[0].link;
    *b = &pair->end[1].link;
    return RT_OK;
fail:
    if (pair != NULL) {
        tr_pool_close(pair->end[0].pool);
        tr_pool_close(pair->end[1].pool);
    }
    free(pair);
    return rt_fail(err, RT_ENOMEM, "inproc link");
}

void tr_inproc_set_driver(tr_link *b, tr_inproc_driver driver, void *context)
{
    inproc_end *end = (inproc_end *)b;

    RT_ASSERT(b->ops == &inproc_ops);
    end->driver = driver;
    end->driver_context = context;
}

void tr_inproc_set_pick(tr_link *link, tr_inproc_pick pick, void *context)
{
    inproc_end *end = (inproc_end *)link;

    RT_ASSERT(link->ops == &inproc_ops);
    end->pick = pick;
    end->pick_context = context;
}
