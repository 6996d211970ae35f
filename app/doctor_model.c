/* doctor_model.c - a model on this machine: is it whole, does it fit, does its disk keep up. */
#include "app/doctor.h"

#include "app/heat_file.h"
#include "app/model_advice.h"
#include "app/plan.h"
#include "base/budget.h"
#include "model/convert/disk_space.h"
#include "model/convert/record_check.h"

#include <stdio.h>
#include <stdlib.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/vfs.h>

enum {
    RECORD_GLM52 = 20 << 20, /* about an expert of the release at 4 bits */
    SCRATCH_MAX = 256 << 20, /* of a file that is written to measure a disk */
    SCRATCH_LEAST = 64 << 20,
    DAMAGED_NAMED = 20,
    JUDGED_RECORD_BYTES = 1 << 20, /* reads below this say little about a disk */
    RECORD_SMALL = 4 << 20,        /* where memory is short */
    READ_SPARE = 4,                /* as much memory must be available as a read takes */
};

static const double DISK_SLOW = 1e9; /* bytes/s: any NVMe disk is faster, no SATA disk is */

typedef char size_text[24];

static const char *size(uint64_t bytes, size_text text)
{
    return rt_bytes_format(bytes, text, sizeof(size_text));
}

/* ---- disk ---- */

static bool is_in_memory(const char *dir)
{
    struct statfs info;

    return statfs(dir, &info) == 0 && (info.f_type == TMPFS_MAGIC || info.f_type == RAMFS_MAGIC);
}

/* needed: experts are going to be read from this disk while tokens are made. */
static void judge_disk(app_doctor *doctor, const app_disk_rate *rate, const char *dir, bool needed)
{
    uint64_t each = rate->reads > 0 ? rate->bytes / rate->reads : 0;
    bool slow = each >= JUDGED_RECORD_BYTES && rate->bytes_s < DISK_SLOW;
    size_text speed, one;

    size((uint64_t)rate->bytes_s, speed);
    size(each, one);
    if (is_in_memory(dir))
        app_doctor_row(doctor, APP_ROW_WARN, "disk",
                       "keep the container on a disk: here it takes the memory that experts need",
                       "%s is a filesystem in memory (tmpfs): %s/s in reads of %s", dir, speed,
                       one);
    else if (!rate->direct)
        app_doctor_row(doctor, APP_ROW_WARN, "disk",
                       "keep the container on a local ext4, xfs or btrfs: others read through the "
                       "page cache, 2 to 4 times slower",
                       "no O_DIRECT here; %s/s in reads of %s (%s)", speed, one, rate->what);
    else if (slow && needed)
        app_doctor_row(doctor, APP_ROW_WARN, "disk",
                       "move the container to an NVMe disk, or give more RAM: experts are read "
                       "from here for every token",
                       "O_DIRECT, %s/s in reads of %s (%s)", speed, one, rate->what);
    else
        app_doctor_row(doctor, APP_ROW_OK, "disk", NULL, "O_DIRECT, %s/s in reads of %s (%s)%s",
                       speed, one, rate->what, slow ? "; slow, but all experts fit in RAM" : "");
}

static void measure_failed(app_doctor *doctor, const rt_err *err)
{
    if (err->status == RT_ENOMEM) {
        app_doctor_row(doctor, APP_ROW_WARN, "disk",
                       "end what else fills the memory, or raise its "
                       "limit",
                       "not measured: %s", err->text);
        return;
    }
    app_doctor_row(doctor, APP_ROW_FAIL, "disk",
                   "look into the system's log (dmesg): the disk or its filesystem has errors",
                   "%s", err->text);
}

