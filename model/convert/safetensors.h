/* safetensors.h - one safetensors file: its header parsed and checked, its tensors read by range.
 *
 * Also reads the reference files of tests (F32, I32). Nothing in the header is trusted: offsets must
 * lie in the file, agree with shape and dtype, not overlap, and cover what they claim.
 *
 * Threads: md_st_read from any; the rest from one. */
#ifndef MODEL_CONVERT_SAFETENSORS_H
#define MODEL_CONVERT_SAFETENSORS_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

typedef enum { MD_ST_F32, MD_ST_BF16, MD_ST_I32, MD_ST_F8_E4M3, MD_ST_F16, MD_ST_U8, MD_ST_I64 } md_st_dtype;

enum { MD_ST_DIMS_MAX = 4, MD_ST_HEADER_MAX = 100 << 20 };

typedef struct {
    const char *name; /* borrowed from the file object */
    md_st_dtype dtype;
    uint32_t dims;
    uint64_t shape[MD_ST_DIMS_MAX];
    uint64_t offset, bytes; /* absolute in the file */
} md_st_tensor;

typedef struct md_st_file md_st_file;

/* Errors  RT_EIO, RT_EFORMAT (path, tensor, expected and found) */
RT_MUST_CHECK rt_status md_st_open(const char *path, md_st_file **out, rt_err *err);
void md_st_close(md_st_file *file);
const char *md_st_path(const md_st_file *file);
uint64_t md_st_count(const md_st_file *file);
const md_st_tensor *md_st_at(const md_st_file *file, uint64_t index);
const md_st_tensor *md_st_find(const md_st_file *file, const char *name); /* NULL: not there */

/* bytes at offset_in_tensor of the tensor's data, as stored. */
RT_MUST_CHECK rt_status md_st_read(const md_st_file *file, const md_st_tensor *tensor,
                                   uint64_t offset_in_tensor, void *data, size_t bytes, rt_err *err);

size_t md_st_dtype_bytes(md_st_dtype dtype);
const char *md_st_dtype_name(md_st_dtype dtype);

#endif
