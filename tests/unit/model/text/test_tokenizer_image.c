#include "model/text/tokenizer.h"
#include "model/text/tokenizer_internal.h"
#include "tests/support/tokenizer_small.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct {
    uint8_t *bytes;
    size_t count;
} image;

static image small_image(void)
{
    json_t *root = tokenizer_small_json();
    image out = {0};

    assert_int_equal(tokenizer_small_compile(root, &out.bytes, &out.count, NULL), RT_OK);
    json_decref(root);
    return out;
}

/* Opens a copy of exactly `count` bytes, so that a read beyond it is seen by the sanitizers. What
 * opens must also encode. */
static rt_status open_copy(const uint8_t *bytes, size_t count, rt_err *err)
{
    static const char text[] = "abc <ab> abcd xyz's <a>\n 123 \xff";
    md_match all = {.mode = MD_MATCH_ALL};
    uint8_t *copy = malloc(count + 1);
    md_tokenizer *tokenizer = NULL;
    rt_status status;

    assert_non_null(copy);
    memcpy(copy + 1, bytes, count); /* also: no alignment is needed */
    status = md_tokenizer_open(copy + 1, count, &tokenizer, err);
    if (status == RT_OK) {
        md_ids ids = {0};
        char *back = NULL;
        size_t back_bytes;

        if (md_tokenizer_encode(tokenizer, (md_text){text, sizeof(text) - 1}, all, &ids, err) ==
                RT_OK &&
            md_tokenizer_decode(tokenizer, ids.ids, ids.count, true, &back, &back_bytes, err) ==
                RT_OK)
            free(back);
        md_ids_fini(&ids);
        md_tokenizer_close(tokenizer);
    } else {
        assert_null(tokenizer);
    }
    free(copy);
    return status;
}

static void every_damaged_byte_is_noticed(void **state)
{
    image good = small_image();

    (void)state;
    assert_int_equal(open_copy(good.bytes, good.count, NULL), RT_OK);
    for (size_t at = 0; at < good.count; at++) {
        rt_err err = {0};

        good.bytes[at] ^= (uint8_t)(1u << at % 8);
        assert_int_equal(open_copy(good.bytes, good.count, &err), RT_EFORMAT);
        assert_true(strlen(err.text) > 0);
        good.bytes[at] ^= (uint8_t)(1u << at % 8);
    }
    free(good.bytes);
}

static void every_shortened_image_is_refused(void **state)
{
    image good = small_image();

    (void)state;
    for (size_t count = 0; count < good.count; count++)
        assert_int_equal(open_copy(good.bytes, count, NULL), RT_EFORMAT);
    for (size_t count = 32; count < good.count; count += 7) {
        uint8_t *copy = malloc(count);

        memcpy(copy, good.bytes, count);
        tokenizer_small_repair(copy, count);
        assert_int_equal(open_copy(copy, count, NULL), RT_EFORMAT);
        free(copy);
    }
    free(good.bytes);
}

/* The checksum stops accidents; what stands behind it stops whoever can compute one. */
static void damage_under_a_right_checksum_is_refused_or_harmless(void **state)
{
    static const uint8_t masks[] = {0x01, 0x10, 0x80, 0xff};
    image good = small_image();

    (void)state;
    for (size_t at = 32; at < good.count; at++) {
        for (size_t m = 0; m < sizeof(masks); m++) {
            rt_status status;

            good.bytes[at] ^= masks[m];
            tokenizer_small_repair(good.bytes, good.count);
            status = open_copy(good.bytes, good.count, NULL);
            assert_true(status == RT_OK || status == RT_EFORMAT || status == RT_EUNSUPPORTED);
            /* No field of the header may change without being refused, save the probe length and
             * whether merges are ignored. */
            if (at < MD_IMAGE_HEADER_BYTES && at != offsetof(md_image_header, flags) &&
                at / 4 != offsetof(md_image_header, probe_max) / 4)
                assert_int_equal(status, RT_EFORMAT);
            good.bytes[at] ^= masks[m];
        }
    }
    free(good.bytes);
}

