/* Text from peers: what may be shown and what is shown instead. */
#include "transport/text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static bool clean(const char *text)
{
    return tr_text_is_clean(text, strlen(text));
}

static void printable_utf8_is_clean(void **state)
{
    (void)state;
    assert_true(clean(""));
    assert_true(clean("host-7.example ~!"));
    assert_true(clean("\xc2\xa0\xc3\xa9\xdf\xbf"));
    assert_true(clean("\xe0\xa0\x80\xe6\x97\xa5\xed\x9f\xbf\xee\x80\x80\xef\xbf\xbd"));
    assert_true(clean("\xf0\x90\x80\x80\xf4\x8f\xbf\xbf"));
}

static void controls_and_malformed_bytes_are_not(void **state)
{
    static const char *const bad[] = {
        "\n",               /* C0 */
        "a\x1b[0m",         /* escape */
        "\x7f",             /* DEL */
        "\xc2\x80",         /* C1 */
        "\xc2\x9b",         /* C1: CSI */
        "\x80",             /* continuation alone */
        "\xc0\xaf",         /* overlong */
        "\xc1\xbf",         /* overlong */
        "\xe0\x9f\xbf",     /* overlong */
        "\xf0\x8f\xbf\xbf", /* overlong */
        "\xed\xa0\x80",     /* surrogate */
        "\xf4\x90\x80\x80", /* beyond U+10FFFF */
        "\xf8\x88\x80\x80\x80",
        "\xff",
        "\xe6\x97",     /* cut */
        "\xe6\x41\x41", /* no continuation */
    };

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (clean(bad[i])) fail_msg("case %zu is taken for clean", i);
    assert_false(tr_text_is_clean("a\0b", 3));
}

static void cleaning_gives_clean_text_of_any_bytes(void **state)
{
    uint8_t bytes[1024];
    char out[1100];
    uint32_t x = 1;

    (void)state;
    for (int round = 0; round < 200; round++) {
        size_t length;

        for (size_t i = 0; i < sizeof(bytes); i++) {
            x = x * 1664525 + 1013904223;
            bytes[i] = (uint8_t)(x >> 24);
        }
        length = tr_text_clean((const char *)bytes, sizeof(bytes), out, sizeof(out));
        assert_int_equal(strlen(out), length);
        assert_int_equal(length, sizeof(bytes));
        assert_true(tr_text_is_clean(out, length));
    }
    assert_int_equal(tr_text_clean("tab\there", 8, out, sizeof(out)), 8);
    assert_string_equal(out, "tab?here");
}

static void cleaning_cuts_at_a_character(void **state)
{
    char out[4];

    (void)state;
    assert_int_equal(tr_text_clean("ab\xc3\xa9", 4, out, 4), 2);
    assert_string_equal(out, "ab");
    assert_int_equal(tr_text_clean("abcdef", 6, out, 1), 0);
    assert_string_equal(out, "");
}

static void a_cut_never_splits_a_character(void **state)
{
    static const char text[] = "a\xc3\xa9\xe6\x97\xa5!";
    static const size_t expected[] = {0, 1, 1, 3, 3, 3, 6, 7, 7};

    (void)state;
    for (size_t limit = 0; limit < sizeof(expected) / sizeof(expected[0]); limit++)
        assert_int_equal(tr_text_cut(text, sizeof(text) - 1, limit), expected[limit]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(printable_utf8_is_clean),
        cmocka_unit_test(controls_and_malformed_bytes_are_not),
        cmocka_unit_test(cleaning_gives_clean_text_of_any_bytes),
        cmocka_unit_test(cleaning_cuts_at_a_character),
        cmocka_unit_test(a_cut_never_splits_a_character),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
