/* The payload of a dispatch: what is filled in is read back, what does not fit the model is refused. */
#include "transport/frame.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BYTES = 1 << 16, ROWS = 3, COLS = 70, GROUP = 32, PADDED = 96, GROUPS = 3, ENTRIES = 5 };

static const tr_dispatch_limits limits = {
    .cols = COLS, .group = GROUP, .experts = 16, .slices = 8, .layers = 6};

static uint8_t *frame; /* [BYTES] 64-byte aligned */
static tr_dispatch_fill in;
static size_t frame_bytes;

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

static tr_frame_header head_of(tr_row_encoding encoding)
{
    return (tr_frame_header){.type = TR_DISPATCH,
                             .encoding = (uint8_t)encoding,
                             .request = 7,
                             .layer = 5,
                             .rows = ROWS,
                             .group = encoding == TR_ROWS_INT8 ? GROUP : 0,
                             .q = 13,
                             .cols = COLS,
                             .entries = ENTRIES};
}

static void seal(const tr_frame_header *head)
{
    tr_frame_header checked;

    tr_frame_seal(frame, frame_bytes, head);
    assert_int_equal(tr_frame_check(frame, frame_bytes, &checked, NULL), RT_OK);
}

/* Rows with 2, 0 and 3 entries; sealed. */
static void make(tr_row_encoding encoding)
{
    static const uint16_t counts[ROWS] = {2, 0, 3};
    static const uint16_t experts[ENTRIES] = {0, 15, 3, 1, 2};
    tr_frame_header head = head_of(encoding);

    frame_bytes = tr_dispatch_bytes(encoding, ROWS, COLS, head.group, ENTRIES);
    memset(frame, 0xa5, frame_bytes);
    tr_dispatch_layout(frame, encoding, ROWS, COLS, head.group, ENTRIES, &in);
    for (int i = 0; encoding == TR_ROWS_INT8 && i < ROWS * PADDED; i++)
        in.q[i] = (int8_t)(i % 255 - 127);
    for (int i = 0; encoding == TR_ROWS_INT8 && i < ROWS * GROUPS; i++)
        in.scale[i] = (float)i / 8;
    for (int i = 0; encoding == TR_ROWS_F32 && i < ROWS * COLS; i++)
        in.f32[i] = (float)i;
    memcpy(in.entry_count, counts, sizeof(counts));
    for (int i = 0; i < ENTRIES; i++)
        in.entries[i] =
            (tr_entry){.expert = experts[i], .slice_mask = 1u << i, .weight = 0.5f + (float)i};
    seal(&head);
}

static void reseal(void)
{
    tr_frame_header head;

    memcpy(&head, frame, sizeof(head));
    seal(&head);
}

static void expect_refused(const char *part)
{
    tr_dispatch_view view = {.head.rows = 4242};
    rt_err err = {0};

    reseal();
    assert_int_equal(tr_dispatch_read(frame, frame_bytes, &limits, &view, &err), RT_EPROTO);
    if (strstr(err.text, part) == NULL) fail_msg("expected '%s' in '%s'", part, err.text);
    assert_int_equal(view.head.rows, 4242);
}

static void int8_rows_are_read_back_in_place(void **state)
{
    tr_dispatch_view view;

    (void)state;
    make(TR_ROWS_INT8);
    assert_int_equal(frame_bytes, 64 + ROWS * PADDED + ROWS * GROUPS * 4 + 8 + ENTRIES * 12);
    assert_int_equal(tr_dispatch_read(frame, frame_bytes, &limits, &view, NULL), RT_OK);
    assert_ptr_equal(view.q, frame + 64);
    assert_ptr_equal(view.q, in.q);
    assert_ptr_equal(view.scale, in.scale);
    assert_null(view.f32);
    assert_ptr_equal(view.entry_count, in.entry_count);
    assert_ptr_equal(view.entries, in.entries);
    assert_int_equal((const uint8_t *)(view.entries + ENTRIES) - frame, frame_bytes);
    assert_int_equal(view.head.layer, 5);
}

