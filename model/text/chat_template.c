/* chat_template.c - see chat_template.h. The order of the functions is the order of the template.
 */
#include "model/text/chat_template.h"

#include "base/check.h"
#include "model/text/json_text.h"
#include "model/text/text_buffer.h"
#include "model/text/utf8.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    size_t offset; /* into md_chat.text */
    size_t count;
    bool control;
} segment;

struct md_chat {
    md_text_buffer text;
    segment *segments; /* owned */
    size_t segment_count;
    size_t segment_capacity;
};

typedef struct {
    const md_chat_request *request;
    md_chat *chat;
    md_text_buffer scratch; /* an assistant's content while it is taken apart */
    rt_err *err;
} renderer;

/* All tokens that the template itself writes. */
static const char *const control_names[] = {
    "[gMASK]",   "<sop>",      "<|system|>",  "<|user|>",     "<|assistant|>",   "<|observation|>",
    "<think>",   "</think>",   "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>",
    "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
};
enum { CONTROL_NAMES = sizeof(control_names) / sizeof(control_names[0]) };

bool md_chat_template_known(const void *text, size_t bytes)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    char hex[2 * EVP_MAX_MD_SIZE + 1] = "";
    unsigned int count = 0;

    if (EVP_Digest(text, bytes, digest, &count, EVP_md5(), NULL) != 1) return false;
    for (unsigned int i = 0; i < count; i++)
        snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    return strcmp(hex, MD_CHAT_TEMPLATE_ID) == 0;
}

void md_chat_request_init(md_chat_request *request)
{
    *request = (md_chat_request){
        .add_generation_prompt = true, .enable_thinking = true, .clear_thinking = true};
}

/* ---- output ---- */

static rt_status put_segment(renderer *r, const char *bytes, size_t count, bool control)
{
    md_chat *chat = r->chat;
    segment *last = chat->segment_count == 0 ? NULL : &chat->segments[chat->segment_count - 1];

    if (count == 0) return RT_OK;
    if (chat->text.count + count > MD_TEXT_BYTES_MAX)
        return rt_fail(r->err, RT_EINVAL, "the conversation exceeds %d bytes", MD_TEXT_BYTES_MAX);
    if (control || last == NULL || last->control) {
        if (chat->segment_count == chat->segment_capacity) {
            size_t capacity = chat->segment_capacity == 0 ? 32 : 2 * chat->segment_capacity;
            segment *grown = realloc(chat->segments, capacity * sizeof(*grown));

            if (grown == NULL) return rt_fail(r->err, RT_ENOMEM, "conversation");
            chat->segments = grown;
            chat->segment_capacity = capacity;
        }
        last = &chat->segments[chat->segment_count++];
        *last = (segment){chat->text.count, 0, control};
    }
    RT_TRY(md_text_buffer_append(&chat->text, bytes, count, r->err));
    last->count += count;
    return RT_OK;
}

/* Text of the conversation: never a control token. */
static rt_status put_text(renderer *r, md_text text)
{
    return put_segment(r, text.bytes, text.count, false);
}

static const char *control_at(const char *text)
{
    for (size_t i = 0; i < CONTROL_NAMES; i++)
        if (strncmp(text, control_names[i], strlen(control_names[i])) == 0) return control_names[i];
    return NULL;
}

/* A literal of the template: the control tokens in it are meant. */
static rt_status put_markup(renderer *r, const char *literal)
{
    while (*literal != '\0') {
        const char *name = control_at(literal);
        size_t count = name == NULL ? 1 : strlen(name);

        while (name == NULL && literal[count] != '\0' && control_at(literal + count) == NULL)
            count++;
        RT_TRY(put_segment(r, literal, count, name != NULL));
        literal += count;
    }
    return RT_OK;
}

/* ---- tools ---- */

static const char tools_head[] =
    "<|system|>\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n";
