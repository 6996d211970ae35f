/* dsa_index.c - scores over the visible positions, then the best of them.
 *
 * Scores of a row are split by position blocks, so that one decode row at a long context keeps the
 * whole team busy; as many rows as the team has members are scored at a time, which bounds the
 * memory to one score table per member. */
#include "attention_node/dsa_index.h"

#include "base/check.h"
#include "kernels/attention.h"
#include "kernels/norm.h"
#include "kernels/rope.h"
#include "kernels/topk.h"

#include <math.h>

enum { POSITION_BLOCK = 1024 }; /* 1024 keys x 32 heads x 128: about 1 ms */

static const float KEY_NORM_EPS = 1e-6F; /* fixed in every implementation, not in config.json */

static uint32_t list_max(const md_config *config, uint32_t context)
{
    return config->index_topk < context ? config->index_topk : context;
}

size_t an_index_lists_cost(const md_config *config, uint32_t context, uint32_t rows_max)
{
    size_t longest = list_max(config, context);

    return rt_arena_cost(rows_max * sizeof(uint32_t *)) +
           rt_arena_cost(rows_max * sizeof(uint32_t)) * 2 +
           rt_arena_cost(longest * sizeof(uint32_t)) +
           rt_arena_cost(rows_max * longest * sizeof(uint32_t));
}

void an_index_lists_init(an_index_lists *lists, const an_pass *pass, uint32_t rows_max)
{
    size_t longest = list_max(pass->config, an_kv_context(pass->kv));

    lists->layer = MD_NO_LAYER;
    lists->list_max = (uint32_t)longest;
    lists->list = rt_arena_take(pass->arena, rows_max * sizeof(*lists->list));
    lists->count = rt_arena_take(pass->arena, rows_max * sizeof(*lists->count));
    lists->choosing = rt_arena_take(pass->arena, rows_max * sizeof(*lists->choosing));
    lists->all = rt_arena_take(pass->arena, longest * sizeof(*lists->all));
    lists->chosen = rt_arena_take(pass->arena, rows_max * longest * sizeof(*lists->chosen));
    for (uint32_t i = 0; i < lists->list_max; i++)
        lists->all[i] = i;
}

static bool row_selects(const an_pass *pass, uint32_t row)
{
    return pass->position[row] >= pass->config->index_topk;
}

bool an_index_selects(const an_pass *pass)
{
    for (uint32_t row = 0; row < pass->rows; row++)
        if (row_selects(pass, row)) return true;
    return false;
}

void an_index_prepare(const an_pass *pass, uint32_t layer, uint32_t row, const an_index_work *work,
                      bool selects)
{
    const md_config *config = pass->config;
    const md_layer_weights *weights = &pass->weights->layers[layer];
    size_t half = config->rope_dim / 2;
    const float *cos = pass->cos + row * half, *sin = pass->sin + row * half;
    float *key = work->key + (size_t)row * config->index_dim;

    kn_layer_norm(key, config->index_dim, key, config->index_dim, weights->index_k_norm,
                  weights->index_k_bias, 1, config->index_dim, KEY_NORM_EPS);
    kn_rope_apply(key, config->index_dim, 1, cos, sin, config->rope_dim);
    an_kv_put_index(pass->kv, pass->slot[row], layer, pass->position[row], key);
    if (selects) {
        float *query = work->query + (size_t)row * config->index_heads * config->index_dim;
        float *weight = work->weight + (size_t)row * config->index_heads;

        kn_rope_apply(query, config->index_dim, config->index_heads, cos, sin, config->rope_dim);
        kn_scale(weight, weight, 1.0F / sqrtf((float)config->index_heads), config->index_heads);
    }
}

typedef struct {
    const an_pass *pass;
    const an_index_work *work;
    an_index_lists *lists;
    uint32_t layer;
    const uint32_t *row; /* those scored now */
    uint32_t blocks;     /* chunks of a row */
    size_t stride;       /* of a score table */
    float *score;        /* [rows scored now][stride] */
    uint32_t *scratch;   /* [rows scored now][stride] */
    _Atomic uint32_t bad;
} choose_job;

