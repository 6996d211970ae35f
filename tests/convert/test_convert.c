/* test_convert.c - whole conversions: the same bytes however they are made, and what is refused. */
#include "model/convert/convert.h"

#include "base/file.h"
#include "model/convert/ledger.h"
#include "model/convert/record_check.h"
#include "tests/support/safetensors_file.h"
#include "tests/support/temp_dir.h"

#include <dirent.h>
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

static const char *const fixtures[] = {"nano-bf16", "nano-f32", "nano-fp8", "nano-bf16-eps1e5",
                                       "nano-mtp",  "tiny-fp8", "wide-bf16"};
enum { FIXTURE_COUNT = sizeof(fixtures) / sizeof(fixtures[0]) };

static rt_status convert_with(const md_convert_spec *asked, uint32_t threads,
                              md_convert_result *result, rt_err *err)
{
    rt_team_spec team_spec = {.threads = threads};
    md_convert_spec spec = *asked;
    rt_team *team = NULL;
    rt_status status;

    spec.quiet = true;
    assert_int_equal(rt_team_create(&team_spec, &team, NULL), RT_OK);
    status = md_convert(&spec, team, result, err);
    rt_team_free(team);
    return status;
}

static md_convert_spec standard(const char *source, const char *target)
{
    return (md_convert_spec){
        .source = source, .target = target, .expert_format = KN_Q4, .dense_format = KN_Q8};
}

static md_convert_result convert_ok(const md_convert_spec *spec, uint32_t threads)
{
    md_convert_result result = {0};
    rt_err err = {0};

    if (convert_with(spec, threads, &result, &err) != RT_OK) fail_msg("%s", err.text);
    return result;
}

static void expect_failure(const md_convert_spec *spec, rt_status status, const char *says)
{
    md_convert_result result = {0};
    rt_err err = {0};
    rt_status found = convert_with(spec, 1, &result, &err);

    if (found != status || strstr(err.text, says) == NULL)
        fail_msg("expected %s (%s), found %s: %s", rt_status_name(status), says,
                 rt_status_name(found), err.text);
}

/* A new folder's path under a temporary one: dir/name, which is not made. */
static char *fresh(const char *dir, const char *name)
{
    return rt_path_join(dir, name);
}

static int count_files(const char *path)
{
    struct dirent *entry;
    DIR *dir = opendir(path);
    int count = 0;

    assert_non_null(dir);
    while ((entry = readdir(dir)) != NULL)
        count += entry->d_name[0] != '.';
    closedir(dir);
    return count;
}

/* Every byte of both folders' files is the same. */
static void expect_same_files(const char *left, const char *right)
{
    struct dirent *entry;
    DIR *dir = opendir(left);

    assert_non_null(dir);
    assert_int_equal(count_files(left), count_files(right));
    while ((entry = readdir(dir)) != NULL) {
        char *a = rt_path_join(left, entry->d_name), *b = rt_path_join(right, entry->d_name);
        char *x = NULL, *y = NULL;
        size_t x_bytes = 0, y_bytes = 0;

        if (entry->d_name[0] != '.') {
            assert_int_equal(rt_file_read(a, 1 << 28, &x, &x_bytes, NULL), RT_OK);
            assert_int_equal(rt_file_read(b, 1 << 28, &y, &y_bytes, NULL), RT_OK);
            if (x_bytes != y_bytes || memcmp(x, y, x_bytes) != 0)
                fail_msg("%s and %s differ", a, b);
        }
        free(x);
        free(y);
        free(a);
        free(b);
    }
    closedir(dir);
}

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

                targets[t] = fresh(dir, (const char *[]){"a", "b", "c"}[t]);
                spec.target = targets[t];
                results[t] = convert_ok(&spec, threads[t]);
                assert_int_equal(results[t].records_done, results[t].records_total);
            }
            assert_memory_equal(results[0].model_id, results[1].model_id, 32);
            expect_same_files(targets[0], targets[1]);
            expect_same_files(targets[0], targets[2]);
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
        target = fresh(dir, name);
        specs[i] = standard(MOESAIC_FIXTURES "/nano-bf16", target);
        if (i == 1) specs[i].expert_format = KN_Q8;
        if (i == 2) specs[i].dense_format = KN_BF16;
        if (i == 3) specs[i].grid_fine = true;
        if (i == 4) specs[i].latent_eps = 1e-6f;
        memcpy(ids[i], convert_ok(&specs[i], 2).model_id, 32);
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
    char *original = fresh(dir, "original"), *changed = fresh(dir, "changed");
    md_convert_spec spec = standard(MOESAIC_FIXTURES "/nano-fp8", original);

    (void)state;
    convert_ok(&spec, 2);
    /* No index; every third tensor in a third shard, so that experts and scales are torn apart. */
    checkpoint.shard_count = 3;
    for (uint32_t i = 0; i < checkpoint.tensors.count; i++)
        checkpoint.tensors.items[i].shard = (i * 7) % 3;
    {
        char *source = temp_dir_make();

        st_checkpoint_write(&checkpoint, source, false);
        spec.source = source;
        spec.target = changed;
        convert_ok(&spec, 2);
        expect_same_files(original, changed);
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
        char *source = rt_path_join(MOESAIC_FIXTURES, fixtures[f]), *target = fresh(dir, "t");
        md_convert_spec spec = standard(source, target);
        md_convert_result result = convert_ok(&spec, 2);
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
    char *target = fresh(dir, "t");
    md_convert_spec spec = standard(MOESAIC_FIXTURES "/tiny-fp8", target);
    md_convert_result planned, done;

    (void)state;
    spec.dry_run = true;
    planned = convert_ok(&spec, 1);
    assert_int_equal(count_files(dir), 0);
    assert_true(planned.source_bytes > 0 && planned.free_bytes > 0);
    assert_true(planned.needed_bytes >= planned.target_bytes);
    assert_true(planned.buffer_bytes > 0);
    assert_int_equal(planned.records_done, 0);
    spec.dry_run = false;
    done = convert_ok(&spec, 1);
    assert_int_equal(planned.records_total, done.records_total);
    assert_int_equal(planned.target_bytes, done.target_bytes);
    free(target);
    temp_dir_remove(dir);
}

