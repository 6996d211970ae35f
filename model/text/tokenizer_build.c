/* tokenizer_build.c - writes the image of a tokenizer that was read from JSON. Everything in it
 * follows from the source alone: tables are filled in order of ids and ranks, so the bytes are the
 * same on every machine. */
#include "model/text/tokenizer_internal.h"

#include "base/check.h"

#include <stdlib.h>

typedef struct {
    const md_tokenizer_source *source;
    md_image_header header;
    uint32_t byte_ids[256];
    uint32_t *offsets; /* owned, as the rest; all in host order until written */
    uint32_t *added;
    uint32_t *vocab_table;
    uint32_t *merge_table;
} builder;

static md_text token_text(const md_tokenizer_source *source, uint32_t id)
{
    const md_source_token *token = &source->tokens[id];

    return (md_text){source->bytes.bytes + token->offset, token->length};
}

/* Two thirds full at most: short searches, and the release's merges fit in 8 MB. */
static uint32_t slots_for(uint32_t entries)
{
    uint32_t slots = 16;

    while (slots / 3 * 2 <= entries)
        slots *= 2;
    return slots;
}

static rt_status count_tokens(builder *b, rt_err *err)
{
    const md_tokenizer_source *source = b->source;
    bool have[256] = {false};

    for (uint32_t id = 0; id < source->token_count; id++) {
        const md_source_token *token = &source->tokens[id];

        b->offsets[id] = b->header.token_bytes;
        if (token->flags == 0) continue;
        b->header.token_bytes += token->length;
        b->header.added_count += (token->flags & MD_TOKEN_ADDED) != 0;
        b->header.vocab_count += (token->flags & MD_TOKEN_VOCAB) != 0;
        if (token->length > b->header.token_length_max) b->header.token_length_max = token->length;
        if (token->length == 1 && (token->flags & MD_TOKEN_VOCAB) != 0) {
            uint8_t byte = (uint8_t)source->bytes.bytes[token->offset];

            b->byte_ids[byte] = id;
            have[byte] = true;
        }
    }
    b->offsets[source->token_count] = b->header.token_bytes;
    for (uint32_t byte = 0; byte < 256; byte++) {
        if (!have[byte])
            return rt_fail(err, RT_EFORMAT, "tokenizer.json: the vocabulary lacks byte 0x%02x",
                           byte);
    }
    return RT_OK;
}

static int compare_added(const void *a, const void *b, void *context)
{
    const md_tokenizer_source *source = context;

    return md_text_compare(token_text(source, *(const uint32_t *)a),
                           token_text(source, *(const uint32_t *)b));
}

static rt_status list_added(builder *b, rt_err *err)
{
    const md_tokenizer_source *source = b->source;
    uint32_t count = 0;

    for (uint32_t id = 0; id < source->token_count; id++)
        if ((source->tokens[id].flags & MD_TOKEN_ADDED) != 0) b->added[count++] = id;
    RT_ASSERT(count == b->header.added_count);
    if (count == 0) return RT_OK;
    qsort_r(b->added, count, sizeof(*b->added), compare_added, (void *)(uintptr_t)source);
    for (uint32_t i = 1; i < count; i++) {
        if (compare_added(&b->added[i - 1], &b->added[i], (void *)(uintptr_t)source) == 0) {
            md_text text = token_text(source, b->added[i]);

            return rt_fail(err, RT_EFORMAT, "tokenizer.json: added_tokens: %.*s twice",
                           text.count > 60 ? 60 : (int)text.count, text.bytes);
        }
    }
    return RT_OK;
}

static rt_status note_probe(builder *b, uint32_t probe, rt_err *err)
{
    if (probe + 1 > MD_IMAGE_PROBE_MAX)
        return rt_fail(err, RT_EFORMAT, "tokenizer.json: its entries collide without end");
    if (probe + 1 > b->header.probe_max) b->header.probe_max = probe + 1;
    return RT_OK;
}

static bool same_text(md_text a, md_text b)
{
    return md_text_compare(a, b) == 0;
}

static rt_status fill_vocab(builder *b, rt_err *err)
{
    const md_tokenizer_source *source = b->source;
    uint32_t mask = b->header.vocab_slots - 1;

    for (uint32_t id = 0; id < source->token_count; id++) {
        md_text text = token_text(source, id);
        uint32_t slot, probe = 0;

        if ((source->tokens[id].flags & MD_TOKEN_VOCAB) == 0) continue;
        slot = md_image_text_slot(text, b->header.vocab_slots);
        while (b->vocab_table[(slot + probe) & mask] != 0)
            probe++;
        b->vocab_table[(slot + probe) & mask] = id + 1;
        RT_TRY(note_probe(b, probe, err));
    }
    return RT_OK;
}

/* An added token that is also an entry of the vocabulary must be that entry. */
static rt_status check_added(const builder *b, rt_err *err)
{
    const md_tokenizer_source *source = b->source;
    uint32_t mask = b->header.vocab_slots - 1;

    for (uint32_t i = 0; i < b->header.added_count; i++) {
        md_text text = token_text(source, b->added[i]);
        uint32_t slot = md_image_text_slot(text, b->header.vocab_slots);

        for (uint32_t entry; (entry = b->vocab_table[slot & mask]) != 0; slot++) {
            if (entry - 1 != b->added[i] && same_text(token_text(source, entry - 1), text))
                return rt_fail(
                    err, RT_EFORMAT,
                    "tokenizer.json: added token %.*s has id %u, its vocabulary entry %u",
                    text.count > 60 ? 60 : (int)text.count, text.bytes, b->added[i], entry - 1);
        }
    }
    return RT_OK;
}

