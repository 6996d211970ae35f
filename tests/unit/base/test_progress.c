/* test_progress.c - when lines come and what they say, under virtual time. */
/* wrap: calloc */
#include "base/progress.h"

#include "base/progress_internal.h"
#include "tests/support/capture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const uint64_t SECOND_NS = 1000000000;
static bool no_memory;

void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);

void *__wrap_calloc(size_t count, size_t bytes)
{
    return no_memory ? NULL : __real_calloc(count, bytes);
}

/* Runs one job of `seconds`, adding `step` bytes each half second, and returns what was printed. */
static char *run_job(uint64_t total, uint64_t step, uint64_t seconds, bool terminal)
{
    rt_virtual_time time = {.ns = 5 * SECOND_NS};
    rt_clock clock = rt_clock_virtual(&time);
    capture c = capture_begin(STDERR_FILENO);
    rt_progress *progress = rt_progress_begin_on("convert", total, &clock, STDERR_FILENO, terminal);

    for (uint64_t i = 0; i < seconds * 2; i++) {
        time.ns += SECOND_NS / 2;
        rt_progress_add(progress, step);
    }
    rt_progress_end(progress);
    return capture_end(&c);
}

static uint32_t count(const char *text, char c)
{
    uint32_t found = 0;

    for (; *text != '\0'; text++)
        found += *text == c;
    return found;
}

static void a_short_job_prints_nothing(void **state)
{
    char *terminal = run_job(100, 10, 1, true), *file = run_job(100, 10, 9, false);

    (void)state;
    assert_string_equal(terminal, "");
    assert_string_equal(file, "");
    free(terminal);
    free(file);
}

static void a_file_gets_a_line_every_ten_seconds_and_an_end(void **state)
{
    char *text = run_job(100000000, 500000, 35, false);

    (void)state;
    assert_string_equal(text, "convert 10.0 MB of 100.0 MB (10.0 %), 1.0 MB/s, 1m30s left\n"
                              "convert 20.0 MB of 100.0 MB (20.0 %), 1.0 MB/s, 1m20s left\n"
                              "convert 30.0 MB of 100.0 MB (30.0 %), 1.0 MB/s, 1m10s left\n"
                              "convert 35.0 MB in 35s, 1.0 MB/s\n");
    free(text);
}

static void a_terminal_line_is_redrawn_in_place(void **state)
{
    char *text = run_job(100000000, 500000, 4, true);

    (void)state;
    assert_int_equal(count(text, '\n'), 1);
    assert_int_equal(count(text, '\r'), 6); /* at 2.0, 2.5, 3.0, 3.5, 4.0 s and the end */
    assert_non_null(strstr(text, "\r\033[Kconvert 2.0 MB of 100.0 MB"));
    free(text);
}

static void an_unknown_total_has_no_share_and_no_end(void **state)
{
    char *text = run_job(0, 500000, 10, false);

    (void)state;
    assert_non_null(strstr(text, "convert 10.0 MB, 1.0 MB/s\n"));
    free(text);
}

static void a_job_that_does_not_move_has_no_end_in_sight(void **state)
{
    char *text = run_job(1000000, 0, 10, false);

    (void)state;
    assert_non_null(strstr(text, "(0.0 %), 0 B/s, ? left\n"));
    free(text);
}

static void long_jobs_are_given_in_hours(void **state)
{
    char *text = run_job(7210000000, 500000, 10, false);

    (void)state;
    assert_non_null(strstr(text, ", 2h00m left\n"));
    free(text);
}

static void quiet_and_no_memory_give_null_that_all_calls_take(void **state)
{
    rt_progress *progress;

    (void)state;
    assert_null(rt_progress_begin("convert", 10, true));
    no_memory = true;
    progress = rt_progress_begin("convert", 10, false);
    no_memory = false;
    assert_null(progress);
    rt_progress_add(NULL, 5);
    rt_progress_end(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_short_job_prints_nothing),
        cmocka_unit_test(a_file_gets_a_line_every_ten_seconds_and_an_end),
        cmocka_unit_test(a_terminal_line_is_redrawn_in_place),
        cmocka_unit_test(an_unknown_total_has_no_share_and_no_end),
        cmocka_unit_test(a_job_that_does_not_move_has_no_end_in_sight),
        cmocka_unit_test(long_jobs_are_given_in_hours),
        cmocka_unit_test(quiet_and_no_memory_give_null_that_all_calls_take),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
