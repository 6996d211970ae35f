/* test_container.c - whole and partial copies open; anything that does not belong together does not. */
/* wrap: malloc calloc */
#include "model/container/container.h"

#include "base/file.h"
#include "model/container/manifest.h"
#include "model/container/pack.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

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

static int failing_allocation; /* 1: the next one */

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t size);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t size);

void *__wrap_malloc(size_t bytes)
{
    return failing_allocation > 0 && --failing_allocation == 0 ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return failing_allocation > 0 && --failing_allocation == 0 ? NULL : __real_calloc(count, size);
}

static char *tiny(uint64_t seed)
{
    tiny_model_spec spec = tiny_model_default();

    spec.seed = seed;
    spec.mtp = true;
    return tiny_model_build(&spec);
}

static md_container *open_ok(const char *dir)
{
    md_container *container = NULL;
    rt_err err = {RT_OK, ""};

    if (md_container_open(dir, &container, &err) != RT_OK) fail_msg("%s", err.text);
    return container;
}

/* Opening must fail with status and name all of the texts (NULL: none). */
static void refused(const char *dir, rt_status status, const char *first, const char *second)
{
    md_container *container = NULL;
    rt_err err = {RT_OK, ""};

    assert_int_equal(md_container_open(dir, &container, &err), status);
    assert_null(container);
    if (strstr(err.text, first) == NULL || (second != NULL && strstr(err.text, second) == NULL))
        fail_msg("expected %s and %s in: %s", first, second != NULL ? second : "-", err.text);
}

static void path_in(const char *dir, const char *name, char path[512])
{
    (void)snprintf(path, 512, "%s/%s", dir, name);
}

static char *take(const char *dir, const char *name, size_t *bytes)
{
    char path[512], *data = NULL;
    rt_err err;

    path_in(dir, name, path);
    assert_int_equal(rt_file_read(path, 16 << 20, &data, bytes, &err), RT_OK);
    return data;
}

static void put(const char *dir, const char *name, const void *data, size_t bytes)
{
    free(temp_dir_write(dir, name, data, bytes));
}

static void copy(const char *from, const char *from_name, const char *to, const char *to_name)
{
    size_t bytes = 0;
    char *data = take(from, from_name, &bytes);

    put(to, to_name, data, bytes);
    free(data);
}

static void drop(const char *dir, const char *name)
{
    char path[512];

    path_in(dir, name, path);
    assert_int_equal(unlink(path), 0);
}

static void whole_container_holds_every_record(void **state)
{
    char *dir = tiny(1);
    md_container *container = open_ok(dir);
    rt_err err;

    (void)state;
    assert_string_equal(md_container_dir(container), dir);
    assert_int_equal(md_container_config(container)->hidden, 64);
    assert_int_equal(md_container_get_info(container)->expert_format, KN_Q4);
    for (uint64_t i = 0; i < md_container_record_count(container); i++) {
        md_record record, found;
        void *data;

        md_container_record_at(container, i, &record);
        assert_true(record.fd >= 0);
        assert_int_equal(record.offset % 4096, 0);
        assert_true(md_container_find(container, record.key, &found));
        assert_memory_equal(&found.hash, &record.hash, sizeof(found.hash));
        assert_true(found.offset == record.offset && found.bytes == record.bytes);
        data = malloc(record.bytes);
        assert_non_null(data);
        assert_int_equal(md_record_read(&record, data, &err), RT_OK);
        free(data);
    }
    md_container_close(container);
    md_container_close(NULL);
    temp_dir_remove(dir);
}

static void keys_outside_the_model_are_not_found(void **state)
{
    static const md_key keys[] = {{0, MD_EXPERT, 0},
                                  {1, MD_EXPERT, 8},
                                  {0, 0, 0},
                                  {9, MD_Q_A, 0},
                                  {MD_NO_LAYER, MD_ROPE_INV_FREQ, 1},
                                  {0xffff, 0xffff, 0xffffffffu}};
    char *dir = tiny(1);
    md_container *container = open_ok(dir);

    (void)state;
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        md_record record;

        assert_false(md_container_find(container, keys[i], &record));
    }
    md_container_close(container);
    temp_dir_remove(dir);
}

