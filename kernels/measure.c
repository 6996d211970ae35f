/* measure.c - the pool and the clock, reading, the peak of fused adds, experts and products. */
#include "kernels/measure.h"

#include "base/check.h"
#include "kernels/mathf.h"
#include "kernels/matmul.h"
#include "kernels/measure_pool.h"
#include "kernels/ops.h"
#include "kernels/select.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#if KN_X86
#include <immintrin.h>
#endif

static const size_t POOL_MIN = (size_t)32 << 20;
static const size_t READ_CHUNK = (size_t)2 << 20;

double kn_thread_seconds(void)
{
    struct timespec now = {0};

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

void kn_measure_fill(float *x, size_t n, float size)
{
    uint32_t seed = 1;

    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525U + 1013904223U;
        x[i] = ((float)(seed >> 8) * 0x1p-23F - 1.0F) * size;
    }
}

void kn_measure_free(kn_measure *measure)
{
    if (measure == NULL) return;
    rt_team_free(measure->team[KN_ONE_THREAD]);
    rt_team_free(measure->team[KN_ALL_THREADS]);
    rt_slab_free(&measure->pool);
    free(measure->clocks);
    free(measure);
}

rt_status kn_measure_create(const kn_measure_spec *spec, kn_measure **out, rt_err *err)
{
    kn_measure *measure;
    rt_status status;
    size_t members;

    RT_ASSERT(spec->pool_bytes >= POOL_MIN && spec->passes > 0 && spec->threads > 0);
    measure = calloc(1, sizeof(*measure));
    if (measure == NULL) return rt_fail(err, RT_ENOMEM, "measuring");
    measure->spec = *spec;
    status = rt_team_create(&(rt_team_spec){.threads = 1}, &measure->team[KN_ONE_THREAD], err);
    if (status != RT_OK) goto fail;
    status = rt_team_create(&(rt_team_spec){.threads = spec->threads},
                            &measure->team[KN_ALL_THREADS], err);
    if (status != RT_OK) goto fail;
    status = rt_slab_alloc(spec->pool_bytes, &measure->pool, err);
    if (status != RT_OK) goto fail;
    members = rt_team_size(measure->team[KN_ALL_THREADS]);
    measure->clocks = aligned_alloc(_Alignof(kn_measure_clock), members * sizeof(kn_measure_clock));
    if (measure->clocks == NULL) {
        status = rt_fail(err, RT_ENOMEM, "measuring with %zu threads", members);
        goto fail;
    }
    memset(measure->pool.data, 0, measure->pool.bytes); /* pages exist from here on */
    *out = measure;
    return RT_OK;
fail:
    kn_measure_free(measure);
    return status;
}

typedef struct {
    rt_team_job job;
    void *context;
    kn_measure_clock *clocks;
} timed;

static void timed_job(void *context, size_t chunk, uint32_t member)
{
    timed *t = context;
    double start = kn_thread_seconds();

    t->job(t->context, chunk, member);
    t->clocks[member].seconds += kn_thread_seconds() - start;
}

double kn_measure_run(kn_measure *measure, kn_measure_threads threads, rt_team_job job,
                      void *context, size_t chunks)
{
    rt_team *team = measure->team[threads];
    uint32_t members = rt_team_size(team);
    timed t = {job, context, measure->clocks};
    double sum = 0;

    for (uint32_t m = 0; m < members; m++)
        measure->clocks[m].seconds = 0;
    rt_team_run(team, timed_job, &t, chunks);
    for (uint32_t m = 0; m < members; m++)
        sum += measure->clocks[m].seconds;
    return sum / members;
}

/* One word of every line: adding up every word would measure the adder too. */
static void read_chunk(void *context, size_t chunk, uint32_t member)
{
    enum { LINE = 8 };
    const uint64_t *data = context;
    uint64_t sum[4] = {0};

    (void)member;
    data += chunk * (READ_CHUNK / sizeof(*data));
    for (size_t i = 0; i < READ_CHUNK / sizeof(*data); i += 4 * LINE)
        for (size_t j = 0; j < 4; j++)
            sum[j] += data[i + j * LINE];
    /* The loads must happen. */
    __asm__ volatile("" : : "r"(sum[0]), "r"(sum[1]), "r"(sum[2]), "r"(sum[3]));
}

