/* test_source_foreign.c - integers of the colibri engine's files, read as they are; the second
 * directory; stamps. */
#include "model/convert/source.h"

#include "base/file.h"
#include "tests/support/safetensors_file.h"
#include "tests/support/temp_dir.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { ROWS = 21, COLS = 67, LAYERS = 3 };

static md_source *open_ok(const char *dir, const char *other)
{
    md_foreign_spec spec = {.dir = dir, .other = other, .layers = LAYERS};
    md_source *source = NULL;
    rt_err err = {0};

    if (md_source_open_foreign(&spec, NULL, 0, &source, &err) != RT_OK) fail_msg("%s", err.text);
    return source;
}

static void open_refused(const char *dir, const char *other, rt_status status, const char *says)
{
    md_foreign_spec spec = {.dir = dir, .other = other, .layers = LAYERS};
    md_source *source = NULL;
    rt_err err = {0};
    rt_status found = md_source_open_foreign(&spec, NULL, 0, &source, &err);

    if (found != status || strstr(err.text, says) == NULL)
        fail_msg("expected %s (%s), found %s: %s", rt_status_name(status), says,
                 rt_status_name(found), err.text);
}

static void write_items(const st_items *items, const char *dir, const char *name)
{
    char *path = rt_path_join(dir, name);

    st_items_write(items, path, ST_ALL_SHARDS);
    free(path);
}

/* A matrix of pseudo-random integers with scales, and what it is worth. */
typedef struct {
    int8_t q[ROWS * COLS];
    float scales[ROWS * COLS];
    uint32_t per_row, group;
} integers;

static float worth(const integers *m, uint32_t r, uint32_t c)
{
    return (float)m->q[r * COLS + c] *
           m->scales[r * m->per_row + (m->group > 0 ? c / m->group : 0)];
}

static void fill(integers *m, uint32_t bits, uint32_t group)
{
    m->group = group;
    m->per_row = group > 0 ? (COLS + group - 1) / group : 1;
    for (uint32_t i = 0; i < ROWS * COLS; i++)
        m->q[i] = (int8_t)(bits == 8 ? (int)(i * 37 % 255) - 127 : (int)(i * 7 % 16) - 8);
    for (uint32_t i = 0; i < ROWS * m->per_row; i++)
        m->scales[i] =
            (i % 5 == 0 ? -1.0f : 1.0f) * ldexpf(1.0f + (float)i / 977.0f, (int)i % 9 - 12);
}

static void add(st_items *items, const char *name, const integers *m, uint32_t bits)
{
    static uint8_t bytes[ROWS * COLS];
    uint32_t row_bytes = bits == 8 ? COLS : (COLS + 1) / 2;
    char scale_name[64];

    memset(bytes, 0, sizeof(bytes));
    for (uint32_t r = 0; r < ROWS; r++) {
        for (uint32_t c = 0; c < COLS; c++) {
            int q = m->q[r * COLS + c];

            if (bits == 8)
                bytes[r * COLS + c] = (uint8_t)q;
            else
                bytes[r * row_bytes + c / 2] =
                    (uint8_t)(bytes[r * row_bytes + c / 2] | (q + 8) << (c % 2 * 4));
        }
    }
    st_items_add(items, name, MD_ST_U8, 0, ROWS * row_bytes, bytes);
    snprintf(scale_name, sizeof(scale_name), "%s.qs", name);
    st_items_add(items, scale_name, MD_ST_F32, 0, ROWS * m->per_row, m->scales);
}

static md_source_matrix resolve_ok(md_source *source, const char *name)
{
    md_source_matrix matrix = {0};
    rt_err err = {0};

    if (md_source_resolve(source, name, ROWS, COLS, &matrix, &err) != RT_OK)
        fail_msg("%s", err.text);
    return matrix;
}

/* Any run of rows, as integers and as values. */
static void check_rows(md_source *source, const md_source_matrix *matrix, const integers *m)
{
    void *raw = malloc(md_source_raw_bytes(ROWS, COLS));
    static float values[ROWS * COLS], scales[ROWS * COLS];
    static int8_t q[ROWS * COLS];

    for (uint32_t begin = 0; begin < ROWS; begin += 5) {
        uint32_t count = ROWS - begin < 7 ? ROWS - begin : 7;

        assert_int_equal(md_source_read_codes(source, matrix, begin, count, q, scales, raw, NULL),
                         RT_OK);
        assert_memory_equal(q, m->q + begin * COLS, count * COLS);
        assert_memory_equal(scales, m->scales + begin * m->per_row,
                            count * m->per_row * sizeof(float));
        assert_int_equal(md_source_read_rows(source, matrix, begin, count, values, raw, NULL),
                         RT_OK);
        for (uint32_t r = 0; r < count; r++)
            for (uint32_t c = 0; c < COLS; c++)
                assert_true(values[r * COLS + c] == worth(m, begin + r, c));
    }
    free(raw);
}

