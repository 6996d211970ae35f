/* options.h - command-line options from one table: argp, MOESAIC_* environment twins, --help.
 *
 * Order: default < environment < command line. This is the only folder file that calls getenv.
 * `--chunk` has the twin MOESAIC_CHUNK; `--experts-here` MOESAIC_EXPERTS_HERE.
 *
 * Threads: main, at start. */
#ifndef BASE_OPTIONS_H
#define BASE_OPTIONS_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
    RT_OPT_FLAG,   /* bool; the twin accepts 0/1/true/false/yes/no */
    RT_OPT_TEXT,   /* const char *, borrowed from argv or the environment */
    RT_OPT_UINT,   /* uint64_t, checked against min..max */
    RT_OPT_FLOAT,  /* double, checked against min..max */
    RT_OPT_BYTES,  /* uint64_t through rt_bytes_parse */
    RT_OPT_CHOICE, /* const char *, one of `choices` ("f32|bf16") */
} rt_opt_kind;

typedef struct {
    const char *name; /* long name; NULL ends the table */
    char key;         /* short name or 0 */
    rt_opt_kind kind;
    size_t offset;   /* of the value in the verb's options struct */
    const char *arg; /* shown in --help: "N"; NULL for flags */
    const char *doc;
    const char *choices;
    double min, max;      /* both 0: unbounded */
    size_t given_offset;  /* of a bool set when the user gave it; 0: none (never the first field) */
    const char *excludes; /* "raw|ids": options that cannot be given with this one; NULL: none */
} rt_opt;

typedef struct {
    const char *verb;     /* "run" */
    bool is_program;      /* verb is a program's own name, not a verb of moesaic: no twins */
    const char *args_doc; /* "MODEL" */
    const char *doc;      /* one paragraph, then after \v what follows the option list */
    const rt_opt *table;
    uint32_t positional_min, positional_max;
} rt_opt_spec;

typedef enum { RT_PARSE_OK, RT_PARSE_HELP, RT_PARSE_USAGE } rt_parse_result;

/* Fills `values` (holding the defaults) and positional[0..*positional_count). Of options that exclude
 * each other the command line's wins over a twin; two from one place are a mistake.
 * HELP: the text went to stdout, exit 0. USAGE: one line naming the option, the expected and the
 * found (an unknown option with the nearest name) went to stderr, exit 2. argv[0] is the verb. */
rt_parse_result rt_options_parse(const rt_opt_spec *spec, int argc, char **argv, void *values,
                                 const char **positional, uint32_t *positional_count);

/* One line on stderr for each variable MOESAIC_... that is no option's twin, with the nearest twin: a
 * mistyped one would otherwise do nothing, silently. Variables of the project's tests are let be. */
void rt_env_warn_unknown(const rt_opt_spec *const *specs, uint32_t count);

/* The environment for what is not a verb's option (launcher variables). NULL when unset. */
const char *rt_env_get(const char *name);

#endif
