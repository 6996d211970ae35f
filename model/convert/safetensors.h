/* safetensors.h - one safetensors file: its header parsed and checked, its tensors read by range.
 *
 * Also reads the reference files of tests (F32, I32). Nothing in the header is trusted: offsets
 * must lie in the file, agree with shape and dtype, not overlap, and cover what they claim.
 *
 * Threads: md_st_read from any; the rest from one. */
#ifndef MODEL_CONVERT_SAFETENSORS_H
#define MODEL_CONVERT_SAFETENSORS_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

typedef enum {
    MD_ST_F32,
    MD_ST_BF16,
    MD_ST_I32,
    MD_ST_F8_E4M3,
    MD_ST_F16,
    MD_ST_U8,
    MD_ST_I64
} md_st_dtype;

enum {
    MD_ST_DIMS_MAX = 4,
    MD_ST_HEADER_MAX = 100 << 20, /* the format's own limit; the release's headers are 100 KB */
    MD_ST_NAME_MAX = 255,         /* so that a name fits an error's text */
};

typedef struct {
    const char *name; /* borrowed from the file object */
    md_st_dtype dtype;
    uint32_t dims;
    uint64_t shape[MD_ST_DIMS_MAX];
    uint64_t offset, bytes; /* absolute in the file */
} md_st_tensor;

typedef struct md_st_file md_st_file;

/* Errors  RT_EIO, RT_EFORMAT (path, tensor, expected and found), RT_EUNSUPPORTED (a dtype not in
 * the list above, or more dimensions), RT_ENOMEM */
RT_MUST_CHECK rt_status md_st_open(const char *path, md_st_file **out, rt_err *err);

/* The header alone, for fuzzing and for tests: json is what follows the 8 length bytes in a file of
 * file_bytes. The object has no data to read. Errors as md_st_open. */
RT_MUST_CHECK rt_status md_st_parse(const char *path, const char *json, size_t json_bytes,
                                    uint64_t file_bytes, md_st_file **out, rt_err *err);
void md_st_close(md_st_file *file);
/* Closes the descriptor and keeps the header: for a file that was deleted. No reads afterwards. */
void md_st_release(md_st_file *file);
const char *md_st_path(const md_st_file *file);
int md_st_fd(const md_st_file *file); /* -1: released, or parsed without a file */
uint64_t md_st_count(const md_st_file *file);
const md_st_tensor *md_st_at(const md_st_file *file, uint64_t index);     /* in name order */
const md_st_tensor *md_st_find(const md_st_file *file, const char *name); /* NULL: not there */

/* A text of the header's __metadata__ (borrowed), NULL when it has no such text. */
const char *md_st_metadata(const md_st_file *file, const char *key);

/* bytes at offset_in_tensor of the tensor's data, as stored; the range is asserted. RT_EIO. */
RT_MUST_CHECK rt_status md_st_read(const md_st_file *file, const md_st_tensor *tensor,
                                   uint64_t offset_in_tensor, void *data, size_t bytes,
                                   rt_err *err);

size_t md_st_dtype_bytes(md_st_dtype dtype);
const char *md_st_dtype_name(md_st_dtype dtype);

#endif
