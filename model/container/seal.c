/* seal.c - the last step of a conversion: moesaic.json makes a directory a container. */
#include "model/container/manifest.h"

#include "base/file.h"
#include "model/container/model_id.h"

#include <stdlib.h>
#include <string.h>

enum { TOKENIZER_BYTES_MAX = 1 << 30 };

static rt_status stamp_tokenizer(const char *dir, md_image_stamp *out, rt_err *err)
{
    char *path = rt_path_join(dir, MD_TOKENIZER_NAME);
    char *image = NULL;
    size_t bytes = 0;
    rt_status status;

    if (path == NULL) return rt_fail(err, RT_ENOMEM, "%s", dir);
    status = rt_file_read(path, TOKENIZER_BYTES_MAX, &image, &bytes, err);
    if (status == RT_OK && bytes == 0)
        status = rt_fail(err, RT_EFORMAT, "%s: expected a tokenizer image, found no bytes", path);
    if (status == RT_OK) *out = (md_image_stamp){bytes, md_hash_bytes(image, bytes)};
    free(image);
    free(path);
    return status;
}

static rt_status write_description(const char *dir, const md_config *config,
                                   const md_container_info *info, const md_image_stamp *tokenizer,
                                   rt_err *err)
{
    char *path = rt_path_join(dir, MD_DESCRIPTION_NAME);
    char *text = md_description_print(config, info, tokenizer);
    rt_status status;

    if (path == NULL || text == NULL)
        status = rt_fail(err, RT_ENOMEM, "%s/%s", dir, MD_DESCRIPTION_NAME);
    else
        status = rt_file_replace(path, text, strlen(text), err);
    free(text);
    free(path);
    return status;
}

rt_status md_container_seal(const char *dir, const char *config_json, size_t config_bytes,
                            const md_manifest_entry *entries, uint64_t count,
                            md_container_info *info, rt_err *err)
{
    md_container_info sealed = *info;
    md_image_stamp tokenizer = {0};
    md_config config;

    RT_TRY(md_config_parse(config_json, config_bytes, &config, err));
    RT_TRY(stamp_tokenizer(dir, &tokenizer, err));
    RT_TRY(md_model_id_compute(config_json, config_bytes, &config, &sealed, &tokenizer, entries,
                               count, sealed.model_id, err));
    RT_TRY(write_description(dir, &config, &sealed, &tokenizer, err));
    *info = sealed;
    return RT_OK;
}
