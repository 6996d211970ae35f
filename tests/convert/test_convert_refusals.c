/* test_convert_refusals.c - what a conversion refuses, what it says, and that it wrote nothing by then. */
#include "model/convert/convert.h"

#include "base/file.h"
#include "model/convert/ledger.h"
#include "tests/support/conversion.h"
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

static void replace_in_config(const conversion_odd *o, const char *from, const char *to)
{
    char *path = rt_path_join(o->source, "config.json");
    char *text = NULL, *at, *out;
    size_t bytes = 0, length;

    assert_int_equal(rt_file_read(path, 1 << 20, &text, &bytes, NULL), RT_OK);
    at = strstr(text, from);
    assert_non_null(at);
    length = bytes - strlen(from) + strlen(to);
    out = malloc(length + 1);
    snprintf(out, length + 1, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    assert_int_equal(rt_file_replace(path, out, length, NULL), RT_OK);
    free(out);
    free(text);
    free(path);
}

static void another_model_type_is_named(void **state)
{
    conversion_odd o = conversion_odd_begin(MOESAIC_FIXTURES);

    (void)state;
    replace_in_config(&o, "\"glm_moe_dsa\"", "\"llama\"");
    conversion_odd_end(&o, RT_EUNSUPPORTED, "llama", true);
}

static void a_missing_tensor_is_named_before_anything_is_written(void **state)
{
    conversion_odd o = conversion_odd_begin(MOESAIC_FIXTURES);

    (void)state;
    st_items_remove(&o.checkpoint.tensors, "model.layers.2.mlp.experts.4.gate_proj.weight");
    st_checkpoint_write(&o.checkpoint, o.source, true);
    conversion_odd_end(&o, RT_EFORMAT, "model.layers.2.mlp.experts.4.gate_proj.weight", true);
}

static void a_wrong_shape_is_named(void **state)
{
    conversion_odd o = conversion_odd_begin(MOESAIC_FIXTURES);

    (void)state;
    replace_in_config(&o, "\"moe_intermediate_size\": 32", "\"moe_intermediate_size\": 48");
    conversion_odd_end(&o, RT_EFORMAT, "expected shape [48, 64], found [32, 64]", true);
}

static void a_weight_that_is_not_finite_is_named(void **state)
{
    conversion_odd o = conversion_odd_begin(MOESAIC_FIXTURES);

    (void)state;
    ((uint8_t *)st_items_find(&o.checkpoint.tensors, "model.layers.1.mlp.experts.2.up_proj.weight")
         ->data)[64 * 3 + 5] = 0x7f;
    st_checkpoint_write(&o.checkpoint, o.source, true);
    conversion_odd_end(&o, RT_EFORMAT,
                       "model.layers.1.mlp.experts.2.up_proj.weight: row 3, column 5", false);
}

static void a_missing_or_broken_tokenizer_is_found_at_once(void **state)
{
    conversion_odd o = conversion_odd_begin(MOESAIC_FIXTURES);
    char *path = rt_path_join(o.source, "tokenizer.json");

    (void)state;
    assert_int_equal(rt_file_replace(path, "{}", 2, NULL), RT_OK);
    conversion_expect_failure(&o.spec, RT_EFORMAT, "tokenizer.json");
    assert_int_equal(unlink(path), 0);
    free(path);
    conversion_odd_end(&o, RT_EIO, "tokenizer.json", true);
}

static void a_generation_config_that_no_reader_takes_is_found_at_once(void **state)
{
    conversion_odd o = conversion_odd_begin(MOESAIC_FIXTURES);
    char *path = rt_path_join(o.source, "generation_config.json");
    static const char text[] = "{\"eos_token_id\": [99999]}";

    (void)state;
    assert_int_equal(rt_file_replace(path, text, sizeof(text) - 1, NULL), RT_OK);
    free(path);
    conversion_odd_end(&o, RT_EFORMAT, "generation_config.json", true);
}

static void too_little_memory_for_one_record_is_refused(void **state)
{
    conversion_odd o = conversion_odd_begin(MOESAIC_FIXTURES);

    (void)state;
    o.spec.memory_bytes = 4096;
    conversion_odd_end(&o, RT_ENOMEM, "one record needs", true);
}

static void a_folder_with_foreign_files_is_not_written_over(void **state)
{
    conversion_odd o = conversion_odd_begin(MOESAIC_FIXTURES);

    (void)state;
    free(temp_dir_write(o.dir, "t/dense.bin", "precious", 8));
    conversion_expect_failure(&o.spec, RT_EINVAL, "dense.bin");
    assert_int_equal(conversion_count_files(o.target), 1);
    o.spec.dry_run = true;
    conversion_odd_end(&o, RT_EINVAL, "choose another TARGET", false);
}

static void another_checkpoint_is_not_written_over(void **state)
{
    conversion_odd o = conversion_odd_begin(MOESAIC_FIXTURES);

    (void)state;
    assert_int_equal(mkdir(o.target, 0755), 0);
    test_folder_copy(MOESAIC_FIXTURES "/wide-bf16", o.target);
    conversion_expect_failure(&o.spec, RT_EINVAL, "(config.json, ");
    conversion_expect_failure(&o.spec, RT_EINVAL, "choose another TARGET");
    conversion_expect_same_files(MOESAIC_FIXTURES "/wide-bf16", o.target);
    conversion_odd_end(&o, RT_EINVAL, ".safetensors, ...)", false);
}

static void whatever_lies_in_the_target_is_named(void **state)
{
    static const char *const names[] = {"t/notes.txt", "t/.hidden", "t/experts-001.bin",
                                        "t/model.safetensors"};

    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        conversion_odd o = conversion_odd_begin(MOESAIC_FIXTURES);

        free(temp_dir_write(o.dir, names[i], "x", 1));
        conversion_odd_end(&o, RT_EINVAL, names[i] + 2, false);
    }
}

