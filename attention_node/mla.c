/* mla.c - projections, cache rows, attention by blocks of rows and heads, output projection. */
#include "attention_node/mla.h"

#include "base/check.h"
#include "kernels/attention.h"
#include "kernels/norm.h"
#include "kernels/rope.h"

#include <math.h>

enum {
    HEAD_BLOCK = 64, /* heads of one chunk: they share the reads of the cached rows */
    ROW_BLOCK = 16,  /* rows of one chunk: they share the reads of uk_t and uv */
    ROW_READ = 16,   /* reading the cached rows takes the time of so many heads, 8 to 24 measured */
    GROUP_MIN = 16,  /* the smallest quantisation group: the most scales */
};

/* Buffers of one layer, all [rows][...]. */
typedef struct {
    float *q_latent; /* q_rank: the query's low-rank form, normed ("q_resid") */
    float *latent;   /* kv_rank + rope_dim */
    float *query;    /* heads * (nope_dim + rope_dim) */
    float *value;    /* heads * v_dim */
    an_index_work index;
    bool full, selects;
} buffers;

static uint32_t query_dim(const md_config *config)
{
    return config->nope_dim + config->rope_dim;
}

static uint32_t cache_width(const md_config *config)
{
    return config->kv_rank + config->rope_dim;
}

size_t an_mla_cost(const md_config *config, uint32_t rows, uint32_t context, uint32_t members)
{
    size_t row = rows * sizeof(float);
    size_t index_width = (size_t)config->index_heads * config->index_dim;
    size_t fixed = rt_arena_cost(row * config->q_rank) + rt_arena_cost(row * cache_width(config)) +
                   rt_arena_cost(row * config->heads * query_dim(config)) +
                   rt_arena_cost(row * config->index_dim) + rt_arena_cost(row * index_width) +
                   rt_arena_cost(row * config->index_heads) +
                   an_rows_quant_cost(rows, config->q_rank, GROUP_MIN);
    size_t choose = an_index_choose_cost(context, members);
    size_t attend = rt_arena_cost(row * config->heads * config->v_dim) +
                    an_rows_quant_cost(rows, config->heads * config->v_dim, GROUP_MIN);

    return fixed + (choose > attend ? choose : attend);
}

static uint32_t heads_max(const md_config *config)
{
    return config->heads < HEAD_BLOCK ? config->heads : HEAD_BLOCK;
}

/* Member memory of a chunk of the attention job. */
typedef struct {
    float *u;     /* [ROW_BLOCK][heads_max][cache width]: absorbed query | rope query */
    float *m;     /* [ROW_BLOCK][heads_max][kv_rank]: summed latents */
    float *score; /* [heads_max][list_max] */
    void *quant;  /* int8 rows of one head */
} chunk_memory;

static size_t chunk_layout(const md_config *config, uint32_t list_max, uint8_t *base,
                           chunk_memory *out)
{
    size_t heads = (size_t)ROW_BLOCK * heads_max(config) * sizeof(float);
    size_t u = an_align(heads * cache_width(config));
    size_t m = an_align(heads * config->kv_rank);
    size_t score = an_align((size_t)heads_max(config) * list_max * sizeof(float));
    size_t nope = kn_rows_quant_bytes(ROW_BLOCK, config->nope_dim, GROUP_MIN);
    size_t rank = kn_rows_quant_bytes(ROW_BLOCK, config->kv_rank, GROUP_MIN);

    if (out != NULL) {
        out->u = (float *)(void *)base;
        out->m = (float *)(void *)(base + u);
        out->score = (float *)(void *)(base + u + m);
        out->quant = base + u + m + score;
    }
    return u + m + score + an_align(nope > rank ? nope : rank);
}

size_t an_mla_member_bytes(const md_config *config, uint32_t context)
{
    uint32_t longest = config->index_topk < context ? config->index_topk : context;
    uint32_t widest = config->heads * config->v_dim;

    if (config->q_rank > widest) widest = config->q_rank;
    return chunk_layout(config, longest, NULL, NULL) + an_rows_member_bytes(widest);
}

/* Maps of one job, of which those from `index_from` on are the indexer's: it gets their share of the
 * time. */
