/* fuzz_safetensors.c - a safetensors file as an attacker may write it, and its index.
 *
 * The input is the file: 8 bytes of length and what follows. The length is made to fit when it does
 * not, so that the header behind it is reached; the first bit of the input says whether. */
#include "model/convert/safetensors.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LENGTH_BYTES = 8 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t length = 0, file_bytes = size;
    md_st_file *file = NULL;
    rt_err err = {0};

    if (size < LENGTH_BYTES) return 0;
    for (int i = LENGTH_BYTES - 1; i >= 0; i--)
        length = length << 8 | data[i];
    if (length > size - LENGTH_BYTES) {
        /* A header alone: the file is as long as one tensor may make it. */
        file_bytes = size + (length & 0xffff);
        length = size - LENGTH_BYTES;
    }
    if (md_st_parse("fuzz", (const char *)data + LENGTH_BYTES, length, file_bytes, &file, &err) !=
        RT_OK) {
        RT_ASSERT(err.status != RT_OK && err.text[0] != '\0');
        return 0;
    }
    for (uint64_t i = 0; i < md_st_count(file); i++) {
        const md_st_tensor *tensor = md_st_at(file, i);

        RT_ASSERT(tensor->offset >= LENGTH_BYTES + length);
        RT_ASSERT(tensor->offset <= file_bytes && tensor->bytes <= file_bytes - tensor->offset);
        RT_ASSERT(md_st_find(file, tensor->name) == tensor);
    }
    md_st_close(file);
    return 0;
}
