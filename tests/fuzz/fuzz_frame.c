/* fuzz_frame.c - frames and partial sums as a peer may send them.
 *
 * The first byte chooses: the rest is a frame as it is; a frame whose magic, version, length and hash
 * are made right, so that the checks behind them are reached; a dispatch whose cols and group are made
 * the model's as well; partial sums. What a check lets through is used as a node would. */
#include "transport/frame.h"
#include "transport/partial.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { HEADER_BYTES = 64, COLS = 70, GROUP = 32, SLICES = 8 };

static const tr_dispatch_limits limits = {
    .cols = COLS, .group = GROUP, .experts = 16, .slices = SLICES, .layers = 6};

static volatile uint64_t seen; /* keeps the reads */

/* Touches everything that the view promises, and what it says holds. */
static void use_dispatch(const tr_dispatch_view *view)
{
    const tr_entry *entry = view->entries;
    uint32_t groups = (COLS + GROUP - 1) / GROUP;

    for (uint32_t row = 0; row < view->head.rows; row++) {
        uint32_t slices = 0;

        if (view->q != NULL) {
            for (uint32_t i = 0; i < groups * GROUP; i++)
                seen += (uint8_t)view->q[(size_t)row * groups * GROUP + i];
            seen += view->scale[(size_t)row * groups + groups - 1] > 0;
        } else {
            for (uint32_t i = 0; i < COLS; i++)
                seen += view->f32[(size_t)row * COLS + i] > 0;
        }
        for (uint32_t i = 0; i < view->entry_count[row]; i++, entry++) {
            if (entry->expert >= limits.experts || entry->slice_mask >> SLICES != 0) abort();
            slices += (uint32_t)__builtin_popcount(entry->slice_mask);
        }
        if (slices > TR_ROW_CONTRIBUTIONS_MAX) abort();
    }
    if (entry != view->entries + view->head.entries) abort();
}

static void use_partials(const uint8_t *in, size_t bytes, uint32_t rows, uint32_t cols)
{
    int64_t *acc = calloc(cols, sizeof(*acc));
    bool whole = tr_partial_check(in, bytes, rows, cols, NULL) == RT_OK, poison = false;
    size_t at = 0;

    for (uint32_t row = 0; acc != NULL && row < rows; row++) {
        size_t used = 0;

        if (tr_partial_add(acc, cols, in + at, bytes - at, &used, &poison, NULL) != RT_OK) {
            if (whole) abort();
            break;
        }
        at += used;
    }
    if (acc != NULL && whole && at != bytes) abort();
    free(acc);
}

static void use_frame(const uint8_t *frame, size_t bytes)
{
    tr_frame_header head;
    tr_dispatch_view view;
    char text[128];

    if (tr_frame_check(frame, bytes, &head, NULL) != RT_OK) return;
    switch (head.type) {
    case TR_DISPATCH:
        if (tr_dispatch_read(frame, bytes, &limits, &view, NULL) == RT_OK) use_dispatch(&view);
        break;
    case TR_REPLY:
        use_partials(frame + HEADER_BYTES, bytes - HEADER_BYTES, head.rows, head.cols);
        break;
    case TR_ERROR:
        tr_error_text(frame, &head, text, sizeof(text));
        break;
    default:
        break;
    }
}

static void repair(uint8_t *frame, size_t bytes, bool as_model)
{
    tr_frame_header head;

    if (bytes < HEADER_BYTES) return;
    memcpy(&head, frame, sizeof(head));
    head.reserved = 0;
    if (as_model) {
        head.type = TR_DISPATCH;
        head.encoding = (uint8_t)(1 + head.encoding % 2);
        head.cols = COLS;
        head.group = head.encoding == TR_ROWS_INT8 ? GROUP : 0;
        head.layer = (uint16_t)(head.layer % limits.layers);
        head.status = 0;
    }
    tr_frame_seal(frame, bytes, &head);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *frame;
    uint8_t way;
    size_t bytes, room;

    if (size < 1) return 0;
    way = data[0] % 4;
    data++;
    bytes = size - 1;
    if (way == 3) {
        if (bytes < 2) return 0;
        use_partials(data + 2, bytes - 2, data[0] % 9, 1u + data[1]);
        return 0;
    }
    /* Exactly as long as the frame (but for the alignment), so that a read beyond it is noticed. */
    room = (bytes + TR_FRAME_ALIGN) / TR_FRAME_ALIGN * TR_FRAME_ALIGN;
    frame = aligned_alloc(TR_FRAME_ALIGN, room);
    if (frame == NULL) return 0;
    memcpy(frame, data, bytes);
    if (way > 0) repair(frame, bytes, way == 2);
    use_frame(frame, bytes);
    free(frame);
    return 0;
}
