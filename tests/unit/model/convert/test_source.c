/* test_source.c - a sharded checkpoint: where tensors are, what they hold, and what is refused. */
#include "model/convert/source.h"

#include "base/file.h"
#include "kernels/quant.h"
#include "tests/support/numbers.h"
#include "tests/support/safetensors_file.h"
#include "tests/support/temp_dir.h"

#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static const char index_name[] = "model.safetensors.index.json";

static char *path_of(const char *dir, const char *name)
{
    return rt_path_join(dir, name);
}

static void write_shard(const st_items *items, const char *dir, const char *name, uint32_t shard)
{
    char *path = path_of(dir, name);

    st_items_write(items, path, shard);
    free(path);
}

static void write_text(const char *dir, const char *name, const char *text)
{
    free(temp_dir_write(dir, name, text, strlen(text)));
}

/* Opens a folder that must be refused with `status` and a text that holds `says`. */
static void expect_refusal(const char *dir, rt_status status, const char *says)
{
    md_source *source = NULL;
    rt_err err = {0};
    rt_status found = md_source_open(dir, NULL, 0, &source, &err);

    if (found != status || strstr(err.text, says) == NULL)
        fail_msg("expected %s (%s), found %s: %s", rt_status_name(status), says,
                 rt_status_name(found), err.text);
    assert_null(source);
}

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
    write_shard(&items, dir, "model-1.safetensors", 0);
    write_shard(&items, dir, "model-2.safetensors", 1);
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
    write_shard(&items, dir, "model.safetensors", ST_ALL_SHARDS);
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
        write_shard(&items, dir, "model.safetensors", ST_ALL_SHARDS);
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
        write_shard(&items, dir, "model.safetensors", ST_ALL_SHARDS);
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
    write_shard(&items, dir, "model.safetensors", ST_ALL_SHARDS);
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
    write_shard(&items, dir, "model.safetensors", ST_ALL_SHARDS);
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

/* ---- shards and index ---- */

static void with_and_without_an_index_the_same_tensors_are_found(void **state)
{
    st_checkpoint checkpoint = st_checkpoint_load(MOESAIC_FIXTURES, "nano-fp8");

    (void)state;
    for (int with_index = 0; with_index < 2; with_index++) {
        char *dir = temp_dir_make();
        md_source *source = NULL;

        st_checkpoint_write(&checkpoint, dir, with_index != 0);
        write_text(dir, "other.safetensors", "not one of the model's");
        assert_int_equal(md_source_open(dir, NULL, 0, &source, NULL), RT_OK);
        assert_int_equal(md_source_shard_count(source), 2);
        assert_true(md_source_shard_present(source, 0) && md_source_shard_present(source, 1));
        assert_int_equal(md_source_bytes(source), md_source_shard_at(source, 0)->bytes +
                                                      md_source_shard_at(source, 1)->bytes);
        for (uint32_t i = 0; i < checkpoint.tensors.count; i++) {
            uint32_t tensor = md_source_lookup(source, checkpoint.tensors.items[i].name);

            assert_true(tensor != MD_SOURCE_NONE);
            assert_int_equal(md_source_tensor_shard(source, tensor),
                             checkpoint.tensors.items[i].shard);
        }
        md_source_close(source);
        temp_dir_remove(dir);
    }
    st_checkpoint_free(&checkpoint);
}

static void a_folder_without_shards_is_refused(void **state)
{
    char *dir = temp_dir_make();

    (void)state;
    expect_refusal(dir, RT_EFORMAT, "no model*.safetensors");
    write_text(dir, "model.safetensors", "short");
    expect_refusal(dir, RT_EFORMAT, "model.safetensors");
    expect_refusal("/nowhere/at/all", RT_EIO, "/nowhere/at/all");
    temp_dir_remove(dir);
}

