/* options.c - a verb's table turned into argp's, values written through offsets.
 *
 * argp is told neither to print nor to exit (ARGP_NO_ERRS, ARGP_NO_EXIT): its own error text has no
 * nearest name and no expected range, and only main decides when the process ends. So a failed
 * parse is explained here, from the argument at which getopt stopped. */
#include "base/options.h"

#include "base/budget.h"
#include "base/check.h"
#include "base/options_internal.h"

#include <argp.h>
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    KEY_FIRST = 0x1000, /* option i has key KEY_FIRST + i, or its letter */
    TABLE_MAX = 256,
};

typedef enum { FROM_DEFAULT, FROM_ENVIRONMENT, FROM_LINE } origin;

typedef struct {
    const rt_opt_spec *spec;
    uint32_t count;           /* options in the table */
    struct argp_option *argp; /* owned; [count + 2]: help and the end */
    char **docs;              /* owned, [count] and each: doc with default and twin */
    origin *origins;          /* owned, [count]: where each value is from */
    void *values;             /* borrowed */
    const char **positional;  /* borrowed */
    uint32_t positional_count;
    bool help;
    bool reported; /* the line about the mistake is written */
    char program[RT_OPT_NAME_BYTES];
} parse;

const char *rt_env_get(const char *name)
{
    return getenv(name);
}

/* The one line about a mistake. It ends with where to read on. */
static void complain(parse *p, const char *fmt, ...) RT_PRINTF(2, 3);

static void complain(parse *p, const char *fmt, ...)
{
    char text[512];
    va_list args;

    if (p->reported) return;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    fprintf(stderr, "%s: %s (see %s --help)\n", p->program, text, p->program);
    p->reported = true;
}

static void *field(const parse *p, const rt_opt *option)
{
    return (char *)p->values + option->offset;
}

/* ---- Values ---- */

static bool is_bounded(const rt_opt *option)
{
    return option->min != 0 || option->max != 0;
}

static bool set_uint(const rt_opt *option, const char *text, uint64_t *out)
{
    unsigned long long value;
    char *end;

    /* strtoull would take a sign and leading blanks. */
    if (!isdigit((unsigned char)text[0])) return false;
    errno = 0;
    value = strtoull(text, &end, 10);
    if (errno != 0 || *end != '\0') return false;
    if (is_bounded(option) && ((double)value < option->min || (double)value > option->max))
        return false;
    *out = value;
    return true;
}

static bool set_float(const rt_opt *option, const char *text, double *out)
{
    double value;
    char *end;

    if (text[0] == '\0' || isspace((unsigned char)text[0])) return false;
    value = strtod(text, &end);
    if (*end != '\0' || !isfinite(value)) return false;
    if (is_bounded(option) && (value < option->min || value > option->max)) return false;
    *out = value;
    return true;
}

static bool set_choice(const rt_opt *option, const char *text, const char **out)
{
    size_t text_bytes = strlen(text);

    for (const char *at = option->choices; at != NULL; at = strchr(at, '|')) {
        if (*at == '|') at++;
        if (strcspn(at, "|") == text_bytes && strncmp(at, text, text_bytes) == 0) {
            *out = text;
            return true;
        }
    }
    return false;
}

static bool set_flag(const char *text, bool *out)
{
    static const char *const words[][2] = {{"0", "1"}, {"false", "true"}, {"no", "yes"}};

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        for (int on = 0; on <= 1; on++) {
            if (strcmp(text, words[i][on]) == 0) {
                *out = on == 1;
                return true;
            }
        }
    }
    return false;
}