static void huge_counts_are_refused(void **state)
{
    static const size_t fields[] = {
        offsetof(md_image_header, token_count),      offsetof(md_image_header, added_count),
        offsetof(md_image_header, vocab_count),      offsetof(md_image_header, vocab_slots),
        offsetof(md_image_header, merge_count),      offsetof(md_image_header, merge_slots),
        offsetof(md_image_header, probe_max),        offsetof(md_image_header, token_bytes),
        offsetof(md_image_header, token_length_max), offsetof(md_image_header, pattern_bytes),
    };
    static const uint32_t values[] = {UINT32_MAX, 0x80000000u, 0x40000000u, 1u << 24, 0};
    image good = small_image();

    (void)state;
    for (size_t f = 0; f < sizeof(fields) / sizeof(fields[0]); f++) {
        for (size_t v = 0; v < sizeof(values) / sizeof(values[0]); v++) {
            uint8_t *copy = malloc(good.count);

            memcpy(copy, good.bytes, good.count);
            memcpy(copy + fields[f], &values[v], 4);
            tokenizer_small_repair(copy, good.count);
            assert_int_equal(open_copy(copy, good.count, NULL), RT_EFORMAT);
            free(copy);
        }
    }
    free(good.bytes);
}

static void ids_out_of_range_are_refused_everywhere(void **state)
{
    image good = small_image();
    md_image parts;
    size_t at[5] = {0};

    (void)state;
    assert_int_equal(md_image_open(good.bytes, good.count, &parts, NULL), RT_OK);
    at[0] = (size_t)(parts.byte_ids - good.bytes) + 4 * 10;
    at[1] = (size_t)(parts.added - good.bytes);
    for (uint32_t slot = 0; slot < parts.header.vocab_slots; slot++)
        if (md_image_u32(parts.vocab_table, slot) != 0)
            at[2] = (size_t)(parts.vocab_table - good.bytes) + 4 * slot;
    for (uint32_t slot = 0; slot < parts.header.merge_slots; slot++)
        if (md_image_u32(parts.merge_table, 4 * slot) != UINT32_MAX)
            at[3] = (size_t)(parts.merge_table - good.bytes) + 16 * slot;
    at[4] = at[3] + 12;
    for (size_t i = 0; i < 5; i++) {
        uint32_t saved, bad = 263 + 1; /* past the last id, also as id + 1 */

        memcpy(&saved, good.bytes + at[i], 4);
        memcpy(good.bytes + at[i], &bad, 4);
        tokenizer_small_repair(good.bytes, good.count);
        assert_int_equal(open_copy(good.bytes, good.count, NULL), RT_EFORMAT);
        memcpy(good.bytes + at[i], &saved, 4);
    }
    free(good.bytes);
}

static void a_cycle_of_merges_is_refused(void **state)
{
    image good = small_image();
    md_image parts;

    (void)state;
    assert_int_equal(md_image_open(good.bytes, good.count, &parts, NULL), RT_OK);
    for (uint32_t slot = 0; slot < parts.header.merge_slots; slot++) {
        uint8_t *entry = good.bytes + (parts.merge_table - good.bytes) + 16 * slot;

        /* Every merge gives its own left side again. */
        if (md_image_u32(parts.merge_table, 4 * slot) != UINT32_MAX) memcpy(entry + 12, entry, 4);
    }
    tokenizer_small_repair(good.bytes, good.count);
    assert_int_equal(open_copy(good.bytes, good.count, NULL), RT_EFORMAT);
    free(good.bytes);
}

static void another_version_is_named(void **state)
{
    image good = small_image();
    rt_err err = {0};

    (void)state;
    good.bytes[8] = 9;
    assert_int_equal(open_copy(good.bytes, good.count, &err), RT_EFORMAT);
    assert_non_null(strstr(err.text, "expected version 1, found 9"));
    free(good.bytes);
}

