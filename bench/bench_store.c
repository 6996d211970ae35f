/* bench_store.c - the disk tier under the real heat: hit rate against the best static set, and the rate of
 * reads against the raw rate of the same disk in the same run.
 *
 *     bench_store CONTAINER USAGE [SHARE [TOKENS [FIRST_LAYER [known]]]]
 *
 * CONTAINER is a synthetic or real model, USAGE the real heat (data/glm52_heat.usage), SHARE the share of
 * the expert bytes that the store may hold (default 0.5). Every token draws topk experts of each layer
 * without replacement, in proportion to that heat; nothing is computed. The first half of the tokens warms
 * the cache, which starts without a heat file (with `known`: with that heat); the second is measured. The
 * static set that is compared holds the hottest experts of each layer of the very heat that is drawn from,
 * as many as the cache. Raw: two threads read with O_DIRECT, whole records, what the part of the run before
 * the last has missed. Decoding and raw reading take turns, so that a disk that others use, or whose host
 * caches some of it, is the same for both. */
#include "base/clock.h"
#include "base/file.h"
#include "base/slab.h"
#include "expert_node/store.h"
#include "placement/heat_usage.h"
#include "placement/map.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    RAW_THREADS = 2,
    MISSED_MAX = 128, /* that are noted of a part */
    PARTS = 6,        /* of the measured tokens */
    REAL_LAYERS = 78,
    REAL_DENSE = 3,
    USAGE_BYTES_MAX = 64 << 20,
};

typedef struct {
    const md_container *container;
    const md_config *config;
    pl_heat *heat; /* by the container's layers */
    uint64_t random;
    md_key missed[MISSED_MAX]; /* by the part under way */
    uint32_t missed_count;
} bench;

static void check(rt_status status, const rt_err *err)
{
    if (status == RT_OK) return;
    fprintf(stderr, "bench_store: %s: %s\n", rt_status_name(status), err->text);
    exit(1);
}

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "bench_store: %s: %s\n", what, why);
    exit(1);
}

static double uniform(uint64_t *state)
{
    *state = *state * 6364136223846793005U + 1442695040888963407U;
    return (double)(*state >> 11) * 0x1p-53;
}

/* The usage of GLM-5.2's layers, first_layer on, as the heat of the container's. */
static void load_heat(bench *b, const char *path, uint32_t first_layer)
{
    static bool real_sparse[REAL_LAYERS];
    uint32_t total = md_config_layers_total(b->config), next = first_layer;
    pl_heat_spec real = {.layers = REAL_LAYERS, .sparse = real_sparse, .experts = 256};
    pl_heat_spec spec = {
        .layers = total, .sparse = b->config->sparse, .experts = b->config->experts};
    pl_heat *usage_heat;
    pl_heat_usage usage;
    rt_err err = {RT_OK, ""};
    size_t bytes;
    char *text;

    for (uint32_t l = REAL_DENSE; l < REAL_LAYERS; l++)
        real_sparse[l] = true;
    check(pl_heat_create(&real, &usage_heat, &err), &err);
    check(pl_heat_create(&spec, &b->heat, &err), &err);
    check(rt_file_read(path, USAGE_BYTES_MAX, &text, &bytes, &err), &err);
    check(pl_heat_usage_read(text, bytes, REAL_LAYERS, path, usage_heat, &usage, &err), &err);
    free(text);
    for (uint32_t l = 0; l < b->config->layers; l++) {
        if (!b->config->sparse[l]) continue;
        for (uint32_t e = 0; e < b->config->experts; e++)
            pl_heat_add(b->heat, l, e, pl_heat_get(usage_heat, next, e % 256) + 0.25);
        next = next + 1 < REAL_LAYERS ? next + 1 : REAL_DENSE;
    }
    pl_heat_free(usage_heat);
}

static void draw(bench *b, uint32_t layer, uint32_t *out)
{
    for (uint32_t i = 0; i < b->config->topk; i++) {
        double left = pl_heat_layer_total(b->heat, layer), at;
        uint32_t e;
        for (uint32_t j = 0; j < i; j++)
            left -= pl_heat_get(b->heat, layer, out[j]);
        at = uniform(&b->random) * left;
        for (e = 0; e < b->config->experts; e++) {
            bool taken = false;
            for (uint32_t j = 0; j < i; j++)
                taken = taken || out[j] == e;
            if (taken) continue;
            out[i] = e;
            at -= pl_heat_get(b->heat, layer, e);
            if (at < 0) break;
        }
    }
}

