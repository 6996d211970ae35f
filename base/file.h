/* file.h - whole-file helpers with errors that name the path. EINTR and short transfers are
 * retried.
 *
 * Threads: any. */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/* Reads a whole regular file of at most limit_bytes into malloc'd memory with a 0 after the end.
 *   Errors  RT_EIO      cannot be opened or read
 *           RT_EFORMAT  larger than limit_bytes, or not a regular file */
RT_MUST_CHECK rt_status rt_file_read(const char *path, size_t limit_bytes, char **out,
                                     size_t *out_bytes, rt_err *err);

/* Durable replacement: writes path.tmp, fsyncs, renames, fsyncs the folder. RT_ENOSPACE or RT_EIO;
 * the old file is whole in either case. */
RT_MUST_CHECK rt_status rt_file_replace(const char *path, const void *data, size_t bytes,
                                        rt_err *err);

/* Exactly `bytes` at offset, or an error naming `name` (for the text only). RT_EIO on a short file;
 * RT_ENOSPACE on ENOSPC/EDQUOT. */
RT_MUST_CHECK rt_status rt_pread_full(int fd, void *data, size_t bytes, uint64_t offset,
                                      const char *name, rt_err *err);
RT_MUST_CHECK rt_status rt_pwrite_full(int fd, const void *data, size_t bytes, uint64_t offset,
                                       const char *name, rt_err *err);
RT_MUST_CHECK rt_status rt_dir_sync(const char *dir, rt_err *err);

/* dir + "/" + name as malloc'd text, NULL when memory is short. */
char *rt_path_join(const char *dir, const char *name);

/* The folder that path lies in, as malloc'd text: "." for a bare name, and a slash at the end counts for
 * nothing. NULL when memory is short. */
char *rt_path_parent(const char *path);

#endif
