/* heat_usage.c - one line at a time, nothing believed. */
#include "placement/heat_usage.h"

#include "base/check.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { FIELDS = 3, SHOWN = 40 /* bytes of a bad line in a message */ };

typedef struct {
    const char *at;
    size_t length;
} field;

typedef struct {
    const char *name;
    uint64_t line;
    const char *text; /* of the line */
    size_t length;
    uint32_t main_layers;
    const pl_heat *heat;
    double *count; /* [layers][experts], owned; negative: not listed */
    pl_heat_usage sum;
} reader;

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* Up to FIELDS fields; returns how many there are, FIELDS + 1 for more. */
static uint32_t split(const char *line, size_t length, field out[FIELDS])
{
    uint32_t count = 0;
    size_t at = 0;

    for (;;) {
        size_t begin;

        while (at < length && is_blank(line[at]))
            at++;
        if (at == length) return count;
        if (count == FIELDS) return FIELDS + 1;
        begin = at;
        while (at < length && !is_blank(line[at]))
            at++;
        out[count++] = (field){line + begin, at - begin};
    }
}

/* Decimal digits only; false when it is none or beyond 2^53. */
static bool parse_count(field f, uint64_t *out)
{
    uint64_t value = 0;

    if (f.length == 0 || f.length > 16) return false;
    for (size_t i = 0; i < f.length; i++) {
        if (f.at[i] < '0' || f.at[i] > '9') return false;
        value = value * 10 + (uint64_t)(f.at[i] - '0');
    }
    *out = value;
    return value <= (uint64_t)PL_HEAT_COUNT_MAX;
}

static bool is_word(field f, const char *word)
{
    return f.length == strlen(word) && memcmp(f.at, word, f.length) == 0;
}

/* The line's beginning, with what a terminal should not be sent as '?'. */
static rt_status bad_line(const reader *r, const char *expected, rt_err *err)
{
    size_t shown = r->length < SHOWN ? r->length : SHOWN;
    char text[SHOWN + 1];

    for (size_t i = 0; i < shown; i++)
        text[i] = r->text[i] >= ' ' && r->text[i] <= '~' ? r->text[i] : '?';
    text[shown] = '\0';
    return rt_fail(err, RT_EFORMAT,
                   "%s: line %" PRIu64 ": expected 'layer expert count'%s, found '%s'%s", r->name,
                   r->line, expected, text, shown < r->length ? "..." : "");
}

/* "-1 layers experts" */
static rt_status check_shape(const reader *r, const field f[FIELDS], rt_err *err)
{
    uint32_t total = pl_heat_layers(r->heat), experts = pl_heat_experts(r->heat);
    uint64_t layers, found;

    if (!parse_count(f[1], &layers) || !parse_count(f[2], &found)) return bad_line(r, "", err);
    if ((layers == total || layers == r->main_layers) && found == experts) return RT_OK;
    return rt_fail(err, RT_EINVAL,
                   "%s: line %" PRIu64 ": expected the shape of this model, %u layers of %u "
                   "experts, found %" PRIu64 " of %" PRIu64,
                   r->name, r->line, r->main_layers, experts, layers, found);
}

static rt_status take_count(reader *r, const field f[FIELDS], rt_err *err)
{
    uint32_t layers = pl_heat_layers(r->heat), experts = pl_heat_experts(r->heat);
    uint64_t layer, expert, count;
    double *place;

    if (!parse_count(f[0], &layer) || !parse_count(f[1], &expert) || !parse_count(f[2], &count))
        return bad_line(r, " in whole numbers up to 2^53", err);
    if (layer >= layers)
        return rt_fail(err, RT_EINVAL,
                       "%s: line %" PRIu64 ": expected a layer below %u, found %" PRIu64, r->name,
                       r->line, layers, layer);
    if (expert >= experts)
        return rt_fail(err, RT_EINVAL,
                       "%s: line %" PRIu64 ": expected an expert below %u, found %" PRIu64, r->name,
                       r->line, experts, expert);
    if (!pl_heat_sparse(r->heat, (uint32_t)layer))
        return rt_fail(err, RT_EINVAL,
                       "%s: line %" PRIu64 ": layer %" PRIu64 " of this model has no experts",
                       r->name, r->line, layer);
    place = &r->count[layer * experts + expert];
    if (*place >= 0)
        return rt_fail(err, RT_EFORMAT,
                       "%s: line %" PRIu64 ": layer %" PRIu64 " expert %" PRIu64
                       " was listed before",
                       r->name, r->line, layer, expert);
    *place = (double)count;
    r->sum.lines++;
    r->sum.selections += (double)count;
    return RT_OK;
}

static rt_status take_line(reader *r, const char *line, size_t length, rt_err *err)
{
    field f[FIELDS];
    uint32_t count = split(line, length, f);
    uint64_t version;

    r->line++;
    r->text = line;
    r->length = length;
    if (count == 0 || f[0].at[0] == '#') return RT_OK;
    if (count != FIELDS) return bad_line(r, "", err);
    if (is_word(f[0], "-1")) return check_shape(r, f, err);
    if (is_word(f[0], "-2")) return parse_count(f[1], &version) ? RT_OK : bad_line(r, "", err);
    return take_count(r, f, err);
}

static rt_status take_lines(reader *r, const char *text, size_t bytes, rt_err *err)
{
    static const char mark[] = "\xef\xbb\xbf"; /* that some editors begin a text with */
    size_t at = bytes >= 3 && memcmp(text, mark, 3) == 0 ? 3 : 0;

    while (at < bytes) {
        const char *end = memchr(text + at, '\n', bytes - at);
        size_t length = end == NULL ? bytes - at : (size_t)(end - (text + at));

        RT_TRY(take_line(r, text + at, length, err));
        at += length + 1;
    }
    if (r->sum.lines == 0)
        return rt_fail(err, RT_EFORMAT, "%s: expected lines 'layer expert count', found none",
                       r->name);
    return RT_OK;
}

rt_status pl_heat_usage_read(const char *text, size_t bytes, uint32_t main_layers, const char *name,
                             pl_heat *heat, pl_heat_usage *out, rt_err *err)
{
    uint32_t layers = pl_heat_layers(heat), experts = pl_heat_experts(heat);
    size_t total = (size_t)layers * experts;
    reader r = {.name = name, .main_layers = main_layers, .heat = heat};
    rt_status status;

    r.count = malloc(total * sizeof(*r.count));
    if (r.count == NULL) return rt_fail(err, RT_ENOMEM, "%s: %zu counts", name, total);
    for (size_t i = 0; i < total; i++)
        r.count[i] = -1;
    status = take_lines(&r, text, bytes, err);
    for (size_t i = 0; status == RT_OK && i < total; i++)
        if (r.count[i] > 0)
            pl_heat_add(heat, (uint32_t)(i / experts), (uint32_t)(i % experts), r.count[i]);
    if (status == RT_OK) *out = r.sum;
    free(r.count);
    return status;
}
