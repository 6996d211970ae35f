/* test_store.c - what is kept in RAM, what is staged from disk, and every way that can fail. */
#include "expert_node/store.h"

#include "base/stop.h"
#include "tests/support/expert_rig.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { LAYERS = 3, DENSE = 1, EXPERTS = 8, RECORDS = (LAYERS - DENSE) * EXPERTS };
enum { SLICES = 9, ALL = (1 << SLICES) - 1 };

typedef struct {
    char *dir;
    md_container *container;
    pl_map *map;
} fixture;

static void open_fixture(fixture *f, const tiny_model_spec *spec, pl_mode mode, uint32_t nodes)
{
    rt_err err = {RT_OK, ""};

    f->dir = tiny_model_build(spec);
    assert_int_equal(md_container_open(f->dir, &f->container, &err), RT_OK);
    f->map = expert_rig_map(f->container, mode, nodes, spec->mtp);
}

static void close_fixture(fixture *f)
{
    pl_map_free(f->map);
    md_container_close(f->container);
    temp_dir_remove(f->dir);
}

static rt_status open_store(const fixture *f, uint32_t node, uint64_t ram_bytes, en_store **store,
                            rt_err *err)
{
    en_store_spec spec = {.container = f->container,
                          .map = f->map,
                          .node = node,
                          .ram_bytes = ram_bytes,
                          .with_mtp = md_container_config(f->container)->mtp_layers > 0,
                          .quiet = true};

    return en_store_open(&spec, store, err);
}

static size_t record_bytes(const fixture *f)
{
    md_expert_layout layout;

    md_container_expert_layout(f->container, DENSE, &layout);
    return layout.record_bytes;
}

/* An acquired record has exactly the bytes that the container has for the owned slices. */
static void check_record(const fixture *f, en_store *store, uint32_t layer, uint32_t expert,
                         uint32_t mask)
{
    md_key key = {(uint16_t)layer, MD_EXPERT, expert};
    rt_err err = {RT_OK, ""};
    md_expert_layout layout;
    md_record disk;
    en_record record;
    uint8_t *bytes;

    assert_true(md_container_find(f->container, key, &disk));
    bytes = malloc(disk.bytes);
    assert_non_null(bytes);
    assert_int_equal(md_record_read(&disk, bytes, &err), RT_OK);
    md_container_expert_layout(f->container, layer, &layout);
    assert_int_equal(en_store_acquire(store, layer, expert, &record, &err), RT_OK);
    assert_int_equal(record.slice_mask, mask);
    for (uint32_t s = 0; s < MD_SLICES_MAX; s++) {
        if (!(mask >> s & 1)) {
            assert_null(record.slice[s]);
            continue;
        }
        assert_int_equal((uintptr_t)record.slice[s] % MD_RECORD_ALIGN, 0);
        assert_memory_equal(record.slice[s], bytes + md_slice_offset(&layout, s),
                            md_slice_size(&layout, s));
    }
    en_store_release(store, &record);
    free(bytes);
}

static void with_room_for_all_every_record_is_resident(void **state)
{
    tiny_model_spec spec = tiny_model_default();
    fixture f;
    en_store *store;
    rt_err err = {RT_OK, ""};
    en_store_stats stats;

    (void)state;
    open_fixture(&f, &spec, PL_WHOLE, 1);
    assert_int_equal(open_store(&f, 0, RECORDS * record_bytes(&f), &store, &err), RT_OK);
    assert_true(en_store_holds_all(store));
    for (uint32_t layer = DENSE; layer < LAYERS; layer++) {
        for (uint32_t e = 0; e < EXPERTS; e++) {
            assert_true(en_store_is_resident(store, layer, e));
            check_record(&f, store, layer, e, ALL);
        }
    }
    stats = en_store_get_stats(store);
    assert_int_equal(stats.records, RECORDS);
    assert_int_equal(stats.records_in_ram, RECORDS);
    assert_int_equal(stats.ram_bytes, RECORDS * record_bytes(&f));
    assert_int_equal(stats.hits, RECORDS);
    assert_int_equal(stats.reads, 0);
    en_store_close(store);
    close_fixture(&f);
}

