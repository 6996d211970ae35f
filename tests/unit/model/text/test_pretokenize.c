#include "model/text/pretokenize.h"
#include "tests/support/tokenizer_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char glm_pattern[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

static md_text text_of(const char *text)
{
    return (md_text){text, strlen(text)};
}

/* Pieces joined by '|'. */
static rt_status join_piece(void *context, md_text piece, rt_err *err)
{
    md_text_buffer *joined = context;

    if (joined->count > 0) RT_TRY(md_text_buffer_puts(joined, "|", err));
    return md_text_buffer_append(joined, piece.bytes, piece.count, err);
}

static rt_status cut(const char *pattern, md_text text, md_text_buffer *joined, rt_err *err)
{
    md_splitter *splitter = NULL;
    md_split_scratch *scratch = NULL;
    rt_status status = md_splitter_create(text_of(pattern), &splitter, err);

    joined->count = 0;
    if (status == RT_OK) status = md_split_scratch_create(splitter, &scratch, err);
    if (status == RT_OK) status = md_splitter_cut(splitter, scratch, text, join_piece, joined, err);
    md_split_scratch_free(scratch);
    md_splitter_free(splitter);
    return status;
}

static void check_cut(const char *pattern, const char *text, const char *expected)
{
    md_text_buffer joined = {0};
    rt_err err = {0};

    if (cut(pattern, text_of(text), &joined, &err) != RT_OK) fail_msg("%s", err.text);
    assert_string_equal(joined.bytes, expected);
    md_text_buffer_fini(&joined);
}

static void white_space_is_unicodes(void **state)
{
    static const char *const spaces[] = {"\t",     "\v",     "\f",     " ",      "\xc2\x85",
                                         "\u00a0", "\u1680", "\u2000", "\u200a", "\u2028",
                                         "\u2029", "\u202f", "\u205f", "\u3000"};
    static const char *const others[] = {"\u180e", "\u200b", "\u2060", "\ufeff", "\x1c", "\x1f"};

    (void)state;
    for (size_t i = 0; i < sizeof(spaces) / sizeof(spaces[0]); i++) {
        check_cut("\\s", spaces[i], spaces[i]);
        /* In and out of a class, negated or not. */
        md_text_buffer joined = {0};
        char text[16];

        snprintf(text, sizeof(text), "x%sx", spaces[i]);
        assert_int_equal(cut("[^\\s]+|[\\s]", text_of(text), &joined, NULL), RT_OK);
        snprintf(text, sizeof(text), "x|%s|x", spaces[i]);
        assert_string_equal(joined.bytes, text);
        snprintf(text, sizeof(text), "x%sx", spaces[i]);
        assert_int_equal(cut("\\S+", text_of(text), &joined, NULL), RT_OK);
        snprintf(text, sizeof(text), "x|%s|x", spaces[i]);
        assert_string_equal(joined.bytes, text);
        md_text_buffer_fini(&joined);
    }
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        char text[16];

        snprintf(text, sizeof(text), "x%sx", others[i]);
        check_cut("\\S+", text, text);
    }
}

static void contractions_fold_case_beyond_ascii(void **state)
{
    (void)state;
    check_cut(glm_pattern, "it\u2019s 'S'\u017fT'Ll", "it|\u2019s| '|S|'\u017f|T|'Ll");
}

static void digits_and_marks_follow_their_categories(void **state)
{
    (void)state;
    check_cut(glm_pattern, "\u00b2\u00b3\u00b9\u2460\u216b", "\u00b2\u00b3\u00b9|\u2460\u216b");
    /* A combining mark is no letter: it ends a word, and may lead one. */
    check_cut(glm_pattern, "e\u0301a", "e|\u0301a");
}

static void the_last_blank_of_a_run_leads_the_next_piece(void **state)
{
    (void)state;
    check_cut(glm_pattern, "a   b", "a|  | b");
    check_cut(glm_pattern, "a \n\n  b  ", "a| \n\n| | b|  ");
}

static void what_no_alternative_matches_is_a_piece(void **state)
{
    (void)state;
    check_cut("b+", "aabba", "aa|bb|a");
    check_cut("\\d", "a1\u0661", "a|1|\u0661");
}

