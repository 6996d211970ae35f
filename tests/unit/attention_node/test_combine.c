/* test_combine.c - replies added in any order, once each; what is not a fitting reply changes nothing.
 */
#include "attention_node/combine.h"

#include "transport/partial.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { NODES = 4, EXPERTS = 8, COLS = 80, ROWS = 6, TOPK = 3, FRAME_BYTES = 1 << 14, Q = 10 };

static const bool sparse[1] = {true};
static const uint32_t ids[ROWS * TOPK] = {0, 1, 2, 3, 4, 5, 5, 6, 7, 0, 3, 6, 1, 4, 7, 2, 5, 6};

typedef struct {
    pl_map *map;
    an_dispatch *dispatch;
    an_combine *combine;
    an_dispatch_layer layer;
    float x[ROWS * COLS], weight[ROWS * TOPK];
    kn_rows rows;
    uint8_t *frame; /* [FRAME_BYTES] the last one made */
    size_t frame_bytes;
} fixture;

static void begin(fixture *f, uint64_t request)
{
    f->layer.request = request;
    an_dispatch_plan(f->dispatch, &f->layer);
    an_combine_begin(f->combine, f->dispatch);
}

static int setup(void **state)
{
    uint32_t share[NODES] = {1, 1, 1, 1};
    pl_map_spec spec = {.layers = 1,
                        .sparse = sparse,
                        .experts = EXPERTS,
                        .slices = 1,
                        .nodes = NODES,
                        .share = share,
                        .mode = PL_WHOLE,
                        .epoch = 1};
    fixture *f = calloc(1, sizeof(*f));

    assert_non_null(f);
    f->frame = aligned_alloc(64, FRAME_BYTES);
    assert_non_null(f->frame);
    f->rows = kn_rows_float(f->x, COLS, ROWS, COLS);
    assert_int_equal(pl_map_create(&spec, &f->map, NULL), RT_OK);
    assert_int_equal(an_dispatch_create(NODES, ROWS, &f->dispatch, NULL), RT_OK);
    assert_int_equal(an_combine_create(NODES, ROWS, COLS, &f->combine, NULL), RT_OK);
    f->layer = (an_dispatch_layer){.layer = 0,
                                   .q = Q,
                                   .x = &f->rows,
                                   .topk = TOPK,
                                   .id = ids,
                                   .weight = f->weight,
                                   .map = f->map};
    begin(f, 5);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;

    an_combine_free(f->combine);
    an_dispatch_free(f->dispatch);
    pl_map_free(f->map);
    free(f->frame);
    free(f);
    return 0;
}

/* What node says of a row's column. Large enough for several widths. */
static int64_t value(uint32_t node, uint32_t row, uint32_t col)
{
    int64_t sign = (node + row + col) % 2 == 0 ? 1 : -1;

    return sign * ((int64_t)(node + 1) * 1000003 * (col + 1) + row);
}

static tr_frame_header reply_head(const fixture *f, uint32_t rows)
{
    return (tr_frame_header){.type = TR_REPLY,
                             .request = f->layer.request,
                             .epoch = 1,
                             .rows = (uint16_t)rows,
                             .q = Q,
                             .cols = COLS};
}

/* The reply of a node into f->frame; poison_row: an index in its list, or none. */
static void make_reply_as(fixture *f, uint32_t node, uint32_t poison_row,
                          const tr_frame_header *head)
{
    uint8_t *at = f->frame + sizeof(*head);
    uint32_t count;
    const uint32_t *row = an_dispatch_rows(f->dispatch, node, &count);

    for (uint32_t r = 0; r < count; r++) {
        int64_t sum[COLS];

        for (uint32_t col = 0; col < COLS; col++)
            sum[col] = value(node, row[r], col);
        assert_true((size_t)(at - f->frame) + tr_partial_bytes_max(COLS) <= FRAME_BYTES);
        at += r == poison_row ? tr_partial_write_poison(at) : tr_partial_write_wide(at, sum, COLS);
    }
    f->frame_bytes = (size_t)(at - f->frame);
    tr_frame_seal(f->frame, f->frame_bytes, head);
}

