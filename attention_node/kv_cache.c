/* kv_cache.c - offsets into one slab a slot. */
#include "attention_node/kv_cache.h"

#include "base/check.h"
#include "base/slab.h"

#include <stdlib.h>

enum { ROW_ALIGN = 64 }; /* a row starts on a cache line */

typedef struct {
    uint64_t latent[MD_LAYERS_MAX], index[MD_LAYERS_MAX]; /* offset of a layer's table in a slot */
    uint64_t total_bytes;
} layout;

struct an_kv {
    const md_config *config; /* borrowed */
    uint32_t context, slots;
    bool bf16;
    layout at;
    rt_slab *slab; /* [slots], owned */
};

static size_t row_bytes(uint32_t width, bool bf16)
{
    size_t bytes = (size_t)width * (bf16 ? 2 : 4);

    return (bytes + ROW_ALIGN - 1) / ROW_ALIGN * ROW_ALIGN;
}

static uint32_t latent_width(const md_config *config)
{
    return config->kv_rank + config->rope_dim;
}

static void layout_init(layout *at, const md_config *config, uint32_t context, bool bf16)
{
    uint64_t offset = 0;

    RT_ASSERT(config->layers <= MD_LAYERS_MAX);
    for (uint32_t layer = 0; layer < config->layers; layer++) {
        at->latent[layer] = offset;
        offset += row_bytes(latent_width(config), bf16) * (uint64_t)context;
        at->index[layer] = offset;
        if (config->index_full[layer])
            offset += row_bytes(config->index_dim, bf16) * (uint64_t)context;
    }
    at->total_bytes = offset;
}

uint64_t an_kv_slot_bytes(const md_config *config, uint32_t context, bool bf16)
{
    layout at;

    layout_init(&at, config, context, bf16);
    return at.total_bytes;
}

rt_status an_kv_create(const md_config *config, uint32_t context, uint32_t slots, bool bf16,
                       an_kv **out, rt_err *err)
{
    an_kv *kv;
    rt_status status;

    RT_ASSERT(context > 0 && slots > 0);
    kv = calloc(1, sizeof(*kv));
    if (kv == NULL) return rt_fail(err, RT_ENOMEM, "kv cache");
    kv->config = config;
    kv->context = context;
    kv->bf16 = bf16;
    layout_init(&kv->at, config, context, bf16);
    kv->slab = calloc(slots, sizeof(*kv->slab));
    if (kv->slab == NULL) {
        status = rt_fail(err, RT_ENOMEM, "kv cache");
        goto fail;
    }
    kv->slots = slots;
    for (uint32_t slot = 0; slot < slots; slot++) {
        status = rt_slab_alloc(kv->at.total_bytes, &kv->slab[slot], err);
        if (status != RT_OK) {
            rt_err_prefix(err, "kv cache of sequence %u of %u: ", slot + 1, slots);
            goto fail;
        }
    }
    *out = kv;
    return RT_OK;
fail:
    an_kv_free(kv);
    return status;
}

void an_kv_free(an_kv *kv)
{
    if (kv == NULL) return;
    for (uint32_t slot = 0; slot < kv->slots; slot++)
        rt_slab_free(&kv->slab[slot]);
    free(kv->slab);
    free(kv);
}

uint32_t an_kv_context(const an_kv *kv)
{
    return kv->context;
}

static kn_cache_view view(const an_kv *kv, uint32_t slot, uint64_t offset, uint32_t width)
{
    RT_ASSERT(slot < kv->slots);
    return (kn_cache_view){
        .rows = (const char *)kv->slab[slot].data + offset,
        .row_bytes = row_bytes(width, kv->bf16),
        .width = width,
        .bf16 = kv->bf16,
    };
}

kn_cache_view an_kv_latent(const an_kv *kv, uint32_t slot, uint32_t layer)
{
    RT_ASSERT(layer < kv->config->layers);
    return view(kv, slot, kv->at.latent[layer], latent_width(kv->config));
}

kn_cache_view an_kv_index(const an_kv *kv, uint32_t slot, uint32_t layer)
{
    RT_ASSERT(layer < kv->config->layers && kv->config->index_full[layer]);
    return view(kv, slot, kv->at.index[layer], kv->config->index_dim);
}

static void put(an_kv *kv, uint32_t slot, uint64_t offset, uint32_t width, uint32_t position,
                const float *values)
{
    RT_ASSERT(slot < kv->slots && position < kv->context);
    kn_cache_store((char *)kv->slab[slot].data + offset + row_bytes(width, kv->bf16) * position,
                   kv->bf16, values, width);
}

/* TOKEN:6 latents are rounded once, here; every reader sees the rounded value. */
void an_kv_put_latent(an_kv *kv, uint32_t slot, uint32_t layer, uint32_t position,
                      const float *values)
{
    RT_ASSERT(layer < kv->config->layers);
    put(kv, slot, kv->at.latent[layer], latent_width(kv->config), position, values);
}

void an_kv_put_index(an_kv *kv, uint32_t slot, uint32_t layer, uint32_t position,
                     const float *values)
{
    RT_ASSERT(layer < kv->config->layers && kv->config->index_full[layer]);
    put(kv, slot, kv->at.index[layer], kv->config->index_dim, position, values);
}
