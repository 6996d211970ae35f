/* The tokenizer against ids, pieces and texts recorded from the Hugging Face tokenizers library, and
 * against ids of the released tokenizer where its tokenizer.json is at hand. Every vector runs twice:
 * on the image as compiled, and on the image written to a file and mapped. */
#include "base/file.h"
#include "base/options.h"
#include "model/text/stream.h"
#include "model/text/tokenizer.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tokenizer_fixture.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { VECTORS = 108 };

static const md_match match_all = {.mode = MD_MATCH_ALL};

static md_text text_of(const json_t *string)
{
    return (md_text){json_string_value(string), json_string_length(string)};
}

static bool ids_equal(const md_ids *ids, const json_t *expected)
{
    if (ids->count != json_array_size(expected)) return false;
    for (size_t i = 0; i < ids->count; i++)
        if (ids->ids[i] != json_integer_value(json_array_get(expected, i))) return false;
    return true;
}

typedef struct {
    const json_t *pieces;
    size_t next;
    bool equal;
} piece_check;

static rt_status check_piece(void *context, md_text piece, rt_err *err)
{
    piece_check *check = context;
    const char *hex = json_string_value(json_array_get(check->pieces, check->next++));

    (void)err;
    if (hex == NULL || strlen(hex) != 2 * piece.count) {
        check->equal = false;
        return RT_OK;
    }
    for (size_t i = 0; i < piece.count; i++) {
        char byte[3];

        snprintf(byte, sizeof(byte), "%02x", (unsigned)(uint8_t)piece.bytes[i]);
        if (memcmp(byte, hex + 2 * i, 2) != 0) check->equal = false;
    }
    return RT_OK;
}

static bool pieces_equal(const md_tokenizer *tokenizer, md_text text, const json_t *pieces)
{
    piece_check check = {pieces, 0, true};

    assert_int_equal(md_tokenizer_split(tokenizer, text, match_all, check_piece, &check, NULL), 0);
    return check.equal && check.next == json_array_size(pieces);
}

/* Through the stream, which must agree with decoding at once. */
static bool decodes_to(const md_tokenizer *tokenizer, const md_ids *ids, bool skip_special,
                       md_text expected)
{
    md_stream_spec spec = {.tokenizer = tokenizer, .skip_special = skip_special};
    md_stream *stream;
    char *whole = NULL;
    size_t at = 0, bytes = 0;
    bool equal = true;
    md_text text;

    assert_int_equal(md_stream_create(&spec, &stream, NULL), RT_OK);
    for (size_t i = 0; i <= ids->count; i++) {
        if (i < ids->count) {
            assert_true(md_stream_feed(stream, ids->ids[i], &text));
        } else {
            assert_true(md_stream_finish(stream, &text));
        }
        equal = equal && at + text.count <= expected.count &&
                memcmp(text.bytes, expected.bytes + at, text.count) == 0;
        at += text.count;
    }
    md_stream_free(stream);
    assert_int_equal(
        md_tokenizer_decode(tokenizer, ids->ids, ids->count, skip_special, &whole, &bytes, NULL),
        RT_OK);
    equal = equal && at == expected.count && bytes == expected.count &&
            memcmp(whole, expected.bytes, bytes) == 0;
    free(whole);
    return equal;
}

static void run_vectors(const md_tokenizer *tokenizer, const char *vectors_name, size_t count)
{
    json_t *vectors = fixture_json(MOESAIC_FIXTURES, vectors_name);
    const json_t *cases = json_object_get(vectors, "cases");
    const json_t *row;
    size_t index, passed = 0;

    assert_int_equal(json_array_size(cases), count);
    json_array_foreach(cases, index, row)
    {
        md_text text = text_of(json_object_get(row, "text"));
        const json_t *pieces = json_object_get(row, "pretok_hex");
        const json_t *skipped = json_object_get(row, "decoded_skip_special");
        md_ids ids = {0};
        rt_err err = {0};
        bool ok;

        if (md_tokenizer_encode(tokenizer, text, match_all, &ids, &err) != RT_OK)
            fail_msg("%s", err.text);
        ok = ids_equal(&ids, json_object_get(row, "ids"));
        ok = ok && decodes_to(tokenizer, &ids, false, text);
        if (pieces != NULL) ok = ok && pieces_equal(tokenizer, text, pieces);
        if (skipped != NULL) ok = ok && decodes_to(tokenizer, &ids, true, text_of(skipped));
        if (!ok) print_message("%s: differs: %s\n", vectors_name, text.bytes);
        passed += ok;
        md_ids_fini(&ids);
    }
    print_message("%s: %zu/%zu\n", vectors_name, passed, count);
    assert_int_equal(passed, count);
    json_decref(vectors);
}

static void run_mapped(const tokenizer_fixture *fixture, const char *vectors_name)
{
    char *dir = temp_dir_make();
    char *path = rt_path_join(dir, "tokenizer.bin");
    rt_err err = {0};
    md_tokenizer *tokenizer;
    void *map;
    int fd;

    assert_int_equal(rt_file_replace(path, fixture->image, fixture->image_bytes, &err), RT_OK);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    map = mmap(NULL, fixture->image_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    assert_ptr_not_equal(map, MAP_FAILED);
    if (md_tokenizer_open(map, fixture->image_bytes, &tokenizer, &err) != RT_OK)
        fail_msg("%s", err.text);
    run_vectors(tokenizer, vectors_name, VECTORS);
    md_tokenizer_close(tokenizer);
    munmap(map, fixture->image_bytes);
    free(path);
    temp_dir_remove(dir);
}

static void run_twice(const char *tokenizer_name, const char *vectors_name)
{
    tokenizer_fixture fixture = tokenizer_fixture_open(MOESAIC_FIXTURES, tokenizer_name);

    run_vectors(fixture.tokenizer, vectors_name, VECTORS);
    run_mapped(&fixture, vectors_name);
    tokenizer_fixture_close(&fixture);
}

static void nano_encodes_and_decodes_all_vectors_twice(void **state)
{
    (void)state;
    run_twice("tokenizers/nano/tokenizer.json", "tokenizers/nano/vectors.json");
}

static void tiny_encodes_and_decodes_all_vectors_twice(void **state)
{
    (void)state;
    run_twice("tokenizers/tiny/tokenizer.json", "tokenizers/tiny/vectors.json");
}

/* Needs the released file, which is 20 MB and not part of the project. */
static void released_tokenizer_gives_the_recorded_ids(void **state)
{
    const char *path = rt_env_get("MOESAIC_GLM5_TOKENIZER_JSON");
    json_t *vectors = fixture_json(MOESAIC_FIXTURES, "tokenizers/glm5_real_vectors.json");
    size_t count = json_array_size(json_object_get(vectors, "cases"));
    tokenizer_fixture fixture;

    (void)state;
    json_decref(vectors);
    assert_true(count > 0);
    if (path == NULL) {
        print_message("SKIPPED: set MOESAIC_GLM5_TOKENIZER_JSON to the released tokenizer.json to "
                      "run its %zu vectors\n",
                      count);
        skip();
    }
    fixture = tokenizer_fixture_open("/", path);
    run_vectors(fixture.tokenizer, "tokenizers/glm5_real_vectors.json", count);
    tokenizer_fixture_close(&fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nano_encodes_and_decodes_all_vectors_twice),
        cmocka_unit_test(tiny_encodes_and_decodes_all_vectors_twice),
        cmocka_unit_test(released_tokenizer_gives_the_recorded_ids),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
