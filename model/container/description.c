/* description.c - printing, parsing and cross-checking moesaic.json. */
#include "model/container/description.h"

#include "model/json_field.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GRID_Q_MIN = -40, GRID_Q_MAX = 60 };

static uint32_t float_bits(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static json_t *print_grid(const md_config *config, const md_container_info *info)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < md_config_layers_total(config); i++)
        (void)json_array_append_new(list, json_integer(info->grid_q[i]));
    return json_pack("{s:s,s:o}", "kind", info->grid_fine ? "fine" : "std", "q", list);
}

static json_t *print_shapes(const md_config *c)
{
    uint32_t sparse = 0, full = 0;

    for (uint32_t i = 0; i < c->layers; i++) {
        sparse += c->sparse[i];
        full += c->index_full[i];
    }
    return json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "expert_inter",
                     (json_int_t)c->expert_inter, "experts", (json_int_t)c->experts, "heads",
                     (json_int_t)c->heads, "hidden", (json_int_t)c->hidden, "index_layers",
                     (json_int_t)full, "layers", (json_int_t)c->layers, "moe_layers",
                     (json_int_t)sparse, "mtp_layers", (json_int_t)c->mtp_layers, "shared_experts",
                     (json_int_t)c->shared_experts, "topk", (json_int_t)c->topk, "vocab",
                     (json_int_t)c->vocab);
}

static json_t *print_groups(const md_config *config, const md_container_info *info)
{
    md_expert_layout layout;

    md_expert_layout_init(&layout, info->expert_format, config->hidden, config->expert_inter,
                          info->slice_width);
    return json_pack("{s:i,s:i,s:i}", "expert_inter", (int)layout.inter_group, "hidden",
                     (int)layout.hidden_group, "inter", (int)md_inter_group(config->inter));
}

static json_t *print_tokenizer(const md_image_stamp *tokenizer)
{
    char hash[33];

    (void)snprintf(hash, sizeof(hash), "%016" PRIx64 "%016" PRIx64, tokenizer->hash.high,
                   tokenizer->hash.low);
    return json_pack("{s:I,s:s}", "bytes", (json_int_t)tokenizer->bytes, "xxh3_128", hash);
}

/* The whole object; NULL when memory is short. json_object_update and friends pass a NULL on. */
static json_t *build(const md_config *config, const md_container_info *info,
                     const md_image_stamp *tokenizer)
{
    char eps_bits[16], eps_decimal[32], model_id[65];

    (void)snprintf(eps_bits, sizeof(eps_bits), "%08" PRIx32, float_bits(info->latent_eps));
    (void)snprintf(eps_decimal, sizeof(eps_decimal), "%.9g", (double)info->latent_eps);
    md_model_id_format(info->model_id, model_id);
    return json_pack(
        "{s:i,s:I,s:i,s:s,s:s,s:s,s:s,s:s,s:I,s:{s:s,s:s},s:s,s:o,s:o,s:o,s:o}",
        "container_version", MD_CONTAINER_VERSION, "conversion_id", (json_int_t)info->conversion_id,
        "layout_id", KN_LAYOUT_ID, "model_type", config->model_type, "model_id", model_id,
        "expert_format", kn_format_name(info->expert_format), "dense_format",
        kn_format_name(info->dense_format), "embed_format", kn_format_name(info->embed_format),
        "slice_width", (json_int_t)info->slice_width, "latent_eps", "bits", eps_bits, "decimal",
        eps_decimal, "template_id", info->template_id, "tokenizer", print_tokenizer(tokenizer),
        "grid", print_grid(config, info), "groups", print_groups(config, info), "shapes",
        print_shapes(config));
}

char *md_description_print(const md_config *config, const md_container_info *info,
                           const md_image_stamp *tokenizer)
{
    json_t *root = build(config, info, tokenizer);
    char *compact, *text;
    size_t bytes;

    if (root == NULL) return NULL;
    compact = json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS);
    json_decref(root);
    if (compact == NULL) return NULL;
    bytes = strlen(compact);
    text = malloc(bytes + 2);
    if (text != NULL) {
        memcpy(text, compact, bytes);
        memcpy(text + bytes, "\n", 2);
    }
    free(compact);
    return text;
}

