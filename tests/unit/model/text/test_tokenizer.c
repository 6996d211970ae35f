#include "model/text/tokenizer.h"
#include "tests/support/tokenizer_small.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const md_match match_all = {.mode = MD_MATCH_ALL};
static const md_match match_none = {.mode = MD_MATCH_NONE};

enum { A = 64, B = 65, C = 66, LESS = 27, GREATER = 29, SPACE = 220 };

typedef struct {
    uint8_t *image;
    size_t bytes;
    md_tokenizer *tokenizer;
} opened;

static opened open_json(json_t *root)
{
    opened o = {0};
    rt_err err = {0};

    if (tokenizer_small_compile(root, &o.image, &o.bytes, &err) != RT_OK) fail_msg("%s", err.text);
    if (md_tokenizer_open(o.image, o.bytes, &o.tokenizer, &err) != RT_OK) fail_msg("%s", err.text);
    json_decref(root);
    return o;
}

static void close_opened(opened *o)
{
    md_tokenizer_close(o->tokenizer);
    free(o->image);
}

static md_text text_of(const char *text)
{
    return (md_text){text, strlen(text)};
}

#define assert_encodes(o, text, match, ...)                                                        \
    do {                                                                                           \
        const uint32_t expected_[] = {__VA_ARGS__};                                                \
        check_encodes((o)->tokenizer, text, match, expected_, sizeof(expected_) / 4);              \
    } while (0)

static void check_encodes(const md_tokenizer *tokenizer, md_text text, md_match match,
                          const uint32_t *expected, size_t count)
{
    md_ids ids = {0};
    rt_err err = {0};

    if (md_tokenizer_encode(tokenizer, text, match, &ids, &err) != RT_OK) fail_msg("%s", err.text);
    assert_int_equal(ids.count, count);
    assert_memory_equal(ids.ids, expected, count * sizeof(*expected));
    md_ids_fini(&ids);
}

/* ---- encoding ---- */

static void whole_entries_win_over_merges_only_when_asked(void **state)
{
    opened with = open_json(tokenizer_small_json());
    json_t *root = tokenizer_small_json();
    opened without;

    (void)state;
    tokenizer_small_set(root, "model.ignore_merges", json_false());
    without = open_json(root);
    assert_encodes(&with, text_of("xyz"), match_all, 259);
    assert_encodes(&without, text_of("xyz"), match_all, 87, 88, 89);
    close_opened(&with);
    close_opened(&without);
}

static void merges_go_by_rank_then_from_the_left(void **state)
{
    opened o = open_json(tokenizer_small_json());

    (void)state;
    /* a+b outranks b+c everywhere; "abcd" is no entry, so it is merged. */
    assert_encodes(&o, text_of("abcd"), match_all, 257, 67);
    assert_encodes(&o, text_of("abab"), match_all, 256, 256);
    assert_encodes(&o, text_of("bcbc"), match_all, 258, 258);
    close_opened(&o);
}

static void a_pair_listed_twice_has_its_last_rank(void **state)
{
    json_t *root = tokenizer_small_json();
    opened o;

    (void)state;
    tokenizer_small_set(root, "model.merges.3", json_pack("[ss]", "a", "b"));
    o = open_json(root);
    /* Now ab+c, b+c, a+b: b+c comes first, and a+bc is no merge. */
    assert_encodes(&o, text_of("abcd"), match_all, A, 258, 67);
    close_opened(&o);
}

static void added_tokens_match_leftmost_longest(void **state)
{
    opened o = open_json(tokenizer_small_json());

    (void)state;
    assert_encodes(&o, text_of("<ab>"), match_all, 261);
    assert_encodes(&o, text_of("<a>b"), match_all, 260, B);
    assert_encodes(&o, text_of("<ab<a>"), match_all, 262, B, 260);
    assert_encodes(&o, text_of("c<"), match_all, C, LESS);
    close_opened(&o);
}

static void text_only_never_gives_an_added_token(void **state)
{
    opened o = open_json(tokenizer_small_json());

    (void)state;
    assert_encodes(&o, text_of("<a>"), match_none, LESS, A, GREATER);
    close_opened(&o);
}