static void broken_bytes_are_pieces_of_their_own(void **state)
{
    (void)state;
    check_cut(glm_pattern,
              "ab\xff\xfe\xe4\xbd"
              "cd\xf0\x9f",
              "ab|\xff\xfe\xe4\xbd|cd|\xf0\x9f");
    /* A surrogate and an overlong form are no code points. */
    check_cut(glm_pattern,
              "a\xed\xa0\x80"
              "b\xc0\xaf",
              "a|\xed\xa0\x80|b|\xc0\xaf");
}

static void relatives_patterns_cut_as_recorded(void **state)
{
    static const char *const names[] = {"glm", "qwen", "gpt-neox"};
    json_t *vectors = fixture_json(MOESAIC_FIXTURES, "pretok_vectors.json");
    const json_t *row;
    size_t index, checked = 0;

    (void)state;
    for (size_t n = 0; n < sizeof(names) / sizeof(names[0]); n++) {
        const json_t *patterns = json_object_get(json_object_get(vectors, "patterns"), names[n]);
        const char *pattern = json_string_value(json_array_get(json_object_get(patterns, "rx"), 0));

        json_array_foreach(json_object_get(vectors, "vectors"), index, row)
        {
            const json_t *pieces = json_object_get(row, names[n]);
            const json_t *text = json_object_get(row, "text");
            md_text_buffer expected = {0}, joined = {0};
            const json_t *piece;
            size_t at;

            checked++;
            /* Some of them compose marks first; we do not, so such a text is not theirs here. */
            if (json_is_true(json_object_get(patterns, "nfc")) &&
                strstr(json_string_value(text), "\u0301") != NULL)
                continue;
            assert_int_equal(md_text_buffer_puts(&expected, "", NULL), RT_OK);
            assert_int_equal(md_text_buffer_puts(&joined, "", NULL), RT_OK);
            json_array_foreach(pieces, at, piece)
            {
                md_text view = {json_string_value(piece), json_string_length(piece)};

                assert_int_equal(join_piece(&expected, view, NULL), RT_OK);
            }
            assert_int_equal(cut(pattern,
                                 (md_text){json_string_value(text), json_string_length(text)},
                                 &joined, NULL),
                             RT_OK);
            assert_string_equal(joined.bytes, expected.bytes);
            md_text_buffer_fini(&expected);
            md_text_buffer_fini(&joined);
        }
    }
    print_message("%zu texts\n", checked);
    assert_int_equal(checked, sizeof(names) / sizeof(names[0]) *
                                  json_array_size(json_object_get(vectors, "vectors")));
    json_decref(vectors);
}

