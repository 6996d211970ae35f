/* source.h - a sharded checkpoint: tensors by name across its shards, read as f32 row blocks.
 *
 * The index file is optional: without it every model*.safetensors of the directory is a shard. With
 * it every name must be where it says. A tensor in two shards is refused: which one counts would be
 * a guess. FP8 weights (F8_E4M3) take their block scales from `<name>_scale_inv`, in any shard.
 * What decides is the stored dtype of each tensor, never a list in config.json.
 *
 * md_source_open_foreign reads a directory of the colibri engine instead: every *.safetensors in it,
 * names of the release, weights as integers (U8) with F32 scales in `<name>.qs`. What such a directory
 * lacks of the indexer and the MTP layer may come from a second one, a checkpoint in the release's
 * layout of which shards may be missing. A tensor of the first always goes before one of the second.
 *
 * When a conversion is resumed, shards that it consumed are gone: they stay in the table as not
 * present, and only a tensor that is still needed from one is an error.
 *
 * Threads: open, resolve, drop and close from one; reads from any. */
#ifndef MODEL_CONVERT_SOURCE_H
#define MODEL_CONVERT_SOURCE_H

#include "model/convert/safetensors.h"

#include <stdbool.h>

enum {
    MD_SOURCE_SHARDS_MAX = 4096,
    MD_SOURCE_BLOCK = 128, /* FP8 scales cover 128 x 128 weights */
    MD_SOURCE_NONE = 0xffffffffu,
};

typedef struct md_source md_source; /* opaque */

/* What a conversion remembers about a shard, so that a resumed one notices another source. */
typedef struct {
    char name[128]; /* file name in the source directory */
    uint64_t bytes;
    uint64_t fingerprint; /* XXH3-64 of 16 pieces of the file, and its size */
} md_source_shard;

/* known [known_count]: the shards of the conversion that is resumed; none for a new one. A shard
 * that is known may be missing; one that is there must be the same.
 *   Errors  RT_EIO           a file cannot be opened or read
 *           RT_EFORMAT       a damaged header or index; the index names a file or a tensor that is
 *                            not there; a tensor in two shards; no shard at all
 *           RT_EUNSUPPORTED  fused expert names, a dtype that is not read here
 *           RT_EINVAL        a known shard differs from the one that is there, or changed while it was
 *                            opened; with known shards, one that is not among them */
RT_MUST_CHECK rt_status md_source_open(const char *dir, const md_source_shard *known,
                                       uint32_t known_count, md_source **out, rt_err *err);
void md_source_close(md_source *source);

/* Shards of the second directory have this before their file name. */
#define MD_SOURCE_OTHER_PREFIX "indexer-from/"

typedef struct {
    const char *dir;
    const char *other; /* the second directory; NULL: none */
    uint32_t layers;   /* main layers: those after them are MTP layers */
} md_foreign_spec;

/* A known shard of dir has to be there: nothing deletes it. A second directory without an index may have
 * more than the known ones, which are ignored.
 *   Errors  as md_source_open; RT_EINVAL also for a known shard of dir that is not there, and when known
 *           has shards of a second directory, and there is none */
RT_MUST_CHECK rt_status md_source_open_foreign(const md_foreign_spec *spec,
                                               const md_source_shard *known, uint32_t known_count,
                                               md_source **out, rt_err *err);

uint32_t md_source_shard_count(const md_source *source);
const md_source_shard *md_source_shard_at(const md_source *source, uint32_t shard);
bool md_source_shard_present(const md_source *source, uint32_t shard);
bool md_source_shard_is_other(const md_source *source,
                              uint32_t shard);     /* of the second directory */
uint64_t md_source_bytes(const md_source *source); /* of the shards that are there, without those */

/* A matrix of the checkpoint: where its weights and scales are. */
typedef struct {
    uint32_t weight, scale; /* tensor numbers; scale is MD_SOURCE_NONE unless FP8 or integers */
    uint32_t rows, cols;
    uint32_t bits;        /* of integers: 8 or 4; 0 for values */
    uint32_t scale_group; /* of integers: columns per scale, 0: one a row */
} md_source_matrix;

static inline uint32_t md_source_scales_per_row(const md_source_matrix *matrix)
{
    if (matrix->scale_group == 0) return matrix->bits > 0 ? 1 : 0;
    return (matrix->cols + matrix->scale_group - 1) / matrix->scale_group;
}

