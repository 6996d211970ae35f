/* pretokenize.c - see pretokenize.h. PCRE2 runs with its just-in-time compiler where the system
 * lets it, else interpreted; both under limits, so that a pattern cannot be driven into exponential
 * work. */
#include "model/text/pretokenize.h"

#include "base/check.h"
#include "model/text/utf8.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>

enum {
    HEAP_LIMIT_KIB = 64 * 1024,
    JIT_STACK_START_BYTES = 32 * 1024,
    JIT_STACK_MAX_BYTES = 8 * 1024 * 1024,
    /* A sound pattern takes back a run of characters at most once per piece; this leaves room for
     * several such passes over the longest text. */
    MATCH_LIMIT_BASE = 1000 * 1000,
    MATCH_LIMIT_PER_BYTE = 16,
    PATTERN_NESTING_MAX = 64,
};

struct md_splitter {
    pcre2_code *code; /* owned */
};

struct md_split_scratch {
    pcre2_match_data *match; /* owned, as the rest */
    pcre2_match_context *context;
    pcre2_jit_stack *jit_stack;
};

static rt_status compile(md_splitter *splitter, const md_text_buffer *pattern, rt_err *err)
{
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    uint32_t matches_empty = 0;
    PCRE2_SIZE offset;
    int code;

    if (context == NULL) return rt_fail(err, RT_ENOMEM, "split pattern");
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pcre2_set_parens_nest_limit(context, PATTERN_NESTING_MAX);
    splitter->code =
        pcre2_compile((PCRE2_SPTR)pattern->bytes, pattern->count,
                      PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &offset, context);
    pcre2_compile_context_free(context);
    if (splitter->code == NULL) {
        char text[128] = "";

        pcre2_get_error_message(code, (PCRE2_UCHAR *)text, sizeof(text));
        return rt_fail(err, RT_EUNSUPPORTED,
                       "split pattern: %s (byte %zu of the rewritten pattern)", text,
                       (size_t)offset);
    }
    pcre2_pattern_info(splitter->code, PCRE2_INFO_MATCHEMPTY, &matches_empty);
    if (matches_empty != 0)
        return rt_fail(err, RT_EUNSUPPORTED, "split pattern: it matches the empty text");
    /* Refused where memory may not be both written and run; matching then interprets. */
    (void)pcre2_jit_compile(splitter->code, PCRE2_JIT_COMPLETE);
    return RT_OK;
}

rt_status md_splitter_create(md_text pattern, md_splitter **out, rt_err *err)
{
    md_text_buffer translated = {0};
    md_splitter *splitter = calloc(1, sizeof(*splitter));
    rt_status status;

    if (splitter == NULL) return rt_fail(err, RT_ENOMEM, "split pattern");
    status = md_pattern_translate(pattern, &translated, err);
    if (status != RT_OK) goto fail;
    status = compile(splitter, &translated, err);
    if (status != RT_OK) goto fail;
    md_text_buffer_fini(&translated);
    *out = splitter;
    return RT_OK;
fail:
    md_text_buffer_fini(&translated);
    md_splitter_free(splitter);
    return status;
}

void md_splitter_free(md_splitter *splitter)
{
    if (splitter == NULL) return;
    pcre2_code_free(splitter->code);
    free(splitter);
}

rt_status md_split_scratch_create(const md_splitter *splitter, md_split_scratch **out, rt_err *err)
{
    md_split_scratch *scratch = calloc(1, sizeof(*scratch));

    if (scratch == NULL) return rt_fail(err, RT_ENOMEM, "split scratch");
    scratch->match = pcre2_match_data_create_from_pattern(splitter->code, NULL);
    scratch->context = pcre2_match_context_create(NULL);
    scratch->jit_stack = pcre2_jit_stack_create(JIT_STACK_START_BYTES, JIT_STACK_MAX_BYTES, NULL);
    if (scratch->match == NULL || scratch->context == NULL) {
        md_split_scratch_free(scratch);
        return rt_fail(err, RT_ENOMEM, "split scratch");
    }
    pcre2_set_heap_limit(scratch->context, HEAP_LIMIT_KIB);
    if (scratch->jit_stack != NULL)
        pcre2_jit_stack_assign(scratch->context, NULL, scratch->jit_stack);
    *out = scratch;
    return RT_OK;
}

