/* model_id.c - the byte sequence of the model id, fed to OpenSSL's SHA-256. */
#include "model/container/model_id.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

/* The fixed-size part; little-endian like all container files. */
typedef struct {
    char label[16];
    uint32_t container_version, conversion_id, layout_id;
    uint32_t expert_format, dense_format, embed_format;
    uint32_t slice_width;
    uint32_t latent_eps_bits;
    uint32_t grid_fine;
    uint32_t layers_total;
    char template_id[40];
    uint64_t tokenizer_bytes;
    md_hash128 tokenizer_hash;
    uint64_t config_bytes;
    uint64_t record_count;
} id_fields;

static_assert(sizeof(id_fields) == 136, "no padding may enter the hash");
static_assert(offsetof(id_fields, record_count) == 128, "no padding may enter the hash");

static id_fields collect(size_t config_bytes, const md_config *config,
                         const md_container_info *info, const md_image_stamp *tokenizer,
                         uint64_t count)
{
    id_fields fields = {
        .container_version = MD_CONTAINER_VERSION,
        .conversion_id = info->conversion_id,
        .layout_id = KN_LAYOUT_ID,
        .expert_format = (uint32_t)info->expert_format,
        .dense_format = (uint32_t)info->dense_format,
        .embed_format = (uint32_t)info->embed_format,
        .slice_width = info->slice_width,
        .grid_fine = info->grid_fine,
        .layers_total = md_config_layers_total(config),
        .tokenizer_bytes = tokenizer->bytes,
        .tokenizer_hash = tokenizer->hash,
        .config_bytes = config_bytes,
        .record_count = count,
    };

    memcpy(fields.label, "moesaic model 1\n", sizeof(fields.label));
    memcpy(&fields.latent_eps_bits, &info->latent_eps, sizeof(fields.latent_eps_bits));
    memcpy(fields.template_id, info->template_id, strnlen(info->template_id, 40));
    return fields;
}

rt_status md_model_id_compute(const char *config_json, size_t config_bytes, const md_config *config,
                              const md_container_info *info, const md_image_stamp *tokenizer,
                              const md_manifest_entry *entries, uint64_t count, uint8_t out[32],
                              rt_err *err)
{
    id_fields fields = collect(config_bytes, config, info, tokenizer, count);
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    uint8_t digest[EVP_MAX_MD_SIZE];
    bool done = context != NULL && EVP_DigestInit_ex(context, EVP_sha256(), NULL) == 1 &&
                EVP_DigestUpdate(context, &fields, sizeof(fields)) == 1 &&
                EVP_DigestUpdate(context, info->grid_q, fields.layers_total) == 1 &&
                EVP_DigestUpdate(context, config_json, config_bytes) == 1 &&
                EVP_DigestUpdate(context, entries, count * sizeof(*entries)) == 1 &&
                EVP_DigestFinal_ex(context, digest, NULL) == 1;

    EVP_MD_CTX_free(context);
    if (!done) return rt_fail(err, RT_ENOMEM, "model id: SHA-256 is not available");
    memcpy(out, digest, 32);
    return RT_OK;
}

void md_model_id_format(const uint8_t id[32], char text[65])
{
    for (size_t i = 0; i < 32; i++)
        (void)snprintf(text + i * 2, 3, "%02x", id[i]);
}
