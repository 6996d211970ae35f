/* control.c - protobuf on one side, checked plain structs on the other.
 *
 * protobuf-c's defaults trust the sender: an empty buffer decodes to a message of zeros, invalid UTF-8
 * passes, and a megabyte of small fields allocates tens of megabytes. Hence the capped allocator and a
 * check of every field. Unknown fields are ignored, so that a later version may add some. */
#include "transport/control.h"

#include "base/check.h"
#include "transport/frame.h"
#include "transport/text.h"

#include "control.pb-c.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { HEADER_BYTES = sizeof(tr_frame_header) };

static_assert(TR_ROLE_ATTENTION == (int)MOESAIC__ROLE__ROLE_ATTENTION, "one numbering");
static_assert(TR_ROLE_EXPERT == (int)MOESAIC__ROLE__ROLE_EXPERT, "one numbering");
static_assert(TR_CONTROL_HELLO == (int)MOESAIC__CONTROL__MESSAGE_HELLO, "one numbering");
static_assert(TR_CONTROL_STOP == (int)MOESAIC__CONTROL__MESSAGE_STOP, "one numbering");

const char *tr_control_name(tr_control_type type)
{
    switch (type) {
    case TR_CONTROL_HELLO:
        return "hello";
    case TR_CONTROL_WELCOME:
        return "welcome";
    case TR_CONTROL_REJECT:
        return "reject";
    case TR_CONTROL_PROGRESS:
        return "progress";
    case TR_CONTROL_READY:
        return "ready";
    case TR_CONTROL_STATS_REQUEST:
        return "stats request";
    case TR_CONTROL_STATS_REPLY:
        return "stats reply";
    case TR_CONTROL_STOP:
        return "stop";
    }
    return "unknown";
}

/* ---- encoding ---- */

/* The protobuf view of one message; the texts and lists it points to. */
typedef struct {
    Moesaic__Control control;
    union {
        Moesaic__Hello hello;
        Moesaic__Welcome welcome;
        Moesaic__Reject reject;
        Moesaic__Progress progress;
        Moesaic__Ready ready;
        Moesaic__StatsRequest stats_request;
        Moesaic__StatsReply stats_reply;
        Moesaic__Stop stop;
    };
    char text[TR_REJECT_BYTES];
    uint32_t share[TR_NODES_MAX];
    uint8_t model_id[TR_MODEL_ID_BYTES];
} wire_message;

static char *cleaned(wire_message *wire, const char *text, size_t text_bytes)
{
    tr_text_clean(text, strnlen(text, text_bytes), wire->text, text_bytes);
    return wire->text;
}

static void view_hello(wire_message *wire, const tr_hello *hello)
{
    moesaic__hello__init(&wire->hello);
    wire->hello.protocol_min = hello->protocol_min;
    wire->hello.protocol_max = hello->protocol_max;
    wire->hello.numerics_id = hello->numerics_id;
    memcpy(wire->model_id, hello->model_id, TR_MODEL_ID_BYTES);
    wire->hello.model_id.data = wire->model_id;
    wire->hello.model_id.len = TR_MODEL_ID_BYTES;
    wire->hello.role = (Moesaic__Role)hello->role;
    wire->hello.host = cleaned(wire, hello->host, sizeof(hello->host));
    wire->hello.pid = hello->pid;
    wire->control.hello = &wire->hello;
}

static void view_welcome(wire_message *wire, const tr_welcome *welcome)
{
    RT_ASSERT(welcome->nodes <= TR_NODES_MAX);
    moesaic__welcome__init(&wire->welcome);
    wire->welcome.protocol = welcome->protocol;
    wire->welcome.node_index = welcome->node_index;
    wire->welcome.epoch = welcome->epoch;
    wire->welcome.mode = welcome->sliced ? MOESAIC__PLACEMENT_MODE__PLACEMENT_SLICED
                                         : MOESAIC__PLACEMENT_MODE__PLACEMENT_WHOLE;
    memcpy(wire->share, welcome->share, welcome->nodes * sizeof(*welcome->share));
    wire->welcome.share = wire->share;
    wire->welcome.n_share = welcome->nodes;
    wire->welcome.float_activations = welcome->float_activations;
    wire->welcome.rows_max = welcome->rows_max;
    wire->welcome.with_mtp = welcome->with_mtp;
    wire->control.welcome = &wire->welcome;
}

