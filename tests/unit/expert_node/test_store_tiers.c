/* test_store_tiers.c - what heat loads, pins and displaces, frames and hints, and reads from several
 * copies of which some are bad. */
#include "expert_node/store.h"

#include "tests/support/expert_rig.h"
#include "tests/support/faulty_disk.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

enum { LAYERS = 3, DENSE = 1, EXPERTS = 8, RECORDS = (LAYERS - DENSE) * EXPERTS };

/* Two containers of one model: what a deterministic build gives twice. */
typedef struct {
    char *dir, *mirror;
    md_container *container;
    pl_map *map;
    pl_heat *heat;
    size_t bytes; /* of a record */
} fixture;

static void open_fixture(fixture *f)
{
    tiny_model_spec spec = tiny_model_default();
    bool sparse[LAYERS] = {false, true, true};
    pl_heat_spec heat = {.layers = LAYERS, .sparse = sparse, .experts = EXPERTS};
    md_expert_layout layout;
    rt_err err = {RT_OK, ""};

    f->dir = tiny_model_build(&spec);
    f->mirror = tiny_model_build(&spec);
    assert_int_equal(md_container_open(f->dir, &f->container, &err), RT_OK);
    f->map = expert_rig_map(f->container, PL_WHOLE, 1, false);
    assert_int_equal(pl_heat_create(&heat, &f->heat, &err), RT_OK);
    md_container_expert_layout(f->container, DENSE, &layout);
    f->bytes = layout.record_bytes;
}

static void close_fixture(fixture *f)
{
    pl_heat_free(f->heat);
    pl_map_free(f->map);
    md_container_close(f->container);
    temp_dir_remove(f->dir);
    temp_dir_remove(f->mirror);
}

/* A store of so many records; the rest of spec as given. */
static en_store *open_store(const fixture *f, uint32_t records, en_store_spec spec)
{
    en_store *store = NULL;
    rt_err err = {RT_OK, ""};
    rt_status status;

    spec.container = f->container;
    spec.map = f->map;
    spec.ram_bytes = records * f->bytes;
    spec.quiet = true;
    status = en_store_open(&spec, &store, &err);
    if (status != RT_OK) print_error("%s\n", err.text);
    assert_int_equal(status, RT_OK);
    return store;
}

static void check_bytes(const fixture *f, uint32_t layer, uint32_t expert, const en_record *record)
{
    md_key key = {(uint16_t)layer, MD_EXPERT, expert};
    uint8_t *bytes = malloc(f->bytes);
    rt_err err = {RT_OK, ""};
    md_record disk;

    assert_non_null(bytes);
    assert_true(md_container_find(f->container, key, &disk));
    if (md_record_read(&disk, bytes, &err) == RT_OK)
        assert_memory_equal(record->slice[0], bytes, f->bytes);
    free(bytes);
}

static void use(const fixture *f, en_store *store, uint32_t layer, uint32_t expert)
{
    rt_err err = {RT_OK, ""};
    en_record record;

    assert_int_equal(en_store_acquire(store, layer, expert, &record, &err), RT_OK);
    check_bytes(f, layer, expert, &record);
    en_store_release(store, &record);
}

/* A frame of one expert that so many rows chose. */
static void use_often(en_store *store, uint32_t layer, uint32_t expert, uint32_t selections)
{
    en_want want = {expert, selections};
    rt_err err = {RT_OK, ""};
    en_record record;
    uint32_t index;

    en_store_begin(store, layer, &want, 1, selections);
    assert_int_equal(en_store_take(store, true, &index, &record, &err), RT_OK);
    assert_int_equal(index, 0);
    en_store_release(store, &record);
    en_store_end(store);
}

