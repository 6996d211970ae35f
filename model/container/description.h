/* description.h - the text of moesaic.json: what a container says of itself.
 *
 * The text has one form for one meaning (sorted keys, no blanks), and a reader rebuilds it from
 * what it understood and compares every field. So also the fields that are only there for people
 * (shapes, groups) cannot lie.
 *
 * Threads: pure. */
#ifndef MODEL_CONTAINER_DESCRIPTION_H
#define MODEL_CONTAINER_DESCRIPTION_H

#include "model/container/container.h"

/* The tokenizer image that belongs to the model. */
typedef struct {
    uint64_t bytes;
    md_hash128 hash;
} md_image_stamp;

#define MD_DESCRIPTION_NAME "moesaic.json"
#define MD_TOKENIZER_NAME "tokenizer.bin"

/* The text for config and info (info->model_id included); malloc'd, ends with a newline and a 0.
 * NULL when memory is short. */
char *md_description_print(const md_config *config, const md_container_info *info,
                           const md_image_stamp *tokenizer);

/* Errors  RT_EFORMAT       not the text of a container of this config, naming field, expected,
 * found RT_EUNSUPPORTED  a newer version, layout, format or field RT_ENOMEM */
RT_MUST_CHECK rt_status md_description_parse(const char *text, size_t bytes,
                                             const md_config *config, md_container_info *info,
                                             md_image_stamp *tokenizer, rt_err *err);

#endif
