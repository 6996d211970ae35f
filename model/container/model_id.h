/* model_id.h - one number for "the same model": SHA-256 over all that decides its output.
 *
 * docs/container.md gives the byte sequence. Everything a token depends on is in it, nothing that
 * depends on the machine, the packs held here or the time of conversion.
 *
 * Threads: pure. */
#ifndef MODEL_CONTAINER_MODEL_ID_H
#define MODEL_CONTAINER_MODEL_ID_H

#include "model/container/description.h"
#include "model/container/manifest.h"

/* info->model_id is not read. RT_ENOMEM when OpenSSL has no memory. */
RT_MUST_CHECK rt_status md_model_id_compute(const char *config_json, size_t config_bytes,
                                            const md_config *config, const md_container_info *info,
                                            const md_image_stamp *tokenizer,
                                            const md_manifest_entry *entries, uint64_t count,
                                            uint8_t out[32], rt_err *err);

#endif
