/* link_contract.c - the server that answers, and the tests that ask. */
#include "tests/support/link_contract.h"

#include "base/check.h"
#include "transport/frame.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef enum { CALL_ECHO = 1, CALL_BURST, CALL_DROP, CALL_QUIT } call_type;

/* The first bytes of every frame of these tests; a pattern follows that depends on seq. */
typedef struct {
    uint32_t type, count, bytes, reserved;
    uint64_t seq;
} call;

static const uint64_t PATIENCE_NS = 20000000000; /* a frame that takes longer is lost */

static void fill(tr_buf *buf, const call *head, size_t bytes)
{
    RT_ASSERT(bytes >= sizeof(*head) && bytes <= buf->capacity);
    memcpy(buf->data, head, sizeof(*head));
    for (size_t i = sizeof(*head); i < bytes; i++)
        buf->data[i] = (uint8_t)(i * 31 + head->seq * 7 + (i >> 9));
    buf->length = bytes;
}

static bool pattern_holds(const tr_buf *buf, const call *head)
{
    for (size_t i = sizeof(*head); i < buf->length; i++)
        if (buf->data[i] != (uint8_t)(i * 31 + head->seq * 7 + (i >> 9))) return false;
    return true;
}

/* ---- the server ---- */

enum { JOBS_MAX = 256 };

typedef struct {
    uint32_t peer;
    call burst;
} server_job;

struct link_server {
    tr_link *link;
    server_job jobs[JOBS_MAX]; /* bursts that are not all sent; oldest first */
    uint32_t job_count;
};

link_server *link_server_create(tr_link *link)
{
    link_server *server = calloc(1, sizeof(*server));

    RT_ASSERT(server != NULL);
    server->link = link;
    return server;
}

void link_server_free(link_server *server)
{
    free(server);
}

static void send_bursts(link_server *server)
{
    while (server->job_count > 0) {
        server_job *job = &server->jobs[0];

        while (job->burst.seq < job->burst.count) {
            tr_buf *buf;
            rt_status status = tr_link_acquire(server->link, job->burst.bytes, &buf);

            if (status == RT_EBUSY) return;
            RT_ASSERT(status == RT_OK);
            fill(buf, &job->burst, job->burst.bytes);
            job->burst.seq++;
            RT_ASSERT(tr_link_send(server->link, job->peer, buf) == RT_OK);
        }
        server->job_count--;
        memmove(&server->jobs[0], &server->jobs[1], server->job_count * sizeof(server->jobs[0]));
    }
}

static bool serve(link_server *server, uint32_t peer, tr_buf *buf)
{
    call head;

    RT_ASSERT(buf->length >= sizeof(head));
    memcpy(&head, buf->data, sizeof(head));
    if (head.type == CALL_ECHO) {
        RT_ASSERT(tr_link_send(server->link, peer, buf) == RT_OK);
        return true;
    }
    tr_buf_release(buf);
    if (head.type == CALL_BURST) {
        RT_ASSERT(server->job_count < JOBS_MAX);
        server->jobs[server->job_count++] = (server_job){.peer = peer, .burst = head};
    }
    return head.type != CALL_QUIT;
}

bool link_server_step(link_server *server, uint64_t timeout_ns)
{
    tr_event event;
    rt_status status;
    bool more = true;

    send_bursts(server);
    status = tr_link_poll(server->link, timeout_ns, &event);
    if (status == RT_ECANCELED) return false;
    RT_ASSERT(status == RT_OK || status == RT_ETIMEOUT);
    if (status == RT_OK && event.type == TR_EVENT_FRAME)
        more = serve(server, event.peer, event.buf);
    send_bursts(server);
    return more;
}

void link_server_drive(void *context)
{
    link_server *server = context;
    tr_event event;

    send_bursts(server);
    while (tr_link_poll(server->link, 0, &event) == RT_OK)
        if (event.type == TR_EVENT_FRAME) (void)serve(server, event.peer, event.buf);
    send_bursts(server);
}

/* ---- the tests ---- */

static link_contract at; /* of the running group */

/* A buffer, once what was sent before has left: that its echo is here does not mean that the link has
 * noticed. No frame is on its way meanwhile. */
static rt_status acquire_when_free(tr_link *link, size_t bytes, tr_buf **out)
{
    tr_event event;
    rt_status status;

    while ((status = tr_link_acquire(link, bytes, out)) == RT_EBUSY)
        RT_ASSERT(tr_link_poll(link, 100000, &event) == RT_ETIMEOUT);
    return status;
}

static tr_buf *acquire(size_t bytes)
{
    tr_buf *buf = NULL;

    assert_int_equal(acquire_when_free(at.link, bytes, &buf), RT_OK);
    return buf;
}

