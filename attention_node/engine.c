/* engine.c - the engine's memory and sequences, and one step from tokens to logits. */
#include "attention_node/engine.h"

#include "attention_node/forward.h"
#include "attention_node/head.h"
#include "base/check.h"
#include "kernels/rope.h"
#include "transport/frame.h"

#include <stdlib.h>
#include <string.h>

struct an_seq {
    an_engine *engine;
    uint32_t slot;
    uint32_t length;
    bool open;
};

struct an_engine {
    an_engine_spec spec;
    an_pass pass;
    rt_arena *arena;        /* owned */
    an_kv *kv;              /* owned */
    an_moe *moe;            /* owned */
    an_seq *seqs;           /* [sequences_max], owned */
    uint64_t *route_counts; /* [layers with MTP][experts], owned */
    an_look_ahead_trial look_ahead;
    an_index_lists lists;
    an_stream stream;
    uint32_t *tokens; /* [rows_max], in the arena, as are the next two */
    float **logits;
    bool *in_step; /* [sequences_max] */
    an_engine_stats stats;
};

uint64_t an_engine_kv_bytes(const md_config *config, uint32_t context, bool kv_bf16)
{
    return an_kv_slot_bytes(config, context, kv_bf16);
}

static size_t member_bytes(const an_engine_spec *spec)
{
    size_t forward = an_forward_member_bytes(spec);
    size_t head = an_head_member_bytes(md_container_config(spec->container), spec->rows_max);

    return an_align(forward > head ? forward : head);
}

/* What init_arena takes, and the most that a step takes beyond. */
static size_t arena_bytes(const an_engine_spec *spec)
{
    const md_config *config = md_container_config(spec->container);
    size_t rows = spec->rows_max;
    size_t forward = an_forward_cost(spec), head = an_head_cost(config, spec->rows_max);

    return rt_arena_cost(member_bytes(spec) * rt_team_size(spec->team)) +
           an_index_lists_cost(config, spec->context_max, spec->rows_max) +
           rt_arena_cost(rows * sizeof(void *)) * 2 + rt_arena_cost(rows * sizeof(uint32_t)) * 3 +
           rt_arena_cost(rows * (config->rope_dim / 2) * sizeof(float)) * 2 +
           rt_arena_cost(rows * config->hidden * sizeof(float)) * 3 +
           rt_arena_cost(spec->sequences_max * sizeof(bool)) + (forward > head ? forward : head);
}

static size_t route_count_total(const md_config *config)
{
    return (size_t)md_config_layers_total(config) * config->experts;
}

uint64_t an_engine_scratch_bytes(const an_engine_spec *spec)
{
    return arena_bytes(spec) + an_moe_memory_bytes(spec) +
           route_count_total(md_container_config(spec->container)) * sizeof(uint64_t);
}

static rt_status check_spec(const an_engine_spec *spec, rt_err *err)
{
    const md_config *config = md_container_config(spec->container);

    if (spec->rows_max == 0 || spec->rows_max > TR_ROWS_MAX)
        return rt_fail(err, RT_EINVAL, "rows of a step: expected 1 to %d, found %u", TR_ROWS_MAX,
                       spec->rows_max);
    if (spec->context_max == 0 || spec->context_max > config->context_max)
        return rt_fail(err, RT_EINVAL, "context: expected 1 to %u, found %u", config->context_max,
                       spec->context_max);
    if (spec->sequences_max == 0)
        return rt_fail(err, RT_EINVAL, "sequences: expected at least 1, found 0");
    return RT_OK;
}

static void init_arena(an_engine *engine)
{
    const an_engine_spec *spec = &engine->spec;
    an_pass *pass = &engine->pass;
    size_t rows = spec->rows_max, half = pass->config->rope_dim / 2;
    size_t stream = rows * pass->config->hidden * sizeof(float);

    pass->member_bytes = member_bytes(spec);
    pass->member_memory = rt_arena_take(pass->arena, pass->member_bytes * pass->members);
    an_index_lists_init(&engine->lists, pass, spec->rows_max);
    pass->seq = rt_arena_take(pass->arena, rows * sizeof(*pass->seq));
    engine->logits = rt_arena_take(pass->arena, rows * sizeof(*engine->logits));
    pass->slot = rt_arena_take(pass->arena, rows * sizeof(*pass->slot));
    pass->position = rt_arena_take(pass->arena, rows * sizeof(*pass->position));
    engine->tokens = rt_arena_take(pass->arena, rows * sizeof(*engine->tokens));
    pass->cos = rt_arena_take(pass->arena, rows * half * sizeof(float));
    pass->sin = rt_arena_take(pass->arena, rows * half * sizeof(float));
    engine->stream.x = rt_arena_take(pass->arena, stream);
    engine->stream.normed = rt_arena_take(pass->arena, stream);
    engine->stream.y = rt_arena_take(pass->arena, stream);
    engine->in_step = rt_arena_take(pass->arena, spec->sequences_max * sizeof(bool));
    memset(engine->in_step, 0, spec->sequences_max * sizeof(bool));
}

