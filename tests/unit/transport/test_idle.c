/* The waits between two looks. */
#include "transport/idle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void first_turns_yield_then_sleeps_grow_to_a_bound(void **state)
{
    uint64_t last = 0;

    (void)state;
    assert_int_equal(tr_idle_sleep_ns(0), 0);
    for (uint32_t turn = 0; turn < 2000; turn++) {
        uint64_t sleep_ns = tr_idle_sleep_ns(turn);

        assert_true(sleep_ns >= last);
        last = sleep_ns;
    }
    assert_int_equal(last, 200000);
    assert_int_equal(tr_idle_sleep_ns(UINT32_MAX), 200000);
}

static void waits_count_turns_and_stay_at_the_last(void **state)
{
    tr_idle idle = {0};

    (void)state;
    for (uint32_t turn = 1; turn <= 100; turn++) {
        tr_idle_wait(&idle, 0);
        assert_int_equal(idle.turns, turn);
    }
    idle.turns = UINT32_MAX;
    tr_idle_wait(&idle, 1);
    assert_int_equal(idle.turns, UINT32_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_turns_yield_then_sleeps_grow_to_a_bound),
        cmocka_unit_test(waits_count_turns_and_stay_at_the_last),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
