/* frame.c - sealing a frame and checking one that arrived.
 *
 * tr_frame_check proves everything that needs no model: after it every size derived from the header
 * fits the frame. What needs the model's shape is dispatch.c's. The order of checks is from the
 * cheapest and most telling (length, magic, version) to the hash, which proves that the bytes are
 * those that were sent, and only then to the fields, which prove that the sender made sense. */
#include "transport/frame.h"

#include "base/check.h"
#include "transport/frame_internal.h"
#include "transport/partial.h"
#include "transport/text.h"

#include <inttypes.h>
#include <string.h>
#include <xxhash.h>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "frames are written in place; a big-endian host would need swaps");
static_assert(TR_ROWS_MAX <= UINT16_MAX, "rows is 16 bits on the wire");

enum { HEADER_BYTES = sizeof(tr_frame_header) };

static uint64_t frame_hash(const tr_frame_header *head, const uint8_t *payload, size_t bytes)
{
    tr_frame_header copy = *head;

    copy.hash = 0;
    return XXH3_64bits_withSeed(payload, bytes, XXH3_64bits(&copy, sizeof(copy)));
}

/* TOKEN:8 the last touch before a frame leaves. */
void tr_frame_seal(void *frame, size_t frame_bytes, const tr_frame_header *head)
{
    tr_frame_header sealed = *head;

    RT_ASSERT(frame_bytes >= HEADER_BYTES && frame_bytes <= TR_FRAME_BYTES_MAX);
    sealed.magic = TR_FRAME_MAGIC;
    sealed.version = TR_PROTOCOL_MAX;
    sealed.payload_bytes = frame_bytes - HEADER_BYTES;
    sealed.hash =
        frame_hash(&sealed, (const uint8_t *)frame + HEADER_BYTES, frame_bytes - HEADER_BYTES);
    memcpy(frame, &sealed, sizeof(sealed));
}

static rt_status wrong(rt_err *err, const char *field, uint64_t expected, uint64_t found)
{
    return rt_fail(err, RT_EPROTO, "frame: %s: expected %" PRIu64 ", found %" PRIu64, field,
                   expected, found);
}

static rt_status beyond(rt_err *err, const char *field, uint64_t low, uint64_t high, uint64_t found)
{
    return rt_fail(err, RT_EPROTO, "frame: %s: expected %" PRIu64 " to %" PRIu64 ", found %" PRIu64,
                   field, low, high, found);
}

static rt_status check_range(rt_err *err, const char *field, uint64_t low, uint64_t high,
                             uint64_t found)
{
    return found < low || found > high ? beyond(err, field, low, high, found) : RT_OK;
}

static rt_status check_equal(rt_err *err, const char *field, uint64_t expected, uint64_t found)
{
    return found != expected ? wrong(err, field, expected, found) : RT_OK;
}

static rt_status check_dispatch(const tr_frame_header *head, rt_err *err)
{
    bool int8 = head->encoding == TR_ROWS_INT8;

    RT_TRY(check_range(err, "encoding", TR_ROWS_INT8, TR_ROWS_F32, head->encoding));
    RT_TRY(check_range(err, "rows", 1, TR_ROWS_MAX, head->rows));
    RT_TRY(check_range(err, "cols", 1, TR_COLS_MAX, head->cols));
    RT_TRY(
        check_range(err, "entries", 0, (uint64_t)head->rows * TR_ROW_ENTRIES_MAX, head->entries));
    if (int8 ? head->group == 0 || head->group % TR_GROUP_UNIT != 0 : head->group != 0)
        return rt_fail(err, RT_EPROTO, "frame: group: expected %s, found %u",
                       int8 ? "a multiple of 16" : "0", head->group);
    RT_TRY(check_equal(err, "status", RT_OK, head->status));
    return check_equal(err, "payload bytes",
                       tr_dispatch_bytes((tr_row_encoding)head->encoding, head->rows, head->cols,
                                         head->group, head->entries) -
                           HEADER_BYTES,
                       head->payload_bytes);
}

/* Fields that only a dispatch uses. */
static rt_status check_unused(const tr_frame_header *head, rt_err *err)
{
    RT_TRY(check_equal(err, "encoding", TR_ROWS_NONE, head->encoding));
    RT_TRY(check_equal(err, "group", 0, head->group));
    RT_TRY(check_equal(err, "entries", 0, head->entries));
    return check_equal(err, "deadline", 0, head->deadline_us);
}

static rt_status check_reply(const tr_frame_header *head, rt_err *err)
{
    RT_TRY(check_unused(head, err));
    RT_TRY(check_range(err, "rows", 1, TR_ROWS_MAX, head->rows));
    RT_TRY(check_range(err, "cols", 1, TR_COLS_MAX, head->cols));
    RT_TRY(check_equal(err, "status", RT_OK, head->status));
    return check_range(err, "payload bytes", head->rows,
                       head->rows * (uint64_t)tr_partial_bytes_max(head->cols),
                       head->payload_bytes);
}

static rt_status check_error(const tr_frame_header *head, rt_err *err)
{
    RT_TRY(check_unused(head, err));
    RT_TRY(check_range(err, "rows", 0, TR_ROWS_MAX, head->rows));
    RT_TRY(check_range(err, "cols", 0, TR_COLS_MAX, head->cols));
    /* A newer peer may have statuses of its own; they are shown as UNKNOWN. */
    RT_TRY(check_range(err, "status", 1, UINT16_MAX, head->status));
    return check_range(err, "payload bytes", 0, TR_ERROR_TEXT_MAX, head->payload_bytes);
}