static void heat_decides_what_is_loaded_and_its_certainty_what_is_pinned(void **state)
{
    fixture f;
    en_store *store;

    (void)state;
    open_fixture(&f);
    for (uint32_t layer = DENSE; layer < LAYERS; layer++)
        for (uint32_t e = 0; e < EXPERTS; e++)
            pl_heat_add(f.heat, layer, e, e == 0 ? 1 : 5.0 * e);
    assert_true(pl_heat_confidence(f.heat) == 1);
    /* 2 transit slots, 4 for each layer. */
    store = open_store(&f, 10, (en_store_spec){.heat = f.heat});
    for (uint32_t layer = DENSE; layer < LAYERS; layer++)
        for (uint32_t e = 0; e < EXPERTS; e++)
            assert_int_equal(en_store_is_resident(store, layer, e), e >= 4);
    assert_int_equal(en_store_get_stats(store).records_pinned, 4);
    use(&f, store, 1, 7);
    use(&f, store, 1, 4);
    assert_int_equal(en_store_get_stats(store).hits_pinned, 1);
    assert_int_equal(en_store_get_stats(store).hits_cached, 1);
    en_store_close(store);

    pl_heat_scale(f.heat, 0.01); /* too little to be sure of */
    assert_true(pl_heat_confidence(f.heat) == 0);
    store = open_store(&f, 10, (en_store_spec){.heat = f.heat});
    assert_true(en_store_is_resident(store, 2, 4));
    assert_int_equal(en_store_get_stats(store).records_pinned, 0);
    en_store_close(store);
    close_fixture(&f);
}

static void a_pinned_record_stays_however_cold_it_becomes(void **state)
{
    fixture f;
    en_store *store;

    (void)state;
    open_fixture(&f);
    for (uint32_t e = 0; e < EXPERTS; e++)
        pl_heat_add(f.heat, 1, e, e == 5 ? 200 : 10);
    store = open_store(&f, 6, (en_store_spec){.heat = f.heat}); /* 2 slots for each layer */
    assert_int_equal(en_store_get_stats(store).records_pinned, 1);
    for (uint32_t e = 0; e < EXPERTS; e++)
        if (e != 5) use_often(store, 1, e, 100000 + e * 40000);
    assert_true(en_store_is_resident(store, 1, 5));
    en_store_close(store);
    close_fixture(&f);
}

static void a_newcomer_displaces_only_what_is_colder(void **state)
{
    fixture f;
    en_store *store;

    (void)state;
    open_fixture(&f);
    pl_heat_add(f.heat, 1, 0, 20);
    pl_heat_add(f.heat, 1, 1, 10);
    store = open_store(&f, 6, (en_store_spec){.heat = f.heat}); /* 0 and 1; two transit slots */
    use_often(store, 1, 2, 10);                                 /* as hot as 1 */
    use(&f, store, 1, 5);
    use(&f, store, 1, 6);
    use(&f, store, 1, 7); /* over 2 in transit */
    assert_true(en_store_is_resident(store, 1, 1));
    assert_false(en_store_is_resident(store, 1, 2));
    use_often(store, 1, 2, 2);
    assert_false(en_store_is_resident(store, 1, 1));
    assert_true(en_store_is_resident(store, 1, 0));
    use(&f, store, 1, 5);
    use(&f, store, 1, 6);
    use(&f, store, 1, 7);
    assert_true(en_store_is_resident(store, 1, 2));
    en_store_close(store);
    close_fixture(&f);
}

/* Half of the experts fit; what is chosen more often than the rest ends up in RAM. */
static void the_cache_learns_which_experts_are_hot(void **state)
{
    static const uint32_t hot[] = {1, 4, 6};
    fixture f;
    en_store *store;
    en_store_stats before, after;

    (void)state;
    open_fixture(&f);
    store = open_store(&f, 10, (en_store_spec){0});
    for (int round = 0; round < 40; round++) {
        if (round == 20) before = en_store_get_stats(store);
        for (uint32_t layer = DENSE; layer < LAYERS; layer++) {
            for (int i = 0; i < 3; i++)
                use(&f, store, layer, hot[i]);
            use(&f, store, layer, (uint32_t)round % EXPERTS);
        }
    }
    after = en_store_get_stats(store);
    /* The hot ones always hit, and so does the fourth when it is one of them. */
    assert_true(after.hits - before.hits >= 20 * 2 * 3);
    assert_true(after.reads > before.reads);
    assert_int_equal(after.ram_bytes, 10 * f.bytes);
    en_store_close(store);
    close_fixture(&f);
}

