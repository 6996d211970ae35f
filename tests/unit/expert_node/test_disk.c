/* test_disk.c - one record from a file, with and without O_DIRECT. */
/* wrap: pread */
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

/* What the direct descriptor does, call by call; buffered reads pass. */
typedef struct {
    int fd;         /* of which reads are played; 0: none */
    int error[4];   /* errno of a call, 0: none */
    size_t most[4]; /* bytes a call gives at most, 0: all */
    int calls;
} script;

static script play;
static en_disk_ops real;

ssize_t __real_pread(int fd, void *data, size_t bytes, off_t offset);
ssize_t __wrap_pread(int fd, void *data, size_t bytes, off_t offset);

ssize_t __wrap_pread(int fd, void *data, size_t bytes, off_t offset)
{
    int call;

    if (play.fd == 0 || fd != play.fd) return __real_pread(fd, data, bytes, offset);
    call = play.calls++;
    if (call < 4 && play.error[call] != 0) {
        errno = play.error[call];
        return -1;
    }
    if (call < 4 && play.most[call] != 0 && play.most[call] < bytes) bytes = play.most[call];
    return __real_pread(fd, data, bytes, offset);
}

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
        atomic_bool flag = buffered != 0;
        memset(f.out, 0xee, 8 * 4096);
        assert_int_equal(en_disk_read(&real, &record, f.out, &flag, &err), RT_OK);
        assert_memory_equal(f.out, f.bytes + RECORD_OFFSET, record.bytes);
    }
    unmake(&f, &record);
}

static void a_record_that_ends_with_the_file_is_read_whole(void **state)
{
    static fixture f;
    md_record record;
    rt_err err = {RT_OK, ""};
    atomic_bool buffered = false;

    (void)state;
    make(&f);
    record = record_at(&f, RECORD_OFFSET, FILE_BYTES - RECORD_OFFSET);
    assert_int_equal(en_disk_bytes(&record), 5 * 4096);
    assert_int_equal(en_disk_read(&real, &record, f.out, &buffered, &err), RT_OK);
    assert_memory_equal(f.out, f.bytes + RECORD_OFFSET, record.bytes);
    unmake(&f, &record);
}

/* Reads the record with the direct descriptor played by `wanted` on an ordinary one. */
static rt_status read_played(const fixture *f, script wanted, atomic_bool *buffered, rt_err *err)
{
    md_record record = record_at(f, RECORD_OFFSET, 3 * 4096);
    rt_status status;

    if (record.fd_direct >= 0) close(record.fd_direct);
    record.fd_direct = open(f->path, O_RDONLY | O_CLOEXEC);
    assert_true(record.fd_direct > 0);
    play = wanted;
    play.fd = record.fd_direct;
    memset(f->out, 0xee, 8 * 4096);
    status = en_disk_read(&real, &record, f->out, buffered, err);
    play.fd = 0;
    if (status == RT_OK) assert_memory_equal(f->out, f->bytes + RECORD_OFFSET, record.bytes);
    close(record.fd);
    close(record.fd_direct);
    return status;
}

static void a_refused_direct_read_falls_back_for_good(void **state)
{
    static const int refusals[] = {EINVAL, EOPNOTSUPP};
    static fixture f;
    rt_err err = {RT_OK, ""};

    (void)state;
    make(&f);
    for (int i = 0; i < 2; i++) {
        atomic_bool buffered = false;
        assert_int_equal(read_played(&f, (script){.error = {refusals[i]}}, &buffered, &err), RT_OK);
        assert_true(buffered);
        assert_int_equal(play.calls, 1);
        assert_int_equal(read_played(&f, (script){.error = {refusals[i]}}, &buffered, &err), RT_OK);
        assert_int_equal(play.calls, 0); /* not asked again */
    }
    unmake(&f, &(md_record){.fd = -1, .fd_direct = -1});
}

static void interrupted_and_short_direct_reads_go_on(void **state)
{
    static fixture f;
    rt_err err = {RT_OK, ""};
    atomic_bool buffered = false;

    (void)state;
    make(&f);
    assert_int_equal(
        read_played(&f, (script){.error = {EINTR, 0, EINTR}, .most = {0, 4096}}, &buffered, &err),
        RT_OK);
    assert_int_equal(play.calls, 4);
    assert_false(buffered);
    /* A part that ends unaligned cannot go on directly. */
    assert_int_equal(read_played(&f, (script){.most = {4096 + 10}}, &buffered, &err), RT_OK);
    assert_int_equal(play.calls, 1);
    assert_true(buffered);
    unmake(&f, &(md_record){.fd = -1, .fd_direct = -1});
}

static void without_a_direct_descriptor_the_read_is_buffered(void **state)
{
    static fixture f;
    md_record record;
    rt_err err = {RT_OK, ""};
    atomic_bool buffered = false;

    (void)state;
    make(&f);
    record = record_at(&f, RECORD_OFFSET, 4096);
    if (record.fd_direct >= 0) close(record.fd_direct);
    record.fd_direct = -1;
    assert_int_equal(en_disk_read(&real, &record, f.out, &buffered, &err), RT_OK);
    assert_memory_equal(f.out, f.bytes + RECORD_OFFSET, record.bytes);
    unmake(&f, &record);
}

static void a_failing_device_is_a_read_error_with_its_reason(void **state)
{
    static fixture f;
    rt_err err = {RT_OK, ""};
    atomic_bool buffered = false;

    (void)state;
    make(&f);
    assert_int_equal(read_played(&f, (script){.most = {4096}, .error = {0, EIO}}, &buffered, &err),
                     RT_EIO);
    assert_non_null(strstr(err.text, "experts-001.bin"));
    assert_non_null(strstr(err.text, "layer 1 expert 9"));
    assert_non_null(strstr(err.text, strerror(EIO)));
    assert_false(buffered);
    unmake(&f, &(md_record){.fd = -1, .fd_direct = -1});
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
        atomic_bool buffered = i != 0;
        err = (rt_err){RT_OK, ""};
        assert_int_equal(en_disk_read(&real, &record, f.out, &buffered, &err), RT_EFORMAT);
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
        atomic_bool buffered = i != 0;
        record.bytes = 6 * 4096;
        err = (rt_err){RT_OK, ""};
        assert_int_equal(en_disk_read(&real, &record, f.out, &buffered, &err), RT_EIO);
    }
    close(record.fd);
    record.fd = -1;
    for (int i = 0; i < 2; i++) {
        atomic_bool buffered = i != 0;
        err = (rt_err){RT_OK, ""};
        assert_int_equal(en_disk_read(&real, &record, f.out, &buffered, &err), RT_EIO);
        assert_non_null(strstr(err.text, "layer 1 expert 9"));
    }
    unmake(&f, &record);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_ways_read_the_same_bytes),
        cmocka_unit_test(a_record_that_ends_with_the_file_is_read_whole),
        cmocka_unit_test(a_refused_direct_read_falls_back_for_good),
        cmocka_unit_test(interrupted_and_short_direct_reads_go_on),
        cmocka_unit_test(without_a_direct_descriptor_the_read_is_buffered),
        cmocka_unit_test(a_failing_device_is_a_read_error_with_its_reason),
        cmocka_unit_test(other_bytes_than_the_manifests_are_refused_both_ways),
        cmocka_unit_test(a_record_past_the_end_or_not_held_is_a_read_error),
    };

    real = en_disk_real();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
