/* verb_bench.c - whether this machine computes the promised bits, and how fast its kernels are. */
#include "app/output.h"
#include "app/parse.h"
#include "app/verbs.h"
#include "base/budget.h"
#include "base/team.h"
#include "kernels/measure.h"
#include "kernels/selfcheck.h"
#include "model/container/container.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    bool selfcheck, json;
    const char *kernels;
    uint64_t threads;
} bench_options;

enum { THREADS_MAX = 1024, POOL_MIB = 256, POOL_LEAST_MIB = 64, PASSES = 5 };

static const rt_opt table[] = {
    {.name = "selfcheck",
     .kind = RT_OPT_FLAG,
     .offset = offsetof(bench_options, selfcheck),
     .doc = "instead, compare every kernel's bits with the promised ones"},
    {.name = "kernels",
     .kind = RT_OPT_CHOICE,
     .offset = offsetof(bench_options, kernels),
     .arg = "K",
     .choices = KN_VARIANT_CHOICES,
     .doc = "kernel variant that is timed"},
    {.name = "threads",
     .key = 't',
     .kind = RT_OPT_UINT,
     .offset = offsetof(bench_options, threads),
     .arg = "T",
     .min = 0,
     .max = THREADS_MAX,
     .doc = "threads of the second column; 0: the usable cores"},
    {.name = "json",
     .kind = RT_OPT_FLAG,
     .offset = offsetof(bench_options, json),
     .doc = "print one JSON object"},
    {.name = NULL},
};

const rt_opt_spec app_spec_bench = {
    .verb = "bench",
    .doc = "Times memory and the kernels on GLM-5.2's shapes, in less than 20 seconds.\v"
           "Times are processor time, the fastest of a few passes: what the machine can do when it "
           "has nothing else to do. With --selfcheck exits 1 when a kernel gives other bits than "
           "those promised: such a machine must not share work with others.",
    .table = table,
};

/* ---- self-check ---- */

typedef struct {
    kn_variant variants[KN_VARIANT_COUNT]; /* of this processor */
    uint32_t variant_count;
    kn_selfcheck_row *rows; /* [variant_count][kn_selfcheck_count()] */
    uint32_t wrong;
} findings;

static rt_status check_all(findings *f, rt_err *err)
{
    uint32_t count = kn_selfcheck_count();

    f->rows = calloc((size_t)KN_VARIANT_COUNT * count, sizeof(*f->rows));
    if (f->rows == NULL) return rt_fail(err, RT_ENOMEM, "kernel self-check");
    for (int v = 0; v < KN_VARIANT_COUNT; v++) {
        kn_selfcheck_row *rows = f->rows + (size_t)f->variant_count * count;

        if (!kn_variant_supported((kn_variant)v)) continue;
        RT_TRY(kn_selfcheck((kn_variant)v, rows, err));
        f->variants[f->variant_count++] = (kn_variant)v;
        for (uint32_t i = 0; i < count; i++)
            f->wrong += rows[i].found != rows[i].expected;
    }
    return RT_OK;
}

static const kn_selfcheck_row *row_of(const findings *f, uint32_t variant, uint32_t check)
{
    return &f->rows[(size_t)variant * kn_selfcheck_count() + check];
}

static void print_findings(const findings *f)
{
    for (uint32_t i = 0; i < kn_selfcheck_count(); i++) {
        char good[64] = "";

        for (uint32_t v = 0; v < f->variant_count; v++) {
            const kn_selfcheck_row *row = row_of(f, v, i);
            const char *name = kn_variant_name(f->variants[v]);

            if (row->found == row->expected)
                snprintf(good + strlen(good), sizeof(good) - strlen(good), " %s", name);
            else
                printf("[FAIL] %-30s %s gives %016" PRIx64 ", expected %016" PRIx64 "\n", row->what,
                       name, row->found, row->expected);
        }
        if (good[0] != '\0') printf("[ok]   %-30s%s\n", row_of(f, 0, i)->what, good);
    }
    if (f->wrong == 0)
        printf("all bits are those of numerics id %d\n", MD_NUMERICS_ID);
    else
        printf("%" PRIu32 " of %" PRIu32 " results are wrong\n", f->wrong,
               f->variant_count * kn_selfcheck_count());
}

