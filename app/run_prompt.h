/* run_prompt.h - what the user gives to `run` becomes token ids, and is judged before anything is loaded.
 *
 * Threads: main. */
#ifndef APP_RUN_PROMPT_H
#define APP_RUN_PROMPT_H

#include "model/text/tokenizer.h"

typedef struct {
    const md_ids *ids;  /* NULL: a text */
    const char *text;   /* NULL: stdin, of which one newline at the end is dropped */
    const char *system; /* NULL: none */
    bool raw;           /* no template */
    bool think;
    bool template_compat;
} app_prompt_spec;

/* "1,2 3": numbers with commas or blanks between. RT_EINVAL names what is none, or that there is none. */
RT_MUST_CHECK rt_status app_prompt_ids_parse(const char *list, md_ids *out, rt_err *err);

/* Reads stdin if it has to.
 *   Errors  RT_EINVAL  an empty text, or one larger than 64 MiB;  RT_EIO  stdin;  RT_ECANCELED  a stop
 *           was requested while reading;  those of the template and the tokenizer */
RT_MUST_CHECK rt_status app_prompt_encode(const app_prompt_spec *spec,
                                          const md_tokenizer *tokenizer, md_ids *out, rt_err *err);

/* RT_EINVAL: no ids, one outside the vocabulary, or more than the context holds (both named). */
RT_MUST_CHECK rt_status app_prompt_check(const uint32_t *ids, size_t count, uint32_t vocab,
                                         uint32_t context, rt_err *err);

#endif
