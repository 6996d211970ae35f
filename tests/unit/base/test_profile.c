/* test_profile.c - phases partition the time, whatever order they come in. */
#include "base/profile.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void phases_add_up_to_the_time_that_passed(void **state)
{
    rt_virtual_time time = {.ns = 1000};
    rt_clock clock = rt_clock_virtual(&time);
    uint64_t random = 1, expected[RT_PHASE_COUNT] = {0};
    rt_phase current = RT_PHASE_OTHER;
    rt_profile_counts counts;
    rt_profile profile;

    (void)state;
    rt_profile_start(&profile, &clock);
    for (int i = 0; i < 10000; i++) {
        uint64_t passes;
        rt_phase next;

        random = random * 6364136223846793005u + 1442695040888963407u;
        passes = random >> 54;
        next = (rt_phase)((random >> 32) % RT_PHASE_COUNT);
        time.ns += passes;
        expected[current] += passes;
        assert_int_equal(rt_profile_enter(&profile, next), current);
        current = next;
    }
    rt_profile_take(&profile, &counts);
    for (int i = 0; i < RT_PHASE_COUNT; i++)
        assert_int_equal(counts.phase[i].ns, expected[i]);
    assert_int_equal(rt_profile_total_ns(&counts), time.ns - 1000);
    assert_int_equal(counts.wall_ns, time.ns - 1000);
}

static void a_nested_phase_takes_its_time_from_the_one_around_it(void **state)
{
    rt_virtual_time time = {0};
    rt_clock clock = rt_clock_virtual(&time);
    rt_profile_counts counts;
    rt_profile profile;
    rt_phase outer, inner;

    (void)state;
    rt_profile_start(&profile, &clock);
    outer = rt_profile_enter(&profile, RT_PHASE_DISPATCH);
    time.ns += 3;
    inner = rt_profile_enter(&profile, RT_PHASE_EXPERTS_RAM);
    rt_profile_bytes(&profile, 100);
    time.ns += 50;
    rt_profile_enter(&profile, inner);
    time.ns += 4;
    rt_profile_enter(&profile, outer);
    time.ns += 1;
    rt_profile_take(&profile, &counts);
    assert_int_equal(counts.phase[RT_PHASE_DISPATCH].ns, 7);
    assert_int_equal(counts.phase[RT_PHASE_EXPERTS_RAM].ns, 50);
    assert_int_equal(counts.phase[RT_PHASE_EXPERTS_RAM].bytes, 100);
    assert_int_equal(counts.phase[RT_PHASE_OTHER].ns, 1);
}

static void taking_starts_again_from_zero_in_the_same_phase(void **state)
{
    rt_virtual_time time = {0};
    rt_clock clock = rt_clock_virtual(&time);
    rt_profile_counts counts;
    rt_profile profile;

    (void)state;
    rt_profile_start(&profile, &clock);
    rt_profile_enter(&profile, RT_PHASE_HEAD);
    time.ns += 10;
    rt_profile_take(&profile, &counts);
    assert_int_equal(counts.phase[RT_PHASE_HEAD].ns, 10);
    time.ns += 5;
    rt_profile_take(&profile, &counts);
    assert_int_equal(counts.phase[RT_PHASE_HEAD].ns, 5);
    assert_int_equal(rt_profile_total_ns(&counts), 5);
    assert_int_equal(counts.wall_ns, 5);
}

static void a_split_moves_time_and_keeps_the_sum(void **state)
{
    rt_virtual_time time = {0};
    rt_clock clock = rt_clock_virtual(&time);
    rt_profile_counts counts;
    rt_profile profile;
    uint64_t mark;

    (void)state;
    rt_profile_start(&profile, &clock);
    rt_profile_enter(&profile, RT_PHASE_EXPERTS_RAM);
    rt_profile_bytes(&profile, 10);
    time.ns += 7; /* before the mark: not shared */
    mark = rt_profile_mark(&profile);
    time.ns += 1000;
    rt_profile_split(&profile, mark, RT_PHASE_EXPERTS_STAGED, 1, 4);
    mark = rt_profile_mark(&profile);
    time.ns += 11;
    rt_profile_split(&profile, mark, RT_PHASE_EXPERTS_STAGED, 3, 3);
    mark = rt_profile_mark(&profile);
    time.ns += 13;
    rt_profile_split(&profile, mark, RT_PHASE_EXPERTS_STAGED, 0, 0);
    rt_profile_take(&profile, &counts);
    assert_int_equal(counts.phase[RT_PHASE_EXPERTS_STAGED].ns, 250 + 11);
    assert_int_equal(counts.phase[RT_PHASE_EXPERTS_RAM].ns, 7 + 750 + 13);
    assert_int_equal(counts.phase[RT_PHASE_EXPERTS_STAGED].bytes, 1 + 3);
    assert_int_equal(counts.phase[RT_PHASE_EXPERTS_RAM].bytes, 10 - 4);
    assert_int_equal(rt_profile_total_ns(&counts), time.ns);
}

static void no_profile_is_allowed_everywhere(void **state)
{
    (void)state;
    assert_int_equal(rt_profile_enter(NULL, RT_PHASE_HEAD), RT_PHASE_OTHER);
    assert_int_equal(rt_profile_mark(NULL), 0);
    rt_profile_bytes(NULL, 1);
    rt_profile_split(NULL, 0, RT_PHASE_HEAD, 1, 2);
}

static void every_phase_has_a_name_of_its_own(void **state)
{
    (void)state;
    for (int i = 0; i < RT_PHASE_COUNT; i++) {
        assert_true(strlen(rt_phase_text((rt_phase)i)) > 0);
        for (int j = 0; j < i; j++)
            assert_string_not_equal(rt_phase_name((rt_phase)i), rt_phase_name((rt_phase)j));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(phases_add_up_to_the_time_that_passed),
        cmocka_unit_test(a_nested_phase_takes_its_time_from_the_one_around_it),
        cmocka_unit_test(taking_starts_again_from_zero_in_the_same_phase),
        cmocka_unit_test(a_split_moves_time_and_keeps_the_sum),
        cmocka_unit_test(no_profile_is_allowed_everywhere),
        cmocka_unit_test(every_phase_has_a_name_of_its_own),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
