/* test_disk_space.c - needed is what will be written, less what --consume gives back in time. */
#include "model/convert/disk_space.h"

#include "base/file.h"
#include "model/convert/target.h"
#include "tests/support/safetensors_file.h"
#include "tests/support/temp_dir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { UNITS = 400, SHARDS = 100 };
static const uint64_t gib = 1ull << 30;

typedef struct {
    char *dir;
    md_source *source;
    md_plan plan;
} rig;

/* UNITS records of unit_bytes each, four to a shard; a shard is a file of holes of shard_bytes. */
static rig rig_make(uint64_t unit_bytes, uint64_t shard_bytes)
{
    rig r = {.dir = temp_dir_make()};

    for (uint32_t s = 0; s < SHARDS; s++) {
        char name[64], header[128];
        char *path;

        snprintf(name, sizeof(name), "model-%03u.safetensors", s);
        snprintf(header, sizeof(header),
                 "{\"t%03u\":{\"dtype\":\"U8\",\"shape\":[%llu],\"data_offsets\":[0,%llu]}}", s,
                 (unsigned long long)shard_bytes, (unsigned long long)shard_bytes);
        path = rt_path_join(r.dir, name);
        st_raw_write(path, header, shard_bytes);
        free(path);
    }
    assert_int_equal(md_source_open(r.dir, NULL, 0, &r.source, NULL), RT_OK);
    r.plan.count = UNITS;
    r.plan.units = calloc(UNITS, sizeof(*r.plan.units));
    r.plan.order = calloc(UNITS, sizeof(*r.plan.order));
    for (uint32_t u = 0; u < UNITS; u++) {
        char name[16];

        snprintf(name, sizeof(name), "t%03u", u / 4);
        r.plan.order[u] = u;
        r.plan.units[u].shape.bytes = unit_bytes;
        r.plan.units[u].source_count = 1;
        r.plan.units[u].source[0] =
            (md_source_matrix){.weight = md_source_lookup(r.source, name), .scale = MD_SOURCE_NONE};
        r.plan.units[u].last_shard = u / 4;
    }
    return r;
}

static void rig_close(rig *r)
{
    md_plan_free(&r->plan);
    md_source_close(r->source);
    temp_dir_remove(r->dir);
}

static uint64_t peak(const rig *r, bool consume)
{
    uint64_t out = 0;

    assert_int_equal(md_disk_peak(&r->plan, r->source, consume, &out, NULL), RT_OK);
    return out;
}

static void without_consume_everything_is_needed(void **state)
{
    rig r = rig_make(gib / 4, gib);

    (void)state;
    assert_true(peak(&r, false) >= UNITS * (gib / 4));
    assert_true(peak(&r, false) < UNITS * (gib / 4) + gib / 4);
    for (int u = 0; u < UNITS / 2; u++)
        r.plan.units[u].done = true;
    assert_true(peak(&r, false) < UNITS / 2 * (gib / 4) + gib / 4);
    rig_close(&r);
}

static void consuming_a_source_of_the_same_size_needs_a_few_groups(void **state)
{
    rig r = rig_make(gib / 4, gib);

    (void)state;
    assert_true(peak(&r, true) >= gib);
    assert_true(peak(&r, true) <= 4 * gib);
    rig_close(&r);
}

static void consuming_a_smaller_source_needs_the_difference(void **state)
{
    rig r = rig_make(gib / 4, gib / 2); /* 100 GiB from 50 GiB */

    (void)state;
    assert_true(peak(&r, true) >= 50 * gib);
    assert_true(peak(&r, true) <= 54 * gib);
    rig_close(&r);
}

static void deletable_are_the_shards_that_a_record_needs(void **state)
{
    rig r = rig_make(1000, 5000);
    uint64_t shards = 0, bytes = 0;

    (void)state;
    assert_int_equal(md_disk_deletable(&r.plan, r.source, &shards, &bytes, NULL), RT_OK);
    assert_int_equal(shards, SHARDS);
    assert_int_equal(bytes, md_source_bytes(r.source));
    for (uint32_t u = 0; u < 4; u++) /* nothing needs the first shard any more */
        r.plan.units[u].source_count = 0;
    assert_int_equal(md_source_drop(r.source, SHARDS - 1, NULL), RT_OK);
    assert_int_equal(md_disk_deletable(&r.plan, r.source, &shards, &bytes, NULL), RT_OK);
    assert_int_equal(shards, SHARDS - 2);
    assert_int_equal(bytes, md_source_bytes(r.source) / SHARDS * (SHARDS - 2));
    rig_close(&r);
}

static void a_tensor_needed_to_the_end_keeps_its_shard(void **state)
{
    rig r = rig_make(gib / 4, gib);

    (void)state;
    /* The last record also reads from every shard: nothing is freed before it. */
    for (uint32_t u = 0; u < UNITS; u += 4) {
        md_unit *unit = &r.plan.units[u];

        unit->source[0].weight = r.plan.units[(u + 8) % UNITS].source[0].weight;
    }
    assert_true(peak(&r, true) <= 6 * gib); /* a little later is little more */
    for (uint32_t u = 3; u < UNITS; u += 4)
        r.plan.order[u] = UNITS + 2 - u; /* one record of each shard in reverse order */
    assert_true(peak(&r, true) >= 40 * gib);
    rig_close(&r);
}

static void the_nearest_existing_folder_is_measured(void **state)
{
    rig r = rig_make(4096, 4096);
    md_disk_space here, below;
    char *path = rt_path_join(r.dir, "a/b/c");
    rt_err err = {0};

    (void)state;
    assert_int_equal(md_disk_space_measure(r.dir, r.dir, &r.plan, r.source, false, &here, NULL),
                     RT_OK);
    assert_int_equal(md_disk_space_measure(r.dir, path, &r.plan, r.source, false, &below, NULL),
                     RT_OK);
    assert_true(here.free_bytes > 0 && below.free_bytes > 0);
    assert_true(here.needed_bytes == below.needed_bytes);
    assert_int_equal(
        md_disk_space_measure(r.dir, "relative-name", &r.plan, r.source, false, &below, NULL),
        RT_OK);
    free(path);
    path = rt_path_join(r.dir, "model-000.safetensors/below-a-file");
    assert_int_equal(md_disk_space_measure(r.dir, path, &r.plan, r.source, false, &below, &err),
                     RT_EIO);
    free(path);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_consume_everything_is_needed),
        cmocka_unit_test(consuming_a_source_of_the_same_size_needs_a_few_groups),
        cmocka_unit_test(consuming_a_smaller_source_needs_the_difference),
        cmocka_unit_test(deletable_are_the_shards_that_a_record_needs),
        cmocka_unit_test(a_tensor_needed_to_the_end_keeps_its_shard),
        cmocka_unit_test(the_nearest_existing_folder_is_measured),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
