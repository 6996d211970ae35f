/* The buffer pool: bounded, reusing, alive until its last buffer is back. */
#include "transport/pool.h"

#include "transport/frame.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static tr_buf *acquire(tr_pool *pool, size_t bytes)
{
    tr_buf *buf = NULL;

    assert_int_equal(tr_pool_acquire(pool, bytes, &buf), RT_OK);
    return buf;
}

static void a_released_buffer_serves_the_next_of_its_size(void **state)
{
    tr_pool *pool = tr_pool_create(1 << 20);
    tr_buf *first, *again;

    (void)state;
    first = acquire(pool, 5000);
    first->length = 5000;
    tr_buf_release(first);
    again = acquire(pool, 5100);
    assert_ptr_equal(again, first);
    assert_int_equal(again->length, 0);
    tr_buf_release(again);
    tr_pool_close(pool);
}

static void a_quarter_of_a_buffer_is_unused_at_most(void **state)
{
    tr_pool *pool = tr_pool_create(SIZE_MAX);

    (void)state;
    for (size_t bytes = 1024; bytes < 40 << 20; bytes += bytes / 7) {
        tr_buf *buf = acquire(pool, bytes);

        assert_true(buf->capacity >= bytes && buf->capacity <= bytes + bytes / 4 + 1);
        assert_int_equal((uintptr_t)buf->data % TR_FRAME_ALIGN, 0);
        tr_buf_release(buf);
    }
    tr_pool_close(pool);
}

static void the_bound_counts_what_is_out(void **state)
{
    tr_pool *pool = tr_pool_create(10 * 4096);
    tr_buf *held[10], *extra = NULL;

    (void)state;
    for (int i = 0; i < 10; i++)
        held[i] = acquire(pool, 4096);
    assert_int_equal(tr_pool_out_bytes(pool), 10 * 4096);
    assert_int_equal(tr_pool_acquire(pool, 1, &extra), RT_EBUSY);
    assert_null(extra);
    tr_buf_release(held[3]);
    extra = acquire(pool, 4096);
    tr_buf_release(extra);
    /* Idle buffers of another size give way. */
    for (int i = 0; i < 10; i++)
        if (i != 3) tr_buf_release(held[i]);
    assert_int_equal(tr_pool_out_bytes(pool), 0);
    extra = acquire(pool, 8 * 4096);
    assert_int_equal(tr_pool_out_bytes(pool), 8 * 4096);
    tr_buf_release(extra);
    tr_pool_close(pool);
}

static void one_buffer_beyond_the_bound_goes_alone(void **state)
{
    tr_pool *pool = tr_pool_create(4096);
    tr_buf *big, *extra = NULL;

    (void)state;
    big = acquire(pool, 100000);
    assert_int_equal(tr_pool_acquire(pool, 1, &extra), RT_EBUSY);
    tr_buf_release(big);
    extra = acquire(pool, 1);
    assert_int_equal(tr_pool_acquire(pool, 100000, &big), RT_EBUSY);
    tr_buf_release(extra);
    tr_pool_close(pool);
}

static void a_frame_beyond_the_cap_is_refused(void **state)
{
    tr_pool *pool = tr_pool_create(SIZE_MAX);
    tr_buf *buf = NULL;

    (void)state;
    assert_int_equal(tr_pool_acquire(pool, (size_t)TR_FRAME_BYTES_MAX + 1, &buf), RT_EINVAL);
    assert_int_equal(tr_pool_acquire(pool, SIZE_MAX, &buf), RT_EINVAL);
    assert_null(buf);
    buf = acquire(pool, TR_FRAME_BYTES_MAX);
    assert_int_equal(buf->capacity, TR_FRAME_BYTES_MAX);
    tr_buf_release(buf);
    tr_pool_close(pool);
}

static void a_closed_pool_lives_until_its_last_buffer(void **state)
{
    tr_pool *pool = tr_pool_create(1 << 20);
    tr_buf *a = acquire(pool, 100), *b = acquire(pool, 100);

    (void)state;
    tr_buf_release(acquire(pool, 9000));
    tr_pool_close(pool);
    memset(a->data, 1, a->capacity);
    tr_buf_release(a);
    memset(b->data, 2, b->capacity);
    tr_buf_release(b);
    tr_pool_close(NULL);
    tr_buf_release(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_released_buffer_serves_the_next_of_its_size),
        cmocka_unit_test(a_quarter_of_a_buffer_is_unused_at_most),
        cmocka_unit_test(the_bound_counts_what_is_out),
        cmocka_unit_test(one_buffer_beyond_the_bound_goes_alone),
        cmocka_unit_test(a_frame_beyond_the_cap_is_refused),
        cmocka_unit_test(a_closed_pool_lives_until_its_last_buffer),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
