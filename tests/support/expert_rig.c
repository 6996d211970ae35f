/* expert_rig.c - composition as app does it, and frames as a dispatcher builds them. */
#include "tests/support/expert_rig.h"

#include "base/check.h"
#include "kernels/quant.h"
#include "tests/support/tiny_model.h"
#include "transport/partial.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_MAX = 64 };

static void check_ok(rt_status status, const rt_err *err)
{
    if (status == RT_OK) return;
    fprintf(stderr, "expert rig: %s: %s\n", rt_status_name(status), err->text);
    RT_ASSERT(status == RT_OK);
}

pl_map *expert_rig_map(const md_container *container, pl_mode mode, uint32_t nodes, bool with_mtp)
{
    const md_config *config = md_container_config(container);
    md_expert_layout layout;
    uint32_t share[PL_NODES_MAX];
    pl_map_spec spec = {.layers = with_mtp ? md_config_layers_total(config) : config->layers,
                        .sparse = config->sparse,
                        .experts = config->experts,
                        .nodes = nodes,
                        .share = share,
                        .mode = mode,
                        .epoch = 1};
    rt_err err = {RT_OK, ""};
    pl_map *map;

    md_container_expert_layout(container, config->layers - 1, &layout);
    spec.slices = layout.slices;
    for (uint32_t i = 0; i < nodes; i++) {
        share[i] = 1;
    }
    check_ok(pl_map_create(&spec, &map, &err), &err);
    return map;
}

void expert_rig_open(expert_rig *rig, const expert_rig_spec *spec)
{
    rt_err err = {RT_OK, ""};
    rt_team_spec team = {.threads = spec->threads};
    en_store_spec store;
    en_executor_spec executor;

    *rig = (expert_rig){.node = spec->node};
    check_ok(md_container_open(spec->dir, &rig->container, &err), &err);
    rig->map = expert_rig_map(rig->container, spec->mode, spec->nodes > 0 ? spec->nodes : 1,
                              spec->with_mtp);
    check_ok(rt_team_create(&team, &rig->team, &err), &err);
    store = (en_store_spec){.container = rig->container,
                            .map = rig->map,
                            .node = spec->node,
                            .ram_bytes = spec->ram_bytes > 0 ? spec->ram_bytes : UINT64_MAX,
                            .with_mtp = spec->with_mtp,
                            .quiet = true};
    check_ok(en_store_open(&store, &rig->store, &err), &err);
    executor = (en_executor_spec){.store = rig->store,
                                  .container = rig->container,
                                  .team = rig->team,
                                  .rows_max = spec->rows_max > 0 ? spec->rows_max : ROWS_MAX,
                                  .float_activations = spec->float_activations};
    check_ok(en_executor_create(&executor, &rig->executor, &err), &err);
}

void expert_rig_close(expert_rig *rig)
{
    en_executor_free(rig->executor);
    en_store_close(rig->store);
    rt_team_free(rig->team);
    pl_map_free(rig->map);
    md_container_close(rig->container);
}

void expert_rows_make(expert_rows *rows, const md_container *container, uint32_t layer,
                      uint32_t count, uint64_t seed)
{
    const md_config *config = md_container_config(container);
    md_expert_layout layout;
    uint64_t state = seed;
    uint32_t at = 0;

    md_container_expert_layout(container, layer, &layout);
    *rows = (expert_rows){.rows = count,
                          .hidden = config->hidden,
                          .layer = layer,
                          .q = md_container_get_info(container)->grid_q[layer],
                          .entry_total = count * config->topk};
    rows->x = calloc((size_t)count * rows->hidden, sizeof(*rows->x));
    rows->entry_count = calloc(count, sizeof(*rows->entry_count));
    rows->entries = calloc(rows->entry_total, sizeof(*rows->entries));
    RT_ASSERT(rows->x != NULL && rows->entry_count != NULL && rows->entries != NULL);
    for (uint32_t r = 0; r < count; r++) {
        uint32_t first = (uint32_t)((tiny_model_uniform(&state) + 1.0f) * 1000.0f);
        for (uint32_t c = 0; c < rows->hidden; c++) {
            rows->x[(size_t)r * rows->hidden + c] = 2.0f * tiny_model_uniform(&state);
        }
        rows->entry_count[r] = (uint16_t)config->topk;
        for (uint32_t k = 0; k < config->topk; k++) {
            rows->entries[at++] =
                (tr_entry){.expert = (uint16_t)((first + k * 3) % config->experts),
                           .slice_mask = UINT32_MAX >> (32 - layout.slices),
                           .weight = 0.3f + 0.2f * tiny_model_uniform(&state)};
        }
    }
}

void expert_rows_free(expert_rows *rows)
{
    free(rows->x);
    free(rows->entry_count);
    free(rows->entries);
}

