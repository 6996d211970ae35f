/* tokenizer_json.c - reads a Hugging Face tokenizer.json into md_tokenizer_source.
 *
 * Every setting that changes ids is either understood or refused by name. truncation and padding
 * are settings of a call, which transformers overrides, and are not read; post_processor ByteLevel
 * only moves offsets. */
#include "model/text/tokenizer_internal.h"

#include "model/text/utf8.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>

/* ---- the byte alphabet of GPT-2: printable bytes are themselves, the other 68 follow from U+0100
 */

enum { ALPHABET_CODES = 256 + 68 };

typedef struct {
    int16_t byte_of[ALPHABET_CODES]; /* -1: not in the alphabet */
} alphabet;

static alphabet alphabet_make(void)
{
    alphabet map;
    uint32_t next = 256;

    for (uint32_t code = 0; code < ALPHABET_CODES; code++)
        map.byte_of[code] = -1;
    for (uint32_t byte = 0; byte < 256; byte++) {
        bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);

        map.byte_of[printable ? byte : next++] = (int16_t)byte;
    }
    return map;
}

/* Appends the bytes that key's characters stand for; false when one is outside the alphabet. */
static rt_status decode_key(const alphabet *map, const char *key, size_t count,
                            md_text_buffer *bytes, bool *ok, rt_err *err)
{
    size_t start = bytes->count;

    while (count > 0) {
        size_t length;
        uint32_t code = 0;
        char byte;

        if (md_utf8_next(key, count, &length, &code) != MD_UTF8_WHOLE || code >= ALPHABET_CODES ||
            map->byte_of[code] < 0) {
            bytes->count = start;
            *ok = false;
            return RT_OK;
        }
        byte = (char)map->byte_of[code];
        RT_TRY(md_text_buffer_append(bytes, &byte, 1, err));
        key += length;
        count -= length;
    }
    *ok = true;
    return RT_OK;
}

/* ---- settings ---- */

static bool is_text(const json_t *value, const char *text)
{
    return json_is_string(value) && strcmp(json_string_value(value), text) == 0;
}

/* Absent, null, false, "" and 0 all mean that a feature is not used. */
static bool is_off(const json_t *value)
{
    return value == NULL || json_is_null(value) || json_is_false(value) || is_text(value, "") ||
           (json_is_number(value) && json_number_value(value) == 0.0);
}

static rt_status require_off(const json_t *object, const char *where, const char *key, rt_err *err)
{
    if (is_off(json_object_get(object, key))) return RT_OK;
    return rt_fail(err, RT_EUNSUPPORTED, "tokenizer.json: %s.%s is set, which is not supported",
                   where, key);
}

static rt_status require_type(const json_t *object, const char *where, const char *type,
                              rt_err *err)
{
    const json_t *found = json_object_get(object, "type");

    if (!json_is_object(object) || !json_is_string(found))
        return rt_fail(err, RT_EFORMAT, "tokenizer.json: %s: expected an object with a type",
                       where);
    if (!is_text(found, type))
        return rt_fail(err, RT_EUNSUPPORTED, "tokenizer.json: %s is %.60s, only %s is supported",
                       where, json_string_value(found), type);
    return RT_OK;
}

static rt_status read_split(const json_t *split, md_text_buffer *pattern, rt_err *err)
{
    const json_t *regex = json_object_get(json_object_get(split, "pattern"), "Regex");

    RT_TRY(require_type(split, "pre_tokenizer[0]", "Split", err));
    if (!json_is_string(regex))
        return rt_fail(err, RT_EUNSUPPORTED,
                       "tokenizer.json: pre_tokenizer[0].pattern: expected a Regex");
    if (!is_text(json_object_get(split, "behavior"), "Isolated"))
        return rt_fail(err, RT_EUNSUPPORTED,
                       "tokenizer.json: pre_tokenizer[0].behavior: only Isolated is supported");
    RT_TRY(require_off(split, "pre_tokenizer[0]", "invert", err));
    return md_text_buffer_append(pattern, json_string_value(regex), json_string_length(regex), err);
}

