/* convert.c - the order of a conversion: look, plan, check the disk, convert, seal.
 *
 * Nothing is written before the plan stands and the disk is large enough. moesaic.json is written
 * last; until then the ledger says what is done, and running again goes on from there. */
#include "model/convert/convert_internal.h"

#include "base/budget.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "model/convert/directories.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const uint64_t default_memory_bytes = 2ull << 30;

void md_conversion_fini(md_conversion *c)
{
    md_target_close(c->target);
    md_ledger_close(c->ledger);
    md_plan_free(&c->plan);
    md_source_close(c->source);
    md_source_files_free(&c->files);
}

/* ---- looking at source and target ---- */

static bool target_has(const char *dir, const char *name)
{
    char *path = rt_path_join(dir, name);
    bool there = path != NULL && access(path, F_OK) == 0;

    free(path);
    return there;
}

rt_status md_conversion_init(md_conversion *c, const md_convert_spec *spec, rt_err *err)
{
    kn_format experts = spec->expert_format, dense = spec->dense_format;

    *c = (md_conversion){.spec = spec};
    RT_TRY(md_directories_check(spec->source, spec->target, err));
    RT_TRY(md_source_files_read(spec->source, &c->files, err));
    if (spec->import) {
        RT_TRY(md_import_look(spec->source, spec->indexer_from, &c->files.config, &c->import, err));
        experts = c->import.expert_format;
        dense = c->import.dense_format;
    }
    md_container_info_init(&c->info, &c->files.config, experts, dense);
    if (spec->latent_eps > 0) c->info.latent_eps = spec->latent_eps;
    c->info.grid_fine = spec->grid_fine;
    memcpy(c->info.template_id, c->files.template_id, sizeof(c->info.template_id));
    return RT_OK;
}

rt_status md_conversion_plan(md_conversion *c, rt_err *err)
{
    RT_TRY(md_plan_create(&c->files.config, &c->info, &c->plan, err));
    c->options = (md_ledger_options){
        .import = c->spec->import,
        .expert_format = c->info.expert_format,
        .dense_format = c->info.dense_format,
        .grid_fine = c->info.grid_fine,
        .latent_eps = c->info.latent_eps,
        .conversion_id = c->info.conversion_id,
        .config_hash = c->files.config_hash,
        .records = c->plan.count,
    };
    return RT_OK;
}

/* ---- an already complete target ---- */

rt_status md_conversion_check_complete(const md_conversion *c, const md_container *container,
                                       rt_err *err)
{
    const md_container_info *info = md_container_get_info(container);
    md_ledger_options held = {
        .import = c->options.import, /* a complete container does not tell, and need not */
        .expert_format = info->expert_format,
        .dense_format = info->dense_format,
        .grid_fine = info->grid_fine,
        .latent_eps = info->latent_eps,
        .conversion_id = info->conversion_id,
        .records = md_container_record_count(container),
    };
    rt_status status;

    RT_TRY(md_config_file_hash(c->spec->target, &held.config_hash, err));
    status = md_ledger_check_options(&held, &c->options, err);
    if (status != RT_OK) rt_err_prefix(err, "%s is a complete container: ", c->spec->target);
    return status;
}

/* A crash between sealing and deleting the ledger leaves the latter behind. */
static rt_status remove_old_ledger(const char *dir, rt_err *err)
{
    md_ledger *ledger = NULL;

    RT_TRY(md_ledger_open(dir, false, &ledger, err));
    return ledger != NULL ? md_ledger_remove(ledger, err) : RT_OK;
}

static rt_status report_complete(const md_conversion *c, md_convert_result *result, rt_err *err)
{
    md_container *container = NULL;
    rt_err why = {0};
    rt_status status;

    status = md_container_open(c->spec->target, &container, &why);
    if (status == RT_OK) status = md_conversion_check_complete(c, container, &why);
    if (status != RT_OK) {
        md_container_close(container);
        return rt_fail(err, status, "%s%s", why.text,
                       status == RT_EINVAL || status == RT_EFORMAT ? ": choose another TARGET"
                                                                   : "");
    }
    if (!c->spec->dry_run) status = remove_old_ledger(c->spec->target, err);
    if (status == RT_OK) {
        *result = (md_convert_result){
            .target_bytes = c->plan.target_bytes,
            .records_total = c->plan.count,
            .records_resumed = c->plan.count,
            .expert_format = c->info.expert_format,
            .dense_format = c->info.dense_format,
            .imported = c->import.summary,
        };
        memcpy(result->model_id, md_container_get_info(container)->model_id,
               sizeof(result->model_id));
        if (c->spec->consume)
            md_directory_count_shards(c->spec->source, &result->shards_kept, &result->kept_bytes);
    }
    md_container_close(container);
    return status;
}