static void f32_rows_are_read_back_in_place(void **state)
{
    tr_dispatch_view view;

    (void)state;
    make(TR_ROWS_F32);
    assert_int_equal(frame_bytes, 64 + ROWS * COLS * 4 + 8 + ENTRIES * 12);
    assert_int_equal(tr_dispatch_read(frame, frame_bytes, &limits, &view, NULL), RT_OK);
    assert_ptr_equal(view.f32, frame + 64);
    assert_null(view.q);
    assert_null(view.scale);
    assert_int_equal(view.entries[4].expert, 2);
}

static void sizes_hold_at_the_bounds(void **state)
{
    (void)state;
    assert_int_equal(tr_dispatch_bytes(TR_ROWS_INT8, 1, 1, 16, 0), 64 + 16 + 4 + 8);
    assert_int_equal(tr_dispatch_bytes(TR_ROWS_F32, 4, 1, 0, 1), 64 + 16 + 8 + 12);
    assert_int_equal(tr_dispatch_bytes(TR_ROWS_F32, 5, 1, 0, 1), 64 + 20 + 16 + 12);
    assert_true(tr_dispatch_bytes(TR_ROWS_F32, TR_ROWS_MAX, TR_COLS_MAX, 0,
                                  TR_ROWS_MAX * TR_ROW_ENTRIES_MAX) ==
                64 + (size_t)TR_ROWS_MAX * TR_COLS_MAX * 4 + 2 * TR_ROWS_MAX +
                    (size_t)TR_ROWS_MAX * TR_ROW_ENTRIES_MAX * 12);
}

static void another_models_shape_is_refused(void **state)
{
    tr_frame_header head;
    tr_dispatch_limits other = limits;
    tr_dispatch_view view;
    rt_err err;

    (void)state;
    make(TR_ROWS_INT8);
    head = head_of(TR_ROWS_INT8);
    head.layer = 6;
    seal(&head);
    expect_refused("layer: expected below 6, found 6");
    make(TR_ROWS_INT8);
    other.cols = 71;
    assert_int_equal(tr_dispatch_read(frame, frame_bytes, &other, &view, &err), RT_EPROTO);
    assert_non_null(strstr(err.text, "cols: expected 71, found 70"));
    other = limits;
    other.group = 16;
    assert_int_equal(tr_dispatch_read(frame, frame_bytes, &other, &view, &err), RT_EPROTO);
    assert_non_null(strstr(err.text, "group: expected 16, found 32"));
    make(TR_ROWS_F32);
    assert_int_equal(tr_dispatch_read(frame, frame_bytes, &other, &view, &err), RT_OK);
}

static void other_frame_types_are_refused(void **state)
{
    tr_frame_header dispatch = head_of(TR_ROWS_INT8);
    tr_dispatch_view view;
    size_t bytes = tr_error_write(frame, &dispatch, RT_EIO, "x");

    (void)state;
    assert_int_equal(tr_dispatch_read(frame, bytes, &limits, &view, NULL), RT_EPROTO);
}

static void values_and_scales_are_checked(void **state)
{
    (void)state;
    make(TR_ROWS_INT8);
    in.q[PADDED + 5] = -128;
    expect_refused("row 1: expected values from -127, found -128");
    make(TR_ROWS_INT8);
    in.q[2 * PADDED + COLS] = -128; /* the padding too: kernels read it */
    expect_refused("row 2: expected values");
    make(TR_ROWS_INT8);
    in.scale[4] = NAN;
    expect_refused("row 1 group 1: expected a finite scale");
    make(TR_ROWS_INT8);
    in.scale[8] = -INFINITY;
    expect_refused("row 2 group 2: expected a finite scale");
}

