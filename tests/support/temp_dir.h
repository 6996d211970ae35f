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

#endif
