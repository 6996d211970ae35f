/* test_convert.c - whole conversions: the same bytes however they are made, what a dry run and
 * --verify-only see, and what --consume leaves of the source. */
#include "model/convert/convert.h"

#include "base/file.h"
#include "model/convert/ledger.h"
#include "model/convert/record_check.h"
#include "tests/support/conversion.h"
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
#include <unistd.h>

#include <cmocka.h>

static const char *const fixtures[] = {"nano-bf16", "nano-f32", "nano-fp8", "nano-bf16-eps1e5",
                                       "nano-mtp",  "tiny-fp8", "wide-bf16"};
enum { FIXTURE_COUNT = sizeof(fixtures) / sizeof(fixtures[0]) };

/* ---- the same bytes ---- */

static void every_fixture_converts_to_the_same_bytes_with_1_2_and_5_threads(void **state)
{
    static const struct {
        kn_format experts, dense;
        bool fine;
    } formats[] = {{KN_F32, KN_F32, true}, {KN_Q4, KN_Q8, false}, {KN_BF16, KN_Q4, false}};

    (void)state;
    for (int f = 0; f < FIXTURE_COUNT; f++) {
        for (int o = 0; o < 3; o++) {
            static const uint32_t threads[] = {1, 2, 5};
            char *dir = temp_dir_make();
            char *source = rt_path_join(MOESAIC_FIXTURES, fixtures[f]);
            char *targets[3];
            md_convert_result results[3];

            for (int t = 0; t < 3; t++) {
                md_convert_spec spec = {.source = source,
                                        .expert_format = formats[o].experts,
                                        .dense_format = formats[o].dense,
                                        .grid_fine = formats[o].fine};

                targets[t] = rt_path_join(dir, (const char *[]){"a", "b", "c"}[t]);
                spec.target = targets[t];
                results[t] = conversion_ok(&spec, threads[t]);
                assert_int_equal(results[t].records_done, results[t].records_total);
            }
            assert_memory_equal(results[0].model_id, results[1].model_id, 32);
            conversion_expect_same_files(targets[0], targets[1]);
            conversion_expect_same_files(targets[0], targets[2]);
            for (int t = 0; t < 3; t++)
                free(targets[t]);
            free(source);
            temp_dir_remove(dir);
        }
    }
}

static void the_options_are_part_of_the_model_id(void **state)
{
    char *dir = temp_dir_make();
    md_convert_spec specs[5];
    uint8_t ids[5][32];

    (void)state;
    for (int i = 0; i < 5; i++) {
        char name[8];
        char *target;

        snprintf(name, sizeof(name), "t%d", i);
        target = rt_path_join(dir, name);
        specs[i] = conversion_standard(MOESAIC_FIXTURES "/nano-bf16", target);
        if (i == 1) specs[i].expert_format = KN_Q8;
        if (i == 2) specs[i].dense_format = KN_BF16;
        if (i == 3) specs[i].grid_fine = true;
        if (i == 4) specs[i].latent_eps = 1e-6f;
        memcpy(ids[i], conversion_ok(&specs[i], 2).model_id, 32);
        for (int j = 0; j < i; j++)
            assert_memory_not_equal(ids[i], ids[j], 32);
        free(target);
    }
    temp_dir_remove(dir);
}

static void a_container_of_any_source_layout_is_the_same(void **state)
{
    st_checkpoint checkpoint = st_checkpoint_load(MOESAIC_FIXTURES, "nano-fp8");
    char *dir = temp_dir_make();
    char *original = rt_path_join(dir, "original"), *changed = rt_path_join(dir, "changed");
    md_convert_spec spec = conversion_standard(MOESAIC_FIXTURES "/nano-fp8", original);

    (void)state;
    conversion_ok(&spec, 2);
    /* No index; every third tensor in a third shard, so that experts and scales are torn apart. */
    checkpoint.shard_count = 3;
    for (uint32_t i = 0; i < checkpoint.tensors.count; i++)
        checkpoint.tensors.items[i].shard = (i * 7) % 3;
    {
        char *source = temp_dir_make();

        st_checkpoint_write(&checkpoint, source, false);
        spec.source = source;
        spec.target = changed;
        conversion_ok(&spec, 2);
        conversion_expect_same_files(original, changed);
        temp_dir_remove(source);
    }
    st_checkpoint_free(&checkpoint);
    free(original);
    free(changed);
    temp_dir_remove(dir);
}