static void integers_and_scales_are_read_as_they_are(void **state)
{
    static const struct {
        uint32_t bits, group;
    } kinds[] = {{8, 0}, {4, 0}, {4, 8}, {4, 16}, {4, 64}};
    static integers m[5];
    char *dir = temp_dir_make(), name[8];
    st_items items = {0};
    md_source *source;

    (void)state;
    for (uint32_t i = 0; i < 5; i++) {
        fill(&m[i], kinds[i].bits, kinds[i].group);
        snprintf(name, sizeof(name), "w%u", i);
        add(&items, name, &m[i], kinds[i].bits);
    }
    write_items(&items, dir, "anything.safetensors");
    source = open_ok(dir, NULL);
    for (uint32_t i = 0; i < 5; i++) {
        md_source_matrix matrix;

        snprintf(name, sizeof(name), "w%u", i);
        matrix = resolve_ok(source, name);
        assert_int_equal(matrix.bits, kinds[i].bits);
        assert_int_equal(matrix.scale_group, kinds[i].group);
        check_rows(source, &matrix, &m[i]);
    }
    md_source_close(source);
    st_items_free(&items);
    temp_dir_remove(dir);
}

static void expect_bad_rows(integers *m, uint32_t bits, const char *says)
{
    char *dir = temp_dir_make();
    void *raw = malloc(md_source_raw_bytes(ROWS, COLS));
    static float values[ROWS * COLS];
    st_items items = {0};
    md_source_matrix matrix;
    md_source *source;
    rt_err err = {0};

    add(&items, "w", m, bits);
    write_items(&items, dir, "out-1.safetensors");
    source = open_ok(dir, NULL);
    matrix = resolve_ok(source, "w");
    assert_int_equal(md_source_read_rows(source, &matrix, 1, ROWS - 1, values, raw, &err),
                     RT_EFORMAT);
    if (strstr(err.text, says) == NULL) fail_msg("expected %s, found %s", says, err.text);
    assert_int_equal(md_source_read_rows(source, &matrix, 0, 1, values, raw, NULL), RT_OK);
    free(raw);
    md_source_close(source);
    st_items_free(&items);
    temp_dir_remove(dir);
}

static void damage_is_named_with_row_and_column(void **state)
{
    static const float scales[] = {NAN, INFINITY, -INFINITY, FLT_MAX};
    static integers m;

    (void)state;
    fill(&m, 8, 0);
    m.q[3 * COLS + 5] = -128;
    expect_bad_rows(&m, 8, "w: row 3, column 5: expected -127..127, found -128");
    for (size_t i = 0; i < sizeof(scales) / sizeof(scales[0]); i++) {
        fill(&m, 8, 0);
        m.scales[7] = scales[i];
        expect_bad_rows(&m, 8, "w.qs: row 7, scale 0 of 1");
        fill(&m, 4, 16);
        m.scales[7 * 5 + 2] = scales[i];
        expect_bad_rows(&m, 4, "w.qs: row 7, scale 2 of 5");
    }
}

static void expect_unresolved(st_items *items, rt_status status, const char *says)
{
    char *dir = temp_dir_make();
    md_source_matrix matrix;
    md_source *source;
    rt_err err = {0};
    rt_status found;

    write_items(items, dir, "out-1.safetensors");
    source = open_ok(dir, NULL);
    found = md_source_resolve(source, "w", ROWS, COLS, &matrix, &err);
    if (found != status || strstr(err.text, says) == NULL)
        fail_msg("expected %s (%s), found %s: %s", rt_status_name(status), says,
                 rt_status_name(found), err.text);
    md_source_close(source);
    st_items_free(items);
    temp_dir_remove(dir);
}

