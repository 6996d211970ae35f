/* gather.c - copies rows together, or finds that it need not. */
#include "expert_node/gather.h"

#include "base/check.h"

#include <string.h>

enum { ALIGN = 64 };

static size_t round_up(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

size_t en_gather_bytes(uint32_t rows, uint32_t hidden, uint32_t group)
{
    size_t quantised = kn_rows_quant_bytes(rows, hidden, group);
    size_t floats = (size_t)rows * hidden * sizeof(float);

    return round_up(quantised > floats ? quantised : floats);
}

static kn_rows copy_int8(const en_gather_source *from, const uint32_t *row, uint32_t count,
                         uint8_t *memory)
{
    size_t groups = kn_groups(from->hidden, from->group), padded = groups * from->group;
    int8_t *q = (int8_t *)memory;
    float *scale = (float *)(void *)(memory + round_up(count * padded));
    int32_t *sum = (int32_t *)(void *)((uint8_t *)scale + round_up(count * groups * sizeof(float)));

    for (uint32_t i = 0; i < count; i++) {
        size_t at = row[i];
        memcpy(q + i * padded, from->dispatch->q + at * padded, padded);
        memcpy(scale + i * groups, from->dispatch->scale + at * groups, groups * sizeof(*scale));
        memcpy(sum + i * groups, from->sums + at * groups, groups * sizeof(*sum));
    }
    return (kn_rows){.q = q, .scale = scale, .sum = sum};
}

static kn_rows copy_f32(const en_gather_source *from, const uint32_t *row, uint32_t count,
                        uint8_t *memory)
{
    size_t hidden = from->hidden;
    float *f32 = (float *)(void *)memory;

    for (uint32_t i = 0; i < count; i++) {
        memcpy(f32 + i * hidden, from->dispatch->f32 + row[i] * hidden, hidden * sizeof(*f32));
    }
    return (kn_rows){.f32 = f32};
}

static kn_rows in_place(const en_gather_source *from, size_t first, bool int8)
{
    size_t groups = int8 ? kn_groups(from->hidden, from->group) : 0;

    if (!int8) return (kn_rows){.f32 = from->dispatch->f32 + first * from->hidden};
    return (kn_rows){.q = from->dispatch->q + first * groups * from->group,
                     .scale = from->dispatch->scale + first * groups,
                     .sum = from->sums + first * groups};
}

kn_rows en_gather(const en_gather_source *from, const uint32_t *row, uint32_t count, void *memory)
{
    bool int8 = from->dispatch->head.encoding == TR_ROWS_INT8;
    uint32_t run = 1;
    kn_rows rows;

    RT_ASSERT(count > 0 && (uintptr_t)memory % ALIGN == 0);
    while (run < count && row[run] == row[0] + run) {
        run++;
    }
    if (run == count) {
        rows = in_place(from, row[0], int8);
    } else if (int8) {
        rows = copy_int8(from, row, count, memory);
    } else {
        rows = copy_f32(from, row, count, memory);
    }
    rows.rows = count;
    rows.cols = from->hidden;
    rows.group = int8 ? from->group : 0;
    rows.f32_stride = int8 ? 0 : from->hidden;
    return rows;
}