static void an_empty_folder_and_a_fresh_filesystem_are_new_targets(void **state)
{
    conversion_odd o = conversion_odd_begin(MOESAIC_FIXTURES);
    char *lost = rt_path_join(o.target, "lost+found");

    (void)state;
    assert_int_equal(mkdir(o.target, 0755), 0);
    assert_int_equal(mkdir(lost, 0755), 0);
    /* A conversion that died before its ledger's header was whole. */
    free(temp_dir_write(o.dir, "t/" MD_LEDGER_NAME, "MOELE", 5));
    conversion_ok(&o.spec, 1);
    assert_int_equal(rmdir(lost), 0);
    free(lost);
    o.spec.expert_format = KN_F32;
    conversion_odd_end(&o, RT_EINVAL, "choose another TARGET", false);
}

static void a_container_is_no_source(void **state)
{
    conversion_odd o = conversion_odd_begin(MOESAIC_FIXTURES);
    char *other = rt_path_join(o.dir, "other"), *half = rt_path_join(o.dir, "half");
    md_convert_spec spec = o.spec;

    (void)state;
    conversion_ok(&spec, 1);
    spec.source = o.target;
    spec.target = other;
    conversion_expect_failure(&spec, RT_EINVAL, "is a container already");
    free(temp_dir_write(o.dir, "half/" MD_LEDGER_NAME, "x", 1));
    o.spec.source = half;
    o.spec.target = other;
    conversion_odd_end(&o, RT_EINVAL, "unfinished conversion", false);
    free(other);
    free(half);
}

static void source_and_target_must_be_two_directories(void **state)
{
    conversion_odd o = conversion_odd_begin(MOESAIC_FIXTURES);
    md_convert_spec spec = o.spec;

    (void)state;
    spec.target = o.source;
    conversion_expect_failure(&spec, RT_EINVAL, "same directory");
    {
        char *link = rt_path_join(o.dir, "link"), *around = rt_path_join(o.source, "./../");
        char *name = strrchr(o.source, '/') + 1, *relative = rt_path_join(around, name);

        spec.target = relative;
        conversion_expect_failure(&spec, RT_EINVAL, "same directory");
        assert_int_equal(symlink(o.source, link), 0);
        spec.target = link;
        conversion_expect_failure(&spec, RT_EINVAL, "same directory");
        assert_int_equal(unlink(link), 0);
        assert_int_equal(symlink("nothing", link), 0);
        conversion_expect_failure(&spec, RT_EINVAL, "symbolic link to what is not there");
        assert_int_equal(unlink(link), 0);
        free(relative);
        free(around);
        free(link);
    }
    spec = o.spec;
    spec.source = MOESAIC_FIXTURES "/README.md";
    conversion_expect_failure(&spec, RT_EINVAL, "expected a directory");
    spec = o.spec;
    spec.target = MOESAIC_FIXTURES "/README.md";
    conversion_expect_failure(&spec, RT_EINVAL, "expected a directory");
    o.spec.source = "/nowhere/at/all";
    conversion_odd_end(&o, RT_EIO, "/nowhere/at/all", true);
}

