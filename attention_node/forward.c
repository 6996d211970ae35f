/* forward.c - the layer loop.
 *
 *     x = embed[token]
 *     for each layer:
 *         x = x + attention(rms(x))        latent attention over the positions the indexer chose
 *         x = x + mlp(rms(x))              dense, or routed experts and the shared one
 *     rms(x)                               what the head reads
 *
 * A row that stops being finite is found at the end of the half layer that did it. */
#include "attention_node/forward.h"

#include "attention_node/dense_mlp.h"
#include "attention_node/mla.h"
#include "base/stop.h"

enum { GROUP_MIN = 16 }; /* the smallest quantisation group */

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

size_t an_forward_cost(const an_engine_spec *spec)
{
    const md_config *config = md_container_config(spec->container);
    size_t attention =
        an_mla_cost(config, spec->rows_max, spec->context_max, rt_team_size(spec->team));
    size_t mlp = larger(an_dense_cost(config, spec->rows_max), an_moe_cost(spec));

    return an_rows_quant_cost(spec->rows_max, config->hidden, GROUP_MIN) + larger(attention, mlp);
}

size_t an_forward_member_bytes(const an_engine_spec *spec)
{
    const md_config *config = md_container_config(spec->container);
    size_t attention = an_mla_member_bytes(config, spec->context_max);
    size_t mlp = larger(an_dense_member_bytes(config), an_moe_member_bytes(spec));

    return larger(an_rows_member_bytes(config->hidden), larger(attention, mlp));
}

rt_status an_forward_numeric(const an_pass *pass, uint32_t layer, uint32_t row, const char *what,
                             rt_err *err)
{
    return rt_fail(err, RT_ENUMERIC,
                   "layer %u: %s is not finite or beyond 2^55 (sequence %u, position %u)", layer,
                   what, pass->slot[row], pass->position[row]);
}

typedef struct {
    const an_pass *pass;
    const uint32_t *tokens;
    float *x;
} embed_job;

static void embed_chunk(void *context, size_t row, uint32_t member)
{
    const embed_job *job = context;

    (void)member;
    md_weights_embed(job->pass->weights, job->tokens[row],
                     job->x + row * job->pass->config->hidden);
}

static void embed(const an_pass *pass, const uint32_t *tokens, float *x)
{
    embed_job job = {pass, tokens, x};
    rt_phase before = an_pass_enter(pass, RT_PHASE_ROWS);

    rt_team_run(pass->team, embed_chunk, &job, pass->rows);
    rt_profile_bytes(pass->profile,
                     (uint64_t)pass->rows * pass->config->hidden *
                         (pass->weights->embed_format == KN_F32 ? sizeof(float) : 2));
    an_pass_enter(pass, before);
    an_pass_probe(pass, AN_PROBE_EMBED, MD_NO_LAYER, x, pass->config->hidden * sizeof(float),
                  pass->config->hidden);
}

/* rms(x) with a weight of the layer, in the forms its readers want. */
static kn_rows normed_rows(const an_pass *pass, const an_stream *stream, const float *weight,
                           bool int8)
{
    const md_config *config = pass->config;

    an_rows_norm(pass, stream->normed, config->hidden, stream->x, config->hidden, weight,
                 pass->rows, config->hidden, config->rms_eps);
    return an_rows_view(pass, stream->normed, config->hidden, pass->rows, config->hidden,
                        kn_group(config->hidden, 0), int8);
}

/* x += y; the probe sees y, and the sum when it is the layer's output. */
static rt_status residual(const an_pass *pass, uint32_t layer, const an_stream *stream,
                          an_probe_kind kind, rt_err *err)
{
    uint32_t hidden = pass->config->hidden;
    uint32_t bad;

    an_pass_probe(pass, kind, layer, stream->y, hidden * sizeof(float), hidden);
    bad = an_rows_add(pass, stream->x, stream->y, pass->rows, hidden);
    if (bad < pass->rows)
        return an_forward_numeric(pass, layer, bad,
                                  kind == AN_PROBE_ATTN ? "attention output" : "mlp output", err);
    if (kind == AN_PROBE_MLP)
        an_pass_probe(pass, AN_PROBE_OUT, layer, stream->x, hidden * sizeof(float), hidden);
    return RT_OK;
}

