/* test_source.c - tensors of a checkpoint: what they hold, and which are refused. */
#include "model/convert/source.h"

#include "kernels/quant.h"
#include "tests/support/safetensors_file.h"
#include "tests/support/temp_dir.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Resolves a name that must be refused. */
static void expect_unresolved(const char *dir, const char *name, uint32_t rows, uint32_t cols,
                              rt_status status, const char *says)
{
    md_source *source = NULL;
    md_source_matrix matrix;
    rt_err err = {0};
    rt_status found;

    assert_int_equal(md_source_open(dir, NULL, 0, &source, NULL), RT_OK);
    found = md_source_resolve(source, name, rows, cols, &matrix, &err);
    if (found != status || strstr(err.text, says) == NULL)
        fail_msg("expected %s (%s), found %s: %s", rt_status_name(status), says,
                 rt_status_name(found), err.text);
    md_source_close(source);
}

/* ---- reading ---- */

/* The definition of e4m3, in f64. */
static double e4m3(int code)
{
    int exponent = code >> 3 & 15, mantissa = code & 7;
    double value =
        exponent == 0 ? mantissa * ldexp(1, -9) : (1 + mantissa / 8.0) * ldexp(1, exponent - 7);

    return code & 0x80 ? -value : value;
}

static void every_fp8_code_times_its_block_scale_is_read(void **state)
{
    enum { ROWS = 300, COLS = 290, BLOCK_ROWS = 3, BLOCK_COLS = 3 };
    static uint8_t codes[ROWS * COLS];
    static float out[ROWS * COLS];
    float scales[BLOCK_ROWS * BLOCK_COLS];
    char *dir = temp_dir_make();
    st_items items = {0};
    md_source *source = NULL;
    md_source_matrix matrix;
    void *raw = malloc(md_source_raw_bytes(ROWS, COLS));

    (void)state;
    for (int i = 0; i < ROWS * COLS; i++) {
        codes[i] = (uint8_t)(i * 7 % 256);
        if ((codes[i] & 0x7f) == 0x7f) codes[i] = 0;
    }
    for (int i = 0; i < BLOCK_ROWS * BLOCK_COLS; i++)
        scales[i] = 0.37f * (float)(i + 1);
    st_items_add(&items, "w", MD_ST_F8_E4M3, ROWS, COLS, codes);
    st_items_add(&items, "w_scale_inv", MD_ST_F32, BLOCK_ROWS, BLOCK_COLS, scales);
    items.items[1].shard = 1; /* the scale in another file */
    st_items_write_in(&items, dir, "model-1.safetensors", 0);
    st_items_write_in(&items, dir, "model-2.safetensors", 1);
    assert_int_equal(md_source_open(dir, NULL, 0, &source, NULL), RT_OK);
    assert_int_equal(md_source_resolve(source, "w", ROWS, COLS, &matrix, NULL), RT_OK);
    assert_int_equal(md_source_read_rows(source, &matrix, 0, ROWS, out, raw, NULL), RT_OK);
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLS; c++)
            assert_true(out[r * COLS + c] ==
                        (float)e4m3(codes[r * COLS + c]) * scales[r / 128 * BLOCK_COLS + c / 128]);
    /* Any run of rows gives the same. */
    for (uint32_t begin = 0; begin < ROWS; begin += 37) {
        static float part[150 * COLS];
        uint32_t count = ROWS - begin < 150 ? ROWS - begin : 150;

        assert_int_equal(md_source_read_rows(source, &matrix, begin, count, part, raw, NULL),
                         RT_OK);
        assert_memory_equal(part, out + begin * COLS, count * COLS * sizeof(float));
    }
    assert_int_equal(md_source_matrix_bytes(source, &matrix), ROWS * COLS + sizeof(scales));
    md_source_close(source);
    st_items_free(&items);
    free(raw);
    temp_dir_remove(dir);
}