static void an_index_that_lies_is_refused(void **state)
{
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"{", "line 1"},
        {"[]", "weight_map"},
        {"{\"weight_map\":[]}", "weight_map"},
        {"{\"weight_map\":{\"a\":7}}", "expected a file name"},
        {"{\"weight_map\":{\"a\":\"../model-1.safetensors\"}}", "plain"},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "plain"},
        {"{\"weight_map\":{\"a\":\"model-1.bin\"}}", "plain"},
        {"{\"weight_map\":{\"a\":\".safetensors\"}}", "plain"},
        {"{\"weight_map\":{\"a\":\"model-9.safetensors\"}}", "model-9.safetensors, which is not"},
        {"{\"weight_map\":{\"b\":\"model-1.safetensors\"}}", "which lacks it"},
        {"{\"weight_map\":{\"a\":\"model-2.safetensors\"}}", "which lacks it"},
        {"{\"weight_map\":{}}", "no model*.safetensors"},
    };
    float data[2] = {0};
    char *dir = temp_dir_make();
    st_items a = {0}, b = {0};

    (void)state;
    st_items_add(&a, "a", MD_ST_F32, 0, 2, data);
    st_items_add(&b, "x", MD_ST_F32, 0, 2, data);
    write_shard(&a, dir, "model-1.safetensors", ST_ALL_SHARDS);
    write_shard(&b, dir, "model-2.safetensors", ST_ALL_SHARDS);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        write_text(dir, index_name, bad[i].text);
        expect_refusal(dir, RT_EFORMAT, bad[i].says);
    }
    st_items_free(&a);
    st_items_free(&b);
    temp_dir_remove(dir);
}

static void a_tensor_in_two_shards_is_refused(void **state)
{
    float data[2] = {0};
    char *dir = temp_dir_make();
    st_items a = {0};

    (void)state;
    st_items_add(&a, "twice", MD_ST_F32, 0, 2, data);
    write_shard(&a, dir, "model-1.safetensors", ST_ALL_SHARDS);
    write_shard(&a, dir, "model-2.safetensors", ST_ALL_SHARDS);
    expect_refusal(dir, RT_EFORMAT, "twice is in two shards, model-1.safetensors and model-2");
    st_items_free(&a);
    temp_dir_remove(dir);
}

static void fused_expert_names_are_named_as_such(void **state)
{
    static const char *const fused[] = {"model.layers.3.mlp.experts.gate_up_proj",
                                        "model.layers.3.mlp.experts.down_proj"};
    float data[2] = {0};

    (void)state;
    for (int i = 0; i < 2; i++) {
        char *dir = temp_dir_make();
        st_items a = {0};

        st_items_add(&a, fused[i], MD_ST_F32, 0, 2, data);
        write_shard(&a, dir, "model.safetensors", ST_ALL_SHARDS);
        expect_refusal(dir, RT_EUNSUPPORTED, fused[i]);
        st_items_free(&a);
        temp_dir_remove(dir);
    }
}

/* ---- shards that go ---- */

static void a_known_shard_may_be_gone_and_must_not_change(void **state)
{
    st_checkpoint checkpoint = st_checkpoint_load(MOESAIC_FIXTURES, "nano-bf16");
    md_source_shard known[2];
    char *dir = temp_dir_make();
    char *first = path_of(dir, "model-00001-of-00002.safetensors");
    md_source *source = NULL;
    md_source_matrix matrix;
    rt_err err = {0};

    (void)state;
    st_checkpoint_write(&checkpoint, dir, true);
    assert_int_equal(md_source_open(dir, NULL, 0, &source, NULL), RT_OK);
    known[0] = *md_source_shard_at(source, 0);
    known[1] = *md_source_shard_at(source, 1);
    md_source_close(source);
    assert_int_equal(md_source_open(dir, known, 2, &source, NULL), RT_OK);
    md_source_close(source);
    source = NULL;

    ((uint8_t *)checkpoint.tensors.items[checkpoint.tensors.count - 1].data)[0] ^= 1;
    st_checkpoint_write(&checkpoint, dir, true);
    assert_int_equal(md_source_open(dir, known, 2, &source, &err), RT_EINVAL);
    assert_non_null(strstr(err.text, "model-00002-of-00002.safetensors"));
    ((uint8_t *)checkpoint.tensors.items[checkpoint.tensors.count - 1].data)[0] ^= 1;
    st_checkpoint_write(&checkpoint, dir, true);

    assert_int_equal(unlink(first), 0);
    assert_int_equal(md_source_open(dir, NULL, 0, &source, &err), RT_EFORMAT);
    assert_int_equal(md_source_open(dir, known, 2, &source, NULL), RT_OK);
    assert_false(md_source_shard_present(source, 0));
    assert_int_equal(md_source_shard_at(source, 0)->bytes, known[0].bytes);
    assert_int_equal(md_source_bytes(source), known[1].bytes);
    assert_int_equal(md_source_resolve(source, "model.embed_tokens.weight", 384, 64, &matrix, &err),
                     RT_EFORMAT);
    assert_non_null(strstr(err.text, "model-00001-of-00002.safetensors, which is no longer"));
    md_source_close(source);
    free(first);
    st_checkpoint_free(&checkpoint);
    temp_dir_remove(dir);
}