static rt_status check_control(const tr_frame_header *head, rt_err *err)
{
    RT_TRY(check_unused(head, err));
    RT_TRY(check_equal(err, "attempt", 0, head->attempt));
    RT_TRY(check_equal(err, "epoch", 0, head->epoch));
    RT_TRY(check_equal(err, "layer", 0, head->layer));
    RT_TRY(check_equal(err, "rows", 0, head->rows));
    RT_TRY(check_equal(err, "cols", 0, head->cols));
    RT_TRY(check_equal(err, "q", 0, (uint8_t)head->q));
    RT_TRY(check_equal(err, "status", RT_OK, head->status));
    return check_range(err, "payload bytes", 1, TR_CONTROL_MAX, head->payload_bytes);
}

static rt_status check_hint(const tr_frame_header *head, rt_err *err)
{
    RT_TRY(check_equal(err, "encoding", TR_ROWS_NONE, head->encoding));
    RT_TRY(check_equal(err, "attempt", 0, head->attempt));
    RT_TRY(check_equal(err, "rows", 0, head->rows));
    RT_TRY(check_equal(err, "group", 0, head->group));
    RT_TRY(check_equal(err, "q", 0, (uint8_t)head->q));
    RT_TRY(check_equal(err, "cols", 0, head->cols));
    RT_TRY(check_range(err, "entries", 1, TR_HINT_MAX, head->entries));
    RT_TRY(check_equal(err, "deadline", 0, head->deadline_us));
    RT_TRY(check_equal(err, "status", RT_OK, head->status));
    return check_equal(err, "payload bytes", tr_hint_bytes(head->entries) - HEADER_BYTES,
                       head->payload_bytes);
}

rt_status tr_frame_check(const void *frame, size_t frame_bytes, tr_frame_header *head, rt_err *err)
{
    tr_frame_header found;
    uint64_t hash;
    rt_status status;

    RT_TRY(check_range(err, "bytes", HEADER_BYTES, TR_FRAME_BYTES_MAX, frame_bytes));
    memcpy(&found, frame, sizeof(found));
    if (found.magic != TR_FRAME_MAGIC)
        return rt_fail(err, RT_EPROTO, "frame: magic: expected %08x, found %08x", TR_FRAME_MAGIC,
                       found.magic);
    RT_TRY(check_range(err, "version", TR_PROTOCOL_MIN, TR_PROTOCOL_MAX, found.version));
    RT_TRY(check_equal(err, "payload bytes", frame_bytes - HEADER_BYTES, found.payload_bytes));
    hash = frame_hash(&found, (const uint8_t *)frame + HEADER_BYTES, frame_bytes - HEADER_BYTES);
    if (found.hash != hash)
        return rt_fail(err, RT_EPROTO, "frame: hash: expected %016" PRIx64 ", found %016" PRIx64,
                       hash, found.hash);
    RT_TRY(check_equal(err, "reserved", 0, found.reserved));
    switch (found.type) {
    case TR_DISPATCH:
        status = check_dispatch(&found, err);
        break;
    case TR_REPLY:
        status = check_reply(&found, err);
        break;
    case TR_ERROR:
        status = check_error(&found, err);
        break;
    case TR_CONTROL:
        status = check_control(&found, err);
        break;
    case TR_HINT:
        status = check_hint(&found, err);
        break;
    default:
        status = beyond(err, "type", TR_DISPATCH, TR_HINT, found.type);
    }
    RT_TRY(status);
    *head = found;
    return RT_OK;
}

tr_frame_header tr_answer_head(const tr_frame_header *dispatch, tr_frame_type type)
{
    tr_frame_header head = {
        .type = (uint8_t)type,
        .request = dispatch->request,
        .attempt = dispatch->attempt,
        .epoch = dispatch->epoch,
        .layer = dispatch->layer,
        .rows = dispatch->rows,
        .q = dispatch->q,
        .cols = dispatch->cols,
    };

    return head;
}

void tr_hint_write(void *frame, uint32_t epoch, uint32_t layer, const uint16_t *experts,
                   uint32_t count)
{
    tr_frame_header head = {
        .type = TR_HINT, .epoch = epoch, .layer = (uint16_t)layer, .entries = count};

    RT_ASSERT(count >= 1 && count <= TR_HINT_MAX);
    memcpy((uint8_t *)frame + HEADER_BYTES, experts, count * sizeof(*experts));
    tr_frame_seal(frame, tr_hint_bytes(count), &head);
}

const uint16_t *tr_hint_experts(const void *frame, const tr_frame_header *head)
{
    RT_ASSERT(head->type == TR_HINT);
    return (const uint16_t *)(const void *)((const uint8_t *)frame + HEADER_BYTES);
}

size_t tr_error_write(void *frame, const tr_frame_header *dispatch, rt_status status,
                      const char *text)
{
    tr_frame_header head = tr_answer_head(dispatch, TR_ERROR);
    size_t length = tr_text_cut(text, strlen(text), TR_ERROR_TEXT_MAX);

    RT_ASSERT(status != RT_OK);
    head.status = (uint32_t)status;
    memcpy((uint8_t *)frame + HEADER_BYTES, text, length);
    tr_frame_seal(frame, HEADER_BYTES + length, &head);
    return HEADER_BYTES + length;
}

void tr_error_text(const void *frame, const tr_frame_header *head, char *out, size_t out_bytes)
{
    RT_ASSERT(head->type == TR_ERROR && head->payload_bytes <= TR_ERROR_TEXT_MAX);
    tr_text_clean((const char *)frame + HEADER_BYTES, (size_t)head->payload_bytes, out, out_bytes);
}