static const char tools_tail[] =
    "</tools>\n\nFor each function call, output the function name and arguments within the "
    "following "
    "XML format:\n<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><arg_value>{arg-value-1}"
    "</arg_value><arg_key>{arg-key-2}</arg_key><arg_value>{arg-value-2}</arg_value>...</tool_call>";

static bool is_true(const json_t *value)
{
    if (json_is_number(value)) return json_number_value(value) != 0.0;
    if (json_is_string(value)) return json_string_length(value) > 0;
    if (json_is_array(value)) return json_array_size(value) > 0;
    if (json_is_object(value)) return json_object_size(value) > 0;
    return json_is_true(value);
}

static const json_t *tool_definition(const json_t *tool)
{
    const json_t *function = json_object_get(tool, "function");

    return function == NULL ? tool : function;
}

/* One line; the outer object is printed here since two of its keys are left out. */
static rt_status put_tool(renderer *r, const json_t *tool)
{
    json_t *open = (json_t *)(uintptr_t)tool; /* jansson's iterators do not change it */
    md_text_buffer *line = &r->scratch;
    const char *separator = "";

    line->count = 0;
    RT_TRY(md_text_buffer_puts(line, "{", r->err));
    for (void *at = json_object_iter(open); at != NULL; at = json_object_iter_next(open, at)) {
        const char *key = json_object_iter_key(at);

        if (strcmp(key, "defer_loading") == 0 || strcmp(key, "strict") == 0) continue;
        RT_TRY(md_text_buffer_puts(line, separator, r->err));
        RT_TRY(md_text_buffer_puts(line, "\"", r->err));
        RT_TRY(md_text_buffer_append(line, key, json_object_iter_key_len(at), r->err));
        RT_TRY(md_text_buffer_puts(line, "\": ", r->err));
        RT_TRY(md_json_text(json_object_iter_value(at), line, r->err));
        separator = ", ";
    }
    RT_TRY(md_text_buffer_puts(line, "}\n", r->err));
    return put_text(r, (md_text){line->bytes, line->count});
}

static rt_status put_tools(renderer *r)
{
    const json_t *tools = r->request->tools;
    const json_t *tool;
    size_t index;

    if (tools == NULL || json_is_null(tools)) return RT_OK;
    if (!json_is_array(tools)) return rt_fail(r->err, RT_EINVAL, "tools: expected a list");
    if (json_array_size(tools) == 0) return RT_OK;
    RT_TRY(put_markup(r, tools_head));
    json_array_foreach(tools, index, tool)
    {
        const json_t *definition = tool_definition(tool);

        if (!json_is_object(definition))
            return rt_fail(r->err, RT_EINVAL, "tools[%zu]: expected an object", index);
        if (is_true(json_object_get(definition, "defer_loading"))) continue;
        RT_TRY(put_tool(r, definition));
    }
    return put_markup(r, tools_tail);
}

/* ---- messages ---- */

/* A part that the model cannot see is said to be so in the template's words. */
static md_text part_text(md_part part)
{
#define REMINDER(what)                                                                             \
    "<reminder>You are unable to process this " what " because you don't have multi-modal "        \
    "input ability. Try different methods.</reminder>"
    static const char image[] = REMINDER("image");
    static const char video[] = REMINDER("video");
    static const char audio[] = REMINDER("audio");

    switch (part.kind) {
    case MD_PART_IMAGE:
        return (md_text){image, sizeof(image) - 1};
    case MD_PART_VIDEO:
        return (md_text){video, sizeof(video) - 1};
    case MD_PART_AUDIO:
        return (md_text){audio, sizeof(audio) - 1};
    case MD_PART_TEXT:
    case MD_PART_OUTPUT:
    case MD_PART_TOOL_REFERENCE:
        break;
    }
    return part.text;
}

static rt_status put_parts(renderer *r, const md_message *message)
{
    for (uint32_t i = 0; i < message->part_count; i++)
        RT_TRY(put_text(r, part_text(message->parts[i])));
    return RT_OK;
}