/* A version-like field: exactly ours, or a newer one that is refused as such. */
static rt_status check_version(const json_t *root, const char *key, uint32_t min, uint32_t max,
                               uint32_t *out, rt_err *err)
{
    uint32_t found = 0;

    RT_TRY(md_json_uint(root, key, 1, INT32_MAX, &found, err));
    if (found > max)
        return rt_fail(err, RT_EUNSUPPORTED,
                       "%s: expected at most %" PRIu32 ", found the newer %" PRIu32, key, max,
                       found);
    if (found < min)
        return rt_fail(err, RT_EFORMAT, "%s: expected %" PRIu32 ", found %" PRIu32, key, min,
                       found);
    *out = found;
    return RT_OK;
}

static rt_status read_text(const json_t *object, const char *key, const char **out, rt_err *err)
{
    const json_t *value = md_json_get(object, key);
    char found[80];

    if (!json_is_string(value))
        return rt_fail(err, RT_EFORMAT, "%s: expected text, found %s", key,
                       md_json_show(value, found, sizeof(found)));
    *out = json_string_value(value);
    return RT_OK;
}

static rt_status read_format(const json_t *root, const char *key, kn_format *out, rt_err *err)
{
    const char *text = "";

    RT_TRY(read_text(root, key, &text, err));
    if (!kn_format_parse(text, out))
        return rt_fail(err, RT_EUNSUPPORTED,
                       "%s: expected f32, bf16, q8, q4, q8f32 or q4f32, found \"%.40s\"", key,
                       text);
    return RT_OK;
}

/* Hex digits, most significant first. */
static rt_status read_hex(const json_t *object, const char *key, uint8_t *out, size_t out_bytes,
                          rt_err *err)
{
    const char *text = "";

    RT_TRY(read_text(object, key, &text, err));
    if (strlen(text) != out_bytes * 2 || strspn(text, "0123456789abcdef") != out_bytes * 2)
        return rt_fail(err, RT_EFORMAT, "%s: expected %zu hex digits, found \"%.80s\"", key,
                       out_bytes * 2, text);
    for (size_t i = 0; i < out_bytes; i++) {
        unsigned value = 0;

        for (size_t j = 0; j < 2; j++) {
            char digit = text[i * 2 + j];

            value = value * 16 + (unsigned)(digit <= '9' ? digit - '0' : digit - 'a' + 10);
        }
        out[i] = (uint8_t)value;
    }
    return RT_OK;
}

static uint64_t big_endian(const uint8_t *bytes, size_t count)
{
    uint64_t value = 0;

    for (size_t i = 0; i < count; i++)
        value = value << 8 | bytes[i];
    return value;
}

static rt_status read_object(const json_t *root, const char *key, const json_t **out, rt_err *err)
{
    const json_t *value = md_json_get(root, key);
    char found[80];

    if (!json_is_object(value))
        return rt_fail(err, RT_EFORMAT, "%s: expected an object, found %s", key,
                       md_json_show(value, found, sizeof(found)));
    *out = value;
    return RT_OK;
}

static rt_status read_eps(const json_t *root, md_container_info *info, rt_err *err)
{
    const json_t *object = NULL;
    uint8_t bytes[4] = {0};
    uint32_t bits;

    RT_TRY(read_object(root, "latent_eps", &object, err));
    RT_TRY(read_hex(object, "bits", bytes, sizeof(bytes), err));
    bits = (uint32_t)big_endian(bytes, sizeof(bytes));
    memcpy(&info->latent_eps, &bits, sizeof(bits));
    if (!(info->latent_eps >= 1e-12f && info->latent_eps <= 1.0f))
        return rt_fail(err, RT_EFORMAT, "latent_eps: expected 1e-12..1, found bits %08" PRIx32,
                       bits);
    return RT_OK;
}