static void bf16_and_f32_are_read_exactly_as_stored(void **state)
{
    float values[6] = {1.5f, -0.0f, 0x1p-149f, 3.0e38f, -2.25f, 0x1.fep3f}, out[6];
    uint16_t narrow[6] = {0x3fc0, 0x8000, 0x0001, 0x7f7f, 0xc010, 0x417f};
    char *dir = temp_dir_make();
    st_items items = {0};
    md_source *source = NULL;
    md_source_matrix matrix;
    double raw[16];

    (void)state;
    st_items_add(&items, "f", MD_ST_F32, 2, 3, values);
    st_items_add(&items, "b", MD_ST_BF16, 0, 6, narrow);
    st_items_write_in(&items, dir, "model.safetensors", ST_ALL_SHARDS);
    assert_int_equal(md_source_open(dir, NULL, 0, &source, NULL), RT_OK);
    assert_int_equal(md_source_resolve(source, "f", 2, 3, &matrix, NULL), RT_OK);
    assert_int_equal(md_source_read_rows(source, &matrix, 0, 2, out, raw, NULL), RT_OK);
    assert_memory_equal(out, values, sizeof(values));
    assert_int_equal(md_source_resolve(source, "b", 1, 6, &matrix, NULL), RT_OK);
    assert_int_equal(md_source_read_rows(source, &matrix, 0, 1, out, raw, NULL), RT_OK);
    for (int i = 0; i < 6; i++) {
        float wide = kn_f32_from_bf16(narrow[i]);

        assert_memory_equal(&out[i], &wide, sizeof(wide));
    }
    md_source_close(source);
    st_items_free(&items);
    temp_dir_remove(dir);
}

static void values_that_are_not_finite_are_refused_with_their_place(void **state)
{
    static const struct {
        md_st_dtype dtype;
        uint32_t bits;
    } bad[] = {{MD_ST_F32, 0x7f800000}, {MD_ST_F32, 0xffc00001}, {MD_ST_BF16, 0x7f80},
               {MD_ST_BF16, 0xffff},    {MD_ST_F8_E4M3, 0x7f},   {MD_ST_F8_E4M3, 0xff}};
    enum { ROWS = 40, COLS = 30, ROW = 33, COL = 17 };
    float scale = 1.0f, out[ROWS * COLS];
    static uint32_t raw[ROWS * COLS + 64];

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        size_t size = md_st_dtype_bytes(bad[i].dtype);
        uint8_t *data = calloc(ROWS * COLS, size);
        char *dir = temp_dir_make();
        st_items items = {0};
        md_source *source = NULL;
        md_source_matrix matrix;
        rt_err err = {0};

        memcpy(data + (ROW * COLS + COL) * size, &bad[i].bits, size);
        st_items_add(&items, "some.w", bad[i].dtype, ROWS, COLS, data);
        if (bad[i].dtype == MD_ST_F8_E4M3)
            st_items_add(&items, "some.w_scale_inv", MD_ST_F32, 1, 1, &scale);
        st_items_write_in(&items, dir, "model.safetensors", ST_ALL_SHARDS);
        assert_int_equal(md_source_open(dir, NULL, 0, &source, NULL), RT_OK);
        assert_int_equal(md_source_resolve(source, "some.w", ROWS, COLS, &matrix, NULL), RT_OK);
        assert_int_equal(md_source_read_rows(source, &matrix, 0, ROW, out, raw, NULL), RT_OK);
        assert_int_equal(md_source_read_rows(source, &matrix, 16, 24, out, raw, &err), RT_EFORMAT);
        assert_non_null(strstr(err.text, "some.w: row 33, column 17"));
        md_source_close(source);
        st_items_free(&items);
        free(data);
        temp_dir_remove(dir);
    }
}

static void a_scale_that_is_not_finite_is_refused(void **state)
{
    static const float bad[] = {NAN, INFINITY};
    uint8_t codes[4] = {0x38, 0x38, 0x38, 0x38};
    float out[4];
    uint32_t raw[16];

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        char *dir = temp_dir_make();
        st_items items = {0};
        md_source *source = NULL;
        md_source_matrix matrix;
        rt_err err = {0};

        st_items_add(&items, "w", MD_ST_F8_E4M3, 2, 2, codes);
        st_items_add(&items, "w_scale_inv", MD_ST_F32, 1, 1, &bad[i]);
        st_items_write_in(&items, dir, "model.safetensors", ST_ALL_SHARDS);
        assert_int_equal(md_source_open(dir, NULL, 0, &source, NULL), RT_OK);
        assert_int_equal(md_source_resolve(source, "w", 2, 2, &matrix, NULL), RT_OK);
        assert_int_equal(md_source_read_rows(source, &matrix, 0, 2, out, raw, &err), RT_EFORMAT);
        assert_non_null(strstr(err.text, "w_scale_inv"));
        md_source_close(source);
        st_items_free(&items);
        temp_dir_remove(dir);
    }
}