/* ---- planning ---- */

rt_status md_conversion_open_source(md_conversion *c, rt_err *err)
{
    uint32_t known_count = 0;
    const md_source_shard *known =
        c->ledger != NULL ? md_ledger_shards(c->ledger, &known_count) : NULL;
    const char *unknown = NULL;
    uint64_t unused;

    if (c->spec->import)
        RT_TRY(md_source_open_foreign(&(md_foreign_spec){.dir = c->spec->source,
                                                         .other = c->spec->indexer_from,
                                                         .layers = c->files.config.layers},
                                      known, known_count, &c->source, err));
    else
        RT_TRY(md_source_open(c->spec->source, known, known_count, &c->source, err));
    if (c->ledger != NULL) RT_TRY(md_conversion_check_gone(c, err));
    RT_TRY(md_plan_resolve(&c->plan, &c->files.config, c->source, err));
    if (c->spec->import)
        RT_TRY(md_import_check(&c->plan, &c->files.config, &c->info, c->source, err));
    unused = md_source_unused(c->source, &unknown);
    if (unused > 0)
        rt_log_warn("convert", "%llu tensors of the source are not part of this model, %s for one",
                    (unsigned long long)unused, unknown);
    if (!c->spec->consume) return RT_OK;
    RT_TRY(md_source_check_deletable(c->source, err));
    if (access(c->spec->source, W_OK | X_OK) != 0)
        return rt_fail(err, RT_EIO, "--consume: nothing can be deleted in %s: %s", c->spec->source,
                       strerror(errno));
    return RT_OK;
}

/* What --consume would need, where it helps: most disks do not hold source and container. */
static const char *suggest_consume(const md_conversion *c, char *text, size_t text_bytes)
{
    md_disk_space consuming;
    char needed[32];

    text[0] = '\0';
    if (!c->spec->consume && !c->spec->import &&
        md_disk_space_measure(c->spec->source, c->spec->target, &c->plan, c->source, true,
                              &consuming, NULL) == RT_OK &&
        consuming.needed_bytes <= consuming.free_bytes)
        snprintf(text, text_bytes, " (--consume, which deletes the source as it goes, needs %s)",
                 rt_bytes_format(consuming.needed_bytes, needed, sizeof(needed)));
    return text;
}

static rt_status check_disk(md_conversion *c, rt_err *err)
{
    char needed[32], available[32], short_of[32], hint[128];

    RT_TRY(md_disk_space_measure(c->spec->source, c->spec->target, &c->plan, c->source,
                                 c->spec->consume, &c->disk, err));
    if (c->disk.needed_bytes <= c->disk.free_bytes) return RT_OK;
    return rt_fail(
        err, RT_ENOSPACE, "%s: needs %s, free are %s: make %s of room or choose another disk%s",
        c->spec->target, rt_bytes_format(c->disk.needed_bytes, needed, sizeof(needed)),
        rt_bytes_format(c->disk.free_bytes, available, sizeof(available)),
        rt_bytes_format(c->disk.needed_bytes - c->disk.free_bytes, short_of, sizeof(short_of)),
        suggest_consume(c, hint, sizeof(hint)));
}

uint64_t md_conversion_memory(const md_conversion *c)
{
    return c->spec->memory_bytes > 0 ? c->spec->memory_bytes : default_memory_bytes;
}

static rt_status check_memory(const md_conversion *c, rt_team *team, md_convert_result *result,
                              rt_err *err)
{
    uint64_t needed = md_engine_unit_bytes(&c->plan, &c->files.config);
    uint64_t units = rt_team_size(team);
    char needed_text[32], allowed_text[32];

    if (needed <= md_conversion_memory(c)) {
        if (needed > 0 && units > md_conversion_memory(c) / needed)
            units = md_conversion_memory(c) / needed;
        result->records_at_once = units;
        result->buffer_bytes = units * needed;
        result->memory_bytes = md_conversion_memory(c);
        return RT_OK;
    }
    return rt_fail(err, RT_ENOMEM, "one record needs %s of buffers, allowed are %s",
                   rt_bytes_format(needed, needed_text, sizeof(needed_text)),
                   rt_bytes_format(md_conversion_memory(c), allowed_text, sizeof(allowed_text)));
}

