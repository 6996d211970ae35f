/* tokenizer_image.c - opens and searches the compiled tokenizer; layout in tokenizer_internal.h.
 *
 * Opening checks what memory safety and termination rest on: sizes, offsets, ids, that every table
 * has an empty slot, and the checksum for everything else. It does not rebuild the tables. */
#include "model/text/tokenizer_internal.h"

#include "base/check.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

static_assert(sizeof(md_image_header) == MD_IMAGE_HEADER_BYTES,
              "the header's size is part of the format");
static_assert(offsetof(md_image_header, checksum) == 24, "field of the format");
static_assert(offsetof(md_image_header, pattern_bytes) == 72, "last field of the format");

enum { CHECKSUM_END = offsetof(md_image_header, checksum) + sizeof(uint64_t) };

static rt_status bad(rt_err *err, const char *what)
{
    return rt_fail(err, RT_EFORMAT, "tokenizer image: %s", what);
}

uint64_t md_image_checksum(const uint8_t *bytes, size_t count)
{
    return XXH3_64bits(bytes + CHECKSUM_END, count - CHECKSUM_END);
}

void md_image_header_swap(md_image_header *header)
{
    header->version = le32toh(header->version);
    header->header_bytes = le32toh(header->header_bytes);
    header->total_bytes = le64toh(header->total_bytes);
    header->checksum = le64toh(header->checksum);
    header->flags = le32toh(header->flags);
    header->token_count = le32toh(header->token_count);
    header->added_count = le32toh(header->added_count);
    header->vocab_count = le32toh(header->vocab_count);
    header->vocab_slots = le32toh(header->vocab_slots);
    header->merge_count = le32toh(header->merge_count);
    header->merge_slots = le32toh(header->merge_slots);
    header->probe_max = le32toh(header->probe_max);
    header->token_bytes = le32toh(header->token_bytes);
    header->token_length_max = le32toh(header->token_length_max);
    header->pattern_bytes = le32toh(header->pattern_bytes);
}

enum { SECTIONS = 8 };

/* Where each section starts, and in the last entry where the image ends; no pointer is made from
 * counts before they are known to fit. */
static void section_offsets(const md_image_header *h, uint64_t offsets[SECTIONS + 1])
{
    const uint64_t sizes[SECTIONS] = {
        ((uint64_t)h->token_count + 1) * 4,
        256 * 4,
        (uint64_t)h->added_count * 4,
        (uint64_t)h->vocab_slots * 4,
        (uint64_t)h->merge_slots * MD_IMAGE_MERGE_BYTES,
        h->token_count,
        h->token_bytes,
        h->pattern_bytes,
    };

    offsets[0] = MD_IMAGE_HEADER_BYTES;
    for (int i = 0; i < SECTIONS; i++)
        offsets[i + 1] = offsets[i] + sizes[i];
}

uint64_t md_image_bytes(const md_image_header *header)
{
    uint64_t offsets[SECTIONS + 1];

    section_offsets(header, offsets);
    return offsets[SECTIONS];
}

void md_image_layout(md_image *image, const uint8_t *bytes)
{
    uint64_t offsets[SECTIONS + 1];

    section_offsets(&image->header, offsets);
    image->token_offsets = bytes + offsets[0];
    image->byte_ids = bytes + offsets[1];
    image->added = bytes + offsets[2];
    image->vocab_table = bytes + offsets[3];
    image->merge_table = bytes + offsets[4];
    image->token_flags = bytes + offsets[5];
    image->token_bytes = bytes + offsets[6];
    image->pattern = bytes + offsets[7];
}

/* ---- searching ---- */

uint32_t md_image_text_slot(md_text text, uint32_t slots)
{
    return (uint32_t)XXH3_64bits(text.bytes, text.count) & (slots - 1);
}

uint32_t md_image_pair_slot(uint32_t left, uint32_t right, uint32_t slots)
{
    uint64_t key = ((uint64_t)left << 32 | right) * 0x9e3779b97f4a7c15u;

    return (uint32_t)(key >> 32 ^ key >> 17) & (slots - 1);
}