/* Python's str.strip(). */
static md_text strip(md_text text)
{
    size_t length = 0;
    uint32_t code;

    while (text.count > 0 &&
           md_utf8_next(text.bytes, text.count, &length, &code) == MD_UTF8_WHOLE &&
           md_unicode_is_space(code)) {
        text.bytes += length;
        text.count -= length;
    }
    while (text.count > 0) {
        size_t back = 1;

        while (back < 4 && back < text.count && (text.bytes[text.count - back] & 0xc0) == 0x80)
            back++;
        if (md_utf8_next(text.bytes + text.count - back, back, &length, &code) != MD_UTF8_WHOLE ||
            length != back || !md_unicode_is_space(code))
            break;
        text.count -= back;
    }
    return text;
}

/* The last occurrence of mark in text, or NULL. */
static const char *find_last(md_text text, const char *mark)
{
    size_t length = strlen(mark);

    for (size_t at = text.count; at >= length; at--)
        if (memcmp(text.bytes + at - length, mark, length) == 0) return text.bytes + at - length;
    return NULL;
}

/* Takes reasoning that is written inside the content out of it: what stands before the first
 * </think>, after the last <think> there; the content is what follows the last </think>. */
static bool split_reasoning(md_text *content, md_text *reasoning)
{
    static const char open[] = "<think>", close[] = "</think>";
    const char *first = content->count == 0
                            ? NULL
                            : memmem(content->bytes, content->count, close, sizeof(close) - 1);
    const char *last = find_last(*content, close);
    const char *begin;

    if (first == NULL || last == NULL) return false;
    *reasoning = (md_text){content->bytes, (size_t)(first - content->bytes)};
    begin = find_last(*reasoning, open);
    if (begin != NULL) {
        begin += sizeof(open) - 1;
        *reasoning = (md_text){begin, (size_t)(first - begin)};
    }
    last += sizeof(close) - 1;
    *content = (md_text){last, content->count - (size_t)(last - content->bytes)};
    return true;
}

static rt_status put_call(renderer *r, const md_tool_call *call)
{
    json_t *arguments = (json_t *)(uintptr_t)call->arguments; /* only iterated */
    md_text_buffer *value_text = &r->scratch;

    if (arguments != NULL && !json_is_object(arguments))
        return rt_fail(r->err, RT_EINVAL, "tool call %.*s: arguments: expected an object",
                       call->name.count > 60 ? 60 : (int)call->name.count, call->name.bytes);
    RT_TRY(put_markup(r, "<tool_call>"));
    RT_TRY(put_text(r, call->name));
    for (void *at = json_object_iter(arguments); at != NULL;
         at = json_object_iter_next(arguments, at)) {
        const json_t *value = json_object_iter_value(at);
        md_text key = {json_object_iter_key(at), json_object_iter_key_len(at)};

        RT_TRY(put_markup(r, "<arg_key>"));
        RT_TRY(put_text(r, key));
        RT_TRY(put_markup(r, "</arg_key><arg_value>"));
        if (json_is_string(value)) {
            RT_TRY(put_text(r, (md_text){json_string_value(value), json_string_length(value)}));
        } else {
            value_text->count = 0;
            RT_TRY(md_json_text(value, value_text, r->err));
            RT_TRY(put_text(r, (md_text){value_text->bytes, value_text->count}));
        }
        RT_TRY(put_markup(r, "</arg_value>"));
    }
    return put_markup(r, "</tool_call>");
}