void kn_measure_read(kn_measure *measure, kn_measure_threads threads, kn_measured *out)
{
    size_t chunks = measure->pool.bytes / READ_CHUNK;

    *out = (kn_measured){.seconds = 1e9, .bytes = (double)(chunks * READ_CHUNK)};
    for (uint32_t pass = 0; pass < measure->spec.passes; pass++) {
        double time = kn_measure_run(measure, threads, read_chunk, measure->pool.data, chunks);

        if (time < out->seconds) out->seconds = time;
    }
}

/* ---- peak */

enum { PEAK_STEPS = 1 << 20, CHAINS = 12 };

static float peak_ref(uint32_t steps)
{
    float acc[CHAINS] = {0};

    for (uint32_t i = 0; i < steps; i++)
        for (int c = 0; c < CHAINS; c++)
            acc[c] = acc[c] * 0.5F + 1.0F;
    return acc[0] + acc[CHAINS - 1];
}

#if KN_X86
KN_AVX2_FN static float peak_avx2(uint32_t steps)
{
    const __m256 a = _mm256_set1_ps(0.5F), b = _mm256_set1_ps(1);
    __m256 acc[CHAINS];

    KN_UNROLL_24
    for (int c = 0; c < CHAINS; c++)
        acc[c] = b;
    for (uint32_t i = 0; i < steps; i++) {
        KN_UNROLL_24 for (int c = 0; c < CHAINS; c++)
        {
            acc[c] = _mm256_fmadd_ps(acc[c], a, b);
            __asm__("" : "+x"(acc[c]));
        }
    }
    KN_UNROLL_24
    for (int c = 1; c < CHAINS; c++)
        acc[0] = _mm256_add_ps(acc[0], acc[c]);
    return _mm256_cvtss_f32(acc[0]);
}

KN_AVX512_FN static float peak_avx512(uint32_t steps)
{
    const __m512 a = _mm512_set1_ps(0.5F), b = _mm512_set1_ps(1);
    __m512 acc[CHAINS];

    KN_UNROLL_24
    for (int c = 0; c < CHAINS; c++)
        acc[c] = b;
    for (uint32_t i = 0; i < steps; i++) {
        KN_UNROLL_24 for (int c = 0; c < CHAINS; c++)
        {
            acc[c] = _mm512_fmadd_ps(acc[c], a, b);
            __asm__("" : "+v"(acc[c]));
        }
    }
    KN_UNROLL_24
    for (int c = 1; c < CHAINS; c++)
        acc[0] = _mm512_add_ps(acc[0], acc[c]);
    return _mm512_cvtss_f32(acc[0]);
}
#endif

kn_measured kn_peak_burst(uint32_t steps)
{
    float (*peak)(uint32_t) = peak_ref;
    uint32_t lanes = 1;
    volatile float sink;
    double start;

#if KN_X86
    if (kn_selected() == KN_AVX512) {
        peak = peak_avx512;
        lanes = 16;
    } else if (kn_selected() != KN_REF) {
        peak = peak_avx2;
        lanes = 8;
    }
#endif
    start = kn_thread_seconds();
    sink = peak(steps);
    (void)sink;
    return (kn_measured){.seconds = kn_thread_seconds() - start,
                         .ops = 2.0 * steps * CHAINS * lanes};
}

void kn_measure_peak(kn_measure *measure, kn_measured *out)
{
    kn_measured best = {.seconds = 1e9};

    for (uint32_t pass = 0; pass < measure->spec.passes; pass++) {
        kn_measured burst = kn_peak_burst(PEAK_STEPS);

        if (burst.seconds < best.seconds) best = burst;
    }
    *out = best;
}

/* ---- products */

