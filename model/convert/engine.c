/* engine.c - the queue of units, group commits, and giving up source shards. */
#include "model/convert/engine.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/stop.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Units that are written but not yet durable. */
typedef struct {
    uint32_t *units; /* owned, [plan->count] */
    uint64_t count, bytes;
} batch;

typedef struct {
    const md_engine_spec *spec;
    rt_arena **arenas; /* owned, one per unit in flight */
    size_t members;
    uint64_t *shard_needs;    /* owned: per shard, tensors of units that were not read back yet */
    md_ledger_entry *entries; /* owned, for the committing member */
    bool *dirty;              /* owned, per pack, for the committing member */
    rt_clock clock;

    pthread_mutex_t lock; /* everything below */
    pthread_cond_t committed;
    uint64_t next; /* place in the plan's order */
    batch pending, committing;
    bool commit_runs;
    uint64_t last_commit_ns;
    rt_status status; /* of the first failure */
    rt_err err;
    md_engine_result result;
} engine;

/* ---- state ---- */

static bool halted(engine *e)
{
    return e->status != RT_OK || rt_stop_requested();
}

static void record_failure(engine *e, rt_status status, const rt_err *err)
{
    if (e->status != RT_OK) return; /* the first cause is the one to report */
    e->status = status;
    e->err = *err;
}

/* ---- giving up shards ---- */

typedef struct {
    engine *e;
    int64_t step;
} need_change;

static void change_need(void *context, uint32_t tensor)
{
    need_change *change = context;
    uint64_t *needs =
        &change->e->shard_needs[md_source_tensor_shard(change->e->spec->source, tensor)];

    RT_ASSERT(change->step > 0 || *needs > 0);
    *needs = (uint64_t)((int64_t)*needs + change->step);
}

static void count_needs(engine *e)
{
    need_change change = {e, 1};

    for (uint64_t i = 0; i < e->spec->plan->count; i++)
        md_plan_visit_tensors(&e->spec->plan->units[i], change_need, &change);
}

static rt_status drop_free_shards(engine *e, const md_unit *unit, rt_err *err)
{
    md_source *source = e->spec->source;

    for (uint32_t i = 0; i < unit->source_count; i++) {
        uint32_t tensors[2] = {unit->source[i].weight, unit->source[i].scale};

        for (uint32_t t = 0; t < 2 && tensors[t] != MD_SOURCE_NONE; t++) {
            uint32_t shard = md_source_tensor_shard(source, tensors[t]);

            if (e->shard_needs[shard] > 0 || !md_source_shard_present(source, shard)) continue;
            RT_TRY(md_source_drop(source, shard, err));
            e->result.shards_deleted++;
            rt_log_info("convert", "%s is converted and deleted",
                        md_source_shard_at(source, shard)->name);
        }
    }
    return RT_OK;
}

/* A record that is durable is read back; then its shards need it no longer. */
static rt_status release_unit(engine *e, uint32_t number, rt_err *err)
{
    md_unit *unit = &e->spec->plan->units[number];
    need_change change = {e, -1};
    rt_status status;

    if (!unit->verified) RT_TRY(md_target_verify(e->spec->target, number, err));
    pthread_mutex_lock(&e->lock);
    unit->verified = true;
    md_plan_visit_tensors(unit, change_need, &change);
    status = halted(e) ? RT_OK : drop_free_shards(e, unit, err);
    pthread_mutex_unlock(&e->lock);
    return status;
}

/* ---- commits ---- */

static rt_status sync_packs(engine *e, const batch *group, rt_err *err)
{
    uint32_t packs = md_target_pack_count(e->spec->target);

    memset(e->dirty, 0, packs * sizeof(*e->dirty));
    for (uint64_t i = 0; i < group->count; i++)
        e->dirty[md_target_pack_of(e->spec->target, group->units[i])] = true;
    for (uint32_t p = 0; p < packs; p++)
        if (e->dirty[p]) RT_TRY(md_target_sync(e->spec->target, p, err));
    return RT_OK;
}

