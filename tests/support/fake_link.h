/* fake_link.h - a link whose peers are the test: what is sent is handed to a callback, what arrives is
 * pushed by hand, and waiting moves a virtual clock.
 *
 * Threads: one test. */
#ifndef TESTS_SUPPORT_FAKE_LINK_H
#define TESTS_SUPPORT_FAKE_LINK_H

#include "transport/frame.h"
#include "transport/link.h"

typedef struct fake_link fake_link;

/* A frame was sent to a peer; the callback may push answers. */
typedef void (*fake_link_sent)(void *context, fake_link *link, uint32_t peer, const uint8_t *frame,
                               size_t bytes);

struct fake_link {
    tr_link link; /* first */
    rt_virtual_time time;
    fake_link_sent sent;
    void *sent_context;
    uint32_t sent_frames;  /* so far */
    uint32_t polls;        /* so far */
    uint32_t busy;         /* acquires refused before the pool has room again */
    bool stop;             /* polls of an empty queue give RT_ECANCELED */
    rt_status send_status; /* what send returns */
    uint32_t buffers;      /* handed out and not released */
    tr_event *queue;
    uint32_t queued;
};

fake_link *fake_link_create(uint32_t peers);
void fake_link_free(fake_link *link); /* fails the test when a buffer was not released */

/* A frame from a peer, copied; a peer that is known to be down. */
void fake_link_push(fake_link *link, uint32_t peer, const void *frame, size_t bytes);
void fake_link_push_down(fake_link *link, uint32_t peer);

/* A well-formed reply to a dispatch frame with this payload, in memory of its own. */
uint8_t *fake_link_reply(const uint8_t *dispatch, const uint8_t *payload, size_t payload_bytes,
                         size_t *bytes);

/* fake_link_sent: every dispatch is answered at once by rows of zeros. */
void fake_link_answer_zeros(void *context, fake_link *link, uint32_t peer, const uint8_t *frame,
                            size_t bytes);

#endif
