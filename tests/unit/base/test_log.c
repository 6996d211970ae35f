/* test_log.c - one line per event, with its level, place and rank, and nothing forged in it. */
#include "base/log.h"

#include "tests/support/capture.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static int reset(void **state)
{
    (void)state;
    rt_log_set_level(RT_LOG_INFO);
    rt_log_set_rank(-1);
    return 0;
}

static void line_has_time_level_subsystem_and_place(void **state)
{
    capture c = capture_begin(STDERR_FILENO);
    char *text;

    (void)state;
    rt_log_warn("store", "record %d missing", 7);
    text = capture_end(&c);
    assert_int_equal(text[4], '-'); /* 2026-01-31T12:00:00.000Z */
    assert_int_equal(text[10], 'T');
    assert_int_equal(text[23], 'Z');
    assert_memory_equal(text + 24,
                        " warn store base/test_log.c:", sizeof(" warn store base/test_log.c:") - 1);
    assert_non_null(strstr(text, " record 7 missing\n"));
    assert_null(strstr(text, "rank"));
    free(text);
}

static void rank_is_shown_once_it_is_set(void **state)
{
    capture c = capture_begin(STDERR_FILENO);
    char *text;

    (void)state;
    rt_log_set_rank(3);
    rt_log_info("link", "up");
    text = capture_end(&c);
    assert_non_null(strstr(text, " info link rank 3 base/"));
    free(text);
}

static void lines_above_the_level_are_left_out(void **state)
{
    capture c = capture_begin(STDERR_FILENO);
    char *text;

    (void)state;
    rt_log_debug("a", "one");
    rt_log_set_level(RT_LOG_ERROR);
    rt_log_warn("a", "two");
    rt_log_error("a", "three");
    rt_log_set_level(RT_LOG_DEBUG);
    rt_log_debug("a", "four");
    text = capture_end(&c);
    assert_null(strstr(text, "one"));
    assert_null(strstr(text, "two"));
    assert_non_null(strstr(text, "three"));
    assert_non_null(strstr(text, "four"));
    free(text);
}

static void text_can_forge_no_second_line(void **state)
{
    capture c = capture_begin(STDERR_FILENO);
    char *text;

    (void)state;
    rt_log_info("peer", "name %s", "evil\n2026 error fake\033[2J");
    text = capture_end(&c);
    assert_non_null(strstr(text, "evil?2026 error fake?[2J\n"));
    assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1);
    free(text);
}

static void long_text_is_cut_to_one_line(void **state)
{
    capture c = capture_begin(STDERR_FILENO);
    char *text, *long_text = calloc(1, 10001);

    (void)state;
    memset(long_text, 'x', 10000);
    rt_log_info("a", "%s", long_text);
    text = capture_end(&c);
    assert_true(strlen(text) <= 2048);
    assert_int_equal(text[strlen(text) - 1], '\n');
    free(text);
    free(long_text);
}

static void errno_survives_a_line(void **state)
{
    capture c = capture_begin(STDERR_FILENO);

    (void)state;
    close(STDERR_FILENO); /* the write fails */
    errno = ENOENT;
    rt_log_info("a", "b");
    assert_int_equal(errno, ENOENT);
    free(capture_end(&c));
}

static void level_parse_knows_its_names_alone(void **state)
{
    rt_log_level level = RT_LOG_WARN;
    rt_err err;

    (void)state;
    assert_int_equal(rt_log_level_parse("debug", &level, &err), RT_OK);
    assert_int_equal(level, RT_LOG_DEBUG);
    assert_int_equal(rt_log_level_parse("error", &level, NULL), RT_OK);
    assert_int_equal(level, RT_LOG_ERROR);
    assert_int_equal(rt_log_level_parse("loud", &level, &err), RT_EINVAL);
    assert_non_null(strstr(err.text, "error, warn, info or debug, found \"loud\""));
    assert_int_equal(level, RT_LOG_ERROR);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(line_has_time_level_subsystem_and_place, reset),
        cmocka_unit_test_setup(rank_is_shown_once_it_is_set, reset),
        cmocka_unit_test_setup(lines_above_the_level_are_left_out, reset),
        cmocka_unit_test_setup(text_can_forge_no_second_line, reset),
        cmocka_unit_test_setup(long_text_is_cut_to_one_line, reset),
        cmocka_unit_test_setup(errno_survives_a_line, reset),
        cmocka_unit_test_setup(level_parse_knows_its_names_alone, reset),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
