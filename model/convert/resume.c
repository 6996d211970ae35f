/* resume.c - what an interrupted conversion left behind.
 *
 * The ledger says which records were made durable, not that they still are: packs get lost, disks lie.
 * So every record that the ledger names is read back and hashed before it counts, which costs reading
 * the target once, little beside converting. One that is gone or damaged is simply converted again; its
 * old entry in the ledger stays and does no harm, because the next resumption checks as well. */
#include "model/convert/convert_internal.h"

#include "base/log.h"
#include "base/stop.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAMED_MAX = 3 /* records and shards that an error names */ };

typedef struct {
    md_conversion *c;
    md_target *target; /* owned: the packs as they were found */
    rt_progress *progress;
    uint32_t *units;     /* owned: [count] those that the ledger names */
    rt_status *statuses; /* owned: [count] */
    uint64_t count, bytes;
} look;

/* Takes the ledger's word; the records are read back before they count. */
static rt_status take_entries(md_conversion *c, rt_err *err)
{
    uint64_t count = 0;
    const md_ledger_entry *entries = md_ledger_entries(c->ledger, &count);

    for (uint64_t i = 0; i < count; i++) {
        md_unit *unit = md_plan_find(&c->plan, entries[i].key);
        char name[64];

        if (unit == NULL || unit->shape.bytes != entries[i].bytes)
            return rt_fail(err, RT_EFORMAT, "%s/%s: %s is not a record of this model",
                           c->spec->target, MD_LEDGER_NAME,
                           md_key_format(entries[i].key, name, sizeof(name)));
        unit->done = true;
        unit->hash = entries[i].hash;
        unit->power = entries[i].power;
    }
    return RT_OK;
}

static void check_unit(void *context, size_t chunk, uint32_t member)
{
    look *work = context;
    uint32_t number = work->units[chunk];

    (void)member;
    if (rt_stop_requested()) {
        work->statuses[chunk] = RT_ECANCELED;
        return;
    }
    work->statuses[chunk] = md_target_verify(work->target, number, NULL);
    rt_progress_add(work->progress, work->c->plan.units[number].shape.bytes);
}

static rt_status look_begin(look *work, md_conversion *c, rt_err *err)
{
    *work = (look){.c = c};
    work->units = calloc(c->plan.count + 1, sizeof(*work->units));
    work->statuses = calloc(c->plan.count + 1, sizeof(*work->statuses));
    if (work->units == NULL || work->statuses == NULL)
        return rt_fail(err, RT_ENOMEM, "check of %s", c->spec->target);
    for (uint32_t i = 0; i < c->plan.count; i++) {
        if (!c->plan.units[i].done) continue;
        work->units[work->count++] = i;
        work->bytes += c->plan.units[i].shape.bytes;
    }
    return md_target_look(c->spec->target, &c->plan, &work->target, err);
}

static void look_end(look *work)
{
    md_target_close(work->target);
    free(work->units);
    free(work->statuses);
}

/* One line per pack: a missing one may have hundreds of records. */
static void report_pack(const look *work, uint32_t pack)
{
    uint64_t lost = 0;
    char file[32], name[64] = "";

    for (uint64_t i = 0; i < work->count; i++) {
        if (work->statuses[i] == RT_OK || md_target_pack_of(work->target, work->units[i]) != pack)
            continue;
        if (lost++ == 0) md_key_format(work->c->plan.units[work->units[i]].key, name, sizeof(name));
    }
    if (lost == 0) return;
    md_target_pack_name(work->target, pack, file, sizeof(file));
    rt_log_warn("convert", "%s/%s %s: %" PRIu64 " records have to be converted again, %s%s",
                work->c->spec->target, file,
                md_target_pack_exists(work->target, pack) ? "is damaged" : "is missing", lost, name,
                lost > 1 ? " and others" : "");
}

static rt_status judge(look *work, rt_err *err)
{
    md_conversion *c = work->c;

    for (uint64_t i = 0; i < work->count; i++) {
        if (work->statuses[i] == RT_ECANCELED) return rt_fail(err, RT_ECANCELED, "stopped");
        if (work->statuses[i] == RT_ENOMEM)
            return rt_fail(err, RT_ENOMEM, "check of %s", c->spec->target);
    }
    for (uint64_t i = 0; i < work->count; i++) {
        md_unit *unit = &c->plan.units[work->units[i]];

        unit->done = work->statuses[i] == RT_OK;
        unit->verified = unit->done;
        if (unit->done)
            c->resumed++;
        else
            c->lost++;
    }
    for (uint32_t p = 0; c->lost > 0 && p < md_target_pack_count(work->target); p++)
        report_pack(work, p);
    return RT_OK;
}

rt_status md_conversion_resume(md_conversion *c, rt_team *team, rt_err *err)
{
    look work;
    rt_status status;

    RT_TRY(take_entries(c, err));
    status = look_begin(&work, c, err);
    if (status == RT_OK) {
        work.progress = rt_progress_begin("checking what is there:", work.bytes, c->spec->quiet);
        rt_team_run(team, check_unit, &work, work.count);
        rt_progress_end(work.progress);
        status = judge(&work, err);
    }
    look_end(&work);
    return status;
}

/* ---- records whose source was consumed ---- */

typedef struct {
    bool *gone; /* per shard */
    const md_unit *last;
    uint64_t records;
    char names[NAMED_MAX * 64];
} missing;

static void add_name(char *text, size_t text_bytes, uint64_t number, const char *name)
{
    size_t used = strlen(text);

    if (number < NAMED_MAX)
        snprintf(text + used, text_bytes - used, "%s%.60s", number > 0 ? ", " : "", name);
    else if (number == NAMED_MAX)
        snprintf(text + used, text_bytes - used, ", ...");
}

static void note_gone(void *context, const md_unit *unit, uint32_t shard)
{
    missing *m = context;
    char name[64];

    m->gone[shard] = true;
    if (m->last == unit) return; /* another of its tensors */
    m->last = unit;
    add_name(m->names, sizeof(m->names), m->records++,
             md_key_format(unit->key, name, sizeof(name)));
}

rt_status md_conversion_check_gone(const md_conversion *c, rt_err *err)
{
    uint32_t shards = md_source_shard_count(c->source);
    missing m = {.gone = calloc(shards + 1, sizeof(bool))};
    char files[NAMED_MAX * 64 + 8] = "";
    uint64_t count = 0;

    if (m.gone == NULL) return rt_fail(err, RT_ENOMEM, "check of %s", c->spec->source);
    md_plan_visit_gone(&c->plan, &c->files.config, c->source, note_gone, &m);
    for (uint32_t s = 0; s < shards; s++)
        if (m.gone[s])
            add_name(files, sizeof(files), count++, md_source_shard_at(c->source, s)->name);
    free(m.gone);
    if (m.records == 0) return RT_OK;
    return rt_fail(err, RT_EFORMAT,
                   "%" PRIu64 " records %s (%s), and %" PRIu64
                   " shards they are made of are no longer there (%s): put these back into %s and "
                   "run again",
                   m.records, c->lost > 0 ? "are missing or damaged in TARGET" : "are still to do",
                   m.names, count, files, c->spec->source);
}
