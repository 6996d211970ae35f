/* test_moe.c - the driver of a MoE layer when nodes answer well, late, wrongly or never. */
#include "tests/unit/attention_node/engine_fixture.h"

#include "transport/partial.h"

#include <math.h>

static int setup(void **state)
{
    tiny_model_spec model = tiny_model_default();
    engine_fixture *f = engine_fixture_open(&model);

    engine_fixture_start(f);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    engine_fixture_close(*state);
    return 0;
}

/* What a node does with its n-th frame. */
typedef enum { ANSWER, SILENCE, ERROR, DOWN, GARBAGE, POISON, TWICE } behaviour;

typedef struct {
    behaviour of[FIXTURE_NODES];
    uint32_t polls_at_send[16], sends;
    uint64_t request[16];
    uint8_t *kept; /* the last frame of a node that was silent */
    size_t kept_bytes;
    uint32_t kept_peer;
} script;

static void answer_error(fake_link *link, uint32_t peer, const uint8_t *frame)
{
    _Alignas(64) uint8_t error[TR_ERROR_BYTES_MAX];
    tr_frame_header head;
    size_t bytes;

    memcpy(&head, frame, sizeof(head));
    bytes = tr_error_write(error, &head, RT_EIO, "cannot read expert 7");
    fake_link_push(link, peer, error, bytes);
}

static void answer_poison(fake_link *link, uint32_t peer, const uint8_t *frame)
{
    uint8_t payload[FIXTURE_ROWS] = {0};
    tr_frame_header head;
    uint8_t *reply;
    size_t bytes;

    memcpy(&head, frame, sizeof(head));
    assert_int_equal(tr_partial_write_poison(payload + head.rows - 1), 1);
    reply = fake_link_reply(frame, payload, head.rows, &bytes);
    fake_link_push(link, peer, reply, bytes);
    free(reply);
}

static void play(void *context, fake_link *link, uint32_t peer, const uint8_t *frame, size_t bytes)
{
    script *s = context;
    tr_frame_header head;

    memcpy(&head, frame, sizeof(head));
    assert_true(s->sends < 16);
    s->polls_at_send[s->sends] = link->polls;
    s->request[s->sends++] = head.request;
    switch (s->of[peer]) {
    case TWICE:
        fake_link_answer_zeros(NULL, link, peer, frame, bytes);
        fake_link_answer_zeros(NULL, link, peer, frame, bytes);
        break;
    case ANSWER:
        fake_link_answer_zeros(NULL, link, peer, frame, bytes);
        break;
    case SILENCE:
        free(s->kept);
        s->kept = malloc(bytes);
        assert_non_null(s->kept);
        memcpy(s->kept, frame, bytes);
        s->kept_bytes = bytes;
        s->kept_peer = peer;
        break;
    case ERROR:
        answer_error(link, peer, frame);
        break;
    case DOWN:
        fake_link_push_down(link, peer);
        break;
    case GARBAGE:
        fake_link_push(link, peer, "this is not a frame at all", 26);
        break;
    case POISON:
        answer_poison(link, peer, frame);
        break;
    }
}

static void play_script(engine_fixture *f, script *s)
{
    f->link->sent = play;
    f->link->sent_context = s;
}

static void all_frames_leave_before_a_reply_is_awaited(void **state)
{
    engine_fixture *f = *state;
    script s = {0};

    play_script(f, &s);
    assert_int_equal(engine_fixture_step(f, engine_fixture_seq(f), 6), RT_OK);
    assert_int_equal(s.sends, FIXTURE_NODES * 2); /* two MoE layers */
    for (uint32_t i = 0; i < FIXTURE_NODES; i++) {
        assert_int_equal(s.polls_at_send[i], 0);
        assert_int_equal(s.request[i], s.request[0]);
        assert_int_equal(s.polls_at_send[FIXTURE_NODES + i], s.polls_at_send[FIXTURE_NODES]);
    }
    assert_int_equal(s.request[FIXTURE_NODES], s.request[0] + 1);
}

static void a_silent_node_is_named_with_its_layer(void **state)
{
    engine_fixture *f = *state;
    script s = {.of = {ANSWER, SILENCE, ANSWER}};
    an_seq *seq = engine_fixture_seq(f);
    uint64_t start = f->link->time.ns;

    play_script(f, &s);
    assert_int_equal(engine_fixture_step(f, seq, 4), RT_EPEER);
    engine_fixture_text(f, "node one");
    engine_fixture_text(f, "layer 1");
    assert_int_equal(an_seq_length(seq), 0);
    assert_true(f->link->time.ns - start >= f->spec.reply_timeout_ns);
    assert_true(f->link->time.ns - start < 2 * f->spec.reply_timeout_ns);
    free(s.kept);
}