void md_split_scratch_free(md_split_scratch *scratch)
{
    if (scratch == NULL) return;
    pcre2_match_data_free(scratch->match);
    pcre2_match_context_free(scratch->context);
    pcre2_jit_stack_free(scratch->jit_stack);
    free(scratch);
}

/* One search in well-formed text from `from`; false in *found when there is no further match. */
static rt_status search(const md_splitter *splitter, md_split_scratch *scratch, md_text text,
                        size_t from, bool *found, rt_err *err)
{
    PCRE2_SPTR subject = (PCRE2_SPTR)text.bytes;
    int count = pcre2_match(splitter->code, subject, text.count, from, PCRE2_NO_UTF_CHECK,
                            scratch->match, scratch->context);

    if (count == PCRE2_ERROR_JIT_STACKLIMIT)
        count = pcre2_match(splitter->code, subject, text.count, from,
                            PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, scratch->match, scratch->context);
    if (count == PCRE2_ERROR_NOMEMORY) return rt_fail(err, RT_ENOMEM, "splitting text");
    if (count < 0 && count != PCRE2_ERROR_NOMATCH) {
        char message[128] = "";

        pcre2_get_error_message(count, (PCRE2_UCHAR *)message, sizeof(message));
        return rt_fail(err, RT_EINVAL, "splitting text: %s (at byte %zu of a stretch of %zu)",
                       message, from, text.count);
    }
    *found = count > 0;
    return RT_OK;
}

static rt_status cut_utf8(const md_splitter *splitter, md_split_scratch *scratch, md_text text,
                          md_piece_fn piece, void *context, rt_err *err)
{
    size_t at = 0;

    pcre2_set_match_limit(scratch->context,
                          MATCH_LIMIT_BASE + MATCH_LIMIT_PER_BYTE * (uint32_t)text.count);
    while (at < text.count) {
        const PCRE2_SIZE *span;
        size_t begin = text.count;
        size_t end = text.count;
        bool found = false;

        RT_TRY(search(splitter, scratch, text, at, &found, err));
        if (found) {
            span = pcre2_get_ovector_pointer(scratch->match);
            begin = span[0];
            end = span[1];
            RT_ASSERT(begin >= at && end > begin && end <= text.count);
        }
        if (begin > at) RT_TRY(piece(context, (md_text){text.bytes + at, begin - at}, err));
        if (end > begin) RT_TRY(piece(context, (md_text){text.bytes + begin, end - begin}, err));
        at = end;
    }
    return RT_OK;
}

/* Length of the well-formed (or, with `broken`, ill-formed) run at the start of text. */
static size_t run_length(md_text text, bool broken)
{
    size_t at = 0;

    while (at < text.count) {
        size_t length;
        uint32_t code;
        bool whole =
            md_utf8_next(text.bytes + at, text.count - at, &length, &code) == MD_UTF8_WHOLE;

        if (whole == broken) break;
        at += length;
    }
    return at;
}

rt_status md_splitter_cut(const md_splitter *splitter, md_split_scratch *scratch, md_text text,
                          md_piece_fn piece, void *context, rt_err *err)
{
    bool broken = false;

    RT_ASSERT(text.count <= MD_TEXT_BYTES_MAX);
    while (text.count > 0) {
        md_text run = {text.bytes, run_length(text, broken)};

        if (run.count > 0 && broken) RT_TRY(piece(context, run, err));
        if (run.count > 0 && !broken) RT_TRY(cut_utf8(splitter, scratch, run, piece, context, err));
        text.bytes += run.count;
        text.count -= run.count;
        broken = !broken;
    }
    return RT_OK;
}
