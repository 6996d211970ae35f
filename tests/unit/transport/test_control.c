/* Control messages: what is encoded comes back, every field out of its range is named, and two hellos
 * agree or say why not. */
#include "transport/control.h"

#include "transport/frame.h"
#include "transport/link_inproc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { RAW_MAX = 1 << 21 };

static tr_link *a, *b;
static uint8_t raw[RAW_MAX] __attribute__((aligned(64)));
static size_t raw_bytes; /* payload so far */

static int open_link(void **state)
{
    (void)state;
    return tr_inproc_create(1 << 20, &a, &b, NULL) == RT_OK ? 0 : 1;
}

static int close_link(void **state)
{
    (void)state;
    tr_link_close(a);
    tr_link_close(b);
    return 0;
}

static tr_control good_hello(void)
{
    tr_control message = {.type = TR_CONTROL_HELLO,
                          .hello = {.protocol_min = 1,
                                    .protocol_max = 2,
                                    .numerics_id = 7,
                                    .role = TR_ROLE_EXPERT,
                                    .host = "desk-3",
                                    .pid = 4711}};

    for (int i = 0; i < TR_MODEL_ID_BYTES; i++)
        message.hello.model_id[i] = (uint8_t)(i * 7 + 1);
    return message;
}

static tr_control good_welcome(void)
{
    tr_control message = {.type = TR_CONTROL_WELCOME,
                          .welcome = {.protocol = 1,
                                      .node_index = 2,
                                      .epoch = 9,
                                      .sliced = true,
                                      .nodes = 3,
                                      .share = {0, 5, TR_SHARE_MAX},
                                      .float_activations = true,
                                      .rows_max = TR_ROWS_MAX,
                                      .with_mtp = true}};

    return message;
}

/* Encodes, sends and decodes; the message as the other end sees it. */
static tr_control passed(const tr_control *message)
{
    static tr_control out;
    tr_event event;
    rt_err err = {0};
    rt_status status;

    assert_int_equal(tr_control_send(a, 0, message), RT_OK);
    assert_int_equal(tr_link_poll(b, 0, &event), RT_OK);
    status = tr_control_decode(event.buf->data, event.buf->length, &out, &err);
    if (status != RT_OK) fail_msg("%s", err.text);
    tr_buf_release(event.buf);
    return out;
}

static void every_message_comes_back_as_it_was(void **state)
{
    const tr_control messages[] = {
        good_hello(),
        good_welcome(),
        {.type = TR_CONTROL_REJECT, .reject = {.status = RT_EFORMAT, .text = "another model"}},
        {.type = TR_CONTROL_PROGRESS, .progress = {.done_bytes = 5, .total_bytes = UINT64_MAX}},
        {.type = TR_CONTROL_READY, .ready = {.records = 9, .records_in_ram = 9, .ram_bytes = 1}},
        {.type = TR_CONTROL_STATS_REQUEST},
        {.type = TR_CONTROL_STATS_REPLY, .stats_reply = {1, 2, 3, 4, 5, 6, UINT64_MAX, 8, 9, 10}},
        {.type = TR_CONTROL_STOP, .stop = {.clean = true, .reason = "done"}},
        {.type = TR_CONTROL_STOP},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(messages) / sizeof(messages[0]); i++) {
        tr_control found = passed(&messages[i]);

        assert_int_equal(found.type, messages[i].type);
        switch (found.type) {
        case TR_CONTROL_HELLO:
            assert_memory_equal(&found.hello, &messages[i].hello, sizeof(found.hello));
            break;
        case TR_CONTROL_WELCOME:
            assert_memory_equal(&found.welcome, &messages[i].welcome, sizeof(found.welcome));
            break;
        case TR_CONTROL_REJECT:
            assert_memory_equal(&found.reject, &messages[i].reject, sizeof(found.reject));
            break;
        case TR_CONTROL_PROGRESS:
            assert_memory_equal(&found.progress, &messages[i].progress, sizeof(found.progress));
            break;
        case TR_CONTROL_READY:
            assert_memory_equal(&found.ready, &messages[i].ready, sizeof(found.ready));
            break;
        case TR_CONTROL_STATS_REQUEST:
            break;
        case TR_CONTROL_STATS_REPLY:
            assert_memory_equal(&found.stats_reply, &messages[i].stats_reply,
                                sizeof(found.stats_reply));
            break;
        case TR_CONTROL_STOP:
            assert_memory_equal(&found.stop, &messages[i].stop, sizeof(found.stop));
            break;
        }
    }
}