static void only_listed_tokens_match(void **state)
{
    opened o = open_json(tokenizer_small_json());
    const uint32_t listed[] = {260, 7 /* no added token: never matches */};
    md_match match = {MD_MATCH_LISTED, listed, 2};

    (void)state;
    assert_encodes(&o, text_of("<a><"), match, 260, LESS);
    assert_encodes(&o, text_of("<ab>"), match, LESS, 256, GREATER);
    assert_encodes(&o, text_of("("), match, 7);
    close_opened(&o);
}

static void bytes_that_are_not_utf8_survive(void **state)
{
    static const char bytes[] = "ab\xff\xfe"
                                "ab \xe4\xbd ab\0c\xf0\x9f\x98\x80\xc0";
    opened o = open_json(tokenizer_small_json());
    md_text text = {bytes, sizeof(bytes) - 1};
    md_ids ids = {0};
    char *back = NULL;
    size_t count = 0;

    (void)state;
    assert_int_equal(md_tokenizer_encode(o.tokenizer, text, match_all, &ids, NULL), RT_OK);
    assert_int_equal(
        md_tokenizer_decode(o.tokenizer, ids.ids, ids.count, false, &back, &count, NULL), RT_OK);
    assert_int_equal(count, text.count);
    assert_memory_equal(back, bytes, count);
    assert_int_equal(ids.ids[0], 256);
    free(back);
    md_ids_fini(&ids);
    close_opened(&o);
}

static void empty_text_has_no_ids(void **state)
{
    opened o = open_json(tokenizer_small_json());
    md_ids ids = {0};

    (void)state;
    assert_int_equal(md_tokenizer_encode(o.tokenizer, (md_text){NULL, 0}, match_all, &ids, NULL),
                     RT_OK);
    assert_int_equal(ids.count, 0);
    close_opened(&o);
}

static void a_text_over_the_limit_is_refused_and_changes_nothing(void **state)
{
    opened o = open_json(tokenizer_small_json());
    md_ids ids = {0};
    rt_err err = {0};

    (void)state;
    assert_int_equal(md_ids_push(&ids, 5, NULL), RT_OK);
    assert_int_equal(md_tokenizer_encode(o.tokenizer, (md_text){"x", (size_t)MD_TEXT_BYTES_MAX + 1},
                                         match_all, &ids, &err),
                     RT_EINVAL);
    assert_non_null(strstr(err.text, "67108865"));
    assert_int_equal(ids.count, 1);
    md_ids_fini(&ids);
    close_opened(&o);
}

static void a_megabyte_in_one_piece_is_encoded(void **state)
{
    enum { BYTES = 1 << 20 };
    opened o = open_json(tokenizer_small_json());
    char *text = malloc(BYTES);
    md_ids ids = {0};

    (void)state;
    assert_non_null(text);
    for (size_t i = 0; i < BYTES; i++)
        text[i] = "ab"[i % 2];
    assert_int_equal(
        md_tokenizer_encode(o.tokenizer, (md_text){text, BYTES}, match_all, &ids, NULL), RT_OK);
    assert_int_equal(ids.count, BYTES / 2);
    for (size_t i = 0; i < ids.count; i++)
        assert_int_equal(ids.ids[i], 256);
    md_ids_fini(&ids);
    free(text);
    close_opened(&o);
}

/* ---- looking up ---- */