static rt_status read_grid(const json_t *root, const md_config *config, md_container_info *info,
                           rt_err *err)
{
    const json_t *object = NULL, *list;
    uint32_t layers = md_config_layers_total(config);
    const char *kind = "";
    char found[80];

    RT_TRY(read_object(root, "grid", &object, err));
    RT_TRY(read_text(object, "kind", &kind, err));
    info->grid_fine = strcmp(kind, "fine") == 0;
    if (!info->grid_fine && strcmp(kind, "std") != 0)
        return rt_fail(err, RT_EUNSUPPORTED,
                       "grid.kind: expected \"std\" or \"fine\", found \"%.40s\"", kind);
    list = md_json_get(object, "q");
    if (!json_is_array(list) || json_array_size(list) != layers)
        return rt_fail(err, RT_EFORMAT, "grid.q: expected a list of %" PRIu32 ", found %s", layers,
                       md_json_show(list, found, sizeof(found)));
    for (uint32_t i = 0; i < layers; i++) {
        const json_t *item = json_array_get(list, i);
        json_int_t q = json_is_integer(item) ? json_integer_value(item) : GRID_Q_MIN - 1;

        if (q < GRID_Q_MIN || q > GRID_Q_MAX || (!config->sparse[i] && q != 0))
            return rt_fail(err, RT_EFORMAT, "grid.q[%" PRIu32 "]: expected %s, found %s", i,
                           config->sparse[i] ? "an integer -40..60" : "0 for a dense layer",
                           md_json_show(item, found, sizeof(found)));
        info->grid_q[i] = (int8_t)q;
    }
    return RT_OK;
}

static rt_status read_tokenizer(const json_t *root, md_image_stamp *tokenizer, rt_err *err)
{
    const json_t *object = NULL, *bytes;
    uint8_t hash[16] = {0};
    char found[80];

    RT_TRY(read_object(root, "tokenizer", &object, err));
    bytes = md_json_get(object, "bytes");
    if (!json_is_integer(bytes) || json_integer_value(bytes) < 1)
        return rt_fail(err, RT_EFORMAT, "tokenizer.bytes: expected a size, found %s",
                       md_json_show(bytes, found, sizeof(found)));
    RT_TRY(read_hex(object, "xxh3_128", hash, sizeof(hash), err));
    tokenizer->bytes = (uint64_t)json_integer_value(bytes);
    tokenizer->hash.high = big_endian(hash, 8);
    tokenizer->hash.low = big_endian(hash + 8, 8);
    return RT_OK;
}

static rt_status read_fields(const json_t *root, const md_config *config, md_container_info *info,
                             md_image_stamp *tokenizer, rt_err *err)
{
    const char *template_id = "";
    uint32_t unused = 0;

    RT_TRY(check_version(root, "container_version", MD_CONTAINER_VERSION, MD_CONTAINER_VERSION,
                         &unused, err));
    RT_TRY(check_version(root, "layout_id", KN_LAYOUT_ID, KN_LAYOUT_ID, &unused, err));
    RT_TRY(check_version(root, "conversion_id", 1, MD_CONVERSION_ID, &info->conversion_id, err));
    RT_TRY(read_format(root, "expert_format", &info->expert_format, err));
    RT_TRY(read_format(root, "dense_format", &info->dense_format, err));
    RT_TRY(read_format(root, "embed_format", &info->embed_format, err));
    if (kn_format_is_int(info->embed_format))
        return rt_fail(err, RT_EUNSUPPORTED, "embed_format: expected f32 or bf16, found \"%s\"",
                       kn_format_name(info->embed_format));
    RT_TRY(md_json_uint(root, "slice_width", 1, UINT32_MAX, &info->slice_width, err));
    if (!md_slice_width_fits(config, info->slice_width))
        return rt_fail(err, RT_EFORMAT,
                       "slice_width: expected a width like %" PRIu32 ", found %" PRIu32,
                       md_slice_width(config), info->slice_width);
    RT_TRY(read_eps(root, info, err));
    RT_TRY(read_grid(root, config, info, err));
    RT_TRY(read_text(root, "template_id", &template_id, err));
    if (strlen(template_id) >= sizeof(info->template_id))
        return rt_fail(err, RT_EFORMAT, "template_id: expected at most %zu characters, found %zu",
                       sizeof(info->template_id) - 1, strlen(template_id));
    memcpy(info->template_id, template_id, strlen(template_id));
    RT_TRY(read_hex(root, "model_id", info->model_id, sizeof(info->model_id), err));
    return read_tokenizer(root, tokenizer, err);
}