/* The node comes back: its answer to the old layer must not be taken for the new one's. */
static void a_late_reply_is_dropped_and_the_step_can_be_repeated(void **state)
{
    engine_fixture *f = *state;
    script s = {.of = {ANSWER, ANSWER, SILENCE}};
    an_seq *seq = engine_fixture_seq(f);
    uint8_t payload[FIXTURE_ROWS * 600];
    tr_frame_header head;
    size_t bytes = 0, reply_bytes;
    uint8_t *reply;

    play_script(f, &s);
    assert_int_equal(engine_fixture_step(f, seq, 4), RT_EPEER);
    memcpy(&head, s.kept, sizeof(head));
    for (uint32_t row = 0; row < head.rows; row++)
        bytes += tr_partial_write_poison(payload + bytes); /* would be noticed if it were added */
    reply = fake_link_reply(s.kept, payload, bytes, &reply_bytes);
    fake_link_push(f->link, s.kept_peer, reply, reply_bytes);
    s.of[2] = ANSWER;
    assert_int_equal(engine_fixture_step(f, seq, 4), RT_OK);
    assert_int_equal(an_seq_length(seq), 4);
    free(reply);
    free(s.kept);
}

static void a_duplicate_reply_is_dropped(void **state)
{
    engine_fixture *f = *state;
    script s = {.of = {TWICE, TWICE, TWICE}};

    play_script(f, &s);
    assert_int_equal(engine_fixture_step(f, engine_fixture_seq(f), 4), RT_OK);
}

static void an_error_of_a_node_carries_its_status_text_and_name(void **state)
{
    engine_fixture *f = *state;
    script s = {.of = {ANSWER, ANSWER, ERROR}};
    an_seq *seq = engine_fixture_seq(f);

    play_script(f, &s);
    assert_int_equal(engine_fixture_step(f, seq, 4), RT_EIO);
    engine_fixture_text(f, "node two");
    engine_fixture_text(f, "cannot read expert 7");
    engine_fixture_text(f, "layer 1");
    assert_int_equal(an_seq_length(seq), 0);
}

static void a_node_that_goes_down_ends_the_step_at_once(void **state)
{
    engine_fixture *f = *state;
    script s = {.of = {DOWN, ANSWER, ANSWER}};
    an_seq *seq = engine_fixture_seq(f);
    uint64_t start = f->link->time.ns;

    play_script(f, &s);
    assert_int_equal(engine_fixture_step(f, seq, 4), RT_EPEER);
    engine_fixture_text(f, "node zero");
    assert_int_equal(f->link->time.ns, start);
    /* And it stays down. */
    s.of[0] = ANSWER;
    assert_int_equal(engine_fixture_step(f, seq, 4), RT_EPEER);
    engine_fixture_text(f, "is down");
}

static void garbage_is_a_protocol_error_of_its_sender(void **state)
{
    engine_fixture *f = *state;
    script s = {.of = {ANSWER, GARBAGE, ANSWER}};

    play_script(f, &s);
    assert_int_equal(engine_fixture_step(f, engine_fixture_seq(f), 4), RT_EPROTO);
    engine_fixture_text(f, "node one");
}

static void a_poison_row_names_layer_sequence_and_position(void **state)
{
    engine_fixture *f = *state;
    script s = {.of = {ANSWER, POISON, ANSWER}};
    an_seq *first = engine_fixture_seq(f), *seq = engine_fixture_seq(f);

    assert_int_equal(engine_fixture_step(f, seq, 2), RT_OK);
    play_script(f, &s);
    assert_int_equal(engine_fixture_step(f, seq, 1), RT_ENUMERIC);
    engine_fixture_text(f, "layer 1");
    engine_fixture_text(f, "sequence 1");
    engine_fixture_text(f, "position 2");
    assert_int_equal(an_seq_length(seq), 2);
    an_seq_close(first);
}

static void a_full_pool_is_waited_for(void **state)
{
    engine_fixture *f = *state;

    f->link->busy = 3;
    assert_int_equal(engine_fixture_step(f, engine_fixture_seq(f), 4), RT_OK);
    assert_int_equal(f->link->busy, 0);
}