static void run_maps(const an_pass *pass, const an_linear *maps, uint32_t count,
                     uint32_t index_from)
{
    uint64_t mark = rt_profile_mark(pass->profile), index = 0, whole = 0;

    an_linear_run(pass, maps, count);
    if (pass->profile == NULL) return;
    for (uint32_t i = 0; i < count; i++) {
        whole += an_qmat_bytes(maps[i].w);
        if (i >= index_from) index += an_qmat_bytes(maps[i].w);
    }
    rt_profile_split(pass->profile, mark, RT_PHASE_INDEX, index, whole);
}

/* q_a, kv_a and the indexer's two read the same rows: one job of the team. Then the low-rank query is
 * normed and feeds q_b and the indexer's query. */
static void project(const an_pass *pass, uint32_t layer, const kn_rows *x, buffers *b)
{
    const md_config *config = pass->config;
    const md_layer_weights *weights = &pass->weights->layers[layer];
    an_linear maps[4] = {
        {b->q_latent, config->q_rank, x, &weights->q_a},
        {b->latent, cache_width(config), x, &weights->kv_a},
        {b->index.key, config->index_dim, x, &weights->index_k},
        {b->index.weight, config->index_heads, x, &weights->index_weight},
    };
    kn_rows q_latent;

    run_maps(pass, maps, !b->full ? 2 : b->selects ? 4 : 3, 2);
    an_rows_norm(pass, b->q_latent, config->q_rank, b->q_latent, config->q_rank, weights->q_a_norm,
                 pass->rows, config->q_rank, pass->weights->latent_eps);
    an_pass_probe(pass, AN_PROBE_Q_RESID, layer, b->q_latent, config->q_rank * sizeof(float),
                  config->q_rank);
    q_latent = an_rows_view(pass, b->q_latent, config->q_rank, pass->rows, config->q_rank,
                            weights->q_b.group, an_wants_int8(pass, weights->q_b.format));
    maps[0] =
        (an_linear){b->query, (size_t)config->heads * query_dim(config), &q_latent, &weights->q_b};
    maps[1] = (an_linear){b->index.query, (size_t)config->index_heads * config->index_dim,
                          &q_latent, &weights->index_q};
    run_maps(pass, maps, b->selects ? 2 : 1, 1);
}

typedef struct {
    const an_pass *pass;
    uint32_t layer;
    const buffers *b;
    const an_index_lists *lists;
    uint32_t head_block, head_blocks;
    float scale;
} mla_job;

/* One row: rotates its queries, norms its latent, rotates its rope key, writes the cache. */
static void cache_chunk(void *context, size_t chunk, uint32_t member)
{
    const mla_job *job = context;
    const an_pass *pass = job->pass;
    const md_config *config = pass->config;
    const md_layer_weights *weights = &pass->weights->layers[job->layer];
    uint32_t row = (uint32_t)chunk;
    size_t half = config->rope_dim / 2;
    const float *cos = pass->cos + row * half, *sin = pass->sin + row * half;
    float *query = job->b->query + (size_t)row * config->heads * query_dim(config);
    float *latent = job->b->latent + (size_t)row * cache_width(config);

    (void)member;
    kn_rope_apply(query + config->nope_dim, query_dim(config), config->heads, cos, sin,
                  config->rope_dim);
    kn_rms_norm(latent, config->kv_rank, latent, config->kv_rank, weights->kv_a_norm, 1,
                config->kv_rank, pass->weights->latent_eps);
    kn_rope_apply(latent + config->kv_rank, config->rope_dim, 1, cos, sin, config->rope_dim);
    an_kv_put_latent(pass->kv, pass->slot[row], job->layer, pass->position[row], latent);
    if (job->b->full) an_index_prepare(pass, job->layer, row, &job->b->index, job->b->selects);
}

/* y = w x for a few rows of one head; x is quantised by the group of its width when w wants it. */
static void head_matmul(const an_pass *pass, float *y, size_t y_stride, const float *x,
                        size_t x_stride, uint32_t rows, const kn_qmat *w, void *quant)
{
    kn_rows view = an_wants_int8(pass, w->format)
                       ? kn_rows_quantise(x, x_stride, rows, w->cols, w->group, quant)
                       : kn_rows_float(x, x_stride, rows, w->cols);

    kn_matmul(y, y_stride, &view, w, 0, w->rows);
}