/* ---- converting ---- */

/* The target's own entry must outlive a power loss too: with --consume its records soon are all there
 * is. A parent that may not be read cannot be synced; then the system's own write-back has to do. */
static rt_status sync_parent(const char *dir, rt_err *err)
{
    char *parent = rt_path_parent(dir);
    rt_status status = RT_OK;

    if (parent == NULL) return rt_fail(err, RT_ENOMEM, "the folder of %s", dir);
    if (access(parent, R_OK) == 0) status = rt_dir_sync(parent, err);
    free(parent);
    return status;
}

static rt_status create_target(md_conversion *c, rt_err *err)
{
    const char *dir = c->spec->target;

    if (mkdir(dir, 0755) != 0 && errno != EEXIST)
        return rt_fail(err, errno == ENOSPC ? RT_ENOSPACE : RT_EIO, "create %s: %s", dir,
                       strerror(errno));
    if (c->ledger == NULL) RT_TRY(sync_parent(dir, err));
    if (c->ledger == NULL) RT_TRY(md_ledger_create(dir, &c->options, c->source, &c->ledger, err));
    return md_target_create(dir, &c->plan, &c->target, err);
}

static uint64_t bytes_to_read(const md_conversion *c)
{
    uint64_t bytes = 0;

    for (uint64_t i = 0; i < c->plan.count; i++) {
        const md_unit *unit = &c->plan.units[i];

        for (uint32_t s = 0; !unit->done && s < unit->source_count; s++)
            bytes += md_source_matrix_bytes(c->source, &unit->source[s]);
    }
    return bytes;
}

rt_status md_conversion_run_engine(md_conversion *c, rt_team *team, const char *what,
                                   md_engine_result *out, rt_err *err)
{
    md_engine_spec spec = {
        .plan = &c->plan,
        .config = &c->files.config,
        .info = &c->info,
        .source = c->source,
        .target = c->target,
        .ledger = c->ledger,
        .team = team,
        .memory_bytes = md_conversion_memory(c),
        .consume = c->spec->consume && c->target != NULL,
        .commit_records = c->spec->commit_records,
    };
    rt_status status;

    spec.progress = rt_progress_begin(what, bytes_to_read(c), c->spec->quiet);
    status = md_engine_run(&spec, out, err);
    rt_progress_end(spec.progress);
    return status;
}

/* The disk filled up under us: say again what is needed. */
static void explain_full_disk(md_conversion *c, rt_err *err)
{
    char needed[32], available[32];
    md_disk_space now;

    if (err == NULL || md_disk_space_measure(c->spec->source, c->spec->target, &c->plan, c->source,
                                             c->spec->consume, &now, NULL) != RT_OK)
        return;
    rt_err_prefix(err, "needs %s more, free are %s; run again to resume: ",
                  rt_bytes_format(now.needed_bytes, needed, sizeof(needed)),
                  rt_bytes_format(now.free_bytes, available, sizeof(available)));
}

/* Everything after the last record; repeated whole when it is interrupted. */
static rt_status finish(md_conversion *c, rt_err *err)
{
    md_ledger *ledger = c->ledger;

    RT_TRY(md_target_finish(c->target, err));
    RT_TRY(md_conversion_grid(c, c->info.grid_q, err));
    RT_TRY(md_finish_files(c, err));
    c->ledger = NULL; /* removing closes it, also when it fails */
    return md_ledger_remove(ledger, err);
}

