/* model_advice.h - what to do about a model as it was found: one sentence, shared by plan, doctor, status and
 * heat, so that they agree.
 *
 * Threads: one owner. */
#ifndef APP_MODEL_ADVICE_H
#define APP_MODEL_ADVICE_H

#include "app/model_look.h"

enum { APP_NEXT_BYTES = 640 };

/* What to do next, as one line, with the command where there is one: "run it: moesaic run DIR ...". */
const char *app_model_next(const app_model *model, char *text, size_t text_bytes);

/* Of a model that `verb` has no use for: what it is and what to do on stderr; with json an object of the same
 * ("error", "state", "next") on stdout too. Returns APP_EXIT_FAILED. */
int app_model_refuse(const char *verb, const app_model *model, bool json);

#endif
