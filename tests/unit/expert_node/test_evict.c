/* test_evict.c - frequency first, recency as tie, and how much hotter a newcomer must be. */
#include "expert_node/evict.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void a_hotter_record_scores_higher_however_long_it_idled(void **state)
{
    (void)state;
    assert_true(en_evict_score(2, 1000000) > en_evict_score(1, 0));
    assert_true(en_evict_score(1e6, 255) > en_evict_score(1e6 - 1, 0));
    assert_true(en_evict_score(1e300, 0) >= en_evict_score(1e15, 0));
}

static void among_equals_the_one_used_last_scores_higher(void **state)
{
    (void)state;
    assert_true(en_evict_score(7.9, 3) > en_evict_score(7.1, 4));
    assert_int_equal(en_evict_score(7, 255), en_evict_score(7, 4000));
    assert_int_equal(en_evict_score(7, 0), 7 * 256 + 255);
    assert_int_equal(en_evict_score(0, 9999), 0);
}

static void a_newcomer_must_be_hotter_by_more_than_the_choice_that_brought_it(void **state)
{
    (void)state;
    assert_false(en_evict_displaces(11, 10));
    assert_true(en_evict_displaces(11.01, 10));
    assert_false(en_evict_displaces(1, 0.5));
    assert_true(en_evict_displaces(101.01, 100));
    assert_false(en_evict_displaces(0, 0.001));
}

static void what_was_never_chosen_yields_to_everyone(void **state)
{
    (void)state;
    assert_true(en_evict_displaces(1, 0));
    assert_true(en_evict_displaces(0, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hotter_record_scores_higher_however_long_it_idled),
        cmocka_unit_test(among_equals_the_one_used_last_scores_higher),
        cmocka_unit_test(a_newcomer_must_be_hotter_by_more_than_the_choice_that_brought_it),
        cmocka_unit_test(what_was_never_chosen_yields_to_everyone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
