/* test_source_shards.c - the files of a checkpoint: their index, and shards that go or change. */
#include "model/convert/source.h"

#include "base/file.h"
#include "tests/support/safetensors_file.h"
#include "tests/support/temp_dir.h"

#include <fcntl.h>
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
    st_items_write_in(&a, dir, "model-1.safetensors", ST_ALL_SHARDS);
    st_items_write_in(&b, dir, "model-2.safetensors", ST_ALL_SHARDS);
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
    st_items_write_in(&a, dir, "model-1.safetensors", ST_ALL_SHARDS);
    st_items_write_in(&a, dir, "model-2.safetensors", ST_ALL_SHARDS);
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
        st_items_write_in(&a, dir, "model.safetensors", ST_ALL_SHARDS);
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
    char *first = rt_path_join(dir, "model-00001-of-00002.safetensors");
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
    char *first = rt_path_join(dir, "model-00001-of-00002.safetensors");
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
    char *dir = temp_dir_make(), *first = rt_path_join(dir, "model-00001-of-00002.safetensors");
    char *renamed = rt_path_join(dir, "model-other.safetensors");
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
    char *dir = temp_dir_make(), *path = rt_path_join(dir, "model-00002-of-00002.safetensors");
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
        char *second = rt_path_join(dir, "model-00002-of-00002.safetensors");

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
    char *real = rt_path_join(store, "model-00001-of-00002.safetensors");
    char *link = rt_path_join(dir, "model-00001-of-00002.safetensors");
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