static void fill_rows(const expert_rows *rows, const md_expert_layout *layout,
                      const tr_dispatch_fill *fill, uint32_t row_begin, uint32_t row_count)
{
    const float *x = rows->x + (size_t)row_begin * rows->hidden;
    uint32_t groups = kn_groups(rows->hidden, layout->hidden_group);
    size_t bytes = kn_rows_quant_bytes(row_count, rows->hidden, layout->hidden_group);
    void *memory;
    kn_rows view;

    if (fill->f32 != NULL) {
        memcpy(fill->f32, x, (size_t)row_count * rows->hidden * sizeof(*x));
        return;
    }
    memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    RT_ASSERT(memory != NULL);
    view = kn_rows_quantise(x, rows->hidden, row_count, rows->hidden, layout->hidden_group, memory);
    memcpy(fill->q, view.q, (size_t)row_count * groups * layout->hidden_group);
    memcpy(fill->scale, view.scale, (size_t)row_count * groups * sizeof(float));
    free(memory);
}

uint8_t *expert_frame(const expert_rows *rows, const md_container *container, const pl_map *map,
                      uint32_t node, bool float_activations, uint32_t row_begin, uint32_t row_count,
                      size_t *bytes)
{
    md_expert_layout layout;
    tr_entry *kept = calloc(rows->entry_total + 1, sizeof(*kept));
    uint16_t *counts = calloc(row_count, sizeof(*counts));
    const tr_entry *entry = rows->entries;
    tr_row_encoding encoding;
    tr_dispatch_fill fill;
    tr_frame_header head;
    uint32_t total = 0;
    uint8_t *frame;

    RT_ASSERT(kept != NULL && counts != NULL && row_begin + row_count <= rows->rows);
    md_container_expert_layout(container, rows->layer, &layout);
    encoding = kn_format_is_int(layout.format) && !float_activations ? TR_ROWS_INT8 : TR_ROWS_F32;
    for (uint32_t r = 0; r < row_begin + row_count; r++) {
        for (uint32_t i = 0; i < rows->entry_count[r]; i++, entry++) {
            tr_entry mine = *entry;
            if (map != NULL) mine.slice_mask &= pl_map_mask(map, rows->layer, mine.expert, node);
            if (r < row_begin || mine.slice_mask == 0) continue;
            kept[total++] = mine;
            counts[r - row_begin]++;
        }
    }
    head =
        (tr_frame_header){.type = TR_DISPATCH,
                          .encoding = (uint8_t)encoding,
                          .request = 77,
                          .attempt = 3,
                          .epoch = 1,
                          .layer = (uint16_t)rows->layer,
                          .rows = (uint16_t)row_count,
                          .group = (uint16_t)(encoding == TR_ROWS_INT8 ? layout.hidden_group : 0),
                          .q = (int8_t)rows->q,
                          .cols = rows->hidden,
                          .entries = total};
    *bytes = tr_dispatch_bytes(encoding, row_count, rows->hidden, head.group, total);
    frame = total > 0 ? aligned_alloc(TR_FRAME_ALIGN, (*bytes + 63) / 64 * 64) : NULL;
    if (frame != NULL) {
        tr_dispatch_layout(frame, encoding, row_count, rows->hidden, head.group, total, &fill);
        fill_rows(rows, &layout, &fill, row_begin, row_count);
        memcpy(fill.entry_count, counts, row_count * sizeof(*counts));
        memcpy(fill.entries, kept, total * sizeof(*kept));
        tr_frame_seal(frame, *bytes, &head);
    }
    free(kept);
    free(counts);
    return frame;
}

rt_status expert_rig_execute(const expert_rig *rig, const uint8_t *frame, size_t bytes,
                             uint8_t **payload, size_t *payload_bytes, rt_err *err)
{
    const md_config *config = md_container_config(rig->container);
    tr_dispatch_limits limits = {.cols = config->hidden,
                                 .group = kn_group(config->hidden, 0),
                                 .experts = config->experts,
                                 .slices = MD_SLICES_MAX,
                                 .layers = md_config_layers_total(config)};
    tr_frame_header head;
    tr_dispatch_view view;
    rt_status status;

    check_ok(tr_frame_check(frame, bytes, &head, err), err);
    check_ok(tr_dispatch_read(frame, bytes, &limits, &view, err), err);
    *payload = malloc(en_reply_bytes_max(head.rows, head.cols));
    RT_ASSERT(*payload != NULL);
    status = en_execute(rig->executor, &view, *payload, payload_bytes, err);
    if (status != RT_OK) {
        free(*payload);
        *payload = NULL;
    }
    return status;
}

void expert_payload_add(const uint8_t *payload, size_t bytes, uint32_t count, uint32_t hidden,
                        int64_t *sums, bool *poison)
{
    rt_err err = {RT_OK, ""};
    size_t at = 0, used;

    check_ok(tr_partial_check(payload, bytes, count, hidden, &err), &err);
    for (uint32_t r = 0; r < count; r++) {
        bool bad = false;
        check_ok(tr_partial_add(sums + (size_t)r * hidden, hidden, payload + at, bytes - at, &used,
                                &bad, &err),
                 &err);
        poison[r] = poison[r] || bad;
        at += used;
    }
}
