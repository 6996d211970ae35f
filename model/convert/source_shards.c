/* source_shards.c - the files of a checkpoint: which there are, what they are known by, that they stay
 * what they were, and deleting them. Their tensors are in source.c. */
#include "model/convert/source_internal.h"

#include "base/check.h"
#include "base/file.h"
#include "base/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum {
    INDEX_BYTES_MAX = 256 << 20, /* the release's index is 12 MB */
    FINGERPRINT_BYTES = 64 << 10,
    FINGERPRINT_PIECES = 16, /* 1 MiB of a shard; for 282 shards some 4,500 seeks */
};

static const char index_name[] = "model.safetensors.index.json";

enum {
    SHARD_NAME_MAX =
        sizeof(((md_source_shard *)0)->name) - sizeof(MD_SOURCE_OTHER_PREFIX) - 1 /* bytes */
};

/* What a directory is searched for. */
static bool is_shard_name(const char *name)
{
    size_t length = strlen(name);
    static const char suffix[] = ".safetensors";

    return length > sizeof(suffix) - 1 && name[0] != '.' &&
           strcmp(name + length - (sizeof(suffix) - 1), suffix) == 0;
}

/* A shard's name comes from a file and is deleted with --consume: a plain name or nothing. */
static bool shard_name_is_plain(const char *name)
{
    return is_shard_name(name) && strlen(name) <= SHARD_NAME_MAX && strchr(name, '/') == NULL;
}

static bool name_is_other(const char *name)
{
    return strncmp(name, MD_SOURCE_OTHER_PREFIX, sizeof(MD_SOURCE_OTHER_PREFIX) - 1) == 0;
}

/* Where a shard of this name lies; malloc'd. */
static char *shard_path(const md_source *source, const char *name)
{
    if (!name_is_other(name)) return rt_path_join(source->dir, name);
    return rt_path_join(source->other_dir, name + sizeof(MD_SOURCE_OTHER_PREFIX) - 1);
}

/* The directory that the index file and shards in the release's layout are of. */
const char *md_source_release_dir(const md_source *source)
{
    return source->foreign ? source->other_dir : source->dir;
}

uint32_t md_source_find_shard(const md_source *source, const char *name)
{
    for (uint32_t i = 0; i < source->shard_count; i++)
        if (strcmp(source->shards[i].info.name, name) == 0) return i;
    return MD_SOURCE_NONE;
}

/* file: the name in its directory. */
static rt_status add_shard(md_source *source, const char *file, bool other, rt_err *err)
{
    char name[sizeof(((md_source_shard *)0)->name)];

    if (!shard_name_is_plain(file))
        return rt_fail(err, RT_EFORMAT,
                       "%s: \"%.100s\" is not a plain *.safetensors file name of at most %d bytes",
                       other ? source->other_dir : source->dir, file, (int)SHARD_NAME_MAX);
    snprintf(name, sizeof(name), "%s%s", other ? MD_SOURCE_OTHER_PREFIX : "", file);
    if (md_source_find_shard(source, name) != MD_SOURCE_NONE) return RT_OK;
    if (source->shard_count == MD_SOURCE_SHARDS_MAX)
        return rt_fail(err, RT_EFORMAT, "%s: more than %d shards", source->dir,
                       MD_SOURCE_SHARDS_MAX);
    source->shards[source->shard_count].other = other;
    memcpy(source->shards[source->shard_count].info.name, name, sizeof(name));
    source->shard_count++;
    return RT_OK;
}

static rt_status list_index(md_source *source, rt_err *err)
{
    const char *name;
    json_t *file;

    json_object_foreach(json_object_get(source->index, "weight_map"), name, file)
    {
        if (!json_is_string(file))
            return rt_fail(err, RT_EFORMAT, "%s/%s: weight_map: %.200s: expected a file name",
                           md_source_release_dir(source), index_name, name);
        RT_TRY(add_shard(source, json_string_value(file), source->foreign, err));
    }
    return RT_OK;
}

/* begins: of the files that count, "" for all. */
static rt_status list_directory(md_source *source, bool other, const char *begins, rt_err *err)
{
    const char *path = other ? source->other_dir : source->dir;
    struct dirent *entry;
    rt_status status = RT_OK;
    DIR *dir = opendir(path);

    if (dir == NULL) return rt_fail(err, RT_EIO, "open %s: %s", path, strerror(errno));
    while (status == RT_OK && (entry = readdir(dir)) != NULL) {
        if (strncmp(entry->d_name, begins, strlen(begins)) != 0 || !is_shard_name(entry->d_name))
            continue;
        status = add_shard(source, entry->d_name, other, err);
    }
    closedir(dir);
    return status;
}

static const md_source_shard *find_known(const md_source_shard *known, uint32_t count,
                                         const char *name)
{
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(known[i].name, name) == 0) return &known[i];
    return NULL;
}

/* A resumed conversion reads what it began with: a shard of another name may be of another model, whose
 * tensors would fill in for those that are still to do. In a second directory without an index only more
 * of a download may have arrived, of which nothing is needed. */