/* What a value of the option looks like, for an error. */
static void describe_expected(const rt_opt *option, char *text, size_t text_bytes)
{
    switch (option->kind) {
    case RT_OPT_FLAG:
        snprintf(text, text_bytes, "0 or 1");
        return;
    case RT_OPT_TEXT:
        snprintf(text, text_bytes, "text");
        return;
    case RT_OPT_BYTES:
        snprintf(text, text_bytes, "a size such as 512M or 24G");
        return;
    case RT_OPT_CHOICE:
        snprintf(text, text_bytes, "one of %s", option->choices);
        return;
    case RT_OPT_UINT:
    case RT_OPT_FLOAT:
        break;
    }
    if (is_bounded(option))
        snprintf(text, text_bytes, "%s from %.15g to %.15g",
                 option->kind == RT_OPT_UINT ? "a whole number" : "a number", option->min,
                 option->max);
    else
        snprintf(text, text_bytes, "%s",
                 option->kind == RT_OPT_UINT ? "a whole number" : "a number");
}

/* source: the option as the user wrote it, "option --chunk" or "MOESAIC_CHUNK". */
static bool set_value(parse *p, uint32_t index, const char *text, origin from, const char *source)
{
    const rt_opt *option = &p->spec->table[index];
    void *value = field(p, option);
    char expected[128];
    bool ok = false;

    switch (option->kind) {
    case RT_OPT_FLAG:
        ok = set_flag(text, value);
        break;
    case RT_OPT_TEXT:
        *(const char **)value = text;
        ok = true;
        break;
    case RT_OPT_UINT:
        ok = set_uint(option, text, value);
        break;
    case RT_OPT_FLOAT:
        ok = set_float(option, text, value);
        break;
    case RT_OPT_BYTES:
        ok = rt_bytes_parse(text, value, NULL) == RT_OK;
        break;
    case RT_OPT_CHOICE:
        ok = set_choice(option, text, value);
        break;
    }
    if (!ok) {
        describe_expected(option, expected, sizeof(expected));
        complain(p, "%s: expected %s, found \"%s\"", source, expected, text);
        return false;
    }
    p->origins[index] = from;
    if (option->given_offset != 0) *(bool *)((char *)p->values + option->given_offset) = true;
    return true;
}

/* ---- The mistakes of a command line ---- */

/* The option nearest to a mistyped name, NULL when none is near enough to be meant. */
static const char *nearest_name(const parse *p, const char *name, size_t name_bytes)
{
    rt_opt_nearest nearest = rt_opt_nearest_begin(name, name_bytes);

    for (uint32_t i = 0; i < p->count; i++)
        rt_opt_nearest_offer(&nearest, p->spec->table[i].name);
    return nearest.found;
}

/* getopt stopped at "--name" or "--name=value": unknown, ambiguous, or with a value too few or too
 * many. */
static void explain_long(parse *p, const char *argument)
{
    const char *name = argument + 2;
    size_t name_bytes = strcspn(name, "=");
    const rt_opt *match = NULL;
    int shown = (int)(name_bytes < RT_OPT_NAME_BYTES ? name_bytes : RT_OPT_NAME_BYTES);
    uint32_t matches = 0;

    for (uint32_t i = 0; i < p->count; i++) {
        const rt_opt *option = &p->spec->table[i];

        if (strncmp(option->name, name, name_bytes) != 0) continue;
        matches++;
        if (match == NULL || strlen(option->name) == name_bytes) match = option;
        if (strlen(option->name) == name_bytes) {
            matches = 1;
            break;
        }
    }
    if (matches == 0) {
        const char *nearest = nearest_name(p, name, name_bytes);

        if (nearest != NULL)
            complain(p, "unknown option --%.*s: did you mean --%s?", shown, name, nearest);
        else
            complain(p, "unknown option --%.*s", shown, name);
    } else if (matches > 1) {
        complain(p, "option --%.*s is ambiguous", shown, name);
    } else if (match->kind == RT_OPT_FLAG) {
        complain(p, "option --%s: expected no value, found \"%s\"", match->name,
                 name[name_bytes] == '=' ? name + name_bytes + 1 : "");
    } else {
        char expected[128];

        describe_expected(match, expected, sizeof(expected));
        complain(p, "option --%s: expected %s, found nothing", match->name, expected);
    }
}

static const rt_opt *option_by_letter(const parse *p, char letter)
{
    for (uint32_t i = 0; i < p->count; i++) {
        if (p->spec->table[i].key == letter) return &p->spec->table[i];
    }
    return NULL;
}

