#include "model/text/json_text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void check_text(const char *json, const char *expected)
{
    json_t *value = json_loads(json, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    md_text_buffer out = {0};

    assert_non_null(value);
    assert_int_equal(md_json_text(value, &out, NULL), RT_OK);
    assert_string_equal(out.bytes, expected);
    md_text_buffer_fini(&out);
    json_decref(value);
}

static void separators_order_and_literals_are_pythons(void **state)
{
    (void)state;
    check_text("{\"z\":1,\"a\":[1,-2,true,false,null],\"m\":{},\"n\":[]}",
               "{\"z\": 1, \"a\": [1, -2, true, false, null], \"m\": {}, \"n\": []}");
    check_text("-9223372036854775808", "-9223372036854775808");
}

static void strings_are_escaped_as_python_does(void **state)
{
    (void)state;
    check_text("\"\\\" \\\\ \\/ \\b\\f\\n\\r\\t \\u0000\\u001f\\u007f\"",
               "\"\\\" \\\\ / \\b\\f\\n\\r\\t \\u0000\\u001f\x7f\"");
    check_text("{\"caf\\u00e9\":\"\\u4f60\\ud83d\\ude80\\u2028<&>\"}",
               "{\"caf\u00e9\": \"\u4f60\U0001f680\u2028<&>\"}");
}

static void floats_are_pythons_repr(void **state)
{
    static const struct {
        double value;
        const char *text;
    } cases[] = {
        {0.0, "0.0"},
        {-0.0, "-0.0"},
        {1.0, "1.0"},
        {-2.5, "-2.5"},
        {0.1, "0.1"},
        {0.1 + 0.2, "0.30000000000000004"},
        {1.0 / 3.0, "0.3333333333333333"},
        {100.0, "100.0"},
        {123456.789, "123456.789"},
        {0.0001, "0.0001"},
        {0.00012345, "0.00012345"},
        {0.00001, "1e-05"},
        {0.000012345, "1.2345e-05"},
        {1e15, "1000000000000000.0"},
        {9999999999999998.0, "9999999999999998.0"},
        {1e16, "1e+16"},
        {1.5e16, "1.5e+16"},
        {123456789012345680.0, "1.2345678901234568e+17"},
        {1e22, "1e+22"},
        {5e-324, "5e-324"},
        {-1.7976931348623157e308, "-1.7976931348623157e+308"},
        {2.2250738585072014e-308, "2.2250738585072014e-308"},
        {9007199254740993.0, "9007199254740992.0"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[MD_FLOAT_TEXT_BYTES];

        md_json_float_text(cases[i].value, text);
        assert_string_equal(text, cases[i].text);
    }
    check_text("[1.50, 1E5, 1e-7]", "[1.5, 100000.0, 1e-07]");
}

static void every_float_reads_back(void **state)
{
    uint64_t random = 88172645463325252ull;

    (void)state;
    for (int i = 0; i < 20000; i++) {
        char text[MD_FLOAT_TEXT_BYTES];
        double value;

        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        memcpy(&value, &random, sizeof(value));
        if (value != value || value - value != 0.0) continue;
        md_json_float_text(value, text);
        assert_true(strtod(text, NULL) == value);
        assert_non_null(strpbrk(text, ".e"));
    }
}

static void too_deep_a_value_is_refused(void **state)
{
    json_t *value = json_array();
    md_text_buffer out = {0};
    rt_err err = {0};

    (void)state;
    for (int i = 0; i < MD_JSON_DEPTH_MAX; i++) {
        json_t *outer = json_array();

        json_array_append_new(outer, value);
        value = outer;
    }
    assert_int_equal(md_json_text(value, &out, &err), RT_OK);
    value = json_pack("[o]", value);
    assert_int_equal(md_json_text(value, &out, &err), RT_EINVAL);
    assert_non_null(strstr(err.text, "512"));
    md_text_buffer_fini(&out);
    json_decref(value);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(separators_order_and_literals_are_pythons),
        cmocka_unit_test(strings_are_escaped_as_python_does),
        cmocka_unit_test(floats_are_pythons_repr),
        cmocka_unit_test(every_float_reads_back),
        cmocka_unit_test(too_deep_a_value_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
