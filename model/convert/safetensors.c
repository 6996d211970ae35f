/* safetensors.c - the header as JSON (jansson), checked against the file before anything uses it.
 *
 * As strict as the format's own library: tensors tile the data section without holes or overlap and
 * end where the file ends. So a file that was cut short or grew fails at open and not hours later.
 */
#include "model/convert/safetensors.h"

#include "base/check.h"
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct md_st_file {
    char *path;            /* owned */
    int fd;                /* -1: a parsed header without a file */
    md_st_tensor *tensors; /* owned, in name order */
    uint64_t count;
    json_t *metadata; /* owned; NULL when there is none */
};

static const struct {
    const char *name;
    size_t bytes;
} dtypes[] = {
    [MD_ST_F32] = {"F32", 4},         [MD_ST_BF16] = {"BF16", 2}, [MD_ST_I32] = {"I32", 4},
    [MD_ST_F8_E4M3] = {"F8_E4M3", 1}, [MD_ST_F16] = {"F16", 2},   [MD_ST_U8] = {"U8", 1},
    [MD_ST_I64] = {"I64", 8},
};

enum { DTYPE_COUNT = sizeof(dtypes) / sizeof(dtypes[0]) };

size_t md_st_dtype_bytes(md_st_dtype dtype)
{
    RT_ASSERT((size_t)dtype < DTYPE_COUNT);
    return dtypes[dtype].bytes;
}

const char *md_st_dtype_name(md_st_dtype dtype)
{
    return (size_t)dtype < DTYPE_COUNT ? dtypes[dtype].name : "?";
}

/* ---- one entry of the header ---- */

static rt_status parse_dtype(const char *path, const char *name, const json_t *entry,
                             md_st_tensor *tensor, rt_err *err)
{
    const char *text = json_string_value(json_object_get(entry, "dtype"));

    if (text == NULL)
        return rt_fail(err, RT_EFORMAT, "%s: %s: expected a text \"dtype\"", path, name);
    for (size_t i = 0; i < DTYPE_COUNT; i++) {
        if (strcmp(text, dtypes[i].name) == 0) {
            tensor->dtype = (md_st_dtype)i;
            return RT_OK;
        }
    }
    return rt_fail(err, RT_EUNSUPPORTED, "%s: %s: dtype \"%.16s\" is not one that is read here",
                   path, name, text);
}

/* Fills dims, shape and the bytes that they take. */
static rt_status parse_shape(const char *path, const char *name, const json_t *entry,
                             md_st_tensor *tensor, rt_err *err)
{
    const json_t *shape = json_object_get(entry, "shape");
    uint64_t bytes = md_st_dtype_bytes(tensor->dtype);

    if (!json_is_array(shape))
        return rt_fail(err, RT_EFORMAT, "%s: %s: expected a list \"shape\"", path, name);
    if (json_array_size(shape) > MD_ST_DIMS_MAX)
        return rt_fail(err, RT_EUNSUPPORTED, "%s: %s: expected at most %d dimensions, found %zu",
                       path, name, MD_ST_DIMS_MAX, json_array_size(shape));
    tensor->dims = (uint32_t)json_array_size(shape);
    for (uint32_t i = 0; i < tensor->dims; i++) {
        const json_t *item = json_array_get(shape, i);
        json_int_t value = json_integer_value(item);

        if (!json_is_integer(item) || value < 0)
            return rt_fail(err, RT_EFORMAT, "%s: %s: shape item %u is not a size", path, name, i);
        tensor->shape[i] = (uint64_t)value;
        if (__builtin_mul_overflow(bytes, tensor->shape[i], &bytes))
            return rt_fail(err, RT_EFORMAT, "%s: %s: shape is larger than any file", path, name);
    }
    tensor->bytes = bytes;
    return RT_OK;
}

static rt_status parse_offsets(const char *path, const char *name, const json_t *entry,
                               uint64_t data_begin, uint64_t data_bytes, md_st_tensor *tensor,
                               rt_err *err)
{
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const json_t *from = json_array_get(offsets, 0), *to = json_array_get(offsets, 1);
    json_int_t begin = json_integer_value(from), end = json_integer_value(to);

    if (json_array_size(offsets) != 2 || !json_is_integer(from) || !json_is_integer(to))
        return rt_fail(err, RT_EFORMAT, "%s: %s: expected \"data_offsets\": [begin, end]", path,
                       name);
    if (begin < 0 || begin > end || (uint64_t)end > data_bytes)
        return rt_fail(err, RT_EFORMAT,
                       "%s: %s: offsets %lld..%lld are outside the %llu bytes of data", path, name,
                       (long long)begin, (long long)end, (unsigned long long)data_bytes);
    if ((uint64_t)(end - begin) != tensor->bytes)
        return rt_fail(err, RT_EFORMAT,
                       "%s: %s: shape and dtype take %llu bytes, the offsets give %lld", path, name,
                       (unsigned long long)tensor->bytes, (long long)(end - begin));
    tensor->offset = data_begin + (uint64_t)begin;
    return RT_OK;
}

