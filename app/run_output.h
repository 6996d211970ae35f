/* run_output.h - what `run` shows: text as it comes, ids, or one JSON object; then the closing line.
 *
 * The tokens <think> and </think> are shown also where the tokenizer calls them special: without them
 * thought and answer would run together.
 *
 * A closed stdout ends the run quietly. An answer that was cut short by an error is never shown as a
 * complete one: no JSON is printed then, and the closing line says that it is incomplete.
 *
 * Threads: main. */
#ifndef APP_RUN_OUTPUT_H
#define APP_RUN_OUTPUT_H

#include "app/generation.h"
#include "app/session.h"

typedef enum { APP_OUTPUT_TEXT, APP_OUTPUT_IDS, APP_OUTPUT_JSON } app_output_mode;

typedef struct {
    const md_tokenizer *tokenizer; /* borrowed */
    app_output_mode mode;
    const md_text *stop; /* NULL: none; borrowed for the call */
    bool thinking;       /* the answer begins inside a thought */
    bool quiet;          /* no closing line under a complete answer */
    bool sampled;        /* not greedy: seed is part of the JSON */
    uint64_t seed;
} app_output_spec;

typedef struct app_output app_output;

RT_MUST_CHECK rt_status app_output_create(const app_output_spec *spec, app_output **out,
                                          rt_err *err);
void app_output_free(app_output *output);

bool app_output_token(void *output, uint32_t id); /* an app_token_fn */

/* Prints what is held back, the JSON object, and the closing line on stderr. Returns `status`, or what
 * went wrong in printing; RT_OK when stdout was closed by its reader. */
RT_MUST_CHECK rt_status app_output_finish(app_output *output, app_session *session,
                                          app_generation *generation, uint32_t prompt_count,
                                          rt_status status, rt_err *err);

#endif