static void a_complete_target_says_so_and_refuses_other_options(void **state)
{
    char *dir = temp_dir_make();
    char *target = fresh(dir, "t");
    md_convert_spec spec = standard(MOESAIC_FIXTURES "/nano-bf16", target);
    md_convert_result first = convert_ok(&spec, 2), second;

    (void)state;
    assert_false(test_file_exists(target, MD_LEDGER_NAME));
    second = convert_ok(&spec, 2);
    assert_int_equal(second.records_done, 0);
    assert_int_equal(second.records_resumed, second.records_total);
    assert_memory_equal(first.model_id, second.model_id, 32);
    spec.expert_format = KN_Q8;
    expect_failure(&spec, RT_EINVAL, "--experts: the target holds q4, asked q8");
    spec = standard(MOESAIC_FIXTURES "/nano-bf16", target);
    spec.dense_format = KN_F32;
    expect_failure(&spec, RT_EINVAL, "--dense");
    spec = standard(MOESAIC_FIXTURES "/nano-bf16", target);
    spec.grid_fine = true;
    expect_failure(&spec, RT_EINVAL, "--grid");
    spec = standard(MOESAIC_FIXTURES "/nano-bf16", target);
    spec.latent_eps = 1e-6f;
    expect_failure(&spec, RT_EINVAL, "--latent-eps");
    spec = standard(MOESAIC_FIXTURES "/tiny-fp8", target);
    expect_failure(&spec, RT_EINVAL, "another config.json");
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
    char *target = fresh(dir, "t");
    char *pack = rt_path_join(target, "experts-002.bin");
    md_convert_spec spec = standard(source, target), verify;
    md_container *container = NULL;
    md_record record;

    (void)state;
    st_checkpoint_write(&checkpoint, source, true);
    convert_ok(&spec, 2);
    verify = (md_convert_spec){
        .source = source, .target = target, .verify_only = true, .grid_any = true};
    assert_int_equal(convert_ok(&verify, 2).mismatches, 0);
    verify.expert_format = KN_Q8;
    expect_failure(&verify, RT_EINVAL, "--experts");
    verify.expert_format = (kn_format)0;
    /* A damaged byte on disk. */
    assert_int_equal(md_container_open(target, &container, NULL), RT_OK);
    assert_true(md_container_find(container, (md_key){2, MD_EXPERT, 3}, &record));
    flip_byte(pack, (off_t)record.offset + 40);
    assert_int_equal(convert_ok(&verify, 2).mismatches, 1);
    flip_byte(pack, (off_t)record.offset + 40);
    md_container_close(container);
    assert_int_equal(convert_ok(&verify, 2).mismatches, 0);
    /* A source whose weights are not those that were converted. */
    ((float *)st_items_find(&checkpoint.tensors, "model.layers.2.mlp.experts.3.up_proj.weight")
         ->data)[5] *= -8;
    st_checkpoint_write(&checkpoint, source, true);
    assert_int_equal(convert_ok(&verify, 2).mismatches, 1);
    /* Another tokenizer, and a template where there was none. */
    {
        char *other = rt_path_join(source, "tokenizer.json");

        test_file_copy(MOESAIC_FIXTURES "/tiny-fp8/tokenizer.json", other);
        assert_int_equal(convert_ok(&verify, 2).mismatches, 2);
        free(temp_dir_write(source, "chat_template.jinja", "x", 1));
        assert_int_equal(convert_ok(&verify, 2).mismatches, 3);
        free(other);
    }
    free(pack);
    free(target);
    st_checkpoint_free(&checkpoint);
    temp_dir_remove(source);
    temp_dir_remove(dir);
}

