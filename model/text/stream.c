/* stream.c - see stream.h. Bytes of tokens become shown text code point by code point, and shown
 * text passes the stop matcher byte by byte, which is what makes the outcome independent of tokens.
 */
#include "model/text/stream.h"

#include "base/check.h"
#include "model/text/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { UTF8_MAX = 4, REPLACEMENT_BYTES = 3 };
static const char replacement[REPLACEMENT_BYTES + 1] = "\xef\xbf\xbd";

struct md_stream {
    const md_tokenizer *tokenizer; /* borrowed */
    bool skip_special;
    uint32_t shown_ids[MD_STREAM_SHOWN_MAX];
    uint32_t shown_id_count;
    bool ended;
    int32_t stop_index;

    md_text *stops; /* owned, as their bytes */
    uint32_t stop_count;
    char *stop_bytes;

    char tail[UTF8_MAX]; /* an incomplete code point */
    size_t tail_count;

    /* Text not yet given out; its end may still become a stop text. */
    char *text; /* owned */
    size_t text_count;
    size_t text_capacity;
    size_t shown; /* of text, given out by the last call */
};

static rt_status copy_stops(md_stream *stream, const md_stream_spec *spec, rt_err *err)
{
    size_t total = 0;
    char *to;

    if (spec->shown_count > MD_STREAM_SHOWN_MAX)
        return rt_fail(err, RT_EINVAL, "%u shown tokens: at most %d", spec->shown_count,
                       MD_STREAM_SHOWN_MAX);
    if (spec->stop_count > MD_STREAM_STOPS_MAX)
        return rt_fail(err, RT_EINVAL, "%u stop texts: at most %d", spec->stop_count,
                       MD_STREAM_STOPS_MAX);
    for (uint32_t i = 0; i < spec->stop_count; i++) {
        if (spec->stops[i].count == 0) return rt_fail(err, RT_EINVAL, "stop text %u is empty", i);
        if (spec->stops[i].count > MD_STREAM_STOP_BYTES_MAX)
            return rt_fail(err, RT_EINVAL, "stop text %u has %zu bytes: at most %d", i,
                           spec->stops[i].count, MD_STREAM_STOP_BYTES_MAX);
        total += spec->stops[i].count;
    }
    stream->stops = calloc((size_t)spec->stop_count + 1, sizeof(*stream->stops));
    stream->stop_bytes = malloc(total + 1);
    if (stream->stops == NULL || stream->stop_bytes == NULL)
        return rt_fail(err, RT_ENOMEM, "stop texts");
    to = stream->stop_bytes;
    for (uint32_t i = 0; i < spec->stop_count; i++) {
        memcpy(to, spec->stops[i].bytes, spec->stops[i].count);
        stream->stops[i] = (md_text){to, spec->stops[i].count};
        to += spec->stops[i].count;
    }
    stream->stop_count = spec->stop_count;
    return RT_OK;
}

rt_status md_stream_create(const md_stream_spec *spec, md_stream **out, rt_err *err)
{
    md_stream *stream = calloc(1, sizeof(*stream));
    size_t longest = md_tokenizer_token_bytes_max(spec->tokenizer) + UTF8_MAX;
    rt_status status;

    if (stream == NULL) return rt_fail(err, RT_ENOMEM, "stream");
    stream->tokenizer = spec->tokenizer;
    stream->skip_special = spec->skip_special;
    memcpy(stream->shown_ids, spec->shown, sizeof(stream->shown_ids));
    stream->shown_id_count = spec->shown_count;
    status = copy_stops(stream, spec, err);
    if (status != RT_OK) goto fail;
    /* The worst call: a held-back near-stop, and a token of broken bytes only. */
    stream->text_capacity = MD_STREAM_STOP_BYTES_MAX + longest * REPLACEMENT_BYTES;
    stream->text = malloc(stream->text_capacity);
    if (stream->text == NULL) {
        status = rt_fail(err, RT_ENOMEM, "stream");
        goto fail;
    }
    md_stream_reset(stream);
    *out = stream;
    return RT_OK;
fail:
    md_stream_free(stream);
    return status;
}

void md_stream_free(md_stream *stream)
{
    if (stream == NULL) return;
    free(stream->stops);
    free(stream->stop_bytes);
    free(stream->text);
    free(stream);
}