/* Explains a cluster of letters; false if nothing in it is wrong. */
static bool explain_letters(parse *p, const char *argument)
{
    if (argument[0] != '-' || argument[1] == '-' || argument[1] == '\0') return false;
    for (const char *letter = argument + 1; *letter != '\0'; letter++) {
        const rt_opt *option = option_by_letter(p, *letter);

        if (option == NULL) {
            complain(p, "unknown option -%c", *letter);
            return true;
        }
        if (option->kind == RT_OPT_FLAG) continue;
        if (letter[1] != '\0') return false; /* the rest is its value */
        complain(p, "option -%c: expected %s, found nothing", *letter,
                 option->arg != NULL ? option->arg : "a value");
        return true;
    }
    return false;
}

/* getopt has passed a long option when it fails, but may still stand on a cluster of letters. */
static void explain(parse *p, const struct argp_state *state)
{
    const char *before = state->next > 0 ? state->argv[state->next - 1] : "";
    const char *at = state->next < state->argc ? state->argv[state->next] : "";

    if (p->reported || p->help) return;
    if (strncmp(before, "--", 2) == 0 && before[2] != '\0')
        explain_long(p, before);
    else if (!explain_letters(p, before) && !explain_letters(p, at))
        complain(p, "the command line was not understood");
}

/* ---- Options that exclude each other ---- */

/* Is the name one of "this|that"? */
static bool lists(const char *list, const char *name)
{
    size_t name_bytes = strlen(name);

    for (const char *at = list; at != NULL; at = strchr(at, '|')) {
        if (*at == '|') at++;
        if (strcspn(at, "|") == name_bytes && strncmp(at, name, name_bytes) == 0) return true;
    }
    return false;
}

static bool exclude(const rt_opt *a, const rt_opt *b)
{
    return lists(a->excludes, b->name) || lists(b->excludes, a->name);
}

/* Given, and not a flag that was switched off by its twin. */
static bool is_in_use(const parse *p, uint32_t index, origin from)
{
    const rt_opt *option = &p->spec->table[index];

    return p->origins[index] == from &&
           (option->kind != RT_OPT_FLAG || *(const bool *)field(p, option));
}

/* The first option from there that excludes this one; count: there is none. */
static uint32_t rival_of(const parse *p, uint32_t index, origin from)
{
    uint32_t rival = 0;

    while (rival < p->count && (rival == index || !is_in_use(p, rival, from) ||
                                !exclude(&p->spec->table[index], &p->spec->table[rival])))
        rival++;
    return rival;
}

static bool check_rivals(parse *p, origin from)
{
    for (uint32_t i = 0; i < p->count; i++) {
        char twin[2][RT_OPT_TWIN_BYTES];
        const rt_opt *table = p->spec->table;
        uint32_t rival = is_in_use(p, i, from) ? rival_of(p, i, from) : p->count;

        if (rival == p->count) continue;
        if (from == FROM_LINE)
            complain(p, "give --%s or --%s, not both", table[i].name, table[rival].name);
        else
            complain(p, "%s and %s exclude each other", rt_opt_twin_name(table[i].name, twin[0]),
                     rt_opt_twin_name(table[rival].name, twin[1]));
        return false;
    }
    return true;
}

/* ---- argp ---- */

static error_t take_positional(parse *p, const char *text)
{
    if (p->positional_count == p->spec->positional_max) {
        if (p->spec->positional_max == 0)
            complain(p, "expected no arguments, found \"%s\"", text);
        else
            complain(p, "expected at most %u argument%s (%s), found \"%s\" as well",
                     p->spec->positional_max, p->spec->positional_max == 1 ? "" : "s",
                     p->spec->args_doc, text);
        return EINVAL;
    }
    p->positional[p->positional_count++] = text;
    return 0;
}

