/* config.c - config.json and generation_config.json into checked values.
 *
 * Three kinds of keys: shapes (read, ranged), fixed features (a setting this engine has exactly one
 * of; anything else is refused by name) and everything else (ignored). The ranges are far above any
 * release; they exist so that no product of two of them overflows and no hostile file asks for an
 * absurd allocation. */
#include "model/config.h"

#include "base/check.h"
#include "model/json_field.h"

#include <inttypes.h>
#include <string.h>

enum {
    HIDDEN_MAX = 1 << 16,
    VOCAB_MAX = 1 << 22,
    CONTEXT_MAX = 1 << 26,
    HEADS_MAX = 1024,
    HEAD_DIM_MAX = 4096,
    INTER_MAX = 1 << 20,
    INDEX_TOPK_MAX = 1 << 20,
};

static_assert((uint64_t)HEADS_MAX * 2 * HEAD_DIM_MAX < UINT32_MAX, "rows of q_b fit uint32_t");
static_assert((uint64_t)INTER_MAX * MD_SHARED_MAX < UINT32_MAX, "shared width fits uint32_t");

/* A key whose value must be one of ours when it is given. Exactly one of text, number, boolean. */
typedef struct {
    const char *key;
    enum { FIXED_TEXT, FIXED_INTEGER, FIXED_BOOL } kind;
    const char *text;
    int integer; /* also the boolean */
} fixed_feature;

/* One row per model_type: what its configs may say beside shapes. Relatives get a row of their own
 * once the engine has their features. */
typedef struct {
    const char *model_type;
    const fixed_feature *fixed; /* ends with a NULL key */
} family;

static const fixed_feature glm_moe_dsa_fixed[] = {
    {"attention_bias", FIXED_BOOL, NULL, false},         {"hidden_act", FIXED_TEXT, "silu", 0},
    {"indexer_rope_interleave", FIXED_BOOL, NULL, true}, {"moe_layer_freq", FIXED_INTEGER, NULL, 1},
    {"moe_router_dtype", FIXED_TEXT, "float32", 0},      {"n_group", FIXED_INTEGER, NULL, 1},
    {"rope_interleave", FIXED_BOOL, NULL, true},         {"scoring_func", FIXED_TEXT, "sigmoid", 0},
    {"tie_word_embeddings", FIXED_BOOL, NULL, false},    {"topk_group", FIXED_INTEGER, NULL, 1},
    {"topk_method", FIXED_TEXT, "noaux_tc", 0},          {NULL, FIXED_BOOL, NULL, 0},
};

/* GLM-5, 5.1, 5.2 and 5.3 share this type; 5 and 5.1 say nothing of index sharing: all layers full.
 */
static const family families[] = {
    {"glm_moe_dsa", glm_moe_dsa_fixed},
};

static rt_status find_family(const json_t *root, const family **out, rt_err *err)
{
    const json_t *value = md_json_get(root, "model_type");
    char found[80];

    if (!json_is_string(value))
        return rt_fail(err, RT_EFORMAT, "model_type: expected text, found %s",
                       md_json_show(value, found, sizeof(found)));
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        if (strcmp(json_string_value(value), families[i].model_type) == 0) {
            *out = &families[i];
            return RT_OK;
        }
    }
    return rt_fail(err, RT_EUNSUPPORTED, "model_type: expected \"%s\", found %s",
                   families[0].model_type, md_json_show(value, found, sizeof(found)));
}

static bool feature_matches(const fixed_feature *feature, const json_t *value)
{
    switch (feature->kind) {
    case FIXED_TEXT:
        return json_is_string(value) && strcmp(json_string_value(value), feature->text) == 0;
    case FIXED_INTEGER:
        return json_is_integer(value) && json_integer_value(value) == feature->integer;
    case FIXED_BOOL:
        return json_is_boolean(value) && json_is_true(value) == feature->integer;
    }
    return false;
}

