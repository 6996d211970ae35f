/* Rows of partial sums: lossless at every width, refused when they do not fit. */
#include "transport/partial.h"

#include "tests/support/numbers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { COLS_MAX = 300, OUT = 1 + 8 * COLS_MAX + 5 };

static uint8_t out[OUT + 1];
static int64_t acc[COLS_MAX];

/* Reads the row back and compares; the row must take exactly `bytes`. */
static void expect_row(const int64_t *sum, uint32_t cols, size_t bytes)
{
    size_t used = 0;
    bool poison = false;

    memset(acc, 0, sizeof(acc));
    assert_true(bytes <= tr_partial_bytes_max(cols));
    assert_int_equal(tr_partial_check(out, bytes, 1, cols, NULL), RT_OK);
    /* A larger rest does not matter, the row knows its end. */
    assert_int_equal(tr_partial_add(acc, cols, out, bytes + 1, &used, &poison, NULL), RT_OK);
    assert_int_equal(used, bytes);
    assert_false(poison);
    assert_memory_equal(acc, sum, cols * sizeof(*sum));
}

/* Writes the row wide, and narrow when it fits; both must be the same bytes. */
static size_t write_row(const int64_t *sum, uint32_t cols)
{
    static uint8_t narrow_out[OUT];
    int32_t narrow[COLS_MAX];
    bool fits = true;
    size_t bytes;

    memset(out, 0xcc, sizeof(out));
    bytes = tr_partial_write_wide(out, sum, cols);
    for (uint32_t i = 0; i < cols; i++) {
        narrow[i] = (int32_t)(uint32_t)(uint64_t)sum[i];
        fits = fits && narrow[i] == sum[i];
    }
    if (fits) {
        assert_int_equal(tr_partial_write(narrow_out, narrow, cols), bytes);
        assert_memory_equal(narrow_out, out, bytes);
    }
    return bytes;
}

static void a_zero_row_is_one_byte(void **state)
{
    int64_t sum[COLS_MAX] = {0};

    (void)state;
    assert_int_equal(write_row(sum, COLS_MAX), 1);
    assert_int_equal(out[0], 0);
    expect_row(sum, COLS_MAX, 1);
}

static void a_row_of_int16_takes_two_bytes_a_column(void **state)
{
    int64_t sum[COLS_MAX] = {0};

    (void)state;
    sum[0] = INT16_MIN;
    sum[1] = INT16_MAX;
    sum[COLS_MAX - 1] = -1;
    assert_int_equal(write_row(sum, COLS_MAX), 1 + 2 * COLS_MAX);
    assert_int_equal(out[0], 1);
    expect_row(sum, COLS_MAX, 1 + 2 * COLS_MAX);
}

static void minus_one_alone_is_not_a_zero_row(void **state)
{
    int64_t sum[64] = {0};

    (void)state;
    sum[63] = -1;
    assert_int_equal(write_row(sum, 64), 1 + 2 * 64);
    expect_row(sum, 64, 1 + 2 * 64);
}

/* One value decides its block's width; the neighbours' blocks keep theirs. */
static void each_block_has_the_width_its_values_need(void **state)
{
    static const struct {
        int64_t value;
        uint8_t width;
    } edges[] = {
        {127, 1},
        {-128, 1},
        {128, 2},
        {-129, 2},
        {32767, 2},
        {-32768, 2},
        {32768, 3},
        {-32769, 3},
        {8388607, 3},
        {-8388608, 3},
        {8388608, 4},
        {-8388609, 4},
        {INT32_MAX, 4},
        {INT32_MIN, 4},
        {(int64_t)INT32_MAX + 1, 8},
        {(int64_t)INT32_MIN - 1, 8},
        {INT64_MAX, 8},
        {INT64_MIN, 8},
        {(int64_t)1 << 55, 8},
        {-((int64_t)127 << 55), 8},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(edges) / sizeof(edges[0]); i++) {
        int64_t sum[64 * 3 + 5] = {0};

        sum[0] = 40000; /* forces the mixed kind: block 0 takes 3 bytes */
        sum[64 + 17] = edges[i].value;
        sum[64 * 3 + 4] = 1;
        assert_int_equal(write_row(sum, 64 * 3 + 5), 1 + 4 + 64 * 3 + 64 * edges[i].width + 5);
        assert_int_equal(out[0], 2);
        assert_int_equal(out[1], 3);
        assert_int_equal(out[2], edges[i].width);
        assert_int_equal(out[3], 0);
        assert_int_equal(out[4], 1);
        expect_row(sum, 64 * 3 + 5, 1 + 4 + 64 * 3 + (size_t)64 * edges[i].width + 5);
    }
}

static void random_rows_of_every_magnitude_come_back(void **state)
{
    test_random random = {.state = 11};

    (void)state;
    for (int round = 0; round < 3000; round++) {
        int64_t sum[COLS_MAX];
        uint32_t cols = 1 + test_random_below(&random, COLS_MAX);
        uint32_t bits = test_random_below(&random, 64);

        for (uint32_t i = 0; i < cols; i++) {
            uint32_t shift = test_random_below(&random, 8) == 0 ? bits : 63 - bits % 17;

            sum[i] = (int64_t)test_random_bits(&random) >> shift;
        }
        expect_row(sum, cols, write_row(sum, cols));
    }
}

