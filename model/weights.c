/* weights.c - loads the dense records of a container into one slab and gives them their names. */
#include "model/weights.h"

#include "base/check.h"
#include "base/progress.h"
#include "kernels/quant.h"
#include "model/container/shape.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { PLACE_ALIGN = 64 }; /* what kernels ask of a matrix */

/* The public view and what it owns. */
typedef struct {
    md_weights view; /* first: md_weights_free gets its address */
    rt_slab slab;    /* all records, in manifest order */
    kn_qmat *heads;  /* uk_t and uv of all layers */
    size_t heads_used;
    size_t used_bytes; /* of slab, while loading */
    bool with_mtp;
} loaded_weights;

static_assert(offsetof(loaded_weights, view) == 0, "a view's address is its owner's");

static size_t align_place(size_t bytes)
{
    return (bytes + PLACE_ALIGN - 1) / PLACE_ALIGN * PLACE_ALIGN;
}

static bool wanted(const md_config *config, bool with_mtp, md_key key)
{
    if (key.kind == MD_EXPERT) return false;
    return with_mtp || key.layer == MD_NO_LAYER || key.layer < config->layers;
}

uint64_t md_weights_bytes(const md_container *container, bool with_mtp)
{
    uint64_t bytes = 0;

    for (uint64_t i = 0; i < md_container_record_count(container); i++) {
        md_record record;

        md_container_record_at(container, i, &record);
        if (wanted(md_container_config(container), with_mtp, record.key))
            bytes += align_place(record.bytes);
    }
    return bytes;
}

static kn_qmat matrix(const md_shape *shape, const void *data)
{
    return (kn_qmat){shape->format, shape->rows, shape->cols, shape->group, data};
}

/* Heads lie back to back in the record, each a matrix of its own. */
static const kn_qmat *split_heads(loaded_weights *loaded, const md_shape *shape, const void *data)
{
    size_t head_bytes = kn_qmat_bytes(shape->format, shape->rows, shape->cols, shape->group);
    kn_qmat *heads = loaded->heads + loaded->heads_used;

    for (uint32_t i = 0; i < shape->count; i++)
        heads[i] = matrix(shape, (const unsigned char *)data + i * head_bytes);
    loaded->heads_used += shape->count;
    return heads;
}

static void name_global(md_weights *weights, uint16_t kind, const md_shape *shape, const void *data)
{
    switch (kind) {
    case MD_EMBED:
        weights->embed = data;
        weights->embed_format = shape->format;
        break;
    case MD_LM_HEAD:
        weights->lm_head = matrix(shape, data);
        break;
    case MD_FINAL_NORM:
        weights->final_norm = data;
        break;
    case MD_ROPE_INV_FREQ:
        weights->rope_inv_freq = data;
        break;
    default:
        rt_assert_fail("a global record", __FILE__, __LINE__);
    }
}

static void name_vector(md_layer_weights *layer, uint16_t kind, const md_shape *shape,
                        const float *data)
{
    switch (kind) {
    case MD_INPUT_NORM:
        layer->input_norm = data;
        break;
    case MD_POST_NORM:
        layer->post_norm = data;
        break;
    case MD_Q_A_NORM:
        layer->q_a_norm = data;
        break;
    case MD_KV_A_NORM:
        layer->kv_a_norm = data;
        break;
    case MD_INDEX_K_NORM:
        layer->index_k_norm = data;
        layer->index_k_bias = data + shape->cols;
        break;
    case MD_ROUTER_BIAS:
        layer->router_bias = data;
        break;
    case MD_ENORM:
        layer->enorm = data;
        break;
    case MD_HNORM:
        layer->hnorm = data;
        break;
    case MD_HEAD_NORM:
        layer->head_norm = data;
        break;
    default:
        rt_assert_fail("a vector", __FILE__, __LINE__);
    }
}

static void name_matrix(md_layer_weights *layer, uint16_t kind, kn_qmat mat)
{
    switch (kind) {
    case MD_Q_A:
        layer->q_a = mat;
        break;
    case MD_Q_B:
        layer->q_b = mat;
        break;
    case MD_KV_A:
        layer->kv_a = mat;
        break;
    case MD_O:
        layer->o = mat;
        break;
    case MD_INDEX_Q:
        layer->index_q = mat;
        break;
    case MD_INDEX_K:
        layer->index_k = mat;
        break;
    case MD_INDEX_WEIGHT:
        layer->index_weight = mat;
        break;
    case MD_GATE:
        layer->gate = mat;
        break;
    case MD_UP:
        layer->up = mat;
        break;
    case MD_DOWN:
        layer->down = mat;
        break;
    case MD_ROUTER:
        layer->router = mat;
        break;
    case MD_EH_PROJ:
        layer->eh_proj = mat;
        break;
    default:
        rt_assert_fail("a matrix", __FILE__, __LINE__);
    }
}

static void name_record(loaded_weights *loaded, md_key key, const md_shape *shape, const void *data)
{
    md_layer_weights *layer;

    if (key.layer == MD_NO_LAYER) {
        name_global(&loaded->view, key.kind, shape, data);
        return;
    }
    layer = &loaded->view.layers[key.layer];
    switch (shape->form) {
    case MD_FORM_VECTOR:
        name_vector(layer, key.kind, shape, data);
        break;
    case MD_FORM_MATRIX:
        name_matrix(layer, key.kind, matrix(shape, data));
        break;
    case MD_FORM_HEADS:
        if (key.kind == MD_UK_T)
            layer->uk_t = split_heads(loaded, shape, data);
        else
            layer->uv = split_heads(loaded, shape, data);
        break;
    case MD_FORM_EXPERT:
        layer->shared = data;
        break;
    case MD_FORM_ROWS:
        rt_assert_fail("a layer's record", __FILE__, __LINE__);
    }
}