static void a_sliced_share_keeps_only_its_slices(void **state)
{
    tiny_model_spec spec = tiny_model_default();
    fixture f;
    en_store *store;
    rt_err err = {RT_OK, ""};
    uint64_t kept = 0;

    (void)state;
    open_fixture(&f, &spec, PL_SLICED, 3);
    for (uint32_t node = 0; node < 3; node++) {
        uint64_t node_bytes = 0;
        assert_int_equal(open_store(&f, node, UINT64_MAX, &store, &err), RT_OK);
        for (uint32_t layer = DENSE; layer < LAYERS; layer++) {
            for (uint32_t e = 0; e < EXPERTS; e++) {
                uint32_t mask = pl_map_mask(f.map, layer, e, node);
                assert_int_equal(en_store_mask(store, layer, e), mask);
                if (mask != 0) check_record(&f, store, layer, e, mask);
            }
        }
        node_bytes = en_store_get_stats(store).ram_bytes;
        assert_true(node_bytes < RECORDS * record_bytes(&f));
        kept += node_bytes;
        en_store_close(store);
    }
    assert_int_equal(kept, RECORDS * record_bytes(&f));
    close_fixture(&f);
}

/* Five records: two transit slots, and slots for two layers in turn. */
static void a_small_budget_gives_every_layer_as_many_slots(void **state)
{
    tiny_model_spec spec = tiny_model_default();
    fixture f;
    en_store *store;
    rt_err err = {RT_OK, ""};
    en_store_stats stats;

    (void)state;
    open_fixture(&f, &spec, PL_WHOLE, 1);
    assert_int_equal(open_store(&f, 0, 5 * record_bytes(&f) + 100, &store, &err), RT_OK);
    assert_false(en_store_holds_all(store));
    stats = en_store_get_stats(store);
    assert_int_equal(stats.records, RECORDS);
    assert_int_equal(stats.records_in_ram, 3);
    assert_int_equal(stats.records_pinned, 0);
    assert_int_equal(stats.ram_bytes, 5 * record_bytes(&f));
    for (uint32_t e = 0; e < EXPERTS; e++) {
        assert_int_equal(en_store_is_resident(store, DENSE, e), e < 2);
        assert_int_equal(en_store_is_resident(store, DENSE + 1, e), e < 1);
    }
    for (uint32_t layer = DENSE; layer < LAYERS; layer++)
        for (uint32_t e = 0; e < EXPERTS; e++)
            check_record(&f, store, layer, e, ALL);
    stats = en_store_get_stats(store);
    assert_int_equal(stats.hits + stats.reads, RECORDS);
    assert_int_equal(stats.hits, stats.hits_cached);
    assert_true(stats.hits >= 3);
    assert_int_equal(stats.read_bytes, stats.reads * record_bytes(&f));
    assert_int_equal(stats.ram_bytes, 5 * record_bytes(&f));
    en_store_close(store);
    close_fixture(&f);
}

static void transit_slots_keep_what_was_used_last(void **state)
{
    tiny_model_spec spec = tiny_model_default();
    fixture f;
    en_store *store;
    rt_err err = {RT_OK, ""};

    (void)state;
    open_fixture(&f, &spec, PL_WHOLE, 1);
    assert_int_equal(open_store(&f, 0, 2 * record_bytes(&f), &store, &err), RT_OK);
    assert_int_equal(en_store_get_stats(store).records_in_ram, 0);
    check_record(&f, store, 1, 0, ALL); /* read */
    check_record(&f, store, 1, 1, ALL); /* read */
    check_record(&f, store, 1, 0, ALL); /* hit */
    check_record(&f, store, 1, 2, ALL); /* read, over 1 */
    check_record(&f, store, 1, 0, ALL); /* hit */
    check_record(&f, store, 1, 1, ALL); /* read again */
    assert_int_equal(en_store_get_stats(store).hits, 2);
    assert_int_equal(en_store_get_stats(store).reads, 4);
    assert_int_equal(en_store_get_stats(store).evictions, 2);
    en_store_close(store);
    close_fixture(&f);
}