static void without_an_index_a_missing_shard_is_still_named(void **state)
{
    st_checkpoint checkpoint = st_checkpoint_load(MOESAIC_FIXTURES, "nano-bf16");
    md_source_shard known[2];
    char *dir = temp_dir_make();
    char *first = path_of(dir, "model-00001-of-00002.safetensors");
    md_source *source = NULL;
    md_source_matrix matrix;
    rt_err err = {0};

    (void)state;
    st_checkpoint_write(&checkpoint, dir, false);
    assert_int_equal(md_source_open(dir, NULL, 0, &source, NULL), RT_OK);
    known[0] = *md_source_shard_at(source, 0);
    known[1] = *md_source_shard_at(source, 1);
    md_source_close(source);
    assert_int_equal(unlink(first), 0);
    assert_int_equal(md_source_open(dir, known, 2, &source, NULL), RT_OK);
    assert_int_equal(md_source_resolve(source, "model.embed_tokens.weight", 384, 64, &matrix, &err),
                     RT_EFORMAT);
    assert_non_null(strstr(err.text, "model-00001-of-00002.safetensors is no longer there"));
    md_source_close(source);
    free(first);
    st_checkpoint_free(&checkpoint);
    temp_dir_remove(dir);
}

/* Tensors of another model would fill in for those of a shard that is gone. */
static void a_resumed_source_has_no_shards_that_it_did_not_begin_with(void **state)
{
    st_checkpoint checkpoint = st_checkpoint_load(MOESAIC_FIXTURES, "nano-bf16");
    char *dir = temp_dir_make(), *first = path_of(dir, "model-00001-of-00002.safetensors");
    char *renamed = path_of(dir, "model-other.safetensors");
    md_source_shard known[2];
    md_source *source = NULL;
    rt_err err = {0};

    (void)state;
    st_checkpoint_write(&checkpoint, dir, false);
    assert_int_equal(md_source_open(dir, NULL, 0, &source, NULL), RT_OK);
    known[0] = *md_source_shard_at(source, 0);
    known[1] = *md_source_shard_at(source, 1);
    md_source_close(source);
    source = NULL;
    assert_int_equal(rename(first, renamed), 0);
    assert_int_equal(md_source_open(dir, known, 2, &source, &err), RT_EINVAL);
    assert_non_null(strstr(err.text, "model-other.safetensors is not one of the files"));
    assert_null(source);
    free(renamed);
    free(first);
    st_checkpoint_free(&checkpoint);
    temp_dir_remove(dir);
}

static void a_shard_that_changes_while_it_is_read_is_noticed(void **state)
{
    st_checkpoint checkpoint = st_checkpoint_load(MOESAIC_FIXTURES, "nano-bf16");
    const struct timespec long_ago[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    char *dir = temp_dir_make(), *path = path_of(dir, "model-00002-of-00002.safetensors");
    md_source *source = NULL;
    rt_err err = {0};
    FILE *file;

    (void)state;
    st_checkpoint_write(&checkpoint, dir, true);
    assert_int_equal(utimensat(AT_FDCWD, path, long_ago, 0), 0);
    assert_int_equal(md_source_open(dir, NULL, 0, &source, NULL), RT_OK);
    assert_int_equal(md_source_check_unchanged(source, NULL), RT_OK);
    assert_int_equal(utimensat(AT_FDCWD, path, NULL, 0), 0);
    assert_int_equal(md_source_check_unchanged(source, NULL), RT_OK); /* only touched */
    file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, -1, SEEK_END), 0);
    assert_int_equal(fputc(0x5a, file), 0x5a);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(md_source_check_unchanged(source, &err), RT_EINVAL);
    assert_non_null(strstr(err.text, "model-00002-of-00002.safetensors changed while it was read"));
    assert_int_equal(md_source_drop(source, 1, &err), RT_EINVAL); /* it is not what was converted */
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(truncate(path, 100), 0);
    assert_int_equal(md_source_check_unchanged(source, &err), RT_EINVAL);
    md_source_close(source);
    free(path);
    st_checkpoint_free(&checkpoint);
    temp_dir_remove(dir);
}