static void describe_layers(loaded_weights *loaded, const md_container *container)
{
    const md_config *config = md_container_config(container);
    const md_container_info *info = md_container_get_info(container);

    for (uint32_t i = 0; i < md_config_layers_total(config); i++) {
        md_layer_weights *layer = &loaded->view.layers[i];

        layer->sparse = config->sparse[i];
        layer->has_indexer = config->index_full[i];
        layer->grid_q = info->grid_q[i];
        md_container_shared_layout(container, &layer->shared_layout);
    }
}

/* Angles are computed from these for any position: anything but 0 < f <= 1 was not written by us. */
static rt_status check_frequencies(const float *inv_freq, uint32_t count, const char *path,
                                   rt_err *err)
{
    for (uint32_t i = 0; i < count; i++)
        if (!(inv_freq[i] > 0 && inv_freq[i] <= 1))
            return rt_fail(err, RT_EFORMAT,
                           "%s: rope frequency %" PRIu32
                           ": expected above 0 and at most 1, found %g",
                           path, i, (double)inv_freq[i]);
    return RT_OK;
}

static rt_status load_record(loaded_weights *loaded, const md_container *container,
                             const md_record *record, rt_err *err)
{
    unsigned char *data = (unsigned char *)loaded->slab.data + loaded->used_bytes;
    md_shape shape;
    bool known = md_record_shape(md_container_config(container), md_container_get_info(container),
                                 record->key, &shape);

    /* Opening compared the manifest with these very shapes. */
    RT_ASSERT(known && shape.bytes == record->bytes);
    RT_ASSERT(loaded->used_bytes + record->bytes <= loaded->slab.bytes);
    RT_TRY(md_record_read(record, data, err));
    if (record->key.kind == MD_ROPE_INV_FREQ)
        RT_TRY(check_frequencies((const float *)(const void *)data, shape.cols, record->pack, err));
    name_record(loaded, record->key, &shape, data);
    loaded->used_bytes += align_place(record->bytes);
    return RT_OK;
}

static rt_status load_records(loaded_weights *loaded, const md_container *container, rt_err *err)
{
    uint64_t total = md_weights_bytes(container, loaded->with_mtp);
    rt_progress *progress = rt_progress_begin("load dense weights", total, false);
    rt_status status = RT_OK;

    for (uint64_t i = 0; status == RT_OK && i < md_container_record_count(container); i++) {
        md_record record;

        md_container_record_at(container, i, &record);
        if (!wanted(md_container_config(container), loaded->with_mtp, record.key)) continue;
        status = load_record(loaded, container, &record, err);
        rt_progress_add(progress, record.bytes);
    }
    rt_progress_end(progress);
    return status;
}

rt_status md_weights_load(const md_container *container, bool with_mtp, rt_budget *budget,
                          md_weights **out, rt_err *err)
{
    const md_config *config = md_container_config(container);
    uint32_t layers = md_config_layers_total(config);
    uint64_t bytes = md_weights_bytes(container, with_mtp);
    loaded_weights *loaded;
    rt_status status;

    RT_TRY(rt_budget_book(budget, "dense weights", bytes, err));
    loaded = calloc(1, sizeof(*loaded));
    if (loaded == NULL) return rt_fail(err, RT_ENOMEM, "dense weights");
    loaded->with_mtp = with_mtp;
    loaded->view.config = config;
    loaded->view.latent_eps = md_container_get_info(container)->latent_eps;
    loaded->view.layers = calloc(layers, sizeof(loaded->view.layers[0]));
    loaded->heads = calloc((size_t)layers * 2 * config->heads, sizeof(loaded->heads[0]));
    if (loaded->view.layers == NULL || loaded->heads == NULL) {
        status = rt_fail(err, RT_ENOMEM, "names of %" PRIu32 " layers", layers);
        goto fail;
    }
    describe_layers(loaded, container);
    status = rt_slab_alloc(bytes, &loaded->slab, err);
    if (status == RT_OK) status = load_records(loaded, container, err);
    if (status != RT_OK) goto fail;
    *out = &loaded->view;
    return RT_OK;
fail:
    md_weights_free(&loaded->view);
    return status;
}

void md_weights_free(md_weights *weights)
{
    loaded_weights *loaded = (loaded_weights *)weights;

    if (loaded == NULL) return;
    rt_slab_free(&loaded->slab);
    free(loaded->heads);
    free(loaded->view.layers);
    free(loaded);
}

void md_weights_embed(const md_weights *weights, uint32_t token, float *out)
{
    uint32_t hidden = weights->config->hidden;
    size_t begin = (size_t)token * hidden;

    RT_ASSERT(token < weights->config->vocab);
    if (weights->embed_format == KN_F32) {
        memcpy(out, (const float *)weights->embed + begin, hidden * sizeof(*out));
        return;
    }
    for (uint32_t i = 0; i < hidden; i++)
        out[i] = kn_f32_from_bf16(((const uint16_t *)weights->embed)[begin + i]);
}
