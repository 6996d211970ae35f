/* pack_fixture.h - a small pack of three expert records, for tests of writing and opening packs.
 *
 * Needs cmocka: a failed expectation fails the test.
 *
 * Threads: one test. */
#ifndef TESTS_SUPPORT_PACK_FIXTURE_H
#define TESTS_SUPPORT_PACK_FIXTURE_H

#include "model/container/pack.h"
#include "tests/support/temp_dir.h"

#include <stddef.h>

enum { PACK_FIXTURE_RECORDS = 3, PACK_FIXTURE_RECORD_MAX = 5000 /* bytes of the longest record */ };

typedef struct {
    char *dir; /* owned: temp_dir_remove */
    char path[TEMP_DIR_PATH_BYTES];
    md_pack_entry entries[PACK_FIXTURE_RECORDS]; /* laid out; hashes only once written */
    uint64_t file_bytes;
} pack_fixture;

/* A new folder, and entries laid out from an unsorted list; no pack yet. */
void pack_fixture_make(pack_fixture *f);

/* The bytes of an entry's record: data holds entry->bytes. */
void pack_fixture_fill(char *data, const md_pack_entry *entry);

/* Creates (or continues) the pack at f->path; free with md_pack_writer_free. */
md_pack_writer *pack_fixture_create(pack_fixture *f);

/* Writes all records, the last one first, in two pieces each, and sets the entries' hashes. */
void pack_fixture_write_all(pack_fixture *f, md_pack_writer *pack);

/* Creates, writes and finishes the pack. */
void pack_fixture_write_finished(pack_fixture *f);

/* Opens and closes a pack; the status and message of opening. */
rt_status pack_fixture_try(const char *path, rt_err *err);

/* The whole file at f->path, malloc'd. */
char *pack_fixture_read_back(const pack_fixture *f, size_t *bytes);

#endif
