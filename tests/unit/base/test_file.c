/* test_file.c - whole transfers or an error that names the file; a replacement that never tears. */
/* wrap: pread pwrite fsync malloc */
#include "base/file.h"

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

/* What the wrapped calls do; zero: what they always do. */
static struct {
    size_t piece;   /* longest transfer of one call */
    int interrupts; /* calls that end with EINTR first */
    int error;      /* then this errno */
    bool no_memory;
} plan;

ssize_t __real_pread(int fd, void *data, size_t bytes, off_t offset);
ssize_t __real_pwrite(int fd, const void *data, size_t bytes, off_t offset);
int __real_fsync(int fd);
void *__real_malloc(size_t bytes);
ssize_t __wrap_pread(int fd, void *data, size_t bytes, off_t offset);
ssize_t __wrap_pwrite(int fd, const void *data, size_t bytes, off_t offset);
int __wrap_fsync(int fd);
void *__wrap_malloc(size_t bytes);

static bool planned_failure(size_t *bytes)
{
    if (plan.interrupts > 0) {
        plan.interrupts--;
        errno = EINTR;
        return true;
    }
    if (plan.error != 0) {
        errno = plan.error;
        return true;
    }
    if (plan.piece > 0 && *bytes > plan.piece) *bytes = plan.piece;
    return false;
}

ssize_t __wrap_pread(int fd, void *data, size_t bytes, off_t offset)
{
    return planned_failure(&bytes) ? -1 : __real_pread(fd, data, bytes, offset);
}

ssize_t __wrap_pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
    return planned_failure(&bytes) ? -1 : __real_pwrite(fd, data, bytes, offset);
}

int __wrap_fsync(int fd)
{
    size_t bytes = 0;

    return planned_failure(&bytes) ? -1 : __real_fsync(fd);
}

void *__wrap_malloc(size_t bytes)
{
    return plan.no_memory ? NULL : __real_malloc(bytes);
}

typedef struct {
    char *dir, *path;
    int fd;
} fixture;

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof(*f));

    memset(&plan, 0, sizeof(plan));
    f->dir = temp_dir_make();
    f->path = temp_dir_write(f->dir, "data", "0123456789", 10);
    f->fd = open(f->path, O_RDWR);
    *state = f;
    return f->fd < 0;
}

static int teardown(void **state)
{
    fixture *f = *state;

    memset(&plan, 0, sizeof(plan));
    close(f->fd);
    free(f->path);
    temp_dir_remove(f->dir);
    free(f);
    return 0;
}

static void read_gives_all_bytes_and_a_zero(void **state)
{
    fixture *f = *state;
    char *text = NULL;
    size_t bytes = 0;

    assert_int_equal(rt_file_read(f->path, 10, &text, &bytes, NULL), RT_OK);
    assert_int_equal(bytes, 10);
    assert_string_equal(text, "0123456789");
    free(text);
}

static void read_takes_empty_files_and_files_without_a_size(void **state)
{
    fixture *f = *state;
    char *empty = temp_dir_write(f->dir, "empty", "", 0), *text = NULL;
    size_t bytes = 1;

    assert_int_equal(rt_file_read(empty, 0, &text, &bytes, NULL), RT_OK);
    assert_int_equal(bytes, 0);
    assert_string_equal(text, "");
    free(text);
    free(empty);
    assert_int_equal(rt_file_read("/proc/self/status", 1 << 16, &text, &bytes, NULL), RT_OK);
    assert_true(bytes > 100 && strlen(text) == bytes);
    free(text);
}

static void read_refuses_more_than_the_limit(void **state)
{
    fixture *f = *state;
    char *text = NULL;
    size_t bytes = 0;
    rt_err err;

    assert_int_equal(rt_file_read(f->path, 9, &text, &bytes, &err), RT_EFORMAT);
    assert_non_null(strstr(err.text, "at most 9 bytes, found 10"));
    assert_non_null(strstr(err.text, f->path));
    assert_int_equal(rt_file_read("/proc/self/status", 9, &text, &bytes, &err), RT_EFORMAT);
    assert_null(text);
}