/* ---- refusals ---- */

typedef struct {
    char *source, *dir, *target;
    st_checkpoint checkpoint;
    md_convert_spec spec;
} odd;

static odd odd_begin(void)
{
    odd o = {.source = temp_dir_make(), .dir = temp_dir_make()};

    o.target = fresh(o.dir, "t");
    o.checkpoint = st_checkpoint_load(MOESAIC_FIXTURES, "nano-fp8");
    st_checkpoint_write(&o.checkpoint, o.source, true);
    o.spec = standard(o.source, o.target);
    return o;
}

/* Nothing may have been written when `status` was found before the work began. */
static void odd_end(odd *o, rt_status status, const char *says, bool untouched)
{
    expect_failure(&o->spec, status, says);
    if (untouched) assert_int_equal(count_files(o->dir), 0);
    st_checkpoint_free(&o->checkpoint);
    free(o->target);
    temp_dir_remove(o->source);
    temp_dir_remove(o->dir);
}

static void replace_in_config(const odd *o, const char *from, const char *to)
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
    odd o = odd_begin();

    (void)state;
    replace_in_config(&o, "\"glm_moe_dsa\"", "\"llama\"");
    odd_end(&o, RT_EUNSUPPORTED, "llama", true);
}

static void a_missing_tensor_is_named_before_anything_is_written(void **state)
{
    odd o = odd_begin();

    (void)state;
    st_items_remove(&o.checkpoint.tensors, "model.layers.2.mlp.experts.4.gate_proj.weight");
    st_checkpoint_write(&o.checkpoint, o.source, true);
    odd_end(&o, RT_EFORMAT, "model.layers.2.mlp.experts.4.gate_proj.weight", true);
}

static void a_wrong_shape_is_named(void **state)
{
    odd o = odd_begin();

    (void)state;
    replace_in_config(&o, "\"moe_intermediate_size\": 32", "\"moe_intermediate_size\": 48");
    odd_end(&o, RT_EFORMAT, "expected shape [48, 64], found [32, 64]", true);
}

static void a_weight_that_is_not_finite_is_named(void **state)
{
    odd o = odd_begin();

    (void)state;
    ((uint8_t *)st_items_find(&o.checkpoint.tensors, "model.layers.1.mlp.experts.2.up_proj.weight")
         ->data)[64 * 3 + 5] = 0x7f;
    st_checkpoint_write(&o.checkpoint, o.source, true);
    odd_end(&o, RT_EFORMAT, "model.layers.1.mlp.experts.2.up_proj.weight: row 3, column 5", false);
}

static void a_missing_or_broken_tokenizer_is_found_at_once(void **state)
{
    odd o = odd_begin();
    char *path = rt_path_join(o.source, "tokenizer.json");

    (void)state;
    assert_int_equal(rt_file_replace(path, "{}", 2, NULL), RT_OK);
    expect_failure(&o.spec, RT_EFORMAT, "tokenizer.json");
    assert_int_equal(unlink(path), 0);
    free(path);
    odd_end(&o, RT_EIO, "tokenizer.json", true);
}

static void a_generation_config_that_no_reader_takes_is_found_at_once(void **state)
{
    odd o = odd_begin();
    char *path = rt_path_join(o.source, "generation_config.json");
    static const char text[] = "{\"eos_token_id\": [99999]}";

    (void)state;
    assert_int_equal(rt_file_replace(path, text, sizeof(text) - 1, NULL), RT_OK);
    free(path);
    odd_end(&o, RT_EFORMAT, "generation_config.json", true);
}

static void too_little_memory_for_one_record_is_refused(void **state)
{
    odd o = odd_begin();

    (void)state;
    o.spec.memory_bytes = 4096;
    odd_end(&o, RT_ENOMEM, "one record needs", true);
}

