/* tokenizer_internal.h - what the files of the tokenizer share: the source as read from JSON, the
 * image as laid out in a file, and the parts that work on an open image.
 *
 * The image, all integers little-endian, sections one after another without gaps:
 *     header         128 bytes, see md_image_header
 *     token offsets  u32[tokens + 1] into the token bytes; token i is [offset i, offset i + 1)
 *     byte ids       u32[256], the token of each single byte
 *     added          u32[added], ids of the added tokens in ascending order of their bytes
 *     vocab table    u32[vocab slots], open addressing by XXH3 of the bytes: id + 1, 0 is empty
 *     merge table    {u32 left, right, rank, result}[merge slots], open addressing by the pair;
 *                    left 0xffffffff is empty
 *     token flags    u8[tokens]
 *     token bytes
 *     split pattern  as tokenizer.json has it
 * Sizes follow from the counts in the header, so there are no section offsets to get wrong. */
#ifndef MODEL_TEXT_TOKENIZER_INTERNAL_H
#define MODEL_TEXT_TOKENIZER_INTERNAL_H

#include "model/text/pretokenize.h"
#include "model/text/text_buffer.h"
#include "model/text/tokenizer.h"

#include <endian.h>
#include <string.h>

enum {
    MD_TOKEN_VOCAB = 1, /* an entry of the BPE vocabulary; a token without flags is a hole */
    MD_TOKEN_ADDED = 2,
    MD_TOKEN_SPECIAL = 4, /* only together with MD_TOKEN_ADDED */
};

/* ---- the source ---- */

typedef struct {
    uint32_t offset; /* into md_tokenizer_source.bytes */
    uint32_t length;
    uint8_t flags;
} md_source_token;

typedef struct {
    uint32_t left, right, result;
} md_source_merge; /* its index is its rank */

typedef struct {
    md_text_buffer bytes;
    md_source_token *tokens; /* owned */
    uint32_t token_count;
    md_source_merge *merges; /* owned */
    uint32_t merge_count;
    md_text_buffer pattern;
    bool ignore_merges;
} md_tokenizer_source;

/* Reads tokenizer.json; errors as md_tokenizer_compile. source is zeroed by the caller and freed by
 * it with md_tokenizer_source_fini, also on failure. */
RT_MUST_CHECK rt_status md_tokenizer_source_read(const char *json, size_t bytes,
                                                 md_tokenizer_source *source, rt_err *err);
void md_tokenizer_source_fini(md_tokenizer_source *source);

/* ---- the image ---- */

#define MD_IMAGE_MAGIC "MOETOKEN"
enum { MD_IMAGE_HEADER_BYTES = 128, MD_IMAGE_MERGE_BYTES = 16, MD_IMAGE_PROBE_MAX = 4096 };
enum { MD_IMAGE_IGNORE_MERGES = 1 }; /* header flags */

typedef struct {
    char magic[8];
    uint32_t version;
    uint32_t header_bytes;
    uint64_t total_bytes;
    uint64_t checksum; /* XXH3-64 of all that follows this field */
    uint32_t flags;
    uint32_t token_count;
    uint32_t added_count;
    uint32_t vocab_count; /* tokens with MD_TOKEN_VOCAB: entries of the vocab table */
    uint32_t vocab_slots; /* a power of two above vocab_count */
    uint32_t merge_count; /* entries of the merge table */
    uint32_t merge_slots; /* a power of two above merge_count */
    uint32_t probe_max;   /* the longest search either table needs */
    uint32_t token_bytes; /* of all tokens */
    uint32_t token_length_max;
    uint32_t pattern_bytes;
    uint8_t zero[52];
} md_image_header;

/* An image taken apart; all pointers lead into it. */
typedef struct {
    md_image_header header; /* in host order */
    const uint8_t *token_offsets;
    const uint8_t *byte_ids;
    const uint8_t *added;
    const uint8_t *vocab_table;
    const uint8_t *merge_table;
    const uint8_t *token_flags;
    const uint8_t *token_bytes;
    const uint8_t *pattern;
} md_image;

static inline uint32_t md_image_u32(const uint8_t *section, size_t index)
{
    uint32_t value;

    memcpy(&value, section + index * sizeof(value), sizeof(value));
    return le32toh(value);
}

static inline md_text md_image_token(const md_image *image, uint32_t id)
{
    uint32_t begin = md_image_u32(image->token_offsets, id);
    uint32_t end = md_image_u32(image->token_offsets, (size_t)id + 1);

    return (md_text){(const char *)image->token_bytes + begin, end - begin};
}

/* Host order to little-endian and back. */
void md_image_header_swap(md_image_header *header);
/* The size that the counts of a header ask for. */
uint64_t md_image_bytes(const md_image_header *header);
/* Sets the section pointers; bytes holds md_image_bytes(&image->header). */
void md_image_layout(md_image *image, const uint8_t *bytes);
uint64_t md_image_checksum(const uint8_t *bytes, size_t count);

/* Where the searches in the two tables start. */
uint32_t md_image_text_slot(md_text text, uint32_t slots);
uint32_t md_image_pair_slot(uint32_t left, uint32_t right, uint32_t slots);

/* Builds the bytes of an image. RT_EFORMAT when the tables degenerate (made-up collisions). */
RT_MUST_CHECK rt_status md_image_build(const md_tokenizer_source *source, uint8_t **image,
                                       size_t *image_bytes, rt_err *err);
/* Checks bytes and takes them apart. RT_EFORMAT says where it is wrong. */
RT_MUST_CHECK rt_status md_image_open(const void *bytes, size_t count, md_image *out, rt_err *err);

/* The vocabulary entry whose bytes are text. */
bool md_image_find(const md_image *image, md_text text, uint32_t *id);
bool md_image_merge(const md_image *image, uint32_t left, uint32_t right, uint32_t *rank,
                    uint32_t *result);
/* -1, 0, 1 by bytes, a prefix first. */
int md_text_compare(md_text a, md_text b);

/* ---- byte-pair merging ---- */

typedef struct md_bpe_symbol md_bpe_symbol;
typedef struct md_bpe_pair md_bpe_pair;

/* Scratch of one encode; zero-initialise. */
typedef struct {
    md_bpe_symbol *symbols; /* owned */
    md_bpe_pair *heap;      /* owned */
    size_t symbols_capacity;
    size_t heap_capacity;
    size_t heap_count;
} md_bpe;

/* Appends the ids of one piece: the whole piece if it is an entry and the tokenizer ignores merges,
 * else its bytes merged, lowest rank first, leftmost among equals; time n log n. RT_ENOMEM. */
RT_MUST_CHECK rt_status md_bpe_encode(md_bpe *bpe, const md_image *image, md_text piece,
                                      md_ids *out, rt_err *err);
void md_bpe_fini(md_bpe *bpe);

#endif