static rt_status acquire(an_engine *engine, rt_err *err)
{
    const an_engine_spec *spec = &engine->spec;
    const md_config *config = md_container_config(spec->container);

    engine->seqs = calloc(spec->sequences_max, sizeof(*engine->seqs));
    if (engine->seqs == NULL) return rt_fail(err, RT_ENOMEM, "%u sequences", spec->sequences_max);
    engine->route_counts = calloc(route_count_total(config) + 1, sizeof(*engine->route_counts));
    if (engine->route_counts == NULL) return rt_fail(err, RT_ENOMEM, "counts of routes");
    RT_TRY(an_kv_create(config, spec->context_max, spec->sequences_max, spec->kv_bf16, &engine->kv,
                        err));
    RT_TRY(rt_arena_create(arena_bytes(spec), &engine->arena, err));
    return an_moe_create(spec, &engine->stats, &engine->moe, err);
}

rt_status an_engine_create(const an_engine_spec *spec, rt_budget *budget, an_engine **out,
                           rt_err *err)
{
    const md_config *config = md_container_config(spec->container);
    an_engine *engine;
    rt_status status;

    RT_TRY(check_spec(spec, err));
    RT_TRY(rt_budget_book(
        budget, "kv cache",
        an_engine_kv_bytes(config, spec->context_max, spec->kv_bf16) * spec->sequences_max, err));
    RT_TRY(rt_budget_book(budget, "attention scratch", an_engine_scratch_bytes(spec), err));
    engine = calloc(1, sizeof(*engine));
    if (engine == NULL) return rt_fail(err, RT_ENOMEM, "engine");
    engine->spec = *spec;
    status = acquire(engine, err);
    if (status != RT_OK) {
        rt_err_prefix(err, "engine: ");
        an_engine_free(engine);
        return status;
    }
    engine->stats.nodes = pl_map_nodes(spec->map);
    an_look_ahead_init(&engine->look_ahead, spec->look_ahead);
    engine->pass = (an_pass){
        .config = config,
        .weights = spec->weights,
        .kv = engine->kv,
        .team = spec->team,
        .members = rt_team_size(spec->team),
        .arena = engine->arena,
        .float_activations = spec->float_activations,
        .clock = spec->clock,
        .profile = spec->profile,
        .route_counts = engine->route_counts,
    };
    init_arena(engine);
    *out = engine;
    return RT_OK;
}

void an_engine_free(an_engine *engine)
{
    if (engine == NULL) return;
    an_moe_free(engine->moe);
    rt_arena_free(engine->arena);
    an_kv_free(engine->kv);
    free(engine->route_counts);
    free(engine->seqs);
    free(engine);
}

void an_engine_set_probe(an_engine *engine, an_probe probe, void *context)
{
    engine->pass.probe = probe;
    engine->pass.probe_context = context;
}

rt_status an_seq_open(an_engine *engine, an_seq **out, rt_err *err)
{
    for (uint32_t slot = 0; slot < engine->spec.sequences_max; slot++) {
        an_seq *seq = &engine->seqs[slot];

        if (seq->open) continue;
        *seq = (an_seq){.engine = engine, .slot = slot, .open = true};
        *out = seq;
        return RT_OK;
    }
    return rt_fail(err, RT_EBUSY, "all %u sequences are open", engine->spec.sequences_max);
}

void an_seq_close(an_seq *seq)
{
    if (seq == NULL) return;
    RT_ASSERT(seq->open);
    seq->open = false;
}

uint32_t an_seq_length(const an_seq *seq)
{
    RT_ASSERT(seq->open);
    return seq->length;
}

void an_seq_truncate(an_seq *seq, uint32_t length)
{
    RT_ASSERT(seq->open && length <= seq->length);
    seq->length = length;
}

static rt_status check_item(an_engine *engine, const an_step_item *item, rt_err *err)
{
    const an_seq *seq = item->seq;

    RT_ASSERT(seq->open && seq->engine == engine);
    RT_ASSERT(item->logits_from <= item->count);
    RT_ASSERT(item->logits != NULL || item->logits_from == item->count);
    if (engine->in_step[seq->slot])
        return rt_fail(err, RT_EINVAL, "sequence %u is in the step twice", seq->slot);
    engine->in_step[seq->slot] = true;
    if (item->count > engine->spec.context_max - seq->length)
        return rt_fail(err, RT_EINVAL,
                       "sequence %u: the context of %u positions is full (%u used, %u more asked)",
                       seq->slot, engine->spec.context_max, seq->length, item->count);
    for (uint32_t i = 0; i < item->count; i++)
        if (item->tokens[i] >= engine->pass.config->vocab)
            return rt_fail(err, RT_EINVAL, "token at position %u: expected below %u, found %u",
                           seq->length + i, engine->pass.config->vocab, item->tokens[i]);
    return RT_OK;
}