/* What raw readers share. */
typedef struct {
    const md_container *container;
    md_key keys[MISSED_MAX];
    uint32_t count;
    atomic_uint next;
    atomic_ullong bytes;
    uint64_t ns;
    rt_slab room[RAW_THREADS]; /* on huge pages, as the store's: they make larger transfers */
} raw_run;

typedef struct {
    raw_run *run;
    void *data;
} raw_reader;

static void *read_raw(void *context)
{
    const raw_reader *reader = context;
    raw_run *self = reader->run;
    uint32_t i;

    while ((i = atomic_fetch_add(&self->next, 1)) < self->count) {
        md_record record;
        ssize_t got;
        if (!md_container_find(self->container, self->keys[i], &record))
            fail("a record", "not in the container");
        got = en_disk_real().pread(NULL, record.fd_direct, reader->data, en_disk_bytes(&record),
                                   (off_t)record.offset);
        if (got <= 0) fail("reading with O_DIRECT", got < 0 ? strerror(errno) : "end of file");
        atomic_fetch_add(&self->bytes, (unsigned long long)got);
    }
    return NULL;
}

/* Reads what `self` lists and adds to its bytes and time; then lists what the part has missed. */
static void read_missed(bench *b, raw_run *self)
{
    rt_clock clock = rt_clock_real();
    uint64_t begin = rt_clock_now(&clock);
    pthread_t thread[RAW_THREADS];
    raw_reader reader[RAW_THREADS];

    atomic_store(&self->next, 0);
    for (uint32_t i = 0; i < RAW_THREADS; i++) {
        reader[i] = (raw_reader){self, self->room[i].data};
        int error = pthread_create(&thread[i], NULL, read_raw, &reader[i]);
        if (error != 0) fail("a reader", strerror(error));
    }
    for (uint32_t i = 0; i < RAW_THREADS; i++)
        pthread_join(thread[i], NULL);
    self->ns += rt_clock_now(&clock) - begin;
    memcpy(self->keys, b->missed, sizeof(self->keys));
    self->count = b->missed_count;
    b->missed_count = 0;
}

static void note_missed(bench *b, const en_store *store, uint32_t layer, uint32_t expert)
{
    if (en_store_is_resident(store, layer, expert) || b->missed_count == MISSED_MAX) return;
    b->missed[b->missed_count++] = (md_key){(uint16_t)layer, MD_EXPERT, expert};
}

/* One token: a frame of each layer. Returns how many of its choices the static set has. */
static uint32_t decode(bench *b, en_store *store, const bool *fixed)
{
    uint32_t held = 0;

    for (uint32_t layer = 0; layer < b->config->layers; layer++) {
        en_want wants[MD_TOPK_MAX];
        uint32_t chosen[MD_TOPK_MAX];
        rt_err err = {RT_OK, ""};
        if (!b->config->sparse[layer]) continue;
        draw(b, layer, chosen);
        for (uint32_t i = 0; i < b->config->topk; i++) {
            wants[i] = (en_want){chosen[i], 1};
            held += fixed[layer * b->config->experts + chosen[i]];
            note_missed(b, store, layer, chosen[i]);
        }
        en_store_begin(store, layer, wants, b->config->topk, 1);
        for (uint32_t i = 0; i < b->config->topk; i++) {
            en_record record;
            uint32_t index;
            check(en_store_take(store, true, &index, &record, &err), &err);
            en_store_release(store, &record);
        }
        en_store_end(store);
    }
    return held;
}

/* The hottest `slots` experts of each layer. */
static bool *static_set(const bench *b, uint32_t slots)
{
    bool *set = calloc((size_t)b->config->layers * b->config->experts, sizeof(*set));
    pl_heat_entry *order = calloc(b->config->experts, sizeof(*order));
    uint32_t found;

    if (set == NULL || order == NULL) fail("static set", "no memory");
    for (uint32_t layer = 0; layer < b->config->layers; layer++) {
        if (!b->config->sparse[layer]) continue;
        if (pl_heat_layer_top(b->heat, layer, order, slots, &found) != RT_OK)
            fail("static set", "no memory");
        for (uint32_t i = 0; i < found; i++)
            set[layer * b->config->experts + order[i].expert] = true;
    }
    free(order);
    return set;
}