static void send_call(uint32_t peer, const call *head, size_t bytes)
{
    tr_buf *buf = acquire(bytes);

    fill(buf, head, bytes);
    assert_int_equal(tr_link_send(at.link, peer, buf), RT_OK);
}

static tr_buf *receive(uint32_t *peer)
{
    tr_event event = {0};

    assert_int_equal(tr_link_poll(at.link, PATIENCE_NS, &event), RT_OK);
    assert_int_equal(event.type, TR_EVENT_FRAME);
    *peer = event.peer;
    return event.buf;
}

/* Receives one frame and checks it whole; returns its seq. */
static uint64_t receive_checked(uint32_t *peer, size_t *bytes)
{
    tr_buf *buf = receive(peer);
    call head;

    assert_true(buf->length >= sizeof(head));
    memcpy(&head, buf->data, sizeof(head));
    assert_true(pattern_holds(buf, &head));
    *bytes = buf->length;
    tr_buf_release(buf);
    return head.seq;
}

static void frames_come_back_byte_for_byte_at_every_size(void **state)
{
    static const size_t sizes[] = {sizeof(call), 64, 65, 4095, 4097, 65537, 300001, 8u << 20};

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        call head = {.type = CALL_ECHO, .seq = 1000 + i};
        uint32_t peer;
        size_t bytes;

        send_call(at.peers[0], &head, sizes[i]);
        assert_int_equal(receive_checked(&peer, &bytes), head.seq);
        assert_int_equal(peer, at.peers[0]);
        assert_int_equal(bytes, sizes[i]);
    }
}

static void buffers_are_aligned_empty_and_large_enough(void **state)
{
    static const size_t sizes[] = {0, 1, 64, 1000, 4097, 100000};

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        tr_buf *buf = acquire(sizes[i]);

        assert_int_equal((uintptr_t)buf->data % TR_FRAME_ALIGN, 0);
        assert_true(buf->capacity >= sizes[i]);
        assert_int_equal(buf->length, 0);
        memset(buf->data, 0xee, buf->capacity);
        tr_buf_release(buf);
    }
}

static void a_received_buffer_is_aligned_too(void **state)
{
    call head = {.type = CALL_ECHO, .seq = 5};
    uint32_t peer;
    tr_buf *buf;

    (void)state;
    send_call(at.peers[0], &head, 777);
    buf = receive(&peer);
    assert_int_equal((uintptr_t)buf->data % TR_FRAME_ALIGN, 0);
    assert_int_equal(buf->length, 777);
    tr_buf_release(buf);
}

/* Sends frames with seq 0.. to every peer in turn and takes the echoes as they come; a full pool is the
 * sign to poll. Large and small alternate, since backends send them by different ways. */
static void frames_of_a_peer_keep_their_order_among_many_in_flight(void **state)
{
    enum { FRAMES = 400 };
    uint64_t *next = calloc(at.link->peer_count, sizeof(*next));
    uint32_t sent = 0, received = 0, total = FRAMES * at.peer_count;

    (void)state;
    assert_non_null(next);
    while (received < total) {
        size_t bytes = sent % 7 == 0 ? 200000 + sent : 100 + sent % 5000, got;
        call head = {.type = CALL_ECHO, .seq = sent / at.peer_count};
        uint32_t peer;
        tr_buf *buf;

        if (sent < total) {
            rt_status status = tr_link_acquire(at.link, bytes, &buf);

            if (status == RT_OK) {
                fill(buf, &head, bytes);
                assert_int_equal(tr_link_send(at.link, at.peers[sent % at.peer_count], buf), RT_OK);
                sent++;
                continue;
            }
            assert_int_equal(status, RT_EBUSY);
        }
        head.seq = receive_checked(&peer, &got);
        assert_int_equal(head.seq, next[peer]);
        next[peer]++;
        received++;
    }
    free(next);
}

static void peers_may_send_far_more_than_the_pools_hold(void **state)
{
    enum { FRAMES = 60 };
    call head = {.type = CALL_BURST, .count = FRAMES, .bytes = 500000};
    uint64_t *next = calloc(at.link->peer_count, sizeof(*next));

    (void)state;
    assert_non_null(next);
    assert_true((uint64_t)FRAMES * head.bytes > 2 * at.pool_bytes);
    for (uint32_t i = 0; i < at.peer_count; i++)
        send_call(at.peers[i], &head, sizeof(head));
    for (uint32_t i = 0; i < FRAMES * at.peer_count; i++) {
        uint32_t peer;
        size_t bytes;
        uint64_t seq = receive_checked(&peer, &bytes);

        assert_int_equal(seq, next[peer]);
        assert_int_equal(bytes, head.bytes);
        next[peer]++;
    }
    free(next);
}