static void syntax_that_could_differ_is_refused_by_name(void **state)
{
    static const struct {
        const char *pattern;
        const char *named;
    } cases[] = {
        {"", "empty"},
        {"\\w", "this escape"},
        {"a\\h", "this escape at byte 1"},
        {"\\bx", "this escape"},
        {"\\1", "this escape"},
        {"\\Kx", "this escape"},
        {"x\\", "backslash at the end"},
        {"^a", "unescaped"},
        {"a$", "unescaped"},
        {"a.", "unescaped"},
        {"a]", "unescaped"},
        {"a}", "unescaped"},
        {"[a[b]]", "class within a class"},
        {"[a&&b]", "&&"},
        {"[]a]", "first of a class"},
        {"[a", "without an end"},
        {"[\\S]", "this escape"},
        {"[\\s-z]", "range that starts"},
        {"[\\p{L}-z]", "range that starts"},
        {"(?<=a)b", "kind of group"},
        {"(?<n>a)", "kind of group"},
        {"(?i)a", "kind of group"},
        {"(?>a)", "kind of group"},
        {"(?R)", "kind of group"},
        {"(*UTF)a", "kind of group"},
        {"(a", "group without an end"},
        {"a)", "without its"},
        {"a{,3}", "repeat count"},
        {"a{", "repeat count"},
        {"a{2}+", "after a count"},
        {"a{2}?", "after a count"},
        {"\\pL", "braced name"},
        {"\\p{Lu", "closing brace"},
        {"\\p{^L}", "Unicode property"},
        {"\\p{Latin}", "Unicode property"},
        {"(?i:\\p{Lu})", "letter-case"},
        {"*a", "quantifier"},
        {"\\p{Lx}", "property"},
        {"a*", "empty text"},
        {"a|(?=b)", "empty text"},
        {"[\xff]", "UTF-8"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        md_splitter *splitter = NULL;
        rt_err err = {0};
        rt_status status = md_splitter_create(text_of(cases[i].pattern), &splitter, &err);

        if (status != RT_EUNSUPPORTED || strstr(err.text, cases[i].named) == NULL)
            fail_msg("%s: %s: %s", cases[i].pattern, rt_status_name(status), err.text);
        assert_null(splitter);
    }
}

static void deep_nesting_is_refused(void **state)
{
    char pattern[512];
    md_splitter *splitter = NULL;

    (void)state;
    memset(pattern, '(', 200);
    pattern[200] = 'a';
    memset(pattern + 201, ')', 200);
    pattern[401] = '\0';
    assert_int_equal(md_splitter_create(text_of(pattern), &splitter, NULL), RT_EUNSUPPORTED);
}

static void exponential_patterns_meet_a_limit(void **state)
{
    char text[64];
    md_text_buffer joined = {0};
    rt_err err = {0};

    (void)state;
    memset(text, 'a', sizeof(text));
    assert_int_equal(cut("(?:a+a+)+[bc]", (md_text){text, sizeof(text)}, &joined, &err), RT_EINVAL);
    assert_non_null(strstr(err.text, "limit"));
    md_text_buffer_fini(&joined);
}

static void a_long_run_of_any_kind_is_cut(void **state)
{
    enum { BYTES = 1 << 20 };
    static const char kinds[] = {'a', ' ', '\n', '!', '1'};
    char *text = malloc(BYTES);
    md_text_buffer joined = {0};

    (void)state;
    assert_non_null(text);
    for (size_t k = 0; k < sizeof(kinds); k++) {
        rt_err err = {0};

        memset(text, kinds[k], BYTES);
        if (cut(glm_pattern, (md_text){text, BYTES}, &joined, &err) != RT_OK)
            fail_msg("%s", err.text);
        assert_true(joined.count >= BYTES);
    }
    md_text_buffer_fini(&joined);
    free(text);
}

static rt_status stop_at_second(void *context, md_text piece, rt_err *err)
{
    int *calls = context;

    (void)piece;
    return ++*calls == 2 ? rt_fail(err, RT_ECANCELED, "enough") : RT_OK;
}

static void an_error_of_the_receiver_ends_the_cut(void **state)
{
    md_splitter *splitter = NULL;
    md_split_scratch *scratch = NULL;
    int calls = 0;

    (void)state;
    assert_int_equal(md_splitter_create(text_of(glm_pattern), &splitter, NULL), RT_OK);
    assert_int_equal(md_split_scratch_create(splitter, &scratch, NULL), RT_OK);
    assert_int_equal(
        md_splitter_cut(splitter, scratch, text_of("a b c d"), stop_at_second, &calls, NULL),
        RT_ECANCELED);
    assert_int_equal(calls, 2);
    md_split_scratch_free(scratch);
    md_splitter_free(splitter);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(white_space_is_unicodes),
        cmocka_unit_test(contractions_fold_case_beyond_ascii),
        cmocka_unit_test(digits_and_marks_follow_their_categories),
        cmocka_unit_test(the_last_blank_of_a_run_leads_the_next_piece),
        cmocka_unit_test(what_no_alternative_matches_is_a_piece),
        cmocka_unit_test(broken_bytes_are_pieces_of_their_own),
        cmocka_unit_test(relatives_patterns_cut_as_recorded),
        cmocka_unit_test(syntax_that_could_differ_is_refused_by_name),
        cmocka_unit_test(deep_nesting_is_refused),
        cmocka_unit_test(exponential_patterns_meet_a_limit),
        cmocka_unit_test(a_long_run_of_any_kind_is_cut),
        cmocka_unit_test(an_error_of_the_receiver_ends_the_cut),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