static void a_shard_with_a_name_too_long_is_not_passed_over(void **state)
{
    char *dir = temp_dir_make(), name[200];

    (void)state;
    snprintf(name, sizeof(name), "model-%0130d.safetensors", 1);
    write_text(dir, name, "x");
    expect_refusal(dir, RT_EFORMAT, "is not a plain *.safetensors file name of at most 113 bytes");
    temp_dir_remove(dir);
}

static void a_dropped_shard_is_deleted_and_closed(void **state)
{
    st_checkpoint checkpoint = st_checkpoint_load(MOESAIC_FIXTURES, "nano-bf16");
    char *dir = temp_dir_make();
    md_source *source = NULL;
    rt_err err = {0};

    (void)state;
    st_checkpoint_write(&checkpoint, dir, true);
    assert_int_equal(md_source_open(dir, NULL, 0, &source, NULL), RT_OK);
    assert_int_equal(md_source_check_deletable(source, NULL), RT_OK);
    assert_int_equal(md_source_drop(source, 0, NULL), RT_OK);
    assert_false(md_source_shard_present(source, 0));
    assert_false(test_file_exists(dir, "model-00001-of-00002.safetensors"));
    assert_true(test_file_exists(dir, "model-00002-of-00002.safetensors"));
    /* Names of the dropped shard are still known. */
    assert_true(md_source_lookup(source, "model.embed_tokens.weight") != MD_SOURCE_NONE);
    /* Somebody else was faster. */
    {
        char *second = path_of(dir, "model-00002-of-00002.safetensors");

        assert_int_equal(unlink(second), 0);
        free(second);
    }
    assert_int_equal(md_source_drop(source, 1, &err), RT_EIO);
    assert_true(md_source_shard_present(source, 1));
    md_source_close(source);
    st_checkpoint_free(&checkpoint);
    temp_dir_remove(dir);
}

static void shards_that_are_links_are_not_deletable(void **state)
{
    st_checkpoint checkpoint = st_checkpoint_load(MOESAIC_FIXTURES, "nano-bf16");
    char *store = temp_dir_make(), *dir = temp_dir_make();
    char *real = path_of(store, "model-00001-of-00002.safetensors");
    char *link = path_of(dir, "model-00001-of-00002.safetensors");
    md_source *source = NULL;
    rt_err err = {0};

    (void)state;
    st_checkpoint_write(&checkpoint, store, true);
    st_checkpoint_write(&checkpoint, dir, true);
    assert_int_equal(unlink(link), 0);
    assert_int_equal(symlink(real, link), 0);
    assert_int_equal(md_source_open(dir, NULL, 0, &source, NULL), RT_OK);
    assert_int_equal(md_source_check_deletable(source, &err), RT_EINVAL);
    assert_non_null(strstr(err.text, "symbolic link"));
    md_source_close(source);
    free(real);
    free(link);
    st_checkpoint_free(&checkpoint);
    temp_dir_remove(store);
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
        cmocka_unit_test(with_and_without_an_index_the_same_tensors_are_found),
        cmocka_unit_test(a_folder_without_shards_is_refused),
        cmocka_unit_test(an_index_that_lies_is_refused),
        cmocka_unit_test(a_tensor_in_two_shards_is_refused),
        cmocka_unit_test(fused_expert_names_are_named_as_such),
        cmocka_unit_test(a_known_shard_may_be_gone_and_must_not_change),
        cmocka_unit_test(without_an_index_a_missing_shard_is_still_named),
        cmocka_unit_test(a_resumed_source_has_no_shards_that_it_did_not_begin_with),
        cmocka_unit_test(a_shard_that_changes_while_it_is_read_is_noticed),
        cmocka_unit_test(a_shard_with_a_name_too_long_is_not_passed_over),
        cmocka_unit_test(a_dropped_shard_is_deleted_and_closed),
        cmocka_unit_test(shards_that_are_links_are_not_deletable),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