static void sliced_records_are_staged_through_the_read_buffer(void **state)
{
    tiny_model_spec spec = tiny_model_default();
    fixture f;
    en_store *store;
    rt_err err = {RT_OK, ""};
    uint64_t slice, first;

    (void)state;
    open_fixture(&f, &spec, PL_SLICED, 2);
    slice = record_bytes(&f) / SLICES;
    first = (uint64_t)__builtin_popcount(pl_map_mask(f.map, DENSE, 0, 1)) * slice;
    /* A read buffer, two slots of the larger half, one resident. */
    assert_int_equal(open_store(&f, 1, (SLICES + 2 * 5 + 5) * slice, &store, &err), RT_OK);
    assert_int_equal(en_store_get_stats(store).records_in_ram, 1);
    assert_int_equal(en_store_get_stats(store).ram_bytes, (SLICES + 2 * 5) * slice + first);
    for (uint32_t e = 0; e < EXPERTS; e++) {
        check_record(&f, store, 2, e, pl_map_mask(f.map, 2, e, 1));
    }
    assert_int_equal(en_store_get_stats(store).reads, EXPERTS);
    en_store_close(store);
    close_fixture(&f);
}

static void pinned_slots_are_not_given_up(void **state)
{
    tiny_model_spec spec = tiny_model_default();
    fixture f;
    en_store *store;
    rt_err err = {RT_OK, ""};
    en_record a, b, c;

    (void)state;
    open_fixture(&f, &spec, PL_WHOLE, 1);
    assert_int_equal(open_store(&f, 0, 2 * record_bytes(&f), &store, &err), RT_OK);
    assert_int_equal(en_store_acquire(store, 1, 0, &a, &err), RT_OK);
    assert_int_equal(en_store_acquire(store, 1, 1, &b, &err), RT_OK);
    assert_int_equal(en_store_acquire(store, 1, 2, &c, &err), RT_EBUSY);
    assert_non_null(strstr(err.text, "layer 1 expert 2"));
    assert_int_equal(en_store_acquire(store, 1, 0, &c, &err), RT_OK); /* pinned twice */
    assert_ptr_equal(c.slice[0], a.slice[0]);
    en_store_release(store, &a);
    assert_int_equal(en_store_acquire(store, 1, 2, &a, &err), RT_EBUSY);
    en_store_release(store, &c);
    assert_int_equal(en_store_acquire(store, 1, 2, &a, &err), RT_OK);
    en_store_release(store, &a);
    en_store_release(store, &b);
    en_store_close(store);
    close_fixture(&f);
}

static void a_budget_below_two_slots_is_refused_with_needed_and_given(void **state)
{
    tiny_model_spec spec = tiny_model_default();
    fixture f;
    en_store *store = NULL;
    rt_err err = {RT_OK, ""};
    char number[32];

    (void)state;
    open_fixture(&f, &spec, PL_WHOLE, 1);
    assert_int_equal(open_store(&f, 0, 2 * record_bytes(&f) - 1, &store, &err), RT_ENOMEM);
    assert_null(store);
    snprintf(number, sizeof(number), "%zu", 2 * record_bytes(&f));
    assert_non_null(strstr(err.text, number));
    snprintf(number, sizeof(number), "%zu", 2 * record_bytes(&f) - 1);
    assert_non_null(strstr(err.text, number));
    close_fixture(&f);
}

