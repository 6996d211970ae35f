/* test_pack.c - packs are written in any order and finished last; what fails is an error. */
/* wrap: calloc malloc ftruncate fdatasync fsync */
#include "model/container/pack.h"

#include "base/file.h"
#include "tests/support/pack_fixture.h"
#include "tests/support/temp_dir.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* Which of the wrapped calls fails next: 1 is the next one, 0 none. */
static struct {
    int allocation;
    int truncate_errno, sync_errno;
} plan;

void *__real_calloc(size_t count, size_t size);
void *__real_malloc(size_t bytes);
int __real_ftruncate(int fd, off_t length);
int __real_fdatasync(int fd);
int __real_fsync(int fd);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_malloc(size_t bytes);
int __wrap_ftruncate(int fd, off_t length);
int __wrap_fdatasync(int fd);
int __wrap_fsync(int fd);

static bool allocation_fails(void)
{
    return plan.allocation > 0 && --plan.allocation == 0;
}

void *__wrap_calloc(size_t count, size_t size)
{
    return allocation_fails() ? NULL : __real_calloc(count, size);
}

void *__wrap_malloc(size_t bytes)
{
    return allocation_fails() ? NULL : __real_malloc(bytes);
}

static int fail_with(int error)
{
    errno = error;
    return -1;
}

int __wrap_ftruncate(int fd, off_t length)
{
    return plan.truncate_errno != 0 ? fail_with(plan.truncate_errno) : __real_ftruncate(fd, length);
}

int __wrap_fdatasync(int fd)
{
    return plan.sync_errno != 0 ? fail_with(plan.sync_errno) : __real_fdatasync(fd);
}

int __wrap_fsync(int fd)
{
    return plan.sync_errno != 0 ? fail_with(plan.sync_errno) : __real_fsync(fd);
}

/* A fixture, and no call that fails. */
static void setup(pack_fixture *f)
{
    memset(&plan, 0, sizeof(plan));
    pack_fixture_make(f);
}

static void layout_sorts_and_aligns(void **state)
{
    pack_fixture f;

    (void)state;
    setup(&f);
    assert_int_equal(f.entries[0].key.index, 2);
    assert_int_equal(f.entries[0].offset, 4096);
    assert_int_equal(f.entries[1].key.index, 4);
    assert_int_equal(f.entries[1].offset, 8192);
    assert_int_equal(f.entries[2].key.index, 9);
    assert_int_equal(f.entries[2].offset, 12288);
    assert_int_equal(f.file_bytes, 12288 + 8192);
    assert_int_equal(md_pack_layout(NULL, 0), 4096);
    temp_dir_remove(f.dir);
}

static void finished_pack_gives_its_records_back(void **state)
{
    md_pack *pack = NULL;
    pack_fixture f;
    rt_err err;

    (void)state;
    setup(&f);
    pack_fixture_write_finished(&f);
    assert_int_equal(md_pack_open(f.path, &pack, &err), RT_OK);
    assert_int_equal(md_pack_count(pack), PACK_FIXTURE_RECORDS);
    assert_memory_equal(md_pack_entries(pack), f.entries, sizeof(f.entries));
    assert_string_equal(md_pack_path(pack), f.path);
    for (int i = 0; i < PACK_FIXTURE_RECORDS; i++) {
        char expected[5000], found[5000];

        pack_fixture_fill(expected, &f.entries[i]);
        assert_int_equal(rt_pread_full(md_pack_fd(pack), found, f.entries[i].bytes,
                                       f.entries[i].offset, "record", &err),
                         RT_OK);
        assert_memory_equal(found, expected, f.entries[i].bytes);
    }
    md_pack_close(pack);
    md_pack_close(NULL);
    temp_dir_remove(f.dir);
}

static void direct_descriptor_reads_the_same_bytes_where_there_is_one(void **state)
{
    md_pack *pack = NULL;
    pack_fixture f;
    rt_err err;
    char *direct;

    (void)state;
    setup(&f);
    pack_fixture_write_finished(&f);
    assert_int_equal(md_pack_open(f.path, &pack, &err), RT_OK);
    direct = aligned_alloc(4096, 8192);
    assert_non_null(direct);
    if (md_pack_fd_direct(pack) >= 0 &&
        pread(md_pack_fd_direct(pack), direct, 8192, (off_t)f.entries[2].offset) == 8192) {
        char expected[5000];

        pack_fixture_fill(expected, &f.entries[2]);
        assert_memory_equal(direct, expected, sizeof(expected));
    }
    free(direct);
    md_pack_close(pack);
    temp_dir_remove(f.dir);
}