static void layouts_follow_the_layer(void **state)
{
    char *dir = tiny(1);
    md_container *container = open_ok(dir);
    md_expert_layout layout;
    md_record record;

    (void)state;
    md_container_expert_layout(container, 1, &layout);
    assert_int_equal(layout.format, KN_Q4);
    assert_true(md_container_find(container, (md_key){1, MD_EXPERT, 7}, &record));
    assert_int_equal(record.bytes, layout.record_bytes);
    md_container_expert_layout(container, 3, &layout); /* MTP */
    assert_int_equal(layout.format, KN_Q8);
    assert_true(md_container_find(container, (md_key){3, MD_EXPERT, 0}, &record));
    assert_int_equal(record.bytes, layout.record_bytes);
    md_container_shared_layout(container, &layout);
    assert_int_equal(layout.format, KN_Q8);
    md_container_close(container);
    temp_dir_remove(dir);
}

static void same_source_gives_the_same_id_and_another_another(void **state)
{
    char *dirs[3] = {tiny(1), tiny(1), tiny(2)};
    uint8_t ids[3][32];

    (void)state;
    for (int i = 0; i < 3; i++) {
        md_container *container = open_ok(dirs[i]);

        memcpy(ids[i], md_container_get_info(container)->model_id, 32);
        md_container_close(container);
        temp_dir_remove(dirs[i]);
    }
    assert_memory_equal(ids[0], ids[1], 32);
    assert_memory_not_equal(ids[0], ids[2], 32);
}

static void partial_copy_opens_and_says_what_it_lacks(void **state)
{
    char *dir = tiny(1);
    md_container *container;
    md_record record;
    size_t bytes = 1;
    char data[8];
    rt_err err = {RT_OK, ""};

    (void)state;
    drop(dir, "experts-002.bin");
    drop(dir, "dense.bin");
    drop(dir, "tokenizer.bin");
    container = open_ok(dir);
    assert_true(md_container_find(container, (md_key){2, MD_EXPERT, 3}, &record));
    assert_int_equal(record.fd, -1);
    assert_int_equal(record.fd_direct, -1);
    assert_int_equal(md_record_read(&record, data, &err), RT_EIO);
    assert_non_null(strstr(err.text, "layer 2 expert 3"));
    assert_non_null(strstr(err.text, "not held"));
    assert_non_null(strstr(err.text, "experts-002.bin"));
    assert_true(md_container_find(container, (md_key){0, MD_Q_A, 0}, &record));
    assert_int_equal(record.fd, -1);
    assert_true(md_container_find(container, (md_key){1, MD_EXPERT, 3}, &record));
    assert_true(record.fd >= 0);
    assert_null(md_container_tokenizer(container, &bytes));
    assert_int_equal(bytes, 0);
    md_container_close(container);
    temp_dir_remove(dir);
}

/* Keeps experts 2 and 5 of layer 1 in a pack of their own. */
static void shrink_pack(const char *dir)
{
    md_container *container = open_ok(dir);
    md_pack_entry entries[2];
    md_pack_writer *writer = NULL;
    char path[512];
    void *data[2];
    rt_err err;

    path_in(dir, "experts-001.bin", path);
    for (uint32_t i = 0; i < 2; i++) {
        md_record record;

        assert_true(md_container_find(container, (md_key){1, MD_EXPERT, 2 + i * 3}, &record));
        entries[i] = (md_pack_entry){.key = record.key, .bytes = record.bytes, .hash = record.hash};
        data[i] = malloc(record.bytes);
        assert_non_null(data[i]);
        assert_int_equal(md_record_read(&record, data[i], &err), RT_OK);
    }
    md_container_close(container);
    drop(dir, "experts-001.bin");
    (void)md_pack_layout(entries, 2);
    assert_int_equal(md_pack_create(path, entries, 2, &writer, &err), RT_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(md_pack_write(writer, &entries[i], 0, data[i], entries[i].bytes, &err),
                         RT_OK);
        free(data[i]);
    }
    assert_int_equal(md_pack_finish(writer, &err), RT_OK);
    md_pack_writer_free(writer);
}

