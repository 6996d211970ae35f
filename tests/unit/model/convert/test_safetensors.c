/* test_safetensors.c - headers that are true are read; every other one is refused by name. */
#include "model/convert/safetensors.h"

#include "base/file.h"
#include "tests/support/safetensors_file.h"
#include "tests/support/temp_dir.h"

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

static const char fixture[] = MOESAIC_FIXTURES "/nano-fp8/model-00001-of-00002.safetensors";

static void a_shard_of_the_release_is_read(void **state)
{
    const md_st_tensor *norm;
    md_st_file *file = NULL;
    uint16_t values[64];

    (void)state;
    assert_int_equal(md_st_open(fixture, &file, NULL), RT_OK);
    assert_true(md_st_count(file) > 100);
    assert_string_equal(md_st_path(file), fixture);
    for (uint64_t i = 1; i < md_st_count(file); i++)
        assert_true(strcmp(md_st_at(file, i - 1)->name, md_st_at(file, i)->name) < 0);
    for (uint64_t i = 0; i < md_st_count(file); i++)
        assert_ptr_equal(md_st_find(file, md_st_at(file, i)->name), md_st_at(file, i));
    assert_null(md_st_find(file, "model.layers.99.nothing"));
    norm = md_st_find(file, "model.layers.0.input_layernorm.weight");
    assert_non_null(norm);
    assert_int_equal(norm->dtype, MD_ST_BF16);
    assert_int_equal(norm->dims, 1);
    assert_int_equal(norm->shape[0], 64);
    assert_int_equal(norm->bytes, sizeof(values));
    assert_int_equal(md_st_read(file, norm, 0, values, sizeof(values), NULL), RT_OK);
    md_st_close(file);
}

static void a_range_of_a_tensor_is_the_same_bytes_as_the_whole(void **state)
{
    const md_st_tensor *tensor;
    uint8_t whole[64 * 64], part[100];
    md_st_file *file = NULL;

    (void)state;
    assert_int_equal(md_st_open(fixture, &file, NULL), RT_OK);
    tensor = md_st_find(file, "model.layers.0.self_attn.indexer.wk.weight");
    if (tensor == NULL) tensor = md_st_at(file, 0);
    assert_true(tensor->bytes >= 4);
    assert_true(tensor->bytes <= sizeof(whole));
    assert_int_equal(md_st_read(file, tensor, 0, whole, tensor->bytes, NULL), RT_OK);
    assert_int_equal(md_st_read(file, tensor, 1, part, 3, NULL), RT_OK);
    assert_memory_equal(part, whole + 1, 3);
    md_st_close(file);
}

static void references_with_f32_and_i32_are_read(void **state)
{
    const md_st_tensor *ids;
    md_st_file *file = NULL;
    int32_t first;

    (void)state;
    assert_int_equal(md_st_open(MOESAIC_FIXTURES "/nano-bf16/reference.safetensors", &file, NULL),
                     RT_OK);
    ids = md_st_find(file, "p0.ids");
    assert_non_null(ids);
    assert_int_equal(ids->dtype, MD_ST_I32);
    assert_int_equal(md_st_read(file, ids, 0, &first, sizeof(first), NULL), RT_OK);
    assert_true(first >= 0 && first < 384);
    md_st_close(file);
}

#define ENTRY(dtype, shape, from, to)                                                              \
    "\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" from "," to "]"

typedef struct {
    const char *what, *header;
    uint64_t data_bytes;
    rt_status status;
    const char *says; /* part of the error's text */
} hostile;

