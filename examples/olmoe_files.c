/* olmoe_files.c - config.json, reference.json, reference.safetensors: read, and believed in nothing. */
#include "examples/olmoe_files.h"

#include "base/file.h"
#include "model/config.h"
#include "model/convert/safetensors.h"
#include "model/json_field.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    JSON_BYTES_MAX = 16 << 20,
    WIDTH_MAX = 1 << 16, /* OLMoE: 2,048 */
    VOCAB_MAX = 1 << 20, /* OLMoE: 50,304 */
    POSITIONS_MAX = 1 << 20,
    PROMPTS_MAX = 1000,
};

/* A JSON object from DIR/name; *out is the caller's (json_decref). */
static rt_status read_json(const char *dir, const char *name, json_t **out, rt_err *err)
{
    char *path = rt_path_join(dir, name), *text = NULL;
    size_t bytes = 0;
    rt_status status;

    if (path == NULL) return rt_fail(err, RT_ENOMEM, "%s", name);
    status = rt_file_read(path, JSON_BYTES_MAX, &text, &bytes, err);
    if (status == RT_OK) status = md_json_parse_object(text, bytes, path, out, err);
    free(text);
    free(path);
    return status;
}

/* ---- config.json ---- */

/* Settings that change what the model computes, with the only value that is computed here. A model
 * that wants another must be refused: it would run all the same, and talk nonsense. */
static const struct {
    const char *key, *value;
} required[] = {{"model_type", "\"olmoe\""}, {"hidden_act", "\"silu\""},
                {"norm_topk_prob", "false"}, {"attention_bias", "false"},
                {"clip_qkv", "absent"},      {"tie_word_embeddings", "false"},
                {"rope_scaling", "absent"}};

static rt_status parse_shape(const json_t *config, ex_shape *s, rt_err *err)
{
    uint32_t kv_heads;
    char found[80];

    for (size_t i = 0; i < sizeof(required) / sizeof(required[0]); i++) {
        const json_t *value = md_json_get(config, required[i].key);

        if (strcmp(md_json_show(value, found, sizeof(found)), required[i].value) != 0)
            return rt_fail(err, RT_EUNSUPPORTED, "%s: expected %s, found %s", required[i].key,
                           required[i].value, found);
    }
    RT_TRY(md_json_uint(config, "num_hidden_layers", 1, MD_LAYERS_MAX, &s->layers, err));
    RT_TRY(md_json_uint(config, "hidden_size", 2, WIDTH_MAX, &s->hidden, err));
    RT_TRY(md_json_uint(config, "num_attention_heads", 1, s->hidden, &s->heads, err));
    RT_TRY(md_json_uint(config, "num_key_value_heads", s->heads, s->heads, &kv_heads, err));
    RT_TRY(md_json_uint(config, "intermediate_size", 1, WIDTH_MAX, &s->inter, err));
    RT_TRY(md_json_uint(config, "num_experts", 1, MD_EXPERTS_MAX, &s->experts, err));
    RT_TRY(md_json_uint(config, "num_experts_per_tok", 1, s->experts, &s->topk, err));
    RT_TRY(md_json_uint(config, "vocab_size", 1, VOCAB_MAX, &s->vocab, err));
    RT_TRY(md_json_uint(config, "max_position_embeddings", 1, POSITIONS_MAX, &s->positions, err));
    RT_TRY(md_json_number(config, "rope_theta", 1.0, 1e12, &s->rope_theta, err));
    RT_TRY(md_json_number(config, "rms_norm_eps", 1e-30, 1.0, &s->norm_eps, err));
    s->head_dim = s->hidden / s->heads;
    if (s->hidden % s->heads != 0 || s->head_dim % 2 != 0 || s->head_dim > EX_HEAD_DIM_MAX)
        return rt_fail(err, RT_EFORMAT,
                       "hidden_size: expected heads of an even width up to %d, found %" PRIu32
                       " in %" PRIu32 " heads",
                       EX_HEAD_DIM_MAX, s->hidden, s->heads);
    return RT_OK;
}

rt_status ex_shape_read(const char *dir, ex_shape *out, rt_err *err)
{
    ex_shape shape = {0};
    json_t *config = NULL;
    rt_status status;

    RT_TRY(read_json(dir, "config.json", &config, err));
    status = parse_shape(config, &shape, err);
    json_decref(config);
    if (status != RT_OK)
        rt_err_prefix(err, "%s/config.json: ", dir);
    else
        *out = shape;
    return status;
}

/* ---- The reference ---- */

static rt_status read_ids(const json_t *list, const char *key, uint32_t vocab, uint32_t *out,
                          rt_err *err)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *value = json_array_get(list, i);
        char found[80];

        if (!json_is_integer(value) || json_integer_value(value) < 0 ||
            json_integer_value(value) >= vocab)
            return rt_fail(err, RT_EFORMAT, "%s: expected ids below %" PRIu32 ", found %s", key,
                           vocab, md_json_show(value, found, sizeof(found)));
        out[i] = (uint32_t)json_integer_value(value);
    }
    return RT_OK;
}