void app_doctor_place(app_doctor *doctor, const char *dir)
{
    uint64_t free_bytes = 0, file_bytes = SCRATCH_MAX, read_bytes = RECORD_GLM52;
    app_disk_rate rate;
    rt_err err = {0};
    rt_status status = md_disk_free(dir, &free_bytes, &err);
    size_text left;

    if (status != RT_OK) {
        measure_failed(doctor, &err);
        return;
    }
    if (free_bytes / 4 < file_bytes) file_bytes = free_bytes / 4;
    if (file_bytes < SCRATCH_LEAST) {
        app_doctor_row(doctor, APP_ROW_WARN, "disk", "make room, or run doctor elsewhere",
                       "%s: %s free: too little to measure the disk", dir, size(free_bytes, left));
        return;
    }
    app_doctor_row(doctor, APP_ROW_OK, "space", NULL, "%s free in %s", size(free_bytes, left), dir);
    if (rt_memory_available_bytes() / READ_SPARE < read_bytes) read_bytes = RECORD_SMALL;
    status = app_measure_scratch_file(dir, file_bytes, read_bytes, &rate, &err);
    if (status == RT_OK)
        judge_disk(doctor, &rate, dir, true);
    else if (status == RT_ENOMEM)
        measure_failed(doctor, &err);
    else if (status == RT_ENOSPACE)
        app_doctor_row(doctor, APP_ROW_WARN, "disk", "make room, or run doctor elsewhere", "%s",
                       err.text);
    else
        app_doctor_row(doctor, APP_ROW_WARN, "disk",
                       "run doctor with a model's directory, or where you may write",
                       "no file can be written to measure the disk: %s", err.text);
}

/* ---- the plan ---- */

static void judge_memory(app_doctor *doctor, const app_plan *plan)
{
    const pl_plan *p = &plan->plan;
    size_text a, b;

    if (!p->fits)
        app_doctor_row(
            doctor, APP_ROW_FAIL, "memory",
            "see moesaic plan, which names each part: more memory (or a higher limit), a "
            "smaller --ctx-size, or a conversion with --dense q4",
            "too little: %s needed, %s available", size(p->needed_bytes, a),
            size(plan->machine.ram_bytes, b));
    else if (p->records_in_ram < p->records)
        app_doctor_row(doctor, APP_ROW_WARN, "memory",
                       "more RAM or more nodes make it faster (moesaic plan says how many)",
                       "%llu of %llu experts fit in %s beside a context of %u tokens; the others "
                       "are read from disk",
                       (unsigned long long)p->records_in_ram, (unsigned long long)p->records,
                       size(plan->machine.ram_bytes, a), plan->sizes.context);
    else
        app_doctor_row(doctor, APP_ROW_OK, "memory", NULL,
                       "everything fits: %s of %s, with a context of %u tokens",
                       size(p->ram_used_bytes, a), size(plan->machine.ram_bytes, b),
                       plan->sizes.context);
}

/* disk_rate: as measured; 0: let the plan measure or assume. */
static bool check_plan(app_doctor *doctor, const app_model *model, double disk_rate, app_plan *plan)
{
    app_plan_spec spec = {.session = doctor->session, .nodes = 1, .disk_rate = disk_rate};
    rt_err err = {0};

    /* A broken heat file has a row of its own. */
    spec.heat = "none";
    if (app_plan_make(model, &spec, doctor->team, plan, &err) == RT_OK) return true;
    app_doctor_row(doctor, APP_ROW_FAIL, "memory",
                   err.status == RT_EINVAL
                       ? "give what is expected"
                       : "end what else fills the memory, or raise its limit (the rows above)",
                   "%s", err.text);
    return false;
}

static void show_speed(app_doctor *doctor, const app_plan *plan)
{
    const pl_plan *p = &plan->plan;

    size_text slow, fast;

    if (!p->fits) return;
    app_doctor_row(doctor, APP_ROW_OK, "speed", NULL,
                   "about %s to %s tokens/s, limited by %s (moesaic plan has the details)",
                   app_speed_format(p->slow_tok_s, slow, sizeof(slow)),
                   app_speed_format(p->fast_tok_s, fast, sizeof(fast)), pl_term_name(p->limit));
}

/* ---- a container ---- */

