/* test_pack.c - packs are written in any order, finished last, and nothing damaged is opened. */
/* wrap: calloc malloc ftruncate fdatasync fsync */
#include "model/container/pack.h"

#include "base/file.h"
#include "model/container/container.h"
#include "model/container/file_header.h"
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

enum { RECORDS = 3 };

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

typedef struct {
    char *dir, path[512];
    md_pack_entry entries[RECORDS];
    uint64_t file_bytes;
} fixture;

/* Unsorted on purpose. */
static void setup(fixture *f)
{
    memset(&plan, 0, sizeof(plan));
    f->dir = temp_dir_make();
    (void)snprintf(f->path, sizeof(f->path), "%s/experts-007.bin", f->dir);
    f->entries[0] = (md_pack_entry){.key = {7, MD_EXPERT, 9}, .bytes = 5000};
    f->entries[1] = (md_pack_entry){.key = {7, MD_EXPERT, 2}, .bytes = 4096};
    f->entries[2] = (md_pack_entry){.key = {7, MD_EXPERT, 4}, .bytes = 3};
    f->file_bytes = md_pack_layout(f->entries, RECORDS);
}

static void fill(char *data, const md_pack_entry *entry)
{
    for (uint64_t i = 0; i < entry->bytes; i++)
        data[i] = (char)(entry->key.index * 31 + i * 7 + 1);
}

static md_pack_writer *create(fixture *f)
{
    md_pack_writer *pack = NULL;
    rt_err err;

    assert_int_equal(md_pack_create(f->path, f->entries, RECORDS, &pack, &err), RT_OK);
    return pack;
}

/* Last record first, in two pieces each. */
static void write_all(fixture *f, md_pack_writer *pack)
{
    rt_err err;

    for (int i = RECORDS - 1; i >= 0; i--) {
        md_pack_entry *entry = &f->entries[i];
        char data[5000];

        fill(data, entry);
        entry->hash = md_hash_bytes(data, entry->bytes);
        assert_int_equal(md_pack_write(pack, entry, 1, data + 1, entry->bytes - 1, &err), RT_OK);
        assert_int_equal(md_pack_write(pack, entry, 0, data, 1, &err), RT_OK);
    }
}

static void write_finished(fixture *f)
{
    md_pack_writer *pack = create(f);
    rt_err err;

    write_all(f, pack);
    assert_int_equal(md_pack_finish(pack, &err), RT_OK);
    md_pack_writer_free(pack);
}

static rt_status open_status(const char *path, rt_err *err)
{
    md_pack *pack = NULL;
    rt_status status;

    *err = (rt_err){RT_OK, ""};
    status = md_pack_open(path, &pack, err);
    if (status == RT_OK)
        md_pack_close(pack);
    else
        assert_null(pack);
    return status;
}

static char *read_back(const fixture *f, size_t *bytes)
{
    char *image = NULL;
    rt_err err;

    assert_int_equal(rt_file_read(f->path, 1 << 20, &image, bytes, &err), RT_OK);
    return image;
}

static void put(const char *path, const void *data, size_t bytes)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, bytes), (ssize_t)bytes);
    (void)close(fd);
}