/* Fills the pool with copies of one tile of a format; returns its bytes. */
static rt_status fill_tiles(kn_measure *measure, kn_format format, uint32_t cols, uint32_t group,
                            rt_err *err)
{
    size_t tile = kn_qmat_tile_bytes(format, cols, group);
    char *pool = measure->pool.data;
    rt_slab rows = {0};

    RT_TRY(rt_slab_alloc(sizeof(float) * KN_TILE_ROWS * cols, &rows, err));
    kn_measure_fill(rows.data, (size_t)KN_TILE_ROWS * cols, 0.05F);
    kn_qmat_pack(format, cols, group, rows.data, cols, KN_TILE_ROWS, pool);
    for (size_t at = tile; at + tile <= measure->pool.bytes; at += tile)
        memcpy(pool + at, pool, tile);
    rt_slab_free(&rows);
    return RT_OK;
}

typedef struct {
    const char *pool;
    kn_measure_expert_shape shape;
    uint32_t rows, slices, hidden_group, inter_group;
    size_t gate_bytes, down_bytes;
    kn_rows x;
    char *scratch; /* [members][member_bytes] */
    size_t member_bytes;
} expert_job;

/* One slice for all rows: what an expert node calls a task. */
static void expert_slice(void *context, size_t chunk, uint32_t member)
{
    const expert_job *job = context;
    uint32_t hidden = job->shape.hidden, n = job->shape.slice;
    const char *at = job->pool + chunk * (2 * job->gate_bytes + job->down_bytes);
    kn_qmat gate = {KN_Q4, n, hidden, job->hidden_group, at};
    kn_qmat up = {KN_Q4, n, hidden, job->hidden_group, at + job->gate_bytes};
    kn_qmat down = {KN_Q4, hidden, n, job->inter_group, at + 2 * job->gate_bytes};
    char *memory = job->scratch + member * job->member_bytes;
    float *h = (float *)(void *)memory, *u = h + (size_t)job->rows * n;
    float *y = u + (size_t)job->rows * n;
    void *quantised = y + (size_t)job->rows * hidden;
    kn_rows view;

    kn_matmul(h, n, &job->x, &gate, 0, n);
    kn_matmul(u, n, &job->x, &up, 0, n);
    kn_silu_mul(h, h, u, (size_t)job->rows * n);
    view = kn_rows_quantise(h, n, job->rows, n, job->inter_group, quantised);
    kn_matmul(y, hidden, &view, &down, 0, hidden);
}

rt_status kn_measure_expert(kn_measure *measure, kn_measure_threads threads,
                            const kn_measure_expert_shape *shape, uint32_t rows, kn_measured *out,
                            rt_err *err)
{
    expert_job job = {.pool = measure->pool.data, .shape = *shape, .rows = rows};
    uint32_t members = rt_team_size(measure->team[threads]);
    uint32_t hidden = shape->hidden, n = shape->slice;
    size_t slice_bytes, x_bytes = sizeof(float) * rows * hidden, xq_bytes;
    size_t experts;
    kn_measured best = {.seconds = 1e9, .ops = 6.0 * hidden * shape->inter * rows};
    rt_slab scratch = {0};

    RT_ASSERT(rows > 0 && rows <= KN_MEASURE_ROWS_MAX && shape->inter % n == 0);
    job.slices = shape->inter / n;
    job.hidden_group = kn_group(hidden, 0);
    job.inter_group = kn_group(shape->inter, n);
    job.gate_bytes = kn_qmat_bytes(KN_Q4, n, hidden, job.hidden_group);
    job.down_bytes = kn_qmat_bytes(KN_Q4, hidden, n, job.inter_group);
    slice_bytes = 2 * job.gate_bytes + job.down_bytes;
    best.bytes = (double)(job.slices * slice_bytes);
    experts = measure->pool.bytes / (job.slices * slice_bytes);
    if (rows >= 8) experts = (experts + 3) / 4;
    RT_ASSERT(experts > 0);
    xq_bytes = kn_round_up((uint32_t)kn_rows_quant_bytes(rows, hidden, job.hidden_group), 64);
    job.member_bytes =
        sizeof(float) * rows * (2 * n + hidden) + kn_rows_quant_bytes(rows, n, job.inter_group);
    job.member_bytes = (job.member_bytes + 63) / 64 * 64;
    RT_TRY(rt_slab_alloc(x_bytes + xq_bytes + members * job.member_bytes, &scratch, err));
    kn_measure_fill(scratch.data, (size_t)rows * hidden, 1);
    job.x = kn_rows_quantise(scratch.data, hidden, rows, hidden, job.hidden_group,
                             (char *)scratch.data + x_bytes);
    job.scratch = (char *)scratch.data + x_bytes + xq_bytes;
    if (fill_tiles(measure, KN_Q4, hidden, job.hidden_group, err) != RT_OK) {
        rt_slab_free(&scratch);
        return RT_ENOMEM;
    }
    for (uint32_t pass = 0; pass < measure->spec.passes; pass++) {
        double time = kn_measure_run(measure, threads, expert_slice, &job, experts * job.slices);

        if (time / (double)experts < best.seconds) best.seconds = time / (double)experts;
    }
    rt_slab_free(&scratch);
    *out = best;
    return RT_OK;
}

