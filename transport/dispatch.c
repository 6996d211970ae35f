/* dispatch.c - the payload of a DISPATCH frame: its layout, and its checks against the model.
 *
 * One function lays the parts out; size, filling and reading all follow it. Every check is a pass over
 * a few KB, far below the cost of the experts the frame asks for. */
#include "transport/frame.h"

#include "base/check.h"
#include "transport/frame_internal.h"

#include <string.h>

enum { HEADER_BYTES = sizeof(tr_frame_header), COUNT_ALIGN = 8 };

/* Offsets from the start of the frame. */
typedef struct {
    size_t q, scale, f32, entry_count, count_end, entries, end;
} parts;

static parts layout(tr_row_encoding encoding, uint32_t rows, uint32_t cols, uint32_t group,
                    uint32_t entries)
{
    parts at = {.q = HEADER_BYTES, .f32 = HEADER_BYTES};

    RT_ASSERT(rows > 0 && rows <= TR_ROWS_MAX && cols > 0 && cols <= TR_COLS_MAX);
    RT_ASSERT(entries <= rows * TR_ROW_ENTRIES_MAX);
    if (encoding == TR_ROWS_INT8) {
        size_t groups;

        RT_ASSERT(group > 0 && group % TR_GROUP_UNIT == 0);
        groups = (cols + group - 1) / group;
        at.scale = at.q + rows * groups * group;
        at.entry_count = at.scale + rows * groups * sizeof(float);
    } else {
        RT_ASSERT(encoding == TR_ROWS_F32 && group == 0);
        at.entry_count = at.f32 + rows * (size_t)cols * sizeof(float);
    }
    at.count_end = at.entry_count + rows * sizeof(uint16_t);
    at.entries =
        at.entry_count + (rows * sizeof(uint16_t) + COUNT_ALIGN - 1) / COUNT_ALIGN * COUNT_ALIGN;
    at.end = at.entries + entries * sizeof(tr_entry);
    return at;
}

size_t tr_dispatch_bytes(tr_row_encoding encoding, uint32_t rows, uint32_t cols, uint32_t group,
                         uint32_t entries)
{
    return layout(encoding, rows, cols, group, entries).end;
}

void tr_dispatch_layout(void *frame, tr_row_encoding encoding, uint32_t rows, uint32_t cols,
                        uint32_t group, uint32_t entries, tr_dispatch_fill *out)
{
    parts at = layout(encoding, rows, cols, group, entries);
    uint8_t *bytes = frame;
    tr_dispatch_fill fill = {0};

    RT_ASSERT((uintptr_t)frame % TR_FRAME_ALIGN == 0);
    if (encoding == TR_ROWS_INT8) {
        fill.q = (int8_t *)(bytes + at.q);
        fill.scale = (float *)(void *)(bytes + at.scale);
    } else {
        fill.f32 = (float *)(void *)(bytes + at.f32);
    }
    fill.entry_count = (uint16_t *)(void *)(bytes + at.entry_count);
    fill.entries = (tr_entry *)(void *)(bytes + at.entries);
    memset(bytes + at.count_end, 0, at.entries - at.count_end);
    *out = fill;
}

static bool is_finite(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return (bits & 0x7f800000) != 0x7f800000;
}

/* -128 is no value of the quantiser, and kernels that negate a byte rely on that. */
static rt_status check_int8(const tr_dispatch_view *view, uint32_t padded, uint32_t groups,
                            rt_err *err)
{
    for (uint32_t row = 0; row < view->head.rows; row++) {
        const int8_t *q = view->q + (size_t)row * padded;
        const float *scale = view->scale + (size_t)row * groups;
        uint8_t lowest = 0;

        for (uint32_t i = 0; i < padded; i++)
            lowest |= q[i] == INT8_MIN;
        if (lowest != 0)
            return rt_fail(err, RT_EPROTO,
                           "dispatch: row %u: expected values from -127, found -128", row);
        for (uint32_t i = 0; i < groups; i++)
            if (!is_finite(scale[i]))
                return rt_fail(err, RT_EPROTO,
                               "dispatch: row %u group %u: expected a finite scale, found %g", row,
                               i, (double)scale[i]);
    }
    return RT_OK;
}

static rt_status check_entry(const tr_entry *entry, const tr_dispatch_limits *limits, uint32_t row,
                             rt_err *err)
{
    if (entry->expert >= limits->experts)
        return rt_fail(err, RT_EPROTO, "dispatch: row %u: expected an expert below %u, found %u",
                       row, limits->experts, entry->expert);
    if (entry->reserved != 0)
        return rt_fail(err, RT_EPROTO, "dispatch: row %u expert %u: reserved: expected 0, found %u",
                       row, entry->expert, entry->reserved);
    if (entry->slice_mask == 0 || (uint64_t)entry->slice_mask >> limits->slices != 0)
        return rt_fail(err, RT_EPROTO,
                       "dispatch: row %u expert %u: expected a mask of %u slices, found %#x", row,
                       entry->expert, limits->slices, entry->slice_mask);
    if (!is_finite(entry->weight))
        return rt_fail(err, RT_EPROTO,
                       "dispatch: row %u expert %u: expected a finite weight, found %g", row,
                       entry->expert, (double)entry->weight);
    return RT_OK;
}

