/* directories.c - looking at SOURCE and TARGET before anything is read or written. */
#include "model/convert/directories.h"

#include "base/file.h"
#include "model/container/container.h"
#include "model/container/description.h"
#include "model/convert/ledger.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool has_file(const char *dir, const char *name)
{
    char *path = rt_path_join(dir, name);
    bool there = path != NULL && access(path, F_OK) == 0;

    free(path);
    return there;
}

static bool is_shard(const char *name)
{
    static const char suffix[] = ".safetensors";
    size_t length = strlen(name);

    return length > sizeof(suffix) - 1 && strcmp(name + length - (sizeof(suffix) - 1), suffix) == 0;
}

/* ---- both names ---- */

static rt_status check_source(const char *source, struct stat *info, rt_err *err)
{
    if (stat(source, info) != 0) return rt_fail(err, RT_EIO, "%s: %s", source, strerror(errno));
    if (!S_ISDIR(info->st_mode)) return rt_fail(err, RT_EINVAL, "%s: expected a directory", source);
    return RT_OK;
}

/* A container has a config.json as well, and "no shard in it" would not say what is wrong. */
static rt_status check_source_is_checkpoint(const char *source, rt_err *err)
{
    if (has_file(source, MD_DESCRIPTION_NAME))
        return rt_fail(err, RT_EINVAL,
                       "SOURCE %s is a container already (it has " MD_DESCRIPTION_NAME
                       "): it needs no conversion; other formats are converted from the "
                       "checkpoint (config.json, tokenizer.json, *.safetensors)",
                       source);
    if (has_file(source, MD_LEDGER_NAME))
        return rt_fail(err, RT_EINVAL,
                       "SOURCE %s is an unfinished conversion (it has " MD_LEDGER_NAME
                       "): give the checkpoint as SOURCE and this as TARGET to finish it",
                       source);
    return RT_OK;
}

rt_status md_directories_check(const char *source, const char *target, rt_err *err)
{
    struct stat from, to;

    if (source[0] == '\0' || target[0] == '\0')
        return rt_fail(err, RT_EINVAL, "%s: expected the name of a directory, found \"\"",
                       source[0] == '\0' ? "SOURCE" : "TARGET");
    RT_TRY(check_source(source, &from, err));
    if (stat(target, &to) != 0) {
        if (errno != ENOENT) return rt_fail(err, RT_EIO, "%s: %s", target, strerror(errno));
        if (lstat(target, &to) == 0)
            return rt_fail(err, RT_EINVAL,
                           "%s is a symbolic link to what is not there: choose another TARGET",
                           target);
        return check_source_is_checkpoint(source, err);
    }
    if (!S_ISDIR(to.st_mode)) return rt_fail(err, RT_EINVAL, "%s: expected a directory", target);
    if (from.st_dev == to.st_dev && from.st_ino == to.st_ino)
        return rt_fail(err, RT_EINVAL,
                       "SOURCE and TARGET are the same directory, %s: choose another TARGET",
                       source);
    return check_source_is_checkpoint(source, err);
}

/* ---- the target ---- */

static rt_status check_access(const char *dir, rt_err *err)
{
    if (access(dir, W_OK | X_OK) == 0) return RT_OK;
    return rt_fail(err, RT_EIO, "%s: nothing can be written there: %s", dir, strerror(errno));
}

rt_status md_directory_check_writable(const char *dir, rt_err *err)
{
    struct stat info;
    char *parent;
    rt_status status;

    if (stat(dir, &info) == 0) return check_access(dir, err);
    parent = rt_path_parent(dir);
    if (parent == NULL) return rt_fail(err, RT_ENOMEM, "%s", dir);
    if (stat(parent, &info) != 0)
        status = errno == ENOENT
                     ? rt_fail(err, RT_EIO,
                               "TARGET %s: the folder %s does not exist: create it "
                               "first",
                               dir, parent)
                     : rt_fail(err, RT_EIO, "TARGET %s: %s: %s", dir, parent, strerror(errno));
    else if (!S_ISDIR(info.st_mode))
        status = rt_fail(err, RT_EIO, "TARGET %s: %s is not a folder", dir, parent);
    else
        status = check_access(parent, err);
    free(parent);
    return status;
}

static bool may_lie_in_new(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0 ||
           strcmp(name, "lost+found") == 0 || /* of a filesystem's root */
           strcmp(name, MD_LEDGER_NAME) == 0; /* torn: the caller has looked at it */
}

/* The most telling of what was found comes first. */
static int tells(const char *name)
{
    if (strcmp(name, "config.json") == 0) return 4;
    if (is_shard(name)) return 3;
    if (strcmp(name, "dense.bin") == 0 || strcmp(name, "manifest.bin") == 0) return 2;
    return strncmp(name, "experts-", 8) == 0 ? 2 : 1;
}

rt_status md_directory_check_new(const char *dir, rt_err *err)
{
    char found[2][256] = {"", ""};
    struct dirent *entry;
    uint64_t count = 0;
    DIR *stream = opendir(dir);

    if (stream == NULL)
        return errno == ENOENT ? RT_OK : rt_fail(err, RT_EIO, "open %s: %s", dir, strerror(errno));
    while ((entry = readdir(stream)) != NULL) {
        const char *name = entry->d_name;

        if (may_lie_in_new(name)) continue;
        count++;
        if (found[0][0] == '\0' || tells(name) > tells(found[0])) {
            memcpy(found[1], found[0], sizeof(found[1]));
            snprintf(found[0], sizeof(found[0]), "%s", name);
        } else if (found[1][0] == '\0' || tells(name) > tells(found[1])) {
            snprintf(found[1], sizeof(found[1]), "%s", name);
        }
    }
    closedir(stream);
    if (count == 0) return RT_OK;
    return rt_fail(err, RT_EINVAL,
                   "TARGET %s is not empty (%.60s%s%.60s%s), and neither a container nor an "
                   "interrupted conversion: choose another TARGET",
                   dir, found[0], count > 1 ? ", " : "", found[1], count > 2 ? ", ..." : "");
}

void md_directory_count_shards(const char *dir, uint64_t *files, uint64_t *bytes)
{
    struct dirent *entry;
    DIR *stream = opendir(dir);

    *files = 0;
    *bytes = 0;
    if (stream == NULL) return;
    while ((entry = readdir(stream)) != NULL) {
        struct stat info;

        if (strncmp(entry->d_name, "model", 5) != 0 || !is_shard(entry->d_name) ||
            fstatat(dirfd(stream), entry->d_name, &info, 0) != 0)
            continue;
        *files += 1;
        *bytes += (uint64_t)info.st_size;
    }
    closedir(stream);
}