static rt_status check_fixed(const json_t *root, const fixed_feature *fixed, rt_err *err)
{
    for (; fixed->key != NULL; fixed++) {
        const json_t *value = md_json_get(root, fixed->key);
        char found[80];

        if (value == NULL || feature_matches(fixed, value)) continue;
        md_json_show(value, found, sizeof(found));
        switch (fixed->kind) {
        case FIXED_TEXT:
            return rt_fail(err, RT_EUNSUPPORTED, "%s: expected \"%s\", found %s", fixed->key,
                           fixed->text, found);
        case FIXED_INTEGER:
            return rt_fail(err, RT_EUNSUPPORTED, "%s: expected %d, found %s", fixed->key,
                           fixed->integer, found);
        case FIXED_BOOL:
            return rt_fail(err, RT_EUNSUPPORTED, "%s: expected %s, found %s", fixed->key,
                           fixed->integer ? "true" : "false", found);
        }
    }
    return RT_OK;
}

static rt_status read_shapes(const json_t *root, md_config *c, rt_err *err)
{
    const struct {
        const char *key;
        uint32_t min, max;
        uint32_t *out;
    } shapes[] = {
        {"hidden_size", 1, HIDDEN_MAX, &c->hidden},
        {"num_hidden_layers", 1, MD_LAYERS_MAX - 1, &c->layers},
        {"vocab_size", 1, VOCAB_MAX, &c->vocab},
        {"max_position_embeddings", 1, CONTEXT_MAX, &c->context_max},
        {"num_attention_heads", 1, HEADS_MAX, &c->heads},
        {"q_lora_rank", 1, HIDDEN_MAX, &c->q_rank},
        {"kv_lora_rank", 1, HIDDEN_MAX, &c->kv_rank},
        {"qk_nope_head_dim", 1, HEAD_DIM_MAX, &c->nope_dim},
        {"qk_rope_head_dim", 2, HEAD_DIM_MAX, &c->rope_dim},
        {"v_head_dim", 1, HEAD_DIM_MAX, &c->v_dim},
        {"index_n_heads", 1, HEADS_MAX, &c->index_heads},
        {"index_head_dim", 2, HEAD_DIM_MAX, &c->index_dim},
        {"index_topk", 1, INDEX_TOPK_MAX, &c->index_topk},
        {"intermediate_size", 1, INTER_MAX, &c->inter},
        {"moe_intermediate_size", 1, INTER_MAX, &c->expert_inter},
        {"n_routed_experts", 1, MD_EXPERTS_MAX, &c->experts},
        {"num_experts_per_tok", 1, MD_TOPK_MAX, &c->topk},
        {"n_shared_experts", 1, MD_SHARED_MAX, &c->shared_experts},
    };

    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        RT_TRY(md_json_uint(root, shapes[i].key, shapes[i].min, shapes[i].max, shapes[i].out, err));
    return RT_OK;
}

/* A key that may be left out, because others imply it. */
static rt_status check_implied(const json_t *root, const char *key, uint32_t implied, rt_err *err)
{
    const json_t *value = md_json_get(root, key);
    char found[80];

    if (value == NULL || (json_is_integer(value) && json_integer_value(value) == implied))
        return RT_OK;
    return rt_fail(err, RT_EUNSUPPORTED, "%s: expected %" PRIu32 ", found %s", key, implied,
                   md_json_show(value, found, sizeof(found)));
}

static rt_status check_shapes(const json_t *root, const md_config *c, rt_err *err)
{
    if (c->rope_dim % 2 != 0)
        return rt_fail(err, RT_EFORMAT, "qk_rope_head_dim: expected an even number, found %" PRIu32,
                       c->rope_dim);
    if (c->index_dim < c->rope_dim)
        return rt_fail(err, RT_EFORMAT,
                       "index_head_dim: expected at least qk_rope_head_dim %" PRIu32
                       ", found %" PRIu32,
                       c->rope_dim, c->index_dim);
    if (c->topk > c->experts)
        return rt_fail(err, RT_EFORMAT,
                       "num_experts_per_tok: expected at most n_routed_experts %" PRIu32
                       ", found %" PRIu32,
                       c->experts, c->topk);
    RT_TRY(check_implied(root, "num_key_value_heads", c->heads, err));
    RT_TRY(check_implied(root, "qk_head_dim", c->nope_dim + c->rope_dim, err));
    return check_implied(root, "num_experts", c->experts, err);
}

