/* test_disk.c - one record from a file, with and without O_DIRECT. */
#include "expert_node/disk.h"

#include "tests/support/temp_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { FILE_BYTES = 5 * 4096 + 1000, RECORD_OFFSET = 4096 };

typedef struct {
    char *dir, *path;
    uint8_t bytes[FILE_BYTES];
    uint8_t *out; /* 4 KiB aligned [8 * 4096] */
} fixture;

static void make(fixture *f)
{
    uint32_t x = 1;

    for (size_t i = 0; i < sizeof(f->bytes); i++) {
        x = x * 1664525u + 1013904223u;
        f->bytes[i] = (uint8_t)(x >> 24);
    }
    f->dir = temp_dir_make();
    f->path = temp_dir_write(f->dir, "experts-001.bin", f->bytes, sizeof(f->bytes));
    f->out = aligned_alloc(4096, 8 * 4096);
    assert_non_null(f->out);
}

static void unmake(fixture *f, const md_record *record)
{
    if (record->fd >= 0) close(record->fd);
    if (record->fd_direct >= 0) close(record->fd_direct);
    free(f->out);
    free(f->path);
    temp_dir_remove(f->dir);
}

static md_record record_at(const fixture *f, uint64_t offset, uint64_t bytes)
{
    md_record record = {.key = {1, MD_EXPERT, 9}, .bytes = bytes, .offset = offset};

    record.pack = f->path;
    record.hash = md_hash_bytes(f->bytes + offset, bytes);
    record.fd = open(f->path, O_RDONLY | O_CLOEXEC);
    record.fd_direct = open(f->path, O_RDONLY | O_DIRECT | O_CLOEXEC); /* -1 on some filesystems */
    assert_true(record.fd >= 0);
    return record;
}

static void both_ways_read_the_same_bytes(void **state)
{
    static fixture f;
    md_record record;
    rt_err err = {RT_OK, ""};

    (void)state;
    make(&f);
    record = record_at(&f, RECORD_OFFSET, 3 * 4096);
    for (int buffered = 0; buffered < 2; buffered++) {
        bool flag = buffered != 0;
        memset(f.out, 0xee, 8 * 4096);
        assert_int_equal(en_disk_read(&record, f.out, &flag, &err), RT_OK);
        assert_memory_equal(f.out, f.bytes + RECORD_OFFSET, record.bytes);
    }
    unmake(&f, &record);
}

static void a_record_that_ends_with_the_file_is_read_whole(void **state)
{
    static fixture f;
    md_record record;
    rt_err err = {RT_OK, ""};
    bool buffered = false;

    (void)state;
    make(&f);
    record = record_at(&f, RECORD_OFFSET, FILE_BYTES - RECORD_OFFSET);
    assert_int_equal(en_disk_bytes(&record), 5 * 4096);
    assert_int_equal(en_disk_read(&record, f.out, &buffered, &err), RT_OK);
    assert_memory_equal(f.out, f.bytes + RECORD_OFFSET, record.bytes);
    unmake(&f, &record);
}

static void a_refused_direct_read_falls_back_and_says_so(void **state)
{
    static fixture f;
    md_record record;
    rt_err err = {RT_OK, ""};
    bool buffered = false, refused;

    (void)state;
    make(&f);
    record = record_at(&f, 100, 2 * 4096); /* not aligned: what O_DIRECT refuses */
    refused =
        record.fd_direct >= 0 && pread(record.fd_direct, f.out, 4096, 100) < 0 && errno == EINVAL;
    assert_int_equal(en_disk_read(&record, f.out, &buffered, &err), RT_OK);
    assert_memory_equal(f.out, f.bytes + 100, record.bytes);
    assert_int_equal(buffered, refused);
    unmake(&f, &record);
}

static void without_a_direct_descriptor_the_read_is_buffered(void **state)
{
    static fixture f;
    md_record record;
    rt_err err = {RT_OK, ""};
    bool buffered = false;

    (void)state;
    make(&f);
    record = record_at(&f, RECORD_OFFSET, 4096);
    if (record.fd_direct >= 0) close(record.fd_direct);
    record.fd_direct = -1;
    assert_int_equal(en_disk_read(&record, f.out, &buffered, &err), RT_OK);
    assert_memory_equal(f.out, f.bytes + RECORD_OFFSET, record.bytes);
    unmake(&f, &record);
}

static void a_failing_device_is_a_read_error_with_its_reason(void **state)
{
    static fixture f;
    md_record record;
    rt_err err = {RT_OK, ""};
    bool buffered = false;

    (void)state;
    make(&f);
    record = record_at(&f, RECORD_OFFSET, 4096);
    if (record.fd_direct >= 0) close(record.fd_direct);
    record.fd_direct = open(f.path, O_WRONLY | O_CLOEXEC); /* every read fails: EBADF */
    assert_true(record.fd_direct >= 0);
    assert_int_equal(en_disk_read(&record, f.out, &buffered, &err), RT_EIO);
    assert_non_null(strstr(err.text, "experts-001.bin"));
    assert_non_null(strstr(err.text, "layer 1 expert 9"));
    assert_non_null(strstr(err.text, strerror(EBADF)));
    assert_false(buffered);
    unmake(&f, &record);
}

static void other_bytes_than_the_manifests_are_refused_both_ways(void **state)
{
    static fixture f;
    md_record record;
    rt_err err;

    (void)state;
    make(&f);
    record = record_at(&f, RECORD_OFFSET, 2 * 4096);
    record.hash.low ^= 1;
    for (int i = 0; i < 2; i++) {
        bool buffered = i != 0;
        err = (rt_err){RT_OK, ""};
        assert_int_equal(en_disk_read(&record, f.out, &buffered, &err), RT_EFORMAT);
        assert_non_null(strstr(err.text, "experts-001.bin"));
        assert_non_null(strstr(err.text, "layer 1 expert 9"));
    }
    unmake(&f, &record);
}

static void a_record_past_the_end_or_not_held_is_a_read_error(void **state)
{
    static fixture f;
    md_record record;
    rt_err err = {RT_OK, ""};

    (void)state;
    make(&f);
    record = record_at(&f, RECORD_OFFSET, 4096);
    for (int i = 0; i < 2; i++) {
        bool buffered = i != 0;
        record.bytes = 6 * 4096;
        err = (rt_err){RT_OK, ""};
        assert_int_equal(en_disk_read(&record, f.out, &buffered, &err), RT_EIO);
    }
    close(record.fd);
    record.fd = -1;
    for (int i = 0; i < 2; i++) {
        bool buffered = i != 0;
        err = (rt_err){RT_OK, ""};
        assert_int_equal(en_disk_read(&record, f.out, &buffered, &err), RT_EIO);
        assert_non_null(strstr(err.text, "layer 1 expert 9"));
    }
    unmake(&f, &record);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_ways_read_the_same_bytes),
        cmocka_unit_test(a_record_that_ends_with_the_file_is_read_whole),
        cmocka_unit_test(a_refused_direct_read_falls_back_and_says_so),
        cmocka_unit_test(without_a_direct_descriptor_the_read_is_buffered),
        cmocka_unit_test(a_failing_device_is_a_read_error_with_its_reason),
        cmocka_unit_test(other_bytes_than_the_manifests_are_refused_both_ways),
        cmocka_unit_test(a_record_past_the_end_or_not_held_is_a_read_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
