/* test_gather.c - rows in place where they lie side by side, else copied with scales and sums. */
#include "expert_node/gather.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 9, HIDDEN = 40, GROUP = 16, GROUPS = 3, PADDED = 48 };

typedef struct {
    int8_t q[ROWS * PADDED];
    float scale[ROWS * GROUPS], f32[ROWS * HIDDEN];
    int32_t sums[ROWS * GROUPS];
    tr_dispatch_view view;
    en_gather_source from;
    void *memory;
} fixture;

static void make(fixture *f, tr_row_encoding encoding)
{
    for (int i = 0; i < ROWS * PADDED; i++)
        f->q[i] = (int8_t)(i % 251 - 125);
    for (int i = 0; i < ROWS * GROUPS; i++) {
        f->scale[i] = (float)i;
        f->sums[i] = 1000 + i;
    }
    for (int i = 0; i < ROWS * HIDDEN; i++)
        f->f32[i] = (float)i;
    f->view = (tr_dispatch_view){.q = f->q, .scale = f->scale, .f32 = f->f32};
    f->view.head.encoding = (uint8_t)encoding;
    f->from =
        (en_gather_source){.dispatch = &f->view, .sums = f->sums, .hidden = HIDDEN, .group = GROUP};
    f->memory = aligned_alloc(64, en_gather_bytes(ROWS, HIDDEN, GROUP));
    assert_non_null(f->memory);
    memset(f->memory, 0x5a, en_gather_bytes(ROWS, HIDDEN, GROUP));
}

static void check(const fixture *f, const uint32_t *row, uint32_t count, bool int8)
{
    kn_rows rows = en_gather(&f->from, row, count, f->memory);

    assert_int_equal(rows.rows, count);
    assert_int_equal(rows.cols, HIDDEN);
    assert_int_equal(rows.group, int8 ? GROUP : 0);
    assert_int_equal(rows.f32_stride, int8 ? 0 : HIDDEN);
    for (uint32_t i = 0; i < count; i++) {
        if (!int8) {
            assert_memory_equal(rows.f32 + i * HIDDEN, f->f32 + row[i] * HIDDEN,
                                HIDDEN * sizeof(float));
            continue;
        }
        assert_memory_equal(rows.q + i * PADDED, f->q + row[i] * PADDED, PADDED);
        assert_memory_equal(rows.scale + i * GROUPS, f->scale + row[i] * GROUPS,
                            GROUPS * sizeof(float));
        assert_memory_equal(rows.sum + i * GROUPS, f->sums + row[i] * GROUPS,
                            GROUPS * sizeof(int32_t));
    }
}

static void scattered_rows_are_copied_together(void **state)
{
    static const uint32_t row[] = {0, 1, 3, 8};
    static const uint32_t all_but_one[] = {0, 1, 2, 3, 5, 6, 7, 8};
    static fixture f;

    (void)state;
    for (int int8 = 0; int8 < 2; int8++) {
        make(&f, int8 ? TR_ROWS_INT8 : TR_ROWS_F32);
        check(&f, row, 4, int8 != 0);
        check(&f, all_but_one, 8, int8 != 0);
        free(f.memory);
    }
}

static void rows_side_by_side_are_used_in_place(void **state)
{
    static const uint32_t row[] = {4, 5, 6};
    static fixture f;

    (void)state;
    make(&f, TR_ROWS_INT8);
    check(&f, row, 3, true);
    assert_ptr_equal(en_gather(&f.from, row, 3, f.memory).q, f.q + 4 * PADDED);
    assert_ptr_equal(en_gather(&f.from, row, 1, f.memory).sum, f.sums + 4 * GROUPS);
    assert_int_equal(*(uint8_t *)f.memory, 0x5a);
    free(f.memory);
    make(&f, TR_ROWS_F32);
    check(&f, row, 3, false);
    assert_ptr_equal(en_gather(&f.from, row, 2, f.memory).f32, f.f32 + 4 * HIDDEN);
    free(f.memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scattered_rows_are_copied_together),
        cmocka_unit_test(rows_side_by_side_are_used_in_place),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
