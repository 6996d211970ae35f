/* utf8.c - see utf8.h. Second-byte ranges are those of the Unicode standard, table 3-7: they
 * exclude overlong forms, surrogates and values beyond U+10FFFF, and make "maximal part" well
 * defined. */
#include "model/text/utf8.h"

#include "base/check.h"

static size_t lead_length(uint8_t lead, uint8_t *low, uint8_t *high)
{
    *low = 0x80;
    *high = 0xbf;
    if (lead < 0x80) return 1;
    if (lead < 0xc2) return 0;
    if (lead < 0xe0) return 2;
    if (lead < 0xf0) {
        if (lead == 0xe0) *low = 0xa0;
        if (lead == 0xed) *high = 0x9f;
        return 3;
    }
    if (lead < 0xf5) {
        if (lead == 0xf0) *low = 0x90;
        if (lead == 0xf4) *high = 0x8f;
        return 4;
    }
    return 0;
}

md_utf8_state md_utf8_next(const char *bytes, size_t count, size_t *length, uint32_t *code)
{
    const uint8_t *in = (const uint8_t *)bytes;
    uint8_t low, high;
    size_t want;
    uint32_t value;

    RT_ASSERT(count > 0);
    want = lead_length(in[0], &low, &high);
    if (want == 0) {
        *length = 1;
        return MD_UTF8_BROKEN;
    }
    value = want == 1 ? in[0] : in[0] & (0x7fu >> want);
    for (size_t i = 1; i < want; i++) {
        if (i == count) {
            *length = i;
            return MD_UTF8_PARTIAL;
        }
        if (in[i] < low || in[i] > high) {
            *length = i;
            return MD_UTF8_BROKEN;
        }
        value = value << 6 | (in[i] & 0x3fu);
        low = 0x80;
        high = 0xbf;
    }
    *length = want;
    *code = value;
    return MD_UTF8_WHOLE;
}

size_t md_utf8_put(uint32_t code, char bytes[4])
{
    RT_ASSERT(code <= 0x10ffff && (code < 0xd800 || code > 0xdfff));
    if (code < 0x80) {
        bytes[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        bytes[0] = (char)(0xc0 | code >> 6);
        bytes[1] = (char)(0x80 | (code & 0x3f));
        return 2;
    }
    if (code < 0x10000) {
        bytes[0] = (char)(0xe0 | code >> 12);
        bytes[1] = (char)(0x80 | (code >> 6 & 0x3f));
        bytes[2] = (char)(0x80 | (code & 0x3f));
        return 3;
    }
    bytes[0] = (char)(0xf0 | code >> 18);
    bytes[1] = (char)(0x80 | (code >> 12 & 0x3f));
    bytes[2] = (char)(0x80 | (code >> 6 & 0x3f));
    bytes[3] = (char)(0x80 | (code & 0x3f));
    return 4;
}

bool md_unicode_is_space(uint32_t code)
{
    if (code <= 0x20) return code == 0x20 || (code >= 0x09 && code <= 0x0d) || code >= 0x1c;
    if (code >= 0x2000 && code <= 0x200a) return true;
    switch (code) {
    case 0x85:
    case 0xa0:
    case 0x1680:
    case 0x2028:
    case 0x2029:
    case 0x202f:
    case 0x205f:
    case 0x3000:
        return true;
    default:
        return false;
    }
}