/* Names are printed: one with control characters could write to the reader's terminal as it likes. */
static bool name_is_printable(const char *name)
{
    for (; *name != '\0'; name++)
        if ((unsigned char)*name < 0x20 || *name == 0x7f) return false;
    return true;
}

static rt_status parse_tensor(const char *path, const char *name, const json_t *entry,
                              uint64_t data_begin, uint64_t data_bytes, md_st_tensor *out,
                              rt_err *err)
{
    md_st_tensor tensor = {0};

    if (!name_is_printable(name))
        return rt_fail(err, RT_EFORMAT, "%s: a tensor's name has a control character in it", path);
    if (strlen(name) == 0 || strlen(name) > MD_ST_NAME_MAX)
        return rt_fail(err, RT_EFORMAT,
                       "%s: a tensor's name: expected 1 to %d bytes, found %zu (%.40s)", path,
                       MD_ST_NAME_MAX, strlen(name), name);
    if (!json_is_object(entry))
        return rt_fail(err, RT_EFORMAT, "%s: %s: expected an object", path, name);
    RT_TRY(parse_dtype(path, name, entry, &tensor, err));
    RT_TRY(parse_shape(path, name, entry, &tensor, err));
    RT_TRY(parse_offsets(path, name, entry, data_begin, data_bytes, &tensor, err));
    tensor.name = strdup(name);
    if (tensor.name == NULL) return rt_fail(err, RT_ENOMEM, "%s: tensor names", path);
    *out = tensor;
    return RT_OK;
}

/* ---- the whole header ---- */

static int compare_offset(const void *a, const void *b)
{
    const md_st_tensor *x = a, *y = b;

    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes; /* empty ones before their place */
}

static int compare_name(const void *a, const void *b)
{
    return strcmp(((const md_st_tensor *)a)->name, ((const md_st_tensor *)b)->name);
}

/* Tensors tile data_begin..file_bytes: no hole, no overlap. */
static rt_status check_tiling(md_st_file *file, uint64_t data_begin, uint64_t file_bytes,
                              rt_err *err)
{
    uint64_t at = data_begin;

    if (file->count > 0) qsort(file->tensors, file->count, sizeof(*file->tensors), compare_offset);
    for (uint64_t i = 0; i < file->count; i++) {
        const md_st_tensor *tensor = &file->tensors[i];

        if (tensor->offset != at)
            return rt_fail(err, RT_EFORMAT,
                           "%s: %s: expected to start at byte %llu, found %llu (%s)", file->path,
                           tensor->name, (unsigned long long)at, (unsigned long long)tensor->offset,
                           tensor->offset < at ? "tensors overlap" : "a hole before it");
        at += tensor->bytes;
    }
    if (at != file_bytes)
        return rt_fail(err, RT_EFORMAT,
                       "%s: expected a file of %llu bytes by its header, found %llu", file->path,
                       (unsigned long long)at, (unsigned long long)file_bytes);
    return RT_OK;
}

/* The format knows texts only; another value would be passed over by who asks for a text. */
static rt_status take_metadata(md_st_file *file, json_t *found, rt_err *err)
{
    const char *key;
    json_t *value;

    if (!json_is_object(found))
        return rt_fail(err, RT_EFORMAT, "%s: __metadata__: expected an object", file->path);
    json_object_foreach(found, key, value)
    {
        if (!json_is_string(value))
            return rt_fail(err, RT_EFORMAT, "%s: __metadata__: %.60s: expected a text", file->path,
                           key);
    }
    file->metadata = json_incref(found);
    return RT_OK;
}

static rt_status parse_entries(md_st_file *file, json_t *root, uint64_t data_begin,
                               uint64_t file_bytes, rt_err *err)
{
    const char *name;
    json_t *entry;

    file->tensors = calloc(json_object_size(root) + 1, sizeof(*file->tensors));
    if (file->tensors == NULL)
        return rt_fail(err, RT_ENOMEM, "%s: %zu tensors", file->path, json_object_size(root));
    json_object_foreach(root, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0) {
            RT_TRY(take_metadata(file, entry, err));
            continue;
        }
        RT_TRY(parse_tensor(file->path, name, entry, data_begin, file_bytes - data_begin,
                            &file->tensors[file->count], err));
        file->count++;
    }
    RT_TRY(check_tiling(file, data_begin, file_bytes, err));
    if (file->count > 0) qsort(file->tensors, file->count, sizeof(*file->tensors), compare_name);
    return RT_OK;
}

