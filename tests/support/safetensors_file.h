/* safetensors_file.h - writes safetensors files and whole checkpoints for tests, odd ones included.
 *
 * Threads: one test. All functions assert success. */
#ifndef TESTS_SUPPORT_SAFETENSORS_FILE_H
#define TESTS_SUPPORT_SAFETENSORS_FILE_H

#include "model/convert/safetensors.h"

#include <stdbool.h>

typedef struct {
    char name[256];
    md_st_dtype dtype;
    uint32_t dims;
    uint64_t shape[MD_ST_DIMS_MAX];
    void *data; /* owned */
    uint64_t bytes;
    uint32_t shard; /* of a checkpoint_copy */
} st_item;

/* Tensors in the order in which they are written. */
typedef struct {
    st_item *items; /* owned */
    uint32_t count, capacity;
} st_items;

void st_items_free(st_items *items);
/* data is copied; rows 0 makes a vector [cols]. */
void st_items_add(st_items *items, const char *name, md_st_dtype dtype, uint32_t rows,
                  uint32_t cols, const void *data);
st_item *st_items_find(st_items *items, const char *name); /* NULL: not there */
void st_items_remove(st_items *items, const char *name);

/* The file with those items whose shard is `shard` (ST_ALL_SHARDS: all). */
enum { ST_ALL_SHARDS = 0xffff };
void st_items_write(const st_items *items, const char *path, uint32_t shard);
/* The same, as dir/name. */
void st_items_write_in(const st_items *items, const char *dir, const char *name, uint32_t shard);

/* A file of given header text and data_bytes zeros. */
void st_raw_write(const char *path, const char *header, uint64_t data_bytes);

/* A checkpoint of the fixtures in memory, to be changed and written elsewhere. */
typedef struct {
    st_items tensors;
    uint32_t shard_count;
    char *source; /* owned: the fixture's folder */
} st_checkpoint;

st_checkpoint st_checkpoint_load(const char *fixtures, const char *name);
void st_checkpoint_free(st_checkpoint *checkpoint);

/* Writes shards, config, generation config and tokenizer into dir; the index when with_index. */
void st_checkpoint_write(const st_checkpoint *checkpoint, const char *dir, bool with_index);

/* Copies a file; the target's folder exists. */
void test_file_copy(const char *from, const char *to);
/* Copies the plain files of a folder into an existing one. */
void test_folder_copy(const char *from, const char *to);
bool test_file_exists(const char *dir, const char *name);

#endif