static void make_reply(fixture *f, uint32_t node)
{
    uint32_t count;
    tr_frame_header head;

    (void)an_dispatch_rows(f->dispatch, node, &count);
    head = reply_head(f, count);
    make_reply_as(f, node, UINT32_MAX, &head);
}

static rt_status take(fixture *f, uint32_t node, an_reply *reply, rt_err *err)
{
    return an_combine_frame(f->combine, node, f->frame, f->frame_bytes, reply, err);
}

static void add(fixture *f, uint32_t node)
{
    an_reply reply = AN_REPLY_DROPPED;

    make_reply(f, node);
    assert_int_equal(take(f, node, &reply, NULL), RT_OK);
    assert_int_equal(reply, AN_REPLY_ADDED);
}

/* The sums of all nodes' values, rounded once. */
static void check_rows(fixture *f)
{
    for (uint32_t row = 0; row < ROWS; row++) {
        float out[COLS];

        assert_true(an_combine_finish(f->combine, row, out));
        for (uint32_t col = 0; col < COLS; col++) {
            int64_t sum = 0;

            for (uint32_t node = 0; node < NODES; node++) {
                bool chosen = false;

                for (uint32_t i = 0; i < TOPK; i++)
                    chosen = chosen || pl_map_mask(f->map, 0, ids[row * TOPK + i], node) != 0;
                if (chosen) sum += value(node, row, col);
            }
            assert_true(out[col] == (float)sum / (1 << Q));
        }
    }
}

static void replies_add_up_in_every_order(void **state)
{
    fixture *f = *state;

    for (uint32_t order = 0; order < 256; order++) {
        uint32_t seen = 0;

        for (uint32_t i = 0; i < NODES; i++)
            seen |= 1U << (order >> (2 * i) & 3);
        if (seen != 15) continue; /* not a permutation */
        begin(f, 100 + order);
        for (uint32_t i = 0; i < NODES; i++) {
            assert_int_equal(an_combine_owed(f->combine), NODES - i);
            add(f, order >> (2 * i) & 3);
        }
        assert_int_equal(an_combine_owed(f->combine), 0);
        check_rows(f);
    }
}

static void a_node_owes_until_it_has_answered(void **state)
{
    fixture *f = *state;

    assert_int_equal(an_combine_first_owing(f->combine), 0);
    add(f, 0);
    assert_false(an_combine_owes(f->combine, 0));
    assert_true(an_combine_owes(f->combine, 2));
    assert_int_equal(an_combine_first_owing(f->combine), 1);
    assert_false(an_combine_owes(f->combine, 99));
}

static void a_duplicate_is_dropped(void **state)
{
    fixture *f = *state;
    an_reply reply = AN_REPLY_ADDED;

    add(f, 1);
    make_reply(f, 1);
    assert_int_equal(take(f, 1, &reply, NULL), RT_OK);
    assert_int_equal(reply, AN_REPLY_DROPPED);
    add(f, 3);
    add(f, 0);
    add(f, 2);
    check_rows(f);
}

static void a_stale_reply_is_dropped(void **state)
{
    fixture *f = *state;
    an_reply reply = AN_REPLY_ADDED;
    tr_frame_header head;
    uint32_t count;

    make_reply(f, 1); /* to request 5 */
    begin(f, 6);
    assert_int_equal(take(f, 1, &reply, NULL), RT_OK);
    assert_int_equal(reply, AN_REPLY_DROPPED);
    assert_true(an_combine_owes(f->combine, 1));

    (void)an_dispatch_rows(f->dispatch, 1, &count);
    head = reply_head(f, count);
    head.attempt = 1; /* nobody asked twice */
    make_reply_as(f, 1, UINT32_MAX, &head);
    reply = AN_REPLY_ADDED;
    assert_int_equal(take(f, 1, &reply, NULL), RT_OK);
    assert_int_equal(reply, AN_REPLY_DROPPED);
    for (uint32_t node = 0; node < NODES; node++)
        add(f, node);
    check_rows(f);
}

