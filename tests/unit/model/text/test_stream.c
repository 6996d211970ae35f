#include "model/text/stream.h"
#include "model/text/utf8.h"
#include "tests/support/tokenizer_small.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint8_t *image;
static md_tokenizer *tokenizer;
static uint32_t byte_ids[256];

static int setup(void **state)
{
    json_t *root = tokenizer_small_json();
    size_t bytes = 0;

    (void)state;
    if (tokenizer_small_compile(root, &image, &bytes, NULL) != RT_OK) return -1;
    json_decref(root);
    if (md_tokenizer_open(image, bytes, &tokenizer, NULL) != RT_OK) return -1;
    for (uint32_t byte = 0; byte < 256; byte++) {
        char text = (char)byte;

        if (!md_tokenizer_find(tokenizer, (md_text){&text, 1}, &byte_ids[byte])) return -1;
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    md_tokenizer_close(tokenizer);
    free(image);
    return 0;
}

static md_stream *open_stream(const char *const *stops, uint32_t count)
{
    md_text views[8];
    md_stream_spec spec = {
        .tokenizer = tokenizer, .skip_special = true, .stops = views, .stop_count = count};
    md_stream *stream = NULL;

    for (uint32_t i = 0; i < count; i++)
        views[i] = (md_text){stops[i], strlen(stops[i])};
    assert_int_equal(md_stream_create(&spec, &stream, NULL), RT_OK);
    return stream;
}

/* Feeds text byte by byte, "abc" and "ab" as one token where `merged`; the joined output. */
static bool run(md_stream *stream, const char *text, size_t count, bool merged, char *out)
{
    bool more = true;
    md_text shown;

    *out = '\0';
    for (size_t i = 0; i < count;) {
        uint32_t id = byte_ids[(uint8_t)text[i]];
        size_t length = 1;

        if (merged && count - i >= 3 && memcmp(text + i, "abc", 3) == 0) {
            id = 257;
            length = 3;
        } else if (merged && count - i >= 2 && memcmp(text + i, "ab", 2) == 0) {
            id = 256;
            length = 2;
        }
        more = md_stream_feed(stream, id, &shown);
        strncat(out, shown.count == 0 ? "" : shown.bytes, shown.count);
        i += length;
    }
    if (!md_stream_finish(stream, &shown)) more = false;
    strncat(out, shown.count == 0 ? "" : shown.bytes, shown.count);
    return more;
}

static void check_run(const char *const *stops, uint32_t count, const char *text,
                      const char *expected, int32_t stop_index)
{
    for (int merged = 0; merged < 2; merged++) {
        md_stream *stream = open_stream(stops, count);
        char out[512];
        bool more = run(stream, text, strlen(text), merged != 0, out);

        assert_string_equal(out, expected);
        assert_int_equal(md_stream_stop_index(stream), stop_index);
        assert_int_equal(more, stop_index < 0);
        md_stream_free(stream);
    }
}

static void code_points_come_out_whole(void **state)
{
    md_stream *stream = open_stream(NULL, 0);
    const char *text = "\U0001f680";
    md_text shown;

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        assert_true(md_stream_feed(stream, byte_ids[(uint8_t)text[i]], &shown));
        assert_int_equal(shown.count, 0);
    }
    assert_true(md_stream_feed(stream, byte_ids[(uint8_t)text[3]], &shown));
    assert_int_equal(shown.count, 4);
    assert_memory_equal(shown.bytes, text, 4);
    assert_true(md_stream_finish(stream, &shown));
    assert_int_equal(shown.count, 0);
    md_stream_free(stream);
}

/* The examples of the Unicode standard, tables 3-8 to 3-11, and Python's errors="replace". */
static void broken_bytes_become_one_mark_per_maximal_part(void **state)
{
#define R "\ufffd"
    (void)state;
    check_run(NULL, 0, "\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41", R R R R R R R R "A", -1);
    check_run(NULL, 0, "\xed\xa0\x80\xed\xbf\xbf\xed\xaf\x41", R R R R R R R R "A", -1);
    check_run(NULL, 0, "\xf4\x91\x92\x93\xff\x41\x80\xbf\x42", R R R R R "A" R R "B", -1);
    check_run(NULL, 0, "\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41", R R R R "A", -1);
    check_run(NULL, 0, "a\xf0\x9f\x9a", "a" R, -1);
    check_run(NULL, 0, "\xe4\xbd\xe4\xbd\xa0", R "\u4f60", -1);
}