static rt_status refuse_unknown(md_source *source, const md_source_shard *known,
                                uint32_t known_count, rt_err *err)
{
    uint32_t kept = 0;

    if (known_count == 0) return RT_OK;
    for (uint32_t i = 0; i < source->shard_count; i++) {
        const source_shard *shard = &source->shards[i];

        if (find_known(known, known_count, shard->info.name) != NULL)
            source->shards[kept++] = *shard;
        else if (!shard->other || source->index != NULL)
            return rt_fail(err, RT_EINVAL,
                           "%s: %s is not one of the files that this conversion began with",
                           shard->other ? source->other_dir : source->dir, shard->info.name);
    }
    source->shard_count = kept;
    return RT_OK;
}

static int compare_shard(const void *a, const void *b)
{
    return strcmp(((const source_shard *)a)->info.name, ((const source_shard *)b)->info.name);
}

static rt_status read_index(md_source *source, rt_err *err)
{
    json_error_t error;
    char *path = rt_path_join(md_source_release_dir(source), index_name), *text = NULL;
    size_t bytes = 0;
    rt_status status = RT_OK;

    if (path == NULL) return rt_fail(err, RT_ENOMEM, "%s", source->dir);
    if (access(path, F_OK) != 0) goto done; /* optional */
    status = rt_file_read(path, INDEX_BYTES_MAX, &text, &bytes, err);
    if (status != RT_OK) goto done;
    source->index = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (source->index == NULL)
        status = rt_fail(err, RT_EFORMAT, "%s: line %d: %s", path, error.line, error.text);
    else if (!json_is_object(json_object_get(source->index, "weight_map")))
        status = rt_fail(err, RT_EFORMAT, "%s: expected an object \"weight_map\"", path);
done:
    free(text);
    free(path);
    return status;
}

rt_status md_source_list_shards(md_source *source, const md_source_shard *known,
                                uint32_t known_count, rt_err *err)
{
    if (source->foreign) RT_TRY(list_directory(source, false, "", err));
    if (source->foreign && source->shard_count == 0 && known_count == 0)
        return rt_fail(err, RT_EFORMAT, "%s: no *.safetensors in it", source->dir);
    if (md_source_release_dir(source) != NULL) {
        RT_TRY(read_index(source, err));
        RT_TRY(source->index != NULL ? list_index(source, err)
                                     : list_directory(source, source->foreign, "model", err));
    }
    RT_TRY(refuse_unknown(source, known, known_count, err));
    for (uint32_t i = 0; i < known_count; i++) {
        bool other = name_is_other(known[i].name);

        if (other && source->other_dir == NULL)
            return rt_fail(err, RT_EINVAL,
                           "%s: the import began with a second directory (--indexer-from): give it "
                           "again",
                           source->dir);
        RT_TRY(add_shard(source, known[i].name + (other ? sizeof(MD_SOURCE_OTHER_PREFIX) - 1 : 0),
                         other, err));
    }
    if (source->shard_count == 0)
        return rt_fail(err, RT_EFORMAT,
                       "%s: no model*.safetensors in it (moesaic status says what it is)",
                       source->dir);
    qsort(source->shards, source->shard_count, sizeof(source->shards[0]), compare_shard);
    return RT_OK;
}

/* Pieces from end to end: another file of the same size, as a second training run or quantisation has,
 * differs in all of them. Reading all of it would cost what the conversion itself reads. */
static rt_status fingerprint(int fd, const char *path, uint64_t bytes, uint64_t *out, rt_err *err)
{
    size_t part = bytes < FINGERPRINT_BYTES ? (size_t)bytes : FINGERPRINT_BYTES;
    char *data = malloc(FINGERPRINT_PIECES * part + sizeof(bytes));
    rt_status status = RT_OK;

    if (data == NULL) return rt_fail(err, RT_ENOMEM, "%s", path);
    for (size_t i = 0; status == RT_OK && i < FINGERPRINT_PIECES; i++)
        status = rt_pread_full(
            fd, data + i * part, part,
            (bytes - part) / (FINGERPRINT_PIECES - 1) * i +
                (i == FINGERPRINT_PIECES - 1 ? (bytes - part) % (FINGERPRINT_PIECES - 1) : 0),
            path, err);
    if (status == RT_OK) {
        memcpy(data + FINGERPRINT_PIECES * part, &bytes, sizeof(bytes));
        *out = XXH3_64bits(data, FINGERPRINT_PIECES * part + sizeof(bytes));
    }
    free(data);
    return status;
}

