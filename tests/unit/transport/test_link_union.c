/* The contract over a union of inproc ends, its numbering, and whom it asks first. */
#include "transport/link_union.h"

#include "base/check.h"
#include "tests/support/link_contract.h"
#include "transport/link_inproc.h"
#include "transport/pool.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { POOL = 1 << 20, NODES = 3 };

static int over_union(void)
{
    static const uint32_t peers[NODES] = {0, 1, 2};
    tr_link *a[NODES], *b[NODES];
    link_server *server[NODES];
    tr_union_peer members[NODES];
    /* Each part has its pool; a full one lends from the next. */
    link_contract contract = {.peers = peers, .peer_count = NODES, .pool_bytes = POOL};
    int failed;

    for (int i = 0; i < NODES; i++) {
        if (tr_inproc_create(POOL, &a[i], &b[i], NULL) != RT_OK) return 1;
        server[i] = link_server_create(b[i]);
        tr_inproc_set_driver(b[i], link_server_drive, server[i]);
        members[i] = (tr_union_peer){.link = a[i], .peer = 0};
    }
    if (tr_union_create(members, NODES, &contract.link, NULL) != RT_OK) return 1;
    failed = link_contract_run("contract over a union", &contract);
    tr_link_close(contract.link);
    for (int i = 0; i < NODES; i++) {
        tr_link_close(a[i]);
        tr_link_close(b[i]);
        link_server_free(server[i]);
    }
    return failed;
}

/* A remote link made of a list of events; counts what is asked of it. */
typedef struct {
    tr_link link;
    tr_pool *pool;
    uint32_t events[8]; /* peers that a frame comes from */
    uint32_t first, count;
    uint32_t polls, waits, sent_to;
    uint64_t longest_ns;
} fake;

static rt_status fake_acquire(tr_link *link, size_t bytes, tr_buf **out)
{
    return tr_pool_acquire(((fake *)link)->pool, bytes, out);
}

static rt_status fake_send(tr_link *link, uint32_t peer, tr_buf *buf)
{
    ((fake *)link)->sent_to = peer;
    tr_buf_release(buf);
    return RT_OK;
}

static rt_status fake_poll(tr_link *link, uint64_t timeout_ns, tr_event *out)
{
    fake *self = (fake *)link;

    self->polls++;
    if (timeout_ns > 0) self->waits++;
    if (timeout_ns > self->longest_ns) self->longest_ns = timeout_ns;
    if (self->first == self->count) return RT_ETIMEOUT;
    out->type = TR_EVENT_FRAME;
    out->peer = self->events[self->first++];
    RT_ASSERT(tr_pool_acquire(self->pool, 64, &out->buf) == RT_OK);
    return RT_OK;
}

static const char *fake_name(const tr_link *link, uint32_t peer)
{
    static const char *const names[] = {"fake 0", "fake 1", "fake 2", "fake 3"};

    (void)link;
    return names[peer];
}

static void fake_close(tr_link *link)
{
    tr_pool_close(((fake *)link)->pool);
}

static const tr_link_ops fake_ops = {
    .name = "fake",
    .same_thread = false,
    .acquire = fake_acquire,
    .send = fake_send,
    .poll = fake_poll,
    .peer_name = fake_name,
    .close = fake_close,
};

static void fake_open(fake *self)
{
    memset(self, 0, sizeof(*self));
    self->link.ops = &fake_ops;
    self->link.peer_count = 4;
    self->pool = tr_pool_create(POOL);
    assert_non_null(self->pool);
}

/* Node 0 in this process, nodes 1 and 2 are peers 3 and 1 of the remote link. */
typedef struct {
    tr_link *a, *b, *all;
    fake remote;
    int drives;
} mixed;

static void count_drive(void *context)
{
    mixed *m = context;
    tr_event event;

    m->drives++;
    while (tr_link_poll(m->b, 0, &event) == RT_OK)
        if (event.type == TR_EVENT_FRAME) {
            rt_status status = tr_link_send(m->b, 0, event.buf);

            RT_ASSERT(status == RT_OK);
        }
}

static void mixed_open(mixed *m)
{
    tr_union_peer peers[3];

    memset(m, 0, sizeof(*m));
    fake_open(&m->remote);
    assert_int_equal(tr_inproc_create(POOL, &m->a, &m->b, NULL), RT_OK);
    tr_inproc_set_driver(m->b, count_drive, m);
    peers[0] = (tr_union_peer){.link = m->a, .peer = 0};
    peers[1] = (tr_union_peer){.link = &m->remote.link, .peer = 3};
    peers[2] = (tr_union_peer){.link = &m->remote.link, .peer = 1};
    assert_int_equal(tr_union_create(peers, 3, &m->all, NULL), RT_OK);
}

static void mixed_close(mixed *m)
{
    tr_link_close(m->all);
    tr_link_close(m->a);
    tr_link_close(m->b);
    tr_link_close(&m->remote.link);
}

