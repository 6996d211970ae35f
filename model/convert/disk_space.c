/* disk_space.c - needed and free. */
#include "model/convert/disk_space.h"

#include "base/check.h"
#include "model/convert/engine.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

typedef struct {
    const md_source *source;
    uint64_t *needs; /* per shard */
    int64_t step;
    uint64_t freed;
} shards;

static void change_need(void *context, uint32_t tensor)
{
    shards *s = context;
    uint32_t shard = md_source_tensor_shard(s->source, tensor);

    s->needs[shard] = (uint64_t)((int64_t)s->needs[shard] + s->step);
    if (s->step < 0 && s->needs[shard] == 0 && md_source_shard_present(s->source, shard))
        s->freed += md_source_shard_at(s->source, shard)->bytes;
}

/* As the engine goes: shards are given up a group at a time, and one group may be written while
 * another is being committed. */
rt_status md_disk_peak(const md_plan *plan, const md_source *source, bool consume, uint64_t *out,
                       rt_err *err)
{
    uint64_t total = md_target_file_bytes(plan, false) + MD_DISK_RESERVE_BYTES;
    uint64_t written = 0, peak = 0, group_bytes = 0, group_begin = 0;
    shards s = {.source = source, .step = 1};

    if (!consume) {
        *out = total;
        return RT_OK;
    }
    s.needs = calloc(md_source_shard_count(source), sizeof(*s.needs));
    if (s.needs == NULL) return rt_fail(err, RT_ENOMEM, "disk plan");
    for (uint64_t i = 0; i < plan->count; i++)
        md_plan_visit_tensors(&plan->units[i], change_need, &s);
    s.step = -1;
    for (uint64_t i = 0; i < plan->count; i++) {
        const md_unit *unit = &plan->units[plan->order[i]];

        if (!unit->done) group_bytes += unit->shape.bytes;
        if (group_bytes < MD_COMMIT_BYTES && i + 1 - group_begin < MD_COMMIT_RECORDS &&
            i + 1 < plan->count)
            continue;
        written += group_bytes;
        if (written > s.freed && written - s.freed > peak) peak = written - s.freed;
        for (; group_begin <= i; group_begin++)
            md_plan_visit_tensors(&plan->units[plan->order[group_begin]], change_need, &s);
        group_bytes = 0;
    }
    free(s.needs);
    peak += MD_COMMIT_BYTES + MD_DISK_RESERVE_BYTES;
    *out = peak < total ? peak : total;
    return RT_OK;
}

rt_status md_disk_deletable(const md_plan *plan, const md_source *source, uint64_t *shard_count,
                            uint64_t *bytes, rt_err *err)
{
    uint32_t total = md_source_shard_count(source);
    shards s = {.source = source, .step = 1, .needs = calloc(total + 1, sizeof(*s.needs))};

    if (s.needs == NULL) return rt_fail(err, RT_ENOMEM, "disk plan");
    for (uint64_t i = 0; i < plan->count; i++)
        md_plan_visit_tensors(&plan->units[i], change_need, &s);
    *shard_count = 0;
    *bytes = 0;
    for (uint32_t i = 0; i < total; i++) {
        if (s.needs[i] == 0 || !md_source_shard_present(source, i)) continue;
        *shard_count += 1;
        *bytes += md_source_shard_at(source, i)->bytes;
    }
    free(s.needs);
    return RT_OK;
}

/* statvfs and the device of dir or of its nearest parent that exists. */
static rt_status measure_dir(const char *dir, uint64_t *free_bytes, dev_t *device, rt_err *err)
{
    char *path = strdup(dir);
    struct statvfs fs;
    struct stat info;
    rt_status status = RT_OK;

    if (path == NULL) return rt_fail(err, RT_ENOMEM, "%s", dir);
    while (stat(path, &info) != 0 && errno == ENOENT) {
        char *slash = strrchr(path, '/');

        if (slash == NULL)
            memcpy(path, ".", 2); /* not empty: at least one byte and the end */
        else if (slash == path)
            path[1] = '\0';
        else
            *slash = '\0';
    }
    if (stat(path, &info) != 0 || statvfs(path, &fs) != 0)
        status = rt_fail(err, RT_EIO, "%s: %s", path, strerror(errno));
    else {
        *device = info.st_dev;
        *free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    }
    free(path);
    return status;
}

rt_status md_disk_free(const char *dir, uint64_t *out, rt_err *err)
{
    dev_t device;

    return measure_dir(dir, out, &device, err);
}

rt_status md_disk_space_measure(const char *source_dir, const char *target_dir, const md_plan *plan,
                                const md_source *source, bool consume, md_disk_space *out,
                                rt_err *err)
{
    uint64_t free_bytes = 0, unused = 0, needed = 0;
    dev_t target_device = 0, source_device = 0;

    RT_TRY(measure_dir(target_dir, &free_bytes, &target_device, err));
    RT_TRY(measure_dir(source_dir, &unused, &source_device, err));
    RT_TRY(md_disk_peak(plan, source, consume && source_device == target_device, &needed, err));
    *out = (md_disk_space){.needed_bytes = needed, .free_bytes = free_bytes};
    return RT_OK;
}
