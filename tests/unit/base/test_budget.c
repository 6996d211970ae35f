/* test_budget.c - what fits is booked, what does not is explained, sizes read and print alike. */
#include "base/budget.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

static void bookings_of_one_name_add_up(void **state)
{
    rt_budget budget;

    (void)state;
    rt_budget_init(&budget, 1000);
    assert_int_equal(rt_budget_book(&budget, "dense", 300, NULL), RT_OK);
    assert_int_equal(rt_budget_book(&budget, "kv cache", 200, NULL), RT_OK);
    assert_int_equal(rt_budget_book(&budget, "dense", 100, NULL), RT_OK);
    assert_int_equal(budget.line_count, 2);
    assert_int_equal(budget.lines[0].bytes, 400);
    assert_int_equal(rt_budget_left(&budget), 400);
    assert_int_equal(rt_budget_book(&budget, "kv cache", 400, NULL), RT_OK);
    assert_int_equal(rt_budget_left(&budget), 0);
}

static void too_much_is_refused_with_the_table_and_the_gap(void **state)
{
    rt_budget budget;
    rt_err err;

    (void)state;
    rt_budget_init(&budget, 10000000);
    assert_int_equal(rt_budget_book(&budget, "dense weights", 7000000, &err), RT_OK);
    assert_int_equal(rt_budget_book(&budget, "kv cache", 4500000, &err), RT_ENOMEM);
    assert_string_equal(err.text, "memory: kv cache needs 4.5 MB, 1.5 MB more than is left\n"
                                  "dense weights 7.0 MB\nbooked 7.0 MB of 10.0 MB");
    assert_int_equal(budget.line_count, 1);
    assert_int_equal(rt_budget_left(&budget), 3000000);
}

static void a_sum_that_wraps_is_refused(void **state)
{
    rt_budget budget;

    (void)state;
    rt_budget_init(&budget, 1000);
    assert_int_equal(rt_budget_book(&budget, "a", 999, NULL), RT_OK);
    assert_int_equal(rt_budget_book(&budget, "a", UINT64_MAX - 500, NULL), RT_ENOMEM);
    assert_int_equal(rt_budget_book(&budget, "b", UINT64_MAX, NULL), RT_ENOMEM);
    assert_int_equal(rt_budget_left(&budget), 1);
}

static void print_stays_inside_its_text(void **state)
{
    rt_budget budget;
    char text[20];

    (void)state;
    rt_budget_init(&budget, 1000);
    assert_int_equal(rt_budget_book(&budget, "a long name of a line", 1, NULL), RT_OK);
    memset(text, 'x', sizeof(text));
    rt_budget_print(&budget, text, 10);
    assert_string_equal(text, "a long na");
    assert_int_equal(text[10], 'x');
}

static void default_limit_is_below_what_the_machine_has(void **state)
{
    rt_budget budget;

    (void)state;
    rt_budget_init(&budget, 0);
    assert_true(budget.limit_bytes > 1 << 20);
    assert_true(rt_memory_available_bytes() > 1 << 20);
}

static void a_limit_of_the_process_counts(void **state)
{
    struct rlimit old_space, old_data, small;
    uint64_t left_of_space, left_of_data;

    (void)state;
    assert_int_equal(getrlimit(RLIMIT_AS, &old_space), 0);
    assert_int_equal(getrlimit(RLIMIT_DATA, &old_data), 0);
    /* Above what any sanitizer has mapped: only the subtraction is looked at. */
    small = (struct rlimit){.rlim_cur = (rlim_t)1 << 50, .rlim_max = RLIM_INFINITY};
    if (old_space.rlim_cur != RLIM_INFINITY || old_data.rlim_cur != RLIM_INFINITY) skip();
    assert_true(rt_process_limit_left() == UINT64_MAX);
    assert_int_equal(setrlimit(RLIMIT_AS, &small), 0);
    left_of_space = rt_process_limit_left();
    assert_int_equal(setrlimit(RLIMIT_AS, &old_space), 0);
    assert_int_equal(setrlimit(RLIMIT_DATA, &small), 0);
    left_of_data = rt_process_limit_left();
    assert_int_equal(setrlimit(RLIMIT_DATA, &old_data), 0);
    assert_true(left_of_space > 0 && left_of_space < (uint64_t)1 << 50);
    assert_true(left_of_data > 0 && left_of_data < (uint64_t)1 << 50);
}

static void sizes_are_read_in_binary_units(void **state)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } cases[] = {
        {"0", 0},
        {"4096", 4096},
        {"1K", 1024},
        {"512M", 512ull << 20},
        {"24G", 24ull << 30},
        {"24g", 24ull << 30},
        {"24GiB", 24ull << 30},
        {"1.5T", 3ull << 39},
        {"0.25k", 256},
        {"18446744073709551615", UINT64_MAX},
        {"16777215T", 16777215ull << 40},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint64_t bytes = 77;

        assert_int_equal(rt_bytes_parse(cases[i].text, &bytes, NULL), RT_OK);
        assert_true(bytes == cases[i].bytes);
    }
}

static void what_is_no_size_is_refused_by_name(void **state)
{
    static const char *const texts[] = {
        "",
        "G",
        "-1",
        "+1",
        " 1",
        "1 G",
        "1.5",
        "1.G",
        ".5G",
        "1X",
        "1GBit",
        "1GB",
        "1e3",
        "0x1",
        "1Gi",
        "1..5G",
        "24 G",
        "1,5G",
        "18446744073709551616",
        "16777216T",
        "1.1234567G",
    };
    uint64_t bytes = 77;
    rt_err err;

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        assert_int_equal(rt_bytes_parse(texts[i], &bytes, &err), RT_EINVAL);
        assert_int_equal(bytes, 77);
    }
    assert_non_null(strstr(err.text, "found \"1.1234567G\""));
}

static void sizes_are_written_in_decimal_units(void **state)
{
    static const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {
        {0, "0 B"},
        {999, "999 B"},
        {1000, "1.0 kB"},
        {18900000, "18.9 MB"},
        {999949, "999.9 kB"},
        {999950, "1.0 MB"},
        {756000000000, "756.0 GB"},
        {UINT64_MAX, "18.4 EB"},
    };
    char text[32];

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_string_equal(rt_bytes_format(cases[i].bytes, text, sizeof(text)), cases[i].text);
    assert_string_equal(rt_bytes_format(18900000, text, 5), "18.9");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bookings_of_one_name_add_up),
        cmocka_unit_test(too_much_is_refused_with_the_table_and_the_gap),
        cmocka_unit_test(a_sum_that_wraps_is_refused),
        cmocka_unit_test(print_stays_inside_its_text),
        cmocka_unit_test(default_limit_is_below_what_the_machine_has),
        cmocka_unit_test(a_limit_of_the_process_counts),
        cmocka_unit_test(sizes_are_read_in_binary_units),
        cmocka_unit_test(what_is_no_size_is_refused_by_name),
        cmocka_unit_test(sizes_are_written_in_decimal_units),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
