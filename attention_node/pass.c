/* pass.c - hands rows that pass by to the probe. */
#include "attention_node/pass.h"

static void probe_rows(const an_pass *pass, an_probe_kind kind, uint32_t layer, uint32_t first,
                       uint32_t rows, const void *data, uint32_t count)
{
    an_probe_event event = {
        .kind = kind,
        .layer = layer,
        .seq = pass->seq[first],
        .position = pass->position[first],
        .rows = rows,
        .count = count,
        .data = data,
    };

    pass->probe(pass->probe_context, &event);
}

void an_pass_probe(const an_pass *pass, an_probe_kind kind, uint32_t layer, const void *data,
                   size_t row_bytes, uint32_t count)
{
    bool packed = row_bytes == (size_t)count * 4;
    uint32_t last;

    if (pass->probe == NULL) return;
    for (uint32_t first = 0; first < pass->rows; first = last) {
        last = first + 1;
        while (packed && last < pass->rows && pass->seq[last] == pass->seq[first])
            last++;
        probe_rows(pass, kind, layer, first, last - first, (const char *)data + first * row_bytes,
                   count);
    }
}
