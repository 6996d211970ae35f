/* test_pack_malformed.c - cut, flipped and forged packs, and what is no pack, are not opened. */
#include "model/container/pack.h"

#include "model/container/file_header.h"
#include "tests/support/pack_fixture.h"
#include "tests/support/temp_dir.h"

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

static void put(const char *path, const void *data, size_t bytes)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, bytes), (ssize_t)bytes);
    (void)close(fd);
}

static void every_cut_is_refused(void **state)
{
    size_t bytes = 0;
    char *image;
    pack_fixture f;
    rt_err err;

    (void)state;
    pack_fixture_make(&f);
    pack_fixture_write_finished(&f);
    image = pack_fixture_read_back(&f, &bytes);
    for (size_t cut = 0; cut < bytes; cut += cut < 400 ? 1 : 997) {
        put(f.path, image, cut);
        assert_int_equal(pack_fixture_try(f.path, &err), RT_EFORMAT);
        assert_non_null(strstr(err.text, f.path));
    }
    free(image);
    temp_dir_remove(f.dir);
}

static void every_flipped_bit_of_header_and_index_is_refused(void **state)
{
    size_t bytes = 0, index_end = MD_HEADER_BYTES + PACK_FIXTURE_RECORDS * sizeof(md_pack_entry);
    char *image;
    pack_fixture f;
    rt_err err;
    int fd;

    (void)state;
    pack_fixture_make(&f);
    pack_fixture_write_finished(&f);
    image = pack_fixture_read_back(&f, &bytes);
    fd = open(f.path, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    for (size_t i = 0; i < index_end * 8; i++) {
        char flipped = (char)(image[i / 8] ^ 1 << i % 8);
        rt_status status;

        assert_int_equal(pwrite(fd, &flipped, 1, (off_t)(i / 8)), 1);
        status = pack_fixture_try(f.path, &err);
        assert_true(status == RT_EFORMAT);
        assert_int_equal(pwrite(fd, &image[i / 8], 1, (off_t)(i / 8)), 1);
    }
    assert_int_equal(pack_fixture_try(f.path, &err), RT_OK);
    (void)close(fd);
    free(image);
    temp_dir_remove(f.dir);
}

/* Rewrites the index with right checksums, as a hostile writer would. */
static void forge(const pack_fixture *f, const md_pack_entry *entries, uint64_t count,
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
    pack_fixture f;
    rt_err err;

    (void)state;
    pack_fixture_make(&f);
    pack_fixture_write_finished(&f);
    for (size_t i = 0; i < sizeof(forgeries) / sizeof(forgeries[0]); i++) {
        md_pack_entry entries[PACK_FIXTURE_RECORDS];

        memcpy(entries, f.entries, sizeof(entries));
        entries[forgeries[i].entry].offset += (uint64_t)forgeries[i].offset;
        entries[forgeries[i].entry].bytes += (uint64_t)forgeries[i].bytes;
        forge(&f, entries, PACK_FIXTURE_RECORDS, f.file_bytes);
        assert_int_equal(pack_fixture_try(f.path, &err), RT_EFORMAT);
        assert_non_null(strstr(err.text, forgeries[i].text));
    }
    temp_dir_remove(f.dir);
}

static void keys_out_of_order_or_twice_are_refused(void **state)
{
    md_pack_entry entries[PACK_FIXTURE_RECORDS];
    pack_fixture f;
    rt_err err;

    (void)state;
    pack_fixture_make(&f);
    pack_fixture_write_finished(&f);
    memcpy(entries, f.entries, sizeof(entries));
    entries[1].key.index = 1;
    forge(&f, entries, PACK_FIXTURE_RECORDS, f.file_bytes);
    assert_int_equal(pack_fixture_try(f.path, &err), RT_EFORMAT);
    assert_non_null(strstr(err.text, "ascending"));
    entries[1].key.index = entries[0].key.index;
    forge(&f, entries, PACK_FIXTURE_RECORDS, f.file_bytes);
    assert_int_equal(pack_fixture_try(f.path, &err), RT_EFORMAT);
    temp_dir_remove(f.dir);
}

static void forged_counts_and_versions_are_refused(void **state)
{
    md_file_header header, good;
    pack_fixture f;
    rt_err err;
    int fd;

    (void)state;
    pack_fixture_make(&f);
    pack_fixture_write_finished(&f);
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
        assert_int_equal(pack_fixture_try(f.path, &err), statuses[i]);
        assert_non_null(strstr(err.text, texts[i]));
    }
    (void)close(fd);
    temp_dir_remove(f.dir);
}

static void other_things_are_not_packs(void **state)
{
    char text[8192], path[512];
    pack_fixture f;
    rt_err err;

    (void)state;
    pack_fixture_make(&f);
    assert_int_equal(pack_fixture_try(f.path, &err), RT_EIO);
    assert_non_null(strstr(err.text, f.path));
    memset(text, '{', sizeof(text));
    put(f.path, text, sizeof(text));
    assert_int_equal(pack_fixture_try(f.path, &err), RT_EFORMAT);
    assert_non_null(strstr(err.text, "magic"));
    assert_int_equal(pack_fixture_try(f.dir, &err), RT_EFORMAT);
    (void)snprintf(path, sizeof(path), "%s/pipe", f.dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(pack_fixture_try(path, &err), RT_EFORMAT); /* and does not wait for a writer */
    temp_dir_remove(f.dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_cut_is_refused),
        cmocka_unit_test(every_flipped_bit_of_header_and_index_is_refused),
        cmocka_unit_test(forged_index_is_refused),
        cmocka_unit_test(keys_out_of_order_or_twice_are_refused),
        cmocka_unit_test(forged_counts_and_versions_are_refused),
        cmocka_unit_test(other_things_are_not_packs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
