/* heat_image.c - writes and checks the bytes of a heat. */
#include "placement/heat_image.h"

#include "base/check.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

typedef struct {
    char magic[8];
    uint32_t version, layers, experts, sparse_layers;
    uint64_t image_bytes;
    uint8_t model_id[32];
    uint64_t body_hash;
    double tokens;
    uint64_t reserved;
    uint64_t header_hash; /* of the bytes before it */
} image_header;

static_assert(sizeof(image_header) == 96, "the header is 96 bytes on disk");
static_assert(offsetof(image_header, header_hash) == 88, "the header's hash comes last");
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "the image is written as it lies in memory");

static size_t mask_bytes(uint32_t layers)
{
    return ((size_t)layers + 7) / 8 * 8;
}

static size_t image_bytes(uint32_t layers, uint32_t sparse_layers, uint32_t experts)
{
    return sizeof(image_header) + mask_bytes(layers) +
           (size_t)sparse_layers * experts * sizeof(double);
}

rt_status pl_heat_image_write(const pl_heat *heat, const uint8_t model_id[32], unsigned char **out,
                              size_t *bytes, rt_err *err)
{
    uint32_t layers = pl_heat_layers(heat), experts = pl_heat_experts(heat);
    uint32_t sparse_layers = pl_heat_sparse_layers(heat);
    size_t size = image_bytes(layers, sparse_layers, experts);
    image_header header = {.magic = PL_HEAT_IMAGE_MAGIC,
                           .version = PL_HEAT_IMAGE_VERSION,
                           .layers = layers,
                           .experts = experts,
                           .sparse_layers = sparse_layers,
                           .image_bytes = size,
                           .tokens = pl_heat_tokens(heat)};
    unsigned char *image = calloc(1, size), *mask, *at;

    if (image == NULL) return rt_fail(err, RT_ENOMEM, "heat of %zu bytes", size);
    mask = image + sizeof(header);
    at = mask + mask_bytes(layers);
    for (uint32_t layer = 0; layer < layers; layer++) {
        mask[layer] = pl_heat_sparse(heat, layer);
        if (mask[layer] == 0) continue;
        for (uint32_t expert = 0; expert < experts; expert++, at += sizeof(double)) {
            double count = pl_heat_get(heat, layer, expert);

            if (count > PL_HEAT_COUNT_MAX) count = PL_HEAT_COUNT_MAX;
            memcpy(at, &count, sizeof(count));
        }
    }
    RT_ASSERT(at == image + size);
    if (header.tokens > PL_HEAT_COUNT_MAX) header.tokens = PL_HEAT_COUNT_MAX;
    memcpy(header.model_id, model_id, sizeof(header.model_id));
    header.body_hash = XXH3_64bits(mask, size - sizeof(header));
    header.header_hash = XXH3_64bits(&header, offsetof(image_header, header_hash));
    memcpy(image, &header, sizeof(header));
    *out = image;
    *bytes = size;
    return RT_OK;
}

static bool is_count(double value)
{
    return value >= 0 && value <= PL_HEAT_COUNT_MAX; /* false for NaN */
}

static rt_status check_header(const image_header *header, size_t bytes, const uint8_t model_id[32],
                              const char *name, rt_err *err)
{
    if (memcmp(header->magic, PL_HEAT_IMAGE_MAGIC, sizeof(header->magic)) != 0)
        return rt_fail(err, RT_EFORMAT, "%s: expected a heat file, found other bytes", name);
    if (header->header_hash != XXH3_64bits(header, offsetof(image_header, header_hash)))
        return rt_fail(err, RT_EFORMAT, "%s: the header's checksum does not match", name);
    if (header->version > PL_HEAT_IMAGE_VERSION)
        return rt_fail(err, RT_EUNSUPPORTED, "%s: expected version %d or older, found %u", name,
                       PL_HEAT_IMAGE_VERSION, header->version);
    if (header->version == 0 || header->reserved != 0 || !is_count(header->tokens))
        return rt_fail(err, RT_EFORMAT, "%s: the header has fields that are none", name);
    if (header->image_bytes != bytes)
        return rt_fail(err, RT_EFORMAT, "%s: expected %" PRIu64 " bytes, found %zu", name,
                       header->image_bytes, bytes);
    if (memcmp(header->model_id, model_id, sizeof(header->model_id)) != 0)
        return rt_fail(err, RT_EINVAL,
                       "%s: expected the heat of model %02x%02x%02x%02x, found that of model "
                       "%02x%02x%02x%02x",
                       name, model_id[0], model_id[1], model_id[2], model_id[3],
                       header->model_id[0], header->model_id[1], header->model_id[2],
                       header->model_id[3]);
    return RT_OK;
}

