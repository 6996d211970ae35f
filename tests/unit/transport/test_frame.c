/* Sealing and checking frames: everything a peer can get wrong is named. */
#include "transport/frame.h"

#include "transport/partial.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BYTES = 1 << 16 };

static uint8_t *frame; /* [BYTES] 64-byte aligned */

static int allocate(void **state)
{
    (void)state;
    frame = aligned_alloc(64, BYTES);
    return frame == NULL;
}

static int release(void **state)
{
    (void)state;
    free(frame);
    return 0;
}

static tr_frame_header dispatch_head(void)
{
    return (tr_frame_header){.type = TR_DISPATCH,
                             .encoding = TR_ROWS_INT8,
                             .request = 0x1122334455667788,
                             .attempt = 2,
                             .epoch = 3,
                             .layer = 5,
                             .rows = 3,
                             .group = 32,
                             .q = -7,
                             .cols = 70,
                             .entries = 4,
                             .deadline_us = 1000};
}

/* A dispatch of zeros with that head; returns its bytes. */
static size_t make_dispatch(const tr_frame_header *head)
{
    size_t bytes = tr_dispatch_bytes((tr_row_encoding)head->encoding, head->rows, head->cols,
                                     head->group, head->entries);

    memset(frame, 0, bytes);
    tr_frame_seal(frame, bytes, head);
    return bytes;
}

static size_t make_reply(void)
{
    tr_frame_header dispatch = dispatch_head(), head = tr_answer_head(&dispatch, TR_REPLY);

    memset(frame + 64, 0, 3);
    tr_frame_seal(frame, 64 + 3, &head);
    return 64 + 3;
}

static void expect_refused(size_t bytes, const char *part)
{
    tr_frame_header head = {.rows = 4242};
    rt_err err = {0};

    assert_int_equal(tr_frame_check(frame, bytes, &head, &err), RT_EPROTO);
    if (strstr(err.text, part) == NULL) fail_msg("expected '%s' in '%s'", part, err.text);
    assert_int_equal(head.rows, 4242);
    assert_int_equal(tr_frame_check(frame, bytes, &head, NULL), RT_EPROTO);
}

/* Seals a head as it is, sense or not, over the payload that is there. */
static void expect_head_refused(size_t bytes, const tr_frame_header *head, const char *part)
{
    tr_frame_seal(frame, bytes, head);
    expect_refused(bytes, part);
}

static void a_sealed_frame_passes_and_gives_its_head(void **state)
{
    tr_frame_header head = dispatch_head(), found;
    size_t bytes = make_dispatch(&head);

    (void)state;
    assert_int_equal(tr_frame_check(frame, bytes, &found, NULL), RT_OK);
    assert_int_equal(found.magic, TR_FRAME_MAGIC);
    assert_int_equal(found.version, TR_PROTOCOL_MAX);
    assert_int_equal(found.request, head.request);
    assert_int_equal(found.attempt, 2);
    assert_int_equal(found.q, -7);
    assert_int_equal(found.payload_bytes, bytes - 64);
    assert_int_equal(tr_frame_check(frame, make_reply(), &found, NULL), RT_OK);
    assert_int_equal(found.type, TR_REPLY);
}

static void sealing_is_deterministic(void **state)
{
    tr_frame_header head = dispatch_head();
    size_t bytes = make_dispatch(&head);
    uint8_t copy[64];

    (void)state;
    memcpy(copy, frame, 64);
    memset(frame, 0xff, 64);
    tr_frame_seal(frame, bytes, &head);
    assert_memory_equal(frame, copy, 64);
}

