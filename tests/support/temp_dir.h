/* temp_dir.h - a folder of its own for a test that needs files, removed with all it holds.
 *
 * Threads: one test. */
#ifndef TESTS_SUPPORT_TEMP_DIR_H
#define TESTS_SUPPORT_TEMP_DIR_H

#include <stddef.h>

/* Makes a new empty folder under TMPDIR or the system's; malloc'd path. Asserts success. */
char *temp_dir_make(void);

/* Removes the folder and everything in it, then frees the path. NULL allowed. */
void temp_dir_remove(char *path);

/* Writes dir/name (folders on the way are made); asserts success. Returns the malloc'd path. */
char *temp_dir_write(const char *dir, const char *name, const void *data, size_t bytes);

/* The same for a test that needs no path. */
void temp_dir_put(const char *dir, const char *name, const void *data, size_t bytes);

enum { TEMP_DIR_PATH_BYTES = 512 };

/* path = dir/name; asserts that it fits. */
void temp_dir_path(const char *dir, const char *name, char path[TEMP_DIR_PATH_BYTES]);

/* Reads dir/name, of at most 16 MiB, into malloc'd memory, '\0' behind it; asserts success. */
char *temp_dir_read(const char *dir, const char *name, size_t *bytes);

/* Copies dir/name to to_dir/to_name, of at most 16 MiB; asserts success. */
void temp_dir_copy(const char *dir, const char *name, const char *to_dir, const char *to_name);

/* Deletes the file dir/name; asserts that it was there. */
void temp_dir_drop(const char *dir, const char *name);

#endif
