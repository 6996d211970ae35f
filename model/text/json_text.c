/* json_text.c - see json_text.h. */
#include "model/text/json_text.h"

#include "base/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The shortest decimal digits that read back as value: "d.ddd" in `digits` without the point, and
 * the power of ten of the first. */
static int shortest_digits(double value, char digits[24], int *exponent)
{
    char text[MD_FLOAT_TEXT_BYTES];
    int count = 0;
    const char *at;

    for (int precision = 0; precision <= 16; precision++) {
        snprintf(text, sizeof(text), "%.*e", precision, value);
        if (strtod(text, NULL) == value) break;
    }
    for (at = text; *at != 'e'; at++)
        if (*at >= '0' && *at <= '9') digits[count++] = *at;
    *exponent = (int)strtol(at + 1, NULL, 10);
    while (count > 1 && digits[count - 1] == '0')
        count--;
    digits[count] = '\0';
    return count;
}

static char *put_zeros(char *to, int count)
{
    for (int i = 0; i < count; i++)
        *to++ = '0';
    return to;
}

static char *put_digits(char *to, const char *from, int count)
{
    memcpy(to, from, (size_t)count);
    return to + count;
}

/* repr uses an exponent below 1e-4 and from 1e16, and always shows a point or an exponent. */
void md_json_float_text(double value, char text[MD_FLOAT_TEXT_BYTES])
{
    char digits[24];
    int exponent, count;
    char *to = text;

    RT_ASSERT(isfinite(value));
    if (signbit(value)) *to++ = '-';
    count = shortest_digits(fabs(value), digits, &exponent);
    if (exponent < -4 || exponent >= 16) {
        *to++ = digits[0];
        if (count > 1) {
            *to++ = '.';
            to = put_digits(to, digits + 1, count - 1);
        }
        snprintf(to, 6, "e%+03d", exponent);
        return;
    }
    if (exponent < 0) {
        to = put_digits(to, "0.", 2);
        to = put_zeros(to, -exponent - 1);
        to = put_digits(to, digits, count);
    } else if (count <= exponent + 1) {
        to = put_digits(to, digits, count);
        to = put_zeros(to, exponent + 1 - count);
        to = put_digits(to, ".0", 2);
    } else {
        to = put_digits(to, digits, exponent + 1);
        *to++ = '.';
        to = put_digits(to, digits + exponent + 1, count - exponent - 1);
    }
    *to = '\0';
}

static rt_status put_escape(char byte, md_text_buffer *out, rt_err *err)
{
    char text[8];

    switch (byte) {
    case '"':
        return md_text_buffer_puts(out, "\\\"", err);
    case '\\':
        return md_text_buffer_puts(out, "\\\\", err);
    case '\n':
        return md_text_buffer_puts(out, "\\n", err);
    case '\r':
        return md_text_buffer_puts(out, "\\r", err);
    case '\t':
        return md_text_buffer_puts(out, "\\t", err);
    case '\f':
        return md_text_buffer_puts(out, "\\f", err);
    case '\b':
        return md_text_buffer_puts(out, "\\b", err);
    default:
        snprintf(text, sizeof(text), "\\u%04x", (unsigned)byte);
        return md_text_buffer_puts(out, text, err);
    }
}

static rt_status put_string(const char *bytes, size_t count, md_text_buffer *out, rt_err *err)
{
    size_t plain = 0;

    RT_TRY(md_text_buffer_append(out, "\"", 1, err));
    for (size_t i = 0; i < count; i++) {
        uint8_t byte = (uint8_t)bytes[i];

        if (byte >= 0x20 && byte != '"' && byte != '\\') continue;
        RT_TRY(md_text_buffer_append(out, bytes + plain, i - plain, err));
        RT_TRY(put_escape(bytes[i], out, err));
        plain = i + 1;
    }
    RT_TRY(md_text_buffer_append(out, bytes + plain, count - plain, err));
    return md_text_buffer_append(out, "\"", 1, err);
}

static rt_status put_value(const json_t *value, uint32_t depth, md_text_buffer *out, rt_err *err);

static rt_status put_array(const json_t *array, uint32_t depth, md_text_buffer *out, rt_err *err)
{
    const json_t *item;
    size_t index;

    RT_TRY(md_text_buffer_append(out, "[", 1, err));
    json_array_foreach(array, index, item)
    {
        if (index > 0) RT_TRY(md_text_buffer_append(out, ", ", 2, err));
        RT_TRY(put_value(item, depth + 1, out, err));
    }
    return md_text_buffer_append(out, "]", 1, err);
}

static rt_status put_object(const json_t *object, uint32_t depth, md_text_buffer *out, rt_err *err)
{
    /* jansson's iterators want a non-const object but do not change it. */
    json_t *open = (json_t *)(uintptr_t)object;
    const char *separator = "";

    RT_TRY(md_text_buffer_append(out, "{", 1, err));
    for (void *at = json_object_iter(open); at != NULL; at = json_object_iter_next(open, at)) {
        RT_TRY(md_text_buffer_puts(out, separator, err));
        RT_TRY(put_string(json_object_iter_key(at), json_object_iter_key_len(at), out, err));
        RT_TRY(md_text_buffer_append(out, ": ", 2, err));
        RT_TRY(put_value(json_object_iter_value(at), depth + 1, out, err));
        separator = ", ";
    }
    return md_text_buffer_append(out, "}", 1, err);
}

static rt_status put_value(const json_t *value, uint32_t depth, md_text_buffer *out, rt_err *err)
{
    char text[MD_FLOAT_TEXT_BYTES];

    if (depth > MD_JSON_DEPTH_MAX)
        return rt_fail(err, RT_EINVAL, "JSON nested deeper than %d", MD_JSON_DEPTH_MAX);
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return put_object(value, depth, out, err);
    case JSON_ARRAY:
        return put_array(value, depth, out, err);
    case JSON_STRING:
        return put_string(json_string_value(value), json_string_length(value), out, err);
    case JSON_INTEGER:
        snprintf(text, sizeof(text), "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        return md_text_buffer_puts(out, text, err);
    case JSON_REAL:
        md_json_float_text(json_real_value(value), text);
        return md_text_buffer_puts(out, text, err);
    case JSON_TRUE:
        return md_text_buffer_puts(out, "true", err);
    case JSON_FALSE:
        return md_text_buffer_puts(out, "false", err);
    case JSON_NULL:
        break;
    }
    return md_text_buffer_puts(out, "null", err);
}

rt_status md_json_text(const json_t *value, md_text_buffer *out, rt_err *err)
{
    return put_value(value, 0, out, err);
}
