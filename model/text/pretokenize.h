/* pretokenize.h - cuts text into pieces by the tokenizer's regular expression, with PCRE2.
 *
 * The patterns are written for Oniguruma (what the tokenizers library uses). The syntax that means
 * the same in both is passed on; what differs is rewritten (\s and \S: PCRE2 counts U+180E as a
 * space, Unicode does not; \d) or refused (^ $ . \w \h \b, nested classes, &&, look-behind, ...).
 *
 * Threads: an md_splitter never changes; an md_split_scratch has one owner. */
#ifndef MODEL_TEXT_PRETOKENIZE_H
#define MODEL_TEXT_PRETOKENIZE_H

#include "model/text/text_buffer.h"
#include "model/text/tokenizer.h"

typedef struct md_splitter md_splitter;
typedef struct md_split_scratch md_split_scratch;

/* Rewrites an Oniguruma pattern for PCRE2. RT_EUNSUPPORTED names the construct and where it is. */
RT_MUST_CHECK rt_status md_pattern_translate(md_text pattern, md_text_buffer *out, rt_err *err);

/* RT_EUNSUPPORTED also for a pattern that PCRE2 refuses or that matches the empty text. RT_ENOMEM.
 */
RT_MUST_CHECK rt_status md_splitter_create(md_text pattern, md_splitter **out, rt_err *err);
void md_splitter_free(md_splitter *splitter);

RT_MUST_CHECK rt_status md_split_scratch_create(const md_splitter *splitter, md_split_scratch **out,
                                                rt_err *err);
void md_split_scratch_free(md_split_scratch *scratch);

/* Calls piece() for every piece of text: matches, what lies between them, and runs of bytes that
 * are not UTF-8. Errors: RT_EINVAL when the pattern's work limit is reached; what piece returns. */
RT_MUST_CHECK rt_status md_splitter_cut(const md_splitter *splitter, md_split_scratch *scratch,
                                        md_text text, md_piece_fn piece, void *context,
                                        rt_err *err);

#endif
