/* source_internal.h - the table behind source.h, shared by source.c and source_read.c. */
#ifndef MODEL_CONVERT_SOURCE_INTERNAL_H
#define MODEL_CONVERT_SOURCE_INTERNAL_H

#include "model/convert/source.h"

#include <jansson.h>

typedef struct {
    md_source_shard info;
    md_st_file *file; /* owned; NULL: not there */
    bool is_link;
    bool dropped; /* deleted by us: the header stays, since tensor names point into it */
} source_shard;

typedef struct {
    const char *name; /* borrowed from the shard or, for a shard that is gone, from the index */
    uint32_t shard;
    bool used;
    const md_st_tensor *tensor; /* borrowed; NULL: its shard is not there */
} source_tensor;

struct md_source {
    char *dir;            /* owned */
    json_t *index;        /* owned; NULL without an index file */
    source_shard *shards; /* owned, in name order */
    uint32_t shard_count;
    source_tensor *tensors; /* owned, in name order */
    uint32_t tensor_count;
    uint64_t bytes;
};

#endif