static error_t check_positional_count(parse *p)
{
    if (p->positional_count >= p->spec->positional_min) return 0;
    complain(p, "expected %s, found %u argument%s", p->spec->args_doc, p->positional_count,
             p->positional_count == 1 ? "" : "s");
    return EINVAL;
}

static error_t take_option(parse *p, uint32_t index, const char *text)
{
    const rt_opt *option = &p->spec->table[index];
    char source[RT_OPT_NAME_BYTES + 16];

    snprintf(source, sizeof(source), "option --%s", option->name);
    return set_value(p, index, option->kind == RT_OPT_FLAG ? "1" : text, FROM_LINE, source)
               ? 0
               : EINVAL;
}

static error_t on_argp(int key, char *text, struct argp_state *state)
{
    parse *p = state->input;

    switch (key) {
    case ARGP_KEY_ARG:
        return take_positional(p, text);
    case ARGP_KEY_END:
        return check_positional_count(p);
    case ARGP_KEY_ERROR:
        explain(p, state);
        return 0;
    default:
        break;
    }
    for (uint32_t i = 0; i < p->count; i++) {
        if (p->argp[i].key == key) return take_option(p, i, text);
    }
    if (key == p->argp[p->count].key) {
        p->help = true;
        return ECANCELED; /* nothing behind --help matters */
    }
    return ARGP_ERR_UNKNOWN;
}

/* The default as the user would write it; false for those that mean "none" or "automatic". */
static bool format_default(const parse *p, const rt_opt *option, char *text, size_t text_bytes)
{
    const void *value = field(p, option);

    switch (option->kind) {
    case RT_OPT_FLAG:
        snprintf(text, text_bytes, "on");
        return *(const bool *)value;
    case RT_OPT_TEXT:
    case RT_OPT_CHOICE:
        if (*(const char *const *)value == NULL) return false;
        snprintf(text, text_bytes, "%s", *(const char *const *)value);
        return true;
    case RT_OPT_UINT:
        snprintf(text, text_bytes, "%llu", (unsigned long long)*(const uint64_t *)value);
        return *(const uint64_t *)value != 0;
    case RT_OPT_FLOAT:
        snprintf(text, text_bytes, "%.6g", *(const double *)value);
        return *(const double *)value != 0;
    case RT_OPT_BYTES:
        rt_bytes_format(*(const uint64_t *)value, text, text_bytes);
        return *(const uint64_t *)value != 0;
    }
    return false;
}

static char *make_doc(const parse *p, const rt_opt *option)
{
    char twin[RT_OPT_TWIN_BYTES], preset[128];
    char *doc = NULL;
    bool shown = format_default(p, option, preset, sizeof(preset));
    int used;
    /* Without a name of its own the argument shows the choices. */
    bool listed = option->kind == RT_OPT_CHOICE && option->arg != NULL;

    rt_opt_twin_name(option->name, twin);
    if (p->spec->is_program) twin[0] = '\0';
    used = asprintf(
        &doc, "%s%s%s%s%s%s%s%s%s", option->doc, listed ? ": " : "", listed ? option->choices : "",
        shown || twin[0] != '\0' ? " (" : "", shown ? "default " : "", shown ? preset : "",
        shown && twin[0] != '\0' ? ", " : "", twin, shown || twin[0] != '\0' ? ")" : "");
    return used < 0 ? NULL : doc;
}

/* Whether each of "this|that" is an option. */
static bool are_names(const parse *p, const char *list)
{
    for (const char *at = list; at != NULL; at = strchr(at, '|')) {
        uint32_t i = 0;

        if (*at == '|') at++;
        while (i < p->count && (strlen(p->spec->table[i].name) != strcspn(at, "|") ||
                                strncmp(p->spec->table[i].name, at, strcspn(at, "|")) != 0))
            i++;
        if (i == p->count) return false;
    }
    return true;
}