static void view_stats(wire_message *wire, const tr_stats *stats)
{
    moesaic__stats_reply__init(&wire->stats_reply);
    wire->stats_reply.hits = stats->hits;
    wire->stats_reply.reads = stats->reads;
    wire->stats_reply.read_bytes = stats->read_bytes;
    wire->stats_reply.wait_ns = stats->wait_ns;
    wire->stats_reply.compute_ns = stats->compute_ns;
    wire->stats_reply.frames = stats->frames;
    wire->stats_reply.rows = stats->rows;
    wire->stats_reply.hits_pinned = stats->hits_pinned;
    wire->stats_reply.ahead_reads = stats->ahead_reads;
    wire->stats_reply.ahead_useful = stats->ahead_useful;
    wire->control.stats_reply = &wire->stats_reply;
}

static void view_message(wire_message *wire, const tr_control *message)
{
    moesaic__control__init(&wire->control);
    wire->control.message_case = (Moesaic__Control__MessageCase)message->type;
    switch (message->type) {
    case TR_CONTROL_HELLO:
        view_hello(wire, &message->hello);
        break;
    case TR_CONTROL_WELCOME:
        view_welcome(wire, &message->welcome);
        break;
    case TR_CONTROL_REJECT:
        RT_ASSERT(message->reject.status != RT_OK);
        moesaic__reject__init(&wire->reject);
        wire->reject.status = (uint32_t)message->reject.status;
        wire->reject.text = cleaned(wire, message->reject.text, sizeof(message->reject.text));
        wire->control.reject = &wire->reject;
        break;
    case TR_CONTROL_PROGRESS:
        moesaic__progress__init(&wire->progress);
        wire->progress.done_bytes = message->progress.done_bytes;
        wire->progress.total_bytes = message->progress.total_bytes;
        wire->control.progress = &wire->progress;
        break;
    case TR_CONTROL_READY:
        moesaic__ready__init(&wire->ready);
        wire->ready.records = message->ready.records;
        wire->ready.records_in_ram = message->ready.records_in_ram;
        wire->ready.ram_bytes = message->ready.ram_bytes;
        wire->control.ready = &wire->ready;
        break;
    case TR_CONTROL_STATS_REQUEST:
        moesaic__stats_request__init(&wire->stats_request);
        wire->control.stats_request = &wire->stats_request;
        break;
    case TR_CONTROL_STATS_REPLY:
        view_stats(wire, &message->stats_reply);
        break;
    case TR_CONTROL_STOP:
        moesaic__stop__init(&wire->stop);
        wire->stop.clean = message->stop.clean;
        wire->stop.reason = cleaned(wire, message->stop.reason, sizeof(message->stop.reason));
        wire->control.stop = &wire->stop;
        break;
    }
}

rt_status tr_control_encode(tr_link *link, const tr_control *message, tr_buf **out)
{
    const tr_frame_header head = {.type = TR_CONTROL};
    wire_message wire;
    size_t bytes;
    tr_buf *buf;

    view_message(&wire, message);
    bytes = moesaic__control__get_packed_size(&wire.control);
    RT_ASSERT(bytes > 0 && bytes <= TR_CONTROL_MAX);
    RT_TRY(tr_link_acquire(link, HEADER_BYTES + bytes, &buf));
    moesaic__control__pack(&wire.control, buf->data + HEADER_BYTES);
    buf->length = HEADER_BYTES + bytes;
    tr_frame_seal(buf->data, buf->length, &head);
    *out = buf;
    return RT_OK;
}

rt_status tr_control_send(tr_link *link, uint32_t peer, const tr_control *message)
{
    tr_buf *buf;

    RT_TRY(tr_control_encode(link, message, &buf));
    return tr_link_send(link, peer, buf);
}

/* ---- decoding ---- */

/* The decoder frees what it allocates only as a whole, so a sum that never shrinks is the cap. */
static void *capped_alloc(void *data, size_t bytes)
{
    size_t *left = data;

    if (bytes > *left) return NULL;
    *left -= bytes;
    return malloc(bytes > 0 ? bytes : 1);
}

static void capped_free(void *data, void *pointer)
{
    (void)data;
    free(pointer);
}

static rt_status range(rt_err *err, const char *field, uint64_t low, uint64_t high, uint64_t found)
{
    if (found >= low && found <= high) return RT_OK;
    return rt_fail(err, RT_EPROTO,
                   "control: %s: expected %" PRIu64 " to %" PRIu64 ", found %" PRIu64, field, low,
                   high, found);
}

static rt_status text(rt_err *err, const char *field, const char *found, size_t least, char *out,
                      size_t out_bytes)
{
    size_t length = strlen(found);

    if (length < least || length >= out_bytes)
        return rt_fail(err, RT_EPROTO, "control: %s: expected %zu to %zu bytes, found %zu", field,
                       least, out_bytes - 1, length);
    if (!tr_text_is_clean(found, length))
        return rt_fail(err, RT_EPROTO,
                       "control: %s: expected UTF-8 without control characters, found other bytes",
                       field);
    memcpy(out, found, length + 1);
    return RT_OK;
}