static void a_frame_gives_what_is_in_ram_first_and_each_want_once(void **state)
{
    static const en_want wants[EXPERTS] = {{7, 1}, {3, 1}, {0, 1}, {5, 2},
                                           {1, 1}, {2, 1}, {4, 1}, {6, 1}};
    fixture f;
    en_store *store;
    rt_err err = {RT_OK, ""};
    uint32_t seen = 0;

    (void)state;
    open_fixture(&f);
    store = open_store(&f, 6, (en_store_spec){0}); /* 0 and 1 of each layer, two transit slots */
    en_store_begin(store, 1, wants, EXPERTS, 2);
    for (uint32_t i = 0; i < EXPERTS; i++) {
        en_record record;
        uint32_t index;
        assert_int_equal(en_store_take(store, true, &index, &record, &err), RT_OK);
        assert_true(index < EXPERTS && !(seen >> index & 1));
        seen |= 1U << index;
        check_bytes(&f, 1, wants[index].expert, &record);
        assert_int_equal(record.tier, EN_TIER_RAM);
        assert_int_equal(record.staged, wants[index].expert > 1);
        if (i < 2) assert_true(wants[index].expert <= 1);
        en_store_release(store, &record);
    }
    en_store_end(store);
    assert_int_equal(en_store_get_stats(store).hits, 2);
    assert_int_equal(en_store_get_stats(store).reads, EXPERTS - 2);
    en_store_close(store);
    close_fixture(&f);
}

static void a_frame_that_is_left_takes_nothing_with_it(void **state)
{
    static const en_want wants[] = {{2, 1}, {3, 1}, {4, 1}, {5, 1}};
    fixture f;
    en_store *store;

    (void)state;
    open_fixture(&f);
    store = open_store(&f, 6, (en_store_spec){0});
    for (int i = 0; i < 5; i++) {
        en_store_begin(store, 1, wants, 4, 1);
        if (i % 2 == 0) en_store_end(store);
    }
    for (uint32_t e = 0; e < EXPERTS; e++)
        use(&f, store, 2, e);
    en_store_close(store);
    close_fixture(&f);
}

static void a_hint_is_read_early_and_counted_as_useful_or_wasted(void **state)
{
    static const uint16_t foreseen[] = {6, 0};
    fixture f;
    en_store *store;
    en_store_stats stats;

    (void)state;
    open_fixture(&f);
    store = open_store(&f, 6, (en_store_spec){0});
    en_store_hint(store, 2, foreseen, 2);
    use(&f, store, 1, 0); /* a frame begins: the hint's turn comes behind it */
    stats = en_store_get_stats(store);
    assert_int_equal(stats.ahead_reads, 1); /* 0 is in RAM */
    use(&f, store, 2, 6);
    assert_int_equal(en_store_get_stats(store).ahead_useful, 1);
    en_store_hint(store, 2, (const uint16_t[]){7}, 1);
    en_store_idle(store);
    while (!en_store_is_resident(store, 2, 7))
        use(&f, store, 1, 0); /* each takes what the disk has finished */
    for (uint32_t e = 1; e < 6; e++)
        use_often(store, 2, e, 50 * e);
    stats = en_store_get_stats(store);
    assert_int_equal(stats.ahead_wasted + stats.ahead_useful, stats.ahead_reads);
    assert_int_equal(stats.ahead_useful, 1);
    en_store_hint(store, 0, foreseen, 2); /* a layer without experts, and one too many */
    en_store_hint(store, 99, foreseen, 2);
    en_store_idle(store);
    en_store_close(store);
    close_fixture(&f);
}

static void a_hint_never_displaces_what_is_hotter(void **state)
{
    static const uint16_t foreseen[] = {2, 3, 4, 5, 6, 7};
    fixture f;
    en_store *store;

    (void)state;
    open_fixture(&f);
    pl_heat_add(f.heat, 1, 0, 3);
    pl_heat_add(f.heat, 1, 1, 3);
    store = open_store(&f, 6, (en_store_spec){.heat = f.heat});
    for (int i = 0; i < 10; i++) {
        en_store_hint(store, 1, foreseen, 6);
        use(&f, store, 2, 0);
        use(&f, store, 2, 1);
        assert_true(en_store_is_resident(store, 1, 0));
        assert_true(en_store_is_resident(store, 1, 1));
    }
    en_store_close(store);
    close_fixture(&f);
}