rt_status md_st_parse(const char *path, const char *json, size_t json_bytes, uint64_t file_bytes,
                      md_st_file **out, rt_err *err)
{
    json_error_t error;
    json_t *root = NULL;
    md_st_file *file;
    rt_status status;

    RT_ASSERT(file_bytes >= 8 && json_bytes <= file_bytes - 8);
    file = calloc(1, sizeof(*file));
    if (file == NULL) return rt_fail(err, RT_ENOMEM, "%s", path);
    file->fd = -1;
    file->path = strdup(path);
    if (file->path == NULL) {
        status = rt_fail(err, RT_ENOMEM, "%s", path);
        goto fail;
    }
    root = json_loadb(json, json_bytes, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL || !json_is_object(root)) {
        status = root == NULL ? rt_fail(err, RT_EFORMAT, "%s: header byte %d: %s", path,
                                        error.position, error.text)
                              : rt_fail(err, RT_EFORMAT, "%s: header: expected an object", path);
        goto fail;
    }
    status = parse_entries(file, root, 8 + json_bytes, file_bytes, err);
    if (status != RT_OK) goto fail;
    json_decref(root);
    *out = file;
    return RT_OK;
fail:
    json_decref(root);
    md_st_close(file);
    return status;
}

/* ---- the file ---- */

/* The header's bytes, malloc'd. */
static rt_status read_header(int fd, const char *path, char **out, size_t *out_bytes,
                             uint64_t *file_bytes, rt_err *err)
{
    unsigned char length_bytes[8];
    uint64_t length = 0;
    struct stat info;
    char *json;
    rt_status status;

    if (fstat(fd, &info) != 0) return rt_fail(err, RT_EIO, "stat %s: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode) || info.st_size < 8)
        return rt_fail(err, RT_EFORMAT, "%s: expected a file of at least 8 bytes, found %lld", path,
                       S_ISREG(info.st_mode) ? (long long)info.st_size : -1);
    RT_TRY(rt_pread_full(fd, length_bytes, sizeof(length_bytes), 0, path, err));
    for (int i = 7; i >= 0; i--)
        length = length << 8 | length_bytes[i];
    if (length > MD_ST_HEADER_MAX || length > (uint64_t)info.st_size - 8)
        return rt_fail(err, RT_EFORMAT,
                       "%s: header of %llu bytes in a file of %lld (at most %d are read)", path,
                       (unsigned long long)length, (long long)info.st_size, MD_ST_HEADER_MAX);
    json = malloc(length + 1);
    if (json == NULL) return rt_fail(err, RT_ENOMEM, "%s: header", path);
    status = rt_pread_full(fd, json, length, 8, path, err);
    if (status != RT_OK) {
        free(json);
        return status;
    }
    *out = json;
    *out_bytes = length;
    *file_bytes = (uint64_t)info.st_size;
    return RT_OK;
}

rt_status md_st_open(const char *path, md_st_file **out, rt_err *err)
{
    md_st_file *file = NULL;
    char *json = NULL;
    size_t json_bytes = 0;
    uint64_t file_bytes = 0;
    rt_status status;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0) return rt_fail(err, RT_EIO, "open %s: %s", path, strerror(errno));
    status = read_header(fd, path, &json, &json_bytes, &file_bytes, err);
    if (status == RT_OK) status = md_st_parse(path, json, json_bytes, file_bytes, &file, err);
    free(json);
    if (status != RT_OK) {
        close(fd);
        return status;
    }
    file->fd = fd;
    *out = file;
    return RT_OK;
}

void md_st_close(md_st_file *file)
{
    if (file == NULL) return;
    for (uint64_t i = 0; i < file->count; i++)
        free((char *)(uintptr_t)file->tensors[i].name);
    free(file->tensors);
    json_decref(file->metadata);
    if (file->fd >= 0) close(file->fd);
    free(file->path);
    free(file);
}

void md_st_release(md_st_file *file)
{
    if (file->fd >= 0) close(file->fd);
    file->fd = -1;
}

const char *md_st_path(const md_st_file *file)
{
    return file->path;
}

int md_st_fd(const md_st_file *file)
{
    return file->fd;
}

uint64_t md_st_count(const md_st_file *file)
{
    return file->count;
}

const md_st_tensor *md_st_at(const md_st_file *file, uint64_t index)
{
    RT_ASSERT(index < file->count);
    return &file->tensors[index];
}

const md_st_tensor *md_st_find(const md_st_file *file, const char *name)
{
    md_st_tensor key = {.name = name};

    if (file->count == 0) return NULL;
    return bsearch(&key, file->tensors, file->count, sizeof(key), compare_name);
}

const char *md_st_metadata(const md_st_file *file, const char *key)
{
    return json_string_value(json_object_get(file->metadata, key));
}

rt_status md_st_read(const md_st_file *file, const md_st_tensor *tensor, uint64_t offset_in_tensor,
                     void *data, size_t bytes, rt_err *err)
{
    rt_status status;

    RT_ASSERT(file->fd >= 0);
    RT_ASSERT(offset_in_tensor <= tensor->bytes && bytes <= tensor->bytes - offset_in_tensor);
    status =
        rt_pread_full(file->fd, data, bytes, tensor->offset + offset_in_tensor, file->path, err);
    if (status != RT_OK) rt_err_prefix(err, "%s: ", tensor->name);
    return status;
}