static void every_flipped_bit_is_noticed(void **state)
{
    tr_frame_header head = dispatch_head();
    size_t bytes = make_dispatch(&head);

    (void)state;
    for (size_t bit = 0; bit < bytes * 8; bit++) {
        frame[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_int_equal(tr_frame_check(frame, bytes, &head, NULL), RT_EPROTO);
        frame[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    assert_int_equal(tr_frame_check(frame, bytes, &head, NULL), RT_OK);
}

static void every_truncation_and_extension_is_refused(void **state)
{
    tr_frame_header head = dispatch_head();
    size_t bytes = make_dispatch(&head);

    (void)state;
    for (size_t length = 0; length < bytes; length++)
        assert_int_equal(tr_frame_check(frame, length, &head, NULL), RT_EPROTO);
    assert_int_equal(tr_frame_check(frame, bytes + 1, &head, NULL), RT_EPROTO);
    expect_refused(0, "bytes: expected 64 to");
    expect_refused(63, "found 63");
    expect_refused((size_t)TR_FRAME_BYTES_MAX + 1, "bytes: expected 64 to 1073741824");
}

static void magic_version_and_hash_are_named(void **state)
{
    tr_frame_header head = dispatch_head();
    size_t bytes = make_dispatch(&head);

    (void)state;
    frame[0] ^= 1;
    expect_refused(bytes, "magic: expected 3145534d, found 3145534c");
    frame[0] ^= 1;
    frame[4] = 9;
    expect_refused(bytes, "version: expected 1 to 1, found 9");
    frame[4] = 1;
    frame[bytes - 1] ^= 0x80;
    expect_refused(bytes, "hash: expected ");
}

static void dispatch_heads_are_bounded(void **state)
{
    tr_frame_header good = dispatch_head(), head;
    size_t bytes = make_dispatch(&good);

    (void)state;
#define REFUSED(field, value, part)                                                                \
    do {                                                                                           \
        head = good;                                                                               \
        head.field = (value);                                                                      \
        expect_head_refused(bytes, &head, part);                                                   \
    } while (0)
    REFUSED(type, 0, "type: expected 1 to 5, found 0");
    REFUSED(type, 6, "type: expected 1 to 5, found 6");
    REFUSED(encoding, TR_ROWS_NONE, "encoding");
    REFUSED(encoding, 3, "encoding: expected 1 to 2, found 3");
    REFUSED(encoding, TR_ROWS_F32, "group: expected 0, found 32");
    REFUSED(rows, 0, "rows: expected 1 to 4096, found 0");
    REFUSED(rows, TR_ROWS_MAX + 1, "found 4097");
    REFUSED(rows, 2, "payload bytes: expected");
    REFUSED(rows, 4, "payload bytes: expected");
    REFUSED(cols, 0, "cols: expected 1 to 65536, found 0");
    REFUSED(cols, TR_COLS_MAX + 1, "found 65537");
    REFUSED(cols, UINT32_MAX, "found 4294967295");
    REFUSED(cols, 3, "payload bytes");
    REFUSED(group, 0, "group: expected a multiple of 16, found 0");
    REFUSED(group, 33, "group: expected a multiple of 16, found 33");
    REFUSED(group, 65520, "payload bytes");
    REFUSED(entries, 3 * TR_ROW_ENTRIES_MAX + 1, "entries: expected 0 to 192, found 193");
    REFUSED(entries, UINT32_MAX, "found 4294967295");
    REFUSED(entries, 3, "payload bytes");
    REFUSED(reserved, 1, "reserved: expected 0, found 1");
    REFUSED(status, RT_EIO, "status: expected 0, found 3");
}

static void reply_heads_are_bounded(void **state)
{
    size_t bytes = make_reply();
    tr_frame_header good, head;

    (void)state;
    assert_int_equal(tr_frame_check(frame, bytes, &good, NULL), RT_OK);
    REFUSED(encoding, TR_ROWS_INT8, "encoding: expected 0, found 1");
    REFUSED(group, 16, "group: expected 0, found 16");
    REFUSED(entries, 1, "entries: expected 0, found 1");
    REFUSED(deadline_us, 1, "deadline: expected 0, found 1");
    REFUSED(rows, 0, "rows: expected 1 to 4096, found 0");
    REFUSED(rows, 4, "payload bytes: expected 4 to");
    REFUSED(cols, 0, "cols: expected 1 to 65536, found 0");
    REFUSED(status, 1, "status: expected 0, found 1");
    bytes = 64 + 3 * tr_partial_bytes_max(good.cols) + 1;
    memset(frame + 64, 0, bytes - 64);
    expect_head_refused(bytes, &good, "payload bytes: expected 3 to");
}

static void error_heads_are_bounded(void **state)
{
    tr_frame_header dispatch = dispatch_head(), good, head;
    size_t bytes = tr_error_write(frame, &dispatch, RT_EIO, "disk 3 is gone");

    (void)state;
    assert_int_equal(tr_frame_check(frame, bytes, &good, NULL), RT_OK);
    assert_int_equal(good.status, RT_EIO);
    assert_int_equal(good.request, dispatch.request);
    REFUSED(status, 0, "status: expected 1 to 65535, found 0");
    REFUSED(status, 65536, "found 65536");
    REFUSED(encoding, TR_ROWS_F32, "encoding");
    REFUSED(deadline_us, 5, "deadline");
    REFUSED(rows, TR_ROWS_MAX + 1, "rows");
    memset(frame + 64, 'x', TR_ERROR_TEXT_MAX + 1);
    expect_head_refused(64 + TR_ERROR_TEXT_MAX + 1, &good, "payload bytes: expected 0 to 512");
}

static void control_heads_are_bounded(void **state)
{
    tr_frame_header good = {.type = TR_CONTROL, .request = 4}, head;

    (void)state;
    frame[64] = 0;
    tr_frame_seal(frame, 65, &good);
    assert_int_equal(tr_frame_check(frame, 65, &head, NULL), RT_OK);
    size_t bytes = 65;
    REFUSED(attempt, 1, "attempt: expected 0, found 1");
    REFUSED(epoch, 1, "epoch: expected 0, found 1");
    REFUSED(layer, 1, "layer: expected 0, found 1");
    REFUSED(rows, 1, "rows: expected 0, found 1");
    REFUSED(cols, 1, "cols: expected 0, found 1");
    REFUSED(q, -1, "q: expected 0, found 255");
    REFUSED(status, 1, "status: expected 0, found 1");
    REFUSED(entries, 1, "entries");
    expect_head_refused(64, &good, "payload bytes: expected 1 to 1048576, found 0");
}

static void hint_heads_are_bounded_and_their_experts_come_back(void **state)
{
    static const uint16_t experts[] = {7, 65535, 3};
    tr_frame_header good = {.type = TR_HINT, .epoch = 5, .layer = 9, .entries = 3}, head;
    size_t bytes = tr_hint_bytes(3);

    (void)state;
    tr_hint_write(frame, 5, 9, experts, 3);
    assert_int_equal(tr_frame_check(frame, bytes, &head, NULL), RT_OK);
    assert_int_equal(head.epoch, 5);
    assert_int_equal(head.layer, 9);
    assert_int_equal(head.entries, 3);
    assert_memory_equal(tr_hint_experts(frame, &head), experts, sizeof(experts));
    REFUSED(encoding, TR_ROWS_F32, "encoding: expected 0, found 2");
    REFUSED(attempt, 1, "attempt: expected 0, found 1");
    REFUSED(rows, 1, "rows: expected 0, found 1");
    REFUSED(group, 16, "group: expected 0, found 16");
    REFUSED(q, -1, "q: expected 0, found 255");
    REFUSED(cols, 1, "cols: expected 0, found 1");
    REFUSED(deadline_us, 1, "deadline: expected 0, found 1");
    REFUSED(status, 1, "status: expected 0, found 1");
    REFUSED(entries, 0, "entries: expected 1 to 256, found 0");
    REFUSED(entries, 257, "entries: expected 1 to 256, found 257");
    REFUSED(entries, 2, "payload bytes: expected 4, found 6");
#undef REFUSED
}

static void an_answer_echoes_the_dispatch_and_nothing_else(void **state)
{
    tr_frame_header dispatch = dispatch_head(), head = tr_answer_head(&dispatch, TR_REPLY);

    (void)state;
    assert_int_equal(head.type, TR_REPLY);
    assert_int_equal(head.request, dispatch.request);
    assert_int_equal(head.attempt, dispatch.attempt);
    assert_int_equal(head.epoch, dispatch.epoch);
    assert_int_equal(head.layer, dispatch.layer);
    assert_int_equal(head.rows, dispatch.rows);
    assert_int_equal(head.cols, dispatch.cols);
    assert_int_equal(head.q, dispatch.q);
    assert_int_equal(head.encoding, TR_ROWS_NONE);
    assert_int_equal(head.group | head.entries | head.deadline_us | head.status, 0);
}

static void error_text_is_cut_at_a_character_and_cleaned(void **state)
{
    tr_frame_header dispatch = dispatch_head(), head;
    char text[700], shown[600];
    size_t bytes;

    (void)state;
    memset(text, 'a', sizeof(text));
    memcpy(text + TR_ERROR_TEXT_MAX - 1, "\xc3\xa9", 3); /* an e-acute over the edge */
    bytes = tr_error_write(frame, &dispatch, RT_EIO, text);
    assert_int_equal(bytes, 64 + TR_ERROR_TEXT_MAX - 1);
    bytes = tr_error_write(frame, &dispatch, RT_EIO, "line\none\x1b[2J \xff caf\xc3\xa9");
    assert_int_equal(tr_frame_check(frame, bytes, &head, NULL), RT_OK);
    tr_error_text(frame, &head, shown, sizeof(shown));
    assert_string_equal(shown, "line?one?[2J ? caf\xc3\xa9");
    tr_error_text(frame, &head, shown, 5);
    assert_string_equal(shown, "line");
    bytes = tr_error_write(frame, &dispatch, RT_EIO, "");
    assert_int_equal(tr_frame_check(frame, bytes, &head, NULL), RT_OK);
    tr_error_text(frame, &head, shown, sizeof(shown));
    assert_string_equal(shown, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sealed_frame_passes_and_gives_its_head),
        cmocka_unit_test(sealing_is_deterministic),
        cmocka_unit_test(every_flipped_bit_is_noticed),
        cmocka_unit_test(every_truncation_and_extension_is_refused),
        cmocka_unit_test(magic_version_and_hash_are_named),
        cmocka_unit_test(dispatch_heads_are_bounded),
        cmocka_unit_test(reply_heads_are_bounded),
        cmocka_unit_test(error_heads_are_bounded),
        cmocka_unit_test(control_heads_are_bounded),
        cmocka_unit_test(hint_heads_are_bounded_and_their_experts_come_back),
        cmocka_unit_test(an_answer_echoes_the_dispatch_and_nothing_else),
        cmocka_unit_test(error_text_is_cut_at_a_character_and_cleaned),
    };

    return cmocka_run_group_tests(tests, allocate, release);
}