static rt_status read_logits(const md_st_file *file, uint32_t index, uint32_t vocab,
                             ex_prompt *prompt, rt_err *err)
{
    const md_st_tensor *tensor;
    char name[32];

    (void)snprintf(name, sizeof(name), "p%" PRIu32 ".logits", index);
    tensor = md_st_find(file, name);
    if (tensor == NULL) return rt_fail(err, RT_EFORMAT, "%s: absent", name);
    if (tensor->dtype != MD_ST_F32 || tensor->dims != 2 || tensor->shape[0] != prompt->count ||
        tensor->shape[1] != vocab)
        return rt_fail(err, RT_EFORMAT, "%s: expected F32 [%" PRIu32 "][%" PRIu32 "]", name,
                       prompt->count, vocab);
    prompt->logits = malloc(tensor->bytes);
    if (prompt->logits == NULL) return rt_fail(err, RT_ENOMEM, "%s", name);
    return md_st_read(file, tensor, 0, prompt->logits, tensor->bytes, err);
}

static rt_status read_prompt(const json_t *entry, const md_st_file *file, uint32_t index,
                             const ex_shape *shape, ex_prompt *out, rt_err *err)
{
    const json_t *ids = json_object_get(entry, "ids"), *greedy = json_object_get(entry, "greedy");
    size_t id_count = json_array_size(ids), greedy_count = json_array_size(greedy);

    if (id_count == 0 || greedy_count == 0 || id_count > shape->positions ||
        greedy_count > shape->positions - id_count)
        return rt_fail(err, RT_EFORMAT,
                       "prompt %" PRIu32 ": expected lists \"ids\" and \"greedy\" of 1..%" PRIu32
                       " tokens in all, found %zu and %zu",
                       index, shape->positions, id_count, greedy_count);
    out->prompt_count = (uint32_t)id_count;
    out->count = (uint32_t)(id_count + greedy_count);
    out->tokens = calloc(out->count, sizeof(*out->tokens));
    if (out->tokens == NULL) return rt_fail(err, RT_ENOMEM, "prompt %" PRIu32, index);
    RT_TRY(read_ids(ids, "ids", shape->vocab, out->tokens, err));
    RT_TRY(read_ids(greedy, "greedy", shape->vocab, out->tokens + id_count, err));
    return read_logits(file, index, shape->vocab, out, err);
}

rt_status ex_reference_read(const char *dir, const ex_shape *shape, ex_prompt **out,
                            uint32_t *count, rt_err *err)
{
    char *path = rt_path_join(dir, "reference.safetensors");
    json_t *root = NULL;
    const json_t *list;
    md_st_file *file = NULL;
    ex_prompt *prompts = NULL;
    uint32_t n = 0;
    rt_status status;

    if (path == NULL) return rt_fail(err, RT_ENOMEM, "reference");
    status = read_json(dir, "reference.json", &root, err);
    if (status == RT_OK) status = md_st_open(path, &file, err);
    if (status != RT_OK) goto done;
    list = json_object_get(root, "prompts");
    n = (uint32_t)(json_array_size(list) <= PROMPTS_MAX ? json_array_size(list) : 0);
    if (n == 0) {
        status = rt_fail(err, RT_EFORMAT, "prompts: expected a list of 1..%d", PROMPTS_MAX);
        goto done;
    }
    prompts = calloc(n, sizeof(*prompts));
    if (prompts == NULL) status = rt_fail(err, RT_ENOMEM, "%" PRIu32 " prompts", n);
    for (uint32_t i = 0; status == RT_OK && i < n; i++)
        status = read_prompt(json_array_get(list, i), file, i, shape, &prompts[i], err);
    if (status != RT_OK) goto done;
    *out = prompts;
    *count = n;
    prompts = NULL;
done:
    ex_reference_free(prompts, n);
    md_st_close(file);
    json_decref(root);
    free(path);
    if (status != RT_OK) rt_err_prefix(err, "reference: ");
    return status;
}

void ex_reference_free(ex_prompt *prompts, uint32_t count)
{
    for (uint32_t i = 0; prompts != NULL && i < count; i++) {
        free(prompts[i].tokens);
        free(prompts[i].logits);
    }
    free(prompts);
}

/* ---- Ids on the command line ---- */

rt_status ex_ids_parse(const char *text, uint32_t vocab, uint32_t **out, uint32_t *count,
                       rt_err *err)
{
    uint32_t *ids =
        calloc(strlen(text) / 2 + 1, sizeof(*ids)); /* an id and a comma: 2 characters */
    uint32_t n = 0;
    rt_status status = RT_OK;

    if (ids == NULL) return rt_fail(err, RT_ENOMEM, "ids");
    for (const char *at = text;; at++) {
        char *end = NULL;
        unsigned long value;

        errno = 0;
        value = isdigit((unsigned char)*at) ? strtoul(at, &end, 10) : ULONG_MAX;
        if (value >= vocab || errno != 0 || (*end != ',' && *end != 0)) {
            status =
                rt_fail(err, RT_EINVAL,
                        "expected ids below %" PRIu32 " like 1,2,3, found \"%.40s\"", vocab, at);
            break;
        }
        ids[n++] = (uint32_t)value;
        if (*end == 0) break;
        at = end;
    }
    if (status != RT_OK) {
        free(ids);
        return status;
    }
    *out = ids;
    *count = n;
    return RT_OK;
}