static json_t *findings_json(const findings *f)
{
    json_t *rows = json_array();

    for (uint32_t v = 0; v < f->variant_count; v++) {
        for (uint32_t i = 0; i < kn_selfcheck_count(); i++) {
            const kn_selfcheck_row *row = row_of(f, v, i);
            char found[17], expected[17];

            snprintf(found, sizeof(found), "%016" PRIx64, row->found);
            snprintf(expected, sizeof(expected), "%016" PRIx64, row->expected);
            json_array_append_new(rows, json_pack("{s:s, s:s, s:b, s:s, s:s}", "kernel", row->what,
                                                  "variant", kn_variant_name(f->variants[v]), "ok",
                                                  (int)(row->found == row->expected), "found",
                                                  found, "expected", expected));
        }
    }
    return json_pack("{s:b, s:i, s:o}", "ok", (int)(f->wrong == 0), "numerics_id", MD_NUMERICS_ID,
                     "rows", rows);
}

static int run_selfcheck(const bench_options *options)
{
    findings f = {0};
    rt_err err = {0};
    rt_status status = check_all(&f, &err);
    int code = APP_EXIT_FAILED;

    if (status != RT_OK) {
        code = app_failed("bench", options->json, err.text);
    } else if (options->json) {
        if (app_json_print("bench", findings_json(&f)) && f.wrong == 0) code = APP_EXIT_OK;
    } else {
        print_findings(&f);
        if (f.wrong == 0) code = APP_EXIT_OK;
    }
    free(f.rows);
    return code;
}

/* ---- figures ---- */

enum { BATCHES = 3 };

static const uint32_t batches[BATCHES] = {1, 8, 32};

/* By kn_measure_threads where two. */
typedef struct {
    uint32_t threads;
    double pool_mib;
    kn_measured read[2], expert[2][BATCHES], head[2];
    kn_measured peak;
    kn_measured_attention attention;
    kn_measured index, topk;
} figures;

static rt_status measure_both(kn_measure *measure, figures *f, rt_err *err)
{
    static const kn_measure_expert_shape expert = {6144, 2048, 256};
    static const kn_qmat head = {KN_Q8, 4096, 6144, 0, NULL}; /* a part of lm_head */

    for (int t = KN_ONE_THREAD; t <= KN_ALL_THREADS; t++) {
        kn_measure_threads threads = (kn_measure_threads)t;

        kn_measure_read(measure, threads, &f->read[t]);
        for (int i = 0; i < BATCHES; i++)
            RT_TRY(kn_measure_expert(measure, threads, &expert, batches[i], &f->expert[t][i], err));
        RT_TRY(kn_measure_product(measure, threads, &head, 1, &f->head[t], err));
    }
    return RT_OK;
}

static rt_status measure_all(const bench_options *options, figures *f, rt_err *err)
{
    static const kn_measure_attention_shape attention = {64, 512, 64, 2048, true};
    bool slow = kn_selected() == KN_REF; /* 50 times: one pass must do */
    uint64_t mib = rt_memory_available_bytes() / 4 >> 20;
    kn_measure_spec spec = {.passes = slow ? 1 : PASSES};
    kn_measure *measure = NULL;
    rt_status status;

    if (mib > POOL_MIB) mib = POOL_MIB;
    if (mib < POOL_LEAST_MIB || slow) mib = POOL_LEAST_MIB;
    spec.pool_bytes = (size_t)mib << 20;
    spec.threads = options->threads != 0 ? (uint32_t)options->threads : rt_cpus_usable();
    f->threads = spec.threads;
    f->pool_mib = (double)mib;
    RT_TRY(kn_measure_create(&spec, &measure, err));
    status = measure_both(measure, f, err);
    if (status == RT_OK) {
        kn_measure_peak(measure, &f->peak);
        status = kn_measure_attention(measure, &attention, &f->attention, err);
    }
    if (status == RT_OK) status = kn_measure_index(measure, 32, 128, 8192, true, &f->index, err);
    if (status == RT_OK) status = kn_measure_topk(measure, 131072, 2048, &f->topk, err);
    kn_measure_free(measure);
    return status;
}

static double bytes_rate(const kn_measured *m)
{
    return m->bytes / m->seconds * 1e-9;
}

