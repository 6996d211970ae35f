/* finish.c - what follows the last record: grid exponents, manifest, side files, the seal. */
#include "model/convert/convert_internal.h"

#include "base/check.h"
#include "base/file.h"
#include "model/container/description.h"
#include "model/convert/grid_q.h"

#include <stdlib.h>
#include <string.h>

static const md_unit *require_unit(const md_plan *plan, uint16_t layer, uint16_t kind,
                                   uint32_t index)
{
    const md_unit *unit = md_plan_find(plan, (md_key){layer, kind, index});

    RT_ASSERT(unit != NULL);
    return unit;
}

rt_status md_conversion_grid(const md_conversion *c, int8_t grid_q[MD_LAYERS_MAX], rt_err *err)
{
    const md_config *config = &c->files.config;
    double *powers = calloc(config->experts + 1, sizeof(*powers));

    if (powers == NULL) return rt_fail(err, RT_ENOMEM, "grid of %u experts", config->experts);
    memset(grid_q, 0, MD_LAYERS_MAX * sizeof(grid_q[0]));
    for (uint32_t layer = 0; layer < md_config_layers_total(config); layer++) {
        double shared = 0;

        if (!config->sparse[layer]) continue;
        for (uint32_t e = 0; e < config->experts; e++)
            powers[e] = require_unit(&c->plan, (uint16_t)layer, MD_EXPERT, e)->power;
        if (config->shared_experts > 0)
            shared = require_unit(&c->plan, (uint16_t)layer, MD_SHARED, 0)->power;
        grid_q[layer] = md_grid_q(md_grid_median(powers, config->experts), shared,
                                  config->routed_scale, config->topk, c->info.grid_fine);
    }
    free(powers);
    return RT_OK;
}

static rt_status write_file(const char *dir, const char *name, const void *data, size_t bytes,
                            rt_err *err)
{
    char *path = rt_path_join(dir, name);
    rt_status status;

    if (path == NULL) return rt_fail(err, RT_ENOMEM, "%s/%s", dir, name);
    status = rt_file_replace(path, data, bytes, err);
    free(path);
    return status;
}

static rt_status write_manifest(const char *dir, const md_manifest_entry *entries, uint64_t count,
                                rt_err *err)
{
    char *path = rt_path_join(dir, "manifest.bin");
    rt_status status;

    if (path == NULL) return rt_fail(err, RT_ENOMEM, "%s/manifest.bin", dir);
    status = md_manifest_write(path, entries, count, err);
    free(path);
    return status;
}

static rt_status write_side_files(const md_conversion *c, rt_err *err)
{
    const md_source_files *files = &c->files;
    const char *dir = c->spec->target;

    RT_TRY(write_file(dir, "config.json", files->config_json, files->config_bytes, err));
    if (files->generation_json != NULL)
        RT_TRY(write_file(dir, "generation_config.json", files->generation_json,
                          files->generation_bytes, err));
    return write_file(dir, MD_TOKENIZER_NAME, files->tokenizer, files->tokenizer_bytes, err);
}

rt_status md_finish_files(md_conversion *c, rt_err *err)
{
    md_manifest_entry *entries = calloc(c->plan.count + 1, sizeof(*entries));
    rt_status status;

    if (entries == NULL) return rt_fail(err, RT_ENOMEM, "manifest");
    for (uint64_t i = 0; i < c->plan.count; i++) {
        const md_unit *unit = &c->plan.units[i];

        RT_ASSERT(unit->done);
        entries[i] = (md_manifest_entry){unit->key, unit->shape.bytes, unit->hash};
    }
    status = write_manifest(c->spec->target, entries, c->plan.count, err);
    if (status == RT_OK) status = write_side_files(c, err);
    if (status == RT_OK)
        status = md_container_seal(c->spec->target, c->files.config_json, c->files.config_bytes,
                                   entries, c->plan.count, &c->info, err);
    free(entries);
    return status;
}
