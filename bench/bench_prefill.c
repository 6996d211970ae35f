/* bench_prefill.c - the expert phase of a prefill step against the kernels alone.
 *
 *     bench_prefill CONTAINER [ROWS [PASSES [THREADS [KERNELS]]]]
 *
 * CONTAINER is a model of bench/make_synthetic or a real one; the experts of its first MoE layer are loaded. A
 * frame of ROWS rows (default 512) spreads its choices evenly, so that with 256 experts and top-8 each gets 16
 * rows. Expert node: what it does from a checked frame to the reply's payload. Kernels: the same slices for as
 * many rows that lie side by side, the same team, nothing gathered and nothing summed. Both take turns; the
 * fastest pass of each counts, by the wall clock and by the processor time of all threads. */
#include "base/clock.h"
#include "base/slab.h"
#include "expert_node/execute.h"
#include "kernels/select.h"
#include "model/ffn.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct {
    md_container *container;
    const md_config *config;
    rt_team *team;
    pl_map *map;
    en_store *store;
    en_executor *executor;
    uint32_t layer, rows, each; /* each: rows of an expert */
    md_expert_layout layout;
    en_record *records; /* [experts] */
    kn_rows x;
    rt_slab x_room, ffn_room; /* ffn: of each member, y and scratch */
    size_t member_bytes, y_bytes;
    tr_dispatch_view view;
    uint8_t *payload;
} bench;

typedef struct {
    double wall_s, cpu_s;
} timing;

static void check(rt_status status, const rt_err *err)
{
    if (status == RT_OK) return;
    fprintf(stderr, "bench_prefill: %s: %s\n", rt_status_name(status), err->text);
    exit(1);
}

static void *must(void *memory)
{
    if (memory != NULL) return memory;
    fprintf(stderr, "bench_prefill: no memory\n");
    exit(1);
}

static timing now(void)
{
    rt_clock wall = rt_clock_real(), processor = rt_clock_process();

    return (timing){1e-9 * (double)rt_clock_now(&wall), 1e-9 * (double)rt_clock_now(&processor)};
}

static timing since(timing begin)
{
    timing end = now();

    return (timing){end.wall_s - begin.wall_s, end.cpu_s - begin.cpu_s};
}

static timing fastest(timing best, timing pass)
{
    if (best.wall_s <= 0 || pass.wall_s < best.wall_s) best.wall_s = pass.wall_s;
    if (best.cpu_s <= 0 || pass.cpu_s < best.cpu_s) best.cpu_s = pass.cpu_s;
    return best;
}

/* All experts of the layer in RAM. */
static void load(bench *b)
{
    bool *sparse = must(calloc(b->config->layers, sizeof(*sparse)));
    uint32_t share[1] = {1};
    pl_map_spec map = {.layers = b->config->layers,
                       .sparse = sparse,
                       .experts = b->config->experts,
                       .slices = b->layout.slices,
                       .nodes = 1,
                       .share = share,
                       .epoch = 1};
    en_store_spec spec = {.container = b->container, .ram_bytes = UINT64_MAX, .quiet = true};
    rt_err err = {RT_OK, ""};

    sparse[b->layer] = true;
    check(pl_map_create(&map, &b->map, &err), &err);
    spec.map = b->map;
    check(en_store_open(&spec, &b->store, &err), &err);
    b->records = must(calloc(b->config->experts, sizeof(*b->records)));
    for (uint32_t e = 0; e < b->config->experts; e++) {
        check(en_store_acquire(b->store, b->layer, e, &b->records[e], &err), &err);
        en_store_release(b->store,
                         &b->records[e]); /* it stays: there is no other use for its slot */
    }
    free(sparse);
}

/* Row r has the experts that follow it in steps of a stride: every expert as often, none twice. */
static void make_frame(bench *b)
{
    uint32_t hidden = b->config->hidden, group = b->layout.hidden_group, topk = b->config->topk;
    uint32_t experts = b->config->experts, stride = experts / topk;
    uint16_t *count = must(calloc(b->rows, sizeof(*count)));
    tr_entry *entries = must(calloc((size_t)b->rows * topk, sizeof(*entries)));
    float *x = must(calloc((size_t)b->rows * hidden, sizeof(*x)));
    uint64_t random = 3;
    rt_err err = {RT_OK, ""};

    for (size_t i = 0; i < (size_t)b->rows * hidden; i++) {
        random = random * 6364136223846793005U + 1442695040888963407U;
        x[i] = (float)((double)(random >> 40) * 0x1p-24 - 0.5);
    }
    for (uint32_t r = 0; r < b->rows; r++) {
        count[r] = (uint16_t)topk;
        for (uint32_t i = 0; i < topk; i++)
            entries[r * topk + i] =
                (tr_entry){.expert = (uint16_t)((r * 37 + i * stride) % experts),
                           .slice_mask = (1U << b->layout.slices) - 1,
                           .weight = 0.125F};
    }
    check(rt_slab_alloc(kn_rows_quant_bytes(b->rows, hidden, group), &b->x_room, &err), &err);
    b->x = kn_rows_quantise(x, hidden, b->rows, hidden, group, b->x_room.data);
    b->x.f32 = NULL;
    b->view = (tr_dispatch_view){.entry_count = count, .entries = entries};
    b->view.q = b->x.q;
    b->view.scale = b->x.scale;
    b->view.head = (tr_frame_header){.type = TR_DISPATCH,
                                     .encoding = TR_ROWS_INT8,
                                     .layer = (uint16_t)b->layer,
                                     .rows = (uint16_t)b->rows,
                                     .group = (uint16_t)group,
                                     .q = 8,
                                     .cols = hidden,
                                     .entries = b->rows * topk};
    free(x);
}