/* The queries of some rows and heads as the cache wants them: [u_h | rotated rope part]. */
static void absorb(const mla_job *job, const chunk_memory *memory, uint32_t row, uint32_t rows,
                   uint32_t head, uint32_t heads)
{
    const md_config *config = job->pass->config;
    const md_layer_weights *weights = &job->pass->weights->layers[job->layer];
    size_t width = cache_width(config), row_width = (size_t)config->heads * query_dim(config);

    for (uint32_t h = 0; h < heads; h++) {
        const float *query =
            job->b->query + row * row_width + (size_t)(head + h) * query_dim(config);

        head_matmul(job->pass, memory->u + h * width, heads * width, query, row_width, rows,
                    &weights->uk_t[head + h], memory->quant);
        for (uint32_t r = 0; r < rows; r++) {
            float *rope = memory->u + (r * heads + h) * width + config->kv_rank;

            for (uint32_t k = 0; k < config->rope_dim; k++)
                rope[k] = query[r * row_width + config->nope_dim + k];
        }
    }
}

/* Scores, softmax and summed latents of one row for some heads. */
static void attend_row(const mla_job *job, const chunk_memory *memory, uint32_t row, uint32_t r,
                       uint32_t heads)
{
    const an_pass *pass = job->pass;
    uint32_t width = cache_width(pass->config), rank = pass->config->kv_rank;
    kn_cache_view cache = an_kv_latent(pass->kv, pass->slot[row], job->layer);
    const uint32_t *list = job->lists->list[row];
    uint32_t count = job->lists->count[row];
    float sum[HEAD_BLOCK];

    RT_ASSERT(count > 0 && count <= job->lists->list_max);
    kn_attn_scores(memory->score, memory->u + (size_t)r * heads * width, width, heads, &cache, list,
                   count, job->scale);
    for (uint32_t h = 0; h < heads; h++)
        sum[h] = kn_softmax_exp(memory->score + (size_t)h * count, count);
    kn_attn_values(memory->m + (size_t)r * heads * rank, rank, memory->score, sum, heads, rank,
                   &cache, list, count);
}

static void attend_chunk(void *context, size_t chunk, uint32_t member)
{
    const mla_job *job = context;
    const an_pass *pass = job->pass;
    const md_config *config = pass->config;
    const md_layer_weights *weights = &pass->weights->layers[job->layer];
    uint32_t row = (uint32_t)(chunk / job->head_blocks) * ROW_BLOCK;
    uint32_t head = (uint32_t)(chunk % job->head_blocks) * job->head_block;
    uint32_t rows = pass->rows - row < ROW_BLOCK ? pass->rows - row : ROW_BLOCK;
    uint32_t heads =
        config->heads - head < job->head_block ? config->heads - head : job->head_block;
    size_t value_width = (size_t)config->heads * config->v_dim;
    chunk_memory memory;

    (void)chunk_layout(config, job->lists->list_max, an_pass_member(pass, member), &memory);
    absorb(job, &memory, row, rows, head, heads);
    for (uint32_t r = 0; r < rows; r++)
        attend_row(job, &memory, row + r, r, heads);
    for (uint32_t h = 0; h < heads; h++)
        head_matmul(pass, job->b->value + row * value_width + (size_t)(head + h) * config->v_dim,
                    value_width, memory.m + (size_t)h * config->kv_rank,
                    (size_t)heads * config->kv_rank, rows, &weights->uv[head + h], memory.quant);
}

/* Of the weights of all heads once, and of each row's list of cached positions once. */
static void count_attention_bytes(const an_pass *pass, uint32_t layer, const an_index_lists *lists)
{
    const md_layer_weights *weights = &pass->weights->layers[layer];
    kn_cache_view cache;
    uint64_t bytes = 0;

    if (pass->profile == NULL) return;
    for (uint32_t h = 0; h < pass->config->heads; h++)
        bytes += an_qmat_bytes(&weights->uk_t[h]) + an_qmat_bytes(&weights->uv[h]);
    cache = an_kv_latent(pass->kv, pass->slot[0], layer);
    for (uint32_t row = 0; row < pass->rows; row++)
        bytes += (uint64_t)lists->count[row] * cache.row_bytes;
    rt_profile_bytes(pass->profile, bytes);
}

