/* fuzz_tokenizer.c - tokenizer.json and compiled images as an attacker may write them.
 *
 * The first byte chooses what the rest is: JSON to compile; an image; an image whose checksum is made
 * right, so that the checks behind it are reached. What opens also encodes the input. */
#include "model/text/stream.h"
#include "model/text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { CHECKSUM_AT = 24, CHECKSUM_END = 32, TOTAL_AT = 16, TEXT_MAX = 4096 };

static void use(const md_tokenizer *tokenizer, const uint8_t *text, size_t bytes)
{
    md_stream_spec spec = {.tokenizer = tokenizer, .skip_special = true};
    md_match all = {.mode = MD_MATCH_ALL};
    md_ids ids = {0};
    md_stream *stream = NULL;
    md_text shown;

    if (bytes > TEXT_MAX) bytes = TEXT_MAX;
    if (md_tokenizer_encode(tokenizer, (md_text){(const char *)text, bytes}, all, &ids, NULL) ==
            RT_OK &&
        md_stream_create(&spec, &stream, NULL) == RT_OK) {
        for (size_t i = 0; i < ids.count; i++)
            (void)md_stream_feed(stream, ids.ids[i], &shown);
        (void)md_stream_finish(stream, &shown);
    }
    md_stream_free(stream);
    md_ids_fini(&ids);
}

static void open_image(const uint8_t *image, size_t bytes, const uint8_t *text, size_t text_bytes)
{
    md_tokenizer *tokenizer = NULL;

    if (md_tokenizer_open(image, bytes, &tokenizer, NULL) != RT_OK) return;
    use(tokenizer, text, text_bytes);
    md_tokenizer_close(tokenizer);
}

static void compile(const uint8_t *json, size_t bytes)
{
    uint8_t *image = NULL;
    size_t image_bytes = 0;

    if (md_tokenizer_compile((const char *)json, bytes, &image, &image_bytes, NULL) != RT_OK)
        return;
    open_image(image, image_bytes, json, bytes);
    free(image);
}

static void open_repaired(const uint8_t *data, size_t size)
{
    uint8_t *image = malloc(size + 1);
    uint64_t total = size, checksum;

    if (image == NULL) return;
    memcpy(image, data, size);
    if (size > CHECKSUM_END) {
        memcpy(image + TOTAL_AT, &total, sizeof(total));
        checksum = XXH3_64bits(image + CHECKSUM_END, size - CHECKSUM_END);
        memcpy(image + CHECKSUM_AT, &checksum, sizeof(checksum));
    }
    open_image(image, size, data, size);
    free(image);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1) return 0;
    switch (data[0] % 3) {
    case 0:
        compile(data + 1, size - 1);
        break;
    case 1:
        open_image(data + 1, size - 1, data, size);
        break;
    default:
        open_repaired(data + 1, size - 1);
        break;
    }
    return 0;
}
