/* measure.c - how fast memory is read, and attention computed. */
#include "app/measure.h"

#include "base/budget.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/slab.h"
#include "kernels/attention.h"

#include <stdlib.h>
#include <string.h>

enum {
    RAM_BYTES = 256 << 20, /* several times the last cache of a desktop */
    RAM_CHUNK = 1 << 20,
    REPEATS = 5,
    POSITIONS_MAX = 2048, /* what sparse attention of the release looks at */
    HEAD_BLOCK = 16,      /* as attention_node/mla.c */
};

static double seconds_since(const rt_clock *clock, uint64_t begin_ns)
{
    uint64_t spent = rt_clock_now(clock) - begin_ns;

    return (double)(spent > 0 ? spent : 1) * 1e-9;
}

/* ---- memory ---- */

typedef struct {
    uint64_t *data;
    uint64_t *sums; /* [chunks]: so that no compiler drops the reads */
    bool write;
} ram_job;

static void ram_chunk(void *context, size_t chunk, uint32_t member)
{
    const ram_job *job = context;
    const uint64_t *at = job->data + chunk * (RAM_CHUNK / sizeof(*at));
    uint64_t sum[8] = {0};

    (void)member;
    if (job->write) {
        memset(job->data + chunk * (RAM_CHUNK / sizeof(*at)), (int)chunk, RAM_CHUNK);
        return;
    }
    for (size_t i = 0; i < RAM_CHUNK / sizeof(*at); i += 8)
        for (size_t s = 0; s < 8; s++)
            sum[s] += at[i + s];
    for (size_t s = 1; s < 8; s++)
        sum[0] += sum[s];
    job->sums[chunk] = sum[0];
}

rt_status app_measure_ram(rt_team *team, double *bytes_s, rt_err *err)
{
    uint64_t available = rt_memory_available_bytes() / 8;
    size_t bytes = available < RAM_BYTES ? (size_t)available : RAM_BYTES;
    size_t chunks = bytes / RAM_CHUNK > 0 ? bytes / RAM_CHUNK : 1;
    rt_clock clock = rt_clock_real();
    rt_slab slab = {0};
    double best = 0;
    ram_job job;

    RT_TRY(rt_slab_alloc(chunks * RAM_CHUNK, &slab, err));
    job = (ram_job){.data = slab.data, .sums = calloc(chunks, sizeof(uint64_t)), .write = true};
    if (job.sums == NULL) {
        rt_slab_free(&slab);
        return rt_fail(err, RT_ENOMEM, "memory measurement");
    }
    rt_team_run(team, ram_chunk, &job, chunks); /* first touch */
    job.write = false;
    for (int i = 0; i < REPEATS; i++) {
        uint64_t begin = rt_clock_now(&clock);
        double rate;

        rt_team_run(team, ram_chunk, &job, chunks);
        rate = (double)(chunks * RAM_CHUNK) / seconds_since(&clock, begin);
        if (rate > best) best = rate;
    }
    free(job.sums);
    rt_slab_free(&slab);
    *bytes_s = best;
    return RT_OK;
}

/* ---- attention ---- */

typedef struct {
    kn_cache_view cache;
    uint32_t heads, count, rank, width;
    float *q, *score, *out, *sum; /* [heads][...] */
    uint32_t *list;
} attention_job;

/* As the engine does: a member takes a block of heads, so that a cached row is loaded once for all. */
static void attention_block(void *context, size_t block, uint32_t member)
{
    const attention_job *job = context;
    size_t head = block * HEAD_BLOCK;
    uint32_t heads = (uint32_t)(job->heads - head < HEAD_BLOCK ? job->heads - head : HEAD_BLOCK);
    float *score = job->score + head * job->count;

    (void)member;
    kn_attn_scores(score, job->q + head * job->width, job->width, heads, &job->cache, job->list,
                   job->count, 0.0625f);
    for (uint32_t h = 0; h < heads; h++)
        job->sum[head + h] = kn_softmax_exp(score + (size_t)h * job->count, job->count);
    kn_attn_values(job->out + head * job->rank, job->rank, score, job->sum + head, heads, job->rank,
                   &job->cache, job->list, job->count);
}

/* Everything in one slab: floats first, then the list, then the bf16 cache. */
static rt_status attention_job_init(attention_job *job, const md_config *config, rt_slab *slab,
                                    rt_err *err)
{
    uint32_t width = config->kv_rank + config->rope_dim, rank = config->kv_rank;
    uint32_t count = config->index_topk < POSITIONS_MAX ? config->index_topk : POSITIONS_MAX;
    size_t heads = config->heads, floats = heads * ((size_t)width + count + rank + 1);
    size_t row_bytes = width * sizeof(uint16_t);
    float *at;

    RT_TRY(
        rt_slab_alloc(floats * sizeof(float) + count * (sizeof(uint32_t) + row_bytes), slab, err));
    memset(slab->data, 0, slab->bytes);
    at = slab->data;
    *job = (attention_job){.heads = config->heads, .count = count, .rank = rank, .width = width};
    job->q = at;
    job->score = job->q + heads * width;
    job->out = job->score + heads * count;
    job->sum = job->out + heads * rank;
    job->list = (uint32_t *)(void *)(job->sum + heads);
    job->cache = (kn_cache_view){job->list + count, row_bytes, width, true};
    for (size_t i = 0; i < heads * width; i++)
        job->q[i] = (float)(i % 13) * 0.01f;
    for (uint32_t i = 0; i < count; i++)
        job->list[i] = i;
    return RT_OK;
}

rt_status app_measure_attention(const md_config *config, rt_team *team, double *flop_s, rt_err *err)
{
    rt_clock clock = rt_clock_real();
    rt_slab slab = {0};
    double best = 0, flop;
    attention_job job;

    RT_TRY(attention_job_init(&job, config, &slab, err));
    flop = 2.0 * job.heads * job.count * ((double)job.width + job.rank);
    for (int i = 0; i < REPEATS; i++) {
        uint64_t begin = rt_clock_now(&clock);
        double rate;

        rt_team_run(team, attention_block, &job, (job.heads + HEAD_BLOCK - 1) / HEAD_BLOCK);
        rate = flop / seconds_since(&clock, begin);
        if (rate > best) best = rate;
    }
    rt_slab_free(&slab);
    *flop_s = best;
    return RT_OK;
}