/* Every block of heads reads the cached rows again, so there are no more than give all members the
 * same work: the number of blocks whose last member is done first. */
static uint32_t head_block(const an_pass *pass, uint32_t row_blocks)
{
    const uint32_t heads = pass->config->heads, members = pass->members > 0 ? pass->members : 1;
    uint32_t best = heads_max(pass->config);
    uint64_t least = UINT64_MAX;

    for (uint32_t blocks = (heads + HEAD_BLOCK - 1) / HEAD_BLOCK; blocks <= heads; blocks++) {
        uint32_t block = (heads + blocks - 1) / blocks;
        uint64_t chunks = (uint64_t)row_blocks * ((heads + block - 1) / block);
        uint64_t time = (chunks + members - 1) / members * (block + ROW_READ);

        if (time >= least) continue;
        least = time;
        best = block;
    }
    return best;
}

static void take_buffers(const an_pass *pass, uint32_t layer, buffers *b)
{
    const md_config *config = pass->config;
    size_t row = pass->rows * sizeof(float);

    b->full = config->index_full[layer];
    b->selects = b->full && an_index_selects(pass);
    b->q_latent = rt_arena_take(pass->arena, row * config->q_rank);
    b->latent = rt_arena_take(pass->arena, row * cache_width(config));
    b->query = rt_arena_take(pass->arena, row * config->heads * query_dim(config));
    b->index.key = rt_arena_take(pass->arena, row * config->index_dim);
    b->index.query = rt_arena_take(pass->arena, row * config->index_heads * config->index_dim);
    b->index.weight = rt_arena_take(pass->arena, row * config->index_heads);
}

/* TOKEN:6 rows -> keys into the cache -> scores over the chosen positions -> values. */
rt_status an_mla_run(const an_pass *pass, uint32_t layer, const kn_rows *x, an_index_lists *lists,
                     float *out, uint32_t *bad_row)
{
    const md_config *config = pass->config;
    const md_layer_weights *weights = &pass->weights->layers[layer];
    uint32_t row_blocks = (pass->rows + ROW_BLOCK - 1) / ROW_BLOCK;
    size_t mark = rt_arena_mark(pass->arena), value_width = (size_t)config->heads * config->v_dim;
    buffers b = {0};
    mla_job job = {.pass = pass, .layer = layer, .b = &b, .lists = lists};
    rt_phase before = an_pass_enter(pass, RT_PHASE_PROJECTIONS);
    rt_status status;
    kn_rows value;

    take_buffers(pass, layer, &b);
    project(pass, layer, x, &b);
    an_pass_enter(pass, RT_PHASE_ROWS);
    rt_team_run(pass->team, cache_chunk, &job, pass->rows);
    an_pass_probe(pass, AN_PROBE_KV_LATENT, layer, b.latent, cache_width(config) * sizeof(float),
                  config->kv_rank);
    an_pass_enter(pass, RT_PHASE_INDEX);
    status = an_index_choose(pass, layer, &b.index, lists, bad_row);
    an_pass_enter(pass, RT_PHASE_ATTENTION);
    if (status != RT_OK) {
        an_pass_enter(pass, before);
        rt_arena_return(pass->arena, mark);
        return status;
    }

    b.value = rt_arena_take(pass->arena, pass->rows * value_width * sizeof(float));
    job.scale = 1.0F / sqrtf((float)query_dim(config));
    job.head_block = head_block(pass, row_blocks);
    job.head_blocks = (config->heads + job.head_block - 1) / job.head_block;
    count_attention_bytes(pass, layer, lists);
    rt_team_run(pass->team, attend_chunk, &job, (size_t)row_blocks * job.head_blocks);
    an_pass_enter(pass, RT_PHASE_PROJECTIONS);

    value = an_rows_view(pass, b.value, value_width, pass->rows, (uint32_t)value_width,
                         weights->o.group, an_wants_int8(pass, weights->o.format));
    an_linear_run(pass, &(an_linear){out, config->hidden, &value, &weights->o}, 1);
    an_pass_enter(pass, before);
    rt_arena_return(pass->arena, mark);
    return RT_OK;
}
