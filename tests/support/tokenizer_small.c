/* tokenizer_small.c - see tokenizer_small.h. */
#include "tests/support/tokenizer_small.h"

#include "model/text/utf8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <xxhash.h>

static bool printable(uint32_t byte)
{
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
}

static void add_byte(json_t *vocab, uint32_t code)
{
    char key[5] = "";

    key[md_utf8_put(code, key)] = '\0';
    json_object_set_new(vocab, key, json_integer((json_int_t)json_object_size(vocab)));
}

static json_t *vocabulary(void)
{
    static const char *const entries[] = {"ab", "abc", "bc", "xyz"};
    json_t *vocab = json_object();
    uint32_t next = 256;

    for (uint32_t byte = 0; byte < 256; byte++)
        if (printable(byte)) add_byte(vocab, byte);
    for (uint32_t byte = 0; byte < 256; byte++)
        if (!printable(byte)) add_byte(vocab, next++);
    for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++)
        json_object_set_new(vocab, entries[i], json_integer((json_int_t)(256 + i)));
    return vocab;
}

json_t *tokenizer_small_json(void)
{
    static const char pattern[] =
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
        " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
    json_t *root = json_pack(
        "{s:[{s:i,s:s,s:b},{s:i,s:s,s:b},{s:i,s:s,s:b}],s:n,s:{s:s,s:[{s:s,s:{s:s},s:s,s:b},"
        "{s:s,s:b,s:b}]},s:{s:s},s:{s:s},s:{s:s,s:n,s:n,s:b,s:b,s:o,s:[[ss],[ss],[ss]]}}",
        "added_tokens", "id", 260, "content", "<a>", "special", 1, "id", 261, "content", "<ab>",
        "special", 0, "id", 262, "content", "<a", "special", 0, "normalizer", "pre_tokenizer",
        "type", "Sequence", "pretokenizers", "type", "Split", "pattern", "Regex", pattern,
        "behavior", "Isolated", "invert", 0, "type", "ByteLevel", "add_prefix_space", 0,
        "use_regex", 0, "post_processor", "type", "ByteLevel", "decoder", "type", "ByteLevel",
        "model", "type", "BPE", "dropout", "unk_token", "byte_fallback", 0, "ignore_merges", 1,
        "vocab", vocabulary(), "merges", "a", "b", "ab", "c", "b", "c");

    assert_non_null(root);
    return root;
}

void tokenizer_small_set(json_t *root, const char *path, json_t *value)
{
    char *copy = strdup(path);
    json_t *at = root;
    char *save = NULL;
    char *key = strtok_r(copy, ".", &save);
    char *next;
    int result;

    while ((next = strtok_r(NULL, ".", &save)) != NULL) {
        at = json_is_array(at) ? json_array_get(at, strtoul(key, NULL, 10))
                               : json_object_get(at, key);
        assert_non_null(at);
        key = next;
    }
    if (json_is_array(at)) {
        size_t index = strtoul(key, NULL, 10);

        result = value == NULL                  ? json_array_remove(at, index)
                 : index == json_array_size(at) ? json_array_append_new(at, value)
                                                : json_array_set_new(at, index, value);
    } else {
        result = value == NULL ? json_object_del(at, key) : json_object_set_new(at, key, value);
    }
    assert_int_equal(result, 0);
    free(copy);
}

rt_status tokenizer_small_compile(const json_t *root, uint8_t **image, size_t *bytes, rt_err *err)
{
    char *text = json_dumps(root, JSON_COMPACT);
    rt_status status;

    assert_non_null(text);
    status = md_tokenizer_compile(text, strlen(text), image, bytes, err);
    free(text);
    return status;
}

void tokenizer_small_repair(uint8_t *image, size_t bytes)
{
    uint64_t total = bytes;
    uint64_t checksum;

    assert_true(bytes >= 32);
    memcpy(image + 16, &total, sizeof(total));
    checksum = XXH3_64bits(image + 32, bytes - 32);
    memcpy(image + 24, &checksum, sizeof(checksum));
}
