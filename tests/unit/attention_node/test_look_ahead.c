/* test_look_ahead.c - the trial decides by time alone, forgives one slow step, and tries again. */
#include "attention_node/look_ahead.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { TRIAL = (AN_LOOK_AHEAD_WINDOW + 1) * AN_LOOK_AHEAD_WINDOWS };

/* Steps of a trial which take so long without and with hints; returns how many had hints. */
static uint32_t try_out(an_look_ahead_trial *trial, uint64_t without, uint64_t with)
{
    uint32_t hints = 0;

    for (int i = 0; i < TRIAL; i++) {
        bool wants = an_look_ahead_wants(trial);
        hints += wants;
        assert_true(trial->trying);
        an_look_ahead_step(trial, wants ? with : without);
    }
    assert_false(trial->trying);
    return hints;
}

static void forced_modes_are_obeyed_for_ever(void **state)
{
    an_look_ahead_trial trial;

    (void)state;
    for (int on = 0; on < 2; on++) {
        an_look_ahead_init(&trial, on ? AN_LOOK_AHEAD_ON : AN_LOOK_AHEAD_OFF);
        for (int i = 0; i < 3 * TRIAL; i++) {
            assert_int_equal(an_look_ahead_wants(&trial), on);
            an_look_ahead_step(&trial, on ? 1000 : 1);
        }
    }
}

static void hints_stay_on_only_when_they_are_faster_by_two_percent(void **state)
{
    static const struct {
        uint64_t without, with;
        bool on;
    } cases[] = {{1000, 900, true},   {1000, 979, true},   {1000, 981, false},
                 {1000, 1000, false}, {1000, 1500, false}, {1, 0, true}};
    an_look_ahead_trial trial;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        an_look_ahead_init(&trial, AN_LOOK_AHEAD_AUTO);
        assert_int_equal(try_out(&trial, cases[i].without, cases[i].with), TRIAL / 2);
        assert_int_equal(an_look_ahead_wants(&trial), cases[i].on);
        assert_int_equal(trial.verdict_ns[0], cases[i].without);
        assert_int_equal(trial.verdict_ns[1], cases[i].with);
    }
}

static void one_slow_step_of_a_window_does_not_count(void **state)
{
    an_look_ahead_trial trial;

    (void)state;
    an_look_ahead_init(&trial, AN_LOOK_AHEAD_AUTO);
    for (int i = 0; i < TRIAL; i++) {
        bool wants = an_look_ahead_wants(&trial);
        bool first = trial.step == 0, slow = trial.step == 3;
        an_look_ahead_step(&trial, first || (slow && wants) ? 1000000 : wants ? 900 : 1000);
    }
    assert_true(an_look_ahead_wants(&trial));
}

static void a_verdict_is_tried_again_later(void **state)
{
    an_look_ahead_trial trial;

    (void)state;
    an_look_ahead_init(&trial, AN_LOOK_AHEAD_AUTO);
    try_out(&trial, 1000, 500);
    for (int i = 0; i < AN_LOOK_AHEAD_AGAIN; i++) {
        assert_true(an_look_ahead_wants(&trial));
        an_look_ahead_step(&trial, 500);
    }
    try_out(&trial, 500, 1000);
    assert_false(an_look_ahead_wants(&trial));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forced_modes_are_obeyed_for_ever),
        cmocka_unit_test(hints_stay_on_only_when_they_are_faster_by_two_percent),
        cmocka_unit_test(one_slow_step_of_a_window_does_not_count),
        cmocka_unit_test(a_verdict_is_tried_again_later),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