static void show_field(const json_t *value, char *text, size_t text_bytes)
{
    char *dump =
        value == NULL ? NULL : json_dumps(value, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY);

    (void)snprintf(text, text_bytes, "%s", dump == NULL ? "nothing" : dump);
    free(dump);
}

/* Compares all fields of the text with those that its meaning would print. */
static rt_status compare_fields(json_t *found, json_t *expected, rt_err *err)
{
    const char *key;
    json_t *value;

    json_object_foreach(expected, key, value)
    {
        json_t *other = json_object_get(found, key);
        char found_text[160], expected_text[160];

        if (json_equal(value, other)) continue;
        show_field(value, expected_text, sizeof(expected_text));
        show_field(other, found_text, sizeof(found_text));
        return rt_fail(err, RT_EFORMAT, "%s: expected %s, found %s", key, expected_text,
                       found_text);
    }
    json_object_foreach(found, key, value)
    {
        if (json_object_get(expected, key) == NULL)
            return rt_fail(err, RT_EUNSUPPORTED, "%.60s: expected no such field", key);
    }
    return RT_OK;
}

/* Before anything that is read with config's sizes: another model's config.json beside the container would
 * make the first such field look wrong, whatever it is. */
static rt_status check_shapes(const json_t *root, const md_config *config, rt_err *err)
{
    json_t *expected = print_shapes(config), *found = json_object_get(root, "shapes");
    const char *key;
    json_t *value;
    char found_text[160];
    rt_status status = RT_OK;

    if (expected == NULL) return rt_fail(err, RT_ENOMEM, "out of memory");
    json_object_foreach(expected, key, value)
    {
        const json_t *other = json_object_get(found, key);

        if (!json_is_integer(other) || json_equal(value, other)) continue;
        show_field(other, found_text, sizeof(found_text));
        status =
            rt_fail(err, RT_EFORMAT,
                    "shapes: expected %s %lld, which config.json has, found %s: one of the two "
                    "files is another model's",
                    key, (long long)json_integer_value(value), found_text);
        break;
    }
    json_decref(expected);
    return status;
}

rt_status md_description_parse(const char *text, size_t bytes, const md_config *config,
                               md_container_info *info, md_image_stamp *tokenizer, rt_err *err)
{
    md_container_info parsed = {0};
    md_image_stamp stamp = {0};
    json_t *root = NULL, *expected = NULL;
    rt_status status;

    RT_TRY(md_json_parse_object(text, bytes, MD_DESCRIPTION_NAME, &root, err));
    status = check_shapes(root, config, err);
    if (status == RT_OK) status = read_fields(root, config, &parsed, &stamp, err);
    if (status != RT_OK) goto done;
    expected = build(config, &parsed, &stamp);
    if (expected == NULL) {
        status = rt_fail(err, RT_ENOMEM, "out of memory");
        goto done;
    }
    status = compare_fields(root, expected, err);
done:
    json_decref(expected);
    json_decref(root);
    if (status != RT_OK) {
        rt_err_prefix(err, "%s: ", MD_DESCRIPTION_NAME);
        return status;
    }
    *info = parsed;
    *tokenizer = stamp;
    return RT_OK;
}
