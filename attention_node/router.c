/* router.c - sigmoid, biased choice, normalised weights. */
#include "attention_node/router.h"

#include "base/check.h"
#include "kernels/mathf.h"
#include "kernels/norm.h"
#include "kernels/topk.h"

static const float SUM_FLOOR = 1e-20F; /* keeps 0 / 0 away; the model's own constant */

bool an_router_pick(const md_config *config, float *logit, const float *bias, void *scratch,
                    uint32_t *id, float *weight)
{
    uint32_t experts = config->experts, topk = config->topk;
    float *choice = scratch, *score = logit;
    float sum;

    RT_ASSERT(topk <= experts && topk <= MD_TOPK_MAX);
    kn_sigmoid(score, logit, experts);
    for (uint32_t e = 0; e < experts; e++)
        choice[e] = score[e] + bias[e];
    if (!kn_topk(id, choice, experts, topk, (uint32_t *)scratch + experts)) return false;
    for (uint32_t i = 0; i < topk; i++)
        weight[i] = score[id[i]];
    if (config->norm_topk) {
        sum = kn_sum(weight, topk) + SUM_FLOOR;
        for (uint32_t i = 0; i < topk; i++)
            weight[i] /= sum;
    }
    for (uint32_t i = 0; i < topk; i++)
        weight[i] *= config->routed_scale;
    return true;
}

size_t an_router_cost(const md_config *config, uint32_t rows)
{
    return rt_arena_cost((size_t)rows * config->experts * sizeof(float));
}

size_t an_router_member_bytes(const md_config *config)
{
    return an_align((size_t)config->experts * 2 * sizeof(float));
}

typedef struct {
    const an_pass *pass;
    float *logit;
    const float *bias;
    uint32_t *id;
    float *weight;
    _Atomic uint32_t bad;
} pick_job;

static void pick_chunk(void *context, size_t row, uint32_t member)
{
    pick_job *job = context;
    const md_config *config = job->pass->config;

    if (!an_router_pick(config, job->logit + row * config->experts, job->bias,
                        an_pass_member(job->pass, member), job->id + row * config->topk,
                        job->weight + row * config->topk))
        an_note_lowest(&job->bad, (uint32_t)row);
}

/* TOKEN:7 rows -> the top-k experts and their weights. */
rt_status an_router_run(const an_pass *pass, uint32_t layer, const kn_rows *x, uint32_t *id,
                        float *weight, uint32_t *bad_row)
{
    const md_config *config = pass->config;
    const md_layer_weights *weights = &pass->weights->layers[layer];
    size_t mark = rt_arena_mark(pass->arena);
    pick_job job = {.pass = pass, .bias = weights->router_bias, .id = id, .weight = weight};

    RT_ASSERT(weights->router.format == KN_F32);
    job.logit = rt_arena_take(pass->arena, (size_t)x->rows * config->experts * sizeof(float));
    atomic_init(&job.bad, x->rows);
    an_linear_run(pass, &(an_linear){job.logit, config->experts, x, &weights->router}, 1);
    rt_team_run(pass->team, pick_chunk, &job, x->rows);
    rt_arena_return(pass->arena, mark);
    *bad_row = atomic_load(&job.bad);
    if (*bad_row < x->rows) return RT_ENUMERIC;
    an_pass_probe(pass, AN_PROBE_ROUTER_IDS, layer, id, config->topk * sizeof(*id), config->topk);
    an_pass_probe(pass, AN_PROBE_ROUTER_WEIGHTS, layer, weight, config->topk * sizeof(*weight),
                  config->topk);
    return RT_OK;
}