static double ops_rate(const kn_measured *m)
{
    return m->ops / m->seconds * 1e-9;
}

static void print_figures(const figures *f)
{
    printf("kernels %s; pool of %.0f MiB; 1 thread | %" PRIu32 " threads\n",
           kn_variant_name(kn_selected()), f->pool_mib, f->threads);
    printf("read                    %8.1f | %8.1f GB/s\n", bytes_rate(&f->read[0]),
           bytes_rate(&f->read[1]));
    for (int i = 0; i < BATCHES; i++) {
        const kn_measured *one = &f->expert[0][i], *all = &f->expert[1][i];

        printf("q4 expert, %2" PRIu32 " token%s   %8.3f | %8.3f ms", batches[i],
               batches[i] == 1 ? " " : "s", one->seconds * 1e3, all->seconds * 1e3);
        if (batches[i] == 1)
            printf("   (%.0f %% | %.0f %% of read)\n",
                   100 * bytes_rate(one) / bytes_rate(&f->read[0]),
                   100 * bytes_rate(all) / bytes_rate(&f->read[1]));
        else
            printf("   (%.0f | %.0f Gop/s)\n", ops_rate(one), ops_rate(all));
    }
    printf("q8 product, 1 token     %8.1f | %8.1f GB/s (%.0f %% | %.0f %% of read)\n",
           bytes_rate(&f->head[0]), bytes_rate(&f->head[1]),
           100 * bytes_rate(&f->head[0]) / bytes_rate(&f->read[0]),
           100 * bytes_rate(&f->head[1]) / bytes_rate(&f->read[1]));
    printf("peak of fused adds      %8.1f Gflop/s f32\n", ops_rate(&f->peak));
    printf("attention, 64 heads     %8.3f ms over 2048 positions, bf16 (%.0f %% of peak)\n",
           f->attention.all.seconds * 1e3, 100 * f->attention.of_peak.all);
    printf("index scores, 32 heads  %8.3f ms over 8192 positions, bf16 (%.0f %% of peak)\n",
           f->index.seconds * 1e3, 100 * ops_rate(&f->index) / ops_rate(&f->peak));
    printf("top 2048 of 131072      %8.3f ms\n", f->topk.seconds * 1e3);
}

static json_t *figures_json(const figures *f)
{
    json_t *expert[2] = {json_array(), json_array()};

    for (int t = 0; t < 2; t++)
        for (int i = 0; i < BATCHES; i++)
            json_array_append_new(expert[t], json_real(f->expert[t][i].seconds * 1e3));
    return json_pack(
        "{s:s, s:i, s:f, s:[f,f], s:[i,i,i], s:[o,o], s:[f,f], s:f, s:f, s:f, s:f, s:f}", "kernels",
        kn_variant_name(kn_selected()), "threads", (int)f->threads, "pool_mib", f->pool_mib,
        "read_gb_s", bytes_rate(&f->read[0]), bytes_rate(&f->read[1]), "expert_tokens",
        (int)batches[0], (int)batches[1], (int)batches[2], "expert_ms", expert[0], expert[1],
        "q8_gb_s", bytes_rate(&f->head[0]), bytes_rate(&f->head[1]), "peak_gflop_s",
        ops_rate(&f->peak), "attention_ms", f->attention.all.seconds * 1e3, "attention_gflop_s",
        ops_rate(&f->attention.all), "index_ms", f->index.seconds * 1e3, "topk_ms",
        f->topk.seconds * 1e3);
}

int app_verb_bench(int argc, char **argv)
{
    bench_options options = {.kernels = "auto"};
    figures f = {0};
    rt_err err = {0};
    int code;

    if (!app_parse(&app_spec_bench, argc, argv, &options, NULL, NULL, &code)) return code;
    if (options.selfcheck) return run_selfcheck(&options);
    if (kn_select(options.kernels, &err) != RT_OK || measure_all(&options, &f, &err) != RT_OK)
        return app_failed("bench", options.json, err.text);
    if (options.json)
        return app_json_print("bench", figures_json(&f)) ? APP_EXIT_OK : APP_EXIT_FAILED;
    print_figures(&f);
    return APP_EXIT_OK;
}
