/* A requested stop ends waits, after what has come was given out. The flag cannot be taken back, so
 * these tests have a process of their own. */
#include "transport/link_inproc.h"
#include "transport/link_union.h"

#include "base/stop.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>

#include <cmocka.h>

static int request_stop(void **state)
{
    (void)state;
    if (rt_stop_requested()) return 0;
    rt_stop_install();
    raise(SIGTERM);
    return rt_stop_requested() ? 0 : 1;
}

static void driver_ran(void *context)
{
    *(bool *)context = true;
}

static void a_stop_cancels_a_poll_when_nothing_waits(void **state)
{
    tr_link *a, *b, *all;
    tr_union_peer peer = {0};
    tr_event event;
    tr_buf *buf;
    bool ran = false;

    (void)state;
    assert_int_equal(tr_inproc_create(1 << 16, &a, &b, NULL), RT_OK);
    tr_inproc_set_driver(b, driver_ran, &ran);
    peer.link = a;
    assert_int_equal(tr_union_create(&peer, 1, &all, NULL), RT_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(tr_link_acquire(b, 64, &buf), RT_OK);
        buf->length = 1;
        assert_int_equal(tr_link_send(b, 0, buf), RT_OK);
    }
    assert_int_equal(tr_link_poll(a, 0, &event), RT_OK);
    tr_buf_release(event.buf);
    assert_int_equal(tr_link_poll(all, UINT64_MAX, &event), RT_OK);
    tr_buf_release(event.buf);
    assert_int_equal(tr_link_poll(a, UINT64_MAX, &event), RT_ECANCELED);
    assert_int_equal(tr_link_poll(all, UINT64_MAX, &event), RT_ECANCELED);
    assert_false(ran); /* no expert is started any more */
    tr_link_close(all);
    tr_link_close(a);
    tr_link_close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_stop_cancels_a_poll_when_nothing_waits, request_stop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
