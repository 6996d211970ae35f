/* combine.c - replies checked, then added. */
#include "attention_node/combine.h"

#include "base/check.h"
#include "base/slab.h"
#include "kernels/grid.h"
#include "transport/partial.h"

#include <stdlib.h>
#include <string.h>

enum { ATTEMPT = 0 }; /* hedges will number further attempts */

struct an_combine {
    uint32_t nodes, rows_max, cols;
    const an_dispatch *dispatch; /* borrowed; NULL: no layer under way */
    rt_slab sums;                /* int64 [rows_max][cols] */
    uint8_t *poison;             /* [rows_max] */
    bool *owes;                  /* [nodes] */
    uint32_t owed;
};

size_t an_combine_memory_bytes(uint32_t nodes, uint32_t rows_max, uint32_t cols)
{
    return sizeof(an_combine) + (size_t)rows_max * cols * sizeof(int64_t) + rows_max +
           nodes * sizeof(bool);
}

rt_status an_combine_create(uint32_t nodes, uint32_t rows_max, uint32_t cols, an_combine **out,
                            rt_err *err)
{
    an_combine *combine;
    rt_status status;

    RT_ASSERT(nodes > 0 && rows_max > 0 && cols > 0);
    combine = calloc(1, sizeof(*combine));
    if (combine == NULL) return rt_fail(err, RT_ENOMEM, "combine");
    combine->nodes = nodes;
    combine->rows_max = rows_max;
    combine->cols = cols;
    combine->poison = calloc(rows_max, sizeof(*combine->poison));
    combine->owes = calloc(nodes, sizeof(*combine->owes));
    if (combine->poison == NULL || combine->owes == NULL) {
        status = rt_fail(err, RT_ENOMEM, "combine of %u rows", rows_max);
        goto fail;
    }
    status = rt_slab_alloc((size_t)rows_max * cols * sizeof(int64_t), &combine->sums, err);
    if (status != RT_OK) goto fail;
    *out = combine;
    return RT_OK;
fail:
    an_combine_free(combine);
    return status;
}

void an_combine_free(an_combine *combine)
{
    if (combine == NULL) return;
    rt_slab_free(&combine->sums);
    free(combine->poison);
    free(combine->owes);
    free(combine);
}

void an_combine_begin(an_combine *combine, const an_dispatch *dispatch)
{
    const an_dispatch_layer *layer = an_dispatch_get_layer(dispatch);

    RT_ASSERT(layer->x->rows <= combine->rows_max && layer->x->cols == combine->cols);
    RT_ASSERT(an_dispatch_nodes(dispatch) <= combine->nodes);
    combine->dispatch = dispatch;
    combine->owed = 0;
    memset(combine->owes, 0, combine->nodes * sizeof(*combine->owes));
    for (uint32_t node = 0; node < an_dispatch_nodes(dispatch); node++) {
        uint32_t rows;

        (void)an_dispatch_rows(dispatch, node, &rows);
        combine->owes[node] = rows > 0;
        combine->owed += rows > 0;
    }
    memset(combine->sums.data, 0, (size_t)layer->x->rows * combine->cols * sizeof(int64_t));
    memset(combine->poison, 0, layer->x->rows);
}

/* Expert nodes also report what they could not even read: such an error carries request 0. */
static bool is_current(const an_combine *combine, const tr_frame_header *head)
{
    const an_dispatch_layer *layer = an_dispatch_get_layer(combine->dispatch);

    if (head->type == TR_ERROR && head->request == 0) return true;
    return head->request == layer->request && head->attempt == ATTEMPT;
}

static rt_status reported(const void *frame, const tr_frame_header *head, rt_err *err)
{
    rt_status status = (rt_status)head->status;
    char text[TR_ERROR_TEXT_MAX + 1];

    tr_error_text(frame, head, text, sizeof(text));
    if (status == RT_OK || strcmp(rt_status_name(status), "UNKNOWN") == 0)
        return rt_fail(err, RT_EPROTO, "error with unknown status %u: %s", head->status, text);
    return rt_fail(err, status, "%s", text);
}

