/* manifest.h - manifest.bin: every record of the model (key, length, hash), and the model id.
 *
 * The manifest lists what the model consists of; packs list what a copy holds. Model id = SHA-256
 * over the manifest's entries, config.json's bytes, the tokenizer image's hash and the conversion
 * fields of moesaic.json, so that any machine converting the same source with the same options gets
 * the same id. docs/container.md has the exact byte sequence. */
#ifndef MODEL_CONTAINER_MANIFEST_H
#define MODEL_CONTAINER_MANIFEST_H

#include "model/container/container.h"

typedef struct {
    md_key key;
    uint64_t bytes;
    md_hash128 hash;
} md_manifest_entry;

static_assert(sizeof(md_manifest_entry) == 32, "a manifest entry is 32 bytes on disk");

/* entries sorted by key. Written by rt_file_replace. */
RT_MUST_CHECK rt_status md_manifest_write(const char *path, const md_manifest_entry *entries,
                                          uint64_t count, rt_err *err);
/* malloc'd entries; checks magic, version, order, checksum. */
RT_MUST_CHECK rt_status md_manifest_read(const char *path, md_manifest_entry **out, uint64_t *count,
                                         rt_err *err);

/* Writes moesaic.json (last, by rename): the directory is complete from then on.
 * config_json: the bytes of the config.json beside it. info->model_id is computed and set. */
RT_MUST_CHECK rt_status md_container_seal(const char *dir, const char *config_json,
                                          size_t config_bytes, const md_manifest_entry *entries,
                                          uint64_t count, md_container_info *info, rt_err *err);

/* The records a model of this config and these formats consists of, in key order, hashes zero.
 * The one list that conversion fills and opening checks against. malloc'd. */
RT_MUST_CHECK rt_status md_manifest_expected(const md_config *config, const md_container_info *info,
                                             md_manifest_entry **out, uint64_t *count, rt_err *err);

/* "dense.bin" or "experts-012.bin": the file a key belongs to. */
const char *md_pack_name(md_key key, char *text, size_t text_bytes);

#endif
