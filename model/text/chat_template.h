/* chat_template.h - conversations as GLM-5.2's released chat template writes them, as ids.
 *
 * The template is written in C rather than interpreted: it is fixed for a model, and interpreting
 * Jinja would make the step that separates control tokens from user text impossible. Rendering
 * gives segments: the template's own control tokens, and the text between two of them, joined. Each
 * text is then split and encoded with added-token matching off, so what a user writes never becomes
 * a control token. In compat mode the string is encoded with every added token matched, as
 * transformers does; the two differ only where a message itself holds the text of an added token.
 *
 * Threads: any; a rendered chat never changes. */
#ifndef MODEL_TEXT_CHAT_TEMPLATE_H
#define MODEL_TEXT_CHAT_TEMPLATE_H

#include "model/text/tokenizer.h"

#include <jansson.h>

/* MD5 of the released chat_template.jinja of GLM-5.2; stored in a container as its template id. */
#define MD_CHAT_TEMPLATE_ID "42994f78b64752fe472149dd7e20410d"

/* Whether a checkpoint's chat_template.jinja is the one written here. */
bool md_chat_template_known(const void *text, size_t bytes);

typedef enum { MD_ROLE_SYSTEM, MD_ROLE_USER, MD_ROLE_ASSISTANT, MD_ROLE_TOOL } md_role;

typedef enum {
    MD_PART_TEXT,
    MD_PART_OUTPUT,         /* one of several results of a tool message: a block of its own */
    MD_PART_TOOL_REFERENCE, /* tool messages: text is the name of a tool whose definition is shown
                             */
    MD_PART_IMAGE,          /* this and the rest: a fixed reminder that the model cannot see it */
    MD_PART_VIDEO,
    MD_PART_AUDIO,
} md_part_kind;

typedef struct {
    md_part_kind kind;
    md_text text;
} md_part;

typedef struct {
    md_text name;
    const json_t *arguments; /* an object, or NULL for none; borrowed */
} md_tool_call;

typedef struct {
    md_role role;
    const md_part *parts; /* joined without separator */
    uint32_t part_count;
    md_text reasoning; /* assistant, when has_reasoning */
    bool has_reasoning;
    const md_tool_call *calls; /* assistant */
    uint32_t call_count;
} md_message;

typedef struct {
    const md_message *messages;
    size_t message_count;
    const json_t *tools;        /* an array in OpenAI's shape, or NULL; borrowed */
    bool add_generation_prompt; /* end with the assistant's opening */
    bool enable_thinking;
    const char *reasoning_effort; /* "high", or anything else (also NULL), which means max */
    bool clear_thinking;          /* drop the reasoning of turns before the last user message */
} md_chat_request;

/* The template's defaults: no messages, generation prompt on, thinking on, reasoning cleared. */
void md_chat_request_init(md_chat_request *request);

/* Messages read from JSON in OpenAI's shape. */
typedef struct md_chat_messages md_chat_messages;

typedef enum {
    MD_NULL_EMPTY, /* "content": null is an empty text: what a client means */
    MD_NULL_NONE,  /* it prints "None", as the released template does */
} md_null_content;

/* Reads an array of {"role", "content", "reasoning_content", "tool_calls"}. content is a string,
 * null, or a list of strings and typed parts; "developer" means "system"; arguments are an object
 * or a string that holds one. The JSON is borrowed and must outlive the result. Errors  RT_EINVAL
 * wrong types, an unknown role or part, arguments that are no object: names the message by its
 * index RT_ENOMEM */
RT_MUST_CHECK rt_status md_chat_messages_read(const json_t *array, md_null_content null_content,
                                              md_chat_messages **out, rt_err *err);
void md_chat_messages_free(md_chat_messages *messages); /* NULL allowed */
const md_message *md_chat_messages_data(const md_chat_messages *messages, size_t *count);

/* A rendered conversation. */
typedef struct md_chat md_chat;

typedef struct {
    bool control; /* one of the template's control tokens; else text for MD_MATCH_NONE */
    md_text text; /* a control token's name, or the text; never empty; borrowed from the chat */
} md_chat_segment;

/*   Errors  RT_EINVAL  tools that are no array of objects, arguments that are no object, a
 * reference to a tool that is not there, a rendering beyond MD_TEXT_BYTES_MAX RT_ENOMEM */
RT_MUST_CHECK rt_status md_chat_render(const md_chat_request *request, md_chat **out, rt_err *err);
void md_chat_free(md_chat *chat); /* NULL allowed */

size_t md_chat_segment_count(const md_chat *chat);
md_chat_segment md_chat_segment_at(const md_chat *chat, size_t index);
/* The whole string, as the template prints it; NUL-terminated after its end. */
md_text md_chat_text(const md_chat *chat);

/* Appends the ids of the chat to out, which is as it was on failure.
 *   compat   encode the string with all added tokens matched, as transformers does
 *   Errors   RT_EFORMAT  the tokenizer lacks one of the template's control tokens
 *            as md_tokenizer_encode */
RT_MUST_CHECK rt_status md_chat_encode(const md_chat *chat, const md_tokenizer *tokenizer,
                                       bool compat, md_ids *out, rt_err *err);

/* The conversation of the command line: an optional system text (NULL: none) and one user text. */
RT_MUST_CHECK rt_status md_chat_encode_prompt(const md_tokenizer *tokenizer, const char *system,
                                              md_text user, bool enable_thinking, bool compat,
                                              md_ids *out, rt_err *err);

#endif
