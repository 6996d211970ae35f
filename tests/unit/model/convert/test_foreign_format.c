/* test_foreign_format.c - bytes and scales tell a format, or are refused. */
#include "model/convert/foreign_format.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static md_foreign_layout expect(const md_foreign_tensor *tensor, md_foreign_kind kind)
{
    md_foreign_layout out = {0};
    rt_err err = {0};

    if (md_foreign_infer(tensor, &out, &err) != RT_OK) fail_msg("%s", err.text);
    assert_int_equal(out.kind, kind);
    return out;
}

static void expect_refusal(const md_foreign_tensor *tensor, rt_status status, const char *says)
{
    md_foreign_layout out = {.bits = 77};
    rt_err err = {0};
    rt_status found = md_foreign_infer(tensor, &out, &err);

    if (found != status || strstr(err.text, says) == NULL || strstr(err.text, "the.tensor") == NULL)
        fail_msg("expected %s (%s), found %s: %s", rt_status_name(status), says,
                 rt_status_name(found), err.text);
    assert_int_equal(out.bits, 77);
}

static md_foreign_tensor tensor(uint32_t rows, uint32_t cols, uint64_t bytes, uint64_t scales)
{
    return (md_foreign_tensor){.name = "the.tensor",
                               .rows = rows,
                               .cols = cols,
                               .weight_bytes = bytes,
                               .scale_count = scales};
}

static void every_matrix_of_the_release_is_told_from_its_numbers(void **state)
{
    static const uint32_t shapes[][2] = {
        {2048, 6144}, {16384, 2048}, {576, 6144},   {28672, 512},  {6144, 16384},  {4096, 2048},
        {128, 6144},  {32, 6144},    {12288, 6144}, {6144, 12288}, {6144, 2048},   {154880, 6144},
        {6144, 2048}, {256, 6144},   {6144, 12288}, {384, 64},     {2048, 7 * 64},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        uint32_t rows = shapes[i][0], cols = shapes[i][1];
        md_foreign_tensor int8 = tensor(rows, cols, (uint64_t)rows * cols, rows);
        md_foreign_tensor int4 = tensor(rows, cols, (uint64_t)rows * cols / 2, rows);

        assert_int_equal(expect(&int8, MD_FOREIGN_INT8_ROW).bits, 8);
        assert_int_equal(expect(&int4, MD_FOREIGN_INT4_ROW).bits, 4);
        assert_int_equal(expect(&int4, MD_FOREIGN_INT4_ROW).group, 0);
        for (uint32_t group = 16; group <= 256 && group < cols; group *= 2) {
            md_foreign_layout found;

            int4.scale_count = (uint64_t)rows * ((cols + group - 1) / group);
            found = expect(&int4, MD_FOREIGN_INT4_GROUPED);
            assert_int_equal(found.group, group);
            assert_int_equal(found.bits, 4);
        }
    }
}

static void odd_widths_round_up(void **state)
{
    md_foreign_tensor row = tensor(5, 33, 5 * 17, 5), grouped = tensor(5, 33, 5 * 17, 15);

    (void)state;
    expect(&row, MD_FOREIGN_INT4_ROW);
    assert_int_equal(expect(&grouped, MD_FOREIGN_INT4_GROUPED).group, 16);
}

static void numbers_that_fit_nothing_are_refused(void **state)
{
    static const uint64_t numbers[][2] = {
        {0, 0},         {100 * 64, 0},       {100 * 64, 99},      {100 * 64, 101},
        {100 * 32, 99}, {100 * 32 - 1, 100}, {100 * 32, 300},     {100 * 32 + 1, 100},
        {1, 1},         {UINT64_MAX, 100},   {100 * 64 * 4, 100}, {100 * 64, UINT64_MAX},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        md_foreign_tensor t = tensor(100, 64, numbers[i][0], numbers[i][1]);

        expect_refusal(&t, RT_EFORMAT, "fit no format");
    }
}