/* ---- resolving ---- */

static void a_tensor_that_does_not_fit_is_refused_by_name(void **state)
{
    float data[12] = {0};
    char *dir = temp_dir_make();
    st_items items = {0};

    (void)state;
    st_items_add(&items, "f32", MD_ST_F32, 3, 4, data);
    st_items_add(&items, "i32", MD_ST_I32, 3, 4, data);
    st_items_add(&items, "bare", MD_ST_F8_E4M3, 3, 4, data);
    st_items_add(&items, "wrong", MD_ST_F8_E4M3, 3, 4, data);
    st_items_add(&items, "wrong_scale_inv", MD_ST_F32, 1, 2, data);
    st_items_add(&items, "narrow", MD_ST_F8_E4M3, 3, 4, data);
    st_items_add(&items, "narrow_scale_inv", MD_ST_BF16, 1, 1, data);
    st_items_write_in(&items, dir, "model.safetensors", ST_ALL_SHARDS);
    expect_unresolved(dir, "absent", 3, 4, RT_EFORMAT, "tensor absent is missing");
    expect_unresolved(dir, "f32", 4, 3, RT_EFORMAT, "expected shape [4, 3], found [3, 4]");
    expect_unresolved(dir, "f32", 1, 12, RT_EFORMAT, "expected shape [12], found [3, 4]");
    expect_unresolved(dir, "i32", 3, 4, RT_EUNSUPPORTED, "found I32");
    expect_unresolved(dir, "bare", 3, 4, RT_EFORMAT, "bare_scale_inv is missing");
    expect_unresolved(dir, "wrong", 3, 4, RT_EFORMAT, "wrong_scale_inv: expected shape");
    expect_unresolved(dir, "narrow", 3, 4, RT_EUNSUPPORTED, "narrow_scale_inv");
    st_items_free(&items);
    temp_dir_remove(dir);
}

static void tensors_that_nobody_asked_for_are_counted(void **state)
{
    float data[2] = {0};
    char *dir = temp_dir_make();
    st_items items = {0};
    md_source *source = NULL;
    md_source_matrix matrix;
    const char *first = NULL;

    (void)state;
    st_items_add(&items, "a", MD_ST_F32, 0, 2, data);
    st_items_add(&items, "b", MD_ST_F32, 0, 2, data);
    st_items_add(&items, "c", MD_ST_F32, 0, 2, data);
    st_items_write_in(&items, dir, "model.safetensors", ST_ALL_SHARDS);
    assert_int_equal(md_source_open(dir, NULL, 0, &source, NULL), RT_OK);
    assert_int_equal(md_source_unused(source, &first), 3);
    assert_int_equal(md_source_resolve(source, "a", 1, 2, &matrix, NULL), RT_OK);
    assert_string_equal(md_source_tensor_name(source, md_source_lookup(source, "b")), "b");
    assert_int_equal(md_source_lookup(source, "nothing"), MD_SOURCE_NONE);
    assert_int_equal(md_source_unused(source, &first), 1);
    assert_string_equal(first, "c");
    md_source_close(source);
    st_items_free(&items);
    temp_dir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_fp8_code_times_its_block_scale_is_read),
        cmocka_unit_test(bf16_and_f32_are_read_exactly_as_stored),
        cmocka_unit_test(values_that_are_not_finite_are_refused_with_their_place),
        cmocka_unit_test(a_scale_that_is_not_finite_is_refused),
        cmocka_unit_test(a_tensor_that_does_not_fit_is_refused_by_name),
        cmocka_unit_test(tensors_that_nobody_asked_for_are_counted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