static const hostile hostiles[] = {
    {"no json", "", 0, RT_EFORMAT, "header"},
    {"cut json", "{\"a\":{", 0, RT_EFORMAT, "header"},
    {"a list", "[]", 0, RT_EFORMAT, "object"},
    {"a number", "7", 0, RT_EFORMAT, "header"},
    {"bytes after the json", "{} x", 0, RT_EFORMAT, "header"},
    {"the same name twice",
     "{\"a\":{" ENTRY("U8", "[1]", "0", "1") "},\"a\":{" ENTRY("U8", "[1]", "0", "1") "}}", 1,
     RT_EFORMAT, "header"},
    {"metadata that is no object", "{\"__metadata__\":3}", 0, RT_EFORMAT, "__metadata__"},
    {"metadata that is no text", "{\"__metadata__\":{\"a\":{}}}", 0, RT_EFORMAT,
     "a: expected a text"},
    {"an entry that is no object", "{\"a\":[]}", 0, RT_EFORMAT, "a:"},
    {"a name that writes to the terminal", "{\"a\\u001b[31m\":{" ENTRY("U8", "[1]", "0", "1") "}}",
     1, RT_EFORMAT, "control character"},
    {"an empty name", "{\"\":{" ENTRY("U8", "[1]", "0", "1") "}}", 1, RT_EFORMAT, "name"},
    {"no dtype", "{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, RT_EFORMAT, "dtype"},
    {"a dtype that is a number", "{\"a\":{\"dtype\":1,\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
     RT_EFORMAT, "dtype"},
    {"an unknown dtype", "{\"a\":{" ENTRY("F4", "[1]", "0", "1") "}}", 1, RT_EUNSUPPORTED,
     "\"F4\""},
    {"a very long dtype",
     "{\"a\":{" ENTRY("F4444444444444444444444444444444444", "[1]", "0", "1") "}}", 1,
     RT_EUNSUPPORTED, "F444"},
    {"no shape", "{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, RT_EFORMAT, "shape"},
    {"a shape that is a number", "{\"a\":{" ENTRY("U8", "1", "0", "1") "}}", 1, RT_EFORMAT,
     "shape"},
    {"five dimensions", "{\"a\":{" ENTRY("U8", "[1,1,1,1,1]", "0", "1") "}}", 1, RT_EUNSUPPORTED,
     "dimensions"},
    {"a negative size", "{\"a\":{" ENTRY("U8", "[-1]", "0", "1") "}}", 1, RT_EFORMAT, "shape"},
    {"a fractional size", "{\"a\":{" ENTRY("U8", "[1.0]", "0", "1") "}}", 1, RT_EFORMAT, "shape"},
    {"a size beyond 64 bits", "{\"a\":{" ENTRY("U8", "[18446744073709551616]", "0", "1") "}}", 1,
     RT_EFORMAT, "header"},
    {"a product beyond 64 bits", "{\"a\":{" ENTRY("F32", "[4294967296,4294967296]", "0", "1") "}}",
     1, RT_EFORMAT, "larger"},
    {"a product that wraps to the right number",
     "{\"a\":{" ENTRY("U8", "[4611686018427387904,4,4,1]", "0", "0") "}}", 0, RT_EFORMAT, "larger"},
    {"no offsets", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, RT_EFORMAT, "data_offsets"},
    {"one offset", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}", 1, RT_EFORMAT,
     "data_offsets"},
    {"three offsets", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,2]}}", 1,
     RT_EFORMAT, "data_offsets"},
    {"offsets that are texts", "{\"a\":{" ENTRY("U8", "[1]", "\"0\"", "\"1\"") "}}", 1, RT_EFORMAT,
     "data_offsets"},
    {"a negative offset", "{\"a\":{" ENTRY("U8", "[1]", "-1", "0") "}}", 1, RT_EFORMAT, "outside"},
    {"offsets backwards", "{\"a\":{" ENTRY("U8", "[1]", "1", "0") "}}", 1, RT_EFORMAT, "outside"},
    {"an end beyond the file", "{\"a\":{" ENTRY("U8", "[2]", "0", "2") "}}", 1, RT_EFORMAT,
     "outside"},
    {"an end beyond any file", "{\"a\":{" ENTRY("U8", "[2]", "0", "9223372036854775807") "}}", 1,
     RT_EFORMAT, "outside"},
    {"offsets shorter than the shape", "{\"a\":{" ENTRY("U8", "[2]", "0", "1") "}}", 1, RT_EFORMAT,
     "shape and dtype take 2 bytes"},
    {"offsets longer than the dtype", "{\"a\":{" ENTRY("U8", "[1]", "0", "4") "}}", 4, RT_EFORMAT,
     "shape and dtype take 1 bytes"},
    {"tensors that overlap",
     "{\"a\":{" ENTRY("U8", "[2]", "0", "2") "},\"b\":{" ENTRY("U8", "[2]", "1", "3") "}}", 3,
     RT_EFORMAT, "overlap"},
    {"one tensor twice under two names",
     "{\"a\":{" ENTRY("U8", "[2]", "0", "2") "},\"b\":{" ENTRY("U8", "[2]", "0", "2") "}}", 2,
     RT_EFORMAT, "overlap"},
    {"a hole at the start", "{\"a\":{" ENTRY("U8", "[2]", "1", "3") "}}", 3, RT_EFORMAT, "hole"},
    {"a hole between",
     "{\"a\":{" ENTRY("U8", "[2]", "0", "2") "},\"b\":{" ENTRY("U8", "[2]", "3", "5") "}}", 5,
     RT_EFORMAT, "hole"},
    {"bytes after the last tensor", "{\"a\":{" ENTRY("U8", "[2]", "0", "2") "}}", 3, RT_EFORMAT,
     "by its header"},
};