static rt_status put_assistant(renderer *r, const md_message *message, bool current_turn)
{
    md_text reasoning = message->reasoning;
    bool have = message->has_reasoning;
    md_text content;

    r->scratch.count = 0;
    for (uint32_t i = 0; i < message->part_count; i++) {
        md_text text = part_text(message->parts[i]);

        RT_TRY(md_text_buffer_append(&r->scratch, text.bytes, text.count, r->err));
    }
    content = (md_text){r->scratch.bytes, r->scratch.count};
    if (!have) have = split_reasoning(&content, &reasoning);
    RT_TRY(put_markup(r, "<|assistant|><think>"));
    if (have && (current_turn || !r->request->clear_thinking)) RT_TRY(put_text(r, reasoning));
    RT_TRY(put_markup(r, "</think>"));
    RT_TRY(put_text(r, strip(content)));
    for (uint32_t i = 0; i < message->call_count; i++)
        RT_TRY(put_call(r, &message->calls[i]));
    return RT_OK;
}

static rt_status put_reference(renderer *r, md_text name)
{
    const json_t *tool;
    size_t index;

    json_array_foreach(r->request->tools, index, tool)
    {
        const json_t *definition = tool_definition(tool);
        const json_t *found = json_object_get(definition, "name");

        if (json_is_string(found) && json_string_length(found) == name.count &&
            memcmp(json_string_value(found), name.bytes, name.count) == 0)
            return put_tool(r, definition);
    }
    return rt_fail(r->err, RT_EINVAL, "a tool result refers to the tool %.*s, which is not listed",
                   name.count > 60 ? 60 : (int)name.count, name.bytes);
}

static rt_status put_tool_result(renderer *r, const md_message *message)
{
    md_part_kind kind = message->part_count == 0 ? MD_PART_TEXT : message->parts[0].kind;

    if (kind == MD_PART_OUTPUT) {
        for (uint32_t i = 0; i < message->part_count; i++) {
            RT_TRY(put_markup(r, "<tool_response>"));
            RT_TRY(put_text(r, message->parts[i].text));
            RT_TRY(put_markup(r, "</tool_response>"));
        }
        return RT_OK;
    }
    RT_TRY(put_markup(r, "<tool_response>"));
    if (kind == MD_PART_TOOL_REFERENCE) {
        RT_TRY(put_markup(r, "<tools>\n"));
        for (uint32_t i = 0; i < message->part_count; i++)
            RT_TRY(put_reference(r, message->parts[i].text));
        RT_TRY(put_markup(r, "</tools>"));
    } else {
        RT_TRY(put_parts(r, message));
    }
    return put_markup(r, "</tool_response>");
}

static rt_status put_message(renderer *r, size_t index, size_t after_last_user)
{
    const md_message *message = &r->request->messages[index];

    switch (message->role) {
    case MD_ROLE_SYSTEM:
        RT_TRY(put_markup(r, "<|system|>"));
        return put_parts(r, message);
    case MD_ROLE_USER:
        RT_TRY(put_markup(r, "<|user|>"));
        return put_parts(r, message);
    case MD_ROLE_ASSISTANT:
        return put_assistant(r, message, index >= after_last_user);
    case MD_ROLE_TOOL:
        break;
    }
    if (index == 0 || message[-1].role != MD_ROLE_TOOL) RT_TRY(put_markup(r, "<|observation|>"));
    return put_tool_result(r, message);
}

static rt_status put_all(renderer *r)
{
    const md_chat_request *request = r->request;
    bool high = request->reasoning_effort != NULL && strcmp(request->reasoning_effort, "high") == 0;
    size_t after_last_user = 0;

    RT_TRY(put_markup(r, "[gMASK]<sop>"));
    if (request->enable_thinking) {
        RT_TRY(put_markup(r, "<|system|>Reasoning Effort: "));
        RT_TRY(put_markup(r, high ? "High" : "Max"));
    }
    RT_TRY(put_tools(r));
    for (size_t i = 0; i < request->message_count; i++)
        if (request->messages[i].role == MD_ROLE_USER) after_last_user = i + 1;
    for (size_t i = 0; i < request->message_count; i++)
        RT_TRY(put_message(r, i, after_last_user));
    if (!request->add_generation_prompt) return RT_OK;
    return put_markup(r, request->enable_thinking ? "<|assistant|><think>"
                                                  : "<|assistant|><think></think>");
}

