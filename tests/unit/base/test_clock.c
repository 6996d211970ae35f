/* test_clock.c - real time never runs backwards, virtual time moves only by its owner. */
#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void real_clock_never_runs_backwards(void **state)
{
    rt_clock clock = rt_clock_real();
    uint64_t before = rt_clock_now(&clock);

    (void)state;
    for (int i = 0; i < 1000; i++) {
        uint64_t now = rt_clock_now(&clock);

        assert_true(now >= before);
        before = now;
    }
    assert_true(before > 0);
}

static void process_clock_counts_work_and_never_runs_backwards(void **state)
{
    rt_clock clock = rt_clock_process();
    uint64_t begin = rt_clock_now(&clock), before = begin;

    (void)state;
    while (before == begin) { /* asking is work too: it ends */
        uint64_t now = rt_clock_now(&clock);

        assert_true(now >= before);
        before = now;
    }
}

static void virtual_clock_shows_what_its_owner_set(void **state)
{
    rt_virtual_time time = {.ns = 7};
    rt_clock clock = rt_clock_virtual(&time);

    (void)state;
    assert_int_equal(rt_clock_now(&clock), 7);
    assert_int_equal(rt_clock_now(&clock), 7);
    time.ns += 5;
    assert_int_equal(rt_clock_now(&clock), 12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(real_clock_never_runs_backwards),
        cmocka_unit_test(process_clock_counts_work_and_never_runs_backwards),
        cmocka_unit_test(virtual_clock_shows_what_its_owner_set),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
