/* output.h - the ends of a verb that all verbs share: stdout that did not take the result, and a command
 * line that is refused after it was parsed.
 *
 * Threads: main. */
#ifndef APP_OUTPUT_H
#define APP_OUTPUT_H

#include "base/status.h"

#include <jansson.h>

/* Opens /dev/null on those of stdin, stdout and stderr that are closed: otherwise the next file that is
 * opened would be one of them, and results would be written into it. Before anything else. */
void app_stdio_open(void);

/* Sees to it that what was printed has arrived, and returns the verb's exit code: `code`, or
 * APP_EXIT_FAILED after one line on stderr when stdout failed. A reader that went away is no failure.
 * main calls it after every verb; a verb that must know earlier calls it as well. */
int app_stdout_finish(const char *verb, int code);

/* Prints one JSON object as a line and lets go of it. false, with a line on stderr, when there is no
 * memory for it; root may be NULL then. */
bool app_json_print(const char *verb, json_t *root);

/* A JSON string of text that may be anything, such as a path: bytes that are no UTF-8 become '?'. NULL
 * when there is no memory. */
json_t *app_json_text(const char *text);

/* "moesaic VERB: TEXT" on stderr and, with json, {"error": TEXT} on stdout, so that a script which asked for an
 * object gets one. Returns APP_EXIT_FAILED. */
int app_failed(const char *verb, bool json, const char *text);

/* Whether this process tells what is wrong with its command line. Under mpirun rank 0 does, at once; another
 * rank waits a second first: had rank 0 the same fault, the launcher ends the job meanwhile. Then it is a
 * fault of its own, and a line that names rank and host precedes. */
bool app_tells_usage_error(void);

/* "moesaic VERB: TEXT (see moesaic VERB --help)" on stderr, if app_tells_usage_error. Returns
 * APP_EXIT_USAGE. */
int app_usage_error(const char *verb, const char *fmt, ...) RT_PRINTF(2, 3);

#endif