static void a_folder_with_foreign_files_is_not_written_over(void **state)
{
    odd o = odd_begin();

    (void)state;
    free(temp_dir_write(o.dir, "t/dense.bin", "precious", 8));
    expect_failure(&o.spec, RT_EINVAL, "dense.bin");
    assert_int_equal(count_files(o.target), 1);
    o.spec.dry_run = true;
    odd_end(&o, RT_EINVAL, "choose another TARGET", false);
}

static void another_checkpoint_is_not_written_over(void **state)
{
    odd o = odd_begin();

    (void)state;
    assert_int_equal(mkdir(o.target, 0755), 0);
    test_folder_copy(MOESAIC_FIXTURES "/wide-bf16", o.target);
    expect_failure(&o.spec, RT_EINVAL, "(config.json, ");
    expect_failure(&o.spec, RT_EINVAL, "choose another TARGET");
    expect_same_files(MOESAIC_FIXTURES "/wide-bf16", o.target);
    odd_end(&o, RT_EINVAL, ".safetensors, ...)", false);
}

static void whatever_lies_in_the_target_is_named(void **state)
{
    static const char *const names[] = {"t/notes.txt", "t/.hidden", "t/experts-001.bin",
                                        "t/model.safetensors"};

    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        odd o = odd_begin();

        free(temp_dir_write(o.dir, names[i], "x", 1));
        odd_end(&o, RT_EINVAL, names[i] + 2, false);
    }
}

static void an_empty_folder_and_a_fresh_filesystem_are_new_targets(void **state)
{
    odd o = odd_begin();
    char *lost = rt_path_join(o.target, "lost+found");

    (void)state;
    assert_int_equal(mkdir(o.target, 0755), 0);
    assert_int_equal(mkdir(lost, 0755), 0);
    /* A conversion that died before its ledger's header was whole. */
    free(temp_dir_write(o.dir, "t/" MD_LEDGER_NAME, "MOELE", 5));
    convert_ok(&o.spec, 1);
    assert_int_equal(rmdir(lost), 0);
    free(lost);
    o.spec.expert_format = KN_F32;
    odd_end(&o, RT_EINVAL, "choose another TARGET", false);
}

static void a_container_is_no_source(void **state)
{
    odd o = odd_begin();
    char *other = fresh(o.dir, "other"), *half = fresh(o.dir, "half");
    md_convert_spec spec = o.spec;

    (void)state;
    convert_ok(&spec, 1);
    spec.source = o.target;
    spec.target = other;
    expect_failure(&spec, RT_EINVAL, "is a container already");
    free(temp_dir_write(o.dir, "half/" MD_LEDGER_NAME, "x", 1));
    o.spec.source = half;
    o.spec.target = other;
    odd_end(&o, RT_EINVAL, "unfinished conversion", false);
    free(other);
    free(half);
}

static void source_and_target_must_be_two_directories(void **state)
{
    odd o = odd_begin();
    md_convert_spec spec = o.spec;

    (void)state;
    spec.target = o.source;
    expect_failure(&spec, RT_EINVAL, "same directory");
    {
        char *link = fresh(o.dir, "link"), *around = rt_path_join(o.source, "./../");
        char *name = strrchr(o.source, '/') + 1, *relative = rt_path_join(around, name);

        spec.target = relative;
        expect_failure(&spec, RT_EINVAL, "same directory");
        assert_int_equal(symlink(o.source, link), 0);
        spec.target = link;
        expect_failure(&spec, RT_EINVAL, "same directory");
        assert_int_equal(unlink(link), 0);
        assert_int_equal(symlink("nothing", link), 0);
        expect_failure(&spec, RT_EINVAL, "symbolic link to what is not there");
        assert_int_equal(unlink(link), 0);
        free(relative);
        free(around);
        free(link);
    }
    spec = o.spec;
    spec.source = MOESAIC_FIXTURES "/README.md";
    expect_failure(&spec, RT_EINVAL, "expected a directory");
    spec = o.spec;
    spec.target = MOESAIC_FIXTURES "/README.md";
    expect_failure(&spec, RT_EINVAL, "expected a directory");
    o.spec.source = "/nowhere/at/all";
    odd_end(&o, RT_EIO, "/nowhere/at/all", true);
}