static rt_status read_hello(const Moesaic__Hello *in, tr_hello *out, rt_err *err)
{
    RT_TRY(range(err, "hello protocol_min", 1, UINT16_MAX, in->protocol_min));
    RT_TRY(range(err, "hello protocol_max", in->protocol_min, UINT16_MAX, in->protocol_max));
    RT_TRY(range(err, "hello numerics_id", 1, UINT32_MAX, in->numerics_id));
    RT_TRY(
        range(err, "hello model_id bytes", TR_MODEL_ID_BYTES, TR_MODEL_ID_BYTES, in->model_id.len));
    RT_TRY(range(err, "hello role", TR_ROLE_ATTENTION, TR_ROLE_EXPERT, (uint32_t)in->role));
    RT_TRY(range(err, "hello pid", 1, INT32_MAX, in->pid));
    RT_TRY(text(err, "hello host", in->host, 1, out->host, sizeof(out->host)));
    out->protocol_min = in->protocol_min;
    out->protocol_max = in->protocol_max;
    out->numerics_id = in->numerics_id;
    memcpy(out->model_id, in->model_id.data, TR_MODEL_ID_BYTES);
    out->role = (tr_role)in->role;
    out->pid = in->pid;
    return RT_OK;
}

static rt_status read_welcome(const Moesaic__Welcome *in, tr_welcome *out, rt_err *err)
{
    uint64_t shares = 0;

    RT_TRY(range(err, "welcome protocol", 1, UINT16_MAX, in->protocol));
    RT_TRY(range(err, "welcome shares", 1, TR_NODES_MAX, in->n_share));
    RT_TRY(range(err, "welcome node_index", 0, in->n_share - 1, in->node_index));
    RT_TRY(range(err, "welcome mode", MOESAIC__PLACEMENT_MODE__PLACEMENT_WHOLE,
                 MOESAIC__PLACEMENT_MODE__PLACEMENT_SLICED, (uint32_t)in->mode));
    RT_TRY(range(err, "welcome rows_max", 1, TR_ROWS_MAX, in->rows_max));
    for (size_t i = 0; i < in->n_share; i++) {
        RT_TRY(range(err, "welcome share", 0, TR_SHARE_MAX, in->share[i]));
        shares += in->share[i];
    }
    RT_TRY(range(err, "welcome sum of shares", 1, UINT64_MAX, shares));
    out->protocol = in->protocol;
    out->node_index = in->node_index;
    out->epoch = in->epoch;
    out->sliced = in->mode == MOESAIC__PLACEMENT_MODE__PLACEMENT_SLICED;
    out->nodes = (uint32_t)in->n_share;
    memcpy(out->share, in->share, in->n_share * sizeof(*out->share));
    out->float_activations = in->float_activations != 0;
    out->rows_max = in->rows_max;
    out->with_mtp = in->with_mtp != 0;
    return RT_OK;
}

static rt_status read_reject(const Moesaic__Reject *in, tr_reject *out, rt_err *err)
{
    RT_TRY(range(err, "reject status", 1, UINT16_MAX, in->status));
    RT_TRY(text(err, "reject text", in->text, 1, out->text, sizeof(out->text)));
    out->status = (rt_status)in->status;
    return RT_OK;
}

static rt_status read_ready(const Moesaic__Ready *in, tr_ready *out, rt_err *err)
{
    RT_TRY(range(err, "ready records_in_ram", 0, in->records, in->records_in_ram));
    out->records = in->records;
    out->records_in_ram = in->records_in_ram;
    out->ram_bytes = in->ram_bytes;
    return RT_OK;
}

static void read_stats(const Moesaic__StatsReply *in, tr_stats *out)
{
    out->hits = in->hits;
    out->reads = in->reads;
    out->read_bytes = in->read_bytes;
    out->wait_ns = in->wait_ns;
    out->compute_ns = in->compute_ns;
    out->frames = in->frames;
    out->rows = in->rows;
    out->hits_pinned = in->hits_pinned;
    out->ahead_reads = in->ahead_reads;
    out->ahead_useful = in->ahead_useful;
}

