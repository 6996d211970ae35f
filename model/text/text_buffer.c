/* text_buffer.c - see text_buffer.h. */
#include "model/text/text_buffer.h"

#include <stdlib.h>
#include <string.h>

rt_status md_text_buffer_append(md_text_buffer *buffer, const char *bytes, size_t count,
                                rt_err *err)
{
    size_t need = buffer->count + count + 1;

    if (need > buffer->capacity) {
        size_t capacity = buffer->capacity < 256 ? 256 : buffer->capacity;
        char *grown;

        while (capacity < need)
            capacity *= 2;
        grown = realloc(buffer->bytes, capacity);
        if (grown == NULL) return rt_fail(err, RT_ENOMEM, "text of %zu bytes", need);
        buffer->bytes = grown;
        buffer->capacity = capacity;
    }
    if (count > 0) memcpy(buffer->bytes + buffer->count, bytes, count);
    buffer->count += count;
    buffer->bytes[buffer->count] = '\0';
    return RT_OK;
}

rt_status md_text_buffer_puts(md_text_buffer *buffer, const char *text, rt_err *err)
{
    return md_text_buffer_append(buffer, text, strlen(text), err);
}

void md_text_buffer_fini(md_text_buffer *buffer)
{
    free(buffer->bytes);
    *buffer = (md_text_buffer){0};
}
