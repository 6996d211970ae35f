/* pack_fixture.c - three records of odd sizes, their bytes from their keys. */
#include "tests/support/pack_fixture.h"

#include "base/file.h"
#include "model/container/container.h"
#include "tests/support/temp_dir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

void pack_fixture_make(pack_fixture *f)
{
    f->dir = temp_dir_make();
    temp_dir_path(f->dir, "experts-007.bin", f->path);
    /* Unsorted on purpose. */
    f->entries[0] = (md_pack_entry){.key = {7, MD_EXPERT, 9}, .bytes = PACK_FIXTURE_RECORD_MAX};
    f->entries[1] = (md_pack_entry){.key = {7, MD_EXPERT, 2}, .bytes = 4096};
    f->entries[2] = (md_pack_entry){.key = {7, MD_EXPERT, 4}, .bytes = 3};
    f->file_bytes = md_pack_layout(f->entries, PACK_FIXTURE_RECORDS);
}

void pack_fixture_fill(char *data, const md_pack_entry *entry)
{
    for (uint64_t i = 0; i < entry->bytes; i++)
        data[i] = (char)(entry->key.index * 31 + i * 7 + 1);
}

md_pack_writer *pack_fixture_create(pack_fixture *f)
{
    md_pack_writer *pack = NULL;
    rt_err err;

    assert_int_equal(md_pack_create(f->path, f->entries, PACK_FIXTURE_RECORDS, &pack, &err), RT_OK);
    return pack;
}

void pack_fixture_write_all(pack_fixture *f, md_pack_writer *pack)
{
    rt_err err;

    for (int i = PACK_FIXTURE_RECORDS - 1; i >= 0; i--) {
        md_pack_entry *entry = &f->entries[i];
        char data[PACK_FIXTURE_RECORD_MAX];

        pack_fixture_fill(data, entry);
        entry->hash = md_hash_bytes(data, entry->bytes);
        assert_int_equal(md_pack_write(pack, entry, 1, data + 1, entry->bytes - 1, &err), RT_OK);
        assert_int_equal(md_pack_write(pack, entry, 0, data, 1, &err), RT_OK);
    }
}

void pack_fixture_write_finished(pack_fixture *f)
{
    md_pack_writer *pack = pack_fixture_create(f);
    rt_err err;

    pack_fixture_write_all(f, pack);
    assert_int_equal(md_pack_finish(pack, &err), RT_OK);
    md_pack_writer_free(pack);
}

rt_status pack_fixture_try(const char *path, rt_err *err)
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

char *pack_fixture_read_back(const pack_fixture *f, size_t *bytes)
{
    char *image = NULL;
    rt_err err;

    assert_int_equal(rt_file_read(f->path, 1 << 20, &image, bytes, &err), RT_OK);
    return image;
}