static void a_target_whose_parent_is_missing_is_an_io_error(void **state)
{
    conversion_odd o = conversion_odd_begin(MOESAIC_FIXTURES);

    (void)state;
    free(o.target);
    o.target = rt_path_join(o.dir, "no/such/parent//");
    o.spec.target = o.target;
    conversion_expect_failure(&o.spec, RT_EIO, "no/such does not exist: create it first");
    o.spec.dry_run = true;
    conversion_odd_end(&o, RT_EIO, "no/such does not exist", true);
}

static void where_nothing_can_be_written_a_dry_run_says_so(void **state)
{
    conversion_odd o = conversion_odd_begin(MOESAIC_FIXTURES);

    (void)state;
    if (geteuid() == 0) { /* may write anywhere */
        o.spec.target = MOESAIC_FIXTURES "/README.md/t";
        conversion_odd_end(&o, RT_EIO, "README.md", true);
        return;
    }
    assert_int_equal(chmod(o.dir, 0555), 0);
    o.spec.dry_run = true;
    conversion_expect_failure(&o.spec, RT_EIO, "nothing can be written there");
    o.spec.dry_run = false;
    conversion_expect_failure(&o.spec, RT_EIO, "nothing can be written there");
    assert_int_equal(chmod(o.dir, 0755), 0);
    assert_int_equal(mkdir(o.target, 0555), 0);
    conversion_expect_failure(&o.spec, RT_EIO, "nothing can be written there");
    conversion_odd_end(&o, RT_EIO, "nothing can be written there", false);
}

static void a_running_conversion_keeps_others_out(void **state)
{
    conversion_odd o = conversion_odd_begin(MOESAIC_FIXTURES);
    md_ledger *ledger = NULL;
    md_source *source = NULL;
    md_ledger_options options = {
        .expert_format = KN_Q4, .dense_format = KN_Q8, .conversion_id = MD_CONVERSION_ID};

    (void)state;
    assert_int_equal(mkdir(o.target, 0755), 0);
    assert_int_equal(md_source_open(o.source, NULL, 0, &source, NULL), RT_OK);
    assert_int_equal(md_ledger_create(o.target, &options, source, &ledger, NULL), RT_OK);
    conversion_expect_failure(&o.spec, RT_EBUSY, "another conversion");
    md_ledger_close(ledger);
    md_source_close(source);
    /* It was of another config: the interrupted conversion is not this one. */
    conversion_odd_end(&o, RT_EINVAL, "config.json", false);
}

static void consume_refuses_links_before_it_begins(void **state)
{
    conversion_odd o = conversion_odd_begin(MOESAIC_FIXTURES);
    char *real = rt_path_join(o.source, "model-00001-of-00002.safetensors");
    char *moved = rt_path_join(o.source, "elsewhere");

    (void)state;
    assert_int_equal(rename(real, moved), 0);
    assert_int_equal(symlink(moved, real), 0);
    free(real);
    free(moved);
    o.spec.consume = true;
    conversion_odd_end(&o, RT_EINVAL, "symbolic link", true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_model_type_is_named),
        cmocka_unit_test(a_missing_tensor_is_named_before_anything_is_written),
        cmocka_unit_test(a_wrong_shape_is_named),
        cmocka_unit_test(a_weight_that_is_not_finite_is_named),
        cmocka_unit_test(a_missing_or_broken_tokenizer_is_found_at_once),
        cmocka_unit_test(a_generation_config_that_no_reader_takes_is_found_at_once),
        cmocka_unit_test(too_little_memory_for_one_record_is_refused),
        cmocka_unit_test(a_folder_with_foreign_files_is_not_written_over),
        cmocka_unit_test(another_checkpoint_is_not_written_over),
        cmocka_unit_test(whatever_lies_in_the_target_is_named),
        cmocka_unit_test(an_empty_folder_and_a_fresh_filesystem_are_new_targets),
        cmocka_unit_test(a_container_is_no_source),
        cmocka_unit_test(where_nothing_can_be_written_a_dry_run_says_so),
        cmocka_unit_test(source_and_target_must_be_two_directories),
        cmocka_unit_test(a_target_whose_parent_is_missing_is_an_io_error),
        cmocka_unit_test(a_running_conversion_keeps_others_out),
        cmocka_unit_test(consume_refuses_links_before_it_begins),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
