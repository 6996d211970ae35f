/* source.c - the table of a checkpoint's tensors. Its files are in source_shards.c, reading them is in
 * source_read.c. */
#include "model/convert/source_internal.h"

#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- tensors ---- */

static int compare_tensor(const void *a, const void *b)
{
    return strcmp(((const source_tensor *)a)->name, ((const source_tensor *)b)->name);
}

/* context: the shards. */
static int compare_place(const void *a, const void *b, void *context)
{
    const source_shard *shards = context;
    bool x = shards[((const source_tensor *)a)->shard].other;
    bool y = shards[((const source_tensor *)b)->shard].other;

    return x != y ? (x ? 1 : -1) : compare_tensor(a, b);
}

source_tensor *md_source_find_tensor(const md_source *source, const char *name, bool other)
{
    source_tensor key = {.name = name};
    uint32_t first = other ? source->own_count : 0;
    uint32_t count = other ? source->tensor_count - first : source->own_count;

    if (count == 0) return NULL;
    return bsearch(&key, source->tensors + first, count, sizeof(key), compare_tensor);
}

static source_tensor *find_tensor(const md_source *source, const char *name)
{
    return md_source_find_tensor(source, name, false);
}

/* The number of the shard that the index puts a tensor into. */
static uint32_t find_indexed(const md_source *source, const json_t *file)
{
    char name[sizeof(((md_source_shard *)0)->name)];

    snprintf(name, sizeof(name), "%s%s", source->foreign ? MD_SOURCE_OTHER_PREFIX : "",
             json_string_value(file));
    return md_source_find_shard(source, name);
}

/* All tensors of the shards that are there, then the index's names of those that are not. */
static rt_status build_table(md_source *source, rt_err *err)
{
    uint64_t capacity = json_object_size(json_object_get(source->index, "weight_map"));
    const char *name;
    json_t *file;

    for (uint32_t i = 0; i < source->shard_count; i++)
        if (source->shards[i].file != NULL) capacity += md_st_count(source->shards[i].file);
    if (capacity >= MD_SOURCE_NONE)
        return rt_fail(err, RT_EFORMAT, "%s: too many tensors", source->dir);
    source->tensors = calloc(capacity + 1, sizeof(*source->tensors));
    if (source->tensors == NULL) return rt_fail(err, RT_ENOMEM, "%s: tensor table", source->dir);
    for (uint32_t i = 0; i < source->shard_count; i++) {
        const md_st_file *st = source->shards[i].file;

        for (uint64_t t = 0; st != NULL && t < md_st_count(st); t++) {
            const md_st_tensor *tensor = md_st_at(st, t);

            source->tensors[source->tensor_count++] =
                (source_tensor){.name = tensor->name, .shard = i, .tensor = tensor};
        }
    }
    json_object_foreach(json_object_get(source->index, "weight_map"), name, file)
    {
        uint32_t shard = find_indexed(source, file);

        if (source->shards[shard].file == NULL)
            source->tensors[source->tensor_count++] = (source_tensor){.name = name, .shard = shard};
    }
    if (source->tensor_count > 0)
        qsort_r(source->tensors, source->tensor_count, sizeof(source->tensors[0]), compare_place,
                source->shards);
    while (source->own_count < source->tensor_count &&
           !source->shards[source->tensors[source->own_count].shard].other)
        source->own_count++;
    return RT_OK;
}

/* Names of the old in-memory layout: one tensor for all experts of a layer. */
static bool name_is_fused(const char *name)
{
    return strstr(name, ".mlp.experts.gate_up_proj") != NULL ||
           strstr(name, ".mlp.experts.down_proj") != NULL;
}

static rt_status check_table(const md_source *source, rt_err *err)
{
    const char *name;
    json_t *file;

    for (uint32_t i = 0; i < source->tensor_count; i++) {
        const source_tensor *tensor = &source->tensors[i];

        if (name_is_fused(tensor->name))
            return rt_fail(err, RT_EUNSUPPORTED,
                           "%s: fused expert names (%s): expected the release's layout, "
                           "mlp.experts.N.gate_proj.weight and so on",
                           source->dir, tensor->name);
        if (i > 0 && i != source->own_count && strcmp(tensor[-1].name, tensor->name) == 0)
            return rt_fail(err, RT_EFORMAT, "%s: %s is in two shards, %s and %s", source->dir,
                           tensor->name, source->shards[tensor[-1].shard].info.name,
                           source->shards[tensor->shard].info.name);
    }
    json_object_foreach(json_object_get(source->index, "weight_map"), name, file)
    {
        const source_tensor *tensor = md_source_find_tensor(source, name, source->foreign);
        uint32_t shard = find_indexed(source, file);

        if (tensor == NULL || tensor->shard != shard)
            return rt_fail(err, RT_EFORMAT, "%s: the index puts %.200s into %s, which lacks it",
                           md_source_release_dir(source), name, json_string_value(file));
    }
    return RT_OK;
}

