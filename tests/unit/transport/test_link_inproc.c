/* The contract over inproc, and what only two ends in one process do. */
#include "transport/link_inproc.h"

#include "tests/support/link_contract.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { POOL = 1 << 20 };

static int over_inproc(void)
{
    static const uint32_t peers[] = {0};
    tr_link *a, *b;
    link_server *server;
    link_contract contract = {.peers = peers, .peer_count = 1, .pool_bytes = POOL};
    int failed;

    if (tr_inproc_create(POOL, &a, &b, NULL) != RT_OK) return 1;
    server = link_server_create(b);
    tr_inproc_set_driver(b, link_server_drive, server);
    contract.link = a;
    failed = link_contract_run("contract over inproc", &contract);
    tr_link_close(a);
    tr_link_close(b);
    link_server_free(server);
    return failed;
}

static void create(tr_link **a, tr_link **b)
{
    rt_err err;

    assert_int_equal(tr_inproc_create(POOL, a, b, &err), RT_OK);
}

static tr_buf *byte_frame(tr_link *link, uint8_t byte)
{
    tr_buf *buf = NULL;

    assert_int_equal(tr_link_acquire(link, 64, &buf), RT_OK);
    buf->data[0] = byte;
    buf->length = 1;
    return buf;
}

static void put(tr_link *link, uint8_t byte)
{
    assert_int_equal(tr_link_send(link, 0, byte_frame(link, byte)), RT_OK);
}

static int get(tr_link *link)
{
    tr_event event;
    int byte;

    if (tr_link_poll(link, 0, &event) != RT_OK || event.type != TR_EVENT_FRAME) return -1;
    byte = event.buf->data[0];
    tr_buf_release(event.buf);
    return byte;
}

static void passes_the_very_buffer_and_not_a_copy(void **state)
{
    tr_link *a, *b;
    tr_event event;
    tr_buf *buf;

    (void)state;
    create(&a, &b);
    buf = byte_frame(a, 3);
    assert_int_equal(tr_link_send(a, 0, buf), RT_OK);
    assert_int_equal(tr_link_poll(b, 0, &event), RT_OK);
    assert_ptr_equal(event.buf, buf);
    tr_buf_release(event.buf);
    tr_link_close(a);
    tr_link_close(b);
}

typedef struct {
    tr_link *end;
    int runs, depth, deepest;
} driven;

static void answer_all(void *context)
{
    driven *d = context;
    int byte;

    d->runs++;
    d->depth++;
    if (d->depth > d->deepest) d->deepest = d->depth;
    while ((byte = get(d->end)) >= 0)
        put(d->end, (uint8_t)(byte + 100));
    d->depth--;
}

static void the_driver_runs_only_when_nothing_waits(void **state)
{
    tr_link *a, *b;
    driven d = {0};

    (void)state;
    create(&a, &b);
    d.end = b;
    tr_inproc_set_driver(b, answer_all, &d);
    put(a, 1);
    put(a, 2);
    assert_int_equal(d.runs, 0);
    assert_int_equal(get(a), 101);
    assert_int_equal(d.runs, 1);
    assert_int_equal(get(a), 102);
    assert_int_equal(d.runs, 1);
    assert_int_equal(get(a), -1);
    assert_int_equal(d.runs, 2);
    tr_link_close(a);
    tr_link_close(b);
}

static void a_driver_that_polls_is_not_entered_again(void **state)
{
    tr_link *a, *b;
    driven of_a = {0}, of_b = {0};

    (void)state;
    create(&a, &b);
    of_a.end = a;
    of_b.end = b;
    tr_inproc_set_driver(a, answer_all, &of_a);
    tr_inproc_set_driver(b, answer_all, &of_b);
    assert_int_equal(get(a), -1);
    assert_int_equal(of_b.deepest, 1);
    assert_true(of_a.deepest <= 1);
    tr_link_close(a);
    tr_link_close(b);
}