/* What a process alone lacks will not work; what it does not read yet is no matter. */
static void check_whole(app_doctor *doctor, const app_model *model)
{
    char next[APP_NEXT_BYTES];
    size_text a, b;

    if (model->records_held == model->records && !model->lacks_tokenizer)
        app_doctor_row(doctor, APP_ROW_OK, "model", NULL,
                       "complete container of %llu records, %s; every index agrees with the "
                       "manifest",
                       (unsigned long long)model->records, size(model->bytes, a));
    else if (app_model_is_runnable(model))
        app_doctor_row(doctor, APP_ROW_OK, "model", NULL,
                       "container of %llu of %llu records, %s of %s: all that this version reads "
                       "(the MTP layer's experts are not here)",
                       (unsigned long long)model->records_held, (unsigned long long)model->records,
                       size(model->held_bytes, a), size(model->bytes, b));
    else /* an expert rank can do without rank 0's part */
        app_doctor_row(doctor, model->experts_lacking > 0 ? APP_ROW_FAIL : APP_ROW_WARN, "model",
                       app_model_next(model, next, sizeof(next)),
                       "partial container: %llu of %llu records, %s of %s%s",
                       (unsigned long long)model->records_held, (unsigned long long)model->records,
                       size(model->held_bytes, a), size(model->bytes, b),
                       model->lacks_tokenizer ? "; no tokenizer.bin" : "");
}

static const char copy_again[] =
    "copy the pack again from where it is whole, or convert again; then moesaic doctor --deep";

static void report_states(app_doctor *doctor, const md_container *container,
                          const md_record_state *states)
{
    uint64_t bad = 0, unchecked = 0, checked = 0;
    char first[128] = "";

    for (uint64_t i = 0; i < md_container_record_count(container); i++) {
        char name[64];
        md_record record;

        checked += states[i] == MD_RECORD_OK;
        unchecked += states[i] == MD_RECORD_UNCHECKED;
        if (states[i] != MD_RECORD_DAMAGED && states[i] != MD_RECORD_UNREADABLE) continue;
        md_container_record_at(container, i, &record);
        md_key_format(record.key, name, sizeof(name));
        if (bad == 0)
            snprintf(first, sizeof(first), "%s in %.40s is %s", name, record.pack,
                     md_record_state_name(states[i]));
        if (bad++ < DAMAGED_NAMED)
            fprintf(stderr, "moesaic doctor: %s in %s is %s\n", name, record.pack,
                    md_record_state_name(states[i]));
    }
    if (bad > 0)
        app_doctor_row(doctor, APP_ROW_FAIL, "hashes", copy_again, "%llu %s bad: %s%s",
                       (unsigned long long)bad, bad == 1 ? "record is" : "records are", first,
                       bad > 1 ? ", ..." : "");
    else if (unchecked > 0)
        app_doctor_row(doctor, APP_ROW_WARN, "hashes", "run it again to the end",
                       "stopped: %llu records were not checked", (unsigned long long)unchecked);
    else
        app_doctor_row(doctor, APP_ROW_OK, "hashes", NULL,
                       "all %llu records that are here have "
                       "their bytes",
                       (unsigned long long)checked);
}

static void check_all_hashes(app_doctor *doctor, const md_container *container)
{
    md_record_state *states = calloc(md_container_record_count(container) + 1, sizeof(*states));
    rt_progress *progress;

    if (states == NULL) {
        app_doctor_row(doctor, APP_ROW_FAIL, "hashes", "end what else fills the memory",
                       "out of memory");
        return;
    }
    progress = rt_progress_begin("check hashes", md_records_held_bytes(container), false);
    md_records_check(container, doctor->team, progress, states);
    rt_progress_end(progress);
    report_states(doctor, container, states);
    free(states);
}

static void check_some_hashes(app_doctor *doctor, const app_disk_rate *rate)
{
    if (rate->damaged > 0)
        app_doctor_row(doctor, APP_ROW_FAIL, "hashes", copy_again,
                       "%u of %llu experts that were read %s damaged: %s", rate->damaged,
                       (unsigned long long)rate->reads, rate->damaged == 1 ? "is" : "are",
                       rate->what);
    else if (rate->reads > 0)
        app_doctor_row(doctor, APP_ROW_OK, "hashes", NULL,
                       "%llu experts that were read have their bytes; --deep checks all records",
                       (unsigned long long)rate->reads);
}

