/* temp_dir.c - folders for tests; every failure ends the test at once. */
#include "tests/support/temp_dir.h"

#include "base/check.h"
#include "base/file.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { READ_MAX = 16 << 20 };

char *temp_dir_make(void)
{
    const char *parent = getenv("TMPDIR");
    char *path = NULL;

    if (parent == NULL || parent[0] == '\0') parent = P_tmpdir;
    RT_ASSERT(asprintf(&path, "%s/moesaic-test-XXXXXX", parent) > 0);
    RT_ASSERT(mkdtemp(path) != NULL);
    return path;
}

static int remove_entry(const char *path, const struct stat *info, int flag, struct FTW *walk)
{
    (void)info;
    (void)flag;
    (void)walk;
    return remove(path);
}

void temp_dir_remove(char *path)
{
    if (path == NULL) return;
    RT_ASSERT(nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT) == 0);
    free(path);
}

char *temp_dir_write(const char *dir, const char *name, const void *data, size_t bytes)
{
    char *path = NULL;
    FILE *file;

    RT_ASSERT(asprintf(&path, "%s/%s", dir, name) > 0);
    for (char *slash = strchr(path + strlen(dir) + 1, '/'); slash != NULL;
         slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        RT_ASSERT(mkdir(path, 0755) == 0 || errno == EEXIST);
        *slash = '/';
    }
    file = fopen(path, "wb");
    RT_ASSERT(file != NULL);
    RT_ASSERT(bytes == 0 || fwrite(data, 1, bytes, file) == bytes);
    RT_ASSERT(fclose(file) == 0);
    return path;
}

void temp_dir_put(const char *dir, const char *name, const void *data, size_t bytes)
{
    free(temp_dir_write(dir, name, data, bytes));
}

void temp_dir_path(const char *dir, const char *name, char path[TEMP_DIR_PATH_BYTES])
{
    int length = snprintf(path, TEMP_DIR_PATH_BYTES, "%s/%s", dir, name);

    RT_ASSERT(length > 0 && length < TEMP_DIR_PATH_BYTES);
}

char *temp_dir_read(const char *dir, const char *name, size_t *bytes)
{
    char path[TEMP_DIR_PATH_BYTES], *data = NULL;
    rt_status status;

    temp_dir_path(dir, name, path);
    status = rt_file_read(path, READ_MAX, &data, bytes, NULL);
    RT_ASSERT(status == RT_OK);
    return data;
}

void temp_dir_copy(const char *dir, const char *name, const char *to_dir, const char *to_name)
{
    size_t bytes = 0;
    char *data = temp_dir_read(dir, name, &bytes);

    temp_dir_put(to_dir, to_name, data, bytes);
    free(data);
}

void temp_dir_drop(const char *dir, const char *name)
{
    char path[TEMP_DIR_PATH_BYTES];

    temp_dir_path(dir, name, path);
    RT_ASSERT(unlink(path) == 0);
}