static pl_map *map_of(const md_container *container)
{
    const md_config *config = md_container_config(container);
    uint32_t share[1] = {1};
    md_expert_layout layout;
    pl_map_spec spec = {.layers = config->layers,
                        .sparse = config->sparse,
                        .experts = config->experts,
                        .nodes = 1,
                        .share = share,
                        .epoch = 1};
    rt_err err = {RT_OK, ""};
    pl_map *map;

    md_container_expert_layout(container, config->layers - 1, &layout);
    spec.slices = layout.slices;
    check(pl_map_create(&spec, &map, &err), &err);
    return map;
}

static void run(bench *b, double share, uint32_t tokens, bool known)
{
    md_expert_layout layout;
    rt_clock clock = rt_clock_real();
    pl_map *map = map_of(b->container);
    en_store_spec spec = {.container = b->container, .map = map, .quiet = true};
    en_store_stats before, after;
    rt_err err = {RT_OK, ""};
    en_store *store;
    raw_run raw = {.container = b->container};
    uint64_t begin, ns = 0, held = 0, sparse = 0, choices;
    bool *fixed;
    double raw_gbs;

    md_container_expert_layout(b->container, b->config->layers - 1, &layout);
    for (uint32_t l = 0; l < b->config->layers; l++)
        sparse += b->config->sparse[l];
    spec.ram_bytes =
        (uint64_t)(share * (double)(sparse * b->config->experts * layout.record_bytes));
    spec.heat = known ? b->heat : NULL;
    check(en_store_open(&spec, &store, &err), &err);
    for (uint32_t i = 0; i < RAW_THREADS; i++)
        check(rt_slab_alloc(layout.record_bytes, &raw.room[i], &err), &err);
    fixed = static_set(b, (uint32_t)(spec.ram_bytes / layout.record_bytes / sparse));
    for (uint32_t t = 0; t < tokens / 2; t++) {
        if (t == tokens / 4) b->missed_count = 0; /* of a settled cache */
        decode(b, store, fixed);
    }
    read_missed(b, &raw);
    raw.ns = 0;
    before = en_store_get_stats(store);
    for (uint32_t part = 0; part < PARTS; part++) {
        begin = rt_clock_now(&clock);
        for (uint32_t t = tokens / 2 * part / PARTS; t < tokens / 2 * (part + 1) / PARTS; t++)
            held += decode(b, store, fixed);
        ns += rt_clock_now(&clock) - begin;
        read_missed(b, &raw);
    }
    after = en_store_get_stats(store);
    choices = tokens / 2 * sparse * b->config->topk;
    raw_gbs = (double)atomic_load(&raw.bytes) / (double)raw.ns;
    printf(
        "share,ram_gb,choices,hit_pct,static_pct,read_gb,read_gbs,raw_gbs,of_raw_pct,evictions\n");
    printf("%.3f,%.2f,%llu,%.2f,%.2f,%.2f,%.3f,%.3f,%.1f,%llu\n", share,
           (double)after.ram_bytes * 1e-9, (unsigned long long)choices,
           100.0 * (double)(after.hits - before.hits) / (double)choices,
           100.0 * (double)held / (double)choices,
           (double)(after.read_bytes - before.read_bytes) * 1e-9,
           (double)(after.read_bytes - before.read_bytes) / (double)ns, raw_gbs,
           100.0 * (double)(after.read_bytes - before.read_bytes) / (double)ns / raw_gbs,
           (unsigned long long)(after.evictions - before.evictions));
    for (uint32_t i = 0; i < RAW_THREADS; i++)
        rt_slab_free(&raw.room[i]);
    en_store_close(store);
    pl_map_free(map);
    free(fixed);
}

int main(int argc, char **argv)
{
    double share = argc > 3 ? atof(argv[3]) : 0.5;
    uint32_t tokens = argc > 4 ? (uint32_t)atoi(argv[4]) : 200;
    uint32_t first = argc > 5 ? (uint32_t)atoi(argv[5]) : REAL_DENSE;
    bench b = {.random = 7};
    md_container *container;
    rt_err err = {RT_OK, ""};

    if (argc < 3 || argv[1][0] == '-') {
        fprintf(stderr,
                "usage: bench_store CONTAINER USAGE [SHARE [TOKENS [FIRST_LAYER [known]]]]\n");
        return 2;
    }
    check(md_container_open(argv[1], &container, &err), &err);
    b.container = container;
    b.config = md_container_config(container);
    load_heat(&b, argv[2], first);
    run(&b, share, tokens, argc > 6 && strcmp(argv[6], "known") == 0);
    pl_heat_free(b.heat);
    md_container_close(container);
    return 0;
}