/* Runs without the lock: the group is the committing member's own. */
static rt_status commit_group(engine *e, const batch *group, rt_err *err)
{
    md_plan *plan = e->spec->plan;

    RT_TRY(sync_packs(e, group, err));
    for (uint64_t i = 0; i < group->count; i++) {
        const md_unit *unit = &plan->units[group->units[i]];

        e->entries[i] = (md_ledger_entry){
            .key = unit->key, .bytes = unit->shape.bytes, .hash = unit->hash, .power = unit->power};
    }
    RT_TRY(md_ledger_append(e->spec->ledger, e->entries, group->count, err));
    for (uint64_t i = 0; i < group->count; i++)
        plan->units[group->units[i]].done = true;
    if (!e->spec->consume) return RT_OK;
    for (uint64_t i = 0; i < group->count; i++)
        RT_TRY(release_unit(e, group->units[i], err));
    return RT_OK;
}

/* Takes the pending group and commits it. Called and returns with the lock held. */
static void commit_pending(engine *e)
{
    batch group = e->pending;
    rt_err err = {0};
    rt_status status;

    e->pending = e->committing;
    e->pending.count = 0;
    e->pending.bytes = 0;
    e->committing = group;
    e->commit_runs = true;
    pthread_mutex_unlock(&e->lock);
    status = commit_group(e, &group, &err);
    pthread_mutex_lock(&e->lock);
    if (status != RT_OK) record_failure(e, status, &err);
    e->commit_runs = false;
    e->last_commit_ns = rt_clock_now(&e->clock);
    pthread_cond_broadcast(&e->committed);
}

static bool commit_due(const engine *e)
{
    uint64_t records =
        e->spec->commit_records > 0 ? e->spec->commit_records : (uint64_t)MD_COMMIT_RECORDS;
    uint64_t waited_ns = rt_clock_now(&e->clock) - e->last_commit_ns;

    return e->pending.count > 0 &&
           (e->pending.bytes >= MD_COMMIT_BYTES || e->pending.count >= records ||
            waited_ns >= (uint64_t)MD_COMMIT_SECONDS * 1000000000u);
}

/* ---- members ---- */

/* The next unit of work, MD_SOURCE_NONE at the end. A done unit is work when its shards wait to be
 * given up. */
static uint32_t take_unit(engine *e)
{
    const md_plan *plan = e->spec->plan;
    uint32_t number = MD_SOURCE_NONE;

    pthread_mutex_lock(&e->lock);
    /* A disk that cannot keep up must hold the members back, not fill the page cache. */
    while (e->commit_runs && e->pending.bytes >= MD_COMMIT_BYTES && !halted(e))
        pthread_cond_wait(&e->committed, &e->lock);
    while (!halted(e) && e->next < plan->count) {
        const md_unit *unit = &plan->units[plan->order[e->next]];

        e->next++;
        if (unit->done && !(e->spec->consume && unit->source_count > 0)) continue;
        number = plan->order[e->next - 1];
        break;
    }
    pthread_mutex_unlock(&e->lock);
    return number;
}

typedef struct {
    engine *e;
    uint32_t unit;
} sink_context;

static rt_status sink_write(void *context, uint64_t offset, const void *data, size_t bytes,
                            rt_err *err)
{
    sink_context *sink = context;

    /* A record in several blocks may take a while: it is given up between them. */
    if (offset > 0 && rt_stop_requested()) return rt_fail(err, RT_ECANCELED, "stopped");
    if (sink->e->spec->target == NULL) return RT_OK;
    return md_target_write(sink->e->spec->target, sink->unit, offset, data, bytes, err);
}

static uint64_t unit_source_bytes(const md_source *source, const md_unit *unit)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < unit->source_count; i++)
        bytes += md_source_matrix_bytes(source, &unit->source[i]);
    return bytes;
}

static rt_status convert_unit(engine *e, uint32_t number, rt_arena *arena, rt_err *err)
{
    const md_engine_spec *spec = e->spec;
    md_unit *unit = &spec->plan->units[number];
    sink_context context = {e, number};
    md_unit_sink sink = {sink_write, &context};
    md_unit_result result;

    RT_TRY(
        md_unit_convert(unit, spec->config, spec->info, spec->source, arena, &sink, &result, err));
    rt_progress_add(spec->progress, unit_source_bytes(spec->source, unit));
    pthread_mutex_lock(&e->lock);
    unit->hash = result.hash;
    unit->power = result.power;
    e->result.records_done++;
    if (spec->target != NULL) {
        e->pending.units[e->pending.count++] = number;
        e->pending.bytes += unit->shape.bytes;
        if (!e->commit_runs && commit_due(e)) commit_pending(e);
    }
    pthread_mutex_unlock(&e->lock);
    return RT_OK;
}