/* Finds `name` and checks shape, dtype and scales. A vector has rows 1 and shape [cols].
 *   Errors  RT_EFORMAT       not in the checkpoint (a shard that is gone is named), wrong shape,
 *                            scale missing or of the wrong shape
 *           RT_EUNSUPPORTED  a dtype that weights cannot have */
RT_MUST_CHECK rt_status md_source_resolve(md_source *source, const char *name, uint32_t rows,
                                          uint32_t cols, md_source_matrix *out, rt_err *err);

/* The number of a tensor, MD_SOURCE_NONE when the table has no such name. It counts as known from
 * then on, although nothing reads it (accepted copies, records already done). */
uint32_t md_source_lookup(md_source *source, const char *name);

/* The same with the tensor's scales, for what is known without being read. */
bool md_source_lookup_matrix(md_source *source, const char *name, md_source_matrix *out);

/* Where md_source_resolve would take a tensor from. */
typedef enum {
    MD_SOURCE_OWN,
    MD_SOURCE_OTHER,
    MD_SOURCE_OTHER_GONE, /* the second directory's index names it in a shard that is not there */
    MD_SOURCE_NOWHERE,
} md_source_place;

/* shard is set for MD_SOURCE_OTHER_GONE. */
md_source_place md_source_find_place(const md_source *source, const char *name, uint32_t *shard);

/* The shard of a known tensor that is not there, MD_SOURCE_NONE when it is there or the name is unknown:
 * without an index the names in a shard went with it. */
uint32_t md_source_gone_shard(const md_source *source, const char *name);

uint32_t md_source_tensor_count(const md_source *source); /* without the second directory's */

/* Of them, those that nobody resolved or looked up; *first is one of them (borrowed) when there is any. */
uint64_t md_source_unused(const md_source *source, const char **first);

const char *md_source_tensor_name(const md_source *source, uint32_t tensor);
uint32_t md_source_tensor_shard(const md_source *source, uint32_t tensor);
uint64_t md_source_matrix_bytes(const md_source *source, const md_source_matrix *matrix);

/* Memory for reading `rows` rows of `cols` values of any dtype, scales included. */
size_t md_source_raw_bytes(uint32_t rows, uint32_t cols);

/* Rows row_begin.. of a matrix as f32 [row_count][cols], exactly as stored (FP8 and integers: code
 * times scale, rounded once).
 *   raw     md_source_raw_bytes(row_count, cols), 8-byte aligned
 *   Errors  RT_EIO; RT_EFORMAT for a NaN or Inf: tensor, row and column are named; those of
 *           md_source_read_codes */
RT_MUST_CHECK rt_status md_source_read_rows(const md_source *source, const md_source_matrix *matrix,
                                            uint32_t row_begin, uint32_t row_count, float *out,
                                            void *raw, rt_err *err);

/* The same rows of a matrix of integers: q [row_count][cols] and scales
 * [row_count][md_source_scales_per_row], as stored. raw as above.
 *   Errors  RT_EIO; RT_EFORMAT for a scale that is NaN or Inf, or an int8 of -128, which the kernels'
 *           format does not have (quantising rounds to -127..127): tensor, row and column are named */
RT_MUST_CHECK rt_status md_source_read_codes(const md_source *source,
                                             const md_source_matrix *matrix, uint32_t row_begin,
                                             uint32_t row_count, int8_t *q, float *scales,
                                             void *raw, rt_err *err);

/* The values of such rows: out [row_count][cols], integer times scale, rounded once. */
void md_source_multiply(const md_source_matrix *matrix, uint32_t row_count, const int8_t *q,
                        const float *scales, float *out);

/* Whether the shards that are present are still the files that were opened, by size, time and fingerprint:
 * what is read while another program writes would be of neither of its states. RT_EINVAL names the one. A
 * warning when only the time differs. */
RT_MUST_CHECK rt_status md_source_check_unchanged(const md_source *source, rt_err *err);

/* Deletes a shard's file and closes it, so that its space is free at once. The shard is not present
 * afterwards. RT_EIO; RT_EINVAL as above. */
RT_MUST_CHECK rt_status md_source_drop(md_source *source, uint32_t shard, rt_err *err);

/* Whether deleting the shards would free nothing, because one is a symbolic link (as in a download
 * cache): RT_EINVAL names it. */
RT_MUST_CHECK rt_status md_source_check_deletable(const md_source *source, rt_err *err);

#endif
