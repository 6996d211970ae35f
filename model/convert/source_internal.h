/* source_internal.h - the table behind source.h, shared by the source_*.c files. */
#ifndef MODEL_CONVERT_SOURCE_INTERNAL_H
#define MODEL_CONVERT_SOURCE_INTERNAL_H

#include "model/convert/source.h"

#include <jansson.h>
#include <sys/stat.h>

typedef struct {
    md_source_shard info;
    md_st_file *file;     /* owned; NULL: not there */
    struct stat measured; /* when the fingerprint was taken */
    bool other;           /* of the second directory */
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
    char *dir;       /* owned */
    char *other_dir; /* owned; NULL: none */
    bool foreign;
    uint32_t layers;      /* foreign: main layers */
    json_t *stamps;       /* owned; foreign: format names by tensor, NULL when no file has any */
    bool fp8_declared;    /* foreign: a file says that it holds FP8 weights */
    json_t *index;        /* owned; NULL without an index file. Foreign: of the second directory */
    source_shard *shards; /* owned, in name order */
    uint32_t shard_count;
    source_tensor *tensors; /* owned, in name order; those of the second directory come after */
    uint32_t tensor_count;
    uint32_t own_count; /* of them, without the second directory */
    uint64_t bytes;
};

/* source_shards.c */

/* The directory in the release's layout: the second one of a foreign source, NULL without one. */
const char *md_source_release_dir(const md_source *source);
uint32_t md_source_find_shard(const md_source *source, const char *name); /* MD_SOURCE_NONE */

/* Fills shards with all that there are or that are known, in name order; errors of md_source_open. */
RT_MUST_CHECK rt_status md_source_list_shards(md_source *source, const md_source_shard *known,
                                              uint32_t known_count, rt_err *err);
RT_MUST_CHECK rt_status md_source_open_shard(md_source *source, source_shard *shard,
                                             const md_source_shard *known, uint32_t known_count,
                                             rt_err *err);

/* source.c */

/* A tensor of the directory itself, or of the second one; NULL: the table has no such name. */
source_tensor *md_source_find_tensor(const md_source *source, const char *name, bool other);

/* The same when its shard is there. RT_EFORMAT names what is missing. */
RT_MUST_CHECK rt_status md_source_require(md_source *source, const char *name, bool other,
                                          source_tensor **out, rt_err *err);

/* What resolving a tensor in the release's layout does once it is found. */
RT_MUST_CHECK rt_status md_source_resolve_values(md_source *source, source_tensor *tensor,
                                                 uint32_t rows, uint32_t cols,
                                                 md_source_matrix *out, rt_err *err);
RT_MUST_CHECK rt_status md_source_check_shape(const md_source *source, const source_tensor *tensor,
                                              uint32_t rows, uint32_t cols, rt_err *err);

/* source_foreign.c */

/* Takes the format stamps of a shard's header. RT_EFORMAT: damaged, or other than another shard's. */
RT_MUST_CHECK rt_status md_source_take_stamps(md_source *source, const md_st_file *file,
                                              rt_err *err);
RT_MUST_CHECK rt_status md_source_resolve_foreign(md_source *source, const char *name,
                                                  uint32_t rows, uint32_t cols,
                                                  md_source_matrix *out, rt_err *err);

#endif
