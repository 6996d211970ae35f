/* stream.h - ids in, one by one; whole UTF-8 code points out; stop texts cut exactly.
 *
 * A token may end inside a code point, so an incomplete tail is held back until it is whole. Bytes
 * that can no longer become a code point turn into U+FFFD, one per maximal ill-formed part, as
 * Python's decode(errors="replace") does: the joined output equals decoding all ids at once.
 *
 * Stop texts: text that could still grow into one is held back too. The first stop text to be
 * completed ends the stream (of several completed by the same byte the longest); neither it nor
 * anything after it comes out. The outcome does not depend on how the text falls into tokens.
 *
 * Allocates at create only. Threads: one owner. */
#ifndef MODEL_TEXT_STREAM_H
#define MODEL_TEXT_STREAM_H

#include "model/text/tokenizer.h"

enum {
    MD_STREAM_STOPS_MAX = 64,
    MD_STREAM_STOP_BYTES_MAX = 1024,
    MD_STREAM_SHOWN_MAX = 8,
};

typedef struct md_stream md_stream;

typedef struct {
    const md_tokenizer *tokenizer; /* borrowed, outlives the stream */
    bool skip_special;             /* tokens marked special come out as nothing */
    const md_text *stops;          /* copied */
    uint32_t stop_count;           /* 0: none */
    /* [shown_count] special tokens that come out all the same. */
    uint32_t shown[MD_STREAM_SHOWN_MAX];
    uint32_t shown_count;
} md_stream_spec;

/* Errors  RT_EINVAL  an empty or too long stop text, or too many of them (or of shown tokens)
 *         RT_ENOMEM */
RT_MUST_CHECK rt_status md_stream_create(const md_stream_spec *spec, md_stream **out, rt_err *err);
void md_stream_free(md_stream *stream); /* NULL allowed */

/* Takes one id; *text is what can be shown now (often nothing), borrowed until the next call on the
 * stream. Returns false when a stop text was completed: the stream has ended and further calls give
 * nothing and false. Ids without a token add nothing. */
bool md_stream_feed(md_stream *stream, uint32_t id, md_text *text);

/* The end: *text is what was held back, an incomplete code point as U+FFFD. Returns false when that
 * completes a stop text. The stream has ended afterwards. */
bool md_stream_finish(md_stream *stream, md_text *text);

/* Index of the stop text that ended the stream, or -1. */
int32_t md_stream_stop_index(const md_stream *stream);

/* Back to the state after create, for another sequence. */
void md_stream_reset(md_stream *stream);

#endif