static void a_mirror_stands_in_for_a_bad_record(void **state)
{
    fixture f;
    en_store *store;

    (void)state;
    open_fixture(&f);
    tiny_model_damage(f.dir, 2, 4);
    tiny_model_damage(f.mirror, 2, 5);
    store = open_store(&f, 2, (en_store_spec){.mirrors = f.mirror});
    for (int i = 0; i < 20; i++)
        for (uint32_t e = 3; e < 7; e++)
            use(&f, store, 2, e);
    assert_true(en_store_get_stats(store).quarantined >= 1);
    assert_true(en_store_get_stats(store).quarantined <= 2);
    /* A quarantined copy is not read again. */
    assert_int_equal(en_store_get_stats(store).read_failures,
                     en_store_get_stats(store).quarantined);
    en_store_close(store);
    /* Everything in RAM: the start, too, uses what is sound. */
    store = open_store(&f, RECORDS, (en_store_spec){.mirrors = f.mirror});
    assert_true(en_store_holds_all(store));
    en_store_close(store);
    close_fixture(&f);
}

static void a_mirror_may_hold_the_packs_that_this_copy_lacks(void **state)
{
    fixture f;
    en_store *store = NULL;
    rt_err err = {RT_OK, ""};
    char path[512];

    (void)state;
    open_fixture(&f);
    md_container_close(f.container);
    snprintf(path, sizeof(path), "%s/experts-002.bin", f.dir);
    assert_int_equal(unlink(path), 0);
    snprintf(path, sizeof(path), "%s/experts-001.bin", f.mirror);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(md_container_open(f.dir, &f.container, &err), RT_OK);
    store = open_store(&f, 3, (en_store_spec){.mirrors = f.mirror});
    for (uint32_t layer = DENSE; layer < LAYERS; layer++)
        for (uint32_t e = 0; e < EXPERTS; e++)
            use(&f, store, layer, e);
    en_store_close(store);
    close_fixture(&f);
}

static void mirrors_may_have_more_files_than_the_soft_limit(void **state)
{
    struct rlimit before, low;
    fixture f;
    en_store *store;
    int next;

    (void)state;
    open_fixture(&f);
    next = dup(STDERR_FILENO);
    assert_true(next >= 0);
    close(next);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    low = before;
    low.rlim_cur = (rlim_t)next + 1;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    store = open_store(&f, 3, (en_store_spec){.mirrors = f.mirror});
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    en_store_close(store);
    close_fixture(&f);
}

static void a_mirror_of_another_model_is_refused_with_both_ids(void **state)
{
    tiny_model_spec other = tiny_model_default();
    fixture f;
    en_store *store = NULL;
    en_store_spec spec;
    rt_err err = {RT_OK, ""};
    char id[65], *dir;

    (void)state;
    open_fixture(&f);
    other.seed++;
    dir = tiny_model_build(&other);
    spec = (en_store_spec){.container = f.container,
                           .map = f.map,
                           .ram_bytes = UINT64_MAX,
                           .mirrors = dir,
                           .quiet = true};
    assert_int_equal(en_store_open(&spec, &store, &err), RT_EINVAL);
    assert_null(store);
    md_model_id_format(md_container_get_info(f.container)->model_id, id);
    assert_non_null(strstr(err.text, id));
    assert_non_null(strstr(err.text, dir));
    assert_non_null(strstr(err.text, "found "));
    assert_int_equal(strlen(strstr(err.text, "found ")), strlen("found ") + 64);

    err = (rt_err){RT_OK, ""};
    spec.mirrors = "/nonexistent";
    assert_int_not_equal(en_store_open(&spec, &store, &err), RT_OK);
    assert_non_null(strstr(err.text, "/nonexistent"));
    err = (rt_err){RT_OK, ""};
    temp_dir_remove(dir);
    dir = malloc(8 * strlen(f.mirror) + 9);
    assert_non_null(dir);
    dir[0] = '\0';
    for (int i = 0; i < 8; i++)
        strcat(strcat(dir, i == 0 ? "" : ":"), f.mirror);
    spec.mirrors = dir;
    assert_int_equal(en_store_open(&spec, &store, &err), RT_EINVAL);
    assert_non_null(strstr(err.text, "at most 7 mirrors"));
    free(dir);
    close_fixture(&f);
}

static void with_a_mirror_no_fault_is_seen(void **state)
{
    static faulty_disk faulty;
    fixture f;
    en_store *store;

    (void)state;
    open_fixture(&f);
    for (uint64_t seed = 1; seed <= 5; seed++) {
        en_disk_ops ops = faulty_disk_ops(&faulty);
        faulty_disk_init(&faulty, seed, 20, NULL);
        store = open_store(&f, 4, (en_store_spec){.mirrors = f.mirror, .disk = &ops});
        for (int i = 0; i < 5; i++)
            for (uint32_t layer = DENSE; layer < LAYERS; layer++)
                for (uint32_t e = 0; e < EXPERTS; e++)
                    use(&f, store, layer, e);
        assert_true(faulty.faults > 0);
        en_store_close(store);
    }
    close_fixture(&f);
}

