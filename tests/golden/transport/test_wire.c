/* The bytes of docs/wire.md: frames that are made today are those in the files, and what the files call
 * corrupt is refused for the reason they are corrupt. A change here is a new protocol version. */
#include "transport/control.h"
#include "transport/frame.h"
#include "transport/link_inproc.h"
#include "transport/partial.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define FOLDER MOESAIC_FIXTURES "/../golden/transport/"

enum { BYTES = 4096, COLS = 70 };

static const tr_dispatch_limits limits = {
    .cols = COLS, .group = 32, .experts = 16, .slices = 8, .layers = 6};

typedef struct {
    uint8_t data[BYTES] __attribute__((aligned(64)));
    size_t bytes;
} sample;

static void dispatch(sample *out, tr_row_encoding encoding)
{
    bool int8 = encoding == TR_ROWS_INT8;
    tr_frame_header head = {.type = TR_DISPATCH,
                            .encoding = (uint8_t)encoding,
                            .request = 0x0102030405060708,
                            .attempt = 1,
                            .epoch = 42,
                            .layer = 5,
                            .rows = 2,
                            .group = int8 ? 32 : 0,
                            .q = -3,
                            .cols = COLS,
                            .entries = 3,
                            .deadline_us = 250000};
    tr_dispatch_fill fill;

    out->bytes = tr_dispatch_bytes(encoding, 2, COLS, head.group, 3);
    memset(out->data, 0, out->bytes);
    tr_dispatch_layout(out->data, encoding, 2, COLS, head.group, 3, &fill);
    for (int row = 0; row < 2; row++)
        for (int col = 0; col < COLS; col++) {
            if (int8)
                fill.q[row * 96 + col] = (int8_t)(col - 35 + row);
            else
                fill.f32[row * COLS + col] = (float)(col - 35) / 4 + (float)row;
        }
    for (int i = 0; int8 && i < 6; i++)
        fill.scale[i] = 0.5f + (float)i;
    fill.entry_count[0] = 1;
    fill.entry_count[1] = 2;
    fill.entries[0] = (tr_entry){.expert = 15, .slice_mask = 0xff, .weight = 0.75f};
    fill.entries[1] = (tr_entry){.expert = 2, .slice_mask = 0x01, .weight = 0.25f};
    fill.entries[2] = (tr_entry){.expert = 9, .slice_mask = 0x80, .weight = -1.5f};
    tr_frame_seal(out->data, out->bytes, &head);
}

static void dispatch_int8(sample *out)
{
    dispatch(out, TR_ROWS_INT8);
}

static void dispatch_f32(sample *out)
{
    dispatch(out, TR_ROWS_F32);
}

static tr_frame_header head_of_dispatch(void)
{
    static sample asked;
    tr_frame_header head;

    dispatch_int8(&asked);
    memcpy(&head, asked.data, sizeof(head));
    head.rows = 4;
    return head;
}

/* One row of each kind: zero, int16, mixed with every width, poison. */
static void reply(sample *out)
{
    tr_frame_header asked = head_of_dispatch(), head = tr_answer_head(&asked, TR_REPLY);
    int64_t wide[COLS] = {0};
    int32_t sum[COLS] = {0};
    uint8_t *at = out->data + 64;

    at += tr_partial_write(at, sum, COLS);
    for (int col = 0; col < COLS; col++)
        sum[col] = (col - 35) * 300;
    at += tr_partial_write(at, sum, COLS);
    for (int col = 0; col < COLS; col++)
        wide[col] = col < 64 ? (int64_t)(col - 32) * 100000 : (col - 66) * ((int64_t)1 << 40);
    at += tr_partial_write_wide(at, wide, COLS);
    at += tr_partial_write_poison(at);
    out->bytes = (size_t)(at - out->data);
    tr_frame_seal(out->data, out->bytes, &head);
}

static void error(sample *out)
{
    tr_frame_header asked = head_of_dispatch();

    out->bytes = tr_error_write(out->data, &asked, RT_EIO,
                                "experts-005.bin: read failed \xe2\x80\x94 disk 3");
}

