/* chat_messages.c - reads messages in OpenAI's JSON shape into md_message. Strings stay where
 * jansson has them; only arguments that came as JSON inside a string are new values. */
#include "model/text/chat_template.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    md_part *parts;      /* owned */
    md_tool_call *calls; /* owned */
    json_t **parsed;     /* owned: per call, NULL where arguments were an object */
} message_memory;

struct md_chat_messages {
    md_message *messages; /* owned, as the rest */
    message_memory *memory;
    size_t count;
};

typedef struct {
    size_t index; /* of the message, for errors */
    md_null_content null_content;
    md_message *message;
    message_memory *memory;
    rt_err *err;
} reader;

static md_text text_of(const json_t *string)
{
    return (md_text){json_string_value(string), json_string_length(string)};
}

static bool is_text(const json_t *value, const char *text)
{
    return json_is_string(value) && strcmp(json_string_value(value), text) == 0;
}

static rt_status invalid(const reader *r, const char *what)
{
    return rt_fail(r->err, RT_EINVAL, "messages[%zu]: %s", r->index, what);
}

static rt_status read_role(const reader *r, const json_t *object)
{
    static const struct {
        const char *name;
        md_role role;
    } roles[] = {
        {"system", MD_ROLE_SYSTEM},       {"developer", MD_ROLE_SYSTEM}, {"user", MD_ROLE_USER},
        {"assistant", MD_ROLE_ASSISTANT}, {"tool", MD_ROLE_TOOL},
    };
    const json_t *role = json_object_get(object, "role");

    if (!json_is_object(object)) return invalid(r, "expected an object");
    if (!json_is_string(role)) return invalid(r, "role: expected a string");
    for (size_t i = 0; i < sizeof(roles) / sizeof(roles[0]); i++) {
        if (is_text(role, roles[i].name)) {
            r->message->role = roles[i].role;
            return RT_OK;
        }
    }
    return rt_fail(r->err, RT_EINVAL,
                   "messages[%zu]: role: expected system, user, assistant or tool, found %.60s",
                   r->index, json_string_value(role));
}

/* ---- content ---- */

static rt_status read_named(const reader *r, const json_t *object, const char *key,
                            md_part_kind kind, md_part *part)
{
    const json_t *value = json_object_get(object, key);

    if (!json_is_string(value))
        return rt_fail(r->err, RT_EINVAL, "messages[%zu]: content: %s: expected a string", r->index,
                       key);
    *part = (md_part){kind, text_of(value)};
    return RT_OK;
}

static rt_status read_part(const reader *r, const json_t *value, md_part *part)
{
    static const struct {
        const char *type;
        md_part_kind kind;
    } media[] = {
        {"image", MD_PART_IMAGE}, {"image_url", MD_PART_IMAGE}, {"input_image", MD_PART_IMAGE},
        {"video", MD_PART_VIDEO}, {"video_url", MD_PART_VIDEO}, {"input_video", MD_PART_VIDEO},
        {"audio", MD_PART_AUDIO}, {"audio_url", MD_PART_AUDIO}, {"input_audio", MD_PART_AUDIO},
    };
    const json_t *type = json_object_get(value, "type");

    if (json_is_string(value)) {
        *part = (md_part){MD_PART_TEXT, text_of(value)};
        return RT_OK;
    }
    if (!json_is_object(value))
        return invalid(r, "content: expected strings and objects in the list");
    if (is_text(type, "text")) return read_named(r, value, "text", MD_PART_TEXT, part);
    if (r->message->role == MD_ROLE_TOOL) {
        if (is_text(type, "tool_reference"))
            return read_named(r, value, "name", MD_PART_TOOL_REFERENCE, part);
        if (json_object_get(value, "output") != NULL)
            return read_named(r, value, "output", MD_PART_OUTPUT, part);
    }
    for (size_t i = 0; i < sizeof(media) / sizeof(media[0]); i++) {
        if (is_text(type, media[i].type)) {
            *part = (md_part){media[i].kind, {NULL, 0}};
            return RT_OK;
        }
    }
    if (!json_is_string(type)) return invalid(r, "content: a part without a type");
    return rt_fail(r->err, RT_EINVAL, "messages[%zu]: content: a part of unknown type %.60s",
                   r->index, json_string_value(type));
}

/* Blocks and plain text of a tool's result do not mix. */
static rt_status check_tool_parts(const reader *r)
{
    const md_message *m = r->message;

    for (uint32_t i = 1; i < m->part_count; i++) {
        bool block =
            m->parts[i].kind == MD_PART_OUTPUT || m->parts[i].kind == MD_PART_TOOL_REFERENCE;
        bool first =
            m->parts[0].kind == MD_PART_OUTPUT || m->parts[0].kind == MD_PART_TOOL_REFERENCE;

        if ((block || first) && m->parts[i].kind != m->parts[0].kind)
            return invalid(r, "content: outputs, tool references and text do not mix");
    }
    return RT_OK;
}