static void what_is_no_such_tensor_is_refused(void **state)
{
    static integers m;
    static float values[ROWS * COLS];
    st_items items = {0};

    (void)state;
    fill(&m, 8, 0);
    add(&items, "w", &m, 8);
    st_items_remove(&items, "w.qs");
    expect_unresolved(&items, RT_EFORMAT, "w.qs is missing");
    add(&items, "w", &m, 8);
    st_items_remove(&items, "w.qs");
    st_items_add(&items, "w.qs", MD_ST_U8, 0, ROWS, m.q);
    expect_unresolved(&items, RT_EUNSUPPORTED, "expected scales of dtype F32, found U8");
    /* As many bytes in another order. */
    st_items_add(&items, "w", MD_ST_U8, COLS, ROWS, m.q);
    st_items_add(&items, "w.qs", MD_ST_F32, 0, ROWS, m.scales);
    expect_unresolved(&items, RT_EFORMAT, "w: expected one dimension, or 21 rows, found 67 rows");
    st_items_add(&items, "w", MD_ST_U8, ROWS, COLS, m.q);
    st_items_add(&items, "w.qs", MD_ST_F32, 3, 7, m.scales);
    expect_unresolved(&items, RT_EFORMAT, "w.qs: expected one dimension, or 21 rows, found 3 rows");
    st_items_add(&items, "w", MD_ST_F8_E4M3, ROWS, COLS, m.q);
    expect_unresolved(&items, RT_EUNSUPPORTED, "found F8_E4M3");
    st_items_add(&items, "w", MD_ST_F32, COLS, ROWS, values);
    expect_unresolved(&items, RT_EFORMAT, "expected shape [21, 67], found [67, 21]");
    st_items_add(&items, "v", MD_ST_F32, ROWS, COLS, values);
    expect_unresolved(&items, RT_EFORMAT, "tensor w is missing");
}

/* ---- stamps ---- */

static void write_stamped(const char *dir, const char *name, const char *tensor, const char *stamps)
{
    char *path = rt_path_join(dir, name), header[512];

    snprintf(
        header, sizeof(header),
        "{\"__metadata__\":{\"colibri.fmt\":\"%s\"},\"%s\":{\"dtype\":\"F32\",\"shape\":[21,67],"
        "\"data_offsets\":[0,5628]}}",
        stamps, tensor);
    st_raw_write(path, header, 5628);
    free(path);
}

static void stamps_of_all_files_are_one(void **state)
{
    char *dir = temp_dir_make();
    md_source_matrix matrix;
    md_source *source;
    rt_err err = {0};

    (void)state;
    write_stamped(dir, "a.safetensors", "w", "{\\\"w\\\":\\\"f32\\\",\\\"v\\\":\\\"int8-row\\\"}");
    write_stamped(dir, "b.safetensors", "v", "{\\\"w\\\":\\\"f32\\\"}");
    source = open_ok(dir, NULL);
    resolve_ok(source, "w");
    assert_int_equal(md_source_resolve(source, "v", ROWS, COLS, &matrix, &err), RT_EFORMAT);
    assert_non_null(strstr(err.text, "v: the file says int8-row, but it is stored as F32"));
    md_source_close(source);
    write_stamped(dir, "b.safetensors", "v", "{\\\"w\\\":\\\"int8-row\\\"}");
    open_refused(dir, NULL, RT_EFORMAT, "another file");
    write_stamped(dir, "b.safetensors", "v", "{\\\"w\\\":4}");
    open_refused(dir, NULL, RT_EFORMAT, "expected a format's name");
    write_stamped(dir, "b.safetensors", "v", "[]");
    open_refused(dir, NULL, RT_EFORMAT, "expected an object of format names");
    write_stamped(dir, "b.safetensors", "v", "{");
    open_refused(dir, NULL, RT_EFORMAT, "expected an object of format names");
    temp_dir_remove(dir);
}

/* ---- the second directory ---- */