static void tokens_are_found_by_id_and_by_text(void **state)
{
    opened o = open_json(tokenizer_small_json());
    md_token token;
    uint32_t id;

    (void)state;
    assert_int_equal(md_tokenizer_vocab(o.tokenizer), 263);
    assert_int_equal(md_tokenizer_token_bytes_max(o.tokenizer), 4);
    assert_true(md_tokenizer_token(o.tokenizer, 260, &token));
    assert_true(token.added && token.special);
    assert_memory_equal(token.text.bytes, "<a>", 3);
    assert_true(md_tokenizer_token(o.tokenizer, 261, &token));
    assert_true(token.added && !token.special);
    assert_true(md_tokenizer_token(o.tokenizer, SPACE, &token));
    assert_true(!token.added && token.text.count == 1 && token.text.bytes[0] == ' ');
    assert_false(md_tokenizer_token(o.tokenizer, 263, &token));
    assert_true(md_tokenizer_find(o.tokenizer, text_of("abc"), &id));
    assert_int_equal(id, 257);
    assert_true(md_tokenizer_find(o.tokenizer, text_of("<ab>"), &id));
    assert_int_equal(id, 261);
    assert_true(md_tokenizer_find(o.tokenizer, text_of("<a"), &id));
    assert_int_equal(id, 262);
    assert_false(md_tokenizer_find(o.tokenizer, text_of("<ab"), &id));
    assert_false(md_tokenizer_find(o.tokenizer, text_of(""), &id));
    close_opened(&o);
}

static void decoding_skips_special_tokens_and_ids_without_one(void **state)
{
    opened o = open_json(tokenizer_small_json());
    const uint32_t ids[] = {260, 257, 999999, 261};
    char *text = NULL;
    size_t bytes = 0;

    (void)state;
    assert_int_equal(md_tokenizer_decode(o.tokenizer, ids, 4, true, &text, &bytes, NULL), RT_OK);
    assert_string_equal(text, "abc<ab>");
    free(text);
    assert_int_equal(md_tokenizer_decode(o.tokenizer, ids, 4, false, &text, &bytes, NULL), RT_OK);
    assert_string_equal(text, "<a>abc<ab>");
    free(text);
    close_opened(&o);
}

static void an_id_left_out_is_a_hole(void **state)
{
    json_t *root = tokenizer_small_json();
    md_token token;
    opened o;

    (void)state;
    tokenizer_small_set(root, "added_tokens.0.id", json_integer(300));
    o = open_json(root);
    assert_int_equal(md_tokenizer_vocab(o.tokenizer), 301);
    assert_false(md_tokenizer_token(o.tokenizer, 260, &token));
    assert_encodes(&o, text_of("<a>"), match_all, 300);
    close_opened(&o);
}

/* ---- compiling ---- */

static void compiling_twice_gives_the_same_bytes(void **state)
{
    json_t *root = tokenizer_small_json();
    uint8_t *a = NULL, *b = NULL;
    size_t a_bytes = 0, b_bytes = 0;

    (void)state;
    assert_int_equal(tokenizer_small_compile(root, &a, &a_bytes, NULL), RT_OK);
    assert_int_equal(tokenizer_small_compile(root, &b, &b_bytes, NULL), RT_OK);
    assert_int_equal(a_bytes, b_bytes);
    assert_memory_equal(a, b, a_bytes);
    free(b);
    /* Older files write a merge as one string. */
    tokenizer_small_set(root, "model.merges.1", json_string("ab c"));
    assert_int_equal(tokenizer_small_compile(root, &b, &b_bytes, NULL), RT_OK);
    assert_memory_equal(a, b, a_bytes);
    free(a);
    free(b);
    json_decref(root);
}

static void an_added_token_may_be_an_entry_of_the_vocabulary(void **state)
{
    json_t *root = tokenizer_small_json();
    opened o;

    (void)state;
    tokenizer_small_set(root, "added_tokens.3",
                        json_pack("{s:i,s:s,s:b}", "id", 259, "content", "xyz", "special", 1));
    o = open_json(root);
    assert_encodes(&o, text_of("axyzb"), match_all, A, 259, B);
    assert_encodes(&o, text_of("axyzb"), match_none, A, 87, 88, 89, B);
    close_opened(&o);
}

typedef struct {
    const char *path;
    json_t *value;
    rt_status status;
    const char *named; /* in the error's text */
} refusal;

