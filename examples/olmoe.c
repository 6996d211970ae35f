/* olmoe.c - the smallest complete streaming MoE engine: read this file before the real one.
 *
 * OLMoE-1B-7B is a small mixture-of-experts (MoE) model. 93 % of its weights are experts: 64 small
 * feed-forward networks in each of 16 layers, of which a token uses 8. So this program keeps the
 * rest of the model in memory and the experts on disk, and reads an expert when a token asks for it,
 * through a cache of very few experts a layer. That is the idea of the whole project: GLM-5.2 only
 * has more of everything, and other computers beside the disk.
 *
 * The file follows a token: attention, router, experts, head; then come the two things the program
 * does with tokens. olmoe_load.h is what it keeps in memory (look there first), olmoe_load.c how that
 * gets there, olmoe_files.c reads configuration. examples/README.md says what the real engine does
 * beyond this, and where. */
#include "base/options.h"
#include "base/team.h"
#include "examples/olmoe_files.h"
#include "examples/olmoe_load.h"
#include "kernels/attention.h"
#include "kernels/mathf.h"
#include "kernels/matmul.h"
#include "kernels/norm.h"
#include "kernels/rope.h"
#include "kernels/topk.h"
#include "model/container/container.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- A matrix times a vector, by all threads ---- */

enum { CHUNK_ROWS = 64 }; /* what kn_matmul likes best; a multiple of its tile of 16 rows */

typedef struct {
    float *y;
    kn_rows x;
    const kn_qmat *w;
} matmul_job;

static void matmul_chunk(void *context, size_t chunk, uint32_t member)
{
    const matmul_job *job = context;
    uint32_t begin = (uint32_t)chunk * CHUNK_ROWS, left = job->w->rows - begin;

    (void)member; /* would name a thread's own scratch memory */
    kn_matmul(job->y, 0, &job->x, job->w, begin, begin + (left < CHUNK_ROWS ? left : CHUNK_ROWS));
}

/* Threads share out the rows, never the sum of one row: each output is one chain of additions in one
 * order, so the number of threads cannot change a bit of it (docs/numerics.md, R1). */
static void matmul(ex_engine *e, float *y, const float *x, const kn_qmat *w)
{
    matmul_job job = {y, kn_rows_float(x, w->cols, 1, w->cols), w};

    rt_team_run(e->team, matmul_chunk, &job, (w->rows + CHUNK_ROWS - 1) / CHUNK_ROWS);
}

static void norm(const ex_engine *e, float *out, const float *x, const float *weight)
{
    kn_rms_norm(out, e->shape.hidden, x, e->shape.hidden, weight, 1, e->shape.hidden,
                (float)e->shape.norm_eps);
}

/* ---- A token's way: attention ---- */

/* Turns pairs of values by an angle that grows with the position, so that the product of a query and
 * a key depends on how far apart they are. OLMoE pairs value j with value j + dim/2 ("half-split");
 * GLM pairs neighbours, which is why kn_rope_apply will not do here. */
static void rope(const ex_shape *s, float *v, const float *cos_in, const float *sin_in)
{
    uint32_t half = s->head_dim / 2;

    for (uint32_t h = 0; h < s->heads; h++, v += s->head_dim) {
        for (uint32_t j = 0; j < half; j++) {
            float a = v[j], b = v[j + half];

            v[j] = a * cos_in[j] - b * sin_in[j];
            v[j + half] = b * cos_in[j] + a * sin_in[j];
        }
    }
}

/* x += attention(norm(x)) */
static void attention(ex_engine *e, const ex_layer *layer, uint32_t position, const float *cos_in,
                      const float *sin_in)
{
    const ex_shape *s = &e->shape;
    uint32_t dim = s->head_dim;
    float *key = layer->keys + (size_t)position * s->hidden; /* written now, read ever after */
    float *value = layer->values + (size_t)position * s->hidden;

    norm(e, e->normed, e->x, layer->input_norm);
    matmul(e, e->query, e->normed, &layer->q);
    matmul(e, key, e->normed, &layer->k);
    matmul(e, value, e->normed, &layer->v);
    /* OLMoE normalises queries and keys over all heads together; relatives do it head by head. */
    norm(e, e->query, e->query, layer->q_norm);
    norm(e, key, key, layer->k_norm);
    rope(s, e->query, cos_in, sin_in);
    rope(s, key, cos_in, sin_in);
    /* Each head for itself: how well does its query fit each key so far? Its output is the mean of
     * the values, weighted by that. */
    for (size_t at = 0; at < s->hidden; at += dim) {
        kn_cache_view keys = {layer->keys + at, s->hidden * sizeof(float), dim, false};
        kn_cache_view values = {layer->values + at, s->hidden * sizeof(float), dim, false};
        float scale = 1.0f / sqrtf((float)dim), sum;

        kn_attn_scores(e->score, e->query + at, dim, 1, &keys, e->seen, position + 1, scale);
        sum = kn_softmax_exp(e->score, position + 1);
        kn_attn_values(e->attended + at, dim, e->score, &sum, 1, dim, &values, e->seen,
                       position + 1);
    }
    matmul(e, e->part, e->attended, &layer->o);
    kn_add(e->x, e->part, s->hidden);
}