static void every_hostile_header_is_refused_and_named(void **state)
{
    char *dir = temp_dir_make();
    char *path = rt_path_join(dir, "x.safetensors");

    (void)state;
    for (size_t i = 0; i < sizeof(hostiles) / sizeof(hostiles[0]); i++) {
        const hostile *h = &hostiles[i];
        md_st_file *file = NULL;
        rt_err err = {0};

        st_raw_write(path, h->header, h->data_bytes);
        if (md_st_open(path, &file, &err) != h->status)
            fail_msg("%s: status %d, %s", h->what, err.status, err.text);
        if (strstr(err.text, h->says) == NULL) fail_msg("%s: says %s", h->what, err.text);
        assert_non_null(strstr(err.text, "x.safetensors"));
        assert_null(file);
    }
    free(path);
    temp_dir_remove(dir);
}

static void headers_at_the_edge_of_the_format_are_read(void **state)
{
    static const struct {
        const char *header;
        uint64_t data_bytes, count;
    } good[] = {
        {"{}", 0, 0},
        {"{\"__metadata__\":{\"format\":\"pt\"}}   ", 0, 0},
        {"{\"a\":{" ENTRY("F32", "[]", "0", "4") "}}", 4, 1},     /* a scalar */
        {"{\"a\":{" ENTRY("BF16", "[0,7]", "0", "0") "}}", 0, 1}, /* nothing in it */
        {"{\"b\":{" ENTRY("U8", "[2]", "2", "4") "},\"a\":{" ENTRY("U8", "[2]", "0", "2") "}}", 4,
         2}, /* not in name order */
        {"{\"a\":{\"extra\":1," ENTRY("I64", "[1]", "0", "8") "}}", 8, 1},
    };
    char *dir = temp_dir_make();
    char *path = rt_path_join(dir, "x.safetensors");

    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        md_st_file *file = NULL;
        rt_err err = {0};

        st_raw_write(path, good[i].header, good[i].data_bytes);
        if (md_st_open(path, &file, &err) != RT_OK) fail_msg("%s: %s", good[i].header, err.text);
        assert_int_equal(md_st_count(file), good[i].count);
        md_st_close(file);
    }
    free(path);
    temp_dir_remove(dir);
}

