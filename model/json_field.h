/* json_field.h - reading fields of a JSON object that somebody else wrote: typed, ranged, named.
 *
 * Every error says which key, what was expected and what was found, because the file comes from a
 * checkpoint or a copy that its user will have to repair.
 *
 * Threads: any, on their own values. */
#ifndef MODEL_JSON_FIELD_H
#define MODEL_JSON_FIELD_H

#include "base/status.h"

#include <jansson.h>
#include <stdint.h>

/* Parses text that must be one JSON object without duplicate keys. `name` is for errors. The caller
 * owns *out (json_decref). RT_EFORMAT. */
RT_MUST_CHECK rt_status md_json_parse_object(const char *text, size_t bytes, const char *name,
                                             json_t **out, rt_err *err);

/* A key's value, NULL when it is absent or null: writers use both for "not set". */
const json_t *md_json_get(const json_t *object, const char *key);

/* "absent", "12", "\"abc\"", "a list": a value for an error text. Returns text. */
const char *md_json_show(const json_t *value, char *text, size_t text_bytes);

/* Errors of these three: RT_EFORMAT when absent, of another type or outside min..max. */
RT_MUST_CHECK rt_status md_json_uint(const json_t *object, const char *key, uint32_t min,
                                     uint32_t max, uint32_t *out, rt_err *err);
RT_MUST_CHECK rt_status md_json_number(const json_t *object, const char *key, double min,
                                       double max, double *out, rt_err *err);
RT_MUST_CHECK rt_status md_json_bool(const json_t *object, const char *key, bool *out, rt_err *err);

#endif
