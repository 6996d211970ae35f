/* utf8.h - reading UTF-8 the way Unicode and Python do: well-formed code points, and ill-formed
 * input cut into maximal parts (each of which becomes one U+FFFD where text is shown).
 *
 * Threads: any. */
#ifndef MODEL_TEXT_UTF8_H
#define MODEL_TEXT_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
    MD_UTF8_WHOLE,   /* a well-formed code point */
    MD_UTF8_PARTIAL, /* the input ends inside what could be one */
    MD_UTF8_BROKEN,  /* bytes that cannot start or continue one */
} md_utf8_state;

/* Looks at the start of bytes[0..count), count > 0. *length is how many bytes the state is about,
 * at least 1. *code is set for MD_UTF8_WHOLE only. */
md_utf8_state md_utf8_next(const char *bytes, size_t count, size_t *length, uint32_t *code);

/* Writes code's UTF-8 to bytes; returns its length, 1 to 4. code is a Unicode scalar value. */
size_t md_utf8_put(uint32_t code, char bytes[4]);

/* Python's str.isspace for one code point: what str.strip() removes. */
bool md_unicode_is_space(uint32_t code);

#endif
