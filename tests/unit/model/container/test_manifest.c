/* test_manifest.c - manifest.bin round trips, and nothing damaged is believed. */
/* wrap: malloc calloc */
#include "model/container/manifest.h"

#include "base/file.h"
#include "model/container/file_header.h"
#include "tests/support/temp_dir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ENTRIES = 4 };

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

static const md_manifest_entry entries[ENTRIES] = {
    {{0, MD_Q_A, 0}, 1000, {1, 2}},
    {{1, MD_EXPERT, 0}, 2000, {3, 4}},
    {{1, MD_EXPERT, 1}, 2000, {5, 6}},
    {{MD_NO_LAYER, MD_EMBED, 0}, 3000, {7, 8}},
};

typedef struct {
    char *dir, path[512];
    char *image;
    size_t bytes;
} fixture;

static void setup(fixture *f)
{
    rt_err err;

    f->dir = temp_dir_make();
    (void)snprintf(f->path, sizeof(f->path), "%s/manifest.bin", f->dir);
    assert_int_equal(md_manifest_write(f->path, entries, ENTRIES, &err), RT_OK);
    assert_int_equal(rt_file_read(f->path, 1 << 20, &f->image, &f->bytes, &err), RT_OK);
}

static void teardown(fixture *f)
{
    free(f->image);
    temp_dir_remove(f->dir);
}

static rt_status read_status(const char *path, rt_err *err)
{
    md_manifest_entry *found = NULL;
    uint64_t count = 99;
    rt_status status;

    *err = (rt_err){RT_OK, ""};
    status = md_manifest_read(path, &found, &count, err);
    if (status != RT_OK) {
        assert_null(found);
        assert_int_equal(count, 99);
    }
    free(found);
    return status;
}

static rt_status read_bytes(const fixture *f, const void *image, size_t bytes, rt_err *err)
{
    free(temp_dir_write(f->dir, "manifest.bin", image, bytes));
    return read_status(f->path, err);
}

static void what_is_written_is_read(void **state)
{
    md_manifest_entry *found = NULL;
    uint64_t count = 0;
    fixture f;
    rt_err err;

    (void)state;
    setup(&f);
    assert_int_equal(f.bytes, 64 + ENTRIES * 32);
    assert_int_equal(md_manifest_read(f.path, &found, &count, &err), RT_OK);
    assert_int_equal(count, ENTRIES);
    assert_memory_equal(found, entries, sizeof(entries));
    free(found);
    assert_int_equal(md_manifest_write(f.path, NULL, 0, &err), RT_OK);
    assert_int_equal(md_manifest_read(f.path, &found, &count, &err), RT_OK);
    assert_int_equal(count, 0);
    free(found);
    teardown(&f);
}

static void every_cut_and_every_flipped_bit_is_refused(void **state)
{
    fixture f;
    rt_err err;

    (void)state;
    setup(&f);
    for (size_t cut = 0; cut < f.bytes; cut++) {
        assert_int_equal(read_bytes(&f, f.image, cut, &err), RT_EFORMAT);
        assert_non_null(strstr(err.text, f.path));
    }
    for (size_t bit = 0; bit < f.bytes * 8; bit++) {
        f.image[bit / 8] = (char)(f.image[bit / 8] ^ 1 << bit % 8);
        assert_int_equal(read_bytes(&f, f.image, f.bytes, &err), RT_EFORMAT);
        f.image[bit / 8] = (char)(f.image[bit / 8] ^ 1 << bit % 8);
    }
    assert_int_equal(read_bytes(&f, f.image, f.bytes, &err), RT_OK);
    teardown(&f);
}

static void trailing_bytes_are_refused_even_when_counted(void **state)
{
    unsigned char longer[64 + ENTRIES * 32 + 8] = {0};
    md_file_header header;
    fixture f;
    rt_err err;

    (void)state;
    setup(&f);
    memcpy(longer, f.image, f.bytes);
    assert_int_equal(read_bytes(&f, longer, sizeof(longer), &err), RT_EFORMAT);
    md_file_header_init(&header, MD_MANIFEST_MAGIC, 32, ENTRIES, sizeof(longer), entries);
    memcpy(longer, &header, sizeof(header));
    assert_int_equal(read_bytes(&f, longer, sizeof(longer), &err), RT_EFORMAT);
    assert_non_null(strstr(err.text, "bytes of entries"));
    teardown(&f);
}

static void forged_order_is_refused(void **state)
{
    fixture f;
    rt_err err;

    (void)state;
    setup(&f);
    for (int twice = 0; twice < 2; twice++) {
        unsigned char image[64 + ENTRIES * 32];
        md_manifest_entry forged[ENTRIES];
        md_file_header header;

        memcpy(forged, entries, sizeof(forged));
        forged[2] = twice ? forged[1] : forged[0];
        md_file_header_init(&header, MD_MANIFEST_MAGIC, 32, ENTRIES, sizeof(image), forged);
        memcpy(image, &header, sizeof(header));
        memcpy(image + sizeof(header), forged, sizeof(forged));
        assert_int_equal(read_bytes(&f, image, sizeof(image), &err), RT_EFORMAT);
        assert_non_null(strstr(err.text, "ascending"));
    }
    teardown(&f);
}

static void newer_version_is_unsupported(void **state)
{
    md_file_header header;
    fixture f;
    rt_err err;

    (void)state;
    setup(&f);
    memcpy(&header, f.image, sizeof(header));
    header.version = 2;
    md_file_header_seal(&header);
    memcpy(f.image, &header, sizeof(header));
    assert_int_equal(read_bytes(&f, f.image, f.bytes, &err), RT_EUNSUPPORTED);
    assert_non_null(strstr(err.text, "newer"));
    teardown(&f);
}

static void missing_manifest_is_an_io_error(void **state)
{
    rt_err err;

    (void)state;
    assert_int_equal(read_status("/nonexistent/manifest.bin", &err), RT_EIO);
    assert_non_null(strstr(err.text, "/nonexistent/manifest.bin"));
    assert_int_equal(md_manifest_write("/nonexistent/manifest.bin", entries, ENTRIES, &err),
                     RT_EIO);
}

static void failed_allocations_are_errors(void **state)
{
    md_manifest_entry *found = NULL;
    md_config config = {.layers = 1, .hidden = 16, .vocab = 16, .heads = 1};
    md_container_info info = {.expert_format = KN_F32, .dense_format = KN_F32};
    uint64_t count = 0;
    fixture f;
    rt_err err;

    (void)state;
    setup(&f);
    info.embed_format = KN_F32;
    failing_allocation = 1;
    assert_int_equal(md_manifest_write(f.path, entries, ENTRIES, &err), RT_ENOMEM);
    for (int i = 1; i <= 2; i++) {
        failing_allocation = i;
        assert_int_equal(md_manifest_read(f.path, &found, &count, &err), RT_ENOMEM);
    }
    failing_allocation = 1;
    assert_int_equal(md_manifest_expected(&config, &info, &found, &count, &err), RT_ENOMEM);
    failing_allocation = 0;
    assert_null(found);
    teardown(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(every_cut_and_every_flipped_bit_is_refused),
        cmocka_unit_test(trailing_bytes_are_refused_even_when_counted),
        cmocka_unit_test(forged_order_is_refused),
        cmocka_unit_test(newer_version_is_unsupported),
        cmocka_unit_test(missing_manifest_is_an_io_error),
        cmocka_unit_test(failed_allocations_are_errors),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