static void control(sample *out, const tr_control *message)
{
    tr_link *a, *b;
    tr_buf *buf;

    assert_int_equal(tr_inproc_create(1 << 16, &a, &b, NULL), RT_OK);
    assert_int_equal(tr_control_encode(a, message, &buf), RT_OK);
    out->bytes = buf->length;
    memcpy(out->data, buf->data, buf->length);
    tr_buf_release(buf);
    tr_link_close(a);
    tr_link_close(b);
}

static void hello(sample *out)
{
    tr_control message = {.type = TR_CONTROL_HELLO,
                          .hello = {.protocol_min = 1,
                                    .protocol_max = 1,
                                    .numerics_id = 1,
                                    .role = TR_ROLE_EXPERT,
                                    .host = "desk-3",
                                    .pid = 4711}};

    for (int i = 0; i < TR_MODEL_ID_BYTES; i++)
        message.hello.model_id[i] = (uint8_t)(0xf0 - i);
    control(out, &message);
}

static void welcome(sample *out)
{
    tr_control message = {.type = TR_CONTROL_WELCOME,
                          .welcome = {.protocol = 1,
                                      .node_index = 1,
                                      .epoch = 42,
                                      .sliced = true,
                                      .nodes = 3,
                                      .share = {0, 1, 300},
                                      .float_activations = true,
                                      .rows_max = 512,
                                      .with_mtp = true}};

    control(out, &message);
}

static void reject(sample *out)
{
    tr_control message = {.type = TR_CONTROL_REJECT,
                          .reject = {.status = RT_EFORMAT, .text = "another model"}};

    control(out, &message);
}

static void ready(sample *out)
{
    tr_control message = {
        .type = TR_CONTROL_READY,
        .ready = {.records = 4800, .records_in_ram = 4000, .ram_bytes = 75000000000}};

    control(out, &message);
}

static void stats_reply(sample *out)
{
    tr_control message = {.type = TR_CONTROL_STATS_REPLY,
                          .stats_reply = {.hits = 1,
                                          .reads = 2,
                                          .read_bytes = 3,
                                          .wait_ns = 4,
                                          .compute_ns = 5,
                                          .frames = 6,
                                          .rows = UINT64_MAX}};

    control(out, &message);
}

static void hint(sample *out)
{
    static const uint16_t experts[] = {15, 0, 2, 255, 9};

    out->bytes = tr_hint_bytes(5);
    tr_hint_write(out->data, 42, 5, experts, 5);
}

static void stop(sample *out)
{
    tr_control message = {.type = TR_CONTROL_STOP, .stop = {.clean = true, .reason = "done"}};

    control(out, &message);
}

static const struct {
    const char *name;
    void (*make)(sample *out);
} valid[] = {
    {"dispatch_int8", dispatch_int8},
    {"dispatch_f32", dispatch_f32},
    {"reply", reply},
    {"error", error},
    {"hello", hello},
    {"welcome", welcome},
    {"reject", reject},
    {"ready", ready},
    {"stats_reply", stats_reply},
    {"stop", stop},
    {"hint", hint},
};

/* Names of files, and what the refusal says. The hash of each is right unless it is the hash itself
 * that is wrong. */
static const struct {
    const char *name, *part;
} corrupt[] = {
    {"bad_magic", "frame: magic: expected 3145534d, found 3245534d"},
    {"bad_version", "frame: version: expected 1 to 1, found 2"},
    {"bad_hash", "frame: hash: expected"},
    {"bad_length", "frame: payload bytes: expected"},
    {"bad_type", "frame: type: expected 1 to 5, found 9"},
    {"bad_rows", "frame: rows: expected 1 to 4096, found 5000"},
    {"bad_layer", "dispatch: layer: expected below 6, found 6"},
    {"bad_expert", "dispatch: row 0: expected an expert below 16, found 16"},
    {"bad_mask", "expected a mask of 8 slices, found 0x100"},
    {"bad_scale", "dispatch: row 0 group 0: expected a finite scale, found inf"},
    {"bad_counts", "dispatch: entries of all rows: expected 3, found 2"},
    {"bad_kind", "row 1: partial sum: kind: expected 0, 1, 2 or 255, found 3"},
    {"bad_code", "row 2: partial sum: width code of block 0"},
    {"bad_row_end", "row 3: partial sum: expected a row, found the end"},
    {"bad_host", "control: hello host: expected UTF-8 without control characters"},
    {"bad_model_id", "control: hello model_id bytes: expected 32 to 32, found 31"},
    {"bad_share", "control: welcome sum of shares"},
    {"bad_empty", "control: expected a message, found none that is known"},
    {"bad_hint_entries", "frame: entries: expected 1 to 256, found 0"},
    {"bad_hint_bytes", "frame: payload bytes: expected"},
};

