/* heat_file.c - read, merge, replace, under a lock. */
#include "app/heat_file.h"

#include "base/file.h"
#include "placement/heat_image.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

enum {
    LOCK_TRIES = 250, /* together 5 s: a merge takes milliseconds, but disks can be slow */
    LOCK_PAUSE_NS = 20000000,
    USAGE_BYTES_MAX = 64 << 20,
};

rt_status app_heat_create(const md_container *container, pl_heat **out, rt_err *err)
{
    const md_config *config = md_container_config(container);
    pl_heat_spec spec = {.layers = md_config_layers_total(config),
                         .sparse = config->sparse,
                         .experts = config->experts};

    return pl_heat_create(&spec, out, err);
}

rt_status app_heat_path(const md_container *container, const char *option, char **out, rt_err *err)
{
    char *path = NULL;

    if (option == NULL || strcmp(option, "none") != 0) {
        path =
            option == NULL ? rt_path_join(md_container_dir(container), "heat.bin") : strdup(option);
        if (path == NULL) return rt_fail(err, RT_ENOMEM, "the name of the heat file");
    }
    *out = path;
    return RT_OK;
}

static rt_status advise_reset(const char *path, const md_container *container, rt_status status,
                              rt_err *err)
{
    char *usual = rt_path_join(md_container_dir(container), "heat.bin");
    bool elsewhere = usual != NULL && strcmp(usual, path) != 0;

    free(usual);
    /* Not to advise removing what may be anything. */
    if (elsewhere) return rt_fail(err, status, "%s (give another file to --heat)", err->text);
    return rt_fail(err, status, "%s (`moesaic heat reset %s` starts anew)", err->text,
                   md_container_dir(container));
}

/* Adds what the file says to heat. */
static rt_status add_file(const char *path, const md_container *container, pl_heat *heat,
                          bool *found, rt_err *err)
{
    const uint8_t *id = md_container_get_info(container)->model_id;
    char *image = NULL;
    size_t bytes = 0;
    rt_status status;

    *found = access(path, F_OK) == 0 || errno != ENOENT;
    if (!*found) return RT_OK;
    RT_TRY(rt_file_read(path, PL_HEAT_IMAGE_BYTES_MAX, &image, &bytes, err));
    status = pl_heat_image_read(image, bytes, id, path, heat, err);
    if (status != RT_OK && status != RT_ENOMEM && err != NULL)
        (void)advise_reset(path, container, status, err);
    free(image);
    return status;
}

rt_status app_heat_load(const char *path, const md_container *container, pl_heat **out, bool *found,
                        rt_err *err)
{
    pl_heat *heat = NULL;
    bool is_there = false;
    rt_status status;

    RT_TRY(app_heat_create(container, &heat, err));
    status = add_file(path, container, heat, &is_there, err);
    if (status != RT_OK) {
        pl_heat_free(heat);
        return status;
    }
    *out = heat;
    *found = is_there;
    return RT_OK;
}

/* The lock's file stays: removing it would let two processes hold locks on two files of that name. */
static rt_status lock(const char *path, int *out, rt_err *err)
{
    const struct timespec pause = {.tv_nsec = LOCK_PAUSE_NS};
    char name[4096];
    int fd, length = snprintf(name, sizeof(name), "%s.lock", path);

    if (length < 0 || (size_t)length >= sizeof(name))
        return rt_fail(err, RT_EINVAL, "%.64s...: the name is too long", path);
    fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0) return rt_fail(err, RT_EIO, "create %s: %s", name, strerror(errno));
    for (int i = 0; flock(fd, LOCK_EX | LOCK_NB) != 0; i++) {
        int error = errno;

        if ((error == EWOULDBLOCK || error == EINTR) && i < LOCK_TRIES) {
            (void)nanosleep(&pause, NULL);
            continue;
        }
        close(fd);
        if (error == EWOULDBLOCK)
            return rt_fail(err, RT_EBUSY, "%s: another process holds the lock", name);
        return rt_fail(err, RT_EIO, "lock %s: %s", name, strerror(error));
    }
    *out = fd;
    return RT_OK;
}

static rt_status replace(const char *path, const md_container *container, const pl_heat *heat,
                         rt_err *err)
{
    unsigned char *image;
    size_t bytes;
    rt_status status;

    RT_TRY(
        pl_heat_image_write(heat, md_container_get_info(container)->model_id, &image, &bytes, err));
    status = rt_file_replace(path, image, bytes, err);
    free(image);
    return status;
}

typedef void (*merge_fn)(pl_heat *into, const pl_heat *from);

static rt_status update(const char *path, const md_container *container, const pl_heat *more,
                        merge_fn merge, rt_err *err)
{
    pl_heat *heat = NULL;
    rt_status status;
    bool found;
    int fd;

    RT_TRY(lock(path, &fd, err));
    status = app_heat_load(path, container, &heat, &found, err);
    if (status == RT_OK) {
        merge(heat, more);
        status = replace(path, container, heat, err);
    }
    pl_heat_free(heat);
    close(fd);
    return status;
}

bool app_heat_is_writable(const char *path)
{
    char *dir = rt_path_parent(path);
    bool writable = dir != NULL && faccessat(AT_FDCWD, dir, W_OK | X_OK, AT_EACCESS) == 0;

    free(dir);
    return writable;
}

rt_status app_heat_append(const char *path, const md_container *container, const pl_heat *run,
                          rt_err *err)
{
    return update(path, container, run, pl_heat_append, err);
}

/* Brings imported counts down to what a heat can hold, and says how many tokens they stand for: as many
 * as its busiest layer has seen. */
static double weigh(pl_heat *heat, uint32_t topk)
{
    double limit = pl_heat_layer_limit(heat, topk), most = 0, scale = 1;

    for (uint32_t layer = 0; layer < pl_heat_layers(heat); layer++) {
        double total = pl_heat_layer_total(heat, layer);

        if (total > most) most = total;
    }
    if (most > limit) scale = limit / most;
    pl_heat_scale(heat, scale);
    pl_heat_set_tokens(heat, most * scale / topk);
    return scale;
}

rt_status app_heat_import(const char *path, const md_container *container, const char *usage_path,
                          pl_heat_usage *usage, double *scale, rt_err *err)
{
    const md_config *config = md_container_config(container);
    pl_heat_usage read_usage = {0};
    pl_heat *heat = NULL;
    char *text = NULL;
    size_t bytes = 0;
    double weight = 1;
    rt_status status = app_heat_create(container, &heat, err);

    if (status == RT_OK) status = rt_file_read(usage_path, USAGE_BYTES_MAX, &text, &bytes, err);
    if (status == RT_OK)
        status =
            pl_heat_usage_read(text, bytes, config->layers, usage_path, heat, &read_usage, err);
    if (status == RT_OK) {
        weight = weigh(heat, config->topk);
        status = update(path, container, heat, pl_heat_merge, err);
    }
    if (status == RT_OK) {
        *usage = read_usage;
        *scale = weight;
    }
    free(text);
    pl_heat_free(heat);
    return status;
}

rt_status app_heat_reset(const char *path, bool *existed, rt_err *err)
{
    rt_status status = RT_OK;
    bool was_there;
    int fd;

    if (access(path, F_OK) != 0 && errno == ENOENT) {
        *existed = false;
        return RT_OK;
    }
    RT_TRY(lock(path, &fd, err));
    was_there = unlink(path) == 0;
    if (!was_there && errno != ENOENT)
        status = rt_fail(err, RT_EIO, "remove %s: %s", path, strerror(errno));
    if (status == RT_OK) *existed = was_there;
    close(fd);
    return status;
}