static void a_long_timeout_does_not_wait_for_what_cannot_come(void **state)
{
    tr_link *a, *b;
    tr_event event;

    (void)state;
    create(&a, &b);
    assert_int_equal(tr_link_poll(a, UINT64_MAX, &event), RT_ETIMEOUT);
    tr_link_close(a);
    tr_link_close(b);
}

static uint32_t pick_last(void *context, uint32_t waiting)
{
    (*(int *)context)++;
    return waiting - 1;
}

static void pick_permutes_the_delivery(void **state)
{
    tr_link *a, *b;
    int picks = 0;

    (void)state;
    create(&a, &b);
    for (uint8_t i = 0; i < 40; i++)
        put(b, i);
    for (uint8_t i = 0; i < 10; i++)
        assert_int_equal(get(a), i);
    for (uint8_t i = 40; i < 50; i++)
        put(b, i);
    tr_inproc_set_pick(a, pick_last, &picks);
    for (uint8_t i = 49; i >= 30; i--)
        assert_int_equal(get(a), i);
    tr_inproc_set_pick(a, NULL, NULL);
    for (uint8_t i = 10; i < 30; i++)
        assert_int_equal(get(a), i);
    assert_int_equal(get(a), -1);
    assert_int_equal(picks, 20);
    tr_link_close(a);
    tr_link_close(b);
}

static void a_closed_end_is_a_peer_that_is_down(void **state)
{
    tr_link *a, *b;
    tr_event event;

    (void)state;
    create(&a, &b);
    put(b, 7);
    tr_link_close(b);
    assert_int_equal(get(a), 7); /* what was delivered before comes first */
    assert_int_equal(tr_link_poll(a, 0, &event), RT_OK);
    assert_int_equal(event.type, TR_EVENT_PEER_DOWN);
    assert_int_equal(event.peer, 0);
    assert_int_equal(tr_link_poll(a, 0, &event), RT_ETIMEOUT);
    tr_link_close(a);
}

static void a_failed_send_takes_its_buffer(void **state)
{
    tr_link *a, *b;

    (void)state;
    create(&a, &b);
    tr_link_close(b);
    /* More than the pool holds: if an error kept the buffer out, acquiring would be busy. */
    for (int i = 0; i < 40; i++) {
        tr_buf *buf = NULL;

        assert_int_equal(tr_link_acquire(a, POOL / 8, &buf), RT_OK);
        buf->length = 1;
        assert_int_equal(tr_link_send(a, 0, buf), RT_EPEER);
    }
    tr_link_close(a);
}

static void buffers_outlive_their_link(void **state)
{
    tr_link *a, *b;
    tr_event event;

    (void)state;
    create(&a, &b);
    put(a, 9);
    assert_int_equal(tr_link_poll(b, 0, &event), RT_OK);
    tr_link_close(a);
    tr_link_close(b);
    assert_int_equal(event.buf->data[0], 9);
    tr_buf_release(event.buf);
}

static void frames_that_wait_are_freed_with_their_end(void **state)
{
    tr_link *a, *b;

    (void)state;
    create(&a, &b);
    for (uint8_t i = 0; i < 50; i++)
        put(a, i);
    tr_link_close(b);
    tr_link_close(a);
    tr_link_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(passes_the_very_buffer_and_not_a_copy),
        cmocka_unit_test(the_driver_runs_only_when_nothing_waits),
        cmocka_unit_test(a_driver_that_polls_is_not_entered_again),
        cmocka_unit_test(a_long_timeout_does_not_wait_for_what_cannot_come),
        cmocka_unit_test(pick_permutes_the_delivery),
        cmocka_unit_test(a_closed_end_is_a_peer_that_is_down),
        cmocka_unit_test(a_failed_send_takes_its_buffer),
        cmocka_unit_test(buffers_outlive_their_link),
        cmocka_unit_test(frames_that_wait_are_freed_with_their_end),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);

    return failed + over_inproc();
}
