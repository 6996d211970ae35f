/* verify.c - `convert --verify-only`: every record is made again from the source and compared with
 * the container's manifest and with the bytes on its disk. */
#include "model/convert/convert_internal.h"

#include "base/check.h"
#include "base/log.h"
#include "model/convert/record_check.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { NAMED_MAX = 20 }; /* mismatches that get a line each */

typedef struct {
    const md_conversion *c;
    const md_container *container;
    uint64_t *reasons; /* per unit; 0 none */
} comparison;

enum { REASON_NONE, REASON_OTHER, REASON_DISK };

static bool hash_equal(md_hash128 a, md_hash128 b)
{
    return a.low == b.low && a.high == b.high;
}

static void compare_unit(void *context, size_t chunk, uint32_t member)
{
    comparison *work = context;
    const md_unit *unit = &work->c->plan.units[chunk];
    md_hash128 on_disk = {0};
    md_record record;

    (void)member;
    if (!md_container_find(work->container, unit->key, &record) ||
        !hash_equal(record.hash, unit->hash))
        work->reasons[chunk] = REASON_OTHER;
    else if (record.fd >= 0 && (md_record_hash(&record, &on_disk, NULL) != RT_OK ||
                                !hash_equal(on_disk, record.hash)))
        work->reasons[chunk] = REASON_DISK;
}

static uint64_t report(const comparison *work)
{
    static const char *const texts[] = {
        [REASON_OTHER] = "differs from what the source converts to",
        [REASON_DISK] = "is damaged on disk: copy that pack again from a container that is "
                        "whole, or convert again into another TARGET",
    };
    uint64_t count = 0;

    for (uint64_t i = 0; i < work->c->plan.count; i++) {
        md_key key = work->c->plan.units[i].key;
        char name[64], pack[32];

        if (work->reasons[i] == REASON_NONE) continue;
        if (count < NAMED_MAX)
            rt_log_error("convert", "%s in %s %s", md_key_format(key, name, sizeof(name)),
                         md_pack_name(key, pack, sizeof(pack)), texts[work->reasons[i]]);
        count++;
    }
    if (count > NAMED_MAX)
        rt_log_error("convert", "and %" PRIu64 " records more", count - NAMED_MAX);
    return count;
}

/* Of a partial copy the manifest alone can be compared: that has to be said. */
static uint64_t count_absent(const md_container *container)
{
    uint64_t absent = 0;
    char name[64] = "", pack[32] = "";

    for (uint64_t i = 0; i < md_container_record_count(container); i++) {
        md_record record;

        md_container_record_at(container, i, &record);
        if (record.fd >= 0) continue;
        if (absent++ > 0) continue;
        md_key_format(record.key, name, sizeof(name));
        md_pack_name(record.key, pack, sizeof(pack));
    }
    if (absent > 0)
        rt_log_warn("convert",
                    "%" PRIu64 " records are not held by this copy (%s in %s for one): only their "
                    "hashes in the manifest were compared",
                    absent, name, pack);
    return absent;
}

static rt_status compare_grid(const md_conversion *c, uint64_t *mismatches, rt_err *err)
{
    int8_t grid_q[MD_LAYERS_MAX];

    RT_TRY(md_conversion_grid(c, grid_q, err));
    for (uint32_t layer = 0; layer < MD_LAYERS_MAX; layer++) {
        if (grid_q[layer] == c->info.grid_q[layer]) continue;
        rt_log_error("convert", "layer %u grid exponent: expected %d, found %d", layer,
                     grid_q[layer], c->info.grid_q[layer]);
        (*mismatches)++;
    }
    return RT_OK;
}

/* The tokenizer and the template are part of the model as well. */
static void compare_files(const md_conversion *c, const md_container *container,
                          uint64_t *mismatches)
{
    size_t bytes = 0;
    const void *image = md_container_tokenizer(container, &bytes);

    if (image != NULL &&
        (bytes != c->files.tokenizer_bytes || memcmp(image, c->files.tokenizer, bytes) != 0)) {
        rt_log_error("convert", "tokenizer.bin differs from what the source converts to");
        (*mismatches)++;
    }
    if (strcmp(c->files.template_id, c->info.template_id) != 0) {
        rt_log_error("convert", "chat template: expected \"%s\", found \"%s\"",
                     c->files.template_id, c->info.template_id);
        (*mismatches)++;
    }
}

/* Formats that were not asked for are the container's. */
static rt_status take_options(md_conversion *c, const md_container *container, rt_err *err)
{
    const md_container_info *held = md_container_get_info(container);

    bool from_source = c->spec->import; /* then there is nothing to choose */

    if (!from_source && kn_format_name(c->spec->expert_format) == NULL)
        c->info.expert_format = held->expert_format;
    if (!from_source && kn_format_name(c->spec->dense_format) == NULL) {
        c->info.dense_format = held->dense_format;
        c->info.embed_format = held->embed_format;
    }
    if (c->spec->grid_any) c->info.grid_fine = held->grid_fine;
    if (!(c->spec->latent_eps > 0)) c->info.latent_eps = held->latent_eps;
    RT_TRY(md_conversion_plan(c, err));
    RT_TRY(md_conversion_check_complete(c, container, err));
    c->info = *held;
    return RT_OK;
}

rt_status md_conversion_verify(md_conversion *c, rt_team *team, md_convert_result *result,
                               rt_err *err)
{
    comparison work = {.c = c};
    md_container *container = NULL;
    md_engine_result engine = {0};
    uint64_t mismatches = 0;
    rt_status status;

    RT_TRY(md_container_open(c->spec->target, &container, err));
    status = take_options(c, container, err);
    if (status == RT_OK) status = md_conversion_open_source(c, err);
    if (status == RT_OK) status = md_conversion_run_engine(c, team, "verify", &engine, err);
    if (status != RT_OK) goto done;
    work.container = container;
    work.reasons = calloc(c->plan.count + 1, sizeof(*work.reasons));
    if (work.reasons == NULL) {
        status = rt_fail(err, RT_ENOMEM, "verify");
        goto done;
    }
    rt_team_run(team, compare_unit, &work, c->plan.count);
    mismatches = report(&work);
    compare_files(c, container, &mismatches);
    status = compare_grid(c, &mismatches, err);
    if (status != RT_OK) goto done;
    *result = (md_convert_result){
        .source_bytes = md_source_bytes(c->source),
        .target_bytes = c->plan.target_bytes,
        .records_total = c->plan.count,
        .records_done = engine.records_done,
        .records_absent = count_absent(container),
        .mismatches = mismatches,
        .expert_format = c->info.expert_format,
        .dense_format = c->info.dense_format,
        .imported = c->import.summary,
    };
    memcpy(result->model_id, md_container_get_info(container)->model_id, sizeof(result->model_id));
done:
    free(work.reasons);
    md_container_close(container);
    return status;
}