static rt_status read_pre_tokenizer(const json_t *root, md_text_buffer *pattern, rt_err *err)
{
    const json_t *pre = json_object_get(root, "pre_tokenizer");
    const json_t *list = json_object_get(pre, "pretokenizers");
    const json_t *level = json_array_get(list, 1);

    RT_TRY(require_type(pre, "pre_tokenizer", "Sequence", err));
    if (!json_is_array(list) || json_array_size(list) != 2)
        return rt_fail(err, RT_EUNSUPPORTED,
                       "tokenizer.json: pre_tokenizer: only Split followed by ByteLevel is "
                       "supported, found %zu steps",
                       json_array_size(list));
    RT_TRY(read_split(json_array_get(list, 0), pattern, err));
    RT_TRY(require_type(level, "pre_tokenizer[1]", "ByteLevel", err));
    RT_TRY(require_off(level, "pre_tokenizer[1]", "add_prefix_space", err));
    /* Absent means true in the format. */
    if (!json_is_false(json_object_get(level, "use_regex")))
        return rt_fail(err, RT_EUNSUPPORTED,
                       "tokenizer.json: pre_tokenizer[1].use_regex must be false");
    return RT_OK;
}

static rt_status check_settings(const json_t *root, const json_t *model, rt_err *err)
{
    static const char *const unused[] = {"dropout", "unk_token", "byte_fallback",
                                         "continuing_subword_prefix", "end_of_word_suffix"};
    const json_t *post = json_object_get(root, "post_processor");

    RT_TRY(require_type(model, "model", "BPE", err));
    for (size_t i = 0; i < sizeof(unused) / sizeof(unused[0]); i++)
        RT_TRY(require_off(model, "model", unused[i], err));
    if (!is_off(json_object_get(root, "normalizer")))
        return rt_fail(err, RT_EUNSUPPORTED,
                       "tokenizer.json: normalizer is set, which is not supported");
    if (!is_off(post)) RT_TRY(require_type(post, "post_processor", "ByteLevel", err));
    return require_type(json_object_get(root, "decoder"), "decoder", "ByteLevel", err);
}

/* ---- tokens ---- */

static rt_status read_id(const json_t *value, const char *what, uint32_t *id, rt_err *err)
{
    json_int_t number = json_integer_value(value);

    if (!json_is_integer(value) || number < 0 || number >= MD_TOKENIZER_IDS_MAX)
        return rt_fail(err, RT_EFORMAT,
                       "tokenizer.json: id of %.60s: expected an integer from 0 to %d", what,
                       MD_TOKENIZER_IDS_MAX - 1);
    *id = (uint32_t)number;
    return RT_OK;
}

static rt_status count_ids(json_t *vocab, const json_t *added, uint32_t *count, rt_err *err)
{
    const char *key;
    json_t *value;
    size_t index;
    uint32_t id = 0;

    if (!json_is_object(vocab) || json_object_size(vocab) == 0)
        return rt_fail(err, RT_EFORMAT, "tokenizer.json: model.vocab: expected an object");
    if (!json_is_array(added))
        return rt_fail(err, RT_EFORMAT, "tokenizer.json: added_tokens: expected an array");
    *count = 0;
    json_object_foreach(vocab, key, value)
    {
        RT_TRY(read_id(value, key, &id, err));
        if (id >= *count) *count = id + 1;
    }
    json_array_foreach(added, index, value)
    {
        RT_TRY(read_id(json_object_get(value, "id"), "an added token", &id, err));
        if (id >= *count) *count = id + 1;
    }
    return RT_OK;
}

static rt_status set_token(md_tokenizer_source *source, uint32_t id, size_t offset, uint8_t flags,
                           rt_err *err)
{
    size_t length = source->bytes.count - offset;

    if (source->bytes.count > INT32_MAX)
        return rt_fail(err, RT_EFORMAT, "tokenizer.json: more than 2 GB of tokens");
    source->tokens[id] = (md_source_token){(uint32_t)offset, (uint32_t)length, flags};
    return RT_OK;
}