static void a_poll_without_a_frame_times_out(void **state)
{
    tr_event event = {.peer = 77};

    (void)state;
    for (int i = 0; i < 20; i++)
        assert_int_equal(tr_link_poll(at.link, 0, &event), RT_ETIMEOUT);
    assert_int_equal(tr_link_poll(at.link, 1000000, &event), RT_ETIMEOUT);
    assert_int_equal(event.peer, 77);
}

static void an_exhausted_pool_is_busy_until_a_buffer_comes_back(void **state)
{
    enum { HELD_MAX = 4096 };
    tr_buf **held = calloc(HELD_MAX, sizeof(tr_buf *)), *extra = NULL;
    size_t bytes = at.pool_bytes / 8;
    uint32_t count = 0;
    rt_status status;

    (void)state;
    assert_non_null(held);
    tr_buf_release(acquire(at.pool_bytes)); /* all of it, so nothing else is out */
    do {
        assert_true(count < HELD_MAX);
        status = tr_link_acquire(at.link, bytes, &held[count]);
        if (status == RT_OK) count++;
    } while (status == RT_OK);
    assert_int_equal(status, RT_EBUSY);
    assert_true(count >= 4);
    assert_int_equal(tr_link_acquire(at.link, bytes, &extra), RT_EBUSY);
    assert_null(extra);
    tr_buf_release(held[--count]);
    assert_int_equal(tr_link_acquire(at.link, bytes, &extra), RT_OK);
    tr_buf_release(extra);
    while (count > 0)
        tr_buf_release(held[--count]);
    free(held);
}

static void sending_gives_the_buffer_back_in_the_end(void **state)
{
    (void)state;
    /* Thirty times the pool: if a send kept its buffer, acquiring would be busy for good. */
    for (uint32_t i = 0; i < 120; i++) {
        call head = {.type = CALL_DROP, .seq = i};
        size_t bytes = at.pool_bytes / 4;
        tr_buf *buf = acquire(bytes);

        fill(buf, &head, bytes);
        assert_int_equal(tr_link_send(at.link, at.peers[i % at.peer_count], buf), RT_OK);
    }
}

static void a_frame_larger_than_the_pool_goes_alone(void **state)
{
    call head = {.type = CALL_ECHO, .seq = 9};
    size_t bytes = at.pool_bytes + 1000, got;
    uint32_t peer;

    (void)state;
    send_call(at.peers[0], &head, bytes);
    assert_int_equal(receive_checked(&peer, &got), 9);
    assert_int_equal(got, bytes);
}

static void a_frame_beyond_the_cap_is_refused(void **state)
{
    tr_buf *buf = NULL;

    (void)state;
    assert_int_equal(tr_link_acquire(at.link, (size_t)TR_FRAME_BYTES_MAX + 1, &buf), RT_EINVAL);
    assert_null(buf);
}

static void every_peer_has_a_name(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < at.peer_count; i++)
        assert_true(strlen(tr_link_peer_name(at.link, at.peers[i])) > 3);
}

int link_contract_run(const char *group, const link_contract *contract)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_come_back_byte_for_byte_at_every_size),
        cmocka_unit_test(buffers_are_aligned_empty_and_large_enough),
        cmocka_unit_test(a_received_buffer_is_aligned_too),
        cmocka_unit_test(frames_of_a_peer_keep_their_order_among_many_in_flight),
        cmocka_unit_test(peers_may_send_far_more_than_the_pools_hold),
        cmocka_unit_test(a_poll_without_a_frame_times_out),
        cmocka_unit_test(an_exhausted_pool_is_busy_until_a_buffer_comes_back),
        cmocka_unit_test(sending_gives_the_buffer_back_in_the_end),
        cmocka_unit_test(a_frame_larger_than_the_pool_goes_alone),
        cmocka_unit_test(a_frame_beyond_the_cap_is_refused),
        cmocka_unit_test(every_peer_has_a_name),
    };

    at = *contract;
    return cmocka_run_group_tests_name(group, tests, NULL, NULL);
}

void link_contract_quit(const link_contract *contract)
{
    for (uint32_t i = 0; i < contract->peer_count; i++) {
        call head = {.type = CALL_QUIT};
        tr_buf *buf;

        /* A server that is not told never ends. */
        RT_ASSERT(acquire_when_free(contract->link, sizeof(head), &buf) == RT_OK);
        fill(buf, &head, sizeof(head));
        RT_ASSERT(tr_link_send(contract->link, contract->peers[i], buf) == RT_OK);
    }
}