static void lengths_that_do_not_fit_the_file_are_refused(void **state)
{
    static const unsigned char files[][16] = {
        {0},                                              /* no length */
        {3, 0, 0, 0, 0, 0, 0, 0, '{', '}'},               /* header longer than the file */
        {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, /* longer than anything */
        {1, 0, 0, 0, 0, 0, 0, 0x80, '{', '}'},
    };
    static const size_t bytes[] = {7, 10, 8, 10};
    char *dir = temp_dir_make();

    (void)state;
    for (size_t i = 0; i < sizeof(bytes) / sizeof(bytes[0]); i++) {
        char *path = temp_dir_write(dir, "x.safetensors", files[i], bytes[i]);
        md_st_file *file = NULL;

        assert_int_equal(md_st_open(path, &file, NULL), RT_EFORMAT);
        free(path);
    }
    temp_dir_remove(dir);
}

static void a_shard_that_was_cut_or_grew_is_refused(void **state)
{
    char *dir = temp_dir_make();
    char *path = rt_path_join(dir, "x.safetensors");
    md_st_file *file = NULL;
    struct stat info;
    rt_err err = {0};

    (void)state;
    test_file_copy(fixture, path);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(truncate(path, info.st_size - 1), 0);
    assert_int_equal(md_st_open(path, &file, &err), RT_EFORMAT);
    assert_int_equal(truncate(path, info.st_size + 1), 0);
    assert_int_equal(md_st_open(path, &file, &err), RT_EFORMAT);
    assert_int_equal(truncate(path, info.st_size), 0);
    assert_int_equal(md_st_open(path, &file, &err), RT_OK);
    md_st_close(file);
    free(path);
    temp_dir_remove(dir);
}

static void what_is_no_file_is_an_io_or_format_error(void **state)
{
    char *dir = temp_dir_make();
    char *fifo = rt_path_join(dir, "fifo");
    md_st_file *file = NULL;
    rt_err err = {0};

    (void)state;
    assert_int_equal(md_st_open(MOESAIC_FIXTURES "/nothing.safetensors", &file, &err), RT_EIO);
    assert_non_null(strstr(err.text, "nothing.safetensors"));
    assert_int_equal(md_st_open(dir, &file, &err), RT_EFORMAT);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(md_st_open(fifo, &file, &err), RT_EFORMAT); /* and no wait for a writer */
    free(fifo);
    temp_dir_remove(dir);
}

static void a_read_from_a_file_cut_after_open_names_the_tensor(void **state)
{
    char *dir = temp_dir_make();
    char *path = rt_path_join(dir, "x.safetensors");
    md_st_file *file = NULL;
    rt_err err = {0};
    uint8_t data[4];

    (void)state;
    st_raw_write(path, "{\"some.tensor\":{" ENTRY("U8", "[4]", "0", "4") "}}", 4);
    assert_int_equal(md_st_open(path, &file, NULL), RT_OK);
    assert_int_equal(truncate(path, 20), 0);
    assert_int_equal(md_st_read(file, md_st_at(file, 0), 0, data, 4, &err), RT_EIO);
    assert_non_null(strstr(err.text, "some.tensor"));
    md_st_close(file);
    free(path);
    temp_dir_remove(dir);
}

static void dtypes_have_names_and_sizes(void **state)
{
    (void)state;
    assert_int_equal(md_st_dtype_bytes(MD_ST_F8_E4M3), 1);
    assert_int_equal(md_st_dtype_bytes(MD_ST_I64), 8);
    assert_string_equal(md_st_dtype_name(MD_ST_BF16), "BF16");
    assert_string_equal(md_st_dtype_name((md_st_dtype)99), "?");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_shard_of_the_release_is_read),
        cmocka_unit_test(a_range_of_a_tensor_is_the_same_bytes_as_the_whole),
        cmocka_unit_test(references_with_f32_and_i32_are_read),
        cmocka_unit_test(every_hostile_header_is_refused_and_named),
        cmocka_unit_test(headers_at_the_edge_of_the_format_are_read),
        cmocka_unit_test(lengths_that_do_not_fit_the_file_are_refused),
        cmocka_unit_test(a_shard_that_was_cut_or_grew_is_refused),
        cmocka_unit_test(what_is_no_file_is_an_io_or_format_error),
        cmocka_unit_test(a_read_from_a_file_cut_after_open_names_the_tensor),
        cmocka_unit_test(dtypes_have_names_and_sizes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