bool md_image_find(const md_image *image, md_text text, uint32_t *id)
{
    uint32_t slots = image->header.vocab_slots;
    uint32_t slot;

    if (text.count == 0 || text.count > image->header.token_length_max) return false;
    slot = md_image_text_slot(text, slots);
    for (uint32_t probe = 0; probe < image->header.probe_max; probe++) {
        uint32_t entry = md_image_u32(image->vocab_table, (slot + probe) & (slots - 1));
        md_text token;

        if (entry == 0) return false;
        token = md_image_token(image, entry - 1);
        if (token.count == text.count && memcmp(token.bytes, text.bytes, text.count) == 0) {
            *id = entry - 1;
            return true;
        }
    }
    return false;
}

bool md_image_merge(const md_image *image, uint32_t left, uint32_t right, uint32_t *rank,
                    uint32_t *result)
{
    uint32_t slots = image->header.merge_slots;
    uint32_t slot = md_image_pair_slot(left, right, slots);

    for (uint32_t probe = 0; probe < image->header.probe_max; probe++) {
        size_t at = (size_t)((slot + probe) & (slots - 1)) * 4;
        uint32_t found = md_image_u32(image->merge_table, at);

        if (found == UINT32_MAX) return false;
        if (found == left && md_image_u32(image->merge_table, at + 1) == right) {
            *rank = md_image_u32(image->merge_table, at + 2);
            *result = md_image_u32(image->merge_table, at + 3);
            return true;
        }
    }
    return false;
}

int md_text_compare(md_text a, md_text b)
{
    size_t shared = a.count < b.count ? a.count : b.count;
    int order = shared == 0 ? 0 : memcmp(a.bytes, b.bytes, shared);

    if (order != 0) return order < 0 ? -1 : 1;
    return a.count == b.count ? 0 : a.count < b.count ? -1 : 1;
}

/* ---- opening ---- */

static bool power_of_two(uint32_t value)
{
    return value != 0 && (value & (value - 1)) == 0;
}

static rt_status check_header(const md_image_header *h, const uint8_t *bytes, size_t count,
                              rt_err *err)
{
    static const uint8_t zero[sizeof(h->zero)];

    if (memcmp(h->magic, MD_IMAGE_MAGIC, sizeof(h->magic)) != 0) return bad(err, "no magic number");
    if (h->version != MD_TOKENIZER_VERSION)
        return rt_fail(err, RT_EFORMAT, "tokenizer image: expected version %d, found %u",
                       MD_TOKENIZER_VERSION, h->version);
    if (h->header_bytes != MD_IMAGE_HEADER_BYTES) return bad(err, "header size");
    if (h->total_bytes != count)
        return rt_fail(err, RT_EFORMAT, "tokenizer image: expected %llu bytes, found %zu",
                       (unsigned long long)h->total_bytes, count);
    if (h->checksum != md_image_checksum(bytes, count)) return bad(err, "checksum differs");
    if ((h->flags & ~(uint32_t)MD_IMAGE_IGNORE_MERGES) != 0) return bad(err, "unknown flags");
    if (memcmp(h->zero, zero, sizeof(zero)) != 0) return bad(err, "reserved bytes are set");
    if (h->token_count < 256 || h->token_count > MD_TOKENIZER_IDS_MAX)
        return bad(err, "token count out of range");
    if (h->added_count > h->token_count || h->vocab_count > h->token_count)
        return bad(err, "more entries than tokens");
    if (!power_of_two(h->vocab_slots) || h->vocab_slots <= h->vocab_count ||
        h->vocab_slots > 8 * MD_TOKENIZER_IDS_MAX)
        return bad(err, "vocabulary table size");
    if (!power_of_two(h->merge_slots) || h->merge_slots <= h->merge_count ||
        h->merge_slots > 8 * MD_TOKENIZER_MERGES_MAX)
        return bad(err, "merge table size");
    if (h->probe_max < 1 || h->probe_max > MD_IMAGE_PROBE_MAX) return bad(err, "probe length");
    return RT_OK;
}

