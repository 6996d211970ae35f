/* test_heat_usage.c - the usage text of another engine: read as it is, refused by line. */
#include "placement/heat_usage.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAIN = 3, LAYERS = 4, EXPERTS = 8 }; /* one dense layer, one MTP layer */

static const bool sparse[LAYERS] = {false, true, true, true};

static pl_heat *make(void)
{
    pl_heat_spec spec = {.layers = LAYERS, .sparse = sparse, .experts = EXPERTS};
    pl_heat *heat = NULL;

    assert_int_equal(pl_heat_create(&spec, &heat, NULL), RT_OK);
    return heat;
}

/* The bytes end where they are said to: no NUL is relied on. */
static rt_status read_text(const char *text, pl_heat *heat, pl_heat_usage *usage, rt_err *err)
{
    size_t bytes = strlen(text);
    char *copy = malloc(bytes + 1);
    rt_status status;

    assert_non_null(copy);
    memcpy(copy, text, bytes);
    copy[bytes] = '7';
    status = pl_heat_usage_read(copy, bytes, MAIN, "u.txt", heat, usage, err);
    free(copy);
    return status;
}

static void refuse(const char *text, rt_status status, const char *message)
{
    pl_heat *heat = make();
    pl_heat_usage usage = {99, 99};
    rt_err err = {0};

    assert_int_equal(read_text(text, heat, &usage, &err), status);
    if (strstr(err.text, message) == NULL || strstr(err.text, "u.txt") == NULL)
        fail_msg("expected '%s' in '%s'", message, err.text);
    assert_true(pl_heat_total(heat) == 0 && usage.lines == 99);
    pl_heat_free(heat);
}

static void lines_become_counts(void **state)
{
    pl_heat *heat = make();
    pl_heat_usage usage;
    rt_err err = {0};

    (void)state;
    pl_heat_add(heat, 1, 2, 1);
    if (read_text("-1 3 8\n-2 1 deadbeef\n# a remark\n\n1 2 10\r\n 2\t7  5 \n3 0 0\n2 0 4", heat,
                  &usage, &err) != RT_OK)
        fail_msg("%s", err.text);
    assert_true(pl_heat_get(heat, 1, 2) == 11);
    assert_true(pl_heat_get(heat, 2, 7) == 5);
    assert_true(pl_heat_get(heat, 2, 0) == 4); /* the last line needs no end */
    assert_int_equal(usage.lines, 4);
    assert_true(usage.selections == 19);
    assert_true(pl_heat_tokens(heat) == 0);
    pl_heat_free(heat);
}

static void a_shape_with_or_without_mtp_layers_fits(void **state)
{
    pl_heat *heat = make();
    pl_heat_usage usage;

    (void)state;
    assert_int_equal(read_text("-1 3 8\n1 0 1\n", heat, &usage, NULL), RT_OK);
    assert_int_equal(read_text("-1 4 8\n1 0 1\n", heat, &usage, NULL), RT_OK);
    refuse("-1 2 8\n1 0 1\n", RT_EINVAL, "line 1: expected the shape of this model, 3 layers of 8");
    refuse("-1 5 8\n1 0 1\n", RT_EINVAL, "found 5 of 8");
    refuse("1 0 1\n-1 3 16\n", RT_EINVAL, "line 2");
    pl_heat_free(heat);
}

static void bad_lines_are_refused_by_number(void **state)
{
    (void)state;
    refuse("1 0 1\n1 1\n", RT_EFORMAT, "line 2: expected 'layer expert count', found '1 1'");
    refuse("1 0 1\n\n1 1 1 1\n", RT_EFORMAT, "line 3");
    refuse("1 0 x\n", RT_EFORMAT, "'1 0 x'");
    refuse("1 0 -5\n", RT_EFORMAT, "line 1");
    refuse("1 0 +5\n", RT_EFORMAT, "line 1");
    refuse("1 0 1.5\n", RT_EFORMAT, "line 1");
    refuse("1 0 0x10\n", RT_EFORMAT, "line 1");
    refuse("-3 0 1\n", RT_EFORMAT, "line 1");
    refuse("-1 x 8\n", RT_EFORMAT, "line 1");
    refuse("-2 x 8\n", RT_EFORMAT, "line 1");
    refuse("1 0 9007199254740993\n", RT_EFORMAT, "up to 2^53, found '1 0 9007199254740993'");
    refuse("\033[31m\001\xff x\n", RT_EFORMAT, "found '?[31m?? x'");
    refuse("1 0 99999999999999999999999999\n", RT_EFORMAT, "line 1");
    refuse("some other file that is long enough to be cut where it is shown\n", RT_EFORMAT,
           "line 1");
}

static void what_the_model_does_not_have_is_refused(void **state)
{
    (void)state;
    refuse("1 0 1\n4 0 1\n", RT_EINVAL, "line 2: expected a layer below 4, found 4");
    refuse("1 8 1\n", RT_EINVAL, "expected an expert below 8, found 8");
    refuse("0 1 1\n", RT_EINVAL, "layer 0 of this model has no experts");
    refuse("4294967297 1 1\n", RT_EINVAL, "found 4294967297");
}

static void an_expert_listed_twice_is_refused(void **state)
{
    (void)state;
    refuse("1 2 3\n1 3 3\n1 2 3\n", RT_EFORMAT, "line 3: layer 1 expert 2");
    refuse("1 2 0\n1 2 3\n", RT_EFORMAT, "line 2");
}

static void a_text_without_counts_is_refused(void **state)
{
    (void)state;
    refuse("", RT_EFORMAT, "found none");
    refuse("-1 3 8\n-2 1 2\n# nothing\n", RT_EFORMAT, "found none");
}

static void zeros_in_the_text_end_nothing(void **state)
{
    static const char text[] = "1 0 1\n1 1 1\0\n1 2 1\n";
    pl_heat *heat = make();
    pl_heat_usage usage;
    rt_err err = {0};

    (void)state;
    assert_int_equal(pl_heat_usage_read(text, sizeof(text) - 1, MAIN, "z", heat, &usage, &err),
                     RT_EFORMAT);
    assert_non_null(strstr(err.text, "line 2"));
    pl_heat_free(heat);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_become_counts),
        cmocka_unit_test(a_shape_with_or_without_mtp_layers_fits),
        cmocka_unit_test(bad_lines_are_refused_by_number),
        cmocka_unit_test(what_the_model_does_not_have_is_refused),
        cmocka_unit_test(an_expert_listed_twice_is_refused),
        cmocka_unit_test(a_text_without_counts_is_refused),
        cmocka_unit_test(zeros_in_the_text_end_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