/* ---- merging against the definition ---- */

static void merge_slowly(const md_image *parts, md_text piece, md_ids *out)
{
    for (size_t i = 0; i < piece.count; i++)
        assert_int_equal(
            md_ids_push(out, md_image_u32(parts->byte_ids, (uint8_t)piece.bytes[i]), NULL), RT_OK);
    for (;;) {
        uint32_t best = UINT32_MAX, best_result = 0, rank, result;
        size_t best_at = 0;

        for (size_t i = 0; i + 1 < out->count; i++) {
            if (!md_image_merge(parts, out->ids[i], out->ids[i + 1], &rank, &result)) continue;
            if (rank >= best) continue;
            best = rank;
            best_at = i;
            best_result = result;
        }
        if (best == UINT32_MAX) return;
        out->ids[best_at] = best_result;
        memmove(out->ids + best_at + 1, out->ids + best_at + 2,
                (out->count - best_at - 2) * sizeof(*out->ids));
        out->count--;
    }
}

/* A vocabulary of all strings over {a, b} up to six letters, with ranks in a scrambled order. */
static image dense_image(void)
{
    json_t *root = tokenizer_small_json();
    json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab");
    json_t *merges = json_array();
    json_int_t next = 263;
    image out = {0};

    for (uint32_t length = 2; length <= 6; length++) {
        for (uint32_t bits = 0; bits < 1u << length; bits++) {
            char word[8] = "";

            for (uint32_t i = 0; i < length; i++)
                word[i] = (bits >> i & 1) != 0 ? 'b' : 'a';
            if (json_object_get(vocab, word) == NULL)
                json_object_set_new(vocab, word, json_integer(next++));
            for (uint32_t cut = 1; cut < length; cut++) {
                json_t *pair = json_pack("[s%s]", word, (size_t)cut, word + cut);

                json_array_insert_new(merges, (bits * 7 + cut * 13) % (json_array_size(merges) + 1),
                                      pair);
            }
        }
    }
    tokenizer_small_set(root, "model.merges", merges);
    tokenizer_small_set(root, "model.ignore_merges", json_false());
    assert_int_equal(tokenizer_small_compile(root, &out.bytes, &out.count, NULL), RT_OK);
    json_decref(root);
    return out;
}

static void the_heap_merges_as_the_definition_does(void **state)
{
    image dense = dense_image();
    md_bpe bpe = {0};
    uint32_t random = 1;
    md_image parts;

    (void)state;
    assert_int_equal(md_image_open(dense.bytes, dense.count, &parts, NULL), RT_OK);
    for (int round = 0; round < 2000; round++) {
        char word[48];
        md_text piece = {word, 1 + (size_t)round % sizeof(word)};
        md_ids fast = {0}, slow = {0};

        for (size_t i = 0; i < piece.count; i++) {
            random = random * 1664525u + 1013904223u;
            word[i] = "ab"[random >> 31];
        }
        assert_int_equal(md_bpe_encode(&bpe, &parts, piece, &fast, NULL), RT_OK);
        merge_slowly(&parts, piece, &slow);
        assert_int_equal(fast.count, slow.count);
        assert_memory_equal(fast.ids, slow.ids, fast.count * sizeof(*fast.ids));
        md_ids_fini(&fast);
        md_ids_fini(&slow);
    }
    md_bpe_fini(&bpe);
    free(dense.bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_damaged_byte_is_noticed),
        cmocka_unit_test(every_shortened_image_is_refused),
        cmocka_unit_test(damage_under_a_right_checksum_is_refused_or_harmless),
        cmocka_unit_test(huge_counts_are_refused),
        cmocka_unit_test(ids_out_of_range_are_refused_everywhere),
        cmocka_unit_test(a_cycle_of_merges_is_refused),
        cmocka_unit_test(another_version_is_named),
        cmocka_unit_test(the_heap_merges_as_the_definition_does),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
