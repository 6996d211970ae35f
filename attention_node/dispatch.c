/* dispatch.c - counting, then filling frames in place. */
#include "attention_node/dispatch.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

struct an_dispatch {
    uint32_t nodes_max, rows_max;
    uint32_t nodes;
    an_dispatch_layer layer;
    uint32_t *rows;    /* [nodes_max][rows_max]: rows of a node, ascending */
    uint32_t *count;   /* [nodes_max] */
    uint32_t *entries; /* [nodes_max] */
};

size_t an_dispatch_memory_bytes(uint32_t nodes, uint32_t rows_max)
{
    return sizeof(an_dispatch) + (size_t)nodes * (rows_max + 2) * sizeof(uint32_t);
}

rt_status an_dispatch_create(uint32_t nodes, uint32_t rows_max, an_dispatch **out, rt_err *err)
{
    an_dispatch *dispatch;

    RT_ASSERT(nodes > 0 && nodes <= PL_NODES_MAX && rows_max > 0 && rows_max <= TR_ROWS_MAX);
    dispatch = calloc(1, sizeof(*dispatch));
    if (dispatch == NULL) return rt_fail(err, RT_ENOMEM, "dispatch");
    dispatch->nodes_max = nodes;
    dispatch->rows_max = rows_max;
    dispatch->rows = calloc((size_t)nodes * rows_max, sizeof(*dispatch->rows));
    dispatch->count = calloc(nodes, sizeof(*dispatch->count));
    dispatch->entries = calloc(nodes, sizeof(*dispatch->entries));
    if (dispatch->rows == NULL || dispatch->count == NULL || dispatch->entries == NULL) {
        an_dispatch_free(dispatch);
        return rt_fail(err, RT_ENOMEM, "dispatch of %u rows to %u nodes", rows_max, nodes);
    }
    *out = dispatch;
    return RT_OK;
}

void an_dispatch_free(an_dispatch *dispatch)
{
    if (dispatch == NULL) return;
    free(dispatch->rows);
    free(dispatch->count);
    free(dispatch->entries);
    free(dispatch);
}

/* The row takes its place in the node's list with its first entry there. */
static void add_entry(an_dispatch *dispatch, uint32_t node, uint32_t row)
{
    uint32_t *rows = dispatch->rows + (size_t)node * dispatch->rows_max;
    uint32_t count = dispatch->count[node];

    if (count == 0 || rows[count - 1] != row) rows[dispatch->count[node]++] = row;
    dispatch->entries[node]++;
}

/* TOKEN:8 rows and their experts, grouped by the node that holds them. */
void an_dispatch_plan(an_dispatch *dispatch, const an_dispatch_layer *layer)
{
    RT_ASSERT(pl_map_nodes(layer->map) <= dispatch->nodes_max);
    RT_ASSERT(layer->x->rows <= dispatch->rows_max && layer->topk <= TR_ROW_ENTRIES_MAX);
    RT_ASSERT(layer->int8 ? layer->x->q != NULL : layer->x->f32 != NULL);
    dispatch->layer = *layer;
    dispatch->nodes = pl_map_nodes(layer->map);
    memset(dispatch->count, 0, dispatch->nodes * sizeof(*dispatch->count));
    memset(dispatch->entries, 0, dispatch->nodes * sizeof(*dispatch->entries));
    for (uint32_t row = 0; row < layer->x->rows; row++) {
        for (uint32_t i = 0; i < layer->topk; i++) {
            uint32_t count;
            const pl_holding *holding = pl_map_holders(
                layer->map, layer->layer, layer->id[(size_t)row * layer->topk + i], &count);

            RT_ASSERT(count > 0);
            for (uint32_t h = 0; h < count; h++)
                add_entry(dispatch, holding[h].node, row);
        }
    }
}

const an_dispatch_layer *an_dispatch_get_layer(const an_dispatch *dispatch)
{
    return &dispatch->layer;
}

uint32_t an_dispatch_nodes(const an_dispatch *dispatch)
{
    return dispatch->nodes;
}

const uint32_t *an_dispatch_rows(const an_dispatch *dispatch, uint32_t node, uint32_t *count)
{
    RT_ASSERT(node < dispatch->nodes);
    *count = dispatch->count[node];
    return dispatch->rows + (size_t)node * dispatch->rows_max;
}

static tr_row_encoding encoding(const an_dispatch *dispatch)
{
    return dispatch->layer.int8 ? TR_ROWS_INT8 : TR_ROWS_F32;
}

static uint32_t group(const an_dispatch *dispatch)
{
    return dispatch->layer.int8 ? dispatch->layer.x->group : 0;
}

size_t an_dispatch_frame_bytes(const an_dispatch *dispatch, uint32_t node)
{
    RT_ASSERT(node < dispatch->nodes && dispatch->count[node] > 0);
    return tr_dispatch_bytes(encoding(dispatch), dispatch->count[node], dispatch->layer.x->cols,
                             group(dispatch), dispatch->entries[node]);
}

static void write_row(const kn_rows *x, uint32_t row, uint32_t at, const tr_dispatch_fill *fill)
{
    if (fill->q != NULL) {
        size_t padded = kn_round_up(x->cols, x->group), groups = kn_groups(x->cols, x->group);

        memcpy(fill->q + at * padded, x->q + row * padded, padded);
        memcpy(fill->scale + at * groups, x->scale + row * groups, groups * sizeof(float));
    } else {
        memcpy(fill->f32 + (size_t)at * x->cols, x->f32 + row * x->f32_stride,
               x->cols * sizeof(float));
    }
}

static uint32_t write_entries(const an_dispatch_layer *layer, uint32_t node, uint32_t row,
                              tr_entry *out)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < layer->topk; i++) {
        size_t at = (size_t)row * layer->topk + i;
        uint32_t mask = pl_map_mask(layer->map, layer->layer, layer->id[at], node);

        if (mask == 0) continue;
        out[count++] = (tr_entry){
            .expert = (uint16_t)layer->id[at], .slice_mask = mask, .weight = layer->weight[at]};
    }
    return count;
}

void an_dispatch_write(const an_dispatch *dispatch, uint32_t node, uint32_t attempt,
                       uint32_t deadline_us, void *frame)
{
    const an_dispatch_layer *layer = &dispatch->layer;
    uint32_t rows, entries = 0;
    const uint32_t *row = an_dispatch_rows(dispatch, node, &rows);
    tr_frame_header head = {
        .type = TR_DISPATCH,
        .encoding = (uint8_t)encoding(dispatch),
        .request = layer->request,
        .attempt = attempt,
        .epoch = pl_map_epoch(layer->map),
        .layer = (uint16_t)layer->layer,
        .rows = (uint16_t)rows,
        .group = (uint16_t)group(dispatch),
        .q = (int8_t)layer->q,
        .cols = layer->x->cols,
        .entries = dispatch->entries[node],
        .deadline_us = deadline_us,
    };
    tr_dispatch_fill fill;

    RT_ASSERT(layer->q >= INT8_MIN && layer->q <= INT8_MAX);
    tr_dispatch_layout(frame, encoding(dispatch), rows, layer->x->cols, group(dispatch),
                       head.entries, &fill);
    for (uint32_t at = 0; at < rows; at++) {
        uint32_t count = write_entries(layer, node, row[at], fill.entries + entries);

        write_row(layer->x, row[at], at, &fill);
        fill.entry_count[at] = (uint16_t)count;
        entries += count;
    }
    RT_ASSERT(entries == head.entries);
    tr_frame_seal(frame, an_dispatch_frame_bytes(dispatch, node), &head);
}