static rt_status read_mtp(const json_t *root, md_config *c, rt_err *err)
{
    char found[80];
    const json_t *value = md_json_get(root, "num_nextn_predict_layers");

    if (value == NULL) return RT_OK;
    if (!json_is_integer(value))
        return rt_fail(err, RT_EFORMAT, "num_nextn_predict_layers: expected 0 or 1, found %s",
                       md_json_show(value, found, sizeof(found)));
    if (json_integer_value(value) != 0 && json_integer_value(value) != 1)
        return rt_fail(err, RT_EUNSUPPORTED, "num_nextn_predict_layers: expected 0 or 1, found %s",
                       md_json_show(value, found, sizeof(found)));
    c->mtp_layers = (uint32_t)json_integer_value(value);
    return RT_OK;
}

/* Reads a list of `layers` texts that are either yes or no. */
static rt_status read_layer_list(const json_t *list, const char *key, uint32_t layers,
                                 const char *yes, const char *no, bool *out, rt_err *err)
{
    char found[80];

    if (!json_is_array(list) || json_array_size(list) != layers)
        return rt_fail(err, RT_EFORMAT, "%s: expected a list of %" PRIu32 ", found %s", key, layers,
                       md_json_show(list, found, sizeof(found)));
    for (uint32_t i = 0; i < layers; i++) {
        const json_t *item = json_array_get(list, i);
        const char *text = json_is_string(item) ? json_string_value(item) : "";

        out[i] = strcmp(text, yes) == 0;
        if (!out[i] && strcmp(text, no) != 0)
            return rt_fail(err, RT_EUNSUPPORTED,
                           "%s[%" PRIu32 "]: expected \"%s\" or \"%s\", found %s", key, i, yes, no,
                           md_json_show(item, found, sizeof(found)));
    }
    return RT_OK;
}

static rt_status read_mlp_types(const json_t *root, md_config *c, rt_err *err)
{
    const json_t *list = md_json_get(root, "mlp_layer_types");
    uint32_t dense_first;

    if (list != NULL) {
        RT_TRY(
            read_layer_list(list, "mlp_layer_types", c->layers, "sparse", "dense", c->sparse, err));
    } else {
        RT_TRY(md_json_uint(root, "first_k_dense_replace", 0, c->layers, &dense_first, err));
        for (uint32_t i = 0; i < c->layers; i++)
            c->sparse[i] = i >= dense_first;
    }
    return RT_OK;
}

static rt_status read_index_pattern(const json_t *pattern, md_config *c, rt_err *err)
{
    const char *text = json_string_value(pattern);
    char found[80];

    if (text == NULL || strlen(text) != c->layers || strspn(text, "FS") != c->layers)
        return rt_fail(err, RT_EFORMAT,
                       "index_topk_pattern: expected %" PRIu32 " letters F or S, found %s",
                       c->layers, md_json_show(pattern, found, sizeof(found)));
    for (uint32_t i = 0; i < c->layers; i++)
        c->index_full[i] = text[i] == 'F';
    return RT_OK;
}

/* Full iff max(i - offset + 1, 0) mod freq == 0. Without a frequency every layer is full (GLM-5).
 */
static rt_status read_index_frequency(const json_t *root, md_config *c, rt_err *err)
{
    uint32_t frequency = 1, offset = 0;

    if (md_json_get(root, "index_topk_freq") != NULL)
        RT_TRY(md_json_uint(root, "index_topk_freq", 1, MD_LAYERS_MAX, &frequency, err));
    if (frequency > 1)
        RT_TRY(md_json_uint(root, "index_skip_topk_offset", 0, MD_LAYERS_MAX, &offset, err));
    for (uint32_t i = 0; i < c->layers; i++) {
        uint32_t step = i + 1 > offset ? i + 1 - offset : 0;

        c->index_full[i] = step % frequency == 0;
    }
    return RT_OK;
}

