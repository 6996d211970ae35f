/* text.c - one strict UTF-8 step, and the three uses of it. */
#include "transport/text.h"

#include "base/check.h"

#include <stdint.h>
#include <string.h>

/* Bytes of the printable character at text, 0 when there is none: malformed, overlong, a surrogate,
 * beyond U+10FFFF, or a control character. */
static size_t character(const char *text, size_t bytes)
{
    const uint8_t *s = (const uint8_t *)text;
    uint32_t code, least;
    size_t length;

    if (s[0] < 0x80) return s[0] >= 0x20 && s[0] != 0x7f ? 1 : 0;
    if ((s[0] & 0xe0) == 0xc0) {
        length = 2, code = s[0] & 0x1fu, least = 0xa0; /* U+0080..9F are the C1 controls */
    } else if ((s[0] & 0xf0) == 0xe0) {
        length = 3, code = s[0] & 0x0fu, least = 0x800;
    } else if ((s[0] & 0xf8) == 0xf0) {
        length = 4, code = s[0] & 0x07u, least = 0x10000;
    } else {
        return 0;
    }
    if (length > bytes) return 0;
    for (size_t i = 1; i < length; i++) {
        if ((s[i] & 0xc0) != 0x80) return 0;
        code = code << 6 | (s[i] & 0x3fu);
    }
    if (code < least || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) return 0;
    return length;
}

bool tr_text_is_clean(const char *text, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        size_t length = character(text + at, bytes - at);

        if (length == 0) return false;
        at += length;
    }
    return true;
}

size_t tr_text_clean(const char *text, size_t bytes, char *out, size_t out_bytes)
{
    size_t used = 0;

    RT_ASSERT(out_bytes > 0);
    for (size_t at = 0; at < bytes;) {
        size_t length = character(text + at, bytes - at);
        size_t need = length > 0 ? length : 1;

        if (used + need >= out_bytes) break;
        if (length > 0)
            memcpy(out + used, text + at, length);
        else
            out[used] = '?';
        used += need;
        at += need;
    }
    out[used] = '\0';
    return used;
}

size_t tr_text_cut(const char *text, size_t bytes, size_t limit)
{
    size_t cut = limit;

    if (bytes <= limit) return bytes;
    while (cut > 0 && ((uint8_t)text[cut] & 0xc0) == 0x80)
        cut--;
    return cut;
}