/* ---- A token's way: router and experts ---- */

/* Gives an expert's weights: from a slot of its layer, else from disk in place of the least recently
 * used one. They are good until the next call for this layer. Every layer has slots of its own: a
 * token passes all layers before it meets the first again, so in one common cache each layer would
 * push out just what the others are about to want. */
static rt_status get_expert(ex_engine *e, uint32_t layer, uint32_t expert, md_slice *out,
                            rt_err *err)
{
    ex_slot *slots = e->slots + (size_t)layer * e->slots_per_layer, *oldest = slots;
    const md_pack_entry *entry =
        md_pack_entries(e->pack) + (size_t)layer * e->shape.experts + expert;
    md_record record = {.key = entry->key,
                        .bytes = entry->bytes,
                        .offset = entry->offset,
                        .hash = entry->hash,
                        .fd = md_pack_fd(e->pack),
                        .fd_direct = -1,
                        .pack = md_pack_path(e->pack)};

    for (ex_slot *at = slots; at < slots + e->slots_per_layer; at++) {
        if (at->last_use > 0 && at->expert == expert) {
            e->hits++;
            at->last_use = ++e->clock;
            *out = md_slice_view(&e->layout, 0, at->data);
            return RT_OK;
        }
        if (at->last_use < oldest->last_use) oldest = at; /* empty ones, 0, come first */
    }
    oldest->last_use = 0; /* if the read fails, half an expert must not be found here later */
    RT_TRY(md_record_read(&record, oldest->data, err)); /* checks the hash: disks can lie */
    e->reads++;
    e->read_bytes += record.bytes;
    oldest->expert = expert;
    oldest->last_use = ++e->clock;
    *out = md_slice_view(&e->layout, 0, oldest->data);
    return RT_OK;
}

/* x += the sum of share_i * expert_i(norm(x)) over the topk experts with the largest shares */
static rt_status mixture(ex_engine *e, uint32_t index, rt_err *err)
{
    const ex_shape *s = &e->shape;
    const ex_layer *layer = &e->layers[index];
    float sum;

    norm(e, e->normed, e->x, layer->post_norm);
    matmul(e, e->share, e->normed, &layer->router);
    /* Softmax over all experts. The chosen ones keep their share as it is, so that what is added is
     * less than a whole (norm_topk_prob false); relatives divide by its sum. */
    sum = kn_softmax_exp(e->share, s->experts);
    for (uint32_t i = 0; i < s->experts; i++)
        e->share[i] /= sum;
    if (!kn_topk(e->chosen, e->share, s->experts, s->topk, e->spare))
        return rt_fail(err, RT_ENUMERIC, "layer %" PRIu32 ": the router gave a NaN", index);
    memset(e->mixed, 0, s->hidden * sizeof(float));
    for (uint32_t i = 0; i < s->topk; i++) {
        md_slice ffn;

        RT_TRY(get_expert(e, index, e->chosen[i], &ffn, err));
        matmul(e, e->gate, e->normed, &ffn.gate);
        matmul(e, e->up, e->normed, &ffn.up);
        kn_silu_mul(e->gate, e->gate, e->up, s->inter);
        matmul(e, e->part, e->gate, &ffn.down);
        kn_scale(e->part, e->part, e->share[e->chosen[i]], s->hidden);
        kn_add(e->mixed, e->part, s->hidden);
    }
    kn_add(e->x, e->mixed, s->hidden);
    return RT_OK;
}

/* ---- A token's way: all of it ---- */