static void the_largest_welcome_fits(void **state)
{
    tr_control message = good_welcome(), found;

    (void)state;
    message.welcome.nodes = TR_NODES_MAX;
    for (uint32_t i = 0; i < TR_NODES_MAX; i++)
        message.welcome.share[i] = TR_SHARE_MAX - i;
    found = passed(&message);
    assert_memory_equal(&found.welcome, &message.welcome, sizeof(found.welcome));
}

static void texts_are_cleaned_when_sent(void **state)
{
    tr_control message = {.type = TR_CONTROL_REJECT, .reject = {.status = RT_EIO}}, found;

    (void)state;
    strcpy(message.reject.text, "two\nlines \xff");
    found = passed(&message);
    assert_string_equal(found.reject.text, "two?lines ?");
    memset(message.reject.text, 'y', sizeof(message.reject.text)); /* no end */
    found = passed(&message);
    assert_int_equal(strlen(found.reject.text), TR_REJECT_BYTES - 1);
}

static void a_busy_pool_is_reported(void **state)
{
    tr_control message = good_hello();
    tr_buf *all, *out = NULL;

    (void)state;
    assert_int_equal(tr_link_acquire(a, 1 << 20, &all), RT_OK);
    assert_int_equal(tr_control_encode(a, &message, &out), RT_EBUSY);
    assert_null(out);
    tr_buf_release(all);
}

/* ---- hand-made payloads ---- */

static void byte(unsigned value)
{
    raw[64 + raw_bytes++] = (uint8_t)value;
}

static void varint(uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        byte((unsigned)(value & 0x7f) | 0x80);
    byte((unsigned)value);
}

static void number_field(unsigned field, uint64_t value)
{
    byte(field << 3);
    varint(value);
}

static void bytes_field(unsigned field, const void *data, size_t bytes)
{
    byte(field << 3 | 2);
    varint(bytes);
    memcpy(raw + 64 + raw_bytes, data, bytes);
    raw_bytes += bytes;
}

/* Wraps what was written into the envelope's field and decodes. */
static rt_status decode_as(unsigned field, tr_control *out, rt_err *err)
{
    static uint8_t inner[RAW_MAX];
    const tr_frame_header head = {.type = TR_CONTROL};
    size_t bytes = raw_bytes;

    memcpy(inner, raw + 64, bytes);
    raw_bytes = 0;
    bytes_field(field, inner, bytes);
    tr_frame_seal(raw, 64 + raw_bytes, &head);
    bytes = 64 + raw_bytes;
    raw_bytes = 0;
    return tr_control_decode(raw, bytes, out, err);
}

static void expect_refused(unsigned field, const char *part)
{
    tr_control out = {.type = 99};
    rt_err err = {0};

    assert_int_equal(decode_as(field, &out, &err), RT_EPROTO);
    if (strstr(err.text, part) == NULL) fail_msg("expected '%s' in '%s'", part, err.text);
    assert_int_equal(out.type, 99);
}

/* A hello with one field (1..7) left out or replaced by `value`; text replaces host. */
static void hello_with(unsigned changed, uint64_t value, const void *data, size_t bytes)
{
    static const uint8_t id[TR_MODEL_ID_BYTES] = {1};
    const uint64_t numbers[8] = {0, 1, 1, 1, 0, 1, 0, 1};

    for (unsigned field = 1; field <= 7; field++) {
        if (field == 4 || field == 6) {
            if (field == changed)
                bytes_field(field, data, bytes);
            else
                bytes_field(field, field == 4 ? (const void *)id : "h", field == 4 ? 32 : 1);
        } else {
            number_field(field, field == changed ? value : numbers[field]);
        }
    }
}