/* The same layers, sparse layers and experts as heat's, in an image of just that size. */
static rt_status check_shape(const image_header *header, const unsigned char *image, size_t bytes,
                             const char *name, const pl_heat *heat, rt_err *err)
{
    uint32_t layers = pl_heat_layers(heat);
    const unsigned char *mask = image + sizeof(*header);

    if (header->layers != layers || header->experts != pl_heat_experts(heat) ||
        header->sparse_layers != pl_heat_sparse_layers(heat))
        return rt_fail(err, RT_EINVAL,
                       "%s: expected %u layers, %u of them with %u experts, found %u, %u with %u",
                       name, layers, pl_heat_sparse_layers(heat), pl_heat_experts(heat),
                       header->layers, header->sparse_layers, header->experts);
    if (bytes != image_bytes(layers, header->sparse_layers, header->experts))
        return rt_fail(err, RT_EFORMAT, "%s: expected %zu bytes for its shape, found %zu", name,
                       image_bytes(layers, header->sparse_layers, header->experts), bytes);
    if (header->body_hash != XXH3_64bits(mask, bytes - sizeof(*header)))
        return rt_fail(err, RT_EFORMAT, "%s: the counts' checksum does not match", name);
    for (uint32_t layer = 0; layer < layers; layer++)
        if (mask[layer] != (pl_heat_sparse(heat, layer) ? 1 : 0))
            return rt_fail(err, RT_EINVAL, "%s: layer %u: expected %s experts, found %u", name,
                           layer, pl_heat_sparse(heat, layer) ? "one with" : "one without",
                           mask[layer]);
    return RT_OK;
}

static double count_at(const unsigned char *counts, size_t index)
{
    double count;

    memcpy(&count, counts + index * sizeof(count), sizeof(count));
    return count;
}

rt_status pl_heat_image_read(const void *image, size_t bytes, const uint8_t model_id[32],
                             const char *name, pl_heat *heat, rt_err *err)
{
    uint32_t experts = pl_heat_experts(heat);
    size_t total = (size_t)pl_heat_sparse_layers(heat) * experts, index = 0;
    const unsigned char *counts;
    image_header header;

    if (bytes < sizeof(header))
        return rt_fail(err, RT_EFORMAT, "%s: expected at least %zu bytes, found %zu", name,
                       sizeof(header), bytes);
    memcpy(&header, image, sizeof(header));
    RT_TRY(check_header(&header, bytes, model_id, name, err));
    RT_TRY(check_shape(&header, image, bytes, name, heat, err));
    counts = (const unsigned char *)image + sizeof(header) + mask_bytes(header.layers);
    for (size_t i = 0; i < total; i++)
        if (!is_count(count_at(counts, i)))
            return rt_fail(err, RT_EFORMAT, "%s: count %zu is not a number of selections", name, i);
    for (uint32_t layer = 0; layer < header.layers; layer++) {
        if (!pl_heat_sparse(heat, layer)) continue;
        for (uint32_t expert = 0; expert < experts; expert++)
            pl_heat_add(heat, layer, expert, count_at(counts, index++));
    }
    pl_heat_set_tokens(heat, pl_heat_tokens(heat) + header.tokens);
    return RT_OK;
}
