/* pack.h - the files that hold records: header, sorted index, 4 KiB-aligned records.
 *
 * Written sparse at final size with every record at its final place, so that conversion can fill
 * records in any order and resume; the index's hashes and the header's checksum are written by
 * md_pack_finish, and a pack without them is not opened by readers.
 *
 * Threads: md_pack_write from any (distinct ranges); the rest from one. */
#ifndef MODEL_CONTAINER_PACK_H
#define MODEL_CONTAINER_PACK_H

#include "model/container/record.h"

typedef struct {
    md_key key;
    uint64_t bytes;
    uint64_t offset; /* out: place in the pack */
    md_hash128 hash; /* set before finish (writer); filled (reader) */
} md_pack_entry;

/* Sorts entries by key and assigns offsets; returns the file's final size. */
uint64_t md_pack_layout(md_pack_entry *entries, uint64_t count);

typedef struct md_pack_writer md_pack_writer;

/* Creates the file sparse at final size, or reopens one left by an interrupted conversion: one of
 * another size gets this one, and its header is taken away. entries [count] laid out; borrowed until
 * free.
 *   Errors  RT_EIO, RT_ENOSPACE name the path */
RT_MUST_CHECK rt_status md_pack_create(const char *path, md_pack_entry *entries, uint64_t count,
                                       md_pack_writer **out, rt_err *err);
/* Opens what an interrupted conversion left to be read by md_pack_hash, whatever its size; changes
 * nothing, and nothing may be written. *out is NULL when there is no such file. RT_EIO, RT_ENOMEM. */
RT_MUST_CHECK rt_status md_pack_look(const char *path, md_pack_entry *entries, uint64_t count,
                                     md_pack_writer **out, rt_err *err);
RT_MUST_CHECK rt_status md_pack_write(md_pack_writer *pack, const md_pack_entry *entry,
                                      uint64_t offset_in_record, const void *data, size_t bytes,
                                      rt_err *err);
/* Re-reads a record from disk (page cache dropped first) and returns its hash. */
RT_MUST_CHECK rt_status md_pack_hash(md_pack_writer *pack, const md_pack_entry *entry,
                                     md_hash128 *out, rt_err *err);
RT_MUST_CHECK rt_status md_pack_sync(md_pack_writer *pack, rt_err *err); /* fdatasync */
RT_MUST_CHECK rt_status md_pack_finish(md_pack_writer *pack,
                                       rt_err *err); /* index, header, fsync */
void md_pack_writer_free(md_pack_writer *pack);      /* closes; NULL allowed */

typedef struct md_pack md_pack;

/* Opens a finished pack and checks header, index order, bounds and checksums. RT_EFORMAT, RT_EIO. */
RT_MUST_CHECK rt_status md_pack_open(const char *path, md_pack **out, rt_err *err);
void md_pack_close(md_pack *pack);
uint64_t md_pack_count(const md_pack *pack);
const md_pack_entry *md_pack_entries(const md_pack *pack); /* sorted */
int md_pack_fd(const md_pack *pack);
int md_pack_fd_direct(const md_pack *pack); /* -1 when O_DIRECT is refused */
const char *md_pack_path(const md_pack *pack);

#endif