static void hello_fields_are_checked(void **state)
{
    char long_host[300];
    tr_control out;
    rt_err err;

    (void)state;
    memset(long_host, 'h', sizeof(long_host));
    hello_with(0, 0, NULL, 0);
    assert_int_equal(decode_as(1, &out, &err), RT_OK);
    assert_string_equal(out.hello.host, "h");
    hello_with(1, 0, NULL, 0);
    expect_refused(1, "hello protocol_min: expected 1 to 65535, found 0");
    hello_with(1, 2, NULL, 0);
    expect_refused(1, "hello protocol_max: expected 2 to 65535, found 1");
    hello_with(2, 65536, NULL, 0);
    expect_refused(1, "hello protocol_max: expected 1 to 65535, found 65536");
    hello_with(3, 0, NULL, 0);
    expect_refused(1, "hello numerics_id: expected 1 to");
    hello_with(4, 0, long_host, 31);
    expect_refused(1, "hello model_id bytes: expected 32 to 32, found 31");
    hello_with(4, 0, long_host, 33);
    expect_refused(1, "found 33");
    hello_with(5, 0, NULL, 0);
    expect_refused(1, "hello role: expected 1 to 2, found 0");
    hello_with(5, 3, NULL, 0);
    expect_refused(1, "hello role: expected 1 to 2, found 3");
    hello_with(6, 0, "", 0);
    expect_refused(1, "hello host: expected 1 to 255 bytes, found 0");
    hello_with(6, 0, long_host, 256);
    expect_refused(1, "hello host: expected 1 to 255 bytes, found 256");
    hello_with(6, 0, "a\nb", 3);
    expect_refused(1, "hello host: expected UTF-8 without control characters");
    hello_with(6, 0, "\xff\xfe", 2);
    expect_refused(1, "hello host: expected UTF-8");
    hello_with(7, 0, NULL, 0);
    expect_refused(1, "hello pid: expected 1 to");
    expect_refused(1, "hello protocol_min"); /* an empty message is a message of zeros */
}

static void welcome_with(unsigned changed, uint64_t value, uint32_t shares, uint32_t share)
{
    const uint64_t numbers[9] = {0, 1, 1, 1, 1, 0, 0, 16, 0};

    for (unsigned field = 1; field <= 8; field++) {
        if (field == 5) {
            for (uint32_t i = 0; i < shares; i++)
                number_field(5, share);
        } else {
            number_field(field, field == changed ? value : numbers[field]);
        }
    }
}

static void welcome_fields_are_checked(void **state)
{
    tr_control out;
    rt_err err;

    (void)state;
    welcome_with(0, 0, 2, 3);
    assert_int_equal(decode_as(2, &out, &err), RT_OK);
    assert_int_equal(out.welcome.nodes, 2);
    assert_int_equal(out.welcome.share[1], 3);
    assert_false(out.welcome.sliced);
    welcome_with(0, 0, TR_NODES_MAX, 1); /* unpacked, as an encoder may write them */
    assert_int_equal(decode_as(2, &out, &err), RT_OK);
    welcome_with(1, 0, 2, 3);
    expect_refused(2, "welcome protocol: expected 1 to");
    welcome_with(2, 2, 2, 3);
    expect_refused(2, "welcome node_index: expected 0 to 1, found 2");
    welcome_with(4, 0, 2, 3);
    expect_refused(2, "welcome mode: expected 1 to 2, found 0");
    welcome_with(4, 3, 2, 3);
    expect_refused(2, "welcome mode: expected 1 to 2, found 3");
    welcome_with(0, 0, 0, 0);
    expect_refused(2, "welcome shares: expected 1 to 1024, found 0");
    welcome_with(0, 0, TR_NODES_MAX + 1, 1);
    expect_refused(2, "welcome shares: expected 1 to 1024, found 1025");
    welcome_with(0, 0, 2, 0);
    expect_refused(2, "welcome sum of shares");
    welcome_with(0, 0, 2, TR_SHARE_MAX + 1);
    expect_refused(2, "welcome share: expected 0 to 1048576");
    welcome_with(7, 0, 2, 3);
    expect_refused(2, "welcome rows_max: expected 1 to 4096, found 0");
    welcome_with(7, TR_ROWS_MAX + 1, 2, 3);
    expect_refused(2, "found 4097");
}

