/* bench_kernels.c - time of one q4 expert at several batch sizes against the machine's read
 * bandwidth, both measured in this run on the same memory.
 *
 * Prints CSV after a header of '#' lines about the machine. The pool of experts is cycled, so that
 * weights come from memory, not from a cache. Time is this thread's processor time and the fastest
 * pass counts: on a shared machine neither waiting for a turn nor a neighbour's burst is ours. One
 * thread: cores are added by base/team outside the kernels. */
#include "base/slab.h"
#include "base/team.h"
#include "kernels/mathf.h"
#include "kernels/matmul.h"
#include "kernels/select.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { HIDDEN = 6144, INTER = 2048, GROUP = 64, TOKENS_MAX = 32, EXPERTS_DEFAULT = 24 };

typedef struct {
    size_t gate_bytes, down_bytes, expert_bytes;
    uint32_t experts;
    rt_slab pool, scratch;
    float *x, *gate, *up, *y; /* in scratch */
    void *x_quant, *h_quant;
} setup;

static double seconds(void)
{
    struct timespec now = {0};

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void print_machine(void)
{
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[256];

    printf("# cpus usable %u\n", rt_cpus_usable());
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, "model name", 10) != 0) continue;
        printf("# %s", line);
        break;
    }
    if (file != NULL) fclose(file);
}

static rt_status create(setup *s, uint32_t experts, rt_err *err)
{
    size_t x_bytes = sizeof(float) * TOKENS_MAX * HIDDEN;
    size_t h_bytes = sizeof(float) * TOKENS_MAX * INTER;
    size_t xq_bytes = kn_rows_quant_bytes(TOKENS_MAX, HIDDEN, GROUP);
    char *at;

    *s = (setup){.experts = experts};
    s->gate_bytes = kn_qmat_bytes(KN_Q4, INTER, HIDDEN, GROUP);
    s->down_bytes = kn_qmat_bytes(KN_Q4, HIDDEN, INTER, GROUP);
    s->expert_bytes = 2 * s->gate_bytes + s->down_bytes;
    RT_TRY(rt_slab_alloc(s->expert_bytes * experts, &s->pool, err));
    RT_TRY(rt_slab_alloc(2 * x_bytes + 2 * h_bytes + 2 * xq_bytes + 4096, &s->scratch, err));
    at = s->scratch.data;
    s->x = (float *)(void *)at;
    s->y = (float *)(void *)(at += x_bytes);
    s->gate = (float *)(void *)(at += x_bytes);
    s->up = (float *)(void *)(at += h_bytes);
    s->x_quant = at += h_bytes;
    s->h_quant = at + xq_bytes;
    return RT_OK;
}

/* One expert is quantised; the others are copies: the time does not depend on the values. */
static void fill(setup *s)
{
    char *pool = s->pool.data;
    float *row = malloc(sizeof(float) * 16 * HIDDEN);
    uint32_t seed = 1;
    size_t tile = kn_qmat_tile_bytes(KN_Q4, HIDDEN, GROUP);

    if (row == NULL) return;
    for (uint32_t i = 0; i < 16 * HIDDEN; i++) {
        seed = seed * 1664525U + 1013904223U;
        row[i] = ((float)(seed >> 8) * 0x1p-24F - 0.5F) * 0.05F;
    }
    kn_qmat_pack(KN_Q4, HIDDEN, GROUP, row, HIDDEN, 16, pool);
    for (size_t at = tile; at + tile <= 2 * s->gate_bytes; at += tile)
        memcpy(pool + at, pool, tile);
    /* down: the same groups, fewer of them in a tile. */
    memcpy(pool + 2 * s->gate_bytes, pool, s->down_bytes);
    for (uint32_t e = 1; e < s->experts; e++)
        memcpy(pool + e * s->expert_bytes, pool, s->expert_bytes);
    for (uint32_t i = 0; i < TOKENS_MAX * HIDDEN; i++)
        s->x[i] = row[i % (16 * HIDDEN)] * 20;
    free(row);
}

/* Quantise, gate, up, silu, quantise, down: what an expert node does for one expert. */
static void run_expert(setup *s, uint32_t expert, uint32_t tokens)
{
    const char *at = (const char *)s->pool.data + expert * s->expert_bytes;
    kn_qmat gate = {KN_Q4, INTER, HIDDEN, GROUP, at};
    kn_qmat up = {KN_Q4, INTER, HIDDEN, GROUP, at + s->gate_bytes};
    kn_qmat down = {KN_Q4, HIDDEN, INTER, GROUP, at + 2 * s->gate_bytes};
    kn_rows x = kn_rows_quantise(s->x, HIDDEN, tokens, HIDDEN, GROUP, s->x_quant);
    kn_rows h;

    kn_matmul(s->gate, INTER, &x, &gate, 0, INTER);
    kn_matmul(s->up, INTER, &x, &up, 0, INTER);
    kn_silu_mul(s->gate, s->gate, s->up, (size_t)tokens * INTER);
    h = kn_rows_quantise(s->gate, INTER, tokens, INTER, GROUP, s->h_quant);
    kn_matmul(s->y, HIDDEN, &h, &down, 0, HIDDEN);
}

