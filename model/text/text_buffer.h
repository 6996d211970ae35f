/* text_buffer.h - a growing byte string with a NUL kept after its end.
 *
 * Threads: one owner. */
#ifndef MODEL_TEXT_TEXT_BUFFER_H
#define MODEL_TEXT_TEXT_BUFFER_H

#include "model/text/tokenizer.h"

typedef struct {
    char *bytes; /* owned; NULL until the first append */
    size_t count;
    size_t capacity;
} md_text_buffer;

/* RT_ENOMEM; the buffer is then as it was. */
RT_MUST_CHECK rt_status md_text_buffer_append(md_text_buffer *buffer, const char *bytes,
                                              size_t count, rt_err *err);
RT_MUST_CHECK rt_status md_text_buffer_puts(md_text_buffer *buffer, const char *text, rt_err *err);
void md_text_buffer_fini(md_text_buffer *buffer); /* leaves it empty and usable again */

#endif