static rt_status check_tokens(const md_image *image, rt_err *err)
{
    const md_image_header *h = &image->header;
    uint32_t added = 0, vocab = 0, longest = 0;
    uint32_t at = md_image_u32(image->token_offsets, 0);

    if (at != 0) return bad(err, "token offsets");
    for (uint32_t id = 0; id < h->token_count; id++) {
        uint32_t next = md_image_u32(image->token_offsets, (size_t)id + 1);
        uint8_t flags = image->token_flags[id];

        if (next < at || next > h->token_bytes || (next == at) != (flags == 0))
            return bad(err, "token offsets");
        if (flags > (MD_TOKEN_VOCAB | MD_TOKEN_ADDED | MD_TOKEN_SPECIAL) ||
            ((flags & MD_TOKEN_SPECIAL) != 0 && (flags & MD_TOKEN_ADDED) == 0))
            return bad(err, "token flags");
        added += (flags & MD_TOKEN_ADDED) != 0;
        vocab += (flags & MD_TOKEN_VOCAB) != 0;
        if (next - at > longest) longest = next - at;
        at = next;
    }
    if (at != h->token_bytes) return bad(err, "token offsets");
    if (added != h->added_count || vocab != h->vocab_count || longest != h->token_length_max)
        return bad(err, "token counts");
    return RT_OK;
}

static bool is_vocab(const md_image *image, uint32_t id)
{
    return id < image->header.token_count && (image->token_flags[id] & MD_TOKEN_VOCAB) != 0;
}

static rt_status check_lists(const md_image *image, rt_err *err)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t id = md_image_u32(image->byte_ids, byte);
        md_text token;

        if (!is_vocab(image, id)) return bad(err, "byte tokens");
        token = md_image_token(image, id);
        if (token.count != 1 || (uint8_t)token.bytes[0] != byte) return bad(err, "byte tokens");
    }
    for (uint32_t i = 0; i < image->header.added_count; i++) {
        uint32_t id = md_image_u32(image->added, i);

        if (id >= image->header.token_count || (image->token_flags[id] & MD_TOKEN_ADDED) == 0)
            return bad(err, "added tokens");
        if (i > 0 && md_text_compare(md_image_token(image, md_image_u32(image->added, i - 1)),
                                     md_image_token(image, id)) >= 0)
            return bad(err, "order of the added tokens");
    }
    return RT_OK;
}

static rt_status check_tables(const md_image *image, rt_err *err)
{
    const md_image_header *h = &image->header;
    uint32_t vocab = 0, merges = 0;

    for (uint32_t slot = 0; slot < h->vocab_slots; slot++) {
        uint32_t entry = md_image_u32(image->vocab_table, slot);

        if (entry == 0) continue;
        if (!is_vocab(image, entry - 1)) return bad(err, "vocabulary table");
        vocab++;
    }
    for (uint32_t slot = 0; slot < h->merge_slots; slot++) {
        size_t at = (size_t)slot * 4;
        uint32_t left = md_image_u32(image->merge_table, at);
        uint32_t right = md_image_u32(image->merge_table, at + 1);
        uint32_t result = md_image_u32(image->merge_table, at + 3);

        if (left == UINT32_MAX) continue;
        if (!is_vocab(image, left) || !is_vocab(image, right) || !is_vocab(image, result))
            return bad(err, "merge table");
        if (md_image_token(image, left).count + md_image_token(image, right).count !=
            md_image_token(image, result).count)
            return bad(err, "merge table: lengths do not add up");
        merges++;
    }
    if (vocab != h->vocab_count || merges != h->merge_count)
        return bad(err, "entries of the tables");
    return RT_OK;
}

rt_status md_image_open(const void *bytes, size_t count, md_image *out, rt_err *err)
{
    md_image image = {0};

    if (count < MD_IMAGE_HEADER_BYTES) return bad(err, "shorter than its header");
    memcpy(&image.header, bytes, sizeof(image.header));
    md_image_header_swap(&image.header);
    RT_TRY(check_header(&image.header, bytes, count, err));
    if (md_image_bytes(&image.header) != count) return bad(err, "sections do not fill the file");
    md_image_layout(&image, bytes);
    RT_TRY(check_tokens(&image, err));
    RT_TRY(check_lists(&image, err));
    RT_TRY(check_tables(&image, err));
    *out = image;
    return RT_OK;
}