static void read_refuses_what_is_no_regular_file(void **state)
{
    fixture *f = *state;
    char *text = NULL, *fifo = rt_path_join(f->dir, "fifo");
    size_t bytes = 0;
    rt_err err;

    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(rt_file_read(f->dir, 100, &text, &bytes, &err), RT_EFORMAT);
    assert_int_equal(rt_file_read(fifo, 100, &text, &bytes, &err), RT_EFORMAT);
    assert_non_null(strstr(err.text, "expected a regular file"));
    assert_null(text);
    free(fifo);
}

static void read_names_a_missing_file(void **state)
{
    char *text = NULL;
    size_t bytes = 0;
    rt_err err;

    (void)state;
    assert_int_equal(rt_file_read("no/such/file", 100, &text, &bytes, &err), RT_EIO);
    assert_string_equal(err.text, "open no/such/file: No such file or directory");
}

static void read_reports_missing_memory(void **state)
{
    fixture *f = *state;
    char *text = NULL;
    size_t bytes = 0;

    plan.no_memory = true;
    assert_int_equal(rt_file_read(f->path, 100, &text, &bytes, NULL), RT_ENOMEM);
    assert_null(text);
}

static void expect_content(const char *path, const char *expected)
{
    char *text = NULL;
    size_t bytes = 0;

    assert_int_equal(rt_file_read(path, 1 << 20, &text, &bytes, NULL), RT_OK);
    assert_string_equal(text, expected);
    free(text);
}

static void replace_makes_and_overwrites(void **state)
{
    fixture *f = *state;
    char *fresh = rt_path_join(f->dir, "fresh"), *tmp = rt_path_join(f->dir, "fresh.tmp");

    assert_int_equal(rt_file_replace(fresh, "one", 3, NULL), RT_OK);
    expect_content(fresh, "one");
    assert_int_equal(rt_file_replace(fresh, "", 0, NULL), RT_OK);
    expect_content(fresh, "");
    assert_int_not_equal(access(tmp, F_OK), 0);
    free(fresh);
    free(tmp);
}

static void failed_replace_leaves_the_old_file_and_no_other(void **state)
{
    fixture *f = *state;
    char *tmp = rt_path_join(f->dir, "data.tmp");
    rt_err err;

    plan.error = ENOSPC;
    assert_int_equal(rt_file_replace(f->path, "new", 3, &err), RT_ENOSPACE);
    assert_non_null(strstr(err.text, "data.tmp: No space left"));
    plan.error = EIO;
    assert_int_equal(rt_file_replace(f->path, "new", 3, &err), RT_EIO);
    plan.error = 0;
    expect_content(f->path, "0123456789");
    assert_int_not_equal(access(tmp, F_OK), 0);
    assert_int_equal(rt_file_replace("no/such/dir/x", "new", 3, &err), RT_EIO);
    plan.no_memory = true;
    assert_int_equal(rt_file_replace(f->path, "new", 3, NULL), RT_ENOMEM);
    free(tmp);
}

static void pread_joins_short_reads_and_interrupts(void **state)
{
    fixture *f = *state;
    char data[9] = "";

    plan.piece = 3;
    plan.interrupts = 2;
    assert_int_equal(rt_pread_full(f->fd, data, 8, 1, "data", NULL), RT_OK);
    assert_string_equal(data, "12345678");
}

static void pread_reports_short_files_errors_and_wild_offsets(void **state)
{
    fixture *f = *state;
    char data[16];
    rt_err err;

    assert_int_equal(rt_pread_full(f->fd, data, 8, 4, "record 5", &err), RT_EIO);
    assert_string_equal(err.text, "read record 5 at 4: expected 8 bytes, found 6");
    assert_int_equal(rt_pread_full(f->fd, data, 8, UINT64_MAX, "record 5", &err), RT_EIO);
    assert_int_equal(rt_pread_full(f->fd, data, 8, INT64_MAX - 3, "record 5", &err), RT_EIO);
    assert_non_null(strstr(err.text, "beyond any file"));
    plan.error = EIO;
    assert_int_equal(rt_pread_full(f->fd, data, 8, 0, "record 5", &err), RT_EIO);
    assert_non_null(strstr(err.text, "Input/output error"));
}