static rt_status read_index_types(const json_t *root, md_config *c, rt_err *err)
{
    const json_t *list = md_json_get(root, "indexer_types");
    const json_t *pattern = md_json_get(root, "index_topk_pattern");

    if (list != NULL)
        RT_TRY(read_layer_list(list, "indexer_types", c->layers, "full", "shared", c->index_full,
                               err));
    else if (pattern != NULL)
        RT_TRY(read_index_pattern(pattern, c, err));
    else
        RT_TRY(read_index_frequency(root, c, err));
    if (!c->index_full[0])
        return rt_fail(err, RT_EFORMAT, "%s: expected layer 0 to be full, found shared",
                       list != NULL      ? "indexer_types"
                       : pattern != NULL ? "index_topk_pattern"
                                         : "index_skip_topk_offset");
    return RT_OK;
}

/* MTP layers are MoE layers with an indexer of their own. */
static void finish_layers(md_config *c)
{
    uint32_t source = 0;

    for (uint32_t i = c->layers; i < md_config_layers_total(c); i++)
        c->sparse[i] = c->index_full[i] = true;
    for (uint32_t i = 0; i < md_config_layers_total(c); i++) {
        if (c->index_full[i]) source = i;
        c->index_source[i] = (uint16_t)source;
    }
}

static rt_status check_rope_type(const json_t *rope, const char *name, const char *key, rt_err *err)
{
    const json_t *type = md_json_get(rope, key);
    char found[80];

    if (type == NULL || (json_is_string(type) && strcmp(json_string_value(type), "default") == 0))
        return RT_OK;
    return rt_fail(err, RT_EUNSUPPORTED, "%s.%s: expected \"default\", found %s", name, key,
                   md_json_show(type, found, sizeof(found)));
}

static rt_status check_rope_object(const json_t *rope, const char *name, rt_err *err)
{
    const json_t *partial;
    char found[80];

    if (!json_is_object(rope))
        return rt_fail(err, RT_EFORMAT, "%s: expected an object, found %s", name,
                       md_json_show(rope, found, sizeof(found)));
    RT_TRY(check_rope_type(rope, name, "rope_type", err));
    RT_TRY(check_rope_type(rope, name, "type", err));
    partial = md_json_get(rope, "partial_rotary_factor");
    if (partial != NULL && !(json_is_number(partial) && json_number_value(partial) == 1.0))
        return rt_fail(err, RT_EUNSUPPORTED, "%s.partial_rotary_factor: expected 1, found %s", name,
                       md_json_show(partial, found, sizeof(found)));
    return RT_OK;
}

static rt_status read_rope(const json_t *root, md_config *c, rt_err *err)
{
    const json_t *rope = md_json_get(root, "rope_parameters");
    const json_t *scaling = md_json_get(root, "rope_scaling");

    if (scaling != NULL) RT_TRY(check_rope_object(scaling, "rope_scaling", err));
    if (rope != NULL) RT_TRY(check_rope_object(rope, "rope_parameters", err));
    /* Older files keep the base at the top. */
    if (rope == NULL || md_json_get(rope, "rope_theta") == NULL) rope = root;
    return md_json_number(rope, "rope_theta", 1.0, 1e12, &c->rope_theta, err);
}

