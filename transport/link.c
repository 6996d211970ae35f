/* link.c - the checks every backend shares, then the backend. */
#include "transport/link.h"

#include "base/check.h"
#include "transport/frame.h"

rt_status tr_link_acquire(tr_link *link, size_t bytes, tr_buf **out)
{
    return link->ops->acquire(link, bytes, out);
}

rt_status tr_link_send(tr_link *link, uint32_t peer, tr_buf *buf)
{
    RT_ASSERT(peer < link->peer_count);
    RT_ASSERT(buf->length <= buf->capacity && buf->length <= TR_FRAME_BYTES_MAX);
    return link->ops->send(link, peer, buf);
}

rt_status tr_link_poll(tr_link *link, uint64_t timeout_ns, tr_event *out)
{
    return link->ops->poll(link, timeout_ns, out);
}

const char *tr_link_peer_name(const tr_link *link, uint32_t peer)
{
    RT_ASSERT(peer < link->peer_count);
    return link->ops->peer_name(link, peer);
}

void tr_link_close(tr_link *link)
{
    if (link != NULL) link->ops->close(link);
}
