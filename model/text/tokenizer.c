/* tokenizer.c - see tokenizer.h. Added tokens are cut out first, the gaps are split by the pattern,
 * each piece goes through bpe.c. */
#include "model/text/tokenizer_internal.h"

#include "base/check.h"

#include <stdlib.h>

struct md_tokenizer {
    md_image image; /* into borrowed bytes */
    md_splitter *splitter;
    bool added_first[256]; /* bytes that an added token starts with */
};

/* ---- lists of ids ---- */

void md_ids_fini(md_ids *ids)
{
    free(ids->ids);
    *ids = (md_ids){0};
}

rt_status md_ids_push(md_ids *ids, uint32_t id, rt_err *err)
{
    if (ids->count == ids->capacity) {
        size_t capacity = ids->capacity == 0 ? 64 : 2 * ids->capacity;
        uint32_t *grown = realloc(ids->ids, capacity * sizeof(*grown));

        if (grown == NULL) return rt_fail(err, RT_ENOMEM, "a list of %zu ids", capacity);
        ids->ids = grown;
        ids->capacity = capacity;
    }
    ids->ids[ids->count++] = id;
    return RT_OK;
}

/* ---- compile, open, look up ---- */

rt_status md_tokenizer_compile(const char *json, size_t bytes, uint8_t **image, size_t *image_bytes,
                               rt_err *err)
{
    md_tokenizer_source source = {0};
    md_splitter *splitter = NULL;
    rt_status status = md_tokenizer_source_read(json, bytes, &source, err);

    /* A pattern that cannot be used is found now, not when the model starts. */
    if (status == RT_OK) {
        md_text pattern = {source.pattern.bytes, source.pattern.count};

        status = md_splitter_create(pattern, &splitter, err);
    }
    if (status == RT_OK) status = md_image_build(&source, image, image_bytes, err);
    md_splitter_free(splitter);
    md_tokenizer_source_fini(&source);
    return status;
}

rt_status md_tokenizer_open(const void *image, size_t bytes, md_tokenizer **out, rt_err *err)
{
    md_tokenizer *tokenizer = calloc(1, sizeof(*tokenizer));
    md_text pattern;
    rt_status status;

    if (tokenizer == NULL) return rt_fail(err, RT_ENOMEM, "tokenizer");
    status = md_image_open(image, bytes, &tokenizer->image, err);
    if (status != RT_OK) goto fail;
    pattern =
        (md_text){(const char *)tokenizer->image.pattern, tokenizer->image.header.pattern_bytes};
    status = md_splitter_create(pattern, &tokenizer->splitter, err);
    if (status != RT_OK) goto fail;
    for (uint32_t i = 0; i < tokenizer->image.header.added_count; i++) {
        uint32_t id = md_image_u32(tokenizer->image.added, i);

        tokenizer->added_first[(uint8_t)md_image_token(&tokenizer->image, id).bytes[0]] = true;
    }
    *out = tokenizer;
    return RT_OK;
fail:
    md_tokenizer_close(tokenizer);
    return status;
}

void md_tokenizer_close(md_tokenizer *tokenizer)
{
    if (tokenizer == NULL) return;
    md_splitter_free(tokenizer->splitter);
    free(tokenizer);
}

uint32_t md_tokenizer_vocab(const md_tokenizer *tokenizer)
{
    return tokenizer->image.header.token_count;
}

uint32_t md_tokenizer_token_bytes_max(const md_tokenizer *tokenizer)
{
    return tokenizer->image.header.token_length_max;
}

bool md_tokenizer_token(const md_tokenizer *tokenizer, uint32_t id, md_token *out)
{
    uint8_t flags;

    if (id >= tokenizer->image.header.token_count) return false;
    flags = tokenizer->image.token_flags[id];
    if (flags == 0) return false;
    out->text = md_image_token(&tokenizer->image, id);
    out->added = (flags & MD_TOKEN_ADDED) != 0;
    out->special = (flags & MD_TOKEN_SPECIAL) != 0;
    return true;
}

/* ---- added tokens ---- */

static bool allowed(md_match match, uint32_t id)
{
    if (match.mode == MD_MATCH_ALL) return true;
    for (size_t i = 0; i < match.count; i++)
        if (match.ids[i] == id) return true;
    return false;
}

/* The first of added[low..high) that has a byte of at least `byte` at depth; all of them share the
 * bytes before it and are longer than depth. */
