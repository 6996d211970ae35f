/* pattern.c - rewrites a split pattern from Oniguruma's syntax to PCRE2's, refusing what could mean
 * something else there. A list of what is known to agree, not a list of what is known to differ: an
 * unseen construct is an error at conversion, not a wrong token at run time. */
#include "model/text/pretokenize.h"

#include <ctype.h>
#include <string.h>

/* Unicode White_Space. PCRE2's own \s adds U+180E even with PCRE2_UCP. */
#define WHITE_SPACE                                                                                \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"    \
    "\\x{205f}\\x{3000}"

enum { GROUPS_MAX = 64 };

typedef struct {
    const char *at;
    const char *end;
    const char *begin;
    md_text_buffer *out;
    rt_err *err;
    uint32_t groups;
    bool caseless[GROUPS_MAX + 1]; /* per open group, [0] is the top */
} translator;

static rt_status refuse(const translator *t, const char *what)
{
    return rt_fail(t->err, RT_EUNSUPPORTED, "split pattern: %s at byte %zu is not supported", what,
                   (size_t)(t->at - t->begin));
}

static bool ahead(const translator *t, const char *text)
{
    size_t length = strlen(text);

    return (size_t)(t->end - t->at) >= length && memcmp(t->at, text, length) == 0;
}

/* Copies length bytes of the pattern as they are. */
static rt_status keep(translator *t, size_t length)
{
    RT_TRY(md_text_buffer_append(t->out, t->at, length, t->err));
    t->at += length;
    return RT_OK;
}

static rt_status put(translator *t, const char *text, size_t skip)
{
    RT_TRY(md_text_buffer_puts(t->out, text, t->err));
    t->at += skip;
    return RT_OK;
}

/* \p{L}, \P{Nd}, \p{Han}: general categories and the one script that both spell alike. */
static rt_status property(translator *t)
{
    const char *name = t->at + 3;
    const char *close;
    size_t length;

    if (t->end - t->at < 5 || t->at[2] != '{') return refuse(t, "\\p without a braced name");
    close = memchr(name, '}', (size_t)(t->end - name));
    if (close == NULL) return refuse(t, "\\p without a closing brace");
    length = (size_t)(close - name);
    if (length == 3 && memcmp(name, "Han", 3) == 0) return keep(t, length + 4);
    if (length < 1 || length > 2 || strchr("CLMNPSZ", name[0]) == NULL)
        return refuse(t, "this Unicode property");
    if (length == 2 && !(name[1] >= 'a' && name[1] <= 'z'))
        return refuse(t, "this Unicode property");
    if (length == 2 && name[0] == 'L' && t->caseless[t->groups])
        return refuse(t, "a letter-case property inside (?i:...)");
    return keep(t, length + 4);
}

/* What a backslash means alike inside and outside a class. */
static rt_status common_escape(translator *t)
{
    if (t->end - t->at < 2) return refuse(t, "a backslash at the end");
    switch (t->at[1]) {
    case 'r':
    case 'n':
    case 't':
        return keep(t, 2);
    case 'p':
    case 'P':
        return property(t);
    case 'd':
        return put(t, "\\p{Nd}", 2);
    default:
        if (ispunct((unsigned char)t->at[1])) return keep(t, 2);
        return refuse(t, "this escape");
    }
}

static rt_status class_escape(translator *t)
{
    char kind = t->end - t->at < 2 ? '\0' : t->at[1];

    if (kind == 's') {
        RT_TRY(put(t, WHITE_SPACE, 2));
    } else {
        RT_TRY(common_escape(t));
    }
    /* As the start of a range these would swallow what follows. */
    if ((kind == 's' || kind == 'd' || kind == 'p' || kind == 'P') && t->at < t->end &&
        *t->at == '-')
        return refuse(t, "a range that starts with a class");
    return RT_OK;
}

static rt_status char_class(translator *t)
{
    RT_TRY(keep(t, ahead(t, "[^") ? 2 : 1));
    if (ahead(t, "]")) return refuse(t, "] as the first of a class");
    while (t->at < t->end && *t->at != ']') {
        if (*t->at == '[') return refuse(t, "a class within a class");
        if (ahead(t, "&&")) return refuse(t, "&& in a class");
        if (*t->at == '\\') {
            RT_TRY(class_escape(t));
        } else {
            RT_TRY(keep(t, 1));
        }
    }
    if (t->at == t->end) return refuse(t, "a class without an end");
    return keep(t, 1);
}

static rt_status group_open(translator *t)
{
    bool caseless = t->caseless[t->groups];
    size_t length = 1;

    if (ahead(t, "(?i:")) {
        caseless = true;
        length = 4;
    } else if (ahead(t, "(?:") || ahead(t, "(?=") || ahead(t, "(?!")) {
        length = 3;
    } else if (ahead(t, "(?") || ahead(t, "(*")) {
        return refuse(t, "this kind of group");
    }
    if (t->groups == GROUPS_MAX) return refuse(t, "deeper nesting");
    t->caseless[++t->groups] = caseless;
    return keep(t, length);
}

static rt_status group_close(translator *t)
{
    if (t->groups == 0) return refuse(t, "a ) without its (");
    t->groups--;
    return keep(t, 1);
}

/* {2}, {1,3}, {2,}. Oniguruma's {,n} and its reading of {n}+ and {n}? differ from PCRE2's. */
static rt_status braces(translator *t)
{
    const char *scan = t->at + 1;
    const char *digits = scan;

    while (scan < t->end && isdigit((unsigned char)*scan))
        scan++;
    if (scan == digits) return refuse(t, "{ that is no repeat count");
    if (scan < t->end && *scan == ',') scan++;
    while (scan < t->end && isdigit((unsigned char)*scan))
        scan++;
    if (scan == t->end || *scan != '}') return refuse(t, "{ that is no repeat count");
    RT_TRY(keep(t, (size_t)(scan - t->at) + 1));
    if (ahead(t, "+") || ahead(t, "?") || ahead(t, "*")) return refuse(t, "a repeat after a count");
    return RT_OK;
}

static rt_status item(translator *t)
{
    switch (*t->at) {
    case '\\':
        if (ahead(t, "\\s")) return put(t, "[" WHITE_SPACE "]", 2);
        if (ahead(t, "\\S")) return put(t, "[^" WHITE_SPACE "]", 2);
        return common_escape(t);
    case '[':
        return char_class(t);
    case '(':
        return group_open(t);
    case ')':
        return group_close(t);
    case '{':
        return braces(t);
    case '^':
    case '$':
    case '.':
    case '}':
    case ']':
        return refuse(t, "an unescaped ^ $ . } or ]");
    default:
        return keep(t, 1);
    }
}

rt_status md_pattern_translate(md_text pattern, md_text_buffer *out, rt_err *err)
{
    translator t = {
        .at = pattern.bytes,
        .begin = pattern.bytes,
        .end = pattern.bytes + pattern.count,
        .out = out,
        .err = err,
    };

    if (pattern.count == 0) return rt_fail(err, RT_EUNSUPPORTED, "the split pattern is empty");
    while (t.at < t.end)
        RT_TRY(item(&t));
    if (t.groups != 0) return refuse(&t, "a group without an end");
    return RT_OK;
}
