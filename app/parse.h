/* parse.h - a verb's command line, also when every rank of an mpirun job reads it.
 *
 * Threads: main, at start. */
#ifndef APP_PARSE_H
#define APP_PARSE_H

#include "base/options.h"

/* rt_options_parse, except that of usage errors which all ranks have only rank 0 tells. positional_count may
 * be NULL. false: the verb ends with *code; help was asked for and given, or the error was told. */
bool app_parse(const rt_opt_spec *spec, int argc, char **argv, void *values,
               const char **positional, uint32_t *positional_count, int *code);

#endif
