/* link.h - frames between this process and its peers, whatever carries them.
 *
 * One interface and one contract test-suite for inproc, mpi and later sim, tcp, ucx, nccl. A peer is an
 * index 0 .. peer_count-1 with a name for messages. Frames of one peer arrive whole and in order.
 * Failure is decided by the caller's deadlines; a link reports a peer down when it learns of it, but
 * never has to.
 *
 * Buffers: sending hands the buffer over, also on error; receiving gives one that must be released.
 *
 * Threads: one owner thread per link polls and sends. */
#ifndef TRANSPORT_LINK_H
#define TRANSPORT_LINK_H

#include "base/clock.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tr_link tr_link;

typedef struct tr_buf {
    uint8_t *data; /* 64-byte aligned */
    size_t capacity;
    size_t length;                       /* set by the sender; of the frame when received */
    void (*release)(struct tr_buf *buf); /* the pool's; call tr_buf_release */
    void *owner;
} tr_buf;

typedef enum { TR_EVENT_FRAME, TR_EVENT_PEER_DOWN } tr_event_type;

typedef struct {
    tr_event_type type;
    uint32_t peer;
    tr_buf *buf; /* FRAME: owned by the receiver now */
} tr_event;

typedef struct {
    const char *name; /* "inproc", "mpi" */
    /* Polling never waits: only this thread can make frames, and the poll itself lets it. */
    bool same_thread;
    rt_status (*acquire)(tr_link *link, size_t bytes, tr_buf **out);
    rt_status (*send)(tr_link *link, uint32_t peer, tr_buf *buf);
    rt_status (*poll)(tr_link *link, uint64_t timeout_ns, tr_event *out);
    const char *(*peer_name)(const tr_link *link, uint32_t peer);
    void (*close)(tr_link *link);
} tr_link_ops;

/* Backends embed this as their first member. */
struct tr_link {
    const tr_link_ops *ops;
    uint32_t peer_count;
};

/* A buffer for a frame of up to `bytes`; it may be sent on any link. A bound smaller than one frame
 * lets one buffer out at a time.
 *   Errors  RT_EBUSY   the pool's bound is reached; poll and try again
 *           RT_EINVAL  more than TR_FRAME_BYTES_MAX
 *           RT_ENOMEM  the machine has no memory */
RT_MUST_CHECK rt_status tr_link_acquire(tr_link *link, size_t bytes, tr_buf **out);

/* Starts sending buf (buf->length bytes) to peer and takes the buffer, also on error. Never blocks on
 * the peer.  RT_EPEER: the peer is known to be down.  RT_ENOMEM: nothing was sent.  A peer out of
 * range and a length beyond the capacity are asserted. */
RT_MUST_CHECK rt_status tr_link_send(tr_link *link, uint32_t peer, tr_buf *buf);

/* Waits up to timeout_ns (0: look once) for an event. PEER_DOWN comes once a peer, after the frames
 * that it still delivered.  RT_ETIMEOUT: none came; at once when none can come (inproc).
 * RT_ECANCELED: a stop was requested (base/stop.h) while nothing was pending. */
RT_MUST_CHECK rt_status tr_link_poll(tr_link *link, uint64_t timeout_ns, tr_event *out);

const char *tr_link_peer_name(const tr_link *link, uint32_t peer); /* "rank 2 (host a, pid 17)" */
/* Frees; NULL allowed. Buffers that are still out stay valid until they are released. */
void tr_link_close(tr_link *link);

static inline void tr_buf_release(tr_buf *buf)
{
    if (buf != NULL) buf->release(buf);
}

#endif