/* Puts `token` at `position` (0, then one more each call) and predicts what follows: e->logits has a
 * score for every token of the vocabulary, *next is the best. */
static rt_status forward(ex_engine *e, uint32_t token, uint32_t position, uint32_t *next,
                         rt_err *err)
{
    float cos_in[EX_HEAD_DIM_MAX / 2], sin_in[EX_HEAD_DIM_MAX / 2];
    uint32_t best;

    kn_qmat_unpack_row(&e->embed, token, e->x);
    kn_rope_angles(position, e->inv_freq, e->shape.head_dim, cos_in, sin_in);
    for (uint32_t i = 0; i < e->shape.layers; i++) {
        attention(e, &e->layers[i], position, cos_in, sin_in);
        RT_TRY(mixture(e, i, err));
    }
    norm(e, e->normed, e->x, e->last_norm);
    matmul(e, e->logits, e->normed, &e->head);
    best = kn_argmax(e->logits, e->shape.vocab);
    if (best == UINT32_MAX)
        return rt_fail(err, RT_ENUMERIC, "position %" PRIu32 ": a logit is NaN", position);
    *next = best;
    return RT_OK;
}

/* ---- What the program does: generate ---- */

typedef struct {
    const char *pack, *format, *ids;
    uint64_t predict, cache, threads;
    bool verify;
} options;

static void print_cache(const ex_engine *e)
{
    uint64_t uses = e->hits + e->reads;

    fprintf(stderr,
            "experts: %" PRIu64 " uses, %" PRIu64 " hits (%.0f %%), %" PRIu64 " reads of %" PRIu64
            " records, %" PRIu64 " bytes read, %" PRIu32 " slots a layer\n",
            uses, e->hits, uses > 0 ? 100.0 * (double)e->hits / (double)uses : 0.0, e->reads,
            (uint64_t)e->shape.layers * e->shape.experts, e->read_bytes, e->slots_per_layer);
}

/* Prints the `predict` most likely tokens after the ids, each chosen after the ones before it. */
static rt_status generate(ex_engine *e, const uint32_t *ids, uint32_t count, uint32_t predict,
                          rt_err *err)
{
    uint32_t next = 0;

    for (uint32_t at = 0; at < count + predict; at++) {
        if (at >= count) printf(at == count ? "%" PRIu32 : ",%" PRIu32, next);
        if (at + 1 == count + predict) break; /* nobody wants to know what follows the last one */
        RT_TRY(forward(e, at < count ? ids[at] : next, at, &next, err));
    }
    printf("\n");
    return RT_OK;
}

/* ---- What the program does: verify ---- */

/* Float32 sums in another order differ by about 1e-5 here; the smallest mistake, such as the
 * other kind of rope, by 1 and more. */
static const float LOGITS_DIFFER_MAX = 1e-4f;

/* Compares with what transformers said. Each step gets the reference's token, not our own, so that
 * one different token does not make all that follow incomparable. Where all are equal this is the
 * same as generating. */
static rt_status verify(ex_engine *e, const ex_prompt *prompts, uint32_t count, bool *same,
                        rt_err *err)
{
    uint32_t equal = 0, all = 0, next = 0;
    float differ = 0.0f;

    for (const ex_prompt *p = prompts; p < prompts + count; p++) {
        for (uint32_t at = 0; at < p->count; at++) {
            const float *logits = p->logits + (size_t)at * e->shape.vocab;

            RT_TRY(forward(e, p->tokens[at], at, &next, err));
            for (uint32_t i = 0; i < e->shape.vocab; i++) {
                float d = fabsf(e->logits[i] - logits[i]);

                if (!isnan(differ) && !(d <= differ)) differ = d; /* a NaN stays */
            }
            if (at + 1 < p->prompt_count || at + 1 == p->count) continue;
            all++;
            equal += next == p->tokens[at + 1];
        }
    }
    *same = equal == all && differ <= LOGITS_DIFFER_MAX;
    printf("%" PRIu32 "/%" PRIu32 " greedy tokens equal, logits differ by at most %.3g\n", equal,
           all, (double)differ);
    return RT_OK;
}

/* ---- The command line ---- */