/* Whole, sliced (with a read buffer), and a node whose share is less than two slots. */
static void a_store_opens_with_its_least_bytes_and_not_with_less(void **state)
{
    static const struct {
        pl_mode mode;
        uint32_t nodes;
        bool scrub;
    } cases[] = {{PL_WHOLE, 1, false},      {PL_SLICED, 2, false}, {PL_WHOLE, EXPERTS, false},
                 {PL_WHOLE, 1, true},       {PL_SLICED, 2, true},  {PL_WHOLE, EXPERTS, true},
                 {PL_SLICED, EXPERTS, true}};
    tiny_model_spec spec = tiny_model_default();

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        en_store *store = NULL;
        rt_err err = {RT_OK, ""};
        en_store_spec store_spec;
        uint64_t least;
        fixture f;

        open_fixture(&f, &spec, cases[i].mode, cases[i].nodes);
        least = en_store_least_bytes(f.container, f.map, 0, false, cases[i].scrub);
        assert_true(least > 0);
        store_spec = (en_store_spec){.container = f.container,
                                     .map = f.map,
                                     .ram_bytes = least - 1,
                                     .scrub = cases[i].scrub,
                                     .quiet = true};
        assert_int_equal(en_store_open(&store_spec, &store, &err), RT_ENOMEM);
        store_spec.ram_bytes = least;
        assert_int_equal(en_store_open(&store_spec, &store, &err), RT_OK);
        assert_true(en_store_get_stats(store).ram_bytes <= least);
        en_store_close(store);
        /* From there on every budget opens and is kept, also where all records just fit. */
        for (size_t step = MD_RECORD_ALIGN;
             store_spec.ram_bytes < least + record_bytes(&f) * (RECORDS + 2);
             store_spec.ram_bytes += step) {
            assert_int_equal(en_store_open(&store_spec, &store, &err), RT_OK);
            assert_true(en_store_get_stats(store).ram_bytes <= store_spec.ram_bytes);
            en_store_close(store);
        }
        close_fixture(&f);
    }
}

static void another_nodes_record_is_refused(void **state)
{
    tiny_model_spec spec = tiny_model_default();
    fixture f;
    en_store *store;
    rt_err err = {RT_OK, ""};
    en_record record;
    uint32_t held = 0;

    (void)state;
    open_fixture(&f, &spec, PL_WHOLE, 3);
    assert_int_equal(open_store(&f, 1, UINT64_MAX, &store, &err), RT_OK);
    for (uint32_t e = 0; e < EXPERTS; e++) {
        if (pl_map_mask(f.map, 1, e, 1) != 0) {
            held++;
            continue;
        }
        assert_int_equal(en_store_mask(store, 1, e), 0);
        assert_false(en_store_is_resident(store, 1, e));
        assert_int_equal(en_store_acquire(store, 1, e, &record, &err), RT_EINVAL);
    }
    assert_true(held > 0 && held < EXPERTS);
    assert_int_equal(en_store_acquire(store, 0, 0, &record, &err), RT_EINVAL);    /* dense */
    assert_int_equal(en_store_acquire(store, 99, 0, &record, &err), RT_EINVAL);   /* no such */
    assert_int_equal(en_store_acquire(store, 1, 5000, &record, &err), RT_EINVAL); /* no such */
    en_store_close(store);
    close_fixture(&f);
}

static void mtp_experts_have_their_own_size(void **state)
{
    tiny_model_spec spec = tiny_model_default();
    fixture f;
    en_store *store;
    rt_err err = {RT_OK, ""};
    md_expert_layout mtp;

    (void)state;
    spec.mtp = true;
    spec.dense_format = KN_F32;
    open_fixture(&f, &spec, PL_WHOLE, 1);
    md_container_expert_layout(f.container, LAYERS, &mtp);
    assert_true(mtp.record_bytes > record_bytes(&f));
    assert_int_equal(open_store(&f, 0, UINT64_MAX, &store, &err), RT_OK);
    assert_int_equal(en_store_get_stats(store).ram_bytes,
                     RECORDS * record_bytes(&f) + EXPERTS * mtp.record_bytes);
    check_record(&f, store, LAYERS, 3, ALL);
    en_store_close(store);
    /* Staging slots hold the largest. */
    assert_int_equal(open_store(&f, 0, 3 * mtp.record_bytes, &store, &err), RT_OK);
    check_record(&f, store, LAYERS, 3, ALL);
    check_record(&f, store, LAYERS - 1, 7, ALL);
    check_record(&f, store, LAYERS, 7, ALL);
    en_store_close(store);
    close_fixture(&f);
}