static bool is_table_valid(const parse *p)
{
    for (uint32_t i = 0; i < p->count; i++) {
        const rt_opt *option = &p->spec->table[i];

        if (strlen(option->name) >= RT_OPT_NAME_BYTES || option->doc == NULL) return false;
        if (option->kind == RT_OPT_CHOICE && option->choices == NULL) return false;
        if (option->kind != RT_OPT_FLAG && option->arg == NULL && option->choices == NULL)
            return false;
        if (!are_names(p, option->excludes)) return false;
    }
    return p->count <= TABLE_MAX && p->spec->positional_min <= p->spec->positional_max;
}

static bool build_argp(parse *p)
{
    p->argp = calloc(p->count + 2, sizeof(*p->argp));
    p->docs = calloc(p->count + 1, sizeof(*p->docs));
    p->origins = calloc(p->count + 1, sizeof(*p->origins));
    if (p->argp == NULL || p->docs == NULL || p->origins == NULL) return false;
    for (uint32_t i = 0; i < p->count; i++) {
        const rt_opt *option = &p->spec->table[i];

        p->docs[i] = make_doc(p, option);
        if (p->docs[i] == NULL) return false;
        p->argp[i].name = option->name;
        p->argp[i].key = option->key != 0 ? option->key : KEY_FIRST + (int)i;
        p->argp[i].doc = p->docs[i];
        if (option->kind != RT_OPT_FLAG)
            p->argp[i].arg = option->arg != NULL ? option->arg : option->choices;
    }
    p->argp[p->count].name = "help";
    p->argp[p->count].key = option_by_letter(p, 'h') == NULL ? 'h' : '?';
    p->argp[p->count].doc = "Print this and exit";
    p->argp[p->count].group = -1; /* after the verb's own */
    return true;
}

static void free_parse(parse *p)
{
    for (uint32_t i = 0; p->docs != NULL && i < p->count; i++)
        free(p->docs[i]);
    free(p->docs);
    free(p->argp);
    free(p->origins);
}

/* Twins of options that the command line left alone; an empty twin counts as unset, and so does one
 * that an option of the command line excludes. */
static bool take_environment(parse *p)
{
    for (uint32_t i = 0; i < p->count; i++) {
        char twin[RT_OPT_TWIN_BYTES];
        const char *text = rt_env_get(rt_opt_twin_name(p->spec->table[i].name, twin));

        if (text == NULL || text[0] == '\0' || p->origins[i] == FROM_LINE ||
            rival_of(p, i, FROM_LINE) < p->count)
            continue;
        if (!set_value(p, i, text, FROM_ENVIRONMENT, twin)) return false;
    }
    return check_rivals(p, FROM_ENVIRONMENT);
}

rt_parse_result rt_options_parse(const rt_opt_spec *spec, int argc, char **argv, void *values,
                                 const char **positional, uint32_t *positional_count)
{
    parse p = {.spec = spec, .values = values, .positional = positional};
    struct argp argp = {.parser = on_argp, .args_doc = spec->args_doc, .doc = spec->doc};
    rt_parse_result result = RT_PARSE_USAGE;
    error_t error;

    while (spec->table[p.count].name != NULL)
        p.count++;
    snprintf(p.program, sizeof(p.program), "%s%s", spec->is_program ? "" : "moesaic ", spec->verb);
    RT_ASSERT(is_table_valid(&p));
    if (!build_argp(&p)) {
        fprintf(stderr, "%s: out of memory\n", p.program);
        goto done;
    }
    argp.options = p.argp;
    error = argp_parse(&argp, argc, argv, ARGP_NO_EXIT | ARGP_NO_ERRS | ARGP_NO_HELP, NULL, &p);
    if (p.help) {
        argp_help(&argp, stdout, ARGP_HELP_STD_HELP & ~(unsigned)ARGP_HELP_EXIT_OK, p.program);
        result = RT_PARSE_HELP;
    } else if (error != 0) {
        complain(&p, "%s", strerror(error));
    } else if (check_rivals(&p, FROM_LINE) && (spec->is_program || take_environment(&p))) {
        if (positional_count != NULL) *positional_count = p.positional_count;
        result = RT_PARSE_OK;
    }
done:
    free_parse(&p);
    return result;
}
