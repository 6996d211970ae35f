/* test_sums.c - members' sums merged, rows that outgrow int32, rows that are poisoned. */
#include "expert_node/sums.h"

#include "kernels/grid.h"
#include "tests/support/expert_rig.h"
#include "tests/support/tiny_model.h"
#include "transport/partial.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { COLS = 150, ROWS = 140 }; /* more rows than the team writes at a time */

typedef struct {
    en_sums *sums;
    rt_team *team;
    uint8_t *payload;
    int64_t *total; /* [ROWS][COLS], decoded */
    bool poison[ROWS];
} fixture;

static void make(fixture *f, uint32_t members, uint32_t threads)
{
    rt_team_spec team = {.threads = threads};
    rt_err err = {RT_OK, ""};

    memset(f, 0, sizeof(*f));
    assert_int_equal(rt_team_create(&team, &f->team, &err), RT_OK);
    assert_int_equal(en_sums_create(ROWS, COLS, members, &f->sums, &err), RT_OK);
    f->payload = malloc(ROWS * tr_partial_bytes_max(COLS));
    f->total = calloc((size_t)ROWS * COLS, sizeof(*f->total));
    assert_true(f->payload != NULL && f->total != NULL);
}

static void unmake(fixture *f)
{
    en_sums_free(f->sums);
    rt_team_free(f->team);
    free(f->payload);
    free(f->total);
}

static void finish(fixture *f, uint32_t rows)
{
    rt_err err = {RT_OK, ""};
    size_t bytes = 0;

    assert_int_equal(en_sums_finish(f->sums, f->team, f->payload, &bytes, &err), RT_OK);
    memset(f->total, 0, (size_t)ROWS * COLS * sizeof(*f->total));
    memset(f->poison, 0, sizeof(f->poison));
    expert_payload_add(f->payload, bytes, rows, COLS, f->total, f->poison);
}

/* Values with all bits of interest, at a magnitude. */
static void values(float *y, uint64_t seed, float magnitude)
{
    for (int i = 0; i < COLS; i++) {
        y[i] = magnitude * tiny_model_uniform(&seed);
    }
}

static int64_t step(float y, float ws)
{
    return (int64_t)nearbyint((double)(y * ws));
}

static void members_sums_add_up_whoever_adds(void **state)
{
    fixture f;
    float y[COLS];

    (void)state;
    for (uint32_t members = 1; members <= 4; members++) {
        make(&f, members, members == 4 ? 2 : 1);
        for (uint32_t rows = 1; rows <= ROWS; rows += 13) {
            static int64_t expected[ROWS][COLS];
            memset(expected, 0, sizeof(expected));
            en_sums_begin(f.sums, rows);
            for (uint32_t n = 0; n < 5 * rows; n++) {
                uint32_t row = n * 7 % rows;
                values(y, n, 3.0f);
                en_sums_add(f.sums, n % members, row, y, 1000.0f);
                for (int i = 0; i < COLS; i++) {
                    expected[row][i] += step(y[i], 1000.0f);
                }
            }
            finish(&f, rows);
            assert_memory_equal(f.total, expected, (size_t)rows * COLS * sizeof(int64_t));
        }
        unmake(&f);
    }
}

static void the_most_contributions_at_the_narrow_limit_fit(void **state)
{
    fixture f;
    float y[COLS];

    (void)state;
    make(&f, 2, 1);
    en_sums_begin(f.sums, 1);
    for (int i = 0; i < COLS; i++) {
        y[i] = i % 2 ? 0x1p24f : -0x1p24f;
    }
    for (uint32_t n = 0; n < KN_GRID_CONTRIBUTIONS_MAX; n++) {
        en_sums_add(f.sums, n % 2, 0, y, 1.0f);
    }
    finish(&f, 1);
    for (int i = 0; i < COLS; i++) {
        assert_int_equal(f.total[i], (i % 2 ? 1 : -1) * (int64_t)127 * (1 << 24));
    }
    unmake(&f);
}

static void rows_beyond_int32_go_on_in_int64_however_many(void **state)
{
    static int64_t expected[ROWS][COLS];
    fixture f;
    float y[COLS];

    (void)state;
    make(&f, 3, 2);
    for (int frame = 0; frame < 2; frame++) { /* the pool and the rest are taken anew */
        memset(expected, 0, sizeof(expected));
        en_sums_begin(f.sums, ROWS);
        for (uint32_t n = 0; n < 4 * ROWS; n++) {
            uint32_t row = n % ROWS;
            /* Every row but each third gets narrow and wide ones. */
            float magnitude = row % 3 != 0 && n / ROWS % 2 ? 0x1p50f : 100.0f;
            values(y, n, magnitude);
            en_sums_add(f.sums, n % 3, row, y, 8.0f);
            for (int i = 0; i < COLS; i++) {
                expected[row][i] += step(y[i], 8.0f);
            }
        }
        finish(&f, ROWS);
        assert_memory_equal(f.total, expected, sizeof(expected));
        for (int r = 0; r < ROWS; r++) {
            assert_false(f.poison[r]);
        }
    }
    unmake(&f);
}

static void a_value_that_is_not_finite_poisons_its_row_alone(void **state)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY, 0x1p60f};
    fixture f;
    float y[COLS];

    (void)state;
    make(&f, 2, 1);
    for (size_t b = 0; b < sizeof(bad) / sizeof(bad[0]); b++) {
        en_sums_begin(f.sums, 6);
        for (uint32_t row = 0; row < 6; row++) {
            values(y, row, 1.0f);
            en_sums_add(f.sums, 0, row, y, 64.0f);
            if (row == 3) y[COLS - 1] = bad[b];
            en_sums_add(f.sums, 1, row, y, 64.0f);
        }
        finish(&f, 6);
        for (uint32_t row = 0; row < 6; row++) {
            assert_int_equal(f.poison[row], row == 3);
        }
        values(y, 5, 1.0f);
        assert_int_equal(f.total[5 * COLS], 2 * step(y[0], 64.0f));
    }
    /* The poison does not outlive its frame. */
    en_sums_begin(f.sums, 6);
    en_sums_add(f.sums, 0, 3, y, 64.0f);
    finish(&f, 6);
    assert_false(f.poison[3]);
    unmake(&f);
}

static void rows_without_contributions_are_zero(void **state)
{
    fixture f;
    float y[COLS];

    (void)state;
    make(&f, 2, 1);
    values(y, 1, 5.0f);
    en_sums_begin(f.sums, ROWS);
    for (uint32_t row = 0; row < ROWS; row++) {
        en_sums_add(f.sums, row % 2, row, y, 1024.0f);
    }
    finish(&f, ROWS);
    en_sums_begin(f.sums, ROWS);
    en_sums_add(f.sums, 1, 20, y, 1024.0f);
    finish(&f, ROWS);
    for (uint32_t row = 0; row < ROWS; row++) {
        assert_int_equal(f.total[row * COLS], row == 20 ? step(y[0], 1024.0f) : 0);
    }
    unmake(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members_sums_add_up_whoever_adds),
        cmocka_unit_test(the_most_contributions_at_the_narrow_limit_fit),
        cmocka_unit_test(rows_beyond_int32_go_on_in_int64_however_many),
        cmocka_unit_test(a_value_that_is_not_finite_poisons_its_row_alone),
        cmocka_unit_test(rows_without_contributions_are_zero),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