static void without_a_mirror_a_fault_is_one_clear_error_and_the_store_lives_on(void **state)
{
    static faulty_disk faulty;
    fixture f;
    en_store *store;
    en_disk_ops ops = faulty_disk_ops(&faulty);
    uint32_t errors = 0, good = 0;

    (void)state;
    open_fixture(&f);
    faulty_disk_init(&faulty, 3, 0, NULL);
    store = open_store(&f, 3, (en_store_spec){.disk = &ops});
    faulty_disk_init(&faulty, 3, 20, NULL);
    for (int i = 0; i < 10; i++) {
        for (uint32_t e = 0; e < EXPERTS; e++) {
            rt_err err = {RT_OK, ""};
            char name[32];
            en_record record;
            rt_status status = en_store_acquire(store, 2, e, &record, &err);
            if (status == RT_OK) {
                check_bytes(&f, 2, e, &record);
                en_store_release(store, &record);
                good++;
                continue;
            }
            errors++;
            assert_true(status == RT_EIO || status == RT_EFORMAT);
            snprintf(name, sizeof(name), "layer 2 expert %u", e);
            assert_non_null(strstr(err.text, name));
            assert_non_null(strstr(err.text, "experts-002.bin"));
            if (status == RT_EFORMAT) assert_non_null(strstr(err.text, "hash expected"));
        }
    }
    assert_true(errors > 0 && good > errors);
    assert_int_equal(errors, faulty.faults);
    en_store_close(store);
    close_fixture(&f);
}

/* Counts reads through a descriptor with O_DIRECT. */
static ssize_t count_direct(void *context, int fd, void *data, size_t bytes, off_t offset)
{
    if (fcntl(fd, F_GETFL) & O_DIRECT) atomic_fetch_add((atomic_int *)context, 1);
    return pread(fd, data, bytes, offset);
}

static void every_budget_is_kept_and_gives_the_same_bytes(void **state)
{
    fixture f;

    (void)state;
    open_fixture(&f);
    for (uint32_t records = 2; records <= RECORDS + 1; records++) {
        for (int buffered = 0; buffered < 2; buffered++) {
            atomic_int direct = 0;
            en_disk_ops ops = {count_direct, &direct};
            en_store *store =
                open_store(&f, records, (en_store_spec){.buffered = buffered != 0, .disk = &ops});
            assert_true(en_store_get_stats(store).ram_bytes <= records * f.bytes);
            for (uint32_t layer = DENSE; layer < LAYERS; layer++)
                for (uint32_t e = 0; e < EXPERTS; e++)
                    use(&f, store, layer, e);
            assert_true(en_store_get_stats(store).ram_bytes <= records * f.bytes);
            en_store_close(store);
            if (buffered) assert_int_equal(direct, 0);
        }
    }
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heat_decides_what_is_loaded_and_its_certainty_what_is_pinned),
        cmocka_unit_test(a_pinned_record_stays_however_cold_it_becomes),
        cmocka_unit_test(a_newcomer_displaces_only_what_is_colder),
        cmocka_unit_test(the_cache_learns_which_experts_are_hot),
        cmocka_unit_test(a_frame_gives_what_is_in_ram_first_and_each_want_once),
        cmocka_unit_test(a_frame_that_is_left_takes_nothing_with_it),
        cmocka_unit_test(a_hint_is_read_early_and_counted_as_useful_or_wasted),
        cmocka_unit_test(a_hint_never_displaces_what_is_hotter),
        cmocka_unit_test(a_mirror_stands_in_for_a_bad_record),
        cmocka_unit_test(a_mirror_may_hold_the_packs_that_this_copy_lacks),
        cmocka_unit_test(mirrors_may_have_more_files_than_the_soft_limit),
        cmocka_unit_test(a_mirror_of_another_model_is_refused_with_both_ids),
        cmocka_unit_test(with_a_mirror_no_fault_is_seen),
        cmocka_unit_test(without_a_mirror_a_fault_is_one_clear_error_and_the_store_lives_on),
        cmocka_unit_test(every_budget_is_kept_and_gives_the_same_bytes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