static void score_chunk(void *context, size_t chunk, uint32_t member)
{
    const choose_job *job = context;
    const md_config *config = job->pass->config;
    size_t at = chunk / job->blocks;
    uint32_t begin = (uint32_t)(chunk % job->blocks) * POSITION_BLOCK;
    uint32_t row = job->row[at];
    uint32_t visible = job->pass->position[row] + 1;
    kn_cache_view keys;

    (void)member;
    if (begin >= visible) return;
    keys = an_kv_index(job->pass->kv, job->pass->slot[row], job->layer);
    keys.rows = (const char *)keys.rows + begin * keys.row_bytes;
    kn_index_scores(job->score + at * job->stride + begin,
                    job->work->query + (size_t)row * config->index_heads * config->index_dim,
                    job->work->weight + (size_t)row * config->index_heads, config->index_heads,
                    config->index_dim, &keys,
                    visible - begin < POSITION_BLOCK ? visible - begin : POSITION_BLOCK,
                    1.0F / sqrtf((float)config->index_dim));
}

static void select_chunk(void *context, size_t chunk, uint32_t member)
{
    choose_job *job = context;
    an_index_lists *lists = job->lists;
    uint32_t row = job->row[chunk];
    uint32_t *chosen = lists->chosen + (size_t)row * lists->list_max;

    (void)member;
    if (!kn_topk(chosen, job->score + chunk * job->stride, job->pass->position[row] + 1,
                 job->pass->config->index_topk, job->scratch + chunk * job->stride))
        an_note_lowest(&job->bad, row);
    lists->list[row] = chosen;
    lists->count[row] = job->pass->config->index_topk;
}

size_t an_index_choose_cost(uint32_t context, uint32_t members)
{
    return rt_arena_cost((size_t)context * members * sizeof(float)) +
           rt_arena_cost((size_t)context * members * sizeof(uint32_t));
}

/* Of the index keys that a row scores. */
static uint64_t key_bytes(const an_pass *pass, uint32_t layer, uint32_t row)
{
    return (pass->position[row] + UINT64_C(1)) *
           an_kv_index(pass->kv, pass->slot[row], layer).row_bytes;
}

static void probe_lists(const an_pass *pass, uint32_t layer, const an_index_lists *lists,
                        uint32_t choosing)
{
    if (pass->probe == NULL) return;
    for (uint32_t i = 0; i < choosing; i++) {
        uint32_t row = lists->choosing[i];
        an_probe_event event = {
            .kind = AN_PROBE_INDEX_SET,
            .layer = layer,
            .seq = pass->seq[row],
            .position = pass->position[row],
            .rows = 1,
            .count = lists->count[row],
            .data = lists->list[row],
        };

        pass->probe(pass->probe_context, &event);
    }
}

/* TOKEN:6 the positions that each row attends to. */
rt_status an_index_choose(const an_pass *pass, uint32_t layer, const an_index_work *work,
                          an_index_lists *lists, uint32_t *bad_row)
{
    size_t mark = rt_arena_mark(pass->arena);
    uint32_t choosing = 0;
    choose_job job = {.pass = pass, .work = work, .lists = lists, .layer = layer};

    RT_ASSERT(lists->layer == pass->config->index_source[layer] || pass->config->index_full[layer]);
    if (!pass->config->index_full[layer]) return RT_OK;
    lists->layer = layer;
    for (uint32_t row = 0; row < pass->rows; row++) {
        lists->list[row] = lists->all;
        lists->count[row] = pass->position[row] + 1;
        if (row_selects(pass, row)) lists->choosing[choosing++] = row;
    }
    if (choosing == 0) return RT_OK;

    job.stride = an_kv_context(pass->kv);
    job.score = rt_arena_take(pass->arena, job.stride * pass->members * sizeof(*job.score));
    job.scratch = rt_arena_take(pass->arena, job.stride * pass->members * sizeof(*job.scratch));
    atomic_init(&job.bad, pass->rows);
    for (uint32_t first = 0; first < choosing; first += pass->members) {
        uint32_t count = choosing - first < pass->members ? choosing - first : pass->members;
        uint32_t longest = 0;

        job.row = lists->choosing + first;
        for (uint32_t i = 0; i < count; i++)
            if (pass->position[job.row[i]] > longest) longest = pass->position[job.row[i]];
        job.blocks = longest / POSITION_BLOCK + 1;
        if (pass->profile != NULL)
            for (uint32_t i = 0; i < count; i++)
                rt_profile_bytes(pass->profile, key_bytes(pass, layer, job.row[i]));
        rt_team_run(pass->team, score_chunk, &job, (size_t)count * job.blocks);
        rt_team_run(pass->team, select_chunk, &job, count);
    }
    rt_arena_return(pass->arena, mark);
    *bad_row = atomic_load(&job.bad);
    if (*bad_row < pass->rows) return RT_ENUMERIC;
    probe_lists(pass, layer, lists, choosing);
    return RT_OK;
}