static void entries_are_checked(void **state)
{
    (void)state;
    make(TR_ROWS_INT8);
    in.entries[1].expert = 16;
    expect_refused("row 0: expected an expert below 16, found 16");
    make(TR_ROWS_INT8);
    in.entries[4].expert = 65535;
    expect_refused("row 2: expected an expert below 16, found 65535");
    make(TR_ROWS_INT8);
    in.entries[2].reserved = 1;
    expect_refused("expert 3: reserved: expected 0, found 1");
    make(TR_ROWS_INT8);
    in.entries[0].slice_mask = 0;
    expect_refused("expected a mask of 8 slices, found 0");
    make(TR_ROWS_INT8);
    in.entries[0].slice_mask = 0x101;
    expect_refused("expected a mask of 8 slices, found 0x101");
    make(TR_ROWS_INT8);
    in.entries[3].weight = NAN;
    expect_refused("row 2 expert 1: expected a finite weight");
    make(TR_ROWS_INT8);
    in.entries[3].weight = INFINITY;
    expect_refused("expected a finite weight, found inf");
    make(TR_ROWS_INT8);
    in.entries[4].expert = 3;
    expect_refused("row 2: expected each expert once, found expert 3 twice");
}

static void all_bits_of_a_mask_may_be_slices(void **state)
{
    tr_dispatch_limits wide = limits;
    tr_dispatch_view view;

    (void)state;
    wide.slices = 32;
    make(TR_ROWS_INT8);
    in.entries[0].slice_mask = UINT32_MAX;
    reseal();
    assert_int_equal(tr_dispatch_read(frame, frame_bytes, &wide, &view, NULL), RT_OK);
}

static void counts_must_add_up(void **state)
{
    (void)state;
    make(TR_ROWS_INT8);
    in.entry_count[2] = 2;
    expect_refused("entries of all rows: expected 5, found 4");
    make(TR_ROWS_INT8);
    in.entry_count[2] = 4;
    expect_refused("row 2: expected at most 3 entries, found 4");
    make(TR_ROWS_INT8);
    in.entry_count[0] = 65535;
    expect_refused("row 0: expected at most 5 entries, found 65535");
}

static void padding_must_be_zero(void **state)
{
    (void)state;
    make(TR_ROWS_INT8);
    in.entry_count[3] = 1; /* rows are three: this is padding */
    expect_refused("padding: expected 0, found 1");
}

/* Sixteen experts of 8 slices are 128: one more than int32 sums always hold. */
static void a_row_has_at_most_127_slices(void **state)
{
    tr_dispatch_limits one = {.cols = 16, .group = 0, .experts = 16, .slices = 8, .layers = 6};
    tr_frame_header head = {
        .type = TR_DISPATCH, .encoding = TR_ROWS_F32, .rows = 1, .cols = 16, .entries = 16};
    tr_dispatch_view view;
    rt_err err;

    (void)state;
    frame_bytes = tr_dispatch_bytes(TR_ROWS_F32, 1, 16, 0, 16);
    tr_dispatch_layout(frame, TR_ROWS_F32, 1, 16, 0, 16, &in);
    memset(in.f32, 0, 16 * sizeof(float));
    in.entry_count[0] = 16;
    for (uint16_t i = 0; i < 16; i++)
        in.entries[i] = (tr_entry){.expert = i, .slice_mask = 0xff, .weight = 1};
    seal(&head);
    assert_int_equal(tr_dispatch_read(frame, frame_bytes, &one, &view, &err), RT_EPROTO);
    assert_non_null(strstr(err.text, "row 0: expected at most 127 slices, found 128"));
    in.entries[15].slice_mask = 0x7f;
    seal(&head);
    assert_int_equal(tr_dispatch_read(frame, frame_bytes, &one, &view, NULL), RT_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(int8_rows_are_read_back_in_place),
        cmocka_unit_test(f32_rows_are_read_back_in_place),
        cmocka_unit_test(sizes_hold_at_the_bounds),
        cmocka_unit_test(another_models_shape_is_refused),
        cmocka_unit_test(other_frame_types_are_refused),
        cmocka_unit_test(values_and_scales_are_checked),
        cmocka_unit_test(entries_are_checked),
        cmocka_unit_test(all_bits_of_a_mask_may_be_slices),
        cmocka_unit_test(counts_must_add_up),
        cmocka_unit_test(padding_must_be_zero),
        cmocka_unit_test(a_row_has_at_most_127_slices),
    };

    return cmocka_run_group_tests(tests, allocate, release);
}
