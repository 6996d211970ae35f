/* test_ledger.c - what is in the ledger is true; what is torn or damaged is not in it. */
/* wrap: fdatasync pwrite */
#include "model/convert/ledger.h"

#include "base/file.h"
#include "tests/support/safetensors_file.h"
#include "tests/support/temp_dir.h"

#include <errno.h>
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

static int sync_error, write_error;

int __real_fdatasync(int fd);
int __wrap_fdatasync(int fd);
ssize_t __real_pwrite(int fd, const void *data, size_t bytes, off_t offset);
ssize_t __wrap_pwrite(int fd, const void *data, size_t bytes, off_t offset);

int __wrap_fdatasync(int fd)
{
    errno = sync_error;
    return sync_error != 0 ? -1 : __real_fdatasync(fd);
}

ssize_t __wrap_pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
    errno = write_error;
    return write_error != 0 ? -1 : __real_pwrite(fd, data, bytes, offset);
}

typedef struct {
    char *source_dir, *dir, *path;
    md_source *source;
    md_ledger_options options;
} rig;

static int set_up(void **state)
{
    st_checkpoint checkpoint = st_checkpoint_load(MOESAIC_FIXTURES, "nano-bf16");
    rig *r = calloc(1, sizeof(*r));

    sync_error = 0;
    write_error = 0;
    r->source_dir = temp_dir_make();
    r->dir = temp_dir_make();
    r->path = rt_path_join(r->dir, MD_LEDGER_NAME);
    st_checkpoint_write(&checkpoint, r->source_dir, true);
    st_checkpoint_free(&checkpoint);
    assert_int_equal(md_source_open(r->source_dir, NULL, 0, &r->source, NULL), RT_OK);
    r->options = (md_ledger_options){
        .expert_format = KN_Q4,
        .dense_format = KN_Q8,
        .latent_eps = 1e-5f,
        .conversion_id = 1,
        .config_hash = 77,
        .records = 96,
    };
    *state = r;
    return 0;
}

static int tear_down(void **state)
{
    rig *r = *state;

    md_source_close(r->source);
    temp_dir_remove(r->source_dir);
    temp_dir_remove(r->dir);
    free(r->path);
    free(r);
    return 0;
}

static md_ledger_entry entry_of(uint32_t i)
{
    return (md_ledger_entry){
        .key = {(uint16_t)i, MD_EXPERT, i * 3},
        .bytes = 1000 + i,
        .hash = {i, ~(uint64_t)i},
        .power = 0.1 * i,
    };
}

static void create_with(rig *r, uint32_t count)
{
    md_ledger *ledger = NULL;
    md_ledger_entry entries[600];

    assert_true(count <= 600);
    assert_int_equal(md_ledger_create(r->dir, &r->options, r->source, &ledger, NULL), RT_OK);
    for (uint32_t i = 0; i < count; i++)
        entries[i] = entry_of(i);
    /* In two groups, the first larger than one write of it. */
    assert_int_equal(md_ledger_append(ledger, entries, count / 2 + 1, NULL), RT_OK);
    assert_int_equal(md_ledger_append(ledger, entries + count / 2 + 1, count - count / 2 - 1, NULL),
                     RT_OK);
    md_ledger_close(ledger);
}

static void expect_entries(const md_ledger *ledger, uint64_t expected)
{
    uint64_t count = 0;
    const md_ledger_entry *entries = md_ledger_entries(ledger, &count);

    assert_int_equal(count, expected);
    for (uint32_t i = 0; i < count; i++) {
        md_ledger_entry wanted = entry_of(i);

        assert_memory_equal(&entries[i], &wanted, sizeof(wanted));
    }
}

static void what_was_appended_is_read_back(void **state)
{
    rig *r = *state;
    md_ledger *ledger = NULL;
    uint32_t shards = 0;
    const md_source_shard *table;

    create_with(r, 601 - 1);
    assert_int_equal(md_ledger_open(r->dir, false, &ledger, NULL), RT_OK);
    expect_entries(ledger, 600);
    assert_int_equal(md_ledger_check_options(md_ledger_get_options(ledger), &r->options, NULL),
                     RT_OK);
    table = md_ledger_shards(ledger, &shards);
    assert_int_equal(shards, 2);
    for (uint32_t i = 0; i < shards; i++)
        assert_memory_equal(&table[i], md_source_shard_at(r->source, i), sizeof(table[i]));
    assert_int_equal(md_ledger_remove(ledger, NULL), RT_OK);
    assert_false(test_file_exists(r->dir, MD_LEDGER_NAME));
}

static void without_a_file_there_is_no_ledger(void **state)
{
    rig *r = *state;
    md_ledger *ledger = (md_ledger *)1;

    assert_int_equal(md_ledger_open(r->dir, false, &ledger, NULL), RT_OK);
    assert_null(ledger);
    ledger = (md_ledger *)1;
    assert_int_equal(md_ledger_open("/nowhere/at/all", true, &ledger, NULL), RT_OK);
    assert_null(ledger);
}