static void what_was_converted_opens_and_every_hash_holds(void **state)
{
    (void)state;
    for (int f = 0; f < FIXTURE_COUNT; f++) {
        char *dir = temp_dir_make();
        char *source = rt_path_join(MOESAIC_FIXTURES, fixtures[f]),
             *target = rt_path_join(dir, "t");
        md_convert_spec spec = conversion_standard(source, target);
        md_convert_result result = conversion_ok(&spec, 2);
        md_container *container = NULL;
        md_record_state *states;
        rt_team_spec team_spec = {.threads = 2};
        rt_team *team = NULL;

        assert_int_equal(md_container_open(target, &container, NULL), RT_OK);
        assert_memory_equal(md_container_get_info(container)->model_id, result.model_id, 32);
        assert_int_equal(md_container_record_count(container), result.records_total);
        assert_int_equal(md_records_held_bytes(container), result.target_bytes);
        states = calloc(result.records_total, sizeof(*states));
        assert_int_equal(rt_team_create(&team_spec, &team, NULL), RT_OK);
        md_records_check(container, team, NULL, states);
        for (uint64_t i = 0; i < result.records_total; i++)
            assert_int_equal(states[i], MD_RECORD_OK);
        rt_team_free(team);
        free(states);
        md_container_close(container);
        free(source);
        free(target);
        temp_dir_remove(dir);
    }
}

/* ---- looking only ---- */

static void a_dry_run_writes_nothing(void **state)
{
    char *dir = temp_dir_make();
    char *target = rt_path_join(dir, "t");
    md_convert_spec spec = conversion_standard(MOESAIC_FIXTURES "/tiny-fp8", target);
    md_convert_result planned, done;

    (void)state;
    spec.dry_run = true;
    planned = conversion_ok(&spec, 1);
    assert_int_equal(conversion_count_files(dir), 0);
    assert_true(planned.source_bytes > 0 && planned.free_bytes > 0);
    assert_true(planned.needed_bytes >= planned.target_bytes);
    assert_true(planned.buffer_bytes > 0);
    assert_int_equal(planned.records_done, 0);
    spec.dry_run = false;
    done = conversion_ok(&spec, 1);
    assert_int_equal(planned.records_total, done.records_total);
    assert_int_equal(planned.target_bytes, done.target_bytes);
    free(target);
    temp_dir_remove(dir);
}

static void a_complete_target_says_so_and_refuses_other_options(void **state)
{
    char *dir = temp_dir_make();
    char *target = rt_path_join(dir, "t");
    md_convert_spec spec = conversion_standard(MOESAIC_FIXTURES "/nano-bf16", target);
    md_convert_result first = conversion_ok(&spec, 2), second;

    (void)state;
    assert_false(test_file_exists(target, MD_LEDGER_NAME));
    second = conversion_ok(&spec, 2);
    assert_int_equal(second.records_done, 0);
    assert_int_equal(second.records_resumed, second.records_total);
    assert_memory_equal(first.model_id, second.model_id, 32);
    spec.expert_format = KN_Q8;
    conversion_expect_failure(&spec, RT_EINVAL, "--experts: the target holds q4, asked q8");
    spec = conversion_standard(MOESAIC_FIXTURES "/nano-bf16", target);
    spec.dense_format = KN_F32;
    conversion_expect_failure(&spec, RT_EINVAL, "--dense");
    spec = conversion_standard(MOESAIC_FIXTURES "/nano-bf16", target);
    spec.grid_fine = true;
    conversion_expect_failure(&spec, RT_EINVAL, "--grid");
    spec = conversion_standard(MOESAIC_FIXTURES "/nano-bf16", target);
    spec.latent_eps = 1e-6f;
    conversion_expect_failure(&spec, RT_EINVAL, "--latent-eps");
    spec = conversion_standard(MOESAIC_FIXTURES "/tiny-fp8", target);
    conversion_expect_failure(&spec, RT_EINVAL, "another config.json");
    free(target);
    temp_dir_remove(dir);
}

static void flip_byte(const char *path, off_t offset)
{
    int fd = open(path, O_RDWR);
    uint8_t byte;

    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, offset), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, offset), 1);
    close(fd);
}