static void other_messages_are_checked(void **state)
{
    char text[600];
    tr_control out;

    (void)state;
    memset(text, 't', sizeof(text));
    bytes_field(2, "no", 2);
    expect_refused(3, "reject status: expected 1 to 65535, found 0");
    number_field(1, RT_EIO);
    expect_refused(3, "reject text: expected 1 to 512 bytes, found 0");
    number_field(1, RT_EIO);
    bytes_field(2, text, 513);
    expect_refused(3, "reject text: expected 1 to 512 bytes, found 513");
    number_field(1, 2);
    number_field(2, 1);
    expect_refused(4, "progress done_bytes: expected 0 to 1, found 2");
    number_field(2, 3);
    expect_refused(5, "ready records_in_ram: expected 0 to 0, found 3");
    bytes_field(1, text, 257);
    expect_refused(8, "stop reason: expected 0 to 256 bytes, found 257");
    bytes_field(1, "\x07", 1);
    expect_refused(8, "stop reason: expected UTF-8");
    assert_int_equal(decode_as(6, &out, NULL), RT_OK);
    assert_int_equal(out.type, TR_CONTROL_STATS_REQUEST);
}

static void an_envelope_without_a_known_message_is_refused(void **state)
{
    expect_refused(9, "expected a message, found none that is known");
    (void)state;
}

static void unknown_fields_are_ignored(void **state)
{
    tr_control out;

    (void)state;
    number_field(1, 3);
    number_field(2, 3);
    bytes_field(100 & 15, "later", 5);
    assert_int_equal(decode_as(5, &out, NULL), RT_OK);
    assert_int_equal(out.ready.records, 3);
}

static void a_flood_of_fields_ends_at_the_memory_cap(void **state)
{
    (void)state;
    for (int i = 0; i < 500000; i++)
        number_field(5, 1);
    expect_refused(2, "decodes in 262144 bytes of memory");
    for (int i = 0; i < 250000; i++)
        bytes_field(15, "", 0);
    expect_refused(5, "decodes in 262144 bytes of memory");
}

static void garbage_is_refused(void **state)
{
    tr_control out;
    const tr_frame_header head = {.type = TR_CONTROL};
    uint32_t x = 9;

    (void)state;
    for (int round = 0; round < 20000; round++) {
        size_t bytes = 1 + (size_t)(round % 90);

        for (size_t i = 0; i < bytes; i++) {
            x = x * 1664525 + 1013904223;
            raw[64 + i] = (uint8_t)(x >> 24);
        }
        raw[64] = (uint8_t)((1 + round % 8) << 3 | 2);
        tr_frame_seal(raw, 64 + bytes, &head);
        if (tr_control_decode(raw, 64 + bytes, &out, NULL) == RT_OK)
            assert_true(out.type >= TR_CONTROL_HELLO && out.type <= TR_CONTROL_STOP);
    }
}

static void other_frames_are_no_messages(void **state)
{
    tr_frame_header dispatch = {.layer = 1};
    tr_control out;
    rt_err err;
    size_t bytes = tr_error_write(raw, &dispatch, RT_EIO, "x");

    (void)state;
    assert_int_equal(tr_control_decode(raw, bytes, &out, &err), RT_EPROTO);
    assert_non_null(strstr(err.text, "frame type: expected 4, found 3"));
    assert_int_equal(tr_control_decode(raw, 10, &out, &err), RT_EPROTO);
}