static rt_status read_message(const Moesaic__Control *in, tr_control *out, rt_err *err)
{
    switch (in->message_case) {
    case MOESAIC__CONTROL__MESSAGE_HELLO:
        return read_hello(in->hello, &out->hello, err);
    case MOESAIC__CONTROL__MESSAGE_WELCOME:
        return read_welcome(in->welcome, &out->welcome, err);
    case MOESAIC__CONTROL__MESSAGE_REJECT:
        return read_reject(in->reject, &out->reject, err);
    case MOESAIC__CONTROL__MESSAGE_PROGRESS:
        out->progress.done_bytes = in->progress->done_bytes;
        out->progress.total_bytes = in->progress->total_bytes;
        return range(err, "progress done_bytes", 0, in->progress->total_bytes,
                     in->progress->done_bytes);
    case MOESAIC__CONTROL__MESSAGE_READY:
        return read_ready(in->ready, &out->ready, err);
    case MOESAIC__CONTROL__MESSAGE_STATS_REQUEST:
        return RT_OK;
    case MOESAIC__CONTROL__MESSAGE_STATS_REPLY:
        read_stats(in->stats_reply, &out->stats_reply);
        return RT_OK;
    case MOESAIC__CONTROL__MESSAGE_STOP:
        out->stop.clean = in->stop->clean != 0;
        return text(err, "stop reason", in->stop->reason, 0, out->stop.reason,
                    sizeof(out->stop.reason));
    default:
        return rt_fail(err, RT_EPROTO, "control: expected a message, found none that is known");
    }
}

rt_status tr_control_decode(const void *frame, size_t frame_bytes, tr_control *out, rt_err *err)
{
    size_t left = TR_CONTROL_DECODE_BYTES;
    ProtobufCAllocator allocator = {capped_alloc, capped_free, &left};
    tr_control message;
    tr_frame_header head;
    Moesaic__Control *control;
    rt_status status;

    RT_TRY(tr_frame_check(frame, frame_bytes, &head, err));
    if (head.type != TR_CONTROL)
        return rt_fail(err, RT_EPROTO, "control: frame type: expected %d, found %u", TR_CONTROL,
                       head.type);
    control = moesaic__control__unpack(&allocator, (size_t)head.payload_bytes,
                                       (const uint8_t *)frame + HEADER_BYTES);
    if (control == NULL)
        return rt_fail(err, RT_EPROTO,
                       "control: expected a message that decodes in %d bytes of memory, found "
                       "%" PRIu64 " bytes that do not",
                       TR_CONTROL_DECODE_BYTES, head.payload_bytes);
    memset(&message, 0, sizeof(message));
    message.type = (tr_control_type)control->message_case;
    status = read_message(control, &message, err);
    moesaic__control__free_unpacked(control, &allocator);
    RT_TRY(status);
    *out = message;
    return RT_OK;
}

/* ---- agreement ---- */

const char *tr_model_id_text(const uint8_t *id, char *out)
{
    static const char digits[] = "0123456789abcdef";

    for (size_t i = 0; i < TR_MODEL_ID_BYTES; i++) {
        out[2 * i] = digits[id[i] >> 4];
        out[2 * i + 1] = digits[id[i] & 15];
    }
    out[2 * TR_MODEL_ID_BYTES] = '\0';
    return out;
}

static const char *role_name(tr_role role)
{
    return role == TR_ROLE_ATTENTION ? "attention node" : "expert node";
}

rt_status tr_hello_check(const tr_hello *mine, const tr_hello *theirs, rt_err *err)
{
    char expected[2 * TR_MODEL_ID_BYTES + 1], found[2 * TR_MODEL_ID_BYTES + 1];

    if (theirs->protocol_max < mine->protocol_min || theirs->protocol_min > mine->protocol_max)
        return rt_fail(err, RT_EUNSUPPORTED,
                       "%s: protocol: expected one of %u to %u, found %u to %u", theirs->host,
                       mine->protocol_min, mine->protocol_max, theirs->protocol_min,
                       theirs->protocol_max);
    if (theirs->numerics_id != mine->numerics_id)
        return rt_fail(err, RT_EUNSUPPORTED,
                       "%s: numerics id: expected %u, found %u (builds that compute other bits)",
                       theirs->host, mine->numerics_id, theirs->numerics_id);
    if (memcmp(theirs->model_id, mine->model_id, TR_MODEL_ID_BYTES) != 0)
        return rt_fail(err, RT_EFORMAT, "%s: model id: expected %s, found %s", theirs->host,
                       tr_model_id_text(mine->model_id, expected),
                       tr_model_id_text(theirs->model_id, found));
    if (theirs->role == mine->role)
        return rt_fail(
            err, RT_EINVAL, "%s: role: expected %s, found %s", theirs->host,
            role_name(mine->role == TR_ROLE_ATTENTION ? TR_ROLE_EXPERT : TR_ROLE_ATTENTION),
            role_name(theirs->role));
    return RT_OK;
}

uint32_t tr_hello_protocol(const tr_hello *mine, const tr_hello *theirs)
{
    RT_ASSERT(theirs->protocol_max >= mine->protocol_min &&
              theirs->protocol_min <= mine->protocol_max);
    return theirs->protocol_max < mine->protocol_max ? theirs->protocol_max : mine->protocol_max;
}