/* GB/s of one stream through the whole pool, best of a few passes. One word per line is touched:
 * adding up every word would measure the adder too. */
static double read_bandwidth(const setup *s, int passes)
{
    enum { LINE = 8 };
    const uint64_t *data = s->pool.data;
    size_t words = s->pool.bytes / sizeof(uint64_t) / (4 * LINE) * (4 * LINE);
    double best = 0;
    volatile uint64_t sink;

    for (int pass = 0; pass < passes; pass++) {
        uint64_t sum[4] = {0};
        double start = seconds(), rate;

        for (size_t i = 0; i < words; i += 4 * LINE)
            for (size_t j = 0; j < 4; j++)
                sum[j] += data[i + j * LINE];
        sink = sum[0] + sum[1] + sum[2] + sum[3];
        (void)sink;
        rate = (double)(words * sizeof(uint64_t)) / (seconds() - start) * 1e-9;
        if (rate > best) best = rate;
    }
    return best;
}

/* Best of: mean time of an expert over one cycle of the pool. */
static double expert_seconds(setup *s, uint32_t tokens, int passes)
{
    uint32_t cycle = tokens >= 8 ? s->experts / 4 : s->experts;
    uint32_t next = 0;
    double best = 1e9;

    if (cycle == 0) cycle = 1;
    for (int pass = 0; pass < passes; pass++) {
        double start = seconds(), mean;

        for (uint32_t e = 0; e < cycle; e++, next = (next + 1) % s->experts)
            run_expert(s, next, tokens);
        mean = (seconds() - start) / cycle;
        if (mean < best) best = mean;
    }
    return best;
}

static void report(setup *s, const char *variant, int passes)
{
    static const uint32_t batches[] = {1, 2, 4, 8, 32};
    double bandwidth = read_bandwidth(s, passes);

    for (size_t i = 0; i < sizeof(batches) / sizeof(batches[0]); i++) {
        double time = expert_seconds(s, batches[i], passes);
        double again = read_bandwidth(s, 1), rate = (double)s->expert_bytes / time * 1e-9;
        double macs = 3.0 * HIDDEN * INTER * batches[i];

        if (again > bandwidth) bandwidth = again;
        printf("q4_expert,%s,1,%u,%.3f,%.2f,%.2f,%.3f,%.1f\n", variant, batches[i], time * 1e3,
               rate, bandwidth, rate / bandwidth, 2 * macs / time * 1e-9);
        fflush(stdout);
    }
}

static int usage(void)
{
    fprintf(stderr, "usage: bench_kernels [VARIANT [EXPERTS [PASSES]]]\n"
                    "  VARIANT  auto, ref, avx2, avx512 (default auto)\n"
                    "  EXPERTS  in the pool, 20 MB each (default 24; more than the caches hold)\n"
                    "  PASSES   the fastest counts (default 7)\n");
    return 2;
}

int main(int argc, char **argv)
{
    const char *variant = argc > 1 ? argv[1] : "auto";
    long experts = argc > 2 ? strtol(argv[2], NULL, 10) : EXPERTS_DEFAULT;
    long passes = argc > 3 ? strtol(argv[3], NULL, 10) : 7;
    setup s = {0};
    rt_err err = {0};
    int result = 0;

    if (argc > 4 || experts < 1 || experts > 4096 || passes < 1 || passes > 1000) return usage();
    rt_float_env_set();
    if (kn_select(variant, &err) != RT_OK || create(&s, (uint32_t)experts, &err) != RT_OK) {
        fprintf(stderr, "bench_kernels: %s\n", err.text);
        result = 1;
    } else {
        print_machine();
        printf("# one q4 expert %u x %u, group %u: %zu bytes; pool of %ld\n", HIDDEN, INTER, GROUP,
               s.expert_bytes, experts);
        printf("what,variant,threads,tokens,ms,gb_per_s,read_gb_per_s,ratio,gop_per_s\n");
        fill(&s);
        report(&s, kn_variant_name(kn_selected()), (int)passes);
    }
    rt_slab_free(&s.pool);
    rt_slab_free(&s.scratch);
    return result;
}