static void judge_heat(app_doctor *doctor, const char *path, const pl_heat *heat, bool found)
{
    if (!app_heat_is_writable(path))
        app_doctor_row(doctor, APP_ROW_WARN, "heat",
                       "give runs a file of their own: --heat FILE, where this user may write",
                       "%s cannot be written by this user: runs work, but what they learn is lost",
                       path);
    else if (found)
        app_doctor_row(doctor, APP_ROW_OK, "heat", NULL, "%.0f tokens seen, confidence %.0f %%",
                       pl_heat_tokens(heat), 100 * pl_heat_confidence(heat));
    else
        app_doctor_row(doctor, APP_ROW_OK, "heat", NULL, "none yet: run keeps it in %s", path);
}

static void check_heat(app_doctor *doctor, const md_container *container)
{
    pl_heat *heat = NULL;
    bool found = false;
    char *path = NULL;
    rt_err err = {0};
    rt_status status = app_heat_path(container, doctor->session.heat, &path, &err);

    if (status == RT_OK && path == NULL) return; /* --heat none */
    if (status == RT_OK) status = app_heat_load(path, container, &heat, &found, &err);
    if (status != RT_OK)
        app_doctor_row(doctor, APP_ROW_WARN, "heat",
                       "start anew, or copy the heat of another copy of this model: runs work "
                       "without, but count nothing",
                       "%s", err.text);
    else
        judge_heat(doctor, path, heat, found);
    free(path);
    pl_heat_free(heat);
}

static void check_room(app_doctor *doctor, const char *dir)
{
    uint64_t free_bytes = 0;
    rt_err err = {0};
    size_text left;

    if (md_disk_free(dir, &free_bytes, &err) != RT_OK)
        app_doctor_row(doctor, APP_ROW_FAIL, "space", "check that the disk is there", "%s",
                       err.text);
    else if (free_bytes < APP_HEAT_ROOM)
        app_doctor_row(doctor, APP_ROW_WARN, "space",
                       "make room: the heat of experts cannot be kept beside the model",
                       "the disk is full: %s free in %s", size(free_bytes, left), dir);
    else
        app_doctor_row(doctor, APP_ROW_OK, "space", NULL, "%s free in %s", size(free_bytes, left),
                       dir);
}

static void check_container(app_doctor *doctor, const app_model *model)
{
    app_disk_rate rate = {0};
    rt_err err = {0};
    bool planned, disk_ok;
    app_plan plan;

    check_whole(doctor, model);
    disk_ok = app_measure_container(model->container, &rate, &err) == RT_OK;
    planned = check_plan(doctor, model, rate.bytes_s, &plan);
    if (planned) judge_memory(doctor, &plan);
    if (!disk_ok)
        measure_failed(doctor, &err);
    else if (rate.reads > 0)
        judge_disk(doctor, &rate, model->dir,
                   planned && plan.plan.fits && plan.plan.records_in_ram < plan.plan.records);
    check_room(doctor, model->dir);
    if (doctor->deep)
        check_all_hashes(doctor, model->container);
    else if (disk_ok)
        check_some_hashes(doctor, &rate);
    check_heat(doctor, model->container);
    if (planned) show_speed(doctor, &plan);
}

/* ---- before there is one ---- */

