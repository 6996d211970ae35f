/* run_prompt.c - text from the command line or stdin, or ids, to token ids. */
#include "app/run_prompt.h"

#include "base/stop.h"
#include "model/text/chat_template.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PROMPT_MAX_BYTES = 64 << 20 };

rt_status app_prompt_ids_parse(const char *list, md_ids *out, rt_err *err)
{
    static const char between[] = ", \t\n";
    const char *at = list + strspn(list, between);

    if (*at == '\0')
        return rt_fail(err, RT_EINVAL, "--ids: expected numbers separated by commas, found \"%s\"",
                       list);
    while (*at != '\0') {
        unsigned long id;
        char *end;

        errno = 0;
        id = strtoul(at, &end, 10);
        if (end == at || *at == '-' || *at == '+' || errno != 0 || id > UINT32_MAX ||
            (*end != '\0' && strchr(between, *end) == NULL))
            return rt_fail(err, RT_EINVAL,
                           "--ids: expected numbers separated by commas, found \"%.*s\"",
                           (int)strcspn(at, between), at);
        RT_TRY(md_ids_push(out, (uint32_t)id, err));
        at = end + strspn(end, between);
    }
    return RT_OK;
}

static rt_status read_stdin(char **out, size_t *out_bytes, rt_err *err)
{
    size_t capacity = 65536, used = 0;
    char *text = malloc(capacity);

    if (isatty(STDIN_FILENO))
        fprintf(stderr, "moesaic run: reading the prompt from the terminal; end with Ctrl-D\n");
    while (text != NULL) {
        ssize_t got = rt_stop_requested() ? -1 : read(STDIN_FILENO, text + used, capacity - used);

        if (rt_stop_requested()) {
            free(text);
            return rt_fail(err, RT_ECANCELED, "stopped by signal %d while reading the prompt",
                           rt_stop_signal());
        }
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            free(text);
            return rt_fail(err, RT_EIO, "reading the prompt from stdin: %s", strerror(errno));
        }
        if (got == 0) {
            *out = text;
            *out_bytes = used;
            return RT_OK;
        }
        used += (size_t)got;
        if (used > PROMPT_MAX_BYTES) {
            free(text);
            return rt_fail(err, RT_EINVAL, "the prompt on stdin is larger than %d MiB",
                           PROMPT_MAX_BYTES >> 20);
        }
        if (used == capacity) {
            char *grown = realloc(text, capacity * 2);

            if (grown == NULL) break;
            text = grown;
            capacity *= 2;
        }
    }
    free(text);
    return rt_fail(err, RT_ENOMEM, "the prompt from stdin");
}

/* TOKEN:2 text or ids from the user -> template -> token ids. */
rt_status app_prompt_encode(const app_prompt_spec *spec, const md_tokenizer *tokenizer, md_ids *out,
                            rt_err *err)
{
    char *from_stdin = NULL;
    md_text text = {spec->text, 0};
    rt_status status = RT_OK;

    for (size_t i = 0; spec->ids != NULL && i < spec->ids->count; i++)
        RT_TRY(md_ids_push(out, spec->ids->ids[i], err));
    if (spec->ids != NULL) return RT_OK;
    if (spec->text != NULL) {
        text.count = strlen(spec->text);
    } else {
        RT_TRY(read_stdin(&from_stdin, &text.count, err));
        text.bytes = from_stdin;
        /* What an editor or echo puts at the end of a file is not meant. */
        if (text.count > 0 && text.bytes[text.count - 1] == '\n') text.count--;
    }
    if (text.count == 0)
        status = rt_fail(err, RT_EINVAL, "the prompt is empty");
    else if (spec->raw)
        status = md_tokenizer_encode(tokenizer, text, (md_match){.mode = MD_MATCH_ALL}, out, err);
    else
        status = md_chat_encode_prompt(tokenizer, spec->system, text, spec->think,
                                       spec->template_compat, out, err);
    free(from_stdin);
    return status;
}

rt_status app_prompt_check(const uint32_t *ids, size_t count, uint32_t vocab, uint32_t context,
                           rt_err *err)
{
    if (count == 0) return rt_fail(err, RT_EINVAL, "the prompt has no tokens");
    if (count > context)
        return rt_fail(err, RT_EINVAL,
                       "the prompt has %zu tokens, the context holds %u (--ctx-size)", count,
                       context);
    for (size_t i = 0; i < count; i++)
        if (ids[i] >= vocab)
            return rt_fail(err, RT_EINVAL,
                           "token id %u at place %zu is outside the vocabulary of %u", ids[i], i,
                           vocab);
    return RT_OK;
}