static rt_status check_reply(const an_combine *combine, const tr_frame_header *head, uint32_t rows,
                             const uint8_t *payload, rt_err *err)
{
    const an_dispatch_layer *layer = an_dispatch_get_layer(combine->dispatch);

    if (head->layer != layer->layer)
        return rt_fail(err, RT_EPROTO, "reply: expected layer %u, found %u", layer->layer,
                       head->layer);
    if (head->rows != rows)
        return rt_fail(err, RT_EPROTO, "reply: expected %u rows, found %u", rows, head->rows);
    if (head->cols != combine->cols)
        return rt_fail(err, RT_EPROTO, "reply: expected %u columns, found %u", combine->cols,
                       head->cols);
    return tr_partial_check(payload, (size_t)head->payload_bytes, rows, combine->cols, err);
}

static rt_status add_reply(an_combine *combine, uint32_t node, const tr_frame_header *head,
                           const uint8_t *payload, rt_err *err)
{
    size_t left = (size_t)head->payload_bytes;
    uint32_t rows;
    const uint32_t *row = an_dispatch_rows(combine->dispatch, node, &rows);

    RT_TRY(check_reply(combine, head, rows, payload, err));
    for (uint32_t i = 0; i < rows; i++) {
        size_t used = 0;
        bool poison = false;

        RT_TRY(tr_partial_add(an_combine_sums(combine, row[i]), combine->cols, payload, left, &used,
                              &poison, err));
        if (poison) combine->poison[row[i]] = 1;
        payload += used;
        left -= used;
    }
    combine->owes[node] = false;
    combine->owed--;
    return RT_OK;
}

/* TOKEN:10 a reply's partial sums are added, in whatever order they come. */
rt_status an_combine_frame(an_combine *combine, uint32_t node, const void *frame,
                           size_t frame_bytes, an_reply *reply, rt_err *err)
{
    tr_frame_header head;

    *reply = AN_REPLY_DROPPED;
    if (!an_combine_owes(combine, node)) return RT_OK; /* whatever it is, it is not awaited */
    RT_TRY(tr_frame_check(frame, frame_bytes, &head, err));
    if (head.type == TR_DISPATCH)
        return rt_fail(err, RT_EPROTO, "expected a reply or an error, found a dispatch");
    if (head.type == TR_CONTROL || !is_current(combine, &head)) return RT_OK;
    if (head.type == TR_ERROR) return reported(frame, &head, err);
    RT_TRY(add_reply(combine, node, &head, (const uint8_t *)frame + sizeof(head), err));
    *reply = AN_REPLY_ADDED;
    return RT_OK;
}

uint32_t an_combine_owed(const an_combine *combine)
{
    return combine->owed;
}

uint32_t an_combine_first_owing(const an_combine *combine)
{
    uint32_t node = 0;

    RT_ASSERT(combine->owed > 0);
    while (!combine->owes[node])
        node++;
    return node;
}

bool an_combine_owes(const an_combine *combine, uint32_t node)
{
    return node < combine->nodes && combine->owes[node];
}

void an_combine_abandon(an_combine *combine)
{
    combine->dispatch = NULL;
    combine->owed = 0;
    memset(combine->owes, 0, combine->nodes * sizeof(*combine->owes));
}

int64_t *an_combine_sums(an_combine *combine, uint32_t row)
{
    RT_ASSERT(row < combine->rows_max);
    return (int64_t *)combine->sums.data + (size_t)row * combine->cols;
}

void an_combine_poison(an_combine *combine, uint32_t row)
{
    RT_ASSERT(row < combine->rows_max);
    combine->poison[row] = 1;
}

bool an_combine_finish(const an_combine *combine, uint32_t row, float *out)
{
    RT_ASSERT(row < combine->rows_max && combine->dispatch != NULL && combine->owed == 0);
    if (combine->poison[row] != 0) return false;
    kn_grid_finish_wide(out, (const int64_t *)combine->sums.data + (size_t)row * combine->cols,
                        combine->cols, an_dispatch_get_layer(combine->dispatch)->q);
    return true;
}