/* ---- agreement ---- */

static void hellos_that_fit_agree_on_the_newest_protocol(void **state)
{
    tr_hello mine = good_hello().hello, theirs = good_hello().hello;

    (void)state;
    mine.role = TR_ROLE_ATTENTION;
    mine.protocol_max = 5;
    theirs.protocol_min = 2;
    theirs.protocol_max = 3;
    assert_int_equal(tr_hello_check(&mine, &theirs, NULL), RT_OK);
    assert_int_equal(tr_hello_check(&theirs, &mine, NULL), RT_OK);
    assert_int_equal(tr_hello_protocol(&mine, &theirs), 3);
    assert_int_equal(tr_hello_protocol(&theirs, &mine), 3);
}

static void expect_disagreement(const tr_hello *mine, const tr_hello *theirs, rt_status status,
                                const char *part)
{
    rt_err err = {0};

    assert_int_equal(tr_hello_check(mine, theirs, &err), status);
    if (strstr(err.text, part) == NULL) fail_msg("expected '%s' in '%s'", part, err.text);
}

static void hellos_that_do_not_fit_say_why(void **state)
{
    tr_hello mine = good_hello().hello, theirs = good_hello().hello;

    (void)state;
    mine.role = TR_ROLE_ATTENTION;
    theirs.protocol_min = theirs.protocol_max = 3;
    expect_disagreement(&mine, &theirs, RT_EUNSUPPORTED,
                        "desk-3: protocol: expected one of 1 to 2, found 3 to 3");
    expect_disagreement(&theirs, &mine, RT_EUNSUPPORTED, "expected one of 3 to 3, found 1 to 2");
    theirs = good_hello().hello;
    theirs.numerics_id = 8;
    expect_disagreement(&mine, &theirs, RT_EUNSUPPORTED, "numerics id: expected 7, found 8");
    theirs = good_hello().hello;
    memset(theirs.model_id, 0xab, TR_MODEL_ID_BYTES);
    expect_disagreement(&mine, &theirs, RT_EFORMAT,
                        "model id: expected "
                        "01080f161d242b323940474e555c636a71787f868d949ba2a9b0b7bec5ccd3da, found "
                        "abababababababababababababababababababababababababababababababab");
    theirs = good_hello().hello;
    theirs.role = TR_ROLE_ATTENTION;
    expect_disagreement(&mine, &theirs, RT_EINVAL,
                        "role: expected expert node, found attention node");
    mine.role = theirs.role = TR_ROLE_EXPERT;
    expect_disagreement(&mine, &theirs, RT_EINVAL,
                        "role: expected attention node, found expert node");
}

static void every_message_has_a_name(void **state)
{
    (void)state;
    for (int type = TR_CONTROL_HELLO; type <= TR_CONTROL_STOP; type++)
        assert_string_not_equal(tr_control_name((tr_control_type)type), "unknown");
    assert_string_equal(tr_control_name((tr_control_type)0), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_message_comes_back_as_it_was),
        cmocka_unit_test(the_largest_welcome_fits),
        cmocka_unit_test(texts_are_cleaned_when_sent),
        cmocka_unit_test(a_busy_pool_is_reported),
        cmocka_unit_test(hello_fields_are_checked),
        cmocka_unit_test(welcome_fields_are_checked),
        cmocka_unit_test(other_messages_are_checked),
        cmocka_unit_test(an_envelope_without_a_known_message_is_refused),
        cmocka_unit_test(unknown_fields_are_ignored),
        cmocka_unit_test(a_flood_of_fields_ends_at_the_memory_cap),
        cmocka_unit_test(garbage_is_refused),
        cmocka_unit_test(other_frames_are_no_messages),
        cmocka_unit_test(hellos_that_fit_agree_on_the_newest_protocol),
        cmocka_unit_test(hellos_that_do_not_fit_say_why),
        cmocka_unit_test(every_message_has_a_name),
    };

    return cmocka_run_group_tests(tests, open_link, close_link);
}