static void a_missing_pack_is_named_at_start(void **state)
{
    tiny_model_spec spec = tiny_model_default();
    fixture f;
    en_store *store = NULL;
    rt_err err = {RT_OK, ""};
    char path[512];

    (void)state;
    open_fixture(&f, &spec, PL_WHOLE, 1);
    md_container_close(f.container);
    snprintf(path, sizeof(path), "%s/experts-002.bin", f.dir);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(md_container_open(f.dir, &f.container, &err), RT_OK);
    assert_int_equal(open_store(&f, 0, UINT64_MAX, &store, &err), RT_EIO);
    assert_null(store);
    assert_non_null(strstr(err.text, "experts-002.bin"));
    assert_non_null(strstr(err.text, "layer 2 expert 0"));
    close_fixture(&f);
}

static void a_pack_of_other_nodes_records_need_not_be_here(void **state)
{
    tiny_model_spec spec = tiny_model_default();
    bool sparse[LAYERS] = {false, true, false}; /* a map that gives out layer 1 alone */
    uint32_t share[] = {1};
    pl_map_spec map = {.layers = LAYERS,
                       .sparse = sparse,
                       .experts = EXPERTS,
                       .slices = SLICES,
                       .nodes = 1,
                       .share = share,
                       .mode = PL_WHOLE,
                       .epoch = 1};
    fixture f;
    en_store *store;
    rt_err err = {RT_OK, ""};
    char path[512];

    (void)state;
    open_fixture(&f, &spec, PL_WHOLE, 1);
    md_container_close(f.container);
    pl_map_free(f.map);
    snprintf(path, sizeof(path), "%s/experts-002.bin", f.dir);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(md_container_open(f.dir, &f.container, &err), RT_OK);
    assert_int_equal(pl_map_create(&map, &f.map, &err), RT_OK);
    assert_int_equal(open_store(&f, 0, UINT64_MAX, &store, &err), RT_OK);
    assert_int_equal(en_store_get_stats(store).records, EXPERTS);
    en_store_close(store);
    close_fixture(&f);
}

static void a_node_without_a_share_has_an_empty_store(void **state)
{
    tiny_model_spec spec = tiny_model_default();
    fixture f;
    en_store *store;
    rt_err err = {RT_OK, ""};
    en_record record;
    bool sparse[LAYERS] = {false, true, true};
    uint32_t share[] = {1, 0};
    pl_map_spec map = {.layers = LAYERS,
                       .sparse = sparse,
                       .experts = EXPERTS,
                       .slices = SLICES,
                       .nodes = 2,
                       .share = share,
                       .mode = PL_WHOLE,
                       .epoch = 1};

    (void)state;
    open_fixture(&f, &spec, PL_WHOLE, 1);
    pl_map_free(f.map);
    assert_int_equal(pl_map_create(&map, &f.map, &err), RT_OK);
    assert_int_equal(open_store(&f, 1, 0, &store, &err), RT_OK);
    assert_int_equal(en_store_get_stats(store).records, 0);
    assert_int_equal(en_store_acquire(store, 1, 0, &record, &err), RT_EINVAL);
    en_store_close(store);
    close_fixture(&f);
}

static void a_damaged_resident_record_fails_the_start(void **state)
{
    tiny_model_spec spec = tiny_model_default();
    fixture f;
    en_store *store = NULL;
    rt_err err = {RT_OK, ""};

    (void)state;
    open_fixture(&f, &spec, PL_WHOLE, 1);
    tiny_model_damage(f.dir, 1, 4);
    assert_int_equal(open_store(&f, 0, UINT64_MAX, &store, &err), RT_EFORMAT);
    assert_null(store);
    assert_non_null(strstr(err.text, "experts-001.bin"));
    assert_non_null(strstr(err.text, "layer 1 expert 4"));
    close_fixture(&f);
}

static void a_damaged_staged_record_fails_each_time_and_no_other(void **state)
{
    tiny_model_spec spec = tiny_model_default();
    fixture f;
    en_store *store;
    rt_err err = {RT_OK, ""};
    en_record record;

    (void)state;
    open_fixture(&f, &spec, PL_WHOLE, 1);
    tiny_model_damage(f.dir, 2, 4);
    assert_int_equal(open_store(&f, 0, 3 * record_bytes(&f), &store, &err), RT_OK);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(en_store_acquire(store, 2, 4, &record, &err), RT_EFORMAT);
        assert_non_null(strstr(err.text, "layer 2 expert 4"));
        check_record(&f, store, 2, 5, ALL);
    }
    en_store_close(store);
    close_fixture(&f);
}