static void the_second_directory_gives_indexer_and_mtp_alone(void **state)
{
    static const char mtp[] = "model.layers.3.enorm.weight";
    static const char indexer[] = "model.layers.0.self_attn.indexer.wk.weight";
    static const char plain[] = "model.layers.0.mlp.up_proj.weight";
    static float values[ROWS * COLS] = {1}, others[ROWS * COLS] = {2};
    char *dir = temp_dir_make(), *other = temp_dir_make();
    void *raw = malloc(md_source_raw_bytes(ROWS, COLS));
    st_items mine = {0}, theirs = {0};
    uint32_t shard = 77;
    float out[ROWS * COLS];
    md_source_matrix matrix;
    md_source *source;

    (void)state;
    st_items_add(&mine, "w", MD_ST_F32, ROWS, COLS, values);
    st_items_add(&theirs, "w", MD_ST_F32, ROWS, COLS, others);
    st_items_add(&theirs, mtp, MD_ST_F32, ROWS, COLS, others);
    st_items_add(&theirs, indexer, MD_ST_F32, ROWS, COLS, others);
    st_items_add(&theirs, plain, MD_ST_F32, ROWS, COLS, others);
    write_items(&mine, dir, "out-1.safetensors");
    write_items(&theirs, other, "model-1.safetensors");
    source = open_ok(dir, NULL);
    assert_int_equal(md_source_find_place(source, mtp, &shard), MD_SOURCE_NOWHERE);
    md_source_close(source);
    source = open_ok(dir, other);
    assert_int_equal(md_source_find_place(source, "w", &shard), MD_SOURCE_OWN);
    assert_int_equal(md_source_find_place(source, mtp, &shard), MD_SOURCE_OTHER);
    assert_int_equal(md_source_find_place(source, indexer, &shard), MD_SOURCE_OTHER);
    assert_int_equal(md_source_find_place(source, plain, &shard), MD_SOURCE_NOWHERE);
    assert_int_equal(md_source_resolve(source, plain, ROWS, COLS, &matrix, NULL), RT_EFORMAT);
    assert_int_equal(md_source_tensor_count(source), 1); /* of its own */
    matrix = resolve_ok(source, "w");
    assert_int_equal(md_source_read_rows(source, &matrix, 0, 1, out, raw, NULL), RT_OK);
    assert_true(out[0] == 1);
    matrix = resolve_ok(source, indexer);
    assert_true(md_source_shard_is_other(source, md_source_tensor_shard(source, matrix.weight)));
    assert_int_equal(md_source_read_rows(source, &matrix, 0, 1, out, raw, NULL), RT_OK);
    assert_true(out[0] == 2);
    md_source_close(source);
    free(raw);
    st_items_free(&mine);
    st_items_free(&theirs);
    temp_dir_remove(dir);
    temp_dir_remove(other);
}

static void of_the_second_directory_some_shards_are_enough(void **state)
{
    static const char here[] = "model.layers.3.enorm.weight",
                      gone[] = "model.layers.3.hnorm.weight";
    static const char index[] =
        "{\"weight_map\":{\"model.layers.3.enorm.weight\":\"model-1.safetensors\","
        "\"model.layers.3.hnorm.weight\":\"model-2.safetensors\"}}";
    static float values[ROWS * COLS];
    char *dir = temp_dir_make(), *other = temp_dir_make(), *path;
    st_items mine = {0}, theirs = {0};
    md_foreign_spec spec = {.dir = dir, .other = other, .layers = LAYERS};
    md_source_shard known[3];
    md_source_matrix matrix;
    md_source *source;
    uint32_t shard = 77;
    rt_err err = {0};

    (void)state;
    st_items_add(&mine, "w", MD_ST_F32, ROWS, COLS, values);
    st_items_add(&theirs, here, MD_ST_F32, ROWS, COLS, values);
    write_items(&mine, dir, "out-1.safetensors");
    write_items(&theirs, other, "model-1.safetensors");
    free(temp_dir_write(other, "model.safetensors.index.json", index, sizeof(index) - 1));
    source = open_ok(dir, other);
    assert_int_equal(md_source_find_place(source, here, &shard), MD_SOURCE_OTHER);
    assert_int_equal(md_source_find_place(source, gone, &shard), MD_SOURCE_OTHER_GONE);
    assert_string_equal(md_source_shard_at(source, shard)->name,
                        "indexer-from/model-2.safetensors");
    assert_int_equal(md_source_resolve(source, gone, ROWS, COLS, &matrix, &err), RT_EFORMAT);
    assert_non_null(strstr(err.text, "model-2.safetensors, which is not there"));
    assert_int_equal(md_source_shard_count(source), 3);
    for (uint32_t i = 0; i < 3; i++)
        known[i] = *md_source_shard_at(source, i);
    md_source_close(source);
    /* What was known may come, but not change, and the second directory may not be left out. */
    st_items_remove(&theirs, here);
    st_items_add(&theirs, gone, MD_ST_F32, ROWS, COLS, values);
    write_items(&theirs, other, "model-2.safetensors");
    assert_int_equal(md_source_open_foreign(&spec, known, 3, &source, NULL), RT_OK);
    md_source_close(source);
    path = rt_path_join(other, "model-1.safetensors");
    st_items_write(&mine, path, ST_ALL_SHARDS);
    assert_int_equal(md_source_open_foreign(&spec, known, 3, &source, &err), RT_EINVAL);
    spec.other = NULL;
    assert_int_equal(md_source_open_foreign(&spec, known, 3, &source, &err), RT_EINVAL);
    assert_non_null(strstr(err.text, "--indexer-from"));
    free(path);
    st_items_free(&mine);
    st_items_free(&theirs);
    temp_dir_remove(dir);
    temp_dir_remove(other);
}

