/* bench_kernels.c - the kernels on GLM-5.2's shapes against what the machine gives in the same run.
 *
 * Prints CSV after a header of '#' lines about the machine. `floor` is the figure that a row is held
 * against: bytes a second against reading the same pool with as many threads, operations against
 * the peak of fused adds, two threads against one. Time is processor time (kernels/measure.h). */
#include "base/team.h"
#include "kernels/measure.h"
#include "kernels/select.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HIDDEN = 6144, INTER = 2048, SLICE = 256, VOCAB_PART = 16384, EXPERTS_DEFAULT = 24 };

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

typedef struct {
    kn_measure *measure;
    uint32_t threads;
    double read[2];  /* bytes a second, by kn_measure_threads */
    double peak;     /* flop/s of one thread */
    double batch[2]; /* seconds of one thread at 8 and 32 rows */
} bench;

static void print_row(const char *what, uint32_t threads, uint32_t rows, const kn_measured *m,
                      const char *floor, double ratio)
{
    printf("%s,%s,%u,%u,%.4f,%.2f,%.1f,%s,%.3f\n", what, kn_variant_name(kn_selected()), threads,
           rows, m->seconds * 1e3, m->bytes / m->seconds * 1e-9, m->ops / m->seconds * 1e-9, floor,
           ratio);
    fflush(stdout);
}

/* The best reading so far; neighbours come and go, so it is taken again before each comparison. */
static void read_again(bench *b, kn_measure_threads threads)
{
    kn_measured m;

    kn_measure_read(b->measure, threads, &m);
    if (m.bytes / m.seconds > b->read[threads]) b->read[threads] = m.bytes / m.seconds;
    print_row("read", threads == KN_ONE_THREAD ? 1 : b->threads, 0, &m, "-", 0);
}

static rt_status experts(bench *b, kn_measure_threads threads, rt_err *err)
{
    static const kn_measure_expert_shape shape = {HIDDEN, INTER, SLICE};
    static const uint32_t rows[] = {1, 2, 4, 8, 16, 32};
    uint32_t count = threads == KN_ONE_THREAD ? 1 : b->threads;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        kn_measured m;
        double *one = rows[i] == 8 ? &b->batch[0] : rows[i] == 32 ? &b->batch[1] : NULL;

        RT_TRY(kn_measure_expert(b->measure, threads, &shape, rows[i], &m, err));
        if (rows[i] < 8) {
            print_row("q4_expert", count, rows[i], &m, "read",
                      m.bytes / m.seconds / b->read[threads]);
        } else if (threads == KN_ALL_THREADS && one != NULL) {
            print_row("q4_expert", count, rows[i], &m, "one thread", *one / m.seconds);
        } else {
            if (one != NULL) *one = m.seconds;
            print_row("q4_expert", count, rows[i], &m, "-", 0);
        }
    }
    return RT_OK;
}

static rt_status products(bench *b, kn_measure_threads threads, rt_err *err)
{
    static const struct {
        const char *what;
        kn_qmat shape;
        uint32_t rows;
    } cases[] = {
        {"lm_head_q8", {KN_Q8, VOCAB_PART, HIDDEN, 0, NULL}, 1},
        {"o_proj_q8", {KN_Q8, HIDDEN, 16384, 0, NULL}, 1},
        {"dense_q8", {KN_Q8, 12288, HIDDEN, 0, NULL}, 8},
        {"dense_q8", {KN_Q8, 12288, HIDDEN, 0, NULL}, 32},
        {"dense_q4", {KN_Q4, 12288, HIDDEN, 0, NULL}, 1},
        {"dense_q4", {KN_Q4, 12288, HIDDEN, 0, NULL}, 8},
        {"dense_q8f32", {KN_Q8F32, 12288, HIDDEN, 0, NULL}, 1},
        {"dense_q8f32", {KN_Q8F32, 12288, HIDDEN, 0, NULL}, 8},
        {"dense_q4f32", {KN_Q4F32, 12288, HIDDEN, 0, NULL}, 1},
        {"dense_q4f32", {KN_Q4F32, 12288, HIDDEN, 0, NULL}, 8},
        {"router_f32", {KN_F32, 256, HIDDEN, 0, NULL}, 1},
        {"dense_f32", {KN_F32, 2048, HIDDEN, 0, NULL}, 1},
        {"dense_f32", {KN_F32, 2048, HIDDEN, 0, NULL}, 32},
        {"dense_bf16", {KN_BF16, 2048, HIDDEN, 0, NULL}, 1},
        {"dense_bf16", {KN_BF16, 2048, HIDDEN, 0, NULL}, 32},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        bool is_int = kn_format_is_int(cases[i].shape.format);
        uint32_t count = threads == KN_ONE_THREAD ? 1 : b->threads;
        kn_measured m;

        RT_TRY(kn_measure_product(b->measure, threads, &cases[i].shape, cases[i].rows, &m, err));
        if (cases[i].rows == 1)
            print_row(cases[i].what, count, 1, &m, "read", m.bytes / m.seconds / b->read[threads]);
        else if (is_int)
            print_row(cases[i].what, count, cases[i].rows, &m, "-", 0);
        else
            print_row(cases[i].what, count, cases[i].rows, &m, "peak",
                      m.ops / m.seconds / b->peak / count);
    }
    return RT_OK;
}