static void check_conversion_room(app_doctor *doctor, const app_plan *plan, const app_model *model)
{
    size_text needed, consumed, left;

    size(plan->disk_needed_bytes, needed);
    size(plan->disk_consume_bytes, consumed);
    size(plan->disk_free_bytes, left);
    if (plan->disk_free_bytes >= plan->disk_needed_bytes)
        app_doctor_row(doctor, APP_ROW_OK, "space", NULL, "%s free in %s, %s needed", left,
                       model->dir, needed);
    else if (model->foreign) /* an import deletes nothing */
        app_doctor_row(doctor, APP_ROW_FAIL, "space", "use a larger disk",
                       "%s free in %s, %s needed", left, model->dir, needed);
    else if (plan->disk_free_bytes >= plan->disk_consume_bytes)
        app_doctor_row(doctor, APP_ROW_WARN, "space", "convert with --consume",
                       "%s free in %s, %s needed; with --consume about %s", left, model->dir,
                       needed, consumed);
    else
        app_doctor_row(doctor, APP_ROW_FAIL, "space", "use a larger disk",
                       "%s free in %s, %s needed, with --consume about %s", left, model->dir,
                       needed, consumed);
}

static void check_source(app_doctor *doctor, const app_model *model)
{
    bool ready = app_model_is_convertible(model);
    char next[APP_NEXT_BYTES];
    size_text a, b;
    app_plan plan;

    app_model_next(model, next, sizeof(next));
    if (model->state == APP_MODEL_CONFIG)
        app_doctor_row(doctor, APP_ROW_WARN, "model", next,
                       "a config.json alone: %s of weights to download",
                       size(model->source_bytes, a));
    else
        app_doctor_row(doctor, ready ? APP_ROW_WARN : APP_ROW_FAIL, "model", next,
                       "a %s, %s: %u weight files, %u missing, %s of about %s",
                       model->foreign ? "model of the colibri engine" : "checkpoint",
                       ready ? "complete, not converted yet" : "not usable yet", model->shards,
                       model->shards_missing, size(model->shard_bytes, a),
                       size(model->source_bytes, b));
    if (!check_plan(doctor, model, 0, &plan)) return;
    judge_memory(doctor, &plan);
    check_conversion_room(doctor, &plan, model);
    show_speed(doctor, &plan);
}

static void check_unfinished(app_doctor *doctor, const app_model *model)
{
    uint64_t left =
        model->disk_bytes > model->done_bytes ? model->disk_bytes - model->done_bytes : 0;
    uint64_t free_bytes = 0;
    char next[APP_NEXT_BYTES];
    size_text a, b;
    rt_err err = {0};

    app_doctor_row(doctor, model->running ? APP_ROW_WARN : APP_ROW_FAIL, "model",
                   app_model_next(model, next, sizeof(next)),
                   "an unfinished conversion%s: %llu of %llu records, %s of about %s",
                   model->running ? ", running now" : "", (unsigned long long)model->records_done,
                   (unsigned long long)model->records, size(model->done_bytes, a),
                   size(model->disk_bytes, b));
    if (md_disk_free(model->dir, &free_bytes, &err) != RT_OK)
        app_doctor_row(doctor, APP_ROW_FAIL, "space", "check that the disk is there", "%s",
                       err.text);
    else if (free_bytes < left)
        app_doctor_row(doctor, APP_ROW_WARN, "space",
                       "make room, or convert with --consume, before running convert again",
                       "%s free in %s, about %s still to be written", size(free_bytes, a),
                       model->dir, size(left, b));
    else
        app_doctor_row(doctor, APP_ROW_OK, "space", NULL, "%s free in %s, %s still to be written",
                       size(free_bytes, a), model->dir, size(left, b));
}

void app_doctor_model(app_doctor *doctor, const app_model *model)
{
    char next[APP_NEXT_BYTES];

    switch (model->state) {
    case APP_MODEL_ABSENT:
    case APP_MODEL_NOTHING:
    case APP_MODEL_BROKEN:
        app_doctor_row(doctor, APP_ROW_FAIL, "model", app_model_next(model, next, sizeof(next)),
                       "%s", model->reason.text);
        break;
    case APP_MODEL_CONFIG:
    case APP_MODEL_CHECKPOINT:
        check_source(doctor, model);
        break;
    case APP_MODEL_UNFINISHED:
        check_unfinished(doctor, model);
        break;
    case APP_MODEL_CONTAINER:
        check_container(doctor, model);
        break;
    }
}