/* Else what a lost file held of the indexer would come from the second directory, with other bytes. */
static void a_resumed_import_has_all_files_that_it_began_with(void **state)
{
    static const char indexer[] = "model.layers.0.self_attn.indexer.wk.weight";
    static float values[ROWS * COLS] = {1};
    char *dir = temp_dir_make(), *other = temp_dir_make();
    char *lost = rt_path_join(dir, "out-2.safetensors");
    char *added = rt_path_join(dir, "out-3.safetensors");
    md_foreign_spec spec = {.dir = dir, .other = other, .layers = LAYERS};
    md_source_shard known[4];
    st_items mine = {0}, theirs = {0};
    md_source *source;
    rt_err err = {0};
    uint32_t count;

    (void)state;
    st_items_add(&mine, "w", MD_ST_F32, ROWS, COLS, values);
    st_items_add(&theirs, indexer, MD_ST_F32, ROWS, COLS, values);
    write_items(&mine, dir, "out-1.safetensors");
    write_items(&theirs, dir, "out-2.safetensors");
    write_items(&theirs, other, "model-1.safetensors");
    source = open_ok(dir, other);
    count = md_source_shard_count(source);
    assert_int_equal(count, 3);
    for (uint32_t i = 0; i < count; i++)
        known[i] = *md_source_shard_at(source, i);
    md_source_close(source);
    source = NULL;

    /* More of the second download is not more of the model. */
    write_items(&mine, other, "model-2.safetensors");
    assert_int_equal(md_source_open_foreign(&spec, known, count, &source, NULL), RT_OK);
    assert_int_equal(md_source_shard_count(source), count);
    md_source_close(source);
    source = NULL;
    write_items(&mine, dir, "out-3.safetensors");
    assert_int_equal(md_source_open_foreign(&spec, known, count, &source, &err), RT_EINVAL);
    assert_non_null(strstr(err.text, "out-3.safetensors is not one of the files"));
    assert_int_equal(unlink(added), 0);
    assert_int_equal(unlink(lost), 0);
    assert_int_equal(md_source_open_foreign(&spec, known, count, &source, &err), RT_EINVAL);
    assert_non_null(strstr(err.text, "out-2.safetensors is no longer there"));
    assert_null(source);
    temp_dir_remove(other);
    st_items_free(&theirs);
    st_items_free(&mine);
    free(added);
    free(lost);
    temp_dir_remove(dir);
}

static void a_tensor_in_two_files_of_one_directory_is_refused(void **state)
{
    static float values[ROWS * COLS];
    char *dir = temp_dir_make(), *empty = temp_dir_make();
    st_items items = {0};

    (void)state;
    open_refused(empty, NULL, RT_EFORMAT, "no *.safetensors in it");
    st_items_add(&items, "w", MD_ST_F32, ROWS, COLS, values);
    write_items(&items, dir, "out-1.safetensors");
    write_items(&items, dir, "zzz.safetensors");
    open_refused(dir, NULL, RT_EFORMAT,
                 "w is in two shards, out-1.safetensors and zzz.safetensors");
    st_items_free(&items);
    temp_dir_remove(dir);
    temp_dir_remove(empty);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integers_and_scales_are_read_as_they_are),
        cmocka_unit_test(damage_is_named_with_row_and_column),
        cmocka_unit_test(what_is_no_such_tensor_is_refused),
        cmocka_unit_test(stamps_of_all_files_are_one),
        cmocka_unit_test(the_second_directory_gives_indexer_and_mtp_alone),
        cmocka_unit_test(of_the_second_directory_some_shards_are_enough),
        cmocka_unit_test(a_resumed_import_has_all_files_that_it_began_with),
        cmocka_unit_test(a_tensor_in_two_files_of_one_directory_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