static rt_status check_items(an_engine *engine, const an_step_item *items, uint32_t count,
                             rt_err *err)
{
    rt_status status = RT_OK;
    uint64_t rows = 0;

    for (uint32_t i = 0; i < count && status == RT_OK; i++) {
        status = check_item(engine, &items[i], err);
        rows += items[i].count;
    }
    memset(engine->in_step, 0, engine->spec.sequences_max * sizeof(bool));
    if (status == RT_OK && rows > engine->spec.rows_max)
        return rt_fail(err, RT_EINVAL, "rows of a step: expected at most %u, found %llu",
                       engine->spec.rows_max, (unsigned long long)rows);
    return status;
}

/* Lays the items' rows one after another. */
static void lay_rows(an_engine *engine, const an_step_item *items, uint32_t count)
{
    an_pass *pass = &engine->pass;
    size_t half = pass->config->rope_dim / 2;
    uint32_t row = 0;

    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t at = 0; at < items[i].count; at++, row++) {
            pass->seq[row] = items[i].seq;
            pass->slot[row] = items[i].seq->slot;
            pass->position[row] = items[i].seq->length + at;
            engine->tokens[row] = items[i].tokens[at];
            kn_rope_angles(pass->position[row], pass->weights->rope_inv_freq,
                           pass->config->rope_dim, pass->cos + row * half, pass->sin + row * half);
        }
    }
    pass->rows = row;
}

/* Hands out final rows; logits for those that want them. Their rows are gathered, so that the head
 * is read once for all sequences. */
static rt_status finish_items(an_engine *engine, const an_step_item *items, uint32_t count,
                              rt_err *err)
{
    const an_pass *pass = &engine->pass;
    uint32_t hidden = pass->config->hidden, wanted = 0, row = 0, bad = 0;
    const float *final = engine->stream.normed;
    float *gathered = engine->stream.y;

    for (uint32_t i = 0; i < count; i++) {
        const an_step_item *item = &items[i];

        if (item->hidden != NULL)
            memcpy(item->hidden, final + (size_t)row * hidden,
                   (size_t)item->count * hidden * sizeof(float));
        for (uint32_t at = item->logits_from; at < item->count; at++, wanted++) {
            memcpy(gathered + (size_t)wanted * hidden, final + (size_t)(row + at) * hidden,
                   hidden * sizeof(float));
            engine->logits[wanted] =
                item->logits + (size_t)(at - item->logits_from) * pass->config->vocab;
        }
        row += item->count;
    }
    if (an_head_run(pass, gathered, wanted, engine->logits, &bad) != RT_OK)
        return rt_fail(err, RT_ENUMERIC, "head: logits of row %u of %u are not finite", bad,
                       wanted);
    return RT_OK;
}

/* TOKEN:4 the rows of all items go through the layers together. */
rt_status an_engine_step(an_engine *engine, an_step_item *items, uint32_t count, rt_err *err)
{
    an_engine_stats *stats = &engine->stats;
    const rt_clock *clock = &engine->spec.clock;
    uint64_t start = rt_clock_now(clock), head_start, step_ns;
    rt_phase before;
    rt_status status;

    RT_TRY(check_items(engine, items, count, err));
    lay_rows(engine, items, count);
    if (engine->pass.rows == 0) return RT_OK;
    engine->pass.foresee =
        engine->pass.rows <= AN_LOOK_AHEAD_ROWS && an_look_ahead_wants(&engine->look_ahead);
    status = an_forward_run(&engine->pass, engine->tokens, &engine->stream, &engine->lists,
                            engine->moe, stats, err);
    head_start = rt_clock_now(clock);
    if (status == RT_OK) {
        before = an_pass_enter(&engine->pass, RT_PHASE_HEAD);
        status = finish_items(engine, items, count, err);
        an_pass_enter(&engine->pass, before);
    }
    step_ns = rt_clock_now(clock) - start;
    stats->total_ns += step_ns; /* of a failed step too, whose waiting is counted */
    if (status != RT_OK) return status;
    for (uint32_t i = 0; i < count; i++)
        items[i].seq->length += items[i].count;
    stats->head_ns += rt_clock_now(clock) - head_start;
    if (engine->pass.rows <= AN_LOOK_AHEAD_ROWS)
        an_look_ahead_step(&engine->look_ahead, step_ns / engine->pass.rows);
    stats->steps++;
    stats->rows += engine->pass.rows;
    return RT_OK;
}

an_look_ahead_trial an_engine_get_look_ahead(const an_engine *engine)
{
    return engine->look_ahead;
}

void an_engine_set_look_ahead(an_engine *engine, an_look_ahead mode)
{
    an_look_ahead_init(&engine->look_ahead, mode);
}

const uint64_t *an_engine_route_counts(const an_engine *engine)
{
    return engine->route_counts;
}

an_engine_stats an_engine_get_stats(const an_engine *engine)
{
    return engine->stats;
}

void an_engine_reset_stats(an_engine *engine)
{
    uint32_t nodes = engine->stats.nodes;

    memset(&engine->stats, 0, sizeof(engine->stats));
    engine->stats.nodes = nodes;
}