static rt_status read_vocab(md_tokenizer_source *source, json_t *vocab, const alphabet *map,
                            rt_err *err)
{
    const char *key;
    json_t *value;

    json_object_foreach(vocab, key, value)
    {
        size_t offset = source->bytes.count;
        uint32_t id = 0;
        bool ok = false;

        RT_TRY(read_id(value, key, &id, err));
        if (source->tokens[id].flags != 0)
            return rt_fail(err, RT_EFORMAT, "tokenizer.json: model.vocab: id %u twice (%.60s)", id,
                           key);
        if (key[0] == '\0')
            return rt_fail(err, RT_EFORMAT, "tokenizer.json: model.vocab: an empty token");
        RT_TRY(decode_key(map, key, strlen(key), &source->bytes, &ok, err));
        if (!ok)
            return rt_fail(err, RT_EFORMAT,
                           "tokenizer.json: model.vocab: %.60s (id %u) is not in the byte alphabet",
                           key, id);
        RT_TRY(set_token(source, id, offset, MD_TOKEN_VOCAB, err));
    }
    return RT_OK;
}

static rt_status check_added(const json_t *token, const char *content, rt_err *err)
{
    static const char *const unused[] = {"single_word", "lstrip", "rstrip", "normalized"};

    for (size_t i = 0; i < sizeof(unused) / sizeof(unused[0]); i++) {
        if (!is_off(json_object_get(token, unused[i])))
            return rt_fail(err, RT_EUNSUPPORTED,
                           "tokenizer.json: added token %.60s: %s is set, which is not supported",
                           content, unused[i]);
    }
    return RT_OK;
}

static rt_status read_added_one(md_tokenizer_source *source, const json_t *token, rt_err *err)
{
    const json_t *content = json_object_get(token, "content");
    const char *text = json_string_value(content);
    size_t length = json_string_length(content);
    uint8_t flags = MD_TOKEN_ADDED;
    size_t offset = source->bytes.count;
    md_source_token *old;
    uint32_t id = 0;

    if (!json_is_string(content) || length == 0)
        return rt_fail(err, RT_EFORMAT,
                       "tokenizer.json: added_tokens: expected a content that is not empty");
    RT_TRY(check_added(token, text, err));
    RT_TRY(read_id(json_object_get(token, "id"), text, &id, err));
    if (json_is_true(json_object_get(token, "special"))) flags |= MD_TOKEN_SPECIAL;
    old = &source->tokens[id];
    if ((old->flags & MD_TOKEN_ADDED) != 0)
        return rt_fail(err, RT_EFORMAT, "tokenizer.json: added_tokens: id %u twice (%.60s)", id,
                       text);
    if (old->flags == 0) {
        RT_TRY(md_text_buffer_append(&source->bytes, text, length, err));
        return set_token(source, id, offset, flags, err);
    }
    if (old->length != length || memcmp(source->bytes.bytes + old->offset, text, length) != 0)
        return rt_fail(err, RT_EFORMAT,
                       "tokenizer.json: added token %.60s has the id %u of another entry", text,
                       id);
    old->flags |= flags;
    return RT_OK;
}

static rt_status read_tokens(md_tokenizer_source *source, json_t *vocab, const json_t *added,
                             const alphabet *map, rt_err *err)
{
    json_t *value;
    size_t index;

    RT_TRY(count_ids(vocab, added, &source->token_count, err));
    source->tokens = calloc(source->token_count, sizeof(*source->tokens));
    if (source->tokens == NULL)
        return rt_fail(err, RT_ENOMEM, "a tokenizer of %u tokens", source->token_count);
    RT_TRY(read_vocab(source, vocab, map, err));
    json_array_foreach(added, index, value) RT_TRY(read_added_one(source, value, err));
    return RT_OK;
}

/* ---- merges ---- */

static rt_status vocab_id(const json_t *vocab, const char *key, size_t count, size_t rank,
                          uint32_t *id, rt_err *err)
{
    const json_t *value = json_object_getn(vocab, key, count);

    if (value == NULL)
        return rt_fail(err, RT_EFORMAT,
                       "tokenizer.json: model.merges[%zu]: %.*s is not in the vocabulary", rank,
                       count > 60 ? 60 : (int)count, key);
    *id = (uint32_t)json_integer_value(value);
    return RT_OK;
}

