/* reference.c - reads reference.json with jansson and reference.safetensors with our own reader. */
#include "app/reference.h"

#include "base/file.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { JSON_MAX = 64 << 20, ROWS_MAX = 1 << 20 };

rt_status app_reference_tensor(const app_reference *reference, const char *name, md_st_dtype dtype,
                               void **out, uint32_t *rows, uint32_t *columns, rt_err *err)
{
    const md_st_tensor *tensor = md_st_find(reference->file, name);
    uint64_t columns_found;
    rt_status status;
    void *data;

    if (tensor == NULL) {
        *out = NULL;
        return RT_OK;
    }
    columns_found = tensor->dims == 2 ? tensor->shape[1] : 1;
    if (tensor->dtype != dtype || tensor->dims < 1 || tensor->dims > 2 ||
        tensor->shape[0] > ROWS_MAX || columns_found > ROWS_MAX)
        return rt_fail(err, RT_EFORMAT,
                       "%s: %s: expected %s of one or two dimensions, found %s of %u",
                       md_st_path(reference->file), name, md_st_dtype_name(dtype),
                       md_st_dtype_name(tensor->dtype), tensor->dims);
    data = malloc(tensor->bytes + 1);
    if (data == NULL) return rt_fail(err, RT_ENOMEM, "%s: %" PRIu64 " bytes", name, tensor->bytes);
    status = md_st_read(reference->file, tensor, 0, data, tensor->bytes, err);
    if (status != RT_OK) {
        free(data);
        return status;
    }
    *rows = (uint32_t)tensor->shape[0];
    *columns = (uint32_t)columns_found;
    *out = data;
    return RT_OK;
}

/* A non-negative integer member; missing gives `fallback`. */
static rt_status get_uint(const json_t *object, const char *key, uint32_t fallback, uint32_t *out,
                          rt_err *err)
{
    const json_t *value = json_object_get(object, key);

    if (value == NULL) {
        *out = fallback;
        return RT_OK;
    }
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        json_integer_value(value) > ROWS_MAX)
        return rt_fail(err, RT_EFORMAT, "reference.json: %s: expected a number 0..%d", key,
                       ROWS_MAX);
    *out = (uint32_t)json_integer_value(value);
    return RT_OK;
}

