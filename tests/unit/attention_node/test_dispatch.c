/* test_dispatch.c - rows grouped by node: each row once a node, every slice of every expert once. */
#include "attention_node/dispatch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LAYERS = 2, EXPERTS = 6, SLICES = 4, COLS = 48, ROWS = 5, TOPK = 3, GROUP = 16 };

static const bool sparse[LAYERS] = {false, true};
static const uint32_t ids[ROWS * TOPK] = {0, 1, 2, 3, 4, 5, 0, 2, 4, 1, 3, 5, 0, 1, 5};

typedef struct {
    pl_map *map;
    an_dispatch *dispatch;
    float x[ROWS * COLS];
    float weight[ROWS * TOPK];
    kn_rows rows;
    void *quant;
} fixture;

static void setup(fixture *f, uint32_t nodes, pl_mode mode, bool int8)
{
    uint32_t share[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    pl_map_spec spec = {.layers = LAYERS,
                        .sparse = sparse,
                        .experts = EXPERTS,
                        .slices = SLICES,
                        .nodes = nodes,
                        .share = share,
                        .mode = mode,
                        .epoch = 9};
    an_dispatch_layer layer = {
        .request = 77, .layer = 1, .q = 13, .int8 = int8, .topk = TOPK, .id = ids};
    rt_err err;

    for (uint32_t i = 0; i < ROWS * COLS; i++)
        f->x[i] = (float)(i % 37) - 18;
    for (uint32_t i = 0; i < ROWS * TOPK; i++)
        f->weight[i] = 0.25F + (float)i;
    f->quant = aligned_alloc(64, (kn_rows_quant_bytes(ROWS, COLS, GROUP) + 63) / 64 * 64);
    f->rows = int8 ? kn_rows_quantise(f->x, COLS, ROWS, COLS, GROUP, f->quant)
                   : kn_rows_float(f->x, COLS, ROWS, COLS);
    layer.x = &f->rows;
    layer.weight = f->weight;
    assert_int_equal(pl_map_create(&spec, &f->map, &err), RT_OK);
    assert_int_equal(an_dispatch_create(nodes, ROWS, &f->dispatch, &err), RT_OK);
    layer.map = f->map;
    an_dispatch_plan(f->dispatch, &layer);
}

static void teardown(fixture *f)
{
    an_dispatch_free(f->dispatch);
    pl_map_free(f->map);
    free(f->quant);
}

static void *write_frame(const fixture *f, uint32_t node, size_t *bytes)
{
    void *frame;

    *bytes = an_dispatch_frame_bytes(f->dispatch, node);
    frame = aligned_alloc(64, (*bytes + 63) / 64 * 64);
    assert_non_null(frame);
    an_dispatch_write(f->dispatch, node, 0, 1234, frame);
    return frame;
}

static const tr_dispatch_limits limits = {COLS, GROUP, EXPERTS, SLICES, LAYERS};

/* Every (row, expert, slice) is asked of exactly one node, with its weight; every frame is one that
 * a receiver accepts. */
static void check_cover(uint32_t nodes, pl_mode mode)
{
    uint32_t covered[ROWS][EXPERTS] = {{0}};
    fixture f;

    setup(&f, nodes, mode, true);
    for (uint32_t node = 0; node < nodes; node++) {
        tr_dispatch_view view;
        tr_frame_header head;
        uint32_t count, at = 0;
        const uint32_t *row = an_dispatch_rows(f.dispatch, node, &count);
        rt_err err = {RT_OK, ""};
        size_t bytes;
        void *frame;

        if (count == 0) continue;
        frame = write_frame(&f, node, &bytes);
        assert_int_equal(tr_frame_check(frame, bytes, &head, &err), RT_OK);
        assert_int_equal(tr_dispatch_read(frame, bytes, &limits, &view, &err), RT_OK);
        for (uint32_t r = 0; r < count; r++) {
            if (r > 0) assert_true(row[r] > row[r - 1]);
            assert_true(view.entry_count[r] > 0);
            for (uint32_t e = 0; e < view.entry_count[r]; e++, at++) {
                const tr_entry *entry = &view.entries[at];
                uint32_t i = 0;

                while (ids[row[r] * TOPK + i] != entry->expert)
                    assert_true(++i < TOPK);
                assert_true(entry->weight == f.weight[row[r] * TOPK + i]);
                assert_int_equal(covered[row[r]][entry->expert] & entry->slice_mask, 0);
                covered[row[r]][entry->expert] |= entry->slice_mask;
                assert_int_equal(entry->slice_mask, pl_map_mask(f.map, 1, entry->expert, node));
            }
        }
        assert_int_equal(at, head.entries);
        free(frame);
    }
    for (uint32_t row = 0; row < ROWS; row++)
        for (uint32_t i = 0; i < TOPK; i++)
            assert_int_equal(covered[row][ids[row * TOPK + i]], (1U << SLICES) - 1);
    teardown(&f);
}

static void every_slice_of_every_choice_goes_to_one_node(void **state)
{
    (void)state;
    for (uint32_t nodes = 1; nodes <= 8; nodes++) {
        check_cover(nodes, PL_WHOLE);
        check_cover(nodes, PL_SLICED);
    }
}

static void a_row_goes_to_a_node_once_with_all_its_entries(void **state)
{
    uint32_t count;
    const uint32_t *row;
    size_t bytes;
    tr_dispatch_view view;
    void *frame;
    fixture f;

    (void)state;
    setup(&f, 1, PL_WHOLE, true);
    row = an_dispatch_rows(f.dispatch, 0, &count);
    assert_int_equal(count, ROWS);
    frame = write_frame(&f, 0, &bytes);
    assert_int_equal(tr_dispatch_read(frame, bytes, &limits, &view, NULL), RT_OK);
    for (uint32_t r = 0; r < ROWS; r++) {
        assert_int_equal(row[r], r);
        assert_int_equal(view.entry_count[r], TOPK);
    }
    free(frame);
    teardown(&f);
}

static void int8_rows_travel_as_they_were_quantised(void **state)
{
    fixture f;

    (void)state;
    setup(&f, 3, PL_WHOLE, true);
    for (uint32_t node = 0; node < 3; node++) {
        uint32_t count;
        const uint32_t *row = an_dispatch_rows(f.dispatch, node, &count);
        tr_dispatch_view view;
        size_t bytes;
        void *frame;

        if (count == 0) continue;
        frame = write_frame(&f, node, &bytes);
        assert_int_equal(tr_dispatch_read(frame, bytes, &limits, &view, NULL), RT_OK);
        assert_null(view.f32);
        for (uint32_t r = 0; r < count; r++) {
            assert_memory_equal(view.q + (size_t)r * COLS, f.rows.q + (size_t)row[r] * COLS, COLS);
            assert_memory_equal(view.scale + r * (COLS / GROUP),
                                f.rows.scale + row[r] * (COLS / GROUP),
                                COLS / GROUP * sizeof(float));
        }
        free(frame);
    }
    teardown(&f);
}

static void float_rows_travel_as_they_are(void **state)
{
    tr_dispatch_view view;
    size_t bytes;
    fixture f;
    void *frame;

    (void)state;
    setup(&f, 1, PL_WHOLE, false);
    frame = write_frame(&f, 0, &bytes);
    assert_int_equal(tr_dispatch_read(frame, bytes, &limits, &view, NULL), RT_OK);
    assert_null(view.q);
    assert_int_equal(view.head.group, 0);
    assert_memory_equal(view.f32, f.x, sizeof(f.x));
    free(frame);
    teardown(&f);
}

static void the_header_says_what_was_planned(void **state)
{
    tr_frame_header head;
    size_t bytes;
    fixture f;
    void *frame;

    (void)state;
    setup(&f, 1, PL_WHOLE, true);
    frame = write_frame(&f, 0, &bytes);
    assert_int_equal(tr_frame_check(frame, bytes, &head, NULL), RT_OK);
    assert_int_equal(head.type, TR_DISPATCH);
    assert_int_equal(head.encoding, TR_ROWS_INT8);
    assert_int_equal(head.request, 77);
    assert_int_equal(head.attempt, 0);
    assert_int_equal(head.epoch, 9);
    assert_int_equal(head.layer, 1);
    assert_int_equal(head.rows, ROWS);
    assert_int_equal(head.group, GROUP);
    assert_int_equal(head.q, 13);
    assert_int_equal(head.cols, COLS);
    assert_int_equal(head.entries, ROWS * TOPK);
    assert_int_equal(head.deadline_us, 1234);
    free(frame);
    teardown(&f);
}

static void a_plan_forgets_the_one_before(void **state)
{
    an_dispatch_layer layer;
    kn_rows one;
    uint32_t count;
    fixture f;

    (void)state;
    setup(&f, 1, PL_WHOLE, false);
    layer = *an_dispatch_get_layer(f.dispatch);
    one = *layer.x;
    one.rows = 1;
    layer.x = &one;
    an_dispatch_plan(f.dispatch, &layer);
    (void)an_dispatch_rows(f.dispatch, 0, &count);
    assert_int_equal(count, 1);
    assert_int_equal(an_dispatch_frame_bytes(f.dispatch, 0),
                     tr_dispatch_bytes(TR_ROWS_F32, 1, COLS, 0, TOPK));
    teardown(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_slice_of_every_choice_goes_to_one_node),
        cmocka_unit_test(a_row_goes_to_a_node_once_with_all_its_entries),
        cmocka_unit_test(int8_rows_travel_as_they_were_quantised),
        cmocka_unit_test(float_rows_travel_as_they_are),
        cmocka_unit_test(the_header_says_what_was_planned),
        cmocka_unit_test(a_plan_forgets_the_one_before),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
