/* colibri_model.c - quantises the tensors of a fixture in memory. */
#include "tests/support/colibri_model.h"

#include "base/check.h"
#include "tests/support/safetensors_file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static float *values_of(const st_item *item, size_t count)
{
    float *out = malloc(count * sizeof(*out));

    RT_ASSERT(out != NULL);
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = 0;

        if (item->dtype == MD_ST_F32) {
            memcpy(&bits, (const char *)item->data + i * 4, 4);
        } else {
            uint16_t half;

            RT_ASSERT(item->dtype == MD_ST_BF16);
            memcpy(&half, (const char *)item->data + i * 2, 2);
            bits = (uint32_t)half << 16;
        }
        memcpy(&out[i], &bits, 4);
    }
    return out;
}

/* One row; returns its scale. */
static float quantise_row(const float *w, uint32_t cols, uint32_t bits, uint8_t *out)
{
    float most = 0, limit = bits == 8 ? 127.0f : 7.0f, scale;

    for (uint32_t c = 0; c < cols; c++)
        most = fmaxf(most, fabsf(w[c]));
    scale = fmaxf(most / limit, 1e-8f);
    for (uint32_t c = 0; c < cols; c++) {
        int q = (int)lrintf(w[c] / scale);

        if (bits == 8)
            out[c] = (uint8_t)q;
        else
            out[c / 2] = (uint8_t)((c % 2 == 0 ? 0 : out[c / 2]) | (q + 8) << (c % 2 * 4));
    }
    return scale;
}

static void add_quantised(st_items *out, const st_item *item, const float *values, uint32_t bits)
{
    uint32_t rows = (uint32_t)item->shape[0], cols = (uint32_t)item->shape[1];
    uint32_t row_bytes = bits == 8 ? cols : (cols + 1) / 2;
    uint8_t *bytes = calloc(rows, row_bytes);
    float *scales = calloc(rows, sizeof(*scales));
    char name[300];

    RT_ASSERT(bytes != NULL && scales != NULL);
    for (uint32_t r = 0; r < rows; r++)
        scales[r] =
            quantise_row(values + (size_t)r * cols, cols, bits, bytes + (size_t)r * row_bytes);
    st_items_add(out, item->name, MD_ST_U8, 0, rows * row_bytes, bytes);
    out->items[out->count - 1].shard = item->shard;
    snprintf(name, sizeof(name), "%s.qs", item->name);
    st_items_add(out, name, MD_ST_F32, 0, rows, scales);
    out->items[out->count - 1].shard = item->shard;
    free(bytes);
    free(scales);
}

void colibri_model_write(const char *fixtures, const char *name, uint32_t bits, const char *dir)
{
    st_checkpoint checkpoint = st_checkpoint_load(fixtures, name);
    st_items out = {0};

    for (uint32_t i = 0; i < checkpoint.tensors.count; i++) {
        const st_item *item = &checkpoint.tensors.items[i];
        bool matrix = item->dims == 2 && strstr(item->name, ".mlp.gate.weight") == NULL;
        size_t count = (size_t)(item->shape[0] * (item->dims == 2 ? item->shape[1] : 1));
        float *values = values_of(item, count);

        if (matrix) {
            add_quantised(&out, item, values, bits);
        } else {
            st_items_add(&out, item->name, MD_ST_F32,
                         item->dims == 2 ? (uint32_t)item->shape[0] : 0,
                         (uint32_t)item->shape[item->dims - 1], values);
            out.items[out.count - 1].shard = item->shard;
        }
        free(values);
    }
    st_items_free(&checkpoint.tensors);
    checkpoint.tensors = out;
    st_checkpoint_write(&checkpoint, dir, false);
    st_checkpoint_free(&checkpoint);
}
