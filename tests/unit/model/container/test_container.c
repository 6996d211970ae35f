/* test_container.c - whole and partial copies open and say what they hold; allocations may fail. */
/* wrap: malloc calloc */
#include "model/container/container.h"

#include "model/container/pack.h"
#include "tests/support/container_check.h"
#include "tests/support/temp_dir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

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

static void whole_container_holds_every_record(void **state)
{
    char *dir = container_check_build(1);
    md_container *container = container_check_open(dir);
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
    char *dir = container_check_build(1);
    md_container *container = container_check_open(dir);

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
    char *dir = container_check_build(1);
    md_container *container = container_check_open(dir);
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
    char *dirs[3] = {container_check_build(1), container_check_build(1), container_check_build(2)};
    uint8_t ids[3][32];

    (void)state;
    for (int i = 0; i < 3; i++) {
        md_container *container = container_check_open(dirs[i]);

        memcpy(ids[i], md_container_get_info(container)->model_id, 32);
        md_container_close(container);
        temp_dir_remove(dirs[i]);
    }
    assert_memory_equal(ids[0], ids[1], 32);
    assert_memory_not_equal(ids[0], ids[2], 32);
}

static void partial_copy_opens_and_says_what_it_lacks(void **state)
{
    char *dir = container_check_build(1);
    md_container *container;
    md_record record;
    size_t bytes = 1;
    char data[8];
    rt_err err = {RT_OK, ""};

    (void)state;
    temp_dir_drop(dir, "experts-002.bin");
    temp_dir_drop(dir, "dense.bin");
    temp_dir_drop(dir, "tokenizer.bin");
    container = container_check_open(dir);
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
    md_container *container = container_check_open(dir);
    md_pack_entry entries[2];
    md_pack_writer *writer = NULL;
    char path[512];
    void *data[2];
    rt_err err;

    temp_dir_path(dir, "experts-001.bin", path);
    for (uint32_t i = 0; i < 2; i++) {
        md_record record;

        assert_true(md_container_find(container, (md_key){1, MD_EXPERT, 2 + i * 3}, &record));
        entries[i] = (md_pack_entry){.key = record.key, .bytes = record.bytes, .hash = record.hash};
        data[i] = malloc(record.bytes);
        assert_non_null(data[i]);
        assert_int_equal(md_record_read(&record, data[i], &err), RT_OK);
    }
    md_container_close(container);
    temp_dir_drop(dir, "experts-001.bin");
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
    char *dir = container_check_build(1);
    md_container *container;

    (void)state;
    shrink_pack(dir);
    container = container_check_open(dir);
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
    char *dir = container_check_build(1);
    md_container *container = container_check_open(dir);
    size_t bytes = 0;
    const void *image = md_container_tokenizer(container, &bytes);

    (void)state;
    assert_int_equal(bytes, 4);
    assert_memory_equal(image, "tiny", 4);
    md_container_close(container);
    temp_dir_put(dir, "tokenizer.bin", "tina", 4);
    container_check_refused(dir, RT_EFORMAT, "tokenizer.bin", "expected hash");
    temp_dir_put(dir, "tokenizer.bin", "tinyy", 5);
    container_check_refused(dir, RT_EFORMAT, "tokenizer.bin", "expected 4 bytes, found 5");
    temp_dir_put(dir, "tokenizer.bin", "", 0);
    container_check_refused(dir, RT_EFORMAT, "tokenizer.bin", "found 0");
    temp_dir_remove(dir);
}

static void generation_defaults_come_from_its_file_or_the_config(void **state)
{
    static const char good[] = "{\"temperature\":0.7,\"top_p\":0.9,\"eos_token_id\":[1,2]}";
    char *dir = container_check_build(1);
    md_container *container = container_check_open(dir);
    const md_generation *g = md_container_generation(container);

    (void)state;
    assert_true(g->temperature == 1.0f && g->top_p == 1.0f && g->min_p == 0.0f && g->top_k == 0);
    assert_int_equal(g->eos_count, 1);
    assert_int_equal(g->eos[0], 95);
    md_container_close(container);
    temp_dir_put(dir, "generation_config.json", good, sizeof(good) - 1);
    container = container_check_open(dir);
    g = md_container_generation(container);
    assert_true(g->temperature == 0.7f && g->top_p == 0.9f);
    assert_int_equal(g->eos_count, 2);
    md_container_close(container);
    temp_dir_put(dir, "generation_config.json", "{\"eos_token_id\":96}", 19);
    container_check_refused(dir, RT_EFORMAT, "generation_config.json", "found 96");
    temp_dir_put(dir, "generation_config.json", "{", 1);
    container_check_refused(dir, RT_EFORMAT, "generation_config.json", dir);
    temp_dir_remove(dir);
}

/* Fails each allocation of opening in turn, until none is left to fail. */
static void every_failed_allocation_is_an_error(void **state)
{
    char *dir = container_check_build(1);
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
    char *dir = container_check_build(1);
    md_container *made = container_check_open(dir), *blueprint = NULL;
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
        cmocka_unit_test(generation_defaults_come_from_its_file_or_the_config),
        cmocka_unit_test(every_failed_allocation_is_an_error),
        cmocka_unit_test(blueprint_has_the_records_of_the_container_and_holds_none),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
