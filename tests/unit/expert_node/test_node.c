/* test_node.c - frames over an inproc link: answers, refusals, hostile bytes. */
#include "expert_node/node.h"

#include "base/log.h"
#include "tests/support/expert_rig.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "transport/link_inproc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { POOL_BYTES = 1 << 20 };

typedef struct {
    char *dir;
    expert_rig rig;
    expert_rows rows;
    tr_link *head_link, *node_link;
    en_node *node;
} fixture;

/* dir: taken over; NULL: a fresh model. */
static void make_in(fixture *f, char *dir, const expert_rig_spec *wanted, size_t pool_bytes)
{
    tiny_model_spec model = tiny_model_default();
    expert_rig_spec spec = *wanted;
    en_node_spec node;
    rt_err err = {RT_OK, ""};

    f->dir = dir != NULL ? dir : tiny_model_build(&model);
    spec.dir = f->dir;
    expert_rig_open(&f->rig, &spec);
    expert_rows_make(&f->rows, f->rig.container, 1, 4, 3);
    assert_int_equal(tr_inproc_create(pool_bytes, &f->head_link, &f->node_link, &err), RT_OK);
    node = (en_node_spec){.link = f->node_link,
                          .executor = f->rig.executor,
                          .container = f->rig.container,
                          .experts_limit = md_container_config(f->rig.container)->experts};
    assert_int_equal(en_node_create(&node, &f->node, &err), RT_OK);
    tr_inproc_set_driver(f->node_link, en_node_drive, f->node);
}

static void make(fixture *f, const expert_rig_spec *wanted, size_t pool_bytes)
{
    make_in(f, NULL, wanted, pool_bytes);
}

static void unmake(fixture *f)
{
    en_node_free(f->node);
    tr_link_close(f->head_link);
    tr_link_close(f->node_link);
    expert_rows_free(&f->rows);
    expert_rig_close(&f->rig);
    temp_dir_remove(f->dir);
}

static void send_bytes(fixture *f, const void *bytes, size_t count)
{
    tr_buf *buf;

    assert_int_equal(tr_link_acquire(f->head_link, count, &buf), RT_OK);
    memcpy(buf->data, bytes, count);
    buf->length = count;
    assert_int_equal(tr_link_send(f->head_link, 0, buf), RT_OK);
}

/* The one answer to what was sent; the caller releases it. */
static tr_buf *receive(fixture *f, tr_frame_header *head)
{
    tr_event event;
    rt_err err = {RT_OK, ""};

    assert_int_equal(tr_link_poll(f->head_link, 0, &event), RT_OK);
    assert_int_equal(event.type, TR_EVENT_FRAME);
    assert_int_equal(tr_frame_check(event.buf->data, event.buf->length, head, &err), RT_OK);
    return event.buf;
}

static void expect_silence(fixture *f)
{
    tr_event event;

    assert_int_equal(tr_link_poll(f->head_link, 0, &event), RT_ETIMEOUT);
}

static void expect_error(fixture *f, rt_status status, uint64_t request, const char *word)
{
    tr_frame_header head;
    tr_buf *buf = receive(f, &head);
    char text[TR_ERROR_TEXT_MAX + 1];

    assert_int_equal(head.type, TR_ERROR);
    assert_int_equal(head.status, status);
    assert_int_equal(head.request, request);
    tr_error_text(buf->data, &head, text, sizeof(text));
    if (strstr(text, word) == NULL) fail_msg("no '%s' in: %s", word, text);
    tr_buf_release(buf);
    expect_silence(f);
}

/* Sends the rows as they are; the node must answer with what its executor computes. */
static void expect_reply(fixture *f)
{
    size_t bytes, payload_bytes;
    uint8_t *payload;
    uint8_t *frame =
        expert_frame(&f->rows, f->rig.container, NULL, 0, false, 0, f->rows.rows, &bytes);
    rt_err err = {RT_OK, ""};
    tr_frame_header head;
    tr_buf *buf;

    send_bytes(f, frame, bytes);
    buf = receive(f, &head);
    assert_int_equal(head.type, TR_REPLY);
    assert_int_equal(head.request, 77);
    assert_int_equal(head.attempt, 3);
    assert_int_equal(head.epoch, 1);
    assert_int_equal(head.layer, f->rows.layer);
    assert_int_equal(head.rows, f->rows.rows);
    assert_int_equal(head.q, f->rows.q);
    assert_int_equal(head.cols, f->rows.hidden);
    assert_int_equal(expert_rig_execute(&f->rig, frame, bytes, &payload, &payload_bytes, &err),
                     RT_OK);
    assert_int_equal(head.payload_bytes, payload_bytes);
    assert_memory_equal(buf->data + sizeof(head), payload, payload_bytes);
    tr_buf_release(buf);
    expect_silence(f);
    free(payload);
    free(frame);
}

static void a_dispatch_is_answered_by_its_sums(void **state)
{
    fixture f;

    (void)state;
    make(&f, &(expert_rig_spec){.threads = 2}, POOL_BYTES);
    expect_reply(&f);
    f.rows.layer = 2;
    expect_reply(&f);
    unmake(&f);
}