static rt_status check_row(const tr_entry *entries, uint32_t count,
                           const tr_dispatch_limits *limits, uint32_t row, rt_err *err)
{
    uint32_t slices = 0;

    for (uint32_t i = 0; i < count; i++) {
        RT_TRY(check_entry(&entries[i], limits, row, err));
        for (uint32_t j = 0; j < i; j++)
            if (entries[j].expert == entries[i].expert)
                return rt_fail(err, RT_EPROTO,
                               "dispatch: row %u: expected each expert once, found expert %u twice",
                               row, entries[i].expert);
        slices += (uint32_t)__builtin_popcount(entries[i].slice_mask);
    }
    if (slices > TR_ROW_CONTRIBUTIONS_MAX)
        return rt_fail(err, RT_EPROTO, "dispatch: row %u: expected at most %d slices, found %u",
                       row, TR_ROW_CONTRIBUTIONS_MAX, slices);
    return RT_OK;
}

static rt_status check_entries(const tr_dispatch_view *view, const tr_dispatch_limits *limits,
                               rt_err *err)
{
    uint32_t used = 0;

    for (uint32_t row = 0; row < view->head.rows; row++) {
        uint32_t count = view->entry_count[row];

        if (count > TR_ROW_ENTRIES_MAX || count > view->head.entries - used)
            return rt_fail(
                err, RT_EPROTO, "dispatch: row %u: expected at most %u entries, found %u", row,
                view->head.entries - used < TR_ROW_ENTRIES_MAX ? view->head.entries - used
                                                               : TR_ROW_ENTRIES_MAX,
                count);
        RT_TRY(check_row(view->entries + used, count, limits, row, err));
        used += count;
    }
    if (used != view->head.entries)
        return rt_fail(err, RT_EPROTO, "dispatch: entries of all rows: expected %u, found %u",
                       view->head.entries, used);
    return RT_OK;
}

static rt_status check_model(const tr_frame_header *head, const tr_dispatch_limits *limits,
                             rt_err *err)
{
    if (head->layer >= limits->layers)
        return rt_fail(err, RT_EPROTO, "dispatch: layer: expected below %u, found %u",
                       limits->layers, head->layer);
    if (head->cols != limits->cols)
        return rt_fail(err, RT_EPROTO, "dispatch: cols: expected %u, found %u", limits->cols,
                       head->cols);
    if (head->encoding == TR_ROWS_INT8 && head->group != limits->group)
        return rt_fail(err, RT_EPROTO, "dispatch: group: expected %u, found %u", limits->group,
                       head->group);
    return RT_OK;
}

rt_status tr_dispatch_read(const void *frame, size_t frame_bytes, const tr_dispatch_limits *limits,
                           tr_dispatch_view *out, rt_err *err)
{
    const uint8_t *bytes = frame;
    tr_dispatch_view view = {0};
    parts at;

    RT_ASSERT((uintptr_t)frame % TR_FRAME_ALIGN == 0);
    RT_ASSERT(frame_bytes >= HEADER_BYTES && limits->slices >= 1 && limits->slices <= 32);
    memcpy(&view.head, frame, sizeof(view.head));
    if (view.head.type != TR_DISPATCH)
        return rt_fail(err, RT_EPROTO, "dispatch: type: expected %d, found %u", TR_DISPATCH,
                       view.head.type);
    RT_TRY(check_model(&view.head, limits, err));
    at = layout((tr_row_encoding)view.head.encoding, view.head.rows, view.head.cols,
                view.head.group, view.head.entries);
    RT_ASSERT(at.end == frame_bytes); /* tr_frame_check has seen to it */
    view.entry_count = (const uint16_t *)(const void *)(bytes + at.entry_count);
    view.entries = (const tr_entry *)(const void *)(bytes + at.entries);
    for (size_t i = at.count_end; i < at.entries; i++)
        if (bytes[i] != 0)
            return rt_fail(err, RT_EPROTO, "dispatch: padding: expected 0, found %u", bytes[i]);
    if (view.head.encoding == TR_ROWS_INT8) {
        uint32_t groups = (view.head.cols + view.head.group - 1u) / view.head.group;

        view.q = (const int8_t *)(bytes + at.q);
        view.scale = (const float *)(const void *)(bytes + at.scale);
        RT_TRY(check_int8(&view, groups * view.head.group, groups, err));
    } else {
        view.f32 = (const float *)(const void *)(bytes + at.f32);
    }
    RT_TRY(check_entries(&view, limits, err));
    *out = view;
    return RT_OK;
}
