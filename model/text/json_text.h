/* json_text.h - JSON as Python's json.dumps(value, ensure_ascii=False) writes it.
 *
 * Chat templates print tool definitions and arguments through it, and the model was trained on
 * those very characters: ", " and ": " between items, key order kept, floats in Python's repr.
 * jansson's own dump differs in separators (compact or indented only), in floats (17 digits) and in
 * escapes.
 *
 * Threads: any. */
#ifndef MODEL_TEXT_JSON_TEXT_H
#define MODEL_TEXT_JSON_TEXT_H

#include "model/text/text_buffer.h"

#include <jansson.h>

enum { MD_JSON_DEPTH_MAX = 512 };

/* Appends value to out.
 *   Errors  RT_EINVAL  nested deeper than MD_JSON_DEPTH_MAX
 *           RT_ENOMEM */
RT_MUST_CHECK rt_status md_json_text(const json_t *value, md_text_buffer *out, rt_err *err);

/* Python's repr of a finite double, NUL-terminated: at most 25 characters. */
enum { MD_FLOAT_TEXT_BYTES = 32 };
void md_json_float_text(double value, char text[MD_FLOAT_TEXT_BYTES]);

#endif