static void pack_may_hold_some_records_of_a_layer(void **state)
{
    char *dir = tiny(1);
    md_container *container;

    (void)state;
    shrink_pack(dir);
    container = open_ok(dir);
    for (uint32_t i = 0; i < 8; i++) {
        md_record record;

        assert_true(md_container_find(container, (md_key){1, MD_EXPERT, i}, &record));
        assert_int_equal(record.fd >= 0, i == 2 || i == 5);
        if (record.fd >= 0) {
            void *data = malloc(record.bytes);
            rt_err err;

            assert_non_null(data);
            assert_int_equal(md_record_read(&record, data, &err), RT_OK);
            free(data);
        }
    }
    md_container_close(container);
    temp_dir_remove(dir);
}

static void tokenizer_image_is_mapped_and_proved(void **state)
{
    char *dir = tiny(1);
    md_container *container = open_ok(dir);
    size_t bytes = 0;
    const void *image = md_container_tokenizer(container, &bytes);

    (void)state;
    assert_int_equal(bytes, 4);
    assert_memory_equal(image, "tiny", 4);
    md_container_close(container);
    put(dir, "tokenizer.bin", "tina", 4);
    refused(dir, RT_EFORMAT, "tokenizer.bin", "expected hash");
    put(dir, "tokenizer.bin", "tinyy", 5);
    refused(dir, RT_EFORMAT, "tokenizer.bin", "expected 4 bytes, found 5");
    put(dir, "tokenizer.bin", "", 0);
    refused(dir, RT_EFORMAT, "tokenizer.bin", "found 0");
    temp_dir_remove(dir);
}

static void unfinished_conversion_is_named_as_such(void **state)
{
    char *dir = tiny(1);

    (void)state;
    drop(dir, "moesaic.json");
    refused(dir, RT_EFORMAT, dir, "unfinished conversion");
    temp_dir_remove(dir);
    refused("/nonexistent/model", RT_EIO, "/nonexistent/model", NULL);
}

static void missing_parts_are_named(void **state)
{
    static const char *const names[] = {"config.json", "manifest.bin"};

    (void)state;
    for (int i = 0; i < 2; i++) {
        char *dir = tiny(1);

        drop(dir, names[i]);
        refused(dir, RT_EIO, names[i], dir);
        temp_dir_remove(dir);
    }
}

static void changed_config_changes_the_id(void **state)
{
    char *dir = tiny(1);
    size_t bytes = 0;
    char *text = take(dir, "config.json", &bytes), *at = strstr(text, "2.5");

    (void)state;
    assert_non_null(at);
    at[2] = '6'; /* routed_scaling_factor 2.6 */
    put(dir, "config.json", text, bytes);
    refused(dir, RT_EFORMAT, "model id", "config.json");
    at[2] = 'x';
    put(dir, "config.json", text, bytes);
    refused(dir, RT_EFORMAT, "config.json", dir);
    free(text);
    temp_dir_remove(dir);
}

static void config_of_other_shapes_is_refused(void **state)
{
    char *dir = tiny(1);
    size_t bytes = 0;
    char *text = take(dir, "config.json", &bytes), *at = strstr(text, "\"q_lora_rank\": 32");

    (void)state;
    assert_non_null(at);
    memcpy(at, "\"q_lora_rank\": 48", 17);
    put(dir, "config.json", text, bytes);
    refused(dir, RT_EFORMAT, "manifest.bin", "layer 0 q_a");
    free(text);
    temp_dir_remove(dir);
}

static void manifest_of_another_model_is_refused(void **state)
{
    char *dir = tiny(1), *other = tiny(2);
    md_manifest_entry *entries = NULL;
    uint64_t count = 0;
    char path[512];
    rt_err err;

    (void)state;
    copy(other, "manifest.bin", dir, "manifest.bin");
    refused(dir, RT_EFORMAT, "model id", "manifest.bin");
    path_in(dir, "manifest.bin", path);
    assert_int_equal(md_manifest_read(path, &entries, &count, &err), RT_OK);
    assert_int_equal(md_manifest_write(path, entries, count - 1, &err), RT_OK);
    refused(dir, RT_EFORMAT, "manifest.bin: expected", "records");
    entries[3].bytes++;
    assert_int_equal(md_manifest_write(path, entries, count, &err), RT_OK);
    refused(dir, RT_EFORMAT, "bytes, found", "manifest.bin");
    entries[3].bytes--;
    entries[count - 1].key.index = 5;
    assert_int_equal(md_manifest_write(path, entries, count, &err), RT_OK);
    refused(dir, RT_EFORMAT, "manifest.bin: expected rope_inv_freq", "found");
    free(entries);
    temp_dir_remove(other);
    temp_dir_remove(dir);
}

