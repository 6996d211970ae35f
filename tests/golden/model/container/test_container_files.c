/* test_container_files.c - the bytes on disk are those of docs/container.md.
 *
 * tests/fixtures/container was written by tools/make_container_golden.py, which knows the page and
 * not the program. A change here means another container_version or conversion_id. */
#include "model/container/manifest.h"

#include "base/file.h"
#include "model/container/container.h"
#include "model/container/description.h"
#include "model/container/pack.h"
#include "tests/support/temp_dir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define GOLDEN MOESAIC_FIXTURES "/container/"

static const md_manifest_entry entries[] = {
    {{0, MD_Q_A, 0}, 1000, {1, 2}},
    {{1, MD_EXPERT, 0}, 2000, {3, 4}},
    {{1, MD_EXPERT, 1}, 2000, {5, 6}},
    {{MD_NO_LAYER, MD_EMBED, 0}, 3000, {7, 8}},
};

static char *take(const char *path, size_t *bytes)
{
    char *data = NULL;
    rt_err err;

    assert_int_equal(rt_file_read(path, 1 << 20, &data, bytes, &err), RT_OK);
    return data;
}

static void same_file(const char *dir, const char *name)
{
    size_t bytes = 0, golden_bytes = 0;
    char path[512], golden_path[512], *data, *golden;

    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    (void)snprintf(golden_path, sizeof(golden_path), "%s%s", GOLDEN, name);
    data = take(path, &bytes);
    golden = take(golden_path, &golden_bytes);
    assert_int_equal(bytes, golden_bytes);
    assert_memory_equal(data, golden, bytes);
    free(golden);
    free(data);
}

static void fill(char *data, const md_pack_entry *entry)
{
    for (uint64_t i = 0; i < entry->bytes; i++)
        data[i] = (char)(entry->key.index * 31 + i * 7 + 1);
}

static void pack_has_the_documented_bytes(void **state)
{
    md_pack_entry index[] = {{.key = {7, MD_EXPERT, 9}, .bytes = 5000},
                             {.key = {7, MD_EXPERT, 2}, .bytes = 4096},
                             {.key = {7, MD_EXPERT, 4}, .bytes = 3}};
    char *dir = temp_dir_make(), path[512], data[5000];
    md_pack_writer *pack = NULL;
    rt_err err;

    (void)state;
    (void)snprintf(path, sizeof(path), "%s/experts-007.bin", dir);
    (void)md_pack_layout(index, 3);
    assert_int_equal(md_pack_create(path, index, 3, &pack, &err), RT_OK);
    for (int i = 0; i < 3; i++) {
        fill(data, &index[i]);
        index[i].hash = md_hash_bytes(data, index[i].bytes);
        assert_int_equal(md_pack_write(pack, &index[i], 0, data, index[i].bytes, &err), RT_OK);
    }
    assert_int_equal(md_pack_finish(pack, &err), RT_OK);
    md_pack_writer_free(pack);
    same_file(dir, "experts-007.bin");
    temp_dir_remove(dir);
}

static void documented_pack_is_read(void **state)
{
    md_pack *pack = NULL;
    rt_err err;

    (void)state;
    assert_int_equal(md_pack_open(GOLDEN "experts-007.bin", &pack, &err), RT_OK);
    assert_int_equal(md_pack_count(pack), 3);
    for (int i = 0; i < 3; i++) {
        const md_pack_entry *entry = &md_pack_entries(pack)[i];
        md_record record = {.key = entry->key,
                            .bytes = entry->bytes,
                            .offset = entry->offset,
                            .hash = entry->hash,
                            .fd = md_pack_fd(pack),
                            .pack = md_pack_path(pack)};
        char expected[5000], found[5000];

        fill(expected, entry);
        assert_int_equal(md_record_read(&record, found, &err), RT_OK);
        assert_memory_equal(found, expected, entry->bytes);
    }
    md_pack_close(pack);
}

static void manifest_has_the_documented_bytes(void **state)
{
    char *dir = temp_dir_make(), path[512];
    rt_err err;

    (void)state;
    (void)snprintf(path, sizeof(path), "%s/manifest.bin", dir);
    assert_int_equal(md_manifest_write(path, entries, 4, &err), RT_OK);
    same_file(dir, "manifest.bin");
    temp_dir_remove(dir);
}

static void description_and_model_id_have_the_documented_bytes(void **state)
{
    md_container_info info = {.expert_format = KN_Q4,
                              .dense_format = KN_Q8,
                              .embed_format = KN_BF16,
                              .slice_width = 16,
                              .latent_eps = 1e-6f,
                              .grid_q = {0, 13, -4, 11},
                              .conversion_id = 1,
                              .template_id = "42994f78b64752fe472149dd7e20410d"};
    size_t bytes = 0;
    char *config = take(MOESAIC_FIXTURES "/nano-bf16/config.json", &bytes);
    char *dir = temp_dir_make();
    rt_err err;

    (void)state;
    free(temp_dir_write(dir, "tokenizer.bin", "tokenizer image\n", 16));
    assert_int_equal(md_container_seal(dir, config, bytes, entries, 4, &info, &err), RT_OK);
    same_file(dir, "moesaic.json");
    temp_dir_remove(dir);
    free(config);
}

static void sealing_needs_the_tokenizer_and_writes_nothing_without(void **state)
{
    md_container_info info = {.expert_format = KN_Q4, .model_id = {9}};
    size_t bytes = 0;
    char *config = take(MOESAIC_FIXTURES "/nano-bf16/config.json", &bytes);
    char *dir = temp_dir_make(), path[512], *text = NULL;
    rt_err err;

    (void)state;
    assert_int_equal(md_container_seal(dir, config, bytes, entries, 4, &info, &err), RT_EIO);
    assert_non_null(strstr(err.text, "tokenizer.bin"));
    free(temp_dir_write(dir, "tokenizer.bin", "", 0));
    assert_int_equal(md_container_seal(dir, config, bytes, entries, 4, &info, &err), RT_EFORMAT);
    assert_int_equal(md_container_seal(dir, config, 10, entries, 4, &info, &err), RT_EFORMAT);
    assert_int_equal(info.model_id[0], 9);
    (void)snprintf(path, sizeof(path), "%s/moesaic.json", dir);
    assert_int_equal(rt_file_read(path, 1 << 20, &text, &bytes, &err), RT_EIO);
    temp_dir_remove(dir);
    free(config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pack_has_the_documented_bytes),
        cmocka_unit_test(documented_pack_is_read),
        cmocka_unit_test(manifest_has_the_documented_bytes),
        cmocka_unit_test(description_and_model_id_have_the_documented_bytes),
        cmocka_unit_test(sealing_needs_the_tokenizer_and_writes_nothing_without),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