static rt_status attention(const an_pass *pass, uint32_t layer, const an_stream *stream,
                           an_index_lists *lists, rt_err *err)
{
    const md_layer_weights *weights = &pass->weights->layers[layer];
    kn_rows x =
        normed_rows(pass, stream, weights->input_norm, an_wants_int8(pass, weights->q_a.format));
    uint32_t bad;

    if (an_mla_run(pass, layer, &x, lists, stream->y, &bad) != RT_OK)
        return an_forward_numeric(pass, layer, bad, "an index score", err);
    return residual(pass, layer, stream, AN_PROBE_ATTN, err);
}

/* The next layer's router sees what it will see less this layer's experts and its own attention: for
 * about seven experts of ten that is enough. */
static void foresee(const an_pass *pass, uint32_t layer, const an_stream *stream, an_moe *moe)
{
    const md_layer_weights *next = &pass->weights->layers[layer + 1];
    kn_rows x;

    if (!next->sparse) return;
    x = normed_rows(pass, stream, next->post_norm, false);
    an_moe_foresee(moe, pass, layer + 1, &x);
}

static rt_status mlp(const an_pass *pass, uint32_t layer, const an_stream *stream, an_moe *moe,
                     rt_err *err)
{
    const md_layer_weights *weights = &pass->weights->layers[layer];
    bool int8;
    kn_rows x;
    uint32_t bad = pass->rows;
    rt_status status;

    if (pass->foresee && layer + 1 < pass->config->layers) foresee(pass, layer, stream, moe);
    int8 = weights->sparse ? an_moe_wants_int8(moe, pass, layer)
                           : an_wants_int8(pass, weights->gate.format);
    x = normed_rows(pass, stream, weights->post_norm, int8);
    if (!weights->sparse) {
        an_dense_run(pass, layer, &x, stream->y);
    } else {
        status = an_moe_run(moe, pass, layer, &x, stream->y, &bad, err);
        if (bad < pass->rows)
            return an_forward_numeric(pass, layer, bad, "a router or expert value", err);
        if (status != RT_OK) return status;
    }
    return residual(pass, layer, stream, AN_PROBE_MLP, err);
}

/* TOKEN:5 the layer loop: attention, then the MLP or the experts, each with its residual. */
rt_status an_forward_run(const an_pass *pass, const uint32_t *tokens, const an_stream *stream,
                         an_index_lists *lists, an_moe *moe, an_engine_stats *stats, rt_err *err)
{
    const md_config *config = pass->config;

    lists->layer = MD_NO_LAYER;
    embed(pass, tokens, stream->x);
    for (uint32_t layer = 0; layer < config->layers; layer++) {
        size_t mark = rt_arena_mark(pass->arena);
        uint64_t start = rt_clock_now(&pass->clock);
        rt_status status;

        if (rt_stop_requested())
            return rt_fail(err, RT_ECANCELED, "stopped by signal %d before layer %u",
                           rt_stop_signal(), layer);
        status = attention(pass, layer, stream, lists, err);
        rt_arena_return(pass->arena, mark);
        stats->attention_ns += rt_clock_now(&pass->clock) - start;
        if (status == RT_OK) status = mlp(pass, layer, stream, moe, err);
        rt_arena_return(pass->arena, mark);
        if (status != RT_OK) return status;
    }
    an_rows_norm(pass, stream->normed, config->hidden, stream->x, config->hidden,
                 pass->weights->final_norm, pass->rows, config->hidden, config->rms_eps);
    an_pass_probe(pass, AN_PROBE_FINAL_NORM, MD_NO_LAYER, stream->normed,
                  config->hidden * sizeof(float), config->hidden);
    return RT_OK;
}