static void hash_is_read_back_from_the_file(void **state)
{
    md_pack_writer *pack;
    md_hash128 hash = {0, 0};
    pack_fixture f;
    rt_err err;

    (void)state;
    setup(&f);
    pack = pack_fixture_create(&f);
    pack_fixture_write_all(&f, pack);
    assert_int_equal(md_pack_sync(pack, &err), RT_OK);
    for (int i = 0; i < PACK_FIXTURE_RECORDS; i++) {
        assert_int_equal(md_pack_hash(pack, &f.entries[i], &hash, &err), RT_OK);
        assert_memory_equal(&hash, &f.entries[i].hash, sizeof(hash));
    }
    assert_int_equal(md_pack_write(pack, &f.entries[0], 100, "x", 1, &err), RT_OK);
    assert_int_equal(md_pack_hash(pack, &f.entries[0], &hash, &err), RT_OK);
    assert_memory_not_equal(&hash, &f.entries[0].hash, sizeof(hash));
    md_pack_writer_free(pack);
    temp_dir_remove(f.dir);
}

static void unfinished_pack_is_not_opened(void **state)
{
    md_pack_writer *pack;
    pack_fixture f;
    rt_err err;

    (void)state;
    setup(&f);
    pack = pack_fixture_create(&f);
    pack_fixture_write_all(&f, pack);
    md_pack_writer_free(pack);
    assert_int_equal(pack_fixture_try(f.path, &err), RT_EFORMAT);
    assert_non_null(strstr(err.text, "finished"));
    assert_non_null(strstr(err.text, f.path));
    temp_dir_remove(f.dir);
}

static void interrupted_pack_is_continued(void **state)
{
    md_pack_writer *pack;
    struct stat info;
    size_t bytes = 0, bytes_again = 0;
    char *whole, *again;
    pack_fixture f;
    rt_err err;

    (void)state;
    setup(&f);
    pack_fixture_write_finished(&f);
    whole = pack_fixture_read_back(&f, &bytes);
    /* Reopening takes the header away, so that half-rewritten records are never read. */
    pack = pack_fixture_create(&f);
    assert_int_equal(pack_fixture_try(f.path, &err), RT_EFORMAT);
    md_pack_writer_free(pack);
    pack = pack_fixture_create(&f);
    pack_fixture_write_all(&f, pack);
    assert_int_equal(md_pack_finish(pack, &err), RT_OK);
    md_pack_writer_free(pack);
    again = pack_fixture_read_back(&f, &bytes_again);
    assert_int_equal(bytes, bytes_again);
    assert_memory_equal(whole, again, bytes);
    assert_int_equal(stat(f.path, &info), 0);
    free(again);
    free(whole);
    temp_dir_remove(f.dir);
}

static void file_of_another_size_gets_its_size_and_loses_its_header(void **state)
{
    static const off_t sizes[] = {5, 4096, 1 << 20};
    pack_fixture f;
    rt_err err;

    (void)state;
    setup(&f);
    pack_fixture_write_finished(&f);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct stat info;

        assert_int_equal(truncate(f.path, sizes[i]), 0);
        md_pack_writer_free(pack_fixture_create(&f));
        assert_int_equal(stat(f.path, &info), 0);
        assert_int_equal(info.st_size, f.file_bytes);
        assert_int_equal(pack_fixture_try(f.path, &err), RT_EFORMAT);
    }
    temp_dir_remove(f.dir);
}

static void looking_changes_nothing_and_reads_what_is_there(void **state)
{
    md_pack_writer *pack = NULL;
    md_hash128 hash = {0};
    struct stat info;
    pack_fixture f;
    rt_err err = {0};

    (void)state;
    setup(&f);
    assert_int_equal(md_pack_look(f.path, f.entries, PACK_FIXTURE_RECORDS, &pack, &err), RT_OK);
    assert_null(pack);
    assert_int_not_equal(stat(f.path, &info), 0);
    pack_fixture_write_finished(&f);
    assert_int_equal(truncate(f.path, (off_t)f.entries[PACK_FIXTURE_RECORDS - 1].offset), 0);
    assert_int_equal(md_pack_look(f.path, f.entries, PACK_FIXTURE_RECORDS, &pack, &err), RT_OK);
    assert_non_null(pack);
    for (int i = 0; i < PACK_FIXTURE_RECORDS - 1; i++) {
        assert_int_equal(md_pack_hash(pack, &f.entries[i], &hash, &err), RT_OK);
        assert_memory_equal(&hash, &f.entries[i].hash, sizeof(hash));
    }
    assert_int_equal(md_pack_hash(pack, &f.entries[PACK_FIXTURE_RECORDS - 1], &hash, &err), RT_EIO);
    md_pack_writer_free(pack);
    assert_int_equal(stat(f.path, &info), 0);
    assert_int_equal(info.st_size, f.entries[PACK_FIXTURE_RECORDS - 1].offset);
    assert_int_equal(md_pack_look(f.dir, f.entries, PACK_FIXTURE_RECORDS, &pack, &err), RT_EIO);
    assert_non_null(strstr(err.text, "regular file"));
    temp_dir_remove(f.dir);
}