static rt_status measure_shard(const char *path, source_shard *shard, rt_err *err)
{
    struct stat info;
    rt_status status;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0) return rt_fail(err, RT_EIO, "open %s: %s", path, strerror(errno));
    if (fstat(fd, &info) != 0)
        status = rt_fail(err, RT_EIO, "stat %s: %s", path, strerror(errno));
    else if (!S_ISREG(info.st_mode))
        status = rt_fail(err, RT_EFORMAT, "%s: expected a regular file", path);
    else {
        shard->info.bytes = (uint64_t)info.st_size;
        shard->measured = info;
        status = fingerprint(fd, path, shard->info.bytes, &shard->info.fingerprint, err);
    }
    close(fd);
    shard->is_link = lstat(path, &info) == 0 && S_ISLNK(info.st_mode);
    return status;
}

/* Without the inode, which some network filesystems number anew at each open. */
static bool same_moment(const struct stat *a, const struct stat *b)
{
    return a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
           a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/* Whether what was read of a shard is what was measured. One that was only touched has its fingerprint
 * still, which proves little: that is said. */
static rt_status check_unchanged(const source_shard *shard, rt_err *err)
{
    const char *path = md_st_path(shard->file);
    struct stat now;
    uint64_t found = 0;

    if (fstat(md_st_fd(shard->file), &now) != 0)
        return rt_fail(err, RT_EIO, "stat %s: %s", path, strerror(errno));
    if (same_moment(&now, &shard->measured)) return RT_OK;
    if ((uint64_t)now.st_size == shard->info.bytes) {
        RT_TRY(fingerprint(md_st_fd(shard->file), path, shard->info.bytes, &found, err));
        if (found == shard->info.fingerprint) {
            rt_log_warn("convert",
                        "%s was written to or touched meanwhile, and seems to be the same: compare "
                        "the container with it (--verify-only)",
                        path);
            return RT_OK;
        }
    }
    return rt_fail(
        err, RT_EINVAL,
        "%s changed while it was read: what was made of it is of neither state. Begin again "
        "in another TARGET",
        path);
}

rt_status md_source_check_unchanged(const md_source *source, rt_err *err)
{
    for (uint32_t i = 0; i < source->shard_count; i++)
        if (md_source_shard_present(source, i)) RT_TRY(check_unchanged(&source->shards[i], err));
    return RT_OK;
}

rt_status md_source_open_shard(md_source *source, source_shard *shard, const md_source_shard *known,
                               uint32_t known_count, rt_err *err)
{
    const md_source_shard *before = find_known(known, known_count, shard->info.name);
    char *path = shard_path(source, shard->info.name);
    rt_status status = RT_OK;

    if (path == NULL) return rt_fail(err, RT_ENOMEM, "%s", shard->info.name);
    /* Of a second directory only what is needed has to be there; without bytes none was known. */
    if (before != NULL && before->bytes == 0 && shard->other) before = NULL;
    if (access(path, F_OK) != 0 && errno == ENOENT) {
        if (before == NULL && shard->other) goto done;
        if (before == NULL)
            status = rt_fail(err, RT_EFORMAT,
                             source->index != NULL ? "%s: the index names %s, which is not there"
                                                   : "%s: %s leads nowhere: a broken link",
                             source->dir, shard->info.name);
        else if (source->foreign && !shard->other)
            status = rt_fail(err, RT_EINVAL,
                             "%s: %s is no longer there, which this import began with: put it back",
                             source->dir, shard->info.name);
        else
            shard->info = *before;
        goto done;
    }
    status = measure_shard(path, shard, err);
    if (status != RT_OK) goto done;
    if (before != NULL &&
        (before->bytes != shard->info.bytes || before->fingerprint != shard->info.fingerprint)) {
        status = rt_fail(
            err, RT_EINVAL,
            "%s is not the file that this conversion began with (size or bytes differ)", path);
        goto done;
    }
    status = md_st_open(path, &shard->file, err);
    if (status == RT_OK) status = check_unchanged(shard, err);
    if (status == RT_OK && source->foreign && !shard->other)
        status = md_source_take_stamps(source, shard->file, err);
    if (status == RT_OK && !shard->other) source->bytes += shard->info.bytes;
done:
    free(path);
    return status;
}

/* ---- deleting ---- */

rt_status md_source_check_deletable(const md_source *source, rt_err *err)
{
    for (uint32_t i = 0; i < source->shard_count; i++)
        if (source->shards[i].is_link)
            return rt_fail(err, RT_EINVAL,
                           "--consume: %s/%s is a symbolic link; deleting it would free nothing",
                           source->dir, source->shards[i].info.name);
    return RT_OK;
}

rt_status md_source_drop(md_source *source, uint32_t shard, rt_err *err)
{
    source_shard *item;
    char *path;
    rt_status status = RT_OK;

    RT_ASSERT(md_source_shard_present(source, shard));
    item = &source->shards[shard];
    RT_TRY(check_unchanged(item, err));
    path = shard_path(source, item->info.name);
    if (path == NULL) return rt_fail(err, RT_ENOMEM, "%s", item->info.name);
    if (unlink(path) != 0) status = rt_fail(err, RT_EIO, "delete %s: %s", path, strerror(errno));
    free(path);
    if (status != RT_OK) return status;
    item->dropped = true;
    md_st_release(item->file);
    return RT_OK;
}