/* *same: false when --verify found a difference */
static rt_status run(const char *dir, const options *o, bool *same, rt_err *err)
{
    ex_spec spec = {dir, o->pack, o->format, (uint32_t)o->cache, (uint32_t)o->threads};
    uint32_t *ids = NULL, count = 0, predict = (uint32_t)o->predict, positions = 0;
    ex_prompt *prompts = NULL;
    ex_engine *e = NULL;
    ex_shape shape;
    rt_status status;

    RT_TRY(ex_shape_read(dir, &shape, err));
    if (o->verify)
        status = ex_reference_read(dir, &shape, &prompts, &count, err);
    else
        status = ex_ids_parse(o->ids, shape.vocab, &ids, &count, err);
    for (uint32_t i = 0; prompts != NULL && i < count; i++)
        if (prompts[i].count > positions) positions = prompts[i].count;
    if (ids != NULL) positions = count + predict;
    if (status == RT_OK && positions > shape.positions)
        status = rt_fail(err, RT_EINVAL, "expected at most %" PRIu32 " tokens, found %" PRIu32,
                         shape.positions, positions);
    shape.positions = positions; /* room for the keys and values of these, and no more */
    if (status == RT_OK) status = ex_engine_open(&spec, &shape, &e, err);
    if (status == RT_OK) {
        status = o->verify ? verify(e, prompts, count, same, err)
                           : generate(e, ids, count, predict, err);
    }
    if (status == RT_OK) print_cache(e);
    ex_engine_close(e);
    ex_reference_free(prompts, count);
    free(ids);
    return status;
}

static const rt_opt table[] = {
    {.name = "ids",
     .kind = RT_OPT_TEXT,
     .offset = offsetof(options, ids),
     .arg = "LIST",
     .doc = "continue these tokens: 65,12,7"},
    {.name = "predict",
     .key = 'n',
     .kind = RT_OPT_UINT,
     .offset = offsetof(options, predict),
     .arg = "N",
     .min = 1,
     .max = 1 << 20,
     .doc = "how many tokens to predict after --ids"},
    {.name = "verify",
     .kind = RT_OPT_FLAG,
     .offset = offsetof(options, verify),
     .doc = "compare every token and logit with the checkpoint's reference.json"},
    {.name = "pack",
     .kind = RT_OPT_TEXT,
     .offset = offsetof(options, pack),
     .arg = "FILE",
     .doc = "where the experts are, or shall be (default: in the checkpoint's folder)"},
    {.name = "experts",
     .kind = RT_OPT_CHOICE,
     .offset = offsetof(options, format),
     .arg = "FORMAT",
     .choices = "f32|bf16|q8|q4",
     .doc = "how the pack stores them"},
    {.name = "cache",
     .kind = RT_OPT_UINT,
     .offset = offsetof(options, cache),
     .arg = "N",
     .min = 1,
     .max = MD_EXPERTS_MAX,
     .doc = "experts of a layer to keep in memory"},
    {.name = "threads",
     .kind = RT_OPT_UINT,
     .offset = offsetof(options, threads),
     .arg = "N",
     .min = 1,
     .max = 1024,
     .doc = "threads to compute with"},
    {.name = NULL},
};

int main(int argc, char **argv)
{
    static const rt_opt_spec spec = {
        .verb = "olmoe",
        .is_program = true,
        .args_doc = "CHECKPOINT",
        .doc = "Runs an OLMoE checkpoint with its experts streamed from disk.",
        .table = table,
        .positional_min = 1,
        .positional_max = 1,
    };
    options o = {.format = "f32", .predict = 16, .cache = 2, .threads = rt_cpus_usable()};
    const char *dir[1];
    uint32_t dirs;
    bool same = true;
    rt_err err = {0};

    switch (rt_options_parse(&spec, argc, argv, &o, dir, &dirs)) {
    case RT_PARSE_HELP:
        return 0;
    case RT_PARSE_USAGE:
        return 2;
    case RT_PARSE_OK:
        break;
    }
    if (o.verify == (o.ids != NULL)) {
        fprintf(stderr, "olmoe: expected --ids LIST or --verify\n");
        return 2;
    }
    rt_float_env_set(); /* no thread may round or flush differently than the others */
    if (run(dir[0], &o, &same, &err) != RT_OK) {
        fprintf(stderr, "olmoe: %s\n", err.text);
        return 1;
    }
    if (fflush(stdout) != 0) {
        fprintf(stderr, "olmoe: stdout: %s\n", strerror(errno));
        return 1;
    }
    return same ? 0 : 1;
}