static void check_refusals(const refusal *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        json_t *root = tokenizer_small_json();
        uint8_t *image = NULL;
        size_t bytes = 0;
        rt_err err = {0};
        rt_status status;

        tokenizer_small_set(root, cases[i].path, cases[i].value);
        status = tokenizer_small_compile(root, &image, &bytes, &err);
        if (status != cases[i].status || strstr(err.text, cases[i].named) == NULL)
            fail_msg("%s: %s: %s", cases[i].path, rt_status_name(status), err.text);
        assert_null(image);
        json_decref(root);
    }
}

static void features_that_are_not_supported_are_refused_by_name(void **state)
{
#define SPLIT "pre_tokenizer.pretokenizers.0."
#define LEVEL "pre_tokenizer.pretokenizers.1."
    const refusal cases[] = {
        {"normalizer", json_pack("{s:s}", "type", "NFC"), RT_EUNSUPPORTED, "normalizer"},
        {"model.type", json_string("Unigram"), RT_EUNSUPPORTED, "Unigram"},
        {"model.dropout", json_real(0.1), RT_EUNSUPPORTED, "dropout"},
        {"model.unk_token", json_string("<unk>"), RT_EUNSUPPORTED, "unk_token"},
        {"model.byte_fallback", json_true(), RT_EUNSUPPORTED, "byte_fallback"},
        {"model.continuing_subword_prefix", json_string("##"), RT_EUNSUPPORTED,
         "continuing_subword_prefix"},
        {"model.end_of_word_suffix", json_string("</w>"), RT_EUNSUPPORTED, "end_of_word_suffix"},
        {"pre_tokenizer.type", json_string("Metaspace"), RT_EUNSUPPORTED, "Metaspace"},
        {"pre_tokenizer.pretokenizers.2", json_object(), RT_EUNSUPPORTED, "3 steps"},
        {SPLIT "type", json_string("Digits"), RT_EUNSUPPORTED, "Digits"},
        {SPLIT "pattern", json_pack("{s:s}", "String", " "), RT_EUNSUPPORTED, "Regex"},
        {SPLIT "behavior", json_string("Removed"), RT_EUNSUPPORTED, "behavior"},
        {SPLIT "invert", json_true(), RT_EUNSUPPORTED, "invert"},
        {SPLIT "pattern.Regex", json_string("\\w+"), RT_EUNSUPPORTED, "split pattern"},
        {LEVEL "add_prefix_space", json_true(), RT_EUNSUPPORTED, "add_prefix_space"},
        {LEVEL "use_regex", json_true(), RT_EUNSUPPORTED, "use_regex"},
        {LEVEL "use_regex", NULL, RT_EUNSUPPORTED, "use_regex"},
        {"post_processor.type", json_string("TemplateProcessing"), RT_EUNSUPPORTED,
         "TemplateProcessing"},
        {"decoder.type", json_string("Metaspace"), RT_EUNSUPPORTED, "Metaspace"},
        {"added_tokens.1.lstrip", json_true(), RT_EUNSUPPORTED, "<ab>: lstrip"},
        {"added_tokens.1.rstrip", json_true(), RT_EUNSUPPORTED, "<ab>: rstrip"},
        {"added_tokens.1.normalized", json_true(), RT_EUNSUPPORTED, "<ab>: normalized"},
        {"added_tokens.1.single_word", json_true(), RT_EUNSUPPORTED, "<ab>: single_word"},
    };

    (void)state;
    check_refusals(cases, sizeof(cases) / sizeof(cases[0]));
}