static rt_status open_source(const md_foreign_spec *spec, bool foreign,
                             const md_source_shard *known, uint32_t known_count, md_source **out,
                             rt_err *err)
{
    md_source *source = calloc(1, sizeof(*source));
    rt_status status;

    if (source == NULL) return rt_fail(err, RT_ENOMEM, "%s", spec->dir);
    source->foreign = foreign;
    source->layers = spec->layers;
    source->dir = strdup(spec->dir);
    source->other_dir = spec->other != NULL ? strdup(spec->other) : NULL;
    source->shards = calloc(MD_SOURCE_SHARDS_MAX, sizeof(*source->shards));
    if (source->dir == NULL || source->shards == NULL ||
        (spec->other != NULL && source->other_dir == NULL)) {
        status = rt_fail(err, RT_ENOMEM, "%s", spec->dir);
        goto fail;
    }
    status = md_source_list_shards(source, known, known_count, err);
    for (uint32_t i = 0; status == RT_OK && i < source->shard_count; i++)
        status = md_source_open_shard(source, &source->shards[i], known, known_count, err);
    if (status == RT_OK) status = build_table(source, err);
    if (status == RT_OK) status = check_table(source, err);
    if (status != RT_OK) goto fail;
    *out = source;
    return RT_OK;
fail:
    md_source_close(source);
    return status;
}

rt_status md_source_open(const char *dir, const md_source_shard *known, uint32_t known_count,
                         md_source **out, rt_err *err)
{
    return open_source(&(md_foreign_spec){.dir = dir}, false, known, known_count, out, err);
}

rt_status md_source_open_foreign(const md_foreign_spec *spec, const md_source_shard *known,
                                 uint32_t known_count, md_source **out, rt_err *err)
{
    return open_source(spec, true, known, known_count, out, err);
}

void md_source_close(md_source *source)
{
    if (source == NULL) return;
    for (uint32_t i = 0; source->shards != NULL && i < source->shard_count; i++)
        md_st_close(source->shards[i].file);
    json_decref(source->index);
    json_decref(source->stamps);
    free(source->tensors);
    free(source->shards);
    free(source->other_dir);
    free(source->dir);
    free(source);
}

/* ---- views ---- */

uint32_t md_source_shard_count(const md_source *source)
{
    return source->shard_count;
}

const md_source_shard *md_source_shard_at(const md_source *source, uint32_t shard)
{
    RT_ASSERT(shard < source->shard_count);
    return &source->shards[shard].info;
}

bool md_source_shard_present(const md_source *source, uint32_t shard)
{
    RT_ASSERT(shard < source->shard_count);
    return source->shards[shard].file != NULL && !source->shards[shard].dropped;
}

bool md_source_shard_is_other(const md_source *source, uint32_t shard)
{
    RT_ASSERT(shard < source->shard_count);
    return source->shards[shard].other;
}

uint64_t md_source_bytes(const md_source *source)
{
    return source->bytes;
}

uint32_t md_source_lookup(md_source *source, const char *name)
{
    source_tensor *tensor = find_tensor(source, name);

    if (tensor == NULL) return MD_SOURCE_NONE;
    tensor->used = true;
    return (uint32_t)(tensor - source->tensors);
}

bool md_source_lookup_matrix(md_source *source, const char *name, md_source_matrix *out)
{
    char scale_name[MD_ST_NAME_MAX + 16];
    uint32_t weight = md_source_lookup(source, name);

    if (weight == MD_SOURCE_NONE) return false;
    snprintf(scale_name, sizeof(scale_name), "%s%s", name, source->foreign ? ".qs" : "_scale_inv");
    *out = (md_source_matrix){.weight = weight, .scale = md_source_lookup(source, scale_name)};
    return true;
}

uint32_t md_source_gone_shard(const md_source *source, const char *name)
{
    const source_tensor *tensor = find_tensor(source, name);

    return tensor != NULL && tensor->tensor == NULL ? tensor->shard : MD_SOURCE_NONE;
}

uint32_t md_source_tensor_count(const md_source *source)
{
    return source->own_count;
}

uint64_t md_source_unused(const md_source *source, const char **first)
{
    uint64_t count = 0;

    for (uint32_t i = 0; i < source->own_count; i++) {
        if (source->tensors[i].used) continue;
        if (count == 0) *first = source->tensors[i].name;
        count++;
    }
    return count;
}

const char *md_source_tensor_name(const md_source *source, uint32_t tensor)
{
    RT_ASSERT(tensor < source->tensor_count);
    return source->tensors[tensor].name;
}

uint32_t md_source_tensor_shard(const md_source *source, uint32_t tensor)
{
    RT_ASSERT(tensor < source->tensor_count);
    return source->tensors[tensor].shard;
}

uint64_t md_source_matrix_bytes(const md_source *source, const md_source_matrix *matrix)
{
    uint64_t bytes = source->tensors[matrix->weight].tensor->bytes;

    if (matrix->scale != MD_SOURCE_NONE) bytes += source->tensors[matrix->scale].tensor->bytes;
    return bytes;
}

/* ---- resolving ---- */