static void nothing_is_taken_after_abandon(void **state)
{
    fixture *f = *state;
    an_reply reply = AN_REPLY_ADDED;

    make_reply(f, 1);
    an_combine_abandon(f->combine);
    assert_int_equal(an_combine_owed(f->combine), 0);
    assert_int_equal(take(f, 1, &reply, NULL), RT_OK);
    assert_int_equal(reply, AN_REPLY_DROPPED);
}

static void a_frame_of_a_node_that_owes_nothing_is_not_even_read(void **state)
{
    fixture *f = *state;
    an_reply reply = AN_REPLY_ADDED;

    add(f, 2);
    memset(f->frame, 0xab, 64);
    f->frame_bytes = 64;
    assert_int_equal(take(f, 2, &reply, NULL), RT_OK);
    assert_int_equal(reply, AN_REPLY_DROPPED);
    reply = AN_REPLY_ADDED;
    assert_int_equal(take(f, 200, &reply, NULL), RT_OK);
    assert_int_equal(reply, AN_REPLY_DROPPED);
}

static void refuse(fixture *f, uint32_t node, const char *text)
{
    an_reply reply;
    rt_err err = {RT_OK, ""};

    assert_int_equal(take(f, node, &reply, &err), RT_EPROTO);
    if (strstr(err.text, text) == NULL) fail_msg("expected '%s' in '%s'", text, err.text);
    assert_true(an_combine_owes(f->combine, node));
}

static void a_reply_that_does_not_fit_changes_nothing(void **state)
{
    fixture *f = *state;
    tr_frame_header head;
    uint32_t count;

    (void)an_dispatch_rows(f->dispatch, 1, &count);
    head = reply_head(f, count + 1);
    make_reply_as(f, 1, UINT32_MAX, &head);
    refuse(f, 1, "rows");

    head = reply_head(f, count);
    head.cols = COLS - 1;
    make_reply_as(f, 1, UINT32_MAX, &head);
    refuse(f, 1, "columns");

    head = reply_head(f, count);
    head.layer = 3;
    make_reply_as(f, 1, UINT32_MAX, &head);
    refuse(f, 1, "layer");

    /* One byte short, one byte long, and an unknown kind in the last row only. */
    make_reply(f, 1);
    head = reply_head(f, count);
    f->frame_bytes--;
    tr_frame_seal(f->frame, f->frame_bytes, &head);
    refuse(f, 1, "");
    make_reply(f, 1);
    f->frame[f->frame_bytes++] = 0;
    tr_frame_seal(f->frame, f->frame_bytes, &head);
    refuse(f, 1, "");
    make_reply_as(f, 1, count - 1, &head);
    f->frame[f->frame_bytes - 1] = 77;
    tr_frame_seal(f->frame, f->frame_bytes, &head);
    refuse(f, 1, "");

    for (uint32_t node = 0; node < NODES; node++)
        add(f, node);
    check_rows(f);
}

static void a_damaged_frame_is_refused_at_every_byte(void **state)
{
    fixture *f = *state;

    make_reply(f, 1);
    for (size_t at = 0; at < f->frame_bytes; at += 1 + at / 64) {
        f->frame[at] ^= 0x10;
        refuse(f, 1, "");
        f->frame[at] ^= 0x10;
    }
    for (uint32_t node = 0; node < NODES; node++)
        add(f, node);
    check_rows(f);
}

static void a_dispatch_is_not_an_answer(void **state)
{
    fixture *f = *state;

    f->frame_bytes = an_dispatch_frame_bytes(f->dispatch, 1);
    assert_true(f->frame_bytes <= FRAME_BYTES);
    an_dispatch_write(f->dispatch, 1, 0, 0, f->frame);
    refuse(f, 1, "dispatch");
}

static void poison_ends_its_row_alone(void **state)
{
    fixture *f = *state;
    float out[COLS];
    uint32_t count, poisoned;
    tr_frame_header head;
    an_reply reply;

    poisoned = an_dispatch_rows(f->dispatch, 1, &count)[1];
    head = reply_head(f, count);
    make_reply_as(f, 1, 1, &head);
    assert_int_equal(take(f, 1, &reply, NULL), RT_OK);
    for (uint32_t node = 0; node < NODES; node++)
        if (node != 1) add(f, node);
    for (uint32_t row = 0; row < ROWS; row++)
        assert_int_equal(an_combine_finish(f->combine, row, out), row != poisoned);

    begin(f, 9); /* forgotten with the next layer */
    an_combine_poison(f->combine, 3);
    for (uint32_t node = 0; node < NODES; node++)
        add(f, node);
    for (uint32_t row = 0; row < ROWS; row++)
        assert_int_equal(an_combine_finish(f->combine, row, out), row != 3);
}