static void waiting_frames_are_all_handled(void **state)
{
    fixture f;
    size_t bytes;
    uint8_t *frame;
    tr_frame_header head;

    (void)state;
    make(&f, &(expert_rig_spec){0}, POOL_BYTES);
    frame = expert_frame(&f.rows, f.rig.container, NULL, 0, false, 0, 4, &bytes);
    for (int i = 0; i < 3; i++) {
        send_bytes(&f, frame, bytes);
    }
    for (int i = 0; i < 3; i++) {
        tr_buf *buf = receive(&f, &head);
        assert_int_equal(head.type, TR_REPLY);
        tr_buf_release(buf);
    }
    expect_silence(&f);
    free(frame);
    unmake(&f);
}

static void a_frame_that_cannot_be_believed_gets_an_error_without_its_ids(void **state)
{
    fixture f;
    size_t bytes;
    uint8_t *frame;

    (void)state;
    make(&f, &(expert_rig_spec){0}, POOL_BYTES);
    frame = expert_frame(&f.rows, f.rig.container, NULL, 0, false, 0, 4, &bytes);
    frame[bytes - 5] ^= 1;
    send_bytes(&f, frame, bytes);
    expect_error(&f, RT_EPROTO, 0, "hash");
    send_bytes(&f, frame, 10);
    expect_error(&f, RT_EPROTO, 0, "");
    expect_reply(&f);
    free(frame);
    unmake(&f);
}

static void frames_of_other_types_are_refused_and_errors_swallowed(void **state)
{
    fixture f;
    uint8_t control[sizeof(tr_frame_header) + 8] __attribute__((aligned(64))) = {0};
    uint8_t error[TR_ERROR_BYTES_MAX] __attribute__((aligned(64)));
    tr_frame_header head = {.type = TR_CONTROL, .request = 9};
    size_t bytes;

    (void)state;
    make(&f, &(expert_rig_spec){0}, POOL_BYTES);
    tr_frame_seal(control, sizeof(control), &head);
    send_bytes(&f, control, sizeof(control));
    expect_error(&f, RT_EPROTO, 9, "type");
    bytes = tr_error_write(error, &head, RT_ETIMEOUT, "too late");
    send_bytes(&f, error, bytes);
    expect_silence(&f);
    expect_reply(&f);
    unmake(&f);
}

static void what_the_executor_refuses_reaches_the_sender(void **state)
{
    fixture f;
    size_t bytes;
    uint8_t *frame;

    (void)state;
    make(&f, &(expert_rig_spec){.nodes = 2, .node = 0, .rows_max = 4}, POOL_BYTES);
    frame = expert_frame(&f.rows, f.rig.container, f.rig.map, 1, false, 0, 4, &bytes);
    assert_non_null(frame);
    send_bytes(&f, frame, bytes);
    expect_error(&f, RT_EINVAL, 77, "this node holds 0x0");
    free(frame);
    frame = expert_frame(&f.rows, f.rig.container, f.rig.map, 0, true, 0, 4, &bytes);
    send_bytes(&f, frame, bytes);
    expect_error(&f, RT_EPROTO, 77, "int8");
    free(frame);
    unmake(&f);
}

static void a_damaged_record_is_reported_and_the_node_lives_on(void **state)
{
    tiny_model_spec model = tiny_model_default();
    md_expert_layout layout;
    fixture f;
    size_t bytes;
    uint8_t *frame;
    char *dir;

    (void)state;
    make(&f, &(expert_rig_spec){0}, POOL_BYTES);
    md_container_expert_layout(f.rig.container, 1, &layout);
    unmake(&f);
    dir = tiny_model_build(&model);
    tiny_model_damage(dir, 2, 7);
    make_in(&f, dir, &(expert_rig_spec){.ram_bytes = 3 * layout.record_bytes}, POOL_BYTES);
    f.rows.layer = 2;
    f.rows.entries[1].expert = 7;
    frame = expert_frame(&f.rows, f.rig.container, NULL, 0, false, 0, 4, &bytes);
    for (int i = 0; i < 3; i++) {
        send_bytes(&f, frame, bytes);
        expect_error(&f, RT_EFORMAT, 77, "layer 2 expert 7");
        f.rows.layer = 1;
        expect_reply(&f);
    }
    free(frame);
    unmake(&f);
}

static void without_room_for_a_reply_the_node_says_busy(void **state)
{
    fixture f;
    size_t bytes;
    uint8_t *frame;
    tr_buf *hold;

    (void)state;
    make(&f, &(expert_rig_spec){0}, 4096);
    frame = expert_frame(&f.rows, f.rig.container, NULL, 0, false, 0, 4, &bytes);
    /* The node's own replies are still out: here the test holds the memory in their place. */
    assert_int_equal(tr_link_acquire(f.node_link, 2048, &hold), RT_OK);
    send_bytes(&f, frame, bytes);
    expect_error(&f, RT_EBUSY, 77, "reply");
    tr_buf_release(hold);
    expect_reply(&f);
    free(frame);
    unmake(&f);
}