static void a_torn_tail_is_dropped_and_written_over(void **state)
{
    rig *r = *state;
    struct stat info;
    md_ledger *ledger = NULL;
    md_ledger_entry more = entry_of(9);

    for (off_t cut = 1; cut < 64; cut += 9) {
        create_with(r, 10);
        assert_int_equal(stat(r->path, &info), 0);
        assert_int_equal(truncate(r->path, info.st_size - cut), 0);
        assert_int_equal(md_ledger_open(r->dir, false, &ledger, NULL), RT_OK);
        expect_entries(ledger, 9);
        assert_int_equal(md_ledger_append(ledger, &more, 1, NULL), RT_OK);
        md_ledger_close(ledger);
        assert_int_equal(md_ledger_open(r->dir, false, &ledger, NULL), RT_OK);
        expect_entries(ledger, 10);
        assert_int_equal(md_ledger_remove(ledger, NULL), RT_OK);
    }
}

static void what_is_forgotten_does_not_come_back(void **state)
{
    rig *r = *state;
    md_ledger *ledger = NULL;
    md_ledger_entry first = entry_of(0);

    create_with(r, 10);
    assert_int_equal(md_ledger_open(r->dir, false, &ledger, NULL), RT_OK);
    assert_int_equal(md_ledger_forget(ledger, NULL), RT_OK);
    md_ledger_close(ledger);
    assert_int_equal(md_ledger_open(r->dir, false, &ledger, NULL), RT_OK);
    expect_entries(ledger, 0);
    assert_int_equal(md_ledger_append(ledger, &first, 1, NULL), RT_OK);
    assert_int_equal(md_ledger_forget(ledger, NULL), RT_OK);
    assert_int_equal(md_ledger_append(ledger, &first, 1, NULL), RT_OK);
    md_ledger_close(ledger);
    assert_int_equal(md_ledger_open(r->dir, false, &ledger, NULL), RT_OK);
    expect_entries(ledger, 1);
    assert_int_equal(md_ledger_remove(ledger, NULL), RT_OK);
}

static void flip(const char *path, off_t offset)
{
    int fd = open(path, O_RDWR);
    uint8_t byte;

    assert_int_equal(pread(fd, &byte, 1, offset), 1);
    byte ^= 0x10;
    assert_int_equal(pwrite(fd, &byte, 1, offset), 1);
    close(fd);
}

static void any_damaged_byte_of_an_entry_drops_that_entry_alone(void **state)
{
    rig *r = *state;
    struct stat info;
    md_ledger *ledger = NULL;
    uint64_t count = 0;
    const md_ledger_entry *entries;

    create_with(r, 10);
    assert_int_equal(stat(r->path, &info), 0);
    for (off_t byte = 0; byte < 64; byte++) {
        off_t at = info.st_size - 5 * 64 + byte; /* entry 5 */

        flip(r->path, at);
        assert_int_equal(md_ledger_open(r->dir, true, &ledger, NULL), RT_OK);
        entries = md_ledger_entries(ledger, &count);
        assert_int_equal(count, 9);
        assert_int_equal(entries[4].key.layer, 4);
        assert_int_equal(entries[5].key.layer, 6);
        md_ledger_close(ledger);
        flip(r->path, at);
    }
}

static void an_entry_of_another_place_does_not_count(void **state)
{
    rig *r = *state;
    struct stat info;
    md_ledger *ledger = NULL;
    uint8_t bytes[64];
    uint64_t count = 0;
    int fd;

    create_with(r, 10);
    assert_int_equal(stat(r->path, &info), 0);
    fd = open(r->path, O_RDWR);
    assert_int_equal(pread(fd, bytes, 64, info.st_size - 2 * 64), 64);
    assert_int_equal(pwrite(fd, bytes, 64, info.st_size - 64), 64);
    close(fd);
    assert_int_equal(md_ledger_open(r->dir, true, &ledger, NULL), RT_OK);
    (void)md_ledger_entries(ledger, &count);
    assert_int_equal(count, 9);
    md_ledger_close(ledger);
}

static void a_torn_header_is_no_ledger_until_there_are_packs(void **state)
{
    rig *r = *state;
    struct stat info;
    md_ledger *ledger = NULL;
    rt_err err = {0};

    create_with(r, 1);
    assert_int_equal(stat(r->path, &info), 0);
    for (off_t size = 0; size < info.st_size - 64; size += 33) {
        assert_int_equal(truncate(r->path, size), 0);
        assert_int_equal(md_ledger_open(r->dir, false, &ledger, NULL), RT_OK);
        assert_null(ledger);
        create_with(r, 1); /* begins anew over it */
    }
    flip(r->path, 20);
    free(temp_dir_write(r->dir, "dense.bin", "x", 1));
    assert_int_equal(md_ledger_open(r->dir, false, &ledger, &err), RT_EFORMAT);
    assert_non_null(strstr(err.text, "damaged"));
}

