/* tokenizer_small.h - tokenizer.json made up in memory: every byte is a token (in the alphabet's
 * order, as in the release), plus a few entries, merges and added tokens that a test can change.
 *
 * Threads: one test. */
#ifndef TESTS_SUPPORT_TOKENIZER_SMALL_H
#define TESTS_SUPPORT_TOKENIZER_SMALL_H

#include "model/text/tokenizer.h"

#include <jansson.h>

/* Vocabulary: the 256 bytes, "ab" 256, "abc" 257, "bc" 258 (no merge gives "abc" from a+bc),
 * "xyz" 259 (no merge gives it at all); merges a+b, ab+c, b+c. Added tokens: "<a>" 260 (special),
 * "<ab>" 261, "<a" 262. The split pattern is GLM's. Owned by the caller. */
json_t *tokenizer_small_json(void);

/* The object or value at a path of keys and indexes: "pre_tokenizer.pretokenizers.0.behavior".
 * tokenizer_small_set replaces or adds it (taking value; NULL deletes it). */
void tokenizer_small_set(json_t *root, const char *path, json_t *value);

/* Compiles the JSON as text. */
RT_MUST_CHECK rt_status tokenizer_small_compile(const json_t *root, uint8_t **image, size_t *bytes,
                                                rt_err *err);

/* Makes total size and checksum of a damaged image right again. */
void tokenizer_small_repair(uint8_t *image, size_t bytes);

#endif