/* Any bytes get exactly one answer: a reply or an error that says why. */
static void hostile_frames_get_one_answer_each(void **state)
{
    fixture f;
    size_t bytes;
    uint8_t *frame, *bad;
    uint64_t seed = 5;
    uint32_t replies = 0, errors = 0;

    (void)state;
    rt_log_set_level(RT_LOG_ERROR); /* thousands of refusals */
    make(&f, &(expert_rig_spec){.nodes = 2}, POOL_BYTES);
    frame = expert_frame(&f.rows, f.rig.container, f.rig.map, 0, false, 0, 4, &bytes);
    bad = aligned_alloc(64, (bytes + 63) / 64 * 64);
    assert_true(frame != NULL && bad != NULL);
    for (int i = 0; i < 4000; i++) {
        tr_frame_header head;
        tr_buf *buf;
        size_t length = bytes;
        memcpy(bad, frame, bytes);
        for (int flips = 0; flips < 1 + i % 3; flips++) {
            float where = tiny_model_uniform(&seed) * 0.5f + 0.5f;
            /* Header and entries, where a bit means most, get half of the flips each. */
            size_t at = i % 2 ? (size_t)(where * 64.0f) : (size_t)(where * (float)bytes);
            bad[at < bytes ? at : 0] ^= (uint8_t)(1u << (i / 2 % 8));
        }
        if (i % 7 == 0) length = (size_t)((tiny_model_uniform(&seed) * 0.5f + 0.5f) * (float)bytes);
        if (length == 0) length = 1;
        if (i % 5 != 0 && length >= sizeof(head)) { /* a valid hash takes it past the first check */
            memcpy(&head, bad, sizeof(head));
            tr_frame_seal(bad, length, &head);
        }
        memcpy(&head, bad, length < sizeof(head) ? length : sizeof(head));
        send_bytes(&f, bad, length);
        if (length >= sizeof(head) && head.type == TR_ERROR) {
            tr_event event;
            if (tr_link_poll(f.head_link, 0, &event) == RT_OK) tr_buf_release(event.buf);
            continue;
        }
        buf = receive(&f, &head);
        if (head.type == TR_REPLY) {
            replies++;
        } else {
            assert_int_equal(head.type, TR_ERROR);
            assert_true(head.status != RT_OK);
            errors++;
        }
        tr_buf_release(buf);
        expect_silence(&f);
    }
    assert_true(replies > 100 && errors > 100);
    rt_log_set_level(RT_LOG_WARN);
    free(frame);
    free(bad);
    unmake(&f);
}

static void a_closed_peer_ends_the_drive(void **state)
{
    fixture f;
    size_t bytes;
    uint8_t *frame;

    (void)state;
    make(&f, &(expert_rig_spec){0}, POOL_BYTES);
    frame = expert_frame(&f.rows, f.rig.container, NULL, 0, false, 0, 4, &bytes);
    send_bytes(&f, frame, bytes);
    tr_link_close(f.head_link);
    f.head_link = NULL;
    en_node_drive(f.node); /* the frame that waits cannot be answered, then the peer is gone */
    assert_int_equal(en_executor_get_stats(f.rig.executor).frames, 1);
    free(frame);
    unmake(&f);
}

/* Whatever a hint names, the link stays silent; what it names of this node's is read early. */
static void a_hint_is_followed_and_not_answered(void **state)
{
    enum { COUNT = 10 };
    static const uint16_t experts[COUNT] = {65535, 8, 0, 1, 2, 3, 4, 5, 6, 7};
    static const uint32_t layers[] = {0, 66, 65535, 1};
    uint8_t frame[256] __attribute__((aligned(64)));
    fixture f;

    (void)state;
    make(&f, &(expert_rig_spec){.ram_bytes = 200000}, 1 << 20);
    assert_false(en_store_holds_all(f.rig.store));
    for (size_t i = 0; i < sizeof(layers) / sizeof(layers[0]); i++) {
        assert_int_equal(en_store_get_stats(f.rig.store).ahead_reads, 0);
        tr_hint_write(frame, 1, layers[i], experts, COUNT);
        send_bytes(&f, frame, tr_hint_bytes(COUNT));
        expect_silence(&f);
    }
    assert_true(en_store_get_stats(f.rig.store).ahead_reads > 0);
    unmake(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_dispatch_is_answered_by_its_sums),
        cmocka_unit_test(waiting_frames_are_all_handled),
        cmocka_unit_test(a_frame_that_cannot_be_believed_gets_an_error_without_its_ids),
        cmocka_unit_test(frames_of_other_types_are_refused_and_errors_swallowed),
        cmocka_unit_test(what_the_executor_refuses_reaches_the_sender),
        cmocka_unit_test(a_damaged_record_is_reported_and_the_node_lives_on),
        cmocka_unit_test(without_room_for_a_reply_the_node_says_busy),
        cmocka_unit_test(hostile_frames_get_one_answer_each),
        cmocka_unit_test(a_hint_is_followed_and_not_answered),
        cmocka_unit_test(a_closed_peer_ends_the_drive),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