static void own_contributions_join_the_sums(void **state)
{
    fixture *f = *state;
    float before[COLS], after[COLS];

    for (uint32_t node = 0; node < NODES; node++)
        add(f, node);
    assert_true(an_combine_finish(f->combine, 2, before));
    an_combine_sums(f->combine, 2)[7] += 1 << Q;
    assert_true(an_combine_finish(f->combine, 2, after));
    assert_true(after[7] != before[7]);
    assert_memory_equal(before, after, 7 * sizeof(float));
}

static void make_error(fixture *f, uint64_t request, rt_status status, const char *text)
{
    tr_frame_header asked = {.request = request};

    f->frame_bytes = tr_error_write(f->frame, &asked, status, text);
}

static void an_error_frame_gives_its_status_and_text(void **state)
{
    fixture *f = *state;
    rt_err err = {RT_OK, ""};
    an_reply reply;

    make_error(f, 5, RT_EIO, "disk is on fire");
    assert_int_equal(take(f, 0, &reply, &err), RT_EIO);
    assert_non_null(strstr(err.text, "disk is on fire"));
    make_error(f, 0, RT_EPROTO, "could not read that"); /* it could not even see whose it was */
    assert_int_equal(take(f, 0, &reply, &err), RT_EPROTO);
    assert_non_null(strstr(err.text, "could not read that"));
}

static void a_stale_error_is_dropped(void **state)
{
    fixture *f = *state;
    an_reply reply = AN_REPLY_ADDED;

    make_error(f, 4, RT_EIO, "long ago");
    assert_int_equal(take(f, 0, &reply, NULL), RT_OK);
    assert_int_equal(reply, AN_REPLY_DROPPED);
}

static void an_error_with_an_unknown_status_is_a_protocol_error(void **state)
{
    fixture *f = *state;
    tr_frame_header head = {.type = TR_ERROR, .request = 5, .status = 4711};

    memcpy(f->frame + sizeof(head), "x", 1);
    f->frame_bytes = sizeof(head) + 1;
    tr_frame_seal(f->frame, f->frame_bytes, &head);
    refuse(f, 0, "");
}

static void control_frames_are_none_of_its_business(void **state)
{
    fixture *f = *state;
    tr_frame_header head = {.type = TR_CONTROL};
    an_reply reply = AN_REPLY_ADDED;

    memset(f->frame + sizeof(head), 0, 8);
    f->frame_bytes = sizeof(head) + 8;
    tr_frame_seal(f->frame, f->frame_bytes, &head);
    assert_int_equal(take(f, 0, &reply, NULL), RT_OK);
    assert_int_equal(reply, AN_REPLY_DROPPED);
    assert_true(an_combine_owes(f->combine, 0));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(replies_add_up_in_every_order),
        TEST(a_node_owes_until_it_has_answered),
        TEST(a_duplicate_is_dropped),
        TEST(a_stale_reply_is_dropped),
        TEST(nothing_is_taken_after_abandon),
        TEST(a_frame_of_a_node_that_owes_nothing_is_not_even_read),
        TEST(a_reply_that_does_not_fit_changes_nothing),
        TEST(a_damaged_frame_is_refused_at_every_byte),
        TEST(a_dispatch_is_not_an_answer),
        TEST(poison_ends_its_row_alone),
        TEST(own_contributions_join_the_sums),
        TEST(an_error_frame_gives_its_status_and_text),
        TEST(a_stale_error_is_dropped),
        TEST(an_error_with_an_unknown_status_is_a_protocol_error),
        TEST(control_frames_are_none_of_its_business),
    };
#undef TEST

    return cmocka_run_group_tests(tests, NULL, NULL);
}