static void pwrite_joins_short_writes_and_interrupts(void **state)
{
    fixture *f = *state;

    plan.piece = 2;
    plan.interrupts = 1;
    assert_int_equal(rt_pwrite_full(f->fd, "abcde", 5, 8, "data", NULL), RT_OK);
    expect_content(f->path, "01234567abcde");
}

static void pwrite_tells_a_full_disk_from_a_broken_one(void **state)
{
    fixture *f = *state;
    rt_err err;

    plan.error = ENOSPC;
    assert_int_equal(rt_pwrite_full(f->fd, "a", 1, 0, "pack", &err), RT_ENOSPACE);
    plan.error = EDQUOT;
    assert_int_equal(rt_pwrite_full(f->fd, "a", 1, 0, "pack", &err), RT_ENOSPACE);
    plan.error = EIO;
    assert_int_equal(rt_pwrite_full(f->fd, "a", 1, 0, "pack", &err), RT_EIO);
    assert_string_equal(err.text, "write pack at 0: Input/output error");
    plan.error = 0;
    assert_int_equal(rt_pwrite_full(f->fd, "a", 1, UINT64_MAX, "pack", &err), RT_EIO);
}

static void dir_sync_wants_a_folder(void **state)
{
    fixture *f = *state;
    rt_err err;

    assert_int_equal(rt_dir_sync(f->dir, NULL), RT_OK);
    assert_int_equal(rt_dir_sync(f->path, &err), RT_EIO);
    plan.error = EINVAL; /* a file system that cannot: nothing to report */
    assert_int_equal(rt_dir_sync(f->dir, NULL), RT_OK);
    plan.error = EIO;
    assert_int_equal(rt_dir_sync(f->dir, &err), RT_EIO);
}

static void path_join_puts_one_slash(void **state)
{
    static const char *const cases[][3] = {
        {"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"/", "b", "/b"}, {"", "b", "b"}};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char *path = rt_path_join(cases[i][0], cases[i][1]);

        assert_string_equal(path, cases[i][2]);
        free(path);
    }
    plan.no_memory = true;
    assert_null(rt_path_join("a", "b"));
}

static void path_parent_is_the_folder_of_a_path(void **state)
{
    static const char *const cases[][2] = {{"a", "."}, {"a/", "."},  {"a/b", "a"}, {"a/b//", "a"},
                                           {"/", "/"}, {"/a/", "/"}, {"", "."},    {"../a", ".."}};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char *parent = rt_path_parent(cases[i][0]);

        assert_string_equal(parent, cases[i][1]);
        free(parent);
    }
}

#define FILE_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        FILE_TEST(read_gives_all_bytes_and_a_zero),
        FILE_TEST(read_takes_empty_files_and_files_without_a_size),
        FILE_TEST(read_refuses_more_than_the_limit),
        FILE_TEST(read_refuses_what_is_no_regular_file),
        FILE_TEST(read_names_a_missing_file),
        FILE_TEST(read_reports_missing_memory),
        FILE_TEST(replace_makes_and_overwrites),
        FILE_TEST(failed_replace_leaves_the_old_file_and_no_other),
        FILE_TEST(pread_joins_short_reads_and_interrupts),
        FILE_TEST(pread_reports_short_files_errors_and_wild_offsets),
        FILE_TEST(pwrite_joins_short_writes_and_interrupts),
        FILE_TEST(pwrite_tells_a_full_disk_from_a_broken_one),
        FILE_TEST(dir_sync_wants_a_folder),
        FILE_TEST(path_join_puts_one_slash),
        FILE_TEST(path_parent_is_the_folder_of_a_path),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