static timing node_pass(bench *b)
{
    timing begin = now();
    rt_err err = {RT_OK, ""};
    size_t bytes;

    check(en_execute(b->executor, &b->view, b->payload, &bytes, &err), &err);
    return since(begin);
}

static void kernel_job(void *context, size_t chunk, uint32_t member)
{
    bench *b = context;
    uint8_t *room = (uint8_t *)b->ffn_room.data + member * b->member_bytes;
    uint32_t groups = b->config->hidden / b->layout.hidden_group;
    uint32_t first = (uint32_t)chunk * b->each % (b->rows - b->each + 1);
    kn_rows x = b->x;

    x.q += (size_t)first * b->config->hidden;
    x.scale += (size_t)first * groups;
    x.sum += (size_t)first * groups;
    x.rows = b->each;
    for (uint32_t s = 0; s < b->layout.slices; s++) {
        md_slice slice = md_slice_view(&b->layout, s, b->records[chunk].slice[s]);
        md_ffn_slice((float *)(void *)room, b->config->hidden, &x, &slice, room + b->y_bytes);
    }
}

static timing kernel_pass(bench *b)
{
    timing begin = now();

    rt_team_run(b->team, kernel_job, b, b->config->experts);
    return since(begin);
}

static void prepare(bench *b, uint32_t threads)
{
    rt_team_spec team = {.threads = threads};
    en_executor_spec spec = {.container = b->container, .rows_max = b->rows};
    rt_err err = {RT_OK, ""};

    while (!b->config->sparse[b->layer])
        b->layer++;
    md_container_expert_layout(b->container, b->layer, &b->layout);
    b->each = b->rows * b->config->topk / b->config->experts;
    if (!kn_format_is_int(b->layout.format) || b->each == 0 || b->each > 32) {
        fprintf(stderr, "bench_prefill: expected q experts and 1 to 32 rows of each, found %u\n",
                b->each);
        exit(2);
    }
    check(rt_team_create(&team, &b->team, &err), &err);
    load(b);
    make_frame(b);
    spec.store = b->store;
    spec.team = b->team;
    check(en_executor_create(&spec, &b->executor, &err), &err);
    b->payload = must(malloc(en_reply_bytes_max(b->rows, b->config->hidden)));
    b->y_bytes = (size_t)b->each * b->config->hidden * sizeof(float);
    b->member_bytes =
        b->y_bytes + md_ffn_scratch_bytes(b->each, b->layout.slice_width, b->layout.inter_group);
    b->member_bytes = (b->member_bytes + 4095) / 4096 * 4096;
    check(rt_slab_alloc(rt_team_size(b->team) * b->member_bytes, &b->ffn_room, &err), &err);
}

static void release(bench *b)
{
    en_executor_free(b->executor);
    en_store_close(b->store);
    pl_map_free(b->map);
    rt_team_free(b->team);
    rt_slab_free(&b->x_room);
    rt_slab_free(&b->ffn_room);
    free((void *)(uintptr_t)b->view.entries);
    free((void *)(uintptr_t)b->view.entry_count);
    free(b->payload);
    free(b->records);
    md_container_close(b->container);
}

int main(int argc, char **argv)
{
    bench b = {.rows = argc > 2 ? (uint32_t)atoi(argv[2]) : 512};
    uint32_t passes = argc > 3 ? (uint32_t)atoi(argv[3]) : 7;
    timing node = {0, 0}, kernel = {0, 0};
    rt_err err = {RT_OK, ""};

    if (argc < 2 || argv[1][0] == '-') {
        fprintf(stderr, "usage: bench_prefill CONTAINER [ROWS [PASSES [THREADS [KERNELS]]]]\n");
        return 2;
    }
    check(kn_select(argc > 5 ? argv[5] : "auto", &err), &err);
    check(md_container_open(argv[1], &b.container, &err), &err);
    b.config = md_container_config(b.container);
    prepare(&b, argc > 4 ? (uint32_t)atoi(argv[4]) : rt_cpus_usable());
    for (uint32_t i = 0; i < passes; i++) {
        kernel = fastest(kernel, kernel_pass(&b));
        node = fastest(node, node_pass(&b));
    }
    printf("threads,rows,rows_an_expert,node_ms,kernels_ms,of_kernels_pct,cpu_of_kernels_pct\n");
    printf("%u,%u,%u,%.1f,%.1f,%.1f,%.1f\n", rt_team_size(b.team), b.rows, b.each,
           1e3 * node.wall_s, 1e3 * kernel.wall_s, 100 * kernel.wall_s / node.wall_s,
           100 * kernel.cpu_s / node.cpu_s);
    release(&b);
    return 0;
}
