/* The chat template against strings and ids rendered by the released Jinja template. */
#include "model/text/chat_template.h"
#include "tests/support/tokenizer_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { VECTORS = 28 };

/* The one vector whose user text holds control tokens. */
static const char control_text_vector[] = "special tokens inside user text are not escaped";

static md_chat_request request_of(const json_t *row, const md_chat_messages *messages)
{
    const json_t *options = json_object_get(row, "kwargs");
    const json_t *thinking = json_object_get(options, "enable_thinking");
    const json_t *clear = json_object_get(options, "clear_thinking");
    md_chat_request request;

    md_chat_request_init(&request);
    request.messages = md_chat_messages_data(messages, &request.message_count);
    request.tools = json_object_get(row, "tools");
    request.add_generation_prompt = json_is_true(json_object_get(row, "add_generation_prompt"));
    if (thinking != NULL) request.enable_thinking = json_is_true(thinking);
    if (clear != NULL) request.clear_thinking = json_is_true(clear);
    request.reasoning_effort = json_string_value(json_object_get(options, "reasoning_effort"));
    return request;
}

static bool ids_equal(const md_chat *chat, const md_tokenizer *tokenizer, bool compat,
                      const json_t *expected)
{
    md_ids ids = {0};
    rt_err err = {0};
    bool equal;

    if (md_chat_encode(chat, tokenizer, compat, &ids, &err) != RT_OK) fail_msg("%s", err.text);
    equal = ids.count == json_array_size(expected);
    for (size_t i = 0; equal && i < ids.count; i++)
        equal = ids.ids[i] == json_integer_value(json_array_get(expected, i));
    md_ids_fini(&ids);
    return equal;
}

typedef struct {
    size_t strings, compat_ids, default_ids;
    char different[256]; /* name of the last vector whose ids differ in the default mode */
} outcome;

static void run_vector(const json_t *row, const md_tokenizer *tokenizer, outcome *total)
{
    const char *name = json_string_value(json_object_get(row, "name"));
    const json_t *expected = json_object_get(row, "expect");
    const json_t *ids = json_object_get(row, "ids_tiny_tokenizer");
    md_chat_messages *messages = NULL;
    md_chat_request request;
    md_chat *chat = NULL;
    rt_err err = {0};
    md_text text;
    bool same;

    if (md_chat_messages_read(json_object_get(row, "messages"), MD_NULL_NONE, &messages, &err) !=
        RT_OK)
        fail_msg("%s: %s", name, err.text);
    request = request_of(row, messages);
    if (md_chat_render(&request, &chat, &err) != RT_OK) fail_msg("%s: %s", name, err.text);
    text = md_chat_text(chat);
    same = text.count == json_string_length(expected) &&
           memcmp(text.bytes, json_string_value(expected), text.count) == 0;
    if (!same) print_message("%s:\n  %s\n  %s\n", name, text.bytes, json_string_value(expected));
    total->strings += same;
    total->compat_ids += ids_equal(chat, tokenizer, true, ids);
    if (ids_equal(chat, tokenizer, false, ids)) {
        total->default_ids++;
    } else {
        snprintf(total->different, sizeof(total->different), "%s", name);
    }
    md_chat_free(chat);
    md_chat_messages_free(messages);
}

static void template_renders_all_vectors(void **state)
{
    tokenizer_fixture fixture =
        tokenizer_fixture_open(MOESAIC_FIXTURES, "tokenizers/tiny/tokenizer.json");
    json_t *vectors = fixture_json(MOESAIC_FIXTURES, "chat_vectors.json");
    const json_t *cases = json_object_get(vectors, "cases");
    outcome total = {0};
    const json_t *row;
    size_t index;

    (void)state;
    assert_string_equal(json_string_value(json_object_get(vectors, "template_md5")),
                        MD_CHAT_TEMPLATE_ID);
    assert_int_equal(json_array_size(cases), VECTORS);
    json_array_foreach(cases, index, row) run_vector(row, fixture.tokenizer, &total);
    print_message("strings %zu/%d, compat ids %zu/%d, default ids %zu/%d (differs: %s)\n",
                  total.strings, VECTORS, total.compat_ids, VECTORS, total.default_ids, VECTORS,
                  total.different);
    assert_int_equal(total.strings, VECTORS);
    assert_int_equal(total.compat_ids, VECTORS);
    assert_int_equal(total.default_ids, VECTORS - 1);
    assert_string_equal(total.different, control_text_vector);
    json_decref(vectors);
    tokenizer_fixture_close(&fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(template_renders_all_vectors)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