/* A tensor that is there; a missing one is blamed on a shard that is gone where there is any. */
rt_status md_source_require(md_source *source, const char *name, bool other, source_tensor **out,
                            rt_err *err)
{
    const char *dir = other ? source->other_dir : source->dir;
    source_tensor *tensor = md_source_find_tensor(source, name, other);

    if (tensor != NULL && tensor->tensor != NULL) {
        tensor->used = true;
        *out = tensor;
        return RT_OK;
    }
    if (tensor != NULL)
        return rt_fail(err, RT_EFORMAT, "%s: %s is needed from %s, which is %s there", dir, name,
                       source->shards[tensor->shard].info.name, other ? "not" : "no longer");
    for (uint32_t i = 0; i < source->shard_count; i++)
        if (source->shards[i].file == NULL && source->shards[i].other == other)
            return rt_fail(err, RT_EFORMAT, "%s: %s is missing (%s is %s there)", dir, name,
                           source->shards[i].info.name, other ? "not" : "no longer");
    return rt_fail(err, RT_EFORMAT, "%s: tensor %s is missing", dir, name);
}

static void format_shape(const md_st_tensor *tensor, char *text, size_t text_bytes)
{
    size_t used = 0;

    text[0] = '\0';
    for (uint32_t i = 0; i < tensor->dims && used < text_bytes; i++) {
        int wrote = snprintf(text + used, text_bytes - used, "%s%llu", i > 0 ? ", " : "",
                             (unsigned long long)tensor->shape[i]);

        if (wrote < 0) return;
        used += (size_t)wrote;
    }
}

/* A vector [cols] may also be stored as [1, cols]. */
rt_status md_source_check_shape(const md_source *source, const source_tensor *tensor, uint32_t rows,
                                uint32_t cols, rt_err *err)
{
    const md_st_tensor *st = tensor->tensor;
    char found[96], expected[48];

    if (rows == 1 && st->dims == 1 && st->shape[0] == cols) return RT_OK;
    if (st->dims == 2 && st->shape[0] == rows && st->shape[1] == cols) return RT_OK;
    format_shape(st, found, sizeof(found));
    if (rows == 1)
        snprintf(expected, sizeof(expected), "%u", cols);
    else
        snprintf(expected, sizeof(expected), "%u, %u", rows, cols);
    return rt_fail(err, RT_EFORMAT, "%s: %s: expected shape [%s], found [%s]",
                   source->shards[tensor->shard].info.name, tensor->name, expected, found);
}

static rt_status resolve_scale(md_source *source, const source_tensor *weight, uint32_t rows,
                               uint32_t cols, uint32_t *out, rt_err *err)
{
    char scale_name[MD_ST_NAME_MAX + 16];
    uint32_t block_rows = (rows + MD_SOURCE_BLOCK - 1) / MD_SOURCE_BLOCK;
    uint32_t block_cols = (cols + MD_SOURCE_BLOCK - 1) / MD_SOURCE_BLOCK;
    source_tensor *scale;

    snprintf(scale_name, sizeof(scale_name), "%s_scale_inv", weight->name);
    RT_TRY(md_source_require(source, scale_name, source->shards[weight->shard].other, &scale, err));
    if (scale->tensor->dtype != MD_ST_F32)
        return rt_fail(err, RT_EUNSUPPORTED, "%s: expected dtype F32, found %s", scale_name,
                       md_st_dtype_name(scale->tensor->dtype));
    RT_TRY(md_source_check_shape(source, scale, block_rows, block_cols, err));
    *out = (uint32_t)(scale - source->tensors);
    return RT_OK;
}

rt_status md_source_resolve_values(md_source *source, source_tensor *tensor, uint32_t rows,
                                   uint32_t cols, md_source_matrix *out, rt_err *err)
{
    md_source_matrix matrix = {.scale = MD_SOURCE_NONE, .rows = rows, .cols = cols};
    md_st_dtype dtype = tensor->tensor->dtype;

    if (dtype != MD_ST_BF16 && dtype != MD_ST_F32 && dtype != MD_ST_F8_E4M3)
        return rt_fail(
            err, RT_EUNSUPPORTED, "%s: %s: weights are read from BF16, F32 and F8_E4M3, found %s",
            source->shards[tensor->shard].info.name, tensor->name, md_st_dtype_name(dtype));
    RT_TRY(md_source_check_shape(source, tensor, rows, cols, err));
    if (dtype == MD_ST_F8_E4M3)
        RT_TRY(resolve_scale(source, tensor, rows, cols, &matrix.scale, err));
    matrix.weight = (uint32_t)(tensor - source->tensors);
    *out = matrix;
    return RT_OK;
}

rt_status md_source_resolve(md_source *source, const char *name, uint32_t rows, uint32_t cols,
                            md_source_matrix *out, rt_err *err)
{
    source_tensor *tensor;

    RT_ASSERT(rows > 0 && cols > 0);
    if (source->foreign) return md_source_resolve_foreign(source, name, rows, cols, out, err);
    RT_TRY(md_source_require(source, name, false, &tensor, err));
    return md_source_resolve_values(source, tensor, rows, cols, out, err);
}
