/* test_status.c - the error value keeps what it was told and never overruns. */
#include "base/status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void fail_records_status_and_text(void **state)
{
    rt_err err = {0};

    (void)state;
    assert_int_equal(rt_fail(&err, RT_EFORMAT, "%s: expected %d", "file", 3), RT_EFORMAT);
    assert_int_equal(err.status, RT_EFORMAT);
    assert_string_equal(err.text, "file: expected 3");
}

static void fail_without_err_returns_the_status(void **state)
{
    (void)state;
    assert_int_equal(rt_fail(NULL, RT_EIO, "lost"), RT_EIO);
}

static void fail_cuts_long_text_and_terminates_it(void **state)
{
    rt_err err;
    char text[2000];

    (void)state;
    memset(text, 'a', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    assert_int_equal(rt_fail(&err, RT_EIO, "%s", text), RT_EIO);
    assert_int_equal(strlen(err.text), sizeof(err.text) - 1);
}

static void fail_takes_its_own_text_as_argument(void **state)
{
    rt_err err = {.status = RT_EIO, .text = "disk"};

    (void)state;
    assert_int_equal(rt_fail(&err, RT_EPEER, "peer 3: %s", err.text), RT_EPEER);
    assert_string_equal(err.text, "peer 3: disk");
}

static void prefix_goes_before_the_text(void **state)
{
    rt_err err = {.status = RT_EIO, .text = "disk"};

    (void)state;
    rt_err_prefix(&err, "shard %d: ", 12);
    rt_err_prefix(&err, "load: ");
    assert_string_equal(err.text, "load: shard 12: disk");
    assert_int_equal(err.status, RT_EIO);
}

static void prefix_cuts_the_tail_when_full(void **state)
{
    rt_err err = {.status = RT_EIO};

    (void)state;
    memset(err.text, 'b', sizeof(err.text) - 1);
    rt_err_prefix(&err, "head: ");
    assert_int_equal(strlen(err.text), sizeof(err.text) - 1);
    assert_memory_equal(err.text, "head: bbb", 9);
}

static void prefix_leaves_success_and_null_alone(void **state)
{
    rt_err err = {.status = RT_OK};

    (void)state;
    rt_err_prefix(&err, "head: ");
    rt_err_prefix(NULL, "head: ");
    assert_string_equal(err.text, "");
}

static void names_and_numbers_are_those_of_the_wire(void **state)
{
    (void)state;
    assert_string_equal(rt_status_name(RT_OK), "OK");
    assert_string_equal(rt_status_name(RT_ENUMERIC), "ENUMERIC");
    assert_string_equal(rt_status_name((rt_status)99), "UNKNOWN");
    assert_int_equal(RT_EPROTO, 5);
    assert_int_equal(RT_ENOSPACE, 12);
    assert_int_equal(rt_status_http(RT_EBUSY), 429);
    assert_int_equal(rt_status_http((rt_status)99), 500);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fail_records_status_and_text),
        cmocka_unit_test(fail_without_err_returns_the_status),
        cmocka_unit_test(fail_cuts_long_text_and_terminates_it),
        cmocka_unit_test(fail_takes_its_own_text_as_argument),
        cmocka_unit_test(prefix_goes_before_the_text),
        cmocka_unit_test(prefix_cuts_the_tail_when_full),
        cmocka_unit_test(prefix_leaves_success_and_null_alone),
        cmocka_unit_test(names_and_numbers_are_those_of_the_wire),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