/* A merge is ["a", "b"], in older files "a b" (the byte alphabet has no space). */
static bool merge_sides(const json_t *merge, md_text *left, md_text *right)
{
    const json_t *a = json_array_get(merge, 0);
    const json_t *b = json_array_get(merge, 1);
    const char *text = json_string_value(merge);
    const char *space = text == NULL ? NULL : strchr(text, ' ');

    if (json_is_array(merge) && json_array_size(merge) == 2 && json_is_string(a) &&
        json_is_string(b)) {
        *left = (md_text){json_string_value(a), json_string_length(a)};
        *right = (md_text){json_string_value(b), json_string_length(b)};
        return true;
    }
    if (space == NULL || strchr(space + 1, ' ') != NULL) return false;
    *left = (md_text){text, (size_t)(space - text)};
    *right = (md_text){space + 1, json_string_length(merge) - left->count - 1};
    return true;
}

static rt_status read_merges(md_tokenizer_source *source, const json_t *vocab, const json_t *merges,
                             rt_err *err)
{
    md_text_buffer joined = {0};
    rt_status status = RT_OK;
    const json_t *merge;
    size_t rank;

    if (!json_is_array(merges))
        return rt_fail(err, RT_EFORMAT, "tokenizer.json: model.merges: expected an array");
    if (json_array_size(merges) > MD_TOKENIZER_MERGES_MAX)
        return rt_fail(err, RT_EFORMAT, "tokenizer.json: model.merges: more than %d",
                       MD_TOKENIZER_MERGES_MAX);
    source->merge_count = (uint32_t)json_array_size(merges);
    source->merges = calloc((size_t)source->merge_count + 1, sizeof(*source->merges));
    if (source->merges == NULL) return rt_fail(err, RT_ENOMEM, "%u merges", source->merge_count);
    json_array_foreach(merges, rank, merge)
    {
        md_source_merge *out = &source->merges[rank];
        md_text left, right;

        if (!merge_sides(merge, &left, &right)) {
            status = rt_fail(err, RT_EFORMAT,
                             "tokenizer.json: model.merges[%zu]: expected a pair of strings", rank);
            break;
        }
        joined.count = 0;
        status = md_text_buffer_append(&joined, left.bytes, left.count, err);
        if (status == RT_OK) status = md_text_buffer_append(&joined, right.bytes, right.count, err);
        if (status == RT_OK)
            status = vocab_id(vocab, left.bytes, left.count, rank, &out->left, err);
        if (status == RT_OK)
            status = vocab_id(vocab, right.bytes, right.count, rank, &out->right, err);
        if (status == RT_OK)
            status = vocab_id(vocab, joined.bytes, joined.count, rank, &out->result, err);
        if (status != RT_OK) break;
    }
    md_text_buffer_fini(&joined);
    return status;
}

rt_status md_tokenizer_source_read(const char *json, size_t bytes, md_tokenizer_source *source,
                                   rt_err *err)
{
    json_error_t error;
    json_t *root = json_loadb(json, bytes, JSON_REJECT_DUPLICATES, &error);
    json_t *model = json_object_get(root, "model");
    json_t *vocab = json_object_get(model, "vocab");
    alphabet map = alphabet_make();
    rt_status status;

    if (root == NULL)
        return rt_fail(err,
                       json_error_code(&error) == json_error_out_of_memory ? RT_ENOMEM : RT_EFORMAT,
                       "tokenizer.json: line %d: %s", error.line, error.text);
    status = check_settings(root, model, err);
    if (status == RT_OK) status = read_pre_tokenizer(root, &source->pattern, err);
    if (status == RT_OK)
        status = read_tokens(source, vocab, json_object_get(root, "added_tokens"), &map, err);
    if (status == RT_OK) status = read_merges(source, vocab, json_object_get(model, "merges"), err);
    source->ignore_merges = json_is_true(json_object_get(model, "ignore_merges"));
    json_decref(root);
    return status;
}

void md_tokenizer_source_fini(md_tokenizer_source *source)
{
    md_text_buffer_fini(&source->bytes);
    md_text_buffer_fini(&source->pattern);
    free(source->tokens);
    free(source->merges);
    *source = (md_tokenizer_source){0};
}