rt_status md_chat_render(const md_chat_request *request, md_chat **out, rt_err *err)
{
    renderer r = {.request = request, .err = err};
    rt_status status;

    r.chat = calloc(1, sizeof(*r.chat));
    if (r.chat == NULL) return rt_fail(err, RT_ENOMEM, "conversation");
    status = put_all(&r);
    md_text_buffer_fini(&r.scratch);
    if (status != RT_OK) {
        md_chat_free(r.chat);
        return status;
    }
    *out = r.chat;
    return RT_OK;
}

void md_chat_free(md_chat *chat)
{
    if (chat == NULL) return;
    md_text_buffer_fini(&chat->text);
    free(chat->segments);
    free(chat);
}

/* ---- reading a rendered chat ---- */

size_t md_chat_segment_count(const md_chat *chat)
{
    return chat->segment_count;
}

md_chat_segment md_chat_segment_at(const md_chat *chat, size_t index)
{
    const segment *s;

    RT_ASSERT(index < chat->segment_count);
    s = &chat->segments[index];
    return (md_chat_segment){s->control, {chat->text.bytes + s->offset, s->count}};
}

md_text md_chat_text(const md_chat *chat)
{
    return (md_text){chat->text.bytes, chat->text.count};
}

static rt_status encode_segment(const md_tokenizer *tokenizer, md_chat_segment s, md_ids *out,
                                rt_err *err)
{
    md_match none = {.mode = MD_MATCH_NONE};
    md_token token;
    uint32_t id;

    if (!s.control) return md_tokenizer_encode(tokenizer, s.text, none, out, err);
    if (!md_tokenizer_find(tokenizer, s.text, &id) || !md_tokenizer_token(tokenizer, id, &token) ||
        !token.added)
        return rt_fail(err, RT_EFORMAT, "the tokenizer lacks the chat template's token %.*s",
                       (int)s.text.count, s.text.bytes);
    return md_ids_push(out, id, err);
}

rt_status md_chat_encode(const md_chat *chat, const md_tokenizer *tokenizer, bool compat,
                         md_ids *out, rt_err *err)
{
    md_match all = {.mode = MD_MATCH_ALL};
    size_t count = out->count;
    rt_status status = RT_OK;

    if (compat) return md_tokenizer_encode(tokenizer, md_chat_text(chat), all, out, err);
    for (size_t i = 0; i < chat->segment_count && status == RT_OK; i++)
        status = encode_segment(tokenizer, md_chat_segment_at(chat, i), out, err);
    if (status != RT_OK) out->count = count;
    return status;
}

/* TOKEN:2 system and user text -> the template's segments -> ids. */
rt_status md_chat_encode_prompt(const md_tokenizer *tokenizer, const char *system, md_text user,
                                bool enable_thinking, bool compat, md_ids *out, rt_err *err)
{
    md_part parts[2] = {{MD_PART_TEXT, {system, system == NULL ? 0 : strlen(system)}},
                        {MD_PART_TEXT, user}};
    md_message messages[2] = {{.role = MD_ROLE_SYSTEM, .parts = &parts[0], .part_count = 1},
                              {.role = MD_ROLE_USER, .parts = &parts[1], .part_count = 1}};
    md_chat_request request;
    md_chat *chat = NULL;
    rt_status status;

    md_chat_request_init(&request);
    request.messages = system == NULL ? &messages[1] : messages;
    request.message_count = system == NULL ? 1 : 2;
    request.enable_thinking = enable_thinking;
    status = md_chat_render(&request, &chat, err);
    if (status == RT_OK) status = md_chat_encode(chat, tokenizer, compat, out, err);
    md_chat_free(chat);
    return status;
}