static rt_status read_content(const reader *r, const json_t *content)
{
    size_t count = json_is_array(content) ? json_array_size(content) : 1;
    const json_t *value;
    size_t index;

    if (content == NULL || (json_is_null(content) && r->null_content == MD_NULL_EMPTY))
        return RT_OK;
    if (count > UINT32_MAX) return invalid(r, "content: too long");
    r->memory->parts = calloc(count + 1, sizeof(*r->memory->parts));
    if (r->memory->parts == NULL) return rt_fail(r->err, RT_ENOMEM, "messages");
    r->message->parts = r->memory->parts;
    if (json_is_null(content)) {
        r->memory->parts[0] = (md_part){MD_PART_TEXT, {"None", 4}};
    } else if (json_is_string(content)) {
        r->memory->parts[0] = (md_part){MD_PART_TEXT, text_of(content)};
    } else if (json_is_array(content)) {
        json_array_foreach(content, index, value)
            RT_TRY(read_part(r, value, &r->memory->parts[index]));
    } else {
        return invalid(r, "content: expected a string, null or a list");
    }
    r->message->part_count = (uint32_t)count;
    return check_tool_parts(r);
}

/* ---- tool calls ---- */

static rt_status read_arguments(const reader *r, const json_t *arguments, size_t call)
{
    md_tool_call *out = &r->memory->calls[call];
    json_error_t error;
    json_t *parsed;

    if (arguments == NULL || json_is_null(arguments) || is_text(arguments, "")) return RT_OK;
    if (json_is_object(arguments)) {
        out->arguments = arguments;
        return RT_OK;
    }
    if (!json_is_string(arguments)) return invalid(r, "tool_calls: arguments: expected an object");
    parsed = json_loadb(json_string_value(arguments), json_string_length(arguments), JSON_ALLOW_NUL,
                        &error);
    if (parsed == NULL)
        return rt_fail(r->err, RT_EINVAL, "messages[%zu]: tool_calls: arguments are no JSON: %s",
                       r->index, error.text);
    r->memory->parsed[call] = parsed;
    if (!json_is_object(parsed)) return invalid(r, "tool_calls: arguments: expected an object");
    out->arguments = parsed;
    return RT_OK;
}

static rt_status read_calls(const reader *r, const json_t *calls)
{
    size_t count = json_array_size(calls);
    const json_t *call;
    size_t index;

    if (calls == NULL || json_is_null(calls)) return RT_OK;
    if (!json_is_array(calls) || count > UINT32_MAX)
        return invalid(r, "tool_calls: expected a list");
    r->memory->calls = calloc(count + 1, sizeof(*r->memory->calls));
    r->memory->parsed = calloc(count + 1, sizeof(*r->memory->parsed));
    if (r->memory->calls == NULL || r->memory->parsed == NULL)
        return rt_fail(r->err, RT_ENOMEM, "messages");
    r->message->calls = r->memory->calls;
    r->message->call_count = (uint32_t)count;
    json_array_foreach(calls, index, call)
    {
        const json_t *function = json_object_get(call, "function");
        const json_t *name;

        if (function == NULL) function = call;
        name = json_object_get(function, "name");
        if (!json_is_string(name)) return invalid(r, "tool_calls: name: expected a string");
        r->memory->calls[index].name = text_of(name);
        RT_TRY(read_arguments(r, json_object_get(function, "arguments"), index));
    }
    return RT_OK;
}

/* ---- messages ---- */

static rt_status read_message(const reader *r, const json_t *object)
{
    const json_t *reasoning = json_object_get(object, "reasoning_content");

    RT_TRY(read_role(r, object));
    RT_TRY(read_content(r, json_object_get(object, "content")));
    if (r->message->role != MD_ROLE_ASSISTANT) return RT_OK;
    if (json_is_string(reasoning)) {
        r->message->has_reasoning = true;
        r->message->reasoning = text_of(reasoning);
    } else if (reasoning != NULL && !json_is_null(reasoning)) {
        return invalid(r, "reasoning_content: expected a string");
    }
    return read_calls(r, json_object_get(object, "tool_calls"));
}

rt_status md_chat_messages_read(const json_t *array, md_null_content null_content,
                                md_chat_messages **out, rt_err *err)
{
    md_chat_messages *messages;
    rt_status status = RT_OK;

    if (!json_is_array(array)) return rt_fail(err, RT_EINVAL, "messages: expected a list");
    messages = calloc(1, sizeof(*messages));
    if (messages == NULL) return rt_fail(err, RT_ENOMEM, "messages");
    messages->count = json_array_size(array);
    messages->messages = calloc(messages->count + 1, sizeof(*messages->messages));
    messages->memory = calloc(messages->count + 1, sizeof(*messages->memory));
    if (messages->messages == NULL || messages->memory == NULL) {
        status = rt_fail(err, RT_ENOMEM, "messages");
        goto fail;
    }
    for (size_t i = 0; i < messages->count; i++) {
        reader r = {i, null_content, &messages->messages[i], &messages->memory[i], err};

        status = read_message(&r, json_array_get(array, i));
        if (status != RT_OK) goto fail;
    }
    *out = messages;
    return RT_OK;
fail:
    md_chat_messages_free(messages);
    return status;
}

void md_chat_messages_free(md_chat_messages *messages)
{
    if (messages == NULL) return;
    for (size_t i = 0; messages->memory != NULL && i < messages->count; i++) {
        message_memory *memory = &messages->memory[i];
        uint32_t calls = messages->messages == NULL ? 0 : messages->messages[i].call_count;

        for (uint32_t call = 0; memory->parsed != NULL && call < calls; call++)
            json_decref(memory->parsed[call]);
        free(memory->parsed);
        free(memory->parts);
        free(memory->calls);
    }
    free(messages->memory);
    free(messages->messages);
    free(messages);
}

const md_message *md_chat_messages_data(const md_chat_messages *messages, size_t *count)
{
    *count = messages->count;
    return messages->messages;
}