static void create_names_what_it_cannot_make(void **state)
{
    md_pack_writer *pack = NULL;
    pack_fixture f;
    rt_err err;

    (void)state;
    setup(&f);
    assert_int_equal(
        md_pack_create("/nonexistent/x.bin", f.entries, PACK_FIXTURE_RECORDS, &pack, &err), RT_EIO);
    assert_non_null(strstr(err.text, "/nonexistent/x.bin"));
    assert_int_equal(md_pack_create(f.dir, f.entries, PACK_FIXTURE_RECORDS, &pack, &err), RT_EIO);
    plan.truncate_errno = ENOSPC;
    assert_int_equal(md_pack_create(f.path, f.entries, PACK_FIXTURE_RECORDS, &pack, &err),
                     RT_ENOSPACE);
    assert_non_null(strstr(err.text, f.path));
    plan.truncate_errno = EIO;
    assert_int_equal(md_pack_create(f.path, f.entries, PACK_FIXTURE_RECORDS, &pack, &err), RT_EIO);
    plan.truncate_errno = 0;
    assert_null(pack);
    temp_dir_remove(f.dir);
}

static void failed_sync_is_an_error(void **state)
{
    md_pack_writer *pack;
    pack_fixture f;
    rt_err err;

    (void)state;
    setup(&f);
    pack = pack_fixture_create(&f);
    pack_fixture_write_all(&f, pack);
    plan.sync_errno = EIO;
    assert_int_equal(md_pack_sync(pack, &err), RT_EIO);
    assert_int_equal(md_pack_finish(pack, &err), RT_EIO);
    plan.sync_errno = ENOSPC;
    assert_int_equal(md_pack_sync(pack, &err), RT_ENOSPACE);
    plan.sync_errno = 0;
    md_pack_writer_free(pack);
    assert_int_equal(pack_fixture_try(f.path, &err), RT_EFORMAT);
    temp_dir_remove(f.dir);
}

static void failed_allocations_are_errors(void **state)
{
    md_pack_writer *writer = NULL;
    md_pack *pack = NULL;
    md_hash128 hash;
    pack_fixture f;
    rt_err err;

    (void)state;
    setup(&f);
    pack_fixture_write_finished(&f);
    plan.allocation = 1;
    assert_int_equal(md_pack_create(f.path, f.entries, PACK_FIXTURE_RECORDS, &writer, &err),
                     RT_ENOMEM);
    for (int i = 1; i <= 2; i++) {
        plan.allocation = i;
        assert_int_equal(md_pack_open(f.path, &pack, &err), RT_ENOMEM);
    }
    plan.allocation = 0;
    writer = pack_fixture_create(&f);
    plan.allocation = 1;
    assert_int_equal(md_pack_hash(writer, &f.entries[0], &hash, &err), RT_ENOMEM);
    plan.allocation = 0;
    md_pack_writer_free(writer);
    temp_dir_remove(f.dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layout_sorts_and_aligns),
        cmocka_unit_test(finished_pack_gives_its_records_back),
        cmocka_unit_test(direct_descriptor_reads_the_same_bytes_where_there_is_one),
        cmocka_unit_test(hash_is_read_back_from_the_file),
        cmocka_unit_test(unfinished_pack_is_not_opened),
        cmocka_unit_test(interrupted_pack_is_continued),
        cmocka_unit_test(file_of_another_size_gets_its_size_and_loses_its_header),
        cmocka_unit_test(looking_changes_nothing_and_reads_what_is_there),
        cmocka_unit_test(create_names_what_it_cannot_make),
        cmocka_unit_test(failed_sync_is_an_error),
        cmocka_unit_test(failed_allocations_are_errors),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