static void pack_of_another_model_is_refused(void **state)
{
    char *dir = tiny(1), *other = tiny(2);

    (void)state;
    copy(other, "experts-001.bin", dir, "experts-001.bin");
    refused(dir, RT_EFORMAT, "experts-001.bin", "layer 1 expert 0");
    temp_dir_remove(other);
    temp_dir_remove(dir);
}

static void pack_under_another_name_is_refused(void **state)
{
    char *dir = tiny(1);

    (void)state;
    copy(dir, "experts-002.bin", dir, "experts-001.bin");
    refused(dir, RT_EFORMAT, "experts-001.bin", "found layer 2 expert 0");
    temp_dir_remove(dir);
}

static void damaged_pack_is_refused_and_a_short_one_too(void **state)
{
    char *dir = tiny(1);
    char path[512];
    int fd;

    (void)state;
    path_in(dir, "experts-001.bin", path);
    fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, "\x7f", 1, 70), 1);
    refused(dir, RT_EFORMAT, "experts-001.bin", "index checksum");
    assert_int_equal(ftruncate(fd, 8192), 0);
    refused(dir, RT_EFORMAT, "experts-001.bin", "found 8192");
    (void)close(fd);
    temp_dir_remove(dir);
}

static void pack_that_shrinks_later_fails_the_record_alone(void **state)
{
    char *dir = tiny(1), path[512];
    md_container *container = open_ok(dir);
    md_record first, last;
    void *data;
    rt_err err = {RT_OK, ""};

    (void)state;
    assert_true(md_container_find(container, (md_key){1, MD_EXPERT, 0}, &first));
    assert_true(md_container_find(container, (md_key){1, MD_EXPERT, 7}, &last));
    path_in(dir, "experts-001.bin", path);
    assert_int_equal(truncate(path, (off_t)last.offset + 10), 0);
    data = malloc(last.bytes);
    assert_non_null(data);
    assert_int_equal(md_record_read(&last, data, &err), RT_EIO);
    assert_non_null(strstr(err.text, "layer 1 expert 7"));
    assert_int_equal(md_record_read(&first, data, &err), RT_OK);
    free(data);
    md_container_close(container);
    temp_dir_remove(dir);
}

static void damaged_record_is_named_with_both_hashes(void **state)
{
    char *dir = tiny(1);
    md_container *container;
    md_record record;
    void *data;
    rt_err err = {RT_OK, ""};

    (void)state;
    tiny_model_damage(dir, 2, 6);
    container = open_ok(dir);
    assert_true(md_container_find(container, (md_key){2, MD_EXPERT, 6}, &record));
    data = malloc(record.bytes);
    assert_non_null(data);
    assert_int_equal(md_record_read(&record, data, &err), RT_EFORMAT);
    assert_non_null(strstr(err.text, "layer 2 expert 6"));
    assert_non_null(strstr(err.text, "expected hash"));
    free(data);
    md_container_close(container);
    temp_dir_remove(dir);
}

static void generation_defaults_come_from_its_file_or_the_config(void **state)
{
    static const char good[] = "{\"temperature\":0.7,\"top_p\":0.9,\"eos_token_id\":[1,2]}";
    char *dir = tiny(1);
    md_container *container = open_ok(dir);
    const md_generation *g = md_container_generation(container);

    (void)state;
    assert_true(g->temperature == 1.0f && g->top_p == 1.0f && g->min_p == 0.0f && g->top_k == 0);
    assert_int_equal(g->eos_count, 1);
    assert_int_equal(g->eos[0], 95);
    md_container_close(container);
    put(dir, "generation_config.json", good, sizeof(good) - 1);
    container = open_ok(dir);
    g = md_container_generation(container);
    assert_true(g->temperature == 0.7f && g->top_p == 0.9f);
    assert_int_equal(g->eos_count, 2);
    md_container_close(container);
    put(dir, "generation_config.json", "{\"eos_token_id\":96}", 19);
    refused(dir, RT_EFORMAT, "generation_config.json", "found 96");
    put(dir, "generation_config.json", "{", 1);
    refused(dir, RT_EFORMAT, "generation_config.json", dir);
    temp_dir_remove(dir);
}