static void a_target_whose_parent_is_missing_is_an_io_error(void **state)
{
    odd o = odd_begin();

    (void)state;
    free(o.target);
    o.target = rt_path_join(o.dir, "no/such/parent//");
    o.spec.target = o.target;
    expect_failure(&o.spec, RT_EIO, "no/such does not exist: create it first");
    o.spec.dry_run = true;
    odd_end(&o, RT_EIO, "no/such does not exist", true);
}

static void where_nothing_can_be_written_a_dry_run_says_so(void **state)
{
    odd o = odd_begin();

    (void)state;
    if (geteuid() == 0) { /* may write anywhere */
        o.spec.target = MOESAIC_FIXTURES "/README.md/t";
        odd_end(&o, RT_EIO, "README.md", true);
        return;
    }
    assert_int_equal(chmod(o.dir, 0555), 0);
    o.spec.dry_run = true;
    expect_failure(&o.spec, RT_EIO, "nothing can be written there");
    o.spec.dry_run = false;
    expect_failure(&o.spec, RT_EIO, "nothing can be written there");
    assert_int_equal(chmod(o.dir, 0755), 0);
    assert_int_equal(mkdir(o.target, 0555), 0);
    expect_failure(&o.spec, RT_EIO, "nothing can be written there");
    odd_end(&o, RT_EIO, "nothing can be written there", false);
}

static void a_running_conversion_keeps_others_out(void **state)
{
    odd o = odd_begin();
    md_ledger *ledger = NULL;
    md_source *source = NULL;
    md_ledger_options options = {
        .expert_format = KN_Q4, .dense_format = KN_Q8, .conversion_id = MD_CONVERSION_ID};

    (void)state;
    assert_int_equal(mkdir(o.target, 0755), 0);
    assert_int_equal(md_source_open(o.source, NULL, 0, &source, NULL), RT_OK);
    assert_int_equal(md_ledger_create(o.target, &options, source, &ledger, NULL), RT_OK);
    expect_failure(&o.spec, RT_EBUSY, "another conversion");
    md_ledger_close(ledger);
    md_source_close(source);
    /* It was of another config: the interrupted conversion is not this one. */
    odd_end(&o, RT_EINVAL, "config.json", false);
}

static void consume_refuses_links_before_it_begins(void **state)
{
    odd o = odd_begin();
    char *real = rt_path_join(o.source, "model-00001-of-00002.safetensors");
    char *moved = rt_path_join(o.source, "elsewhere");

    (void)state;
    assert_int_equal(rename(real, moved), 0);
    assert_int_equal(symlink(moved, real), 0);
    free(real);
    free(moved);
    o.spec.consume = true;
    odd_end(&o, RT_EINVAL, "symbolic link", true);
}

/* ---- consuming ---- */

static void consume_deletes_the_shards_and_nothing_else(void **state)
{
    static const uint32_t groups[] = {0, 1, 40};

    (void)state;
    for (int g = 0; g < 3; g++) {
        char *dir = temp_dir_make(), *source = temp_dir_make();
        char *kept = fresh(dir, "kept"), *target = fresh(dir, "t");
        md_convert_spec spec = standard(MOESAIC_FIXTURES "/wide-bf16", kept);
        md_convert_result result;

        convert_ok(&spec, 2);
        test_folder_copy(MOESAIC_FIXTURES "/wide-bf16", source);
        spec.source = source;
        spec.target = target;
        spec.consume = true;
        spec.commit_records = groups[g];
        result = convert_ok(&spec, 2);
        assert_int_equal(result.shards_deleted, 5);
        expect_same_files(kept, target);
        assert_int_equal(count_files(source), count_files(MOESAIC_FIXTURES "/wide-bf16") - 5);
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
    odd o = odd_begin();

    (void)state;
    /* The last record of the first shard's work fails; what came before is durable. */
    ((uint8_t *)st_items_find(&o.checkpoint.tensors, "model.layers.0.mlp.down_proj.weight")
         ->data)[0] = 0xff;
    st_checkpoint_write(&o.checkpoint, o.source, true);
    o.spec.consume = true;
    o.spec.commit_records = 1;
    expect_failure(&o.spec, RT_EFORMAT, "model.layers.0.mlp.down_proj.weight");
    assert_true(test_file_exists(o.source, "model-00001-of-00002.safetensors"));
    assert_true(test_file_exists(o.source, "model-00002-of-00002.safetensors"));
    odd_end(&o, RT_EFORMAT, "model.layers.0.mlp.down_proj.weight", false);
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
        cmocka_unit_test(consume_deletes_the_shards_and_nothing_else),
        cmocka_unit_test(after_a_failure_nothing_is_deleted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