enum { PRODUCT_ROWS = 256 }; /* outputs of a chunk */

typedef struct {
    const char *pool;
    kn_qmat shape;
    size_t matrix_bytes;
    uint32_t per_matrix; /* chunks */
    kn_rows x;
    float *y; /* [members][rows][PRODUCT_ROWS] */
} product_job;

static void product_chunk(void *context, size_t chunk, uint32_t member)
{
    const product_job *job = context;
    kn_qmat w = job->shape;
    uint32_t begin = (uint32_t)(chunk % job->per_matrix) * PRODUCT_ROWS;
    uint32_t count = w.rows - begin < PRODUCT_ROWS ? w.rows - begin : PRODUCT_ROWS;

    w.data = job->pool + chunk / job->per_matrix * job->matrix_bytes;
    w = kn_qmat_rows(&w, begin, count);
    kn_matmul(job->y + (size_t)member * job->x.rows * PRODUCT_ROWS, PRODUCT_ROWS, &job->x, &w, 0,
              count);
}

rt_status kn_measure_product(kn_measure *measure, kn_measure_threads threads, const kn_qmat *shape,
                             uint32_t rows, kn_measured *out, rt_err *err)
{
    product_job job = {.pool = measure->pool.data, .shape = *shape};
    uint32_t members = rt_team_size(measure->team[threads]), cols = shape->cols;
    uint32_t group = kn_format_is_int(shape->format) ? kn_group(cols, 0) : 16;
    size_t x_bytes = sizeof(float) * rows * cols, xq_bytes = kn_rows_quant_bytes(rows, cols, group);
    size_t y_bytes = sizeof(float) * members * rows * PRODUCT_ROWS, matrices;
    kn_measured best = {.seconds = 1e9, .ops = 2.0 * shape->rows * cols * rows};
    rt_slab scratch = {0};

    RT_ASSERT(rows > 0 && rows <= KN_MEASURE_ROWS_MAX);
    job.shape.group = group;
    job.matrix_bytes = kn_qmat_bytes(shape->format, shape->rows, cols, group);
    job.per_matrix = (shape->rows + PRODUCT_ROWS - 1) / PRODUCT_ROWS;
    matrices = measure->pool.bytes / job.matrix_bytes;
    if (rows >= 8 && matrices > 4) matrices /= 4;
    RT_ASSERT(matrices > 0);
    best.bytes = (double)job.matrix_bytes;
    x_bytes = (x_bytes + 63) / 64 * 64;
    RT_TRY(rt_slab_alloc(x_bytes + xq_bytes + y_bytes, &scratch, err));
    kn_measure_fill(scratch.data, (size_t)rows * cols, 1);
    job.x = kn_format_is_int(shape->format)
                ? kn_rows_quantise(scratch.data, cols, rows, cols, group,
                                   (char *)scratch.data + x_bytes)
                : kn_rows_float(scratch.data, cols, rows, cols);
    job.y = (float *)(void *)((char *)scratch.data + x_bytes + xq_bytes);
    if (fill_tiles(measure, shape->format, cols, group, err) != RT_OK) {
        rt_slab_free(&scratch);
        return RT_ENOMEM;
    }
    for (uint32_t pass = 0; pass < measure->spec.passes; pass++) {
        double time =
            kn_measure_run(measure, threads, product_chunk, &job, matrices * job.per_matrix);

        if (time / (double)matrices < best.seconds) best.seconds = time / (double)matrices;
    }
    rt_slab_free(&scratch);
    *out = best;
    return RT_OK;
}