static void formats_that_are_not_imported_are_named(void **state)
{
    md_foreign_tensor int2 = tensor(100, 256, 100 * 64, 100);
    md_foreign_tensor int3 = tensor(100, 256, 100 * 96, 400);
    md_foreign_tensor e8 = tensor(100, 256, 100 * 98, 1);
    md_foreign_tensor fp8 = tensor(300, 256, 300 * 256, 6);

    (void)state;
    expect_refusal(&int2, RT_EUNSUPPORTED, "int2-row");
    expect_refusal(&int3, RT_EUNSUPPORTED, "int3-g64");
    expect_refusal(&e8, RT_EUNSUPPORTED, "e8-iq3-lattice");
    expect_refusal(&fp8, RT_EUNSUPPORTED, "fp8-e4m3-b128");
}

static void what_two_formats_fit_needs_a_stamp(void **state)
{
    md_foreign_tensor t = tensor(10, 96, 10 * 48, 20);

    (void)state;
    expect_refusal(&t, RT_EUNSUPPORTED, "int4-grouped or int3-g64");
    t.stamp = "int4-grouped";
    assert_int_equal(expect(&t, MD_FOREIGN_INT4_GROUPED).group, 64);
    t.stamp = "int3-g64";
    expect_refusal(&t, RT_EUNSUPPORTED, "int3-g64 is not imported");
}

static void as_many_rows_as_blocks_are_int8_unless_fp8_is_declared(void **state)
{
    md_foreign_tensor t = tensor(6144, 16384, 6144ull * 16384, 6144); /* o_proj of GLM-5.2 */

    (void)state;
    expect(&t, MD_FOREIGN_INT8_ROW);
    t.fp8_declared = true;
    expect_refusal(&t, RT_EUNSUPPORTED, "int8-row or fp8-e4m3-b128");
    t.stamp = "int8-row";
    expect(&t, MD_FOREIGN_INT8_ROW);
    t.stamp = "fp8-e4m3-b128";
    expect_refusal(&t, RT_EUNSUPPORTED, "fp8-e4m3-b128 is not imported");
}

static void a_stamp_must_fit_the_numbers(void **state)
{
    md_foreign_tensor t = tensor(10, 64, 10 * 32, 10);

    (void)state;
    t.stamp = "int4-row";
    expect(&t, MD_FOREIGN_INT4_ROW);
    t.stamp = "int8-row";
    expect_refusal(&t, RT_EFORMAT, "the file says int8-row");
    t.stamp = "int4-grouped";
    expect_refusal(&t, RT_EFORMAT, "the file says int4-grouped");
    t.stamp = "int4-rans256-g0";
    expect_refusal(&t, RT_EUNSUPPORTED, "int4-rans256-g0");
    t.stamp = "mxfp4";
    expect_refusal(&t, RT_EUNSUPPORTED, "mxfp4");
    t.stamp = "";
    expect_refusal(&t, RT_EUNSUPPORTED, "not imported");
    t.stamp = "f32";
    expect_refusal(&t, RT_EUNSUPPORTED, "f32");
}

static void narrow_matrices_are_refused(void **state)
{
    md_foreign_tensor t = tensor(10, 3, 30, 10);

    (void)state;
    expect_refusal(&t, RT_EUNSUPPORTED, "too narrow");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_matrix_of_the_release_is_told_from_its_numbers),
        cmocka_unit_test(odd_widths_round_up),
        cmocka_unit_test(numbers_that_fit_nothing_are_refused),
        cmocka_unit_test(formats_that_are_not_imported_are_named),
        cmocka_unit_test(what_two_formats_fit_needs_a_stamp),
        cmocka_unit_test(as_many_rows_as_blocks_are_int8_unless_fp8_is_declared),
        cmocka_unit_test(a_stamp_must_fit_the_numbers),
        cmocka_unit_test(narrow_matrices_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
