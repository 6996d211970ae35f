/* tokenizer_fixture.h - a tokenizer compiled from a tokenizer.json of the fixtures, and JSON files.
 *
 * Threads: one test. */
#ifndef TESTS_SUPPORT_TOKENIZER_FIXTURE_H
#define TESTS_SUPPORT_TOKENIZER_FIXTURE_H

#include "model/text/tokenizer.h"

#include <jansson.h>

typedef struct {
    uint8_t *image; /* owned */
    size_t image_bytes;
    md_tokenizer *tokenizer; /* owned */
} tokenizer_fixture;

/* Compiles and opens dir/name ("tokenizers/nano/tokenizer.json"); asserts success. */
tokenizer_fixture tokenizer_fixture_open(const char *dir, const char *name);
void tokenizer_fixture_close(tokenizer_fixture *fixture);

/* The file dir/name as JSON (\u0000 allowed in strings); asserts success. json_decref it. */
json_t *fixture_json(const char *dir, const char *name);

/* The file's text, malloc'd. */
char *fixture_text(const char *dir, const char *name, size_t *bytes);

#endif