static void a_pack_that_shrinks_gives_a_read_error(void **state)
{
    tiny_model_spec spec = tiny_model_default();
    fixture f;
    en_store *store;
    rt_err err = {RT_OK, ""};
    en_record record;
    char path[512];

    (void)state;
    open_fixture(&f, &spec, PL_WHOLE, 1);
    assert_int_equal(open_store(&f, 0, 3 * record_bytes(&f), &store, &err), RT_OK);
    snprintf(path, sizeof(path), "%s/experts-002.bin", f.dir);
    assert_int_equal(truncate(path, 8192), 0);
    assert_int_equal(en_store_acquire(store, 2, 7, &record, &err), RT_EIO);
    assert_non_null(strstr(err.text, "experts-002.bin"));
    assert_non_null(strstr(err.text, "layer 2 expert 7"));
    check_record(&f, store, 1, 7, ALL);
    en_store_close(store);
    close_fixture(&f);
}

/* A disk that does not answer until it may. */
static ssize_t held_pread(void *context, int fd, void *data, size_t bytes, off_t offset)
{
    while (!atomic_load((atomic_bool *)context))
        sched_yield();
    return pread(fd, data, bytes, offset);
}

/* Last in the group: the request to stop stays for the whole process. */
static void a_stop_ends_the_loading_and_the_wait_for_a_disk(void **state)
{
    tiny_model_spec spec = tiny_model_default();
    atomic_bool answers = true;
    en_disk_ops ops = {held_pread, &answers};
    en_store_spec held = {.disk = &ops, .quiet = true};
    fixture f;
    en_store *waiting, *store = NULL;
    en_record record;
    rt_err err = {RT_OK, ""};

    (void)state;
    open_fixture(&f, &spec, PL_WHOLE, 1);
    held.container = f.container;
    held.map = f.map;
    held.ram_bytes = 3 * record_bytes(&f);
    assert_int_equal(en_store_open(&held, &waiting, &err), RT_OK);
    atomic_store(&answers, false);
    rt_stop_install();
    assert_int_equal(raise(SIGTERM), 0);
    assert_int_equal(open_store(&f, 0, UINT64_MAX, &store, &err), RT_ECANCELED);
    assert_null(store);
    assert_int_equal(en_store_acquire(waiting, 2, 7, &record, &err), RT_ECANCELED);
    assert_non_null(strstr(err.text, "stopped by signal"));
    atomic_store(&answers, true);
    en_store_close(waiting);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(with_room_for_all_every_record_is_resident),
        cmocka_unit_test(a_sliced_share_keeps_only_its_slices),
        cmocka_unit_test(a_small_budget_gives_every_layer_as_many_slots),
        cmocka_unit_test(transit_slots_keep_what_was_used_last),
        cmocka_unit_test(sliced_records_are_staged_through_the_read_buffer),
        cmocka_unit_test(pinned_slots_are_not_given_up),
        cmocka_unit_test(a_budget_below_two_slots_is_refused_with_needed_and_given),
        cmocka_unit_test(a_store_opens_with_its_least_bytes_and_not_with_less),
        cmocka_unit_test(another_nodes_record_is_refused),
        cmocka_unit_test(mtp_experts_have_their_own_size),
        cmocka_unit_test(a_missing_pack_is_named_at_start),
        cmocka_unit_test(a_pack_of_other_nodes_records_need_not_be_here),
        cmocka_unit_test(a_node_without_a_share_has_an_empty_store),
        cmocka_unit_test(a_damaged_resident_record_fails_the_start),
        cmocka_unit_test(a_damaged_staged_record_fails_each_time_and_no_other),
        cmocka_unit_test(a_pack_that_shrinks_gives_a_read_error),
        cmocka_unit_test(a_stop_ends_the_loading_and_the_wait_for_a_disk),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
