/* json_field.c - typed reads on top of jansson. */
#include "model/json_field.h"

#include <inttypes.h>
#include <stdio.h>

rt_status md_json_parse_object(const char *text, size_t bytes, const char *name, json_t **out,
                               rt_err *err)
{
    json_error_t error;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);

    if (root == NULL)
        return rt_fail(err, RT_EFORMAT, "%s: expected JSON, found at line %d: %.160s", name,
                       error.line, error.text);
    if (!json_is_object(root)) {
        json_decref(root);
        return rt_fail(err, RT_EFORMAT, "%s: expected a JSON object, found another value", name);
    }
    *out = root;
    return RT_OK;
}

const json_t *md_json_get(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    return json_is_null(value) ? NULL : value;
}

const char *md_json_show(const json_t *value, char *text, size_t text_bytes)
{
    if (value == NULL)
        (void)snprintf(text, text_bytes, "absent");
    else if (json_is_string(value))
        (void)snprintf(text, text_bytes, "\"%.60s\"", json_string_value(value));
    else if (json_is_integer(value))
        (void)snprintf(text, text_bytes, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else if (json_is_real(value))
        (void)snprintf(text, text_bytes, "%.9g", json_real_value(value));
    else if (json_is_boolean(value))
        (void)snprintf(text, text_bytes, "%s", json_is_true(value) ? "true" : "false");
    else if (json_is_array(value))
        (void)snprintf(text, text_bytes, "a list of %zu", json_array_size(value));
    else
        (void)snprintf(text, text_bytes, "%s", json_is_null(value) ? "null" : "an object");
    return text;
}

rt_status md_json_uint(const json_t *object, const char *key, uint32_t min, uint32_t max,
                       uint32_t *out, rt_err *err)
{
    const json_t *value = md_json_get(object, key);
    char found[80];

    if (!json_is_integer(value) || json_integer_value(value) < (json_int_t)min ||
        json_integer_value(value) > (json_int_t)max)
        return rt_fail(err, RT_EFORMAT,
                       "%s: expected an integer %" PRIu32 "..%" PRIu32 ", found %s", key, min, max,
                       md_json_show(value, found, sizeof(found)));
    *out = (uint32_t)json_integer_value(value);
    return RT_OK;
}

rt_status md_json_number(const json_t *object, const char *key, double min, double max, double *out,
                         rt_err *err)
{
    const json_t *value = md_json_get(object, key);
    double number = json_is_number(value) ? json_number_value(value) : 0.0;
    char found[80];

    if (!json_is_number(value) || !(number >= min && number <= max))
        return rt_fail(err, RT_EFORMAT, "%s: expected a number %.9g..%.9g, found %s", key, min, max,
                       md_json_show(value, found, sizeof(found)));
    *out = number;
    return RT_OK;
}

rt_status md_json_bool(const json_t *object, const char *key, bool *out, rt_err *err)
{
    const json_t *value = md_json_get(object, key);
    char found[80];

    if (!json_is_boolean(value))
        return rt_fail(err, RT_EFORMAT, "%s: expected true or false, found %s", key,
                       md_json_show(value, found, sizeof(found)));
    *out = json_is_true(value);
    return RT_OK;
}