static rt_status fill_result(const md_conversion *c, md_convert_result *out, rt_err *err)
{
    const char *unused = NULL;

    *out = (md_convert_result){
        .source_bytes = md_source_bytes(c->source),
        .target_bytes = c->plan.target_bytes,
        .records_total = c->plan.count,
        .records_resumed = c->resumed,
        .records_lost = c->lost,
        .tensors = md_source_tensor_count(c->source),
        .tensors_unused = md_source_unused(c->source, &unused),
        .needed_bytes = c->disk.needed_bytes,
        .reserve_bytes = MD_DISK_RESERVE_BYTES,
        .free_bytes = c->disk.free_bytes,
        .expert_format = c->info.expert_format,
        .dense_format = c->info.dense_format,
        .imported = c->import.summary,
    };
    for (uint32_t i = 0; i < md_source_shard_count(c->source); i++)
        out->shards +=
            md_source_shard_present(c->source, i) && !md_source_shard_is_other(c->source, i);
    return c->spec->consume ? md_disk_deletable(&c->plan, c->source, &out->shards_deletable,
                                                &out->deletable_bytes, err)
                            : RT_OK;
}

/* Whether a conversion may begin or go on here, and what of it is done. */
static rt_status look_at_target(md_conversion *c, rt_team *team, rt_err *err)
{
    const char *dir = c->spec->target;
    rt_err why = {0};
    rt_status status;

    RT_TRY(md_directory_check_writable(dir, err));
    RT_TRY(md_ledger_open(dir, c->spec->dry_run, &c->ledger, err));
    if (c->ledger == NULL) return md_directory_check_new(dir, err);
    status = md_ledger_check_options(md_ledger_get_options(c->ledger), &c->options, &why);
    if (status != RT_OK)
        return rt_fail(err, status, "%s is an interrupted conversion: %s: choose another TARGET",
                       dir, why.text);
    return md_conversion_resume(c, team, err);
}

/* Records of a source that changed are of neither of its states, and which of them nobody knows: none
 * counts, however the run ended. Those of consumed shards do, which were compared before. */
static rt_status make_records(md_conversion *c, rt_team *team, md_engine_result *out, rt_err *err)
{
    rt_status status = md_conversion_run_engine(c, team, "convert", out, err);
    rt_err why = {0};

    if (md_source_check_unchanged(c->source, &why) != RT_EINVAL) return status;
    if (!c->spec->consume) RT_TRY(md_ledger_forget(c->ledger, err));
    return rt_fail(err, RT_EINVAL, "%s", why.text);
}

static rt_status convert(md_conversion *c, rt_team *team, md_convert_result *result, rt_err *err)
{
    md_engine_result engine = {0};
    rt_status status;

    RT_TRY(look_at_target(c, team, err));
    RT_TRY(md_conversion_open_source(c, err));
    RT_TRY(check_disk(c, err));
    RT_TRY(fill_result(c, result, err));
    RT_TRY(check_memory(c, team, result, err));
    if (c->spec->dry_run) return RT_OK;
    status = create_target(c, err);
    if (status == RT_OK) status = make_records(c, team, &engine, err);
    if (status == RT_OK) status = finish(c, err);
    if (status == RT_ENOSPACE) explain_full_disk(c, err);
    if (status != RT_OK) return status;
    if (c->spec->consume)
        md_directory_count_shards(c->spec->source, &result->shards_kept, &result->kept_bytes);
    result->records_done = engine.records_done;
    result->shards_deleted = engine.shards_deleted;
    memcpy(result->model_id, c->info.model_id, sizeof(result->model_id));
    return RT_OK;
}

rt_status md_convert(const md_convert_spec *spec, rt_team *team, md_convert_result *result,
                     rt_err *err)
{
    rt_clock clock = rt_clock_real();
    uint64_t begin_ns = rt_clock_now(&clock);
    md_convert_result found = {0};
    md_conversion c;
    rt_status status;

    RT_ASSERT(!spec->import || !spec->consume);
    RT_ASSERT(spec->verify_only || spec->import ||
              (kn_format_name(spec->expert_format) != NULL &&
               kn_format_name(spec->dense_format) != NULL));
    status = md_conversion_init(&c, spec, err);
    if (status != RT_OK) goto done;
    if (spec->verify_only) {
        status = md_conversion_verify(&c, team, &found, err);
        goto done;
    }
    status = md_conversion_plan(&c, err);
    if (status != RT_OK) goto done;
    status = target_has(spec->target, "moesaic.json") ? report_complete(&c, &found, err)
                                                      : convert(&c, team, &found, err);
done:
    md_conversion_fini(&c);
    if (status != RT_OK) return status;
    found.seconds = (double)(rt_clock_now(&clock) - begin_ns) * 1e-9;
    *result = found;
    return RT_OK;
}