static void run_member(void *context, size_t chunk, uint32_t member)
{
    engine *e = context;
    uint32_t number;

    (void)member;
    while ((number = take_unit(e)) != MD_SOURCE_NONE) {
        bool done = e->spec->plan->units[number].done;
        char name[64];
        rt_err err = {0};
        rt_status status =
            done ? release_unit(e, number, &err) : convert_unit(e, number, e->arenas[chunk], &err);

        if (status == RT_OK) continue;
        if (!done) /* reading back names the record itself */
            rt_err_prefix(
                &err, "%s: ", md_key_format(e->spec->plan->units[number].key, name, sizeof(name)));
        pthread_mutex_lock(&e->lock);
        if (status != RT_ECANCELED) record_failure(e, status, &err);
        pthread_mutex_unlock(&e->lock);
    }
}

/* ---- setting up ---- */

uint64_t md_engine_unit_bytes(const md_plan *plan, const md_config *config)
{
    uint64_t most = 0;

    for (uint64_t i = 0; i < plan->count; i++) {
        uint64_t bytes = plan->units[i].done ? 0 : md_unit_memory(&plan->units[i], config);

        if (bytes > most) most = bytes;
    }
    return most;
}

static void engine_fini(engine *e)
{
    for (size_t i = 0; e->arenas != NULL && i < e->members; i++)
        rt_arena_free(e->arenas[i]);
    free(e->arenas);
    free(e->shard_needs);
    free(e->entries);
    free(e->dirty);
    free(e->pending.units);
    free(e->committing.units);
    pthread_cond_destroy(&e->committed);
    pthread_mutex_destroy(&e->lock);
}

static rt_status engine_init(engine *e, const md_engine_spec *spec, rt_err *err)
{
    uint64_t count = spec->plan->count;
    uint64_t unit_bytes = md_engine_unit_bytes(spec->plan, spec->config);
    uint64_t fit = unit_bytes > 0 ? spec->memory_bytes / unit_bytes : UINT64_MAX;

    *e = (engine){.spec = spec, .clock = rt_clock_real()};
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->committed, NULL);
    e->last_commit_ns = rt_clock_now(&e->clock);
    if (fit == 0)
        return rt_fail(err, RT_ENOMEM, "one record needs %llu bytes of buffers, allowed are %llu",
                       (unsigned long long)unit_bytes, (unsigned long long)spec->memory_bytes);
    e->members = rt_team_size(spec->team);
    if (e->members > fit) e->members = (size_t)fit;
    e->arenas = calloc(e->members, sizeof(rt_arena *));
    e->shard_needs = calloc(md_source_shard_count(spec->source), sizeof(*e->shard_needs));
    e->entries = calloc(count + 1, sizeof(*e->entries));
    e->dirty = calloc(MD_LAYERS_MAX + 1, sizeof(*e->dirty));
    e->pending.units = calloc(count + 1, sizeof(uint32_t));
    e->committing.units = calloc(count + 1, sizeof(uint32_t));
    if (e->arenas == NULL || e->shard_needs == NULL || e->entries == NULL || e->dirty == NULL ||
        e->pending.units == NULL || e->committing.units == NULL)
        return rt_fail(err, RT_ENOMEM, "queue of %llu records", (unsigned long long)count);
    for (size_t i = 0; i < e->members; i++)
        RT_TRY(rt_arena_create(unit_bytes, &e->arenas[i], err));
    count_needs(e);
    return RT_OK;
}

rt_status md_engine_run(const md_engine_spec *spec, md_engine_result *out, rt_err *err)
{
    engine e;
    rt_status status = engine_init(&e, spec, err);

    if (status != RT_OK) goto done;
    rt_team_run(spec->team, run_member, &e, e.members);
    pthread_mutex_lock(&e.lock);
    if (e.pending.count > 0) commit_pending(&e); /* also after a failure: it is work done */
    pthread_mutex_unlock(&e.lock);
    status = e.status;
    if (status != RT_OK) {
        if (err != NULL) *err = e.err;
    } else if (rt_stop_requested()) {
        status = rt_fail(err, RT_ECANCELED, "stopped");
    } else {
        *out = e.result;
    }
done:
    engine_fini(&e);
    return status;
}