/* An id or a list of ids; absent leaves *count alone. */
static rt_status read_eos(const json_t *root, uint32_t limit, uint32_t eos[MD_EOS_MAX],
                          uint32_t *count, rt_err *err)
{
    const json_t *value = md_json_get(root, "eos_token_id");
    uint32_t ids[MD_EOS_MAX] = {0};
    size_t ids_count = json_is_array(value) ? json_array_size(value) : 1;
    char found[80];

    if (value == NULL) return RT_OK;
    if (ids_count > MD_EOS_MAX)
        return rt_fail(err, RT_EFORMAT, "eos_token_id: expected at most %d ids, found %zu",
                       MD_EOS_MAX, ids_count);
    for (size_t i = 0; i < ids_count; i++) {
        const json_t *item = json_is_array(value) ? json_array_get(value, i) : value;

        if (!json_is_integer(item) || json_integer_value(item) < 0 ||
            json_integer_value(item) >= (json_int_t)limit)
            return rt_fail(err, RT_EFORMAT,
                           "eos_token_id: expected ids below %" PRIu32 ", found %s", limit,
                           md_json_show(item, found, sizeof(found)));
        ids[i] = (uint32_t)json_integer_value(item);
    }
    memcpy(eos, ids, sizeof(ids));
    *count = (uint32_t)ids_count;
    return RT_OK;
}

static rt_status read_numbers(const json_t *root, md_config *c, rt_err *err)
{
    double eps, scale;

    RT_TRY(md_json_number(root, "rms_norm_eps", 1e-12, 1.0, &eps, err));
    RT_TRY(md_json_number(root, "routed_scaling_factor", 1e-6, 1e6, &scale, err));
    RT_TRY(md_json_bool(root, "norm_topk_prob", &c->norm_topk, err));
    c->rms_eps = (float)eps;
    c->routed_scale = (float)scale;
    return RT_OK;
}

static rt_status read_config(const json_t *root, md_config *c, rt_err *err)
{
    const family *found = NULL;

    RT_TRY(find_family(root, &found, err));
    RT_ASSERT(strlen(found->model_type) < sizeof(c->model_type));
    memcpy(c->model_type, found->model_type, strlen(found->model_type));
    RT_TRY(check_fixed(root, found->fixed, err));
    RT_TRY(read_shapes(root, c, err));
    RT_TRY(check_shapes(root, c, err));
    RT_TRY(read_mtp(root, c, err));
    RT_TRY(read_mlp_types(root, c, err));
    RT_TRY(read_index_types(root, c, err));
    finish_layers(c);
    RT_TRY(read_rope(root, c, err));
    RT_TRY(read_numbers(root, c, err));
    return read_eos(root, c->vocab, c->eos, &c->eos_count, err);
}

rt_status md_config_parse(const char *json, size_t bytes, md_config *out, rt_err *err)
{
    md_config config = {0};
    json_t *root = NULL;
    rt_status status;

    RT_TRY(md_json_parse_object(json, bytes, "config.json", &root, err));
    status = read_config(root, &config, err);
    json_decref(root);
    if (status != RT_OK) {
        rt_err_prefix(err, "config.json: ");
        return status;
    }
    *out = config;
    return RT_OK;
}

static rt_status read_generation(const json_t *root, md_generation *g, rt_err *err)
{
    const struct {
        const char *key;
        double max;
        float *out;
    } numbers[] = {
        {"temperature", 100.0, &g->temperature},
        {"top_p", 1.0, &g->top_p},
        {"min_p", 1.0, &g->min_p},
    };

    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        double number;

        if (md_json_get(root, numbers[i].key) == NULL) continue;
        RT_TRY(md_json_number(root, numbers[i].key, 0.0, numbers[i].max, &number, err));
        *numbers[i].out = (float)number;
    }
    if (md_json_get(root, "top_k") != NULL)
        RT_TRY(md_json_uint(root, "top_k", 0, VOCAB_MAX, &g->top_k, err));
    return read_eos(root, VOCAB_MAX, g->eos, &g->eos_count, err);
}

rt_status md_generation_parse(const char *json, size_t bytes, md_generation *out, rt_err *err)
{
    md_generation generation = *out;
    json_t *root = NULL;
    rt_status status;

    RT_TRY(md_json_parse_object(json, bytes, "generation_config.json", &root, err));
    status = read_generation(root, &generation, err);
    json_decref(root);
    if (status != RT_OK) {
        rt_err_prefix(err, "generation_config.json: ");
        return status;
    }
    *out = generation;
    return RT_OK;
}
