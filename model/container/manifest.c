/* manifest.c - manifest.bin, and the list of records that a model must consist of. */
#include "model/container/manifest.h"

#include "base/check.h"
#include "base/file.h"
#include "model/container/file_header.h"
#include "model/container/shape.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

rt_status md_manifest_write(const char *path, const md_manifest_entry *entries, uint64_t count,
                            rt_err *err)
{
    size_t body_bytes = count * sizeof(*entries);
    md_file_header header;
    unsigned char *image;
    rt_status status;

    RT_ASSERT(count <= MD_ENTRIES_MAX);
    for (uint64_t i = 1; i < count; i++)
        RT_ASSERT(md_key_compare(entries[i - 1].key, entries[i].key) < 0);
    image = malloc(sizeof(header) + body_bytes);
    if (image == NULL) return rt_fail(err, RT_ENOMEM, "%s", path);
    md_file_header_init(&header, MD_MANIFEST_MAGIC, sizeof(*entries), count,
                        sizeof(header) + body_bytes, entries);
    memcpy(image, &header, sizeof(header));
    if (body_bytes > 0) memcpy(image + sizeof(header), entries, body_bytes);
    status = rt_file_replace(path, image, sizeof(header) + body_bytes, err);
    free(image);
    return status;
}

static rt_status check_image(const char *image, size_t bytes, md_file_header *header,
                             const char *path, rt_err *err)
{
    if (bytes < sizeof(*header))
        return rt_fail(err, RT_EFORMAT, "%s: expected at least %zu bytes, found %zu", path,
                       sizeof(*header), bytes);
    memcpy(header, image, sizeof(*header));
    RT_TRY(md_file_header_check(header, MD_MANIFEST_MAGIC, sizeof(md_manifest_entry), bytes, path,
                                err));
    if (bytes != sizeof(*header) + header->count * sizeof(md_manifest_entry))
        return rt_fail(err, RT_EFORMAT, "%s: expected %" PRIu64 " bytes of entries, found %zu",
                       path, header->count * sizeof(md_manifest_entry), bytes - sizeof(*header));
    return md_file_body_check(header, image + sizeof(*header), path, err);
}

static rt_status check_order(const md_manifest_entry *entries, uint64_t count, const char *path,
                             rt_err *err)
{
    char key[64], previous[64];

    for (uint64_t i = 1; i < count; i++) {
        if (md_key_compare(entries[i - 1].key, entries[i].key) >= 0)
            return rt_fail(err, RT_EFORMAT,
                           "%s: expected keys in ascending order, found %s after %s", path,
                           md_key_format(entries[i].key, key, sizeof(key)),
                           md_key_format(entries[i - 1].key, previous, sizeof(previous)));
    }
    return RT_OK;
}

rt_status md_manifest_read(const char *path, md_manifest_entry **out, uint64_t *count, rt_err *err)
{
    size_t limit = sizeof(md_file_header) + (size_t)MD_ENTRIES_MAX * sizeof(md_manifest_entry);
    md_manifest_entry *entries = NULL;
    md_file_header header = {0};
    char *image = NULL;
    size_t bytes = 0, body_bytes;
    rt_status status;

    status = rt_file_read(path, limit, &image, &bytes, err);
    if (status == RT_OK) status = check_image(image, bytes, &header, path, err);
    if (status != RT_OK) goto fail;
    body_bytes = bytes - sizeof(header);
    entries = malloc(body_bytes > 0 ? body_bytes : 1);
    if (entries == NULL) {
        status = rt_fail(err, RT_ENOMEM, "%s", path);
        goto fail;
    }
    memcpy(entries, image + sizeof(header), body_bytes);
    status = check_order(entries, header.count, path, err);
    if (status != RT_OK) goto fail;
    free(image);
    *out = entries;
    *count = header.count;
    return RT_OK;
fail:
    free(entries);
    free(image);
    return status;
}

/* Appends key's entry when the model has such a record; counts only when entries is NULL. */
static void expect(const md_config *config, const md_container_info *info, md_key key,
                   md_manifest_entry *entries, uint64_t *count)
{
    md_shape shape;

    if (!md_record_shape(config, info, key, &shape)) return;
    if (entries != NULL) entries[*count] = (md_manifest_entry){.key = key, .bytes = shape.bytes};
    (*count)++;
}

static uint64_t list_records(const md_config *config, const md_container_info *info,
                             md_manifest_entry *entries)
{
    uint64_t count = 0;

    for (uint32_t layer = 0; layer < md_config_layers_total(config); layer++) {
        for (uint16_t kind = MD_INPUT_NORM; kind <= MD_EH_PROJ; kind++) {
            uint32_t indices = kind == MD_EXPERT ? config->experts : 1;

            for (uint32_t i = 0; i < indices; i++)
                expect(config, info, (md_key){(uint16_t)layer, kind, i}, entries, &count);
        }
    }
    for (uint16_t kind = MD_EMBED; kind <= MD_ROPE_INV_FREQ; kind++)
        expect(config, info, (md_key){MD_NO_LAYER, kind, 0}, entries, &count);
    return count;
}

rt_status md_manifest_expected(const md_config *config, const md_container_info *info,
                               md_manifest_entry **out, uint64_t *count, rt_err *err)
{
    uint64_t wanted = list_records(config, info, NULL);
    md_manifest_entry *entries = calloc(wanted, sizeof(*entries));

    if (entries == NULL) return rt_fail(err, RT_ENOMEM, "manifest of %" PRIu64 " records", wanted);
    *count = list_records(config, info, entries);
    *out = entries;
    return RT_OK;
}

const char *md_pack_name(md_key key, char *text, size_t text_bytes)
{
    if (key.kind == MD_EXPERT)
        (void)snprintf(text, text_bytes, "experts-%03u.bin", key.layer);
    else
        (void)snprintf(text, text_bytes, "dense.bin");
    return text;
}
