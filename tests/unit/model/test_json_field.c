/* test_json_field.c - typed reads name the key, what was expected and what was found. */
#include "model/json_field.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static json_t *object(const char *text)
{
    json_t *root = NULL;
    rt_err err;

    assert_int_equal(md_json_parse_object(text, strlen(text), "test", &root, &err), RT_OK);
    return root;
}

static void values_in_range_are_read(void **state)
{
    json_t *root = object("{\"a\":7,\"b\":2.5,\"c\":true,\"d\":3,\"e\":4294967295}");
    uint32_t integer = 0;
    double number = 0;
    bool flag = false;
    rt_err err;

    (void)state;
    assert_int_equal(md_json_uint(root, "a", 7, 7, &integer, &err), RT_OK);
    assert_int_equal(integer, 7);
    assert_int_equal(md_json_uint(root, "e", 0, UINT32_MAX, &integer, &err), RT_OK);
    assert_true(integer == UINT32_MAX);
    assert_int_equal(md_json_number(root, "b", 2.5, 2.5, &number, &err), RT_OK);
    assert_true(number == 2.5);
    assert_int_equal(md_json_number(root, "d", 0, 9, &number, &err), RT_OK);
    assert_true(number == 3.0);
    assert_int_equal(md_json_bool(root, "c", &flag, &err), RT_OK);
    assert_true(flag);
    json_decref(root);
}

static void wrong_values_are_named_and_leave_the_output_alone(void **state)
{
    json_t *root =
        object("{\"text\":\"x\",\"null\":null,\"big\":4294967296,\"list\":[1,2],\"real\":1.5}");
    static const char *const keys[] = {"text", "null", "big", "list", "real", "gone"};
    static const char *const found[] = {"\"x\"",       "absent", "4294967296",
                                        "a list of 2", "1.5",    "absent"};

    (void)state;
    for (size_t i = 0; i < 6; i++) {
        uint32_t integer = 5;
        double number = 5;
        bool flag = true;
        rt_err err = {RT_OK, ""};

        assert_int_equal(md_json_uint(root, keys[i], 0, UINT32_MAX, &integer, &err), RT_EFORMAT);
        assert_non_null(strstr(err.text, keys[i]));
        assert_non_null(strstr(err.text, found[i]));
        assert_int_equal(integer, 5);
        assert_int_equal(md_json_number(root, keys[i], 0, 1, &number, &err), RT_EFORMAT);
        assert_true(number == 5);
        assert_int_equal(md_json_bool(root, keys[i], &flag, &err), RT_EFORMAT);
        assert_true(flag);
    }
    json_decref(root);
}

static void long_texts_are_cut(void **state)
{
    char text[80];
    json_t *value =
        json_string("0123456789012345678901234567890123456789012345678901234567890123456789");

    (void)state;
    assert_true(strlen(md_json_show(value, text, sizeof(text))) == 62);
    json_decref(value);
}

static void other_documents_are_refused(void **state)
{
    static const char *const texts[] = {"", "1", "[]", "{\"a\":1,\"a\":1}", "{}x", "{\"a\":1e999}"};

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        json_t *root = NULL;
        rt_err err = {RT_OK, ""};

        assert_int_equal(md_json_parse_object(texts[i], strlen(texts[i]), "a file", &root, &err),
                         RT_EFORMAT);
        assert_non_null(strstr(err.text, "a file"));
        assert_null(root);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_in_range_are_read),
        cmocka_unit_test(wrong_values_are_named_and_leave_the_output_alone),
        cmocka_unit_test(long_texts_are_cut),
        cmocka_unit_test(other_documents_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
