/* expert_answer.c - the sums of a frame, computed by a node and by their definition. */
#include "tests/support/expert_answer.h"

#include "model/ffn.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

expert_answer expert_answer_make(const expert_rows *rows)
{
    expert_answer a = {calloc((size_t)rows->rows * rows->hidden, sizeof(int64_t)),
                       calloc(rows->rows, sizeof(bool))};

    assert_true(a.sums != NULL && a.poison != NULL);
    return a;
}

void expert_answer_free(expert_answer *a)
{
    free(a->sums);
    free(a->poison);
}

void expert_answers_assert_equal(const expert_answer *a, const expert_answer *b,
                                 const expert_rows *rows)
{
    assert_memory_equal(a->poison, b->poison, rows->rows);
    for (uint32_t r = 0; r < rows->rows; r++) {
        if (a->poison[r]) continue;
        assert_memory_equal(a->sums + (size_t)r * rows->hidden, b->sums + (size_t)r * rows->hidden,
                            rows->hidden * sizeof(int64_t));
    }
}

void expert_answer_add(const expert_rig *rig, const expert_rows *rows, const pl_map *map,
                       bool float_activations, uint32_t row_begin, uint32_t row_count,
                       expert_answer *a)
{
    rt_err err = {RT_OK, ""};
    size_t bytes, payload_bytes;
    uint8_t *payload;
    uint8_t *frame = expert_frame(rows, rig->container, map, rig->node, float_activations,
                                  row_begin, row_count, &bytes);

    if (frame == NULL) return; /* nothing of these rows lives here */
    assert_int_equal(expert_rig_execute(rig, frame, bytes, &payload, &payload_bytes, &err), RT_OK);
    expert_payload_add(payload, payload_bytes, row_count, rows->hidden,
                       a->sums + (size_t)row_begin * rows->hidden, a->poison + row_begin);
    free(payload);
    free(frame);
}

void expert_answer_define(const md_container *container, const expert_rows *rows,
                          bool float_activations, expert_answer *a)
{
    uint32_t hidden = rows->hidden;
    float *y = malloc(hidden * sizeof(*y));
    const tr_entry *entry = rows->entries;
    md_expert_layout layout;
    void *quantised, *scratch, *record;

    md_container_expert_layout(container, rows->layer, &layout);
    quantised =
        aligned_alloc(64, kn_rows_quant_bytes(1, hidden, layout.hidden_group) / 64 * 64 + 64);
    scratch = aligned_alloc(
        64, md_ffn_scratch_bytes(1, layout.slice_width, layout.inter_group) / 64 * 64 + 64);
    record = aligned_alloc(4096, layout.record_bytes);
    assert_true(y != NULL && quantised != NULL && scratch != NULL && record != NULL);
    for (uint32_t r = 0; r < rows->rows; r++) {
        const float *x = rows->x + (size_t)r * hidden;
        bool int8 = kn_format_is_int(layout.format) && !float_activations;
        kn_rows row = int8 ? kn_rows_quantise(x, hidden, 1, hidden, layout.hidden_group, quantised)
                           : kn_rows_float(x, hidden, 1, hidden);
        for (uint32_t e = 0; e < rows->entry_count[r]; e++, entry++) {
            md_record disk;
            rt_err err = {RT_OK, ""};
            float ws = entry->weight * ldexpf(1.0f, rows->q);
            assert_true(md_container_find(
                container, (md_key){(uint16_t)rows->layer, MD_EXPERT, entry->expert}, &disk));
            assert_int_equal(md_record_read(&disk, record, &err), RT_OK);
            for (uint32_t s = 0; s < layout.slices; s++) {
                md_slice slice =
                    md_slice_view(&layout, s, (uint8_t *)record + md_slice_offset(&layout, s));
                if (!(entry->slice_mask >> s & 1)) continue;
                md_ffn_slice(y, hidden, &row, &slice, scratch);
                for (uint32_t i = 0; i < hidden; i++) {
                    float v = y[i] * ws;
                    if (!(fabsf(v) < 0x1p55f)) {
                        a->poison[r] = true;
                    } else {
                        a->sums[(size_t)r * hidden + i] += (int64_t)nearbyint((double)v);
                    }
                }
            }
        }
    }
    free(y);
    free(quantised);
    free(scratch);
    free(record);
}
