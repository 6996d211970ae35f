/* tokenizer.h - text to token ids and back: byte-level BPE as published in a Hugging Face
 * tokenizer.json, compiled once (by convert) into an image that is used in place.
 *
 * Why an image: the release's tokenizer.json is 20 MB of JSON with 321,649 merges. Reading and
 * hashing it takes seconds; the image is a flat, checksummed file whose hash tables are already
 * built, so opening it costs one pass over the bytes and one regular-expression compile.
 *
 * What is supported is what GLM-5.x uses: BPE without dropout, unk or byte fallback; no normaliser;
 * pre-tokeniser Split(Regex, Isolated) then ByteLevel without its own regex; added tokens matched
 * as exact bytes. Everything else is refused by name, never guessed.
 *
 * Text that is not UTF-8: each maximal run of bytes that belongs to no well-formed code point is
 * one piece of its own and is encoded by its bytes; the well-formed stretches around it are split
 * separately. So every byte string can be encoded and decodes to itself.
 *
 * Threads: an open tokenizer never changes; any number of threads may use it at once. */
#ifndef MODEL_TEXT_TOKENIZER_H
#define MODEL_TEXT_TOKENIZER_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    MD_TOKENIZER_VERSION = 1,       /* of the image; another version is refused */
    MD_TOKENIZER_IDS_MAX = 1 << 20, /* ids an image may hold; GLM-5.x has 154,856 */
    MD_TOKENIZER_MERGES_MAX = 1 << 22,
    MD_TEXT_BYTES_MAX = 1 << 26, /* of one encode: far beyond a million-token context */
};

typedef struct md_tokenizer md_tokenizer;

/* A view of bytes; not NUL-terminated, may hold NULs. bytes may be NULL when count is 0. */
typedef struct {
    const char *bytes;
    size_t count;
} md_text;

/* A growing list of ids. Zero-initialise before the first use. */
typedef struct {
    uint32_t *ids; /* owned */
    size_t count;
    size_t capacity;
} md_ids;

void md_ids_fini(md_ids *ids); /* leaves it empty and usable again */
RT_MUST_CHECK rt_status md_ids_push(md_ids *ids, uint32_t id, rt_err *err); /* RT_ENOMEM */

/* Compiles tokenizer.json (bytes long, needs no NUL) into an image: little-endian, versioned, with
 * an XXH3 checksum; the same JSON gives the same bytes on every machine. *image is malloc'd.
 *   Errors  RT_EFORMAT       not JSON, wrong types, an id twice, out of range or missing, a merge
 * of or into something that is not in the vocabulary, a byte without a token RT_EUNSUPPORTED  a
 * feature this tokenizer does not have, by name RT_ENOMEM */
RT_MUST_CHECK rt_status md_tokenizer_compile(const char *json, size_t bytes, uint8_t **image,
                                             size_t *image_bytes, rt_err *err);

/* Opens an image. It is borrowed (read, or mapped by the caller; any alignment) and must outlive
 * the tokenizer. The checksum and every offset, id and table are checked. Errors  RT_EFORMAT not an
 * image of this version, or damaged: says where RT_EUNSUPPORTED  the split pattern uses syntax that
 * is not supported RT_ENOMEM */
RT_MUST_CHECK rt_status md_tokenizer_open(const void *image, size_t bytes, md_tokenizer **out,
                                          rt_err *err);
void md_tokenizer_close(md_tokenizer *tokenizer); /* NULL allowed */

/* Ids run from 0 to vocab-1. It may be smaller than the model's vocabulary: the last rows of an
 * embedding are often padding without a token. */
uint32_t md_tokenizer_vocab(const md_tokenizer *tokenizer);
/* Length of the longest token in bytes; at least 1. */
uint32_t md_tokenizer_token_bytes_max(const md_tokenizer *tokenizer);

typedef struct {
    md_text text; /* the bytes the token stands for; borrowed from the image */
    bool added;   /* cut out of the text before it is split (control tokens) */
    bool special; /* left out by decode with skip_special */
} md_token;

/* False for an id without a token. */
bool md_tokenizer_token(const md_tokenizer *tokenizer, uint32_t id, md_token *out);
/* The id whose bytes are exactly text: added tokens first. False when there is none. */
bool md_tokenizer_find(const md_tokenizer *tokenizer, md_text text, uint32_t *id);

typedef enum {
    MD_MATCH_ALL,    /* every added token, anywhere, leftmost-longest: what transformers does */
    MD_MATCH_NONE,   /* text is only text: "<|user|>" becomes the pieces of its characters */
    MD_MATCH_LISTED, /* only the added tokens listed, leftmost-longest */
} md_match_mode;

typedef struct {
    md_match_mode mode;
    const uint32_t
        *ids; /* MD_MATCH_LISTED only: ids of added tokens, any order; others never match */
    size_t count;
} md_match;

/* Appends the ids of text to out. On failure out is as it was.
 *   Errors  RT_EINVAL  text longer than MD_TEXT_BYTES_MAX, or one that drives the split pattern
 *                      beyond its work limit
 *           RT_ENOMEM */
RT_MUST_CHECK rt_status md_tokenizer_encode(const md_tokenizer *tokenizer, md_text text,
                                            md_match match, md_ids *out, rt_err *err);

/* Calls piece() for each piece that the text would be cut into, in order: added tokens and split
 * pieces. For tests and for looking at a tokenizer. Errors as md_tokenizer_encode, and whatever
 * piece returns. */
typedef rt_status (*md_piece_fn)(void *context, md_text piece, rt_err *err);
RT_MUST_CHECK rt_status md_tokenizer_split(const md_tokenizer *tokenizer, md_text text,
                                           md_match match, md_piece_fn piece, void *context,
                                           rt_err *err);

/* The bytes of the ids, joined, in malloc'd memory with a NUL after the end. They need not be UTF-8
 * (ids can end inside a code point): stream.h makes them so. Ids without a token add nothing.
 *   Errors  RT_ENOMEM */
RT_MUST_CHECK rt_status md_tokenizer_decode(const md_tokenizer *tokenizer, const uint32_t *ids,
                                            size_t count, bool skip_special, char **text,
                                            size_t *bytes, rt_err *err);

#endif