static void description_with_another_id_is_refused_with_both(void **state)
{
    char *dir = tiny(1);
    size_t bytes = 0;
    char *text = take(dir, "moesaic.json", &bytes), *at = strstr(text, "\"model_id\":\"");

    (void)state;
    assert_non_null(at);
    at[12] = at[12] == '0' ? '1' : '0';
    put(dir, "moesaic.json", text, bytes);
    at[12 + 64] = '\0';
    refused(dir, RT_EFORMAT, "expected model id", at + 12);
    refused(dir, RT_EFORMAT, ", found ", at + 13); /* the computed one ends alike */
    free(text);
    temp_dir_remove(dir);
}

/* Fails each allocation of opening in turn, until none is left to fail. */
static void every_failed_allocation_is_an_error(void **state)
{
    char *dir = tiny(1);
    bool done = false;
    int tried = 0;

    (void)state;
    for (int i = 1; !done; i++) {
        md_container *container = NULL;
        rt_err err = {RT_OK, ""};
        rt_status status;

        failing_allocation = i;
        status = md_container_open(dir, &container, &err);
        done = failing_allocation > 0;
        failing_allocation = 0;
        assert_int_equal(status, done ? RT_OK : RT_ENOMEM);
        assert_int_equal(container != NULL, done);
        md_container_close(container);
        tried = i;
    }
    assert_true(tried > 20);
    temp_dir_remove(dir);
}

static void blueprint_has_the_records_of_the_container_and_holds_none(void **state)
{
    char *dir = tiny(1);
    md_container *made = open_ok(dir), *blueprint = NULL;
    const md_container_info *info = md_container_get_info(made);
    md_container_info planned;
    bool done = false;

    (void)state;
    md_container_info_init(&planned, md_container_config(made), info->expert_format,
                           info->dense_format);
    assert_int_equal(planned.slice_width, info->slice_width);
    assert_int_equal(planned.embed_format, info->embed_format);
    for (int i = 1; !done; i++) { /* with every allocation failing in turn, until none is left */
        failing_allocation = i;
        done = md_container_blueprint(dir, md_container_config(made), &planned, &blueprint, NULL) ==
               RT_OK;
        failing_allocation = 0;
        assert_true(i < 100 && (done == (blueprint != NULL)));
    }
    assert_int_equal(md_container_record_count(blueprint), md_container_record_count(made));
    for (uint64_t i = 0; i < md_container_record_count(made); i++) {
        md_record wanted, found;

        md_container_record_at(made, i, &wanted);
        assert_true(md_container_find(blueprint, wanted.key, &found));
        assert_int_equal(found.bytes, wanted.bytes);
        assert_int_equal(found.fd, -1);
        assert_int_equal(found.fd_direct, -1);
    }
    md_container_close(blueprint);
    md_container_close(made);
    temp_dir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_container_holds_every_record),
        cmocka_unit_test(keys_outside_the_model_are_not_found),
        cmocka_unit_test(layouts_follow_the_layer),
        cmocka_unit_test(same_source_gives_the_same_id_and_another_another),
        cmocka_unit_test(partial_copy_opens_and_says_what_it_lacks),
        cmocka_unit_test(pack_may_hold_some_records_of_a_layer),
        cmocka_unit_test(tokenizer_image_is_mapped_and_proved),
        cmocka_unit_test(unfinished_conversion_is_named_as_such),
        cmocka_unit_test(missing_parts_are_named),
        cmocka_unit_test(changed_config_changes_the_id),
        cmocka_unit_test(config_of_other_shapes_is_refused),
        cmocka_unit_test(manifest_of_another_model_is_refused),
        cmocka_unit_test(pack_of_another_model_is_refused),
        cmocka_unit_test(pack_under_another_name_is_refused),
        cmocka_unit_test(damaged_pack_is_refused_and_a_short_one_too),
        cmocka_unit_test(pack_that_shrinks_later_fails_the_record_alone),
        cmocka_unit_test(damaged_record_is_named_with_both_hashes),
        cmocka_unit_test(generation_defaults_come_from_its_file_or_the_config),
        cmocka_unit_test(description_with_another_id_is_refused_with_both),
        cmocka_unit_test(every_failed_allocation_is_an_error),
        cmocka_unit_test(blueprint_has_the_records_of_the_container_and_holds_none),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