void md_stream_reset(md_stream *stream)
{
    stream->ended = false;
    stream->stop_index = -1;
    stream->tail_count = 0;
    stream->text_count = 0;
    stream->shown = 0;
}

int32_t md_stream_stop_index(const md_stream *stream)
{
    return stream->stop_index;
}

/* ---- stop texts ---- */

/* Whether text[0..text_count) ends with the first `length` bytes of stop. */
static bool ends_with(const md_stream *stream, md_text stop, size_t length)
{
    return length <= stream->text_count &&
           memcmp(stream->text + stream->text_count - length, stop.bytes, length) == 0;
}

/* Ends the stream if a stop text was just completed; the longest of several, then the first. */
static void match_stops(md_stream *stream)
{
    size_t longest = 0;

    for (uint32_t i = 0; i < stream->stop_count; i++) {
        md_text stop = stream->stops[i];

        if (stop.count > longest && ends_with(stream, stop, stop.count)) {
            longest = stop.count;
            stream->stop_index = (int32_t)i;
        }
    }
    if (longest == 0) return;
    stream->text_count -= longest;
    stream->ended = true;
}

/* How many bytes at the end of the text could be the start of a stop text. */
static size_t held_back(const md_stream *stream)
{
    size_t held = 0;

    for (uint32_t i = 0; i < stream->stop_count; i++) {
        for (size_t length = stream->stops[i].count - 1; length > held; length--) {
            if (ends_with(stream, stream->stops[i], length)) {
                held = length;
                break;
            }
        }
    }
    return held;
}

static void show(md_stream *stream, const char *bytes, size_t count)
{
    RT_ASSERT(stream->text_count + count <= stream->text_capacity);
    for (size_t i = 0; i < count && !stream->ended; i++) {
        stream->text[stream->text_count++] = bytes[i];
        match_stops(stream);
    }
}

/* ---- code points ---- */

static void add_byte(md_stream *stream, char byte)
{
    stream->tail[stream->tail_count++] = byte;
    while (stream->tail_count > 0) {
        size_t length;
        uint32_t code;
        md_utf8_state state = md_utf8_next(stream->tail, stream->tail_count, &length, &code);

        if (state == MD_UTF8_PARTIAL) return;
        if (state == MD_UTF8_WHOLE) {
            show(stream, stream->tail, length);
        } else {
            show(stream, replacement, REPLACEMENT_BYTES);
        }
        stream->tail_count -= length;
        memmove(stream->tail, stream->tail + length, stream->tail_count);
    }
}

static void drop_shown(md_stream *stream)
{
    stream->text_count -= stream->shown;
    memmove(stream->text, stream->text + stream->shown, stream->text_count);
    stream->shown = 0;
}

static bool give_out(md_stream *stream, bool all, md_text *text)
{
    stream->shown = stream->text_count - (all || stream->ended ? 0 : held_back(stream));
    *text = (md_text){stream->text, stream->shown};
    return stream->stop_index < 0;
}

static bool is_shown(const md_stream *stream, uint32_t id)
{
    for (uint32_t i = 0; i < stream->shown_id_count; i++)
        if (stream->shown_ids[i] == id) return true;
    return false;
}

/* TOKEN:12 an id -> whole code points, stop texts cut. */
bool md_stream_feed(md_stream *stream, uint32_t id, md_text *text)
{
    md_token token;

    drop_shown(stream);
    *text = (md_text){stream->text, 0};
    if (stream->ended) return false;
    if (!md_tokenizer_token(stream->tokenizer, id, &token)) return true;
    if (token.special && stream->skip_special && !is_shown(stream, id)) return true;
    for (size_t i = 0; i < token.text.count && !stream->ended; i++)
        add_byte(stream, token.text.bytes[i]);
    return give_out(stream, false, text);
}

bool md_stream_finish(md_stream *stream, md_text *text)
{
    bool more;

    drop_shown(stream);
    *text = (md_text){stream->text, 0};
    if (stream->ended) return stream->stop_index < 0;
    if (stream->tail_count > 0) show(stream, replacement, REPLACEMENT_BYTES);
    stream->tail_count = 0;
    more = give_out(stream, true, text);
    stream->ended = true;
    return more;
}