static void special_tokens_are_shown_or_left_out(void **state)
{
    md_stream_spec spec = {.tokenizer = tokenizer, .skip_special = false};
    md_stream *skipping = open_stream(NULL, 0);
    md_stream *showing = NULL;
    md_text shown;

    (void)state;
    assert_int_equal(md_stream_create(&spec, &showing, NULL), RT_OK);
    assert_true(md_stream_feed(skipping, 260, &shown));
    assert_int_equal(shown.count, 0);
    assert_true(md_stream_feed(skipping, 261, &shown));
    assert_int_equal(shown.count, 4);
    assert_true(md_stream_feed(showing, 260, &shown));
    assert_memory_equal(shown.bytes, "<a>", 3);
    assert_true(md_stream_feed(showing, 123456, &shown)); /* an id without a token */
    assert_int_equal(shown.count, 0);
    md_stream_free(skipping);
    md_stream_free(showing);
}

static void listed_special_tokens_are_shown_all_the_same(void **state)
{
    md_stream_spec spec = {
        .tokenizer = tokenizer, .skip_special = true, .shown = {7, 260}, .shown_count = 2};
    md_stream *stream = NULL;
    md_text shown;
    rt_err err = {0};

    (void)state;
    assert_int_equal(md_stream_create(&spec, &stream, NULL), RT_OK);
    assert_true(md_stream_feed(stream, 260, &shown));
    assert_int_equal(shown.count, 3);
    assert_memory_equal(shown.bytes, "<a>", 3);
    md_stream_free(stream);
    spec.shown_count = MD_STREAM_SHOWN_MAX + 1;
    assert_int_equal(md_stream_create(&spec, &stream, &err), RT_EINVAL);
    assert_non_null(strstr(err.text, "shown tokens"));
}

static void stop_texts_cut_exactly(void **state)
{
    static const char *const stops[] = {"\n\nUser:", "abcx", "STOP"};

    (void)state;
    check_run(stops, 3, "hello STOP more", "hello ", 2);
    check_run(stops, 3, "one\n\nUser: two", "one", 0);
    check_run(stops, 3, "ababcabcxyz", "ababc", 1);
    check_run(stops, 3, "STO\n\nUse", "STO\n\nUse", -1);
    check_run(stops, 3, "SSTOP", "S", 2);
    check_run(stops, 3, "STOP", "", 2);
}

static void repeated_starts_do_not_hide_a_stop_text(void **state)
{
    static const char *const stops[] = {"aab", "\u4f60\u597d"};

    (void)state;
    check_run(stops, 2, "aaaab", "aa", 0);
    check_run(stops, 2, "\u4f60\u4f60\u597d!", "\u4f60", 1);
}

static void the_longest_of_several_completed_together_counts(void **state)
{
    static const char *const stops[] = {"b", "xab", "ab"};

    (void)state;
    check_run(stops, 3, "yxab", "y", 1);
    check_run(stops, 3, "yab", "y", 2);
    check_run(stops, 3, "yb", "y", 0);
}

static void a_possible_stop_text_is_held_back_until_decided(void **state)
{
    static const char *const stops[] = {"abz"};
    md_stream *stream = open_stream(stops, 1);
    md_text shown;

    (void)state;
    assert_true(md_stream_feed(stream, 257, &shown)); /* abc */
    assert_int_equal(shown.count, 3);
    assert_true(md_stream_feed(stream, 256, &shown)); /* ab */
    assert_int_equal(shown.count, 0);
    assert_true(md_stream_feed(stream, byte_ids['a'], &shown));
    assert_int_equal(shown.count, 2);
    assert_true(md_stream_finish(stream, &shown));
    assert_int_equal(shown.count, 1);
    md_stream_free(stream);
}

static void a_stop_text_may_be_completed_by_the_end(void **state)
{
    static const char *const stops[] = {"a\ufffd"};

    (void)state;
    check_run(stops, 1, "xa\xf0\x9f", "x", 0);
}