static void a_pool_that_stays_full_is_a_lost_node(void **state)
{
    engine_fixture *f = *state;

    f->link->busy = UINT32_MAX;
    assert_int_equal(engine_fixture_step(f, engine_fixture_seq(f), 4), RT_EPEER);
    assert_int_equal(f->link->sent_frames, 0);
}

static void a_send_that_fails_names_the_node(void **state)
{
    engine_fixture *f = *state;

    f->link->send_status = RT_EPEER;
    assert_int_equal(engine_fixture_step(f, engine_fixture_seq(f), 4), RT_EPEER);
    engine_fixture_text(f, "node zero");
    f->link->send_status = RT_EIO;
    assert_int_equal(engine_fixture_step(f, engine_fixture_seq(f), 4), RT_EIO);
}

static void a_stop_while_waiting_passes_through(void **state)
{
    engine_fixture *f = *state;
    script s = {.of = {SILENCE, ANSWER, ANSWER}};
    an_seq *seq = engine_fixture_seq(f);

    play_script(f, &s);
    f->link->stop = true;
    assert_int_equal(engine_fixture_step(f, seq, 4), RT_ECANCELED);
    assert_int_equal(an_seq_length(seq), 0);
    free(s.kept);
}

static void an_extra_control_frame_disturbs_nothing(void **state)
{
    engine_fixture *f = *state;
    _Alignas(64) uint8_t frame[64 + 8] = {0};
    tr_frame_header head = {.type = TR_CONTROL};

    tr_frame_seal(frame, sizeof(frame), &head);
    fake_link_push(f->link, 0, frame, sizeof(frame));
    assert_int_equal(engine_fixture_step(f, engine_fixture_seq(f), 4), RT_OK);
}

static void a_failed_step_counts_no_more_waiting_than_time(void **state)
{
    engine_fixture *f = *state;
    script s = {.of = {ANSWER, SILENCE, ANSWER}};
    an_engine_stats stats;

    play_script(f, &s);
    assert_int_equal(engine_fixture_step(f, engine_fixture_seq(f), 4), RT_EPEER);
    stats = an_engine_get_stats(f->engine);
    assert_int_equal(stats.steps, 0);
    assert_true(stats.total_ns >= f->spec.reply_timeout_ns);
    assert_true(stats.wait_ns <= stats.total_ns);
    free(s.kept);
}

static void stats_count_bytes_layers_and_the_last_to_answer(void **state)
{
    engine_fixture *f = *state;
    an_engine_stats stats;

    assert_int_equal(engine_fixture_step(f, engine_fixture_seq(f), 4), RT_OK);
    stats = an_engine_get_stats(f->engine);
    assert_int_equal(stats.steps, 1);
    assert_int_equal(stats.rows, 4);
    assert_int_equal(stats.layers, 2);
    assert_int_equal(stats.nodes, FIXTURE_NODES);
    assert_true(stats.sent_bytes > 4 * 64 * 2);
    assert_int_equal(stats.received_bytes, (64 + 4) * FIXTURE_NODES * 2);
    an_engine_reset_stats(f->engine);
    stats = an_engine_get_stats(f->engine);
    assert_int_equal(stats.rows, 0);
    assert_int_equal(stats.nodes, FIXTURE_NODES);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(all_frames_leave_before_a_reply_is_awaited),
        TEST(a_silent_node_is_named_with_its_layer),
        TEST(a_late_reply_is_dropped_and_the_step_can_be_repeated),
        TEST(a_duplicate_reply_is_dropped),
        TEST(an_error_of_a_node_carries_its_status_text_and_name),
        TEST(a_node_that_goes_down_ends_the_step_at_once),
        TEST(garbage_is_a_protocol_error_of_its_sender),
        TEST(a_poison_row_names_layer_sequence_and_position),
        TEST(a_full_pool_is_waited_for),
        TEST(a_pool_that_stays_full_is_a_lost_node),
        TEST(a_send_that_fails_names_the_node),
        TEST(a_stop_while_waiting_passes_through),
        TEST(an_extra_control_frame_disturbs_nothing),
        TEST(a_failed_step_counts_no_more_waiting_than_time),
        TEST(stats_count_bytes_layers_and_the_last_to_answer),
    };
#undef TEST

    return cmocka_run_group_tests(tests, NULL, NULL);
}
