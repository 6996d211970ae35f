/* test_arena.c - takes are aligned and apart, marks give back, overruns are asserted. */
#include "base/arena.h"

#include "tests/support/capture.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

static void takes_are_aligned_and_do_not_overlap(void **state)
{
    static const size_t sizes[] = {1, 63, 64, 65, 1000};
    char *taken[5];
    rt_arena *arena = NULL;

    (void)state;
    assert_int_equal(rt_arena_create(4096, &arena, NULL), RT_OK);
    for (size_t i = 0; i < 5; i++) {
        taken[i] = rt_arena_take(arena, sizes[i]);
        assert_int_equal((uintptr_t)taken[i] % 64, 0);
        memset(taken[i], (int)i + 1, sizes[i]);
    }
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(taken[i][0], i + 1);
        assert_int_equal(taken[i][sizes[i] - 1], i + 1);
    }
    rt_arena_free(arena);
}

static void sum_of_costs_is_enough(void **state)
{
    static const size_t sizes[] = {1, 64, 65, 0, 3000, 127};
    size_t total = 0;
    rt_arena *arena = NULL;

    (void)state;
    for (size_t i = 0; i < 6; i++)
        total += rt_arena_cost(sizes[i]);
    assert_int_equal(total, 64 + 64 + 128 + 0 + 3008 + 128);
    assert_int_equal(rt_arena_create(total, &arena, NULL), RT_OK);
    for (size_t i = 0; i < 6; i++)
        memset(rt_arena_take(arena, sizes[i]), 1, sizes[i]);
    assert_int_equal(rt_arena_peak_bytes(arena), total);
    rt_arena_free(arena);
}

static void return_gives_back_and_the_peak_stays(void **state)
{
    rt_arena *arena = NULL;
    size_t outer, inner;
    void *first;

    (void)state;
    assert_int_equal(rt_arena_create(1024, &arena, NULL), RT_OK);
    outer = rt_arena_mark(arena);
    first = rt_arena_take(arena, 100);
    inner = rt_arena_mark(arena);
    rt_arena_take(arena, 500);
    rt_arena_return(arena, inner);
    assert_ptr_equal(rt_arena_take(arena, 10), (char *)first + 128);
    rt_arena_return(arena, outer);
    assert_ptr_equal(rt_arena_take(arena, 1024), first);
    assert_int_equal(rt_arena_peak_bytes(arena), 1024);
    rt_arena_free(arena);
}

static void create_reports_enomem(void **state)
{
    rt_arena *arena = NULL;
    rt_err err;

    (void)state;
    assert_int_equal(rt_arena_create(SIZE_MAX, &arena, &err), RT_ENOMEM);
    assert_null(arena);
    assert_memory_equal(err.text, "arena: ", 7);
    rt_arena_free(NULL);
}

typedef struct {
    size_t first, second;
} takes;

static void take_twice(void *context)
{
    const takes *t = context;
    rt_arena *arena = NULL;

    signal(SIGABRT, SIG_DFL);
    if (rt_arena_create(1024, &arena, NULL) != RT_OK) return;
    rt_arena_take(arena, t->first);
    rt_arena_take(arena, t->second);
    rt_arena_free(arena);
}

static void overruns_are_asserted(void **state)
{
    takes fits = {1000, 0}, over = {1000, 64}, huge = {64, SIZE_MAX - 100};

    (void)state;
    assert_int_equal(run_in_child(take_twice, &fits), 0);
    assert_true(WIFSIGNALED(run_in_child(take_twice, &over)));
    assert_true(WIFSIGNALED(run_in_child(take_twice, &huge)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes_are_aligned_and_do_not_overlap),
        cmocka_unit_test(sum_of_costs_is_enough),
        cmocka_unit_test(return_gives_back_and_the_peak_stays),
        cmocka_unit_test(create_reports_enomem),
        cmocka_unit_test(overruns_are_asserted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