/* A pair listed twice keeps its last rank, as in the tokenizers library. */
static rt_status fill_merges(builder *b, rt_err *err)
{
    const md_tokenizer_source *source = b->source;
    uint32_t mask = b->header.merge_slots - 1;

    for (uint32_t rank = 0; rank < source->merge_count; rank++) {
        const md_source_merge *merge = &source->merges[rank];
        uint32_t slot = md_image_pair_slot(merge->left, merge->right, b->header.merge_slots);
        uint32_t probe = 0;
        uint32_t *entry;

        for (;; probe++) {
            entry = &b->merge_table[(size_t)((slot + probe) & mask) * 4];
            if (entry[0] == UINT32_MAX) break;
            if (entry[0] == merge->left && entry[1] == merge->right) break;
        }
        if (entry[0] == UINT32_MAX) b->header.merge_count++;
        entry[0] = merge->left;
        entry[1] = merge->right;
        entry[2] = rank;
        entry[3] = merge->result;
        RT_TRY(note_probe(b, probe, err));
    }
    return RT_OK;
}

static void put_u32(const uint8_t *section, const uint32_t *values, size_t count)
{
    uint8_t *to = (uint8_t *)(uintptr_t)section;

    for (size_t i = 0; i < count; i++) {
        uint32_t value = htole32(values[i]);

        memcpy(to + i * sizeof(value), &value, sizeof(value));
    }
}

static void write_sections(const builder *b, const md_image *image)
{
    const md_tokenizer_source *source = b->source;
    uint8_t *flags = (uint8_t *)(uintptr_t)image->token_flags;
    uint8_t *bytes = (uint8_t *)(uintptr_t)image->token_bytes;

    put_u32(image->token_offsets, b->offsets, (size_t)source->token_count + 1);
    put_u32(image->byte_ids, b->byte_ids, 256);
    put_u32(image->added, b->added, b->header.added_count);
    put_u32(image->vocab_table, b->vocab_table, b->header.vocab_slots);
    put_u32(image->merge_table, b->merge_table, (size_t)b->header.merge_slots * 4);
    for (uint32_t id = 0; id < source->token_count; id++) {
        md_text text = token_text(source, id);

        flags[id] = source->tokens[id].flags;
        if (text.count > 0) memcpy(bytes + b->offsets[id], text.bytes, text.count);
    }
    memcpy((uint8_t *)(uintptr_t)image->pattern, source->pattern.bytes, source->pattern.count);
}

static rt_status write_image(builder *b, uint8_t **out, size_t *out_bytes, rt_err *err)
{
    md_image image = {.header = b->header};
    md_image_header *header = &image.header;
    uint64_t total = md_image_bytes(header);
    uint8_t *bytes = calloc(1, total);

    if (bytes == NULL)
        return rt_fail(err, RT_ENOMEM, "tokenizer image of %zu bytes", (size_t)total);
    md_image_layout(&image, bytes);
    write_sections(b, &image);
    header->total_bytes = total;
    md_image_header_swap(header);
    memcpy(bytes, header, sizeof(*header));
    header->checksum = htole64(md_image_checksum(bytes, total));
    memcpy(bytes, header, sizeof(*header));
    *out = bytes;
    *out_bytes = total;
    return RT_OK;
}

static rt_status allocate(builder *b, rt_err *err)
{
    const md_tokenizer_source *source = b->source;
    md_image_header *h = &b->header;

    h->vocab_slots = slots_for(source->token_count);
    h->merge_slots = slots_for(source->merge_count);
    b->offsets = calloc((size_t)source->token_count + 1, sizeof(*b->offsets));
    b->added = calloc((size_t)source->token_count + 1, sizeof(*b->added));
    b->vocab_table = calloc(h->vocab_slots, sizeof(*b->vocab_table));
    b->merge_table = malloc((size_t)h->merge_slots * MD_IMAGE_MERGE_BYTES);
    if (b->offsets == NULL || b->added == NULL || b->vocab_table == NULL || b->merge_table == NULL)
        return rt_fail(err, RT_ENOMEM, "tokenizer tables");
    memset(b->merge_table, 0, (size_t)h->merge_slots * MD_IMAGE_MERGE_BYTES);
    for (size_t slot = 0; slot < h->merge_slots; slot++)
        b->merge_table[slot * 4] = UINT32_MAX;
    return RT_OK;
}

rt_status md_image_build(const md_tokenizer_source *source, uint8_t **image, size_t *image_bytes,
                         rt_err *err)
{
    builder b = {.source = source};
    rt_status status;

    memcpy(b.header.magic, MD_IMAGE_MAGIC, sizeof(b.header.magic));
    b.header.version = MD_TOKENIZER_VERSION;
    b.header.header_bytes = MD_IMAGE_HEADER_BYTES;
    b.header.flags = source->ignore_merges ? MD_IMAGE_IGNORE_MERGES : 0;
    b.header.token_count = source->token_count;
    b.header.pattern_bytes = (uint32_t)source->pattern.count;
    b.header.probe_max = 1;
    status = allocate(&b, err);
    if (status == RT_OK) status = count_tokens(&b, err);
    if (status == RT_OK) status = list_added(&b, err);
    if (status == RT_OK) status = fill_vocab(&b, err);
    if (status == RT_OK) status = check_added(&b, err);
    if (status == RT_OK) status = fill_merges(&b, err);
    if (status == RT_OK) status = write_image(&b, image, image_bytes, err);
    free(b.offsets);
    free(b.added);
    free(b.vocab_table);
    free(b.merge_table);
    return status;
}