static rt_status read_greedy(const json_t *list, app_reference_prompt *prompt, rt_err *err)
{
    if (!json_is_array(list))
        return rt_fail(err, RT_EFORMAT, "reference.json: greedy: expected a list of ids");
    prompt->greedy_count = (uint32_t)json_array_size(list);
    prompt->greedy = calloc((size_t)prompt->greedy_count + 1, sizeof(*prompt->greedy));
    if (prompt->greedy == NULL) return rt_fail(err, RT_ENOMEM, "greedy ids");
    for (uint32_t i = 0; i < prompt->greedy_count; i++)
        prompt->greedy[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    return RT_OK;
}

static rt_status read_prompt(app_reference *reference, uint32_t index, const json_t *entry,
                             rt_err *err)
{
    app_reference_prompt *prompt = &reference->prompts[index];
    uint32_t rows = 0, columns = 0;
    char name[64];
    void *data;

    RT_TRY(get_uint(entry, "prompt_len", 0, &prompt->prompt_len, err));
    RT_TRY(get_uint(entry, "logits_first_row", 0, &prompt->logits_first_row, err));
    RT_TRY(read_greedy(json_object_get(entry, "greedy"), prompt, err));

    snprintf(name, sizeof(name), "p%u.ids", index);
    RT_TRY(app_reference_tensor(reference, name, MD_ST_I32, &data, &rows, &columns, err));
    if (data == NULL) return rt_fail(err, RT_EFORMAT, "reference.safetensors: no tensor %s", name);
    prompt->ids = data;
    prompt->rows = rows;
    if (columns != 1 || prompt->prompt_len == 0 ||
        (uint64_t)prompt->prompt_len + prompt->greedy_count != rows ||
        prompt->logits_first_row >= rows)
        return rt_fail(
            err, RT_EFORMAT,
            "reference.safetensors: %s has %u ids, prompt and greedy of reference.json %u + %u",
            name, rows, prompt->prompt_len, prompt->greedy_count);

    snprintf(name, sizeof(name), "p%u.logits", index);
    RT_TRY(app_reference_tensor(reference, name, MD_ST_F32, &data, &rows, &columns, err));
    if (data == NULL) return rt_fail(err, RT_EFORMAT, "reference.safetensors: no tensor %s", name);
    prompt->logits = data;
    if (rows != prompt->rows - prompt->logits_first_row ||
        (reference->vocab != 0 && columns != reference->vocab))
        return rt_fail(err, RT_EFORMAT, "reference.safetensors: %s is [%u, %u], expected %u rows",
                       name, rows, columns, prompt->rows - prompt->logits_first_row);
    reference->vocab = columns;
    return RT_OK;
}

static rt_status read_json(app_reference *reference, const json_t *root, rt_err *err)
{
    const json_t *prompts = json_object_get(root, "prompts");
    const json_t *eps = json_object_get(root, "mla_latent_norm_eps");
    const json_t *dbg = json_object_get(root, "dbg_prompt");

    if (!json_is_array(prompts) || json_array_size(prompts) == 0)
        return rt_fail(err, RT_EFORMAT,
                       "reference.json: prompts: expected a list that is not empty");
    reference->latent_eps = json_is_number(eps) ? json_number_value(eps) : (double)NAN;
    reference->dbg_prompt = json_is_integer(dbg) ? (int32_t)json_integer_value(dbg) : -1;
    reference->prompt_count = (uint32_t)json_array_size(prompts);
    reference->prompts = calloc(reference->prompt_count, sizeof(*reference->prompts));
    if (reference->prompts == NULL) return rt_fail(err, RT_ENOMEM, "reference prompts");
    for (uint32_t i = 0; i < reference->prompt_count; i++)
        RT_TRY(read_prompt(reference, i, json_array_get(prompts, i), err));
    return RT_OK;
}

rt_status app_reference_open(const char *dir, app_reference *out, rt_err *err)
{
    app_reference reference = {0};
    json_t *root = NULL;
    json_error_t json_err;
    char *path = NULL, *text = NULL;
    size_t text_bytes;
    rt_status status;

    path = rt_path_join(dir, "reference.json");
    if (path == NULL) return rt_fail(err, RT_ENOMEM, "path");
    status = rt_file_read(path, JSON_MAX, &text, &text_bytes, err);
    if (status != RT_OK) goto done;
    root = json_loadb(text, text_bytes, JSON_REJECT_DUPLICATES, &json_err);
    if (root == NULL) {
        status = rt_fail(err, RT_EFORMAT, "%s: line %d: %s", path, json_err.line, json_err.text);
        goto done;
    }
    free(path);
    path = rt_path_join(dir, "reference.safetensors");
    if (path == NULL) {
        status = rt_fail(err, RT_ENOMEM, "path");
        goto done;
    }
    status = md_st_open(path, &reference.file, err);
    if (status != RT_OK) goto done;
    status = read_json(&reference, root, err);
    if (status != RT_OK) goto done;
    *out = reference;
done:
    if (status != RT_OK) app_reference_close(&reference);
    json_decref(root);
    free(text);
    free(path);
    return status;
}

void app_reference_close(app_reference *reference)
{
    for (uint32_t i = 0; reference->prompts != NULL && i < reference->prompt_count; i++) {
        free(reference->prompts[i].ids);
        free(reference->prompts[i].greedy);
        free(reference->prompts[i].logits);
    }
    free(reference->prompts);
    md_st_close(reference->file);
    *reference = (app_reference){0};
}