static rt_status attention(bench *b, rt_err *err)
{
    /* All heads of a query row, and 32 and 16 of them, as two and four members of a team take them. */
    for (uint32_t i = 0; i < 6; i++) {
        bool bf16 = i % 2 != 0;
        kn_measure_attention_shape shape = {64U >> i / 2, 512, 64, 2048, bf16};
        kn_measured_attention m;
        kn_measured index;

        RT_TRY(kn_measure_attention(b->measure, &shape, &m, err));
        if (i == 0)
            printf(
                "# attention: rows are the heads, 2048 positions, ratio the median over the passes "
                "against the peak beside each; index: rows are keys\n");
        print_row(bf16 ? "scores_bf16" : "scores_f32", 1, shape.heads, &m.scores, "peak",
                  m.of_peak.scores);
        print_row("softmax", 1, shape.heads, &m.softmax, "-", 0);
        print_row(bf16 ? "values_bf16" : "values_f32", 1, shape.heads, &m.values, "peak",
                  m.of_peak.values);
        print_row(bf16 ? "attention_bf16" : "attention_f32", 1, shape.heads, &m.all, "peak",
                  m.of_peak.all);
        if (i >= 2) continue;
        RT_TRY(kn_measure_index(b->measure, 32, 128, 8192, bf16, &index, err));
        print_row(bf16 ? "index_bf16" : "index_f32", 1, 8192, &index, "peak",
                  index.ops / index.seconds / b->peak);
    }
    return RT_OK;
}

/* The floor is the time for each score of the shortest list: 1 is linear. */
static rt_status selection(bench *b, rt_err *err)
{
    double each = 0;

    for (uint32_t n = 8192; n <= 131072; n *= 4) {
        kn_measured m;

        RT_TRY(kn_measure_topk(b->measure, n, 2048, &m, err));
        if (each == 0) each = m.seconds / n;
        print_row("topk_2048", 1, n, &m, "linear", each * n / m.seconds);
    }
    return RT_OK;
}

static rt_status report(bench *b, rt_err *err)
{
    kn_measured peak;

    kn_measure_peak(b->measure, &peak);
    b->peak = peak.ops / peak.seconds;
    print_row("peak_f32", 1, 0, &peak, "-", 0);
    for (int threads = KN_ONE_THREAD; threads <= KN_ALL_THREADS; threads++) {
        if (threads == KN_ALL_THREADS && b->threads == 1) break;
        read_again(b, (kn_measure_threads)threads);
        RT_TRY(experts(b, (kn_measure_threads)threads, err));
        read_again(b, (kn_measure_threads)threads);
        RT_TRY(products(b, (kn_measure_threads)threads, err));
    }
    RT_TRY(attention(b, err));
    return selection(b, err);
}

static int usage(void)
{
    fprintf(stderr, "usage: bench_kernels [VARIANT [EXPERTS [PASSES [THREADS]]]]\n"
                    "  VARIANT  " KN_VARIANT_CHOICES " (default auto)\n"
                    "  EXPERTS  in the pool, 20 MB each (default 24; more than the caches hold)\n"
                    "  PASSES   the fastest counts (default 7)\n"
                    "  THREADS  of the second half (default: the usable processors)\n");
    return 2;
}

int main(int argc, char **argv)
{
    const char *variant = argc > 1 ? argv[1] : "auto";
    long experts_count = argc > 2 ? strtol(argv[2], NULL, 10) : EXPERTS_DEFAULT;
    long passes = argc > 3 ? strtol(argv[3], NULL, 10) : 7;
    long threads = argc > 4 ? strtol(argv[4], NULL, 10) : (long)rt_cpus_usable();
    kn_measure_spec spec = {0};
    bench b = {0};
    rt_err err = {0};
    rt_status status;

    if (argc > 5 || variant[0] == '-' || experts_count < 6 || experts_count > 4096 || passes < 1 ||
        passes > 1000 || threads < 1 || threads > 1024)
        return usage();
    rt_float_env_set();
    spec.passes = (uint32_t)passes;
    spec.threads = (uint32_t)threads;
    spec.pool_bytes =
        (size_t)experts_count * 3 * kn_qmat_bytes(KN_Q4, INTER, HIDDEN, kn_group(HIDDEN, 0));
    b.threads = spec.threads;
    status = kn_select(variant, &err);
    if (status == RT_OK) status = kn_measure_create(&spec, &b.measure, &err);
    if (status == RT_OK) {
        print_machine();
        printf("what,variant,threads,rows,ms,gb_per_s,gop_per_s,floor,ratio\n");
        status = report(&b, &err);
    }
    if (status != RT_OK) fprintf(stderr, "bench_kernels: %s\n", err.text);
    kn_measure_free(b.measure);
    return status == RT_OK ? 0 : 1;
}