static void load(const char *name, sample *out)
{
    char path[512];
    FILE *file;
    unsigned byte;

    snprintf(path, sizeof(path), FOLDER "%s.hex", name);
    file = fopen(path, "r");
    if (file == NULL) fail_msg("open %s", path);
    out->bytes = 0;
    while (out->bytes < BYTES && fscanf(file, "%2x", &byte) == 1)
        out->data[out->bytes++] = (uint8_t)byte;
    fclose(file);
}

/* All checks a receiver makes of a frame, whatever it is. */
static rt_status read_frame(const sample *frame, rt_err *err)
{
    tr_frame_header head;
    tr_dispatch_view view;
    tr_control message;

    RT_TRY(tr_frame_check(frame->data, frame->bytes, &head, err));
    switch (head.type) {
    case TR_DISPATCH:
        return tr_dispatch_read(frame->data, frame->bytes, &limits, &view, err);
    case TR_REPLY:
        return tr_partial_check(frame->data + 64, (size_t)head.payload_bytes, head.rows, head.cols,
                                err);
    case TR_CONTROL:
        return tr_control_decode(frame->data, frame->bytes, &message, err);
    default:
        return RT_OK;
    }
}

static void frames_made_today_are_those_of_the_files(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(valid) / sizeof(valid[0]); i++) {
        static sample made, golden;

        memset(&made, 0, sizeof(made));
        valid[i].make(&made);
        load(valid[i].name, &golden);
        if (made.bytes != golden.bytes)
            fail_msg("%s: expected %zu bytes, found %zu", valid[i].name, golden.bytes, made.bytes);
        for (size_t at = 0; at < made.bytes; at++)
            if (made.data[at] != golden.data[at])
                fail_msg("%s: byte %zu: expected %02x, found %02x", valid[i].name, at,
                         golden.data[at], made.data[at]);
    }
}

static void frames_of_the_files_are_accepted(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(valid) / sizeof(valid[0]); i++) {
        static sample golden;
        rt_err err = {0};

        load(valid[i].name, &golden);
        if (read_frame(&golden, &err) != RT_OK) fail_msg("%s: %s", valid[i].name, err.text);
    }
}

static void corrupt_frames_are_refused_for_their_reason(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(corrupt) / sizeof(corrupt[0]); i++) {
        static sample golden;
        rt_err err = {0};

        load(corrupt[i].name, &golden);
        if (read_frame(&golden, &err) != RT_EPROTO || strstr(err.text, corrupt[i].part) == NULL)
            fail_msg("%s: expected '%s', found '%s'", corrupt[i].name, corrupt[i].part, err.text);
    }
}

static void every_flipped_bit_of_a_golden_frame_is_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(valid) / sizeof(valid[0]); i++) {
        static sample golden;
        tr_frame_header head;

        load(valid[i].name, &golden);
        for (size_t bit = 0; bit < golden.bytes * 8; bit++) {
            golden.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
            assert_int_equal(tr_frame_check(golden.data, golden.bytes, &head, NULL), RT_EPROTO);
            golden.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_made_today_are_those_of_the_files),
        cmocka_unit_test(frames_of_the_files_are_accepted),
        cmocka_unit_test(corrupt_frames_are_refused_for_their_reason),
        cmocka_unit_test(every_flipped_bit_of_a_golden_frame_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