static void send_one(tr_link *link, uint32_t peer)
{
    tr_buf *buf;

    assert_int_equal(tr_link_acquire(link, 64, &buf), RT_OK);
    buf->length = 64;
    assert_int_equal(tr_link_send(link, peer, buf), RT_OK);
}

static void expect_frame(tr_link *link, uint32_t peer)
{
    tr_event event;

    assert_int_equal(tr_link_poll(link, 0, &event), RT_OK);
    assert_int_equal(event.type, TR_EVENT_FRAME);
    assert_int_equal(event.peer, peer);
    tr_buf_release(event.buf);
}

static void peers_are_renumbered_both_ways(void **state)
{
    mixed m;

    (void)state;
    mixed_open(&m);
    assert_int_equal(m.all->peer_count, 3);
    send_one(m.all, 1);
    assert_int_equal(m.remote.sent_to, 3);
    send_one(m.all, 2);
    assert_int_equal(m.remote.sent_to, 1);
    m.remote.events[0] = 1;
    m.remote.events[1] = 3;
    m.remote.count = 2;
    expect_frame(m.all, 2);
    expect_frame(m.all, 1);
    assert_string_equal(tr_link_peer_name(m.all, 1), "fake 3");
    assert_string_equal(tr_link_peer_name(m.all, 0), "this process");
    mixed_close(&m);
}

static void remote_frames_come_before_computing_here(void **state)
{
    mixed m;

    (void)state;
    mixed_open(&m);
    send_one(m.all, 0);
    m.remote.events[0] = 3;
    m.remote.count = 1;
    expect_frame(m.all, 1);
    assert_int_equal(m.drives, 0);
    expect_frame(m.all, 0);
    assert_int_equal(m.drives, 1);
    mixed_close(&m);
}

static void waits_on_the_remote_link_only_after_all_were_asked(void **state)
{
    mixed m;
    tr_event event;

    (void)state;
    mixed_open(&m);
    assert_int_equal(tr_link_poll(m.all, 0, &event), RT_ETIMEOUT);
    assert_int_equal(m.remote.waits, 0);
    m.drives = 0;
    assert_int_equal(tr_link_poll(m.all, 1000, &event), RT_ETIMEOUT);
    assert_true(m.remote.waits >= 1);
    assert_true(m.remote.longest_ns <= 1000);
    assert_true(m.drives >= 1);
    mixed_close(&m);
}

static void events_of_unlisted_peers_are_dropped(void **state)
{
    mixed m;

    (void)state;
    mixed_open(&m);
    m.remote.events[0] = 0;
    m.remote.events[1] = 2;
    m.remote.events[2] = 1;
    m.remote.count = 3;
    expect_frame(m.all, 2);
    assert_int_equal(tr_pool_out_bytes(m.remote.pool), 0);
    mixed_close(&m);
}

static uint32_t pick_given(void *context, uint32_t parts)
{
    assert_int_equal(parts, 2);
    return *(uint32_t *)context;
}

static void pick_says_which_part_is_asked_first(void **state)
{
    fake x, y;
    tr_union_peer peers[2];
    tr_link *all;
    uint32_t first = 1;

    (void)state;
    fake_open(&x);
    fake_open(&y);
    x.count = y.count = 2; /* frames of peer 0 each */
    peers[0] = (tr_union_peer){.link = &x.link, .peer = 0};
    peers[1] = (tr_union_peer){.link = &y.link, .peer = 0};
    assert_int_equal(tr_union_create(peers, 2, &all, NULL), RT_OK);
    tr_union_set_pick(all, pick_given, &first);
    expect_frame(all, 1);
    first = 0;
    expect_frame(all, 0);
    first = 1;
    expect_frame(all, 1);
    expect_frame(all, 0);
    tr_link_close(all);
    tr_link_close(&x.link);
    tr_link_close(&y.link);
}

static void refuses_peers_that_cannot_be(void **state)
{
    fake x;
    tr_union_peer peers[2];
    tr_link *all = NULL;
    rt_err err;

    (void)state;
    fake_open(&x);
    peers[0] = (tr_union_peer){.link = &x.link, .peer = 3};
    peers[1] = (tr_union_peer){.link = &x.link, .peer = 4};
    assert_int_equal(tr_union_create(peers, 2, &all, &err), RT_EINVAL);
    assert_non_null(strstr(err.text, "below 4, found 4"));
    peers[1].peer = 3;
    assert_int_equal(tr_union_create(peers, 2, &all, &err), RT_EINVAL);
    assert_non_null(strstr(err.text, "found again"));
    assert_int_equal(tr_union_create(peers, 0, &all, &err), RT_EINVAL);
    assert_null(all);
    tr_link_close(&x.link);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(peers_are_renumbered_both_ways),
        cmocka_unit_test(remote_frames_come_before_computing_here),
        cmocka_unit_test(waits_on_the_remote_link_only_after_all_were_asked),
        cmocka_unit_test(events_of_unlisted_peers_are_dropped),
        cmocka_unit_test(pick_says_which_part_is_asked_first),
        cmocka_unit_test(refuses_peers_that_cannot_be),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);

    return failed + over_union();
}