static void malformed_tokenizers_are_refused_by_name(void **state)
{
    const refusal cases[] = {
        {"model", json_string("BPE"), RT_EFORMAT, "model"},
        {"model.vocab", json_array(), RT_EFORMAT, "vocab"},
        {"model.vocab.ab", json_string("256"), RT_EFORMAT, "ab"},
        {"model.vocab.ab", json_integer(-1), RT_EFORMAT, "ab"},
        {"model.vocab.ab", json_integer(1 << 20), RT_EFORMAT, "1048575"},
        {"model.vocab.ab", json_integer(4000000000000), RT_EFORMAT, "ab"},
        {"model.vocab.ab", json_integer(257), RT_EFORMAT, "257 twice"},
        {"model.vocab.a", NULL, RT_EFORMAT, "a is not in the vocabulary"},
        {"model.vocab.q", NULL, RT_EFORMAT, "byte 0x71"},
        {"model.vocab.\xe4\xbd\xa0", json_integer(400), RT_EFORMAT, "byte alphabet"},
        {"model.merges", json_object(), RT_EFORMAT, "merges"},
        {"model.merges.1", json_integer(3), RT_EFORMAT, "merges[1]"},
        {"model.merges.1", json_pack("[s]", "a"), RT_EFORMAT, "merges[1]"},
        {"model.merges.1", json_pack("[si]", "a", 3), RT_EFORMAT, "merges[1]"},
        {"model.merges.1", json_string("a b c"), RT_EFORMAT, "merges[1]"},
        {"model.merges.1", json_pack("[ss]", "c", "a"), RT_EFORMAT, "ca is not"},
        {"model.merges.1", json_pack("[ss]", "no", "a"), RT_EFORMAT, "no is not"},
        {"added_tokens", NULL, RT_EFORMAT, "added_tokens"},
        {"added_tokens.1", json_integer(3), RT_EFORMAT, "added token"},
        {"added_tokens.1.id", json_real(261.0), RT_EFORMAT, "added token"},
        {"added_tokens.1.id", json_integer(260), RT_EFORMAT, "260 twice"},
        {"added_tokens.1.id", json_integer(256), RT_EFORMAT, "another entry"},
        {"added_tokens.1.content", json_string(""), RT_EFORMAT, "content"},
        {"added_tokens.1.content", json_string("<a>"), RT_EFORMAT, "<a> twice"},
        {"added_tokens.1.content", json_string("abc"), RT_EFORMAT, "vocabulary entry 257"},
        {"decoder", json_null(), RT_EFORMAT, "decoder"},
    };

    (void)state;
    check_refusals(cases, sizeof(cases) / sizeof(cases[0]));
}

static void text_that_is_no_json_is_refused_at_every_length(void **state)
{
    json_t *root = tokenizer_small_json();
    char *text = json_dumps(root, JSON_COMPACT);
    uint8_t *image = NULL;
    size_t bytes = 0;
    rt_err err = {0};

    (void)state;
    for (size_t length = 0; length < strlen(text); length++)
        assert_int_equal(md_tokenizer_compile(text, length, &image, &bytes, NULL), RT_EFORMAT);
    assert_int_equal(md_tokenizer_compile("{\"a\":1,\"a\":1}", 13, &image, &bytes, &err),
                     RT_EFORMAT);
    assert_non_null(strstr(err.text, "duplicate"));
    assert_null(image);
    free(text);
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_entries_win_over_merges_only_when_asked),
        cmocka_unit_test(merges_go_by_rank_then_from_the_left),
        cmocka_unit_test(a_pair_listed_twice_has_its_last_rank),
        cmocka_unit_test(added_tokens_match_leftmost_longest),
        cmocka_unit_test(text_only_never_gives_an_added_token),
        cmocka_unit_test(only_listed_tokens_match),
        cmocka_unit_test(bytes_that_are_not_utf8_survive),
        cmocka_unit_test(empty_text_has_no_ids),
        cmocka_unit_test(a_text_over_the_limit_is_refused_and_changes_nothing),
        cmocka_unit_test(a_megabyte_in_one_piece_is_encoded),
        cmocka_unit_test(tokens_are_found_by_id_and_by_text),
        cmocka_unit_test(decoding_skips_special_tokens_and_ids_without_one),
        cmocka_unit_test(an_id_left_out_is_a_hole),
        cmocka_unit_test(compiling_twice_gives_the_same_bytes),
        cmocka_unit_test(an_added_token_may_be_an_entry_of_the_vocabulary),
        cmocka_unit_test(features_that_are_not_supported_are_refused_by_name),
        cmocka_unit_test(malformed_tokenizers_are_refused_by_name),
        cmocka_unit_test(text_that_is_no_json_is_refused_at_every_length),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
