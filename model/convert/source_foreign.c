/* source_foreign.c - tensors of the colibri engine's files: stamps, integer formats, and what comes
 * from a second directory. */
#include "model/convert/source_internal.h"

#include "base/check.h"
#include "model/convert/foreign_format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- stamps ---- */

/* Claims are compared over all files: two that differ about one tensor show damage. */
static rt_status merge_stamps(md_source *source, const char *path, json_t *found, rt_err *err)
{
    const char *name;
    json_t *value;

    if (source->stamps == NULL) source->stamps = json_object();
    if (source->stamps == NULL) return rt_fail(err, RT_ENOMEM, "%s: colibri.fmt", path);
    json_object_foreach(found, name, value)
    {
        const char *before = json_string_value(json_object_get(source->stamps, name));

        if (!json_is_string(value))
            return rt_fail(err, RT_EFORMAT, "%s: colibri.fmt: %.200s: expected a format's name",
                           path, name);
        if (before != NULL && strcmp(before, json_string_value(value)) != 0)
            return rt_fail(err, RT_EFORMAT,
                           "%s: colibri.fmt: %.120s is %.40s here and %.40s in another file", path,
                           name, json_string_value(value), before);
        if (json_object_set(source->stamps, name, value) != 0)
            return rt_fail(err, RT_ENOMEM, "%s: colibri.fmt", path);
    }
    return RT_OK;
}

rt_status md_source_take_stamps(md_source *source, const md_st_file *file, rt_err *err)
{
    const char *text = md_st_metadata(file, "colibri.fmt");
    const char *declared = md_st_metadata(file, "colibri.container.formats");
    json_error_t error;
    json_t *found;
    rt_status status;

    if (declared != NULL && strstr(declared, md_foreign_kind_name(MD_FOREIGN_FP8)) != NULL)
        source->fp8_declared = true;
    if (text == NULL) return RT_OK;
    found = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    if (found == NULL || !json_is_object(found)) {
        json_decref(found);
        return rt_fail(err, RT_EFORMAT,
                       "%s: __metadata__: colibri.fmt: expected an object of format names",
                       md_st_path(file));
    }
    status = merge_stamps(source, md_st_path(file), found, err);
    json_decref(found);
    return status;
}

/* ---- where from ---- */

/* Whether a tensor may come from the second directory: what the engine's own converter leaves out. */
static bool may_be_other(const md_source *source, const char *name)
{
    static const char prefix[] = "model.layers.";
    unsigned long layer;
    char *end;

    if (source->other_dir == NULL || strncmp(name, prefix, sizeof(prefix) - 1) != 0) return false;
    layer = strtoul(name + sizeof(prefix) - 1, &end, 10);
    return layer >= source->layers || strncmp(end, ".self_attn.indexer.", 19) == 0;
}

md_source_place md_source_find_place(const md_source *source, const char *name, uint32_t *shard)
{
    const source_tensor *tensor = md_source_find_tensor(source, name, false);

    if (tensor != NULL && tensor->tensor != NULL) return MD_SOURCE_OWN;
    if (!may_be_other(source, name)) return MD_SOURCE_NOWHERE;
    tensor = md_source_find_tensor(source, name, true);
    if (tensor == NULL) return MD_SOURCE_NOWHERE;
    if (tensor->tensor != NULL) return MD_SOURCE_OTHER;
    *shard = tensor->shard;
    return MD_SOURCE_OTHER_GONE;
}

/* ---- resolving ---- */

/* Bytes in one row, or a row of bytes for each row of the matrix: any other shape says that they lie in
 * another order, which their number would not show. */
static rt_status check_row_order(const source_tensor *tensor, uint32_t rows, rt_err *err)
{
    const md_st_tensor *st = tensor->tensor;

    if (st->dims < 2 || st->shape[0] == rows || st->shape[0] == 1) return RT_OK;
    return rt_fail(err, RT_EFORMAT, "%s: expected one dimension, or %u rows, found %llu rows",
                   tensor->name, rows, (unsigned long long)st->shape[0]);
}

static rt_status resolve_integers(md_source *source, const source_tensor *weight,
                                  md_source_matrix *matrix, const char *stamp, rt_err *err)
{
    char scale_name[MD_ST_NAME_MAX + 16];
    md_foreign_layout layout = {0};
    md_foreign_tensor tensor = {
        .name = weight->name,
        .stamp = stamp,
        .fp8_declared = source->fp8_declared,
        .rows = matrix->rows,
        .cols = matrix->cols,
        .weight_bytes = weight->tensor->bytes,
    };
    source_tensor *scale;

    snprintf(scale_name, sizeof(scale_name), "%s.qs", weight->name);
    RT_TRY(md_source_require(source, scale_name, false, &scale, err));
    if (scale->tensor->dtype != MD_ST_F32)
        return rt_fail(err, RT_EUNSUPPORTED,
                       "%s: expected scales of dtype F32, found %s (mxfp4 and others are not "
                       "imported: convert the original checkpoint instead)",
                       scale_name, md_st_dtype_name(scale->tensor->dtype));
    RT_TRY(check_row_order(weight, matrix->rows, err));
    RT_TRY(check_row_order(scale, matrix->rows, err));
    tensor.scale_count = scale->tensor->bytes / sizeof(float);
    RT_TRY(md_foreign_infer(&tensor, &layout, err));
    matrix->scale = (uint32_t)(scale - source->tensors);
    matrix->bits = layout.bits;
    matrix->scale_group = layout.group;
    return RT_OK;
}

static rt_status resolve_plain(const md_source *source, const source_tensor *weight,
                               const md_source_matrix *matrix, const char *stamp, rt_err *err)
{
    md_st_dtype dtype = weight->tensor->dtype;

    if (dtype != MD_ST_F32 && dtype != MD_ST_BF16)
        return rt_fail(
            err, RT_EUNSUPPORTED, "%s: %s: expected U8 with scales in .qs, F32 or BF16, found %s",
            source->shards[weight->shard].info.name, weight->name, md_st_dtype_name(dtype));
    if (stamp != NULL && strcmp(stamp, "f32") != 0)
        return rt_fail(err, RT_EFORMAT, "%s: the file says %.60s, but it is stored as %s",
                       weight->name, stamp, md_st_dtype_name(dtype));
    return md_source_check_shape(source, weight, matrix->rows, matrix->cols, err);
}

rt_status md_source_resolve_foreign(md_source *source, const char *name, uint32_t rows,
                                    uint32_t cols, md_source_matrix *out, rt_err *err)
{
    md_source_matrix matrix = {.scale = MD_SOURCE_NONE, .rows = rows, .cols = cols};
    const char *stamp = json_string_value(json_object_get(source->stamps, name));
    source_tensor *tensor;
    uint32_t unused;
    md_source_place place = md_source_find_place(source, name, &unused);

    if (place == MD_SOURCE_OTHER || place == MD_SOURCE_OTHER_GONE) {
        RT_TRY(md_source_require(source, name, true, &tensor, err));
        return md_source_resolve_values(source, tensor, rows, cols, out, err);
    }
    RT_TRY(md_source_require(source, name, false, &tensor, err));
    matrix.weight = (uint32_t)(tensor - source->tensors);
    if (tensor->tensor->dtype == MD_ST_U8)
        RT_TRY(resolve_integers(source, tensor, &matrix, stamp, err));
    else
        RT_TRY(resolve_plain(source, tensor, &matrix, stamp, err));
    *out = matrix;
    return RT_OK;
}
