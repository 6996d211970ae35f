/* convert_output.h - what the verbs convert and import share: running it and saying what came of it.
 *
 * Threads: from one; runs a team of its own. */
#ifndef APP_CONVERT_OUTPUT_H
#define APP_CONVERT_OUTPUT_H

#include "app/convert_options.h"
#include "model/convert/convert.h"

/* spec: what the verb alone decides; the common options are added to it. A dry run's plan and, with
 * json, one object go to stdout, all else to stderr. Gives the verb's exit code. */
int app_convert_run(const char *verb, const app_convert_options *options,
                    const md_convert_spec *spec);

#endif