static void layout_sorts_and_aligns(void **state)
{
    fixture f;

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
    fixture f;
    rt_err err;

    (void)state;
    setup(&f);
    write_finished(&f);
    assert_int_equal(md_pack_open(f.path, &pack, &err), RT_OK);
    assert_int_equal(md_pack_count(pack), RECORDS);
    assert_memory_equal(md_pack_entries(pack), f.entries, sizeof(f.entries));
    assert_string_equal(md_pack_path(pack), f.path);
    for (int i = 0; i < RECORDS; i++) {
        char expected[5000], found[5000];

        fill(expected, &f.entries[i]);
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
    fixture f;
    rt_err err;
    char *direct;

    (void)state;
    setup(&f);
    write_finished(&f);
    assert_int_equal(md_pack_open(f.path, &pack, &err), RT_OK);
    direct = aligned_alloc(4096, 8192);
    assert_non_null(direct);
    if (md_pack_fd_direct(pack) >= 0 &&
        pread(md_pack_fd_direct(pack), direct, 8192, (off_t)f.entries[2].offset) == 8192) {
        char expected[5000];

        fill(expected, &f.entries[2]);
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
    fixture f;
    rt_err err;

    (void)state;
    setup(&f);
    pack = create(&f);
    write_all(&f, pack);
    assert_int_equal(md_pack_sync(pack, &err), RT_OK);
    for (int i = 0; i < RECORDS; i++) {
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
    fixture f;
    rt_err err;

    (void)state;
    setup(&f);
    pack = create(&f);
    write_all(&f, pack);
    md_pack_writer_free(pack);
    assert_int_equal(open_status(f.path, &err), RT_EFORMAT);
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
    fixture f;
    rt_err err;

    (void)state;
    setup(&f);
    write_finished(&f);
    whole = read_back(&f, &bytes);
    /* Reopening takes the header away, so that half-rewritten records are never read. */
    pack = create(&f);
    assert_int_equal(open_status(f.path, &err), RT_EFORMAT);
    md_pack_writer_free(pack);
    pack = create(&f);
    write_all(&f, pack);
    assert_int_equal(md_pack_finish(pack, &err), RT_OK);
    md_pack_writer_free(pack);
    again = read_back(&f, &bytes_again);
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
    fixture f;
    rt_err err;

    (void)state;
    setup(&f);
    write_finished(&f);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct stat info;

        assert_int_equal(truncate(f.path, sizes[i]), 0);
        md_pack_writer_free(create(&f));
        assert_int_equal(stat(f.path, &info), 0);
        assert_int_equal(info.st_size, f.file_bytes);
        assert_int_equal(open_status(f.path, &err), RT_EFORMAT);
    }
    temp_dir_remove(f.dir);
}

static void looking_changes_nothing_and_reads_what_is_there(void **state)
{
    md_pack_writer *pack = NULL;
    md_hash128 hash = {0};
    struct stat info;
    fixture f;
    rt_err err = {0};

    (void)state;
    setup(&f);
    assert_int_equal(md_pack_look(f.path, f.entries, RECORDS, &pack, &err), RT_OK);
    assert_null(pack);
    assert_int_not_equal(stat(f.path, &info), 0);
    write_finished(&f);
    assert_int_equal(truncate(f.path, (off_t)f.entries[RECORDS - 1].offset), 0);
    assert_int_equal(md_pack_look(f.path, f.entries, RECORDS, &pack, &err), RT_OK);
    assert_non_null(pack);
    for (int i = 0; i < RECORDS - 1; i++) {
        assert_int_equal(md_pack_hash(pack, &f.entries[i], &hash, &err), RT_OK);
        assert_memory_equal(&hash, &f.entries[i].hash, sizeof(hash));
    }
    assert_int_equal(md_pack_hash(pack, &f.entries[RECORDS - 1], &hash, &err), RT_EIO);
    md_pack_writer_free(pack);
    assert_int_equal(stat(f.path, &info), 0);
    assert_int_equal(info.st_size, f.entries[RECORDS - 1].offset);
    assert_int_equal(md_pack_look(f.dir, f.entries, RECORDS, &pack, &err), RT_EIO);
    assert_non_null(strstr(err.text, "regular file"));
    temp_dir_remove(f.dir);
}

static void create_names_what_it_cannot_make(void **state)
{
    md_pack_writer *pack = NULL;
    fixture f;
    rt_err err;

    (void)state;
    setup(&f);
    assert_int_equal(md_pack_create("/nonexistent/x.bin", f.entries, RECORDS, &pack, &err), RT_EIO);
    assert_non_null(strstr(err.text, "/nonexistent/x.bin"));
    assert_int_equal(md_pack_create(f.dir, f.entries, RECORDS, &pack, &err), RT_EIO);
    plan.truncate_errno = ENOSPC;
    assert_int_equal(md_pack_create(f.path, f.entries, RECORDS, &pack, &err), RT_ENOSPACE);
    assert_non_null(strstr(err.text, f.path));
    plan.truncate_errno = EIO;
    assert_int_equal(md_pack_create(f.path, f.entries, RECORDS, &pack, &err), RT_EIO);
    plan.truncate_errno = 0;
    assert_null(pack);
    temp_dir_remove(f.dir);
}

static void failed_sync_is_an_error(void **state)
{
    md_pack_writer *pack;
    fixture f;
    rt_err err;

    (void)state;
    setup(&f);
    pack = create(&f);
    write_all(&f, pack);
    plan.sync_errno = EIO;
    assert_int_equal(md_pack_sync(pack, &err), RT_EIO);
    assert_int_equal(md_pack_finish(pack, &err), RT_EIO);
    plan.sync_errno = ENOSPC;
    assert_int_equal(md_pack_sync(pack, &err), RT_ENOSPACE);
    plan.sync_errno = 0;
    md_pack_writer_free(pack);
    assert_int_equal(open_status(f.path, &err), RT_EFORMAT);
    temp_dir_remove(f.dir);
}

static void failed_allocations_are_errors(void **state)
{
    md_pack_writer *writer = NULL;
    md_pack *pack = NULL;
    md_hash128 hash;
    fixture f;
    rt_err err;

    (void)state;
    setup(&f);
    write_finished(&f);
    plan.allocation = 1;
    assert_int_equal(md_pack_create(f.path, f.entries, RECORDS, &writer, &err), RT_ENOMEM);
    for (int i = 1; i <= 2; i++) {
        plan.allocation = i;
        assert_int_equal(md_pack_open(f.path, &pack, &err), RT_ENOMEM);
    }
    plan.allocation = 0;
    writer = create(&f);
    plan.allocation = 1;
    assert_int_equal(md_pack_hash(writer, &f.entries[0], &hash, &err), RT_ENOMEM);
    plan.allocation = 0;
    md_pack_writer_free(writer);
    temp_dir_remove(f.dir);
}

static void every_cut_is_refused(void **state)
{
    size_t bytes = 0;
    char *image;
    fixture f;
    rt_err err;

    (void)state;
    setup(&f);
    write_finished(&f);
    image = read_back(&f, &bytes);
    for (size_t cut = 0; cut < bytes; cut += cut < 400 ? 1 : 997) {
        put(f.path, image, cut);
        assert_int_equal(open_status(f.path, &err), RT_EFORMAT);
        assert_non_null(strstr(err.text, f.path));
    }
    free(image);
    temp_dir_remove(f.dir);
}

static void every_flipped_bit_of_header_and_index_is_refused(void **state)
{
    size_t bytes = 0, index_end = MD_HEADER_BYTES + RECORDS * sizeof(md_pack_entry);
    char *image;
    fixture f;
    rt_err err;
    int fd;

    (void)state;
    setup(&f);
    write_finished(&f);
    image = read_back(&f, &bytes);
    fd = open(f.path, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    for (size_t i = 0; i < index_end * 8; i++) {
        char flipped = (char)(image[i / 8] ^ 1 << i % 8);
        rt_status status;

        assert_int_equal(pwrite(fd, &flipped, 1, (off_t)(i / 8)), 1);
        status = open_status(f.path, &err);
        assert_true(status == RT_EFORMAT);
        assert_int_equal(pwrite(fd, &image[i / 8], 1, (off_t)(i / 8)), 1);
    }
    assert_int_equal(open_status(f.path, &err), RT_OK);
    (void)close(fd);
    free(image);
    temp_dir_remove(f.dir);
}

/* Rewrites the index with right checksums, as a hostile writer would. */
static void forge(const fixture *f, const md_pack_entry *entries, uint64_t count,
                  uint64_t file_bytes)
{
    md_file_header header;
    int fd = open(f->path, O_WRONLY | O_CLOEXEC);

    assert_true(fd >= 0);
    md_file_header_init(&header, MD_PACK_MAGIC, sizeof(*entries), count, file_bytes, entries);
    assert_int_equal(pwrite(fd, &header, sizeof(header), 0), sizeof(header));
    assert_int_equal(pwrite(fd, entries, count * sizeof(*entries), MD_HEADER_BYTES),
                     (ssize_t)(count * sizeof(*entries)));
    (void)close(fd);
}

static void forged_index_is_refused(void **state)
{
    static const struct {
        int entry;
        int64_t offset, bytes;
        const char *text;
    } forgeries[] = {
        {1, 4096, 0, "expected offset"},        /* over another record */
        {1, 1 << 30, 0, "expected offset"},     /* beyond the file */
        {1, -8192, 0, "expected offset"},       /* at 0: the header */
        {1, 1, 0, "expected offset"},           /* not aligned */
        {2, 0, 1 << 30, "expected at most"},    /* longer than the file */
        {2, 0, -5000, "expected at most"},      /* empty */
        {2, 0, -4500, "bytes for its records"}, /* leaves a hole at the end */
        {0, 0, -4097, "expected at most"},      /* length wraps around */
    };
    fixture f;
    rt_err err;

    (void)state;
    setup(&f);
    write_finished(&f);
    for (size_t i = 0; i < sizeof(forgeries) / sizeof(forgeries[0]); i++) {
        md_pack_entry entries[RECORDS];

        memcpy(entries, f.entries, sizeof(entries));
        entries[forgeries[i].entry].offset += (uint64_t)forgeries[i].offset;
        entries[forgeries[i].entry].bytes += (uint64_t)forgeries[i].bytes;
        forge(&f, entries, RECORDS, f.file_bytes);
        assert_int_equal(open_status(f.path, &err), RT_EFORMAT);
        assert_non_null(strstr(err.text, forgeries[i].text));
    }
    temp_dir_remove(f.dir);
}

static void keys_out_of_order_or_twice_are_refused(void **state)
{
    md_pack_entry entries[RECORDS];
    fixture f;
    rt_err err;

    (void)state;
    setup(&f);
    write_finished(&f);
    memcpy(entries, f.entries, sizeof(entries));
    entries[1].key.index = 1;
    forge(&f, entries, RECORDS, f.file_bytes);
    assert_int_equal(open_status(f.path, &err), RT_EFORMAT);
    assert_non_null(strstr(err.text, "ascending"));
    entries[1].key.index = entries[0].key.index;
    forge(&f, entries, RECORDS, f.file_bytes);
    assert_int_equal(open_status(f.path, &err), RT_EFORMAT);
    temp_dir_remove(f.dir);
}

static void forged_counts_and_versions_are_refused(void **state)
{
    md_file_header header, good;
    fixture f;
    rt_err err;
    int fd;

    (void)state;
    setup(&f);
    write_finished(&f);
    fd = open(f.path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &good, sizeof(good), 0), sizeof(good));
    for (int i = 0; i < 6; i++) {
        static const char *const texts[] = {"entries of", "at most",  "room for",
                                            "newer",      "reserved", "expected 1 bytes"};
        static const rt_status statuses[] = {RT_EFORMAT,      RT_EFORMAT, RT_EFORMAT,
                                             RT_EUNSUPPORTED, RT_EFORMAT, RT_EFORMAT};

        header = good;
        if (i == 0) header.entry_bytes = 48;
        if (i == 1) header.count = UINT64_MAX / 40;
        if (i == 2) header.count = 1000;
        if (i == 3) header.version = 2;
        if (i == 4) header.reserved[1] = 1;
        if (i == 5) header.file_bytes = 1;
        md_file_header_seal(&header);
        assert_int_equal(pwrite(fd, &header, sizeof(header), 0), sizeof(header));
        assert_int_equal(open_status(f.path, &err), statuses[i]);
        assert_non_null(strstr(err.text, texts[i]));
    }
    (void)close(fd);
    temp_dir_remove(f.dir);
}

static void other_things_are_not_packs(void **state)
{
    char text[8192], path[512];
    fixture f;
    rt_err err;

    (void)state;
    setup(&f);
    assert_int_equal(open_status(f.path, &err), RT_EIO);
    assert_non_null(strstr(err.text, f.path));
    memset(text, '{', sizeof(text));
    put(f.path, text, sizeof(text));
    assert_int_equal(open_status(f.path, &err), RT_EFORMAT);
    assert_non_null(strstr(err.text, "magic"));
    assert_int_equal(open_status(f.dir, &err), RT_EFORMAT);
    (void)snprintf(path, sizeof(path), "%s/pipe", f.dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(open_status(path, &err), RT_EFORMAT); /* and does not wait for a writer */
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
        cmocka_unit_test(every_cut_is_refused),
        cmocka_unit_test(every_flipped_bit_of_header_and_index_is_refused),
        cmocka_unit_test(forged_index_is_refused),
        cmocka_unit_test(keys_out_of_order_or_twice_are_refused),
        cmocka_unit_test(forged_counts_and_versions_are_refused),
        cmocka_unit_test(other_things_are_not_packs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