static void verify_only_finds_what_differs(void **state)
{
    st_checkpoint checkpoint = st_checkpoint_load(MOESAIC_FIXTURES, "nano-f32");
    char *dir = temp_dir_make(), *source = temp_dir_make();
    char *target = rt_path_join(dir, "t");
    char *pack = rt_path_join(target, "experts-002.bin");
    md_convert_spec spec = conversion_standard(source, target), verify;
    md_container *container = NULL;
    md_record record;

    (void)state;
    st_checkpoint_write(&checkpoint, source, true);
    conversion_ok(&spec, 2);
    verify = (md_convert_spec){
        .source = source, .target = target, .verify_only = true, .grid_any = true};
    assert_int_equal(conversion_ok(&verify, 2).mismatches, 0);
    verify.expert_format = KN_Q8;
    conversion_expect_failure(&verify, RT_EINVAL, "--experts");
    verify.expert_format = (kn_format)0;
    /* A damaged byte on disk. */
    assert_int_equal(md_container_open(target, &container, NULL), RT_OK);
    assert_true(md_container_find(container, (md_key){2, MD_EXPERT, 3}, &record));
    flip_byte(pack, (off_t)record.offset + 40);
    assert_int_equal(conversion_ok(&verify, 2).mismatches, 1);
    flip_byte(pack, (off_t)record.offset + 40);
    md_container_close(container);
    assert_int_equal(conversion_ok(&verify, 2).mismatches, 0);
    /* A source whose weights are not those that were converted. */
    ((float *)st_items_find(&checkpoint.tensors, "model.layers.2.mlp.experts.3.up_proj.weight")
         ->data)[5] *= -8;
    st_checkpoint_write(&checkpoint, source, true);
    assert_int_equal(conversion_ok(&verify, 2).mismatches, 1);
    /* Another tokenizer, and a template where there was none. */
    {
        char *other = rt_path_join(source, "tokenizer.json");

        test_file_copy(MOESAIC_FIXTURES "/tiny-fp8/tokenizer.json", other);
        assert_int_equal(conversion_ok(&verify, 2).mismatches, 2);
        free(temp_dir_write(source, "chat_template.jinja", "x", 1));
        assert_int_equal(conversion_ok(&verify, 2).mismatches, 3);
        free(other);
    }
    free(pack);
    free(target);
    st_checkpoint_free(&checkpoint);
    temp_dir_remove(source);
    temp_dir_remove(dir);
}

/* ---- consuming ---- */

static void consume_deletes_the_shards_and_nothing_else(void **state)
{
    static const uint32_t groups[] = {0, 1, 40};

    (void)state;
    for (int g = 0; g < 3; g++) {
        char *dir = temp_dir_make(), *source = temp_dir_make();
        char *kept = rt_path_join(dir, "kept"), *target = rt_path_join(dir, "t");
        md_convert_spec spec = conversion_standard(MOESAIC_FIXTURES "/wide-bf16", kept);
        md_convert_result result;

        conversion_ok(&spec, 2);
        test_folder_copy(MOESAIC_FIXTURES "/wide-bf16", source);
        spec.source = source;
        spec.target = target;
        spec.consume = true;
        spec.commit_records = groups[g];
        result = conversion_ok(&spec, 2);
        assert_int_equal(result.shards_deleted, 5);
        conversion_expect_same_files(kept, target);
        assert_int_equal(conversion_count_files(source),
                         conversion_count_files(MOESAIC_FIXTURES "/wide-bf16") - 5);
        assert_true(test_file_exists(source, "model.safetensors.index.json"));
        assert_true(test_file_exists(source, "reference.safetensors"));
        free(kept);
        free(target);
        temp_dir_remove(source);
        temp_dir_remove(dir);
    }
}

static void after_a_failure_nothing_is_deleted(void **state)
{
    conversion_odd o = conversion_odd_begin(MOESAIC_FIXTURES);

    (void)state;
    /* The last record of the first shard's work fails; what came before is durable. */
    ((uint8_t *)st_items_find(&o.checkpoint.tensors, "model.layers.0.mlp.down_proj.weight")
         ->data)[0] = 0xff;
    st_checkpoint_write(&o.checkpoint, o.source, true);
    o.spec.consume = true;
    o.spec.commit_records = 1;
    conversion_expect_failure(&o.spec, RT_EFORMAT, "model.layers.0.mlp.down_proj.weight");
    assert_true(test_file_exists(o.source, "model-00001-of-00002.safetensors"));
    assert_true(test_file_exists(o.source, "model-00002-of-00002.safetensors"));
    conversion_odd_end(&o, RT_EFORMAT, "model.layers.0.mlp.down_proj.weight", false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_fixture_converts_to_the_same_bytes_with_1_2_and_5_threads),
        cmocka_unit_test(the_options_are_part_of_the_model_id),
        cmocka_unit_test(a_container_of_any_source_layout_is_the_same),
        cmocka_unit_test(what_was_converted_opens_and_every_hash_holds),
        cmocka_unit_test(a_dry_run_writes_nothing),
        cmocka_unit_test(a_complete_target_says_so_and_refuses_other_options),
        cmocka_unit_test(verify_only_finds_what_differs),
        cmocka_unit_test(consume_deletes_the_shards_and_nothing_else),
        cmocka_unit_test(after_a_failure_nothing_is_deleted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