static void an_ended_stream_gives_nothing_until_reset(void **state)
{
    static const char *const stops[] = {"b"};
    md_stream *stream = open_stream(stops, 1);
    md_text shown;

    (void)state;
    assert_false(md_stream_feed(stream, 256, &shown));
    assert_int_equal(shown.count, 1);
    assert_false(md_stream_feed(stream, byte_ids['c'], &shown));
    assert_int_equal(shown.count, 0);
    assert_false(md_stream_finish(stream, &shown));
    md_stream_reset(stream);
    assert_int_equal(md_stream_stop_index(stream), -1);
    assert_true(md_stream_feed(stream, byte_ids['c'], &shown));
    assert_int_equal(shown.count, 1);
    md_stream_free(stream);
}

/* Any text, any cut: what comes out is the text before the first completed stop text. */
static void outcome_does_not_depend_on_the_cut(void **state)
{
    static const char *const stops[] = {"abab", "cac", "bbb"};
    uint32_t random = 7;

    (void)state;
    for (int round = 0; round < 500; round++) {
        char text[41] = "", expected[41] = "";
        size_t end = sizeof(text) - 1, begin = end;
        int32_t index = -1;

        for (size_t i = 0; i < sizeof(text) - 1; i++) {
            random = random * 1664525u + 1013904223u;
            text[i] = "abc"[(random >> 16) % 3];
        }
        for (size_t at = 1; at <= end && index < 0; at++) {
            for (int32_t s = 0; s < 3 && index < 0; s++) {
                size_t length = strlen(stops[s]);

                if (at < length || memcmp(text + at - length, stops[s], length) != 0) continue;
                index = s;
                begin = at - length;
            }
        }
        memcpy(expected, text, begin);
        check_run(stops, 3, text, expected, index);
    }
}

static void unfit_stop_texts_are_refused(void **state)
{
    static char longest[MD_STREAM_STOP_BYTES_MAX + 1];
    md_text stops[MD_STREAM_STOPS_MAX + 1];
    md_stream_spec spec = {
        .tokenizer = tokenizer, .skip_special = true, .stops = stops, .stop_count = 1};
    md_stream *stream = NULL;
    rt_err err = {0};

    (void)state;
    stops[0] = (md_text){"", 0};
    assert_int_equal(md_stream_create(&spec, &stream, &err), RT_EINVAL);
    assert_non_null(strstr(err.text, "empty"));
    memset(longest, 'x', sizeof(longest));
    stops[0] = (md_text){longest, sizeof(longest)};
    assert_int_equal(md_stream_create(&spec, &stream, &err), RT_EINVAL);
    for (size_t i = 0; i <= MD_STREAM_STOPS_MAX; i++)
        stops[i] = (md_text){"x", 1};
    spec.stop_count = MD_STREAM_STOPS_MAX + 1;
    assert_int_equal(md_stream_create(&spec, &stream, &err), RT_EINVAL);
    assert_null(stream);
}

static void code_points_survive_writing_and_reading(void **state)
{
    static const uint32_t codes[] = {0,      0x7f,   0x80,   0x7ff,   0x800,
                                     0xd7ff, 0xe000, 0xffff, 0x10000, 0x10ffff};

    (void)state;
    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
        char bytes[4];
        size_t length = md_utf8_put(codes[i], bytes), read;
        uint32_t code;

        assert_int_equal(md_utf8_next(bytes, length, &read, &code), MD_UTF8_WHOLE);
        assert_int_equal(read, length);
        assert_int_equal(code, codes[i]);
        if (length > 1)
            assert_int_equal(md_utf8_next(bytes, length - 1, &read, &code), MD_UTF8_PARTIAL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(code_points_come_out_whole),
        cmocka_unit_test(broken_bytes_become_one_mark_per_maximal_part),
        cmocka_unit_test(special_tokens_are_shown_or_left_out),
        cmocka_unit_test(listed_special_tokens_are_shown_all_the_same),
        cmocka_unit_test(stop_texts_cut_exactly),
        cmocka_unit_test(repeated_starts_do_not_hide_a_stop_text),
        cmocka_unit_test(the_longest_of_several_completed_together_counts),
        cmocka_unit_test(a_possible_stop_text_is_held_back_until_decided),
        cmocka_unit_test(a_stop_text_may_be_completed_by_the_end),
        cmocka_unit_test(an_ended_stream_gives_nothing_until_reset),
        cmocka_unit_test(outcome_does_not_depend_on_the_cut),
        cmocka_unit_test(unfit_stop_texts_are_refused),
        cmocka_unit_test(code_points_survive_writing_and_reading),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