static void rows_add_up_in_any_order(void **state)
{
    test_random random = {.state = 5};
    int64_t total[COLS_MAX] = {0}, sums[5][COLS_MAX];
    static uint8_t rows[5][OUT];
    size_t used;
    bool poison = false;

    (void)state;
    for (int r = 0; r < 5; r++) {
        for (int i = 0; i < COLS_MAX; i++) {
            sums[r][i] = (int64_t)test_random_bits(&random) >> (20 + 10 * r);
            total[i] += sums[r][i];
        }
        tr_partial_write_wide(rows[r], sums[r], COLS_MAX);
    }
    memset(acc, 0, sizeof(acc));
    for (int r = 4; r >= 0; r--)
        assert_int_equal(tr_partial_add(acc, COLS_MAX, rows[r], OUT, &used, &poison, NULL), RT_OK);
    assert_memory_equal(acc, total, sizeof(total));
    assert_false(poison);
}

static void a_poison_row_adds_nothing(void **state)
{
    int64_t before[COLS_MAX];
    size_t used = 0;
    bool poison = false;

    (void)state;
    for (int i = 0; i < COLS_MAX; i++)
        acc[i] = before[i] = i;
    assert_int_equal(tr_partial_write_poison(out), 1);
    assert_int_equal(tr_partial_check(out, 1, 1, COLS_MAX, NULL), RT_OK);
    assert_int_equal(tr_partial_add(acc, COLS_MAX, out, 1, &used, &poison, NULL), RT_OK);
    assert_int_equal(used, 1);
    assert_true(poison);
    assert_memory_equal(acc, before, sizeof(before));
}

static void hostile_sums_wrap(void **state)
{
    int64_t sum[1] = {INT64_MAX};
    size_t used, bytes = tr_partial_write_wide(out, sum, 1);
    bool poison = false;

    (void)state;
    acc[0] = INT64_MAX;
    assert_int_equal(tr_partial_add(acc, 1, out, bytes, &used, &poison, NULL), RT_OK);
    assert_int_equal(acc[0], -2);
}

static void expect_refused(size_t bytes, uint32_t cols, const char *part)
{
    rt_err err = {0};
    size_t used = 77;
    bool poison = false;

    assert_int_equal(tr_partial_add(acc, cols, out, bytes, &used, &poison, &err), RT_EPROTO);
    if (strstr(err.text, part) == NULL) fail_msg("expected '%s' in '%s'", part, err.text);
    assert_int_equal(used, 77);
    assert_int_equal(tr_partial_check(out, bytes, 1, cols, &err), RT_EPROTO);
    assert_non_null(strstr(err.text, "row 0: "));
}

static void rows_that_do_not_fit_are_refused(void **state)
{
    int64_t sum[130] = {0};
    size_t bytes;

    (void)state;
    expect_refused(0, 130, "expected a row, found the end");
    sum[0] = 1;
    bytes = write_row(sum, 130);
    expect_refused(bytes - 1, 130, "expected 261 bytes or more, found 260");
    sum[0] = INT64_MAX;
    bytes = write_row(sum, 130);
    for (size_t length = 1; length < bytes; length++) {
        size_t used;
        bool poison;
        rt_status status = tr_partial_add(acc, 130, out, length, &used, &poison, NULL);

        assert_int_equal(status, RT_EPROTO);
    }
    expect_refused(2, 130, "expected 4 bytes or more, found 2");
}

static void unknown_kinds_and_codes_are_refused(void **state)
{
    static const uint8_t bad_codes[] = {5, 6, 7, 9, 255};

    (void)state;
    for (int kind = 3; kind < 255; kind++) {
        out[0] = (uint8_t)kind;
        expect_refused(OUT, COLS_MAX, "kind: expected 0, 1, 2 or 255");
    }
    memset(out, 0, sizeof(out));
    out[0] = 2;
    for (size_t i = 0; i < sizeof(bad_codes); i++) {
        out[2] = bad_codes[i];
        expect_refused(OUT, COLS_MAX, "width code of block 1");
    }
}

static void a_payload_is_exactly_its_rows(void **state)
{
    int64_t sum[10] = {1, 2, 3};
    size_t at = 0;
    rt_err err;

    (void)state;
    at += tr_partial_write_wide(out + at, sum, 10);
    at += tr_partial_write_poison(out + at);
    out[at++] = 0;
    assert_int_equal(tr_partial_check(out, at, 3, 10, NULL), RT_OK);
    assert_int_equal(tr_partial_check(out, at, 2, 10, &err), RT_EPROTO);
    assert_non_null(strstr(err.text, "2 rows: expected 22 bytes, found 23"));
    assert_int_equal(tr_partial_check(out, at, 4, 10, &err), RT_EPROTO);
    assert_non_null(strstr(err.text, "row 3: partial sum: expected a row, found the end"));
    assert_int_equal(tr_partial_check(out, 0, 0, 10, NULL), RT_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_zero_row_is_one_byte),
        cmocka_unit_test(a_row_of_int16_takes_two_bytes_a_column),
        cmocka_unit_test(minus_one_alone_is_not_a_zero_row),
        cmocka_unit_test(each_block_has_the_width_its_values_need),
        cmocka_unit_test(random_rows_of_every_magnitude_come_back),
        cmocka_unit_test(rows_add_up_in_any_order),
        cmocka_unit_test(a_poison_row_adds_nothing),
        cmocka_unit_test(hostile_sums_wrap),
        cmocka_unit_test(rows_that_do_not_fit_are_refused),
        cmocka_unit_test(unknown_kinds_and_codes_are_refused),
        cmocka_unit_test(a_payload_is_exactly_its_rows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
