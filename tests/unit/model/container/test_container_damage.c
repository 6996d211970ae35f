/* test_container_damage.c - what is missing, damaged or of another model is refused by its name. */
#include "model/container/container.h"

#include "model/container/manifest.h"
#include "tests/support/container_check.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void unfinished_conversion_is_named_as_such(void **state)
{
    char *dir = container_check_build(1);

    (void)state;
    temp_dir_drop(dir, "moesaic.json");
    container_check_refused(dir, RT_EFORMAT, dir, "unfinished conversion");
    temp_dir_remove(dir);
    container_check_refused("/nonexistent/model", RT_EIO, "/nonexistent/model", NULL);
}

static void missing_parts_are_named(void **state)
{
    static const char *const names[] = {"config.json", "manifest.bin"};

    (void)state;
    for (int i = 0; i < 2; i++) {
        char *dir = container_check_build(1);

        temp_dir_drop(dir, names[i]);
        container_check_refused(dir, RT_EIO, names[i], dir);
        temp_dir_remove(dir);
    }
}

static void changed_config_changes_the_id(void **state)
{
    char *dir = container_check_build(1);
    size_t bytes = 0;
    char *text = temp_dir_read(dir, "config.json", &bytes), *at = strstr(text, "2.5");

    (void)state;
    assert_non_null(at);
    at[2] = '6'; /* routed_scaling_factor 2.6 */
    temp_dir_put(dir, "config.json", text, bytes);
    container_check_refused(dir, RT_EFORMAT, "model id", "config.json");
    at[2] = 'x';
    temp_dir_put(dir, "config.json", text, bytes);
    container_check_refused(dir, RT_EFORMAT, "config.json", dir);
    free(text);
    temp_dir_remove(dir);
}

static void config_of_other_shapes_is_refused(void **state)
{
    char *dir = container_check_build(1);
    size_t bytes = 0;
    char *text = temp_dir_read(dir, "config.json", &bytes),
         *at = strstr(text, "\"q_lora_rank\": 32");

    (void)state;
    assert_non_null(at);
    memcpy(at, "\"q_lora_rank\": 48", 17);
    temp_dir_put(dir, "config.json", text, bytes);
    container_check_refused(dir, RT_EFORMAT, "manifest.bin", "layer 0 q_a");
    free(text);
    temp_dir_remove(dir);
}

static void manifest_of_another_model_is_refused(void **state)
{
    char *dir = container_check_build(1), *other = container_check_build(2);
    md_manifest_entry *entries = NULL;
    uint64_t count = 0;
    char path[512];
    rt_err err;

    (void)state;
    temp_dir_copy(other, "manifest.bin", dir, "manifest.bin");
    container_check_refused(dir, RT_EFORMAT, "model id", "manifest.bin");
    temp_dir_path(dir, "manifest.bin", path);
    assert_int_equal(md_manifest_read(path, &entries, &count, &err), RT_OK);
    assert_int_equal(md_manifest_write(path, entries, count - 1, &err), RT_OK);
    container_check_refused(dir, RT_EFORMAT, "manifest.bin: expected", "records");
    entries[3].bytes++;
    assert_int_equal(md_manifest_write(path, entries, count, &err), RT_OK);
    container_check_refused(dir, RT_EFORMAT, "bytes, found", "manifest.bin");
    entries[3].bytes--;
    entries[count - 1].key.index = 5;
    assert_int_equal(md_manifest_write(path, entries, count, &err), RT_OK);
    container_check_refused(dir, RT_EFORMAT, "manifest.bin: expected rope_inv_freq", "found");
    free(entries);
    temp_dir_remove(other);
    temp_dir_remove(dir);
}

static void pack_of_another_model_is_refused(void **state)
{
    char *dir = container_check_build(1), *other = container_check_build(2);

    (void)state;
    temp_dir_copy(other, "experts-001.bin", dir, "experts-001.bin");
    container_check_refused(dir, RT_EFORMAT, "experts-001.bin", "layer 1 expert 0");
    temp_dir_remove(other);
    temp_dir_remove(dir);
}

static void pack_under_another_name_is_refused(void **state)
{
    char *dir = container_check_build(1);

    (void)state;
    temp_dir_copy(dir, "experts-002.bin", dir, "experts-001.bin");
    container_check_refused(dir, RT_EFORMAT, "experts-001.bin", "found layer 2 expert 0");
    temp_dir_remove(dir);
}

static void damaged_pack_is_refused_and_a_short_one_too(void **state)
{
    char *dir = container_check_build(1);
    char path[512];
    int fd;

    (void)state;
    temp_dir_path(dir, "experts-001.bin", path);
    fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, "\x7f", 1, 70), 1);
    container_check_refused(dir, RT_EFORMAT, "experts-001.bin", "index checksum");
    assert_int_equal(ftruncate(fd, 8192), 0);
    container_check_refused(dir, RT_EFORMAT, "experts-001.bin", "found 8192");
    (void)close(fd);
    temp_dir_remove(dir);
}

static void pack_that_shrinks_later_fails_the_record_alone(void **state)
{
    char *dir = container_check_build(1), path[512];
    md_container *container = container_check_open(dir);
    md_record first, last;
    void *data;
    rt_err err = {RT_OK, ""};

    (void)state;
    assert_true(md_container_find(container, (md_key){1, MD_EXPERT, 0}, &first));
    assert_true(md_container_find(container, (md_key){1, MD_EXPERT, 7}, &last));
    temp_dir_path(dir, "experts-001.bin", path);
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
    char *dir = container_check_build(1);
    md_container *container;
    md_record record;
    void *data;
    rt_err err = {RT_OK, ""};

    (void)state;
    tiny_model_damage(dir, 2, 6);
    container = container_check_open(dir);
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

static void description_with_another_id_is_refused_with_both(void **state)
{
    char *dir = container_check_build(1);
    size_t bytes = 0;
    char *text = temp_dir_read(dir, "moesaic.json", &bytes), *at = strstr(text, "\"model_id\":\"");

    (void)state;
    assert_non_null(at);
    at[12] = at[12] == '0' ? '1' : '0';
    temp_dir_put(dir, "moesaic.json", text, bytes);
    at[12 + 64] = '\0';
    container_check_refused(dir, RT_EFORMAT, "expected model id", at + 12);
    container_check_refused(dir, RT_EFORMAT, ", found ", at + 13); /* the computed one ends alike */
    free(text);
    temp_dir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
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
        cmocka_unit_test(description_with_another_id_is_refused_with_both),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