static void two_conversions_into_one_target_refuse_each_other(void **state)
{
    rig *r = *state;
    md_ledger *ledger = NULL, *second = NULL;
    rt_err err = {0};

    assert_int_equal(md_ledger_create(r->dir, &r->options, r->source, &ledger, NULL), RT_OK);
    assert_int_equal(md_ledger_open(r->dir, false, &second, &err), RT_EBUSY);
    assert_non_null(strstr(err.text, "another conversion"));
    assert_int_equal(md_ledger_create(r->dir, &r->options, r->source, &second, &err), RT_EBUSY);
    assert_int_equal(md_ledger_open(r->dir, true, &second, NULL), RT_OK); /* --dry-run looks */
    md_ledger_close(second);
    md_ledger_close(ledger);
    /* Free again, but begun: it is to be opened, not created. */
    assert_int_equal(md_ledger_create(r->dir, &r->options, r->source, &second, &err), RT_EBUSY);
    assert_non_null(strstr(err.text, "meanwhile"));
    assert_int_equal(md_ledger_open(r->dir, false, &second, NULL), RT_OK);
    md_ledger_close(second);
}

static void the_option_that_differs_is_named(void **state)
{
    rig *r = *state;
    md_ledger_options asked;
    rt_err err = {0};

    asked = r->options;
    asked.expert_format = KN_F32;
    assert_int_equal(md_ledger_check_options(&r->options, &asked, &err), RT_EINVAL);
    assert_string_equal(err.text, "--experts: the target holds q4, asked f32");
    asked = r->options;
    asked.dense_format = KN_BF16;
    assert_int_equal(md_ledger_check_options(&r->options, &asked, &err), RT_EINVAL);
    assert_string_equal(err.text, "--dense: the target holds q8, asked bf16");
    asked = r->options;
    asked.import = true;
    assert_int_equal(md_ledger_check_options(&r->options, &asked, &err), RT_EINVAL);
    assert_string_equal(err.text, "it was begun by moesaic convert, which alone can finish it");
    r->options.import = true;
    asked.dense_format = KN_Q8F32;
    assert_int_equal(md_ledger_check_options(&r->options, &asked, &err), RT_EINVAL);
    assert_string_equal(err.text, "dense weights: the target holds q8, the source has q8f32");
    r->options.import = false;
    asked = r->options;
    asked.grid_fine = true;
    assert_int_equal(md_ledger_check_options(&r->options, &asked, &err), RT_EINVAL);
    assert_string_equal(err.text, "--grid: the target holds std, asked fine");
    asked = r->options;
    asked.latent_eps = 1e-6f;
    assert_int_equal(md_ledger_check_options(&r->options, &asked, &err), RT_EINVAL);
    assert_string_equal(err.text, "--latent-eps: the target holds 1e-05, asked 1e-06");
    asked = r->options;
    asked.conversion_id = 2;
    assert_int_equal(md_ledger_check_options(&r->options, &asked, &err), RT_EINVAL);
    assert_non_null(strstr(err.text, "conversion id 1"));
    asked = r->options;
    asked.config_hash = 78;
    assert_int_equal(md_ledger_check_options(&r->options, &asked, &err), RT_EINVAL);
    assert_non_null(strstr(err.text, "config.json"));
}

static void a_disk_that_refuses_is_reported(void **state)
{
    rig *r = *state;
    md_ledger *ledger = NULL, *second = NULL;
    md_ledger_entry entry = entry_of(0);
    rt_err err = {0};

    write_error = ENOSPC;
    assert_int_equal(md_ledger_create(r->dir, &r->options, r->source, &ledger, &err), RT_ENOSPACE);
    write_error = 0;
    assert_int_equal(md_ledger_create(r->dir, &r->options, r->source, &ledger, NULL), RT_OK);
    sync_error = EIO;
    assert_int_equal(md_ledger_append(ledger, &entry, 1, &err), RT_EIO);
    assert_non_null(strstr(err.text, MD_LEDGER_NAME));
    sync_error = ENOSPC;
    assert_int_equal(md_ledger_append(ledger, &entry, 1, &err), RT_ENOSPACE);
    sync_error = 0;
    write_error = EIO;
    assert_int_equal(md_ledger_append(ledger, &entry, 1, &err), RT_EIO);
    write_error = 0;
    md_ledger_close(ledger);
    assert_int_equal(md_ledger_create("/nowhere/at/all", &r->options, r->source, &second, &err),
                     RT_EIO);
}

int main(void)
{
#define LEDGER_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        LEDGER_TEST(what_was_appended_is_read_back),
        LEDGER_TEST(what_is_forgotten_does_not_come_back),
        LEDGER_TEST(without_a_file_there_is_no_ledger),
        LEDGER_TEST(a_torn_tail_is_dropped_and_written_over),
        LEDGER_TEST(any_damaged_byte_of_an_entry_drops_that_entry_alone),
        LEDGER_TEST(an_entry_of_another_place_does_not_count),
        LEDGER_TEST(a_torn_header_is_no_ledger_until_there_are_packs),
        LEDGER_TEST(two_conversions_into_one_target_refuse_each_other),
        LEDGER_TEST(the_option_that_differs_is_named),
        LEDGER_TEST(a_disk_that_refuses_is_reported),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
