/* directories.h - whether SOURCE and TARGET are what a conversion may read and write, before any of it
 * is. A wrong name must cost a message, never somebody's files.
 *
 * Threads: any. */
#ifndef MODEL_CONVERT_DIRECTORIES_H
#define MODEL_CONVERT_DIRECTORIES_H

#include "base/status.h"

#include <stdint.h>

/* Both names, whatever the target holds.
 *   Errors  RT_EIO     the source is not there, or one cannot be looked at
 *           RT_EINVAL  one is no directory; both are the same one, by whatever path; the source is a
 *                      container or an unfinished conversion */
RT_MUST_CHECK rt_status md_directories_check(const char *source, const char *target, rt_err *err);

/* Whether files can be made in dir, or dir itself in its parent. RT_EIO names the folder that is missing
 * or cannot be written to. */
RT_MUST_CHECK rt_status md_directory_check_writable(const char *dir, rt_err *err);

/* A directory in which a new conversion is to begin: not there yet, or empty but for what creating a
 * filesystem or a conversion that died in its first moments leaves. RT_EINVAL names what was found. */
RT_MUST_CHECK rt_status md_directory_check_new(const char *dir, rt_err *err);

/* The model*.safetensors files of dir; zeros when it cannot be read. */
void md_directory_count_shards(const char *dir, uint64_t *files, uint64_t *bytes);

#endif