static uint32_t added_bound(const md_image *image, uint32_t low, uint32_t high, size_t depth,
                            uint32_t byte)
{
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        md_text token = md_image_token(image, md_image_u32(image->added, middle));

        if ((uint8_t)token.bytes[depth] < byte) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* The longest added token that text starts with: the sorted list is narrowed byte by byte, and the
 * token that ends at a depth is the first of what is left there. */
static bool added_at(const md_image *image, md_text text, md_match match, uint32_t *id)
{
    uint32_t low = 0, high = image->header.added_count;
    bool found = false;

    for (size_t depth = 0; low < high; depth++) {
        uint32_t first = md_image_u32(image->added, low);
        uint32_t byte;

        if (md_image_token(image, first).count == depth) {
            if (allowed(match, first)) {
                *id = first;
                found = true;
            }
            low++;
        }
        if (depth == text.count) break;
        byte = (uint8_t)text.bytes[depth];
        low = added_bound(image, low, high, depth, byte);
        high = added_bound(image, low, high, depth, byte + 1);
    }
    return found;
}

bool md_tokenizer_find(const md_tokenizer *tokenizer, md_text text, uint32_t *id)
{
    const md_image *image = &tokenizer->image;
    md_match all = {.mode = MD_MATCH_ALL};

    if (text.count == 0) return false;
    if (added_at(image, text, all, id) && md_image_token(image, *id).count == text.count)
        return true;
    return md_image_find(image, text, id);
}

/* ---- splitting and encoding ---- */

typedef rt_status (*added_fn)(void *context, uint32_t id, md_text text, rt_err *err);

typedef struct {
    const md_tokenizer *tokenizer;
    md_match match;
    md_piece_fn piece;
    added_fn added;
    void *context;
} walk_spec;

static rt_status walk(const walk_spec *spec, md_split_scratch *scratch, md_text text, rt_err *err)
{
    const md_tokenizer *tokenizer = spec->tokenizer;
    const md_splitter *splitter = tokenizer->splitter;
    size_t gap = 0, at = spec->match.mode == MD_MATCH_NONE ? text.count : 0;

    while (at < text.count) {
        md_text rest = {text.bytes + at, text.count - at};
        md_text before = {text.bytes + gap, at - gap};
        uint32_t id;

        if (!tokenizer->added_first[(uint8_t)text.bytes[at]] ||
            !added_at(&tokenizer->image, rest, spec->match, &id)) {
            at++;
            continue;
        }
        rest.count = md_image_token(&tokenizer->image, id).count;
        RT_TRY(md_splitter_cut(splitter, scratch, before, spec->piece, spec->context, err));
        RT_TRY(spec->added(spec->context, id, rest, err));
        at += rest.count;
        gap = at;
    }
    text = (md_text){text.bytes + gap, text.count - gap};
    return md_splitter_cut(splitter, scratch, text, spec->piece, spec->context, err);
}

static rt_status walk_text(const walk_spec *spec, md_text text, rt_err *err)
{
    md_split_scratch *scratch = NULL;
    rt_status status;

    if (text.count > MD_TEXT_BYTES_MAX)
        return rt_fail(err, RT_EINVAL, "a text of %zu bytes: at most %d are encoded at once",
                       text.count, MD_TEXT_BYTES_MAX);
    if (text.count == 0) return RT_OK;
    RT_TRY(md_split_scratch_create(spec->tokenizer->splitter, &scratch, err));
    status = walk(spec, scratch, text, err);
    md_split_scratch_free(scratch);
    return status;
}

typedef struct {
    const md_image *image;
    md_bpe bpe;
    md_ids *out;
} encoding;

static rt_status encode_piece(void *context, md_text piece, rt_err *err)
{
    encoding *e = context;

    return md_bpe_encode(&e->bpe, e->image, piece, e->out, err);
}

static rt_status encode_added(void *context, uint32_t id, md_text text, rt_err *err)
{
    encoding *e = context;

    (void)text;
    return md_ids_push(e->out, id, err);
}

/* TOKEN:2 text -> pieces -> byte-pair ids. */
rt_status md_tokenizer_encode(const md_tokenizer *tokenizer, md_text text, md_match match,
                              md_ids *out, rt_err *err)
{
    size_t count = out->count;
    encoding e = {.image = &tokenizer->image, .out = out};
    walk_spec spec = {tokenizer, match, encode_piece, encode_added, &e};
    rt_status status = walk_text(&spec, text, err);

    if (status != RT_OK) out->count = count;
    md_bpe_fini(&e.bpe);
    return status;
}

typedef struct {
    md_piece_fn piece;
    void *context;
} splitting;

static rt_status split_piece(void *context, md_text piece, rt_err *err)
{
    splitting *s = context;

    return s->piece(s->context, piece, err);
}

static rt_status split_added(void *context, uint32_t id, md_text text, rt_err *err)
{
    (void)id;
    return split_piece(context, text, err);
}

rt_status md_tokenizer_split(const md_tokenizer *tokenizer, md_text text, md_match match,
                             md_piece_fn piece, void *context, rt_err *err)
{
    splitting s = {piece, context};
    walk_spec spec = {tokenizer, match, split_piece, split_added, &s};

    return walk_text(&spec, text, err);
}

/* ---- decoding ---- */

rt_status md_tokenizer_decode(const md_tokenizer *tokenizer, const uint32_t *ids, size_t count,
                              bool skip_special, char **text, size_t *bytes, rt_err *err)
{
    md_text_buffer buffer = {0};
    rt_status status = md_text_buffer_append(&buffer, "", 0, err);

    for (size_t i = 0; i < count && status == RT_OK; i++) {
        md_token token;

        if (!md_tokenizer_token(tokenizer, ids[i], &token)) continue;
        if (skip_special && token.special) continue;
        status = md_text_buffer_append(&buffer, token.text.bytes, token.text.count, err);
    }
    if (status != RT_OK) {
        md_text_buffer_fini(&buffer);
        return status;
    }
    *text = buffer.bytes;
    *bytes = buffer.count;
    return RT_OK;
}
