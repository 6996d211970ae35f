/* tier_disk_scrub.c - verifying in the background what the disks hold. */
#include "expert_node/tier_disk_internal.h"

#include "base/check.h"
#include "base/log.h"

#include <string.h>
#include <time.h>

size_t en_tier_disk_scrub_bytes(const en_inventory *inventory)
{
    size_t largest = 0;

    for (uint32_t layer = 0; layer < inventory->layers; layer++)
        if (inventory->layouts[layer].record_bytes > largest)
            largest = inventory->layouts[layer].record_bytes;
    return largest;
}

/* Reads one record of one copy and judges it. Under lock, which is left meanwhile. */
static void scrub_one(en_tier_disk *disk, uint32_t copy, uint32_t record)
{
    md_record about = en_disk_record_of(disk, copy, record);
    rt_err err = {RT_OK, ""};
    rt_status status;

    disk->scrub_waits = about.pack;
    pthread_mutex_unlock(&disk->lock);
    status =
        en_disk_read(&disk->spec.ops, &about, disk->scrub_buffer.data, &disk->buffered[copy], &err);
    pthread_mutex_lock(&disk->lock);
    disk->scrub_waits = NULL;
    disk->stats.scrubbed++;
    if (status == RT_EFORMAT) en_disk_quarantine(disk, record, copy, &err);
    if (status == RT_EIO) rt_log_warn("disk", "scrub: %s", err.text);
}

static void *scrub_loop(void *context)
{
    en_tier_disk *disk = context;
    size_t cells = (size_t)disk->spec.copy_count * disk->spec.inventory->count;
    size_t at = 0;

    pthread_mutex_lock(&disk->lock);
    while (!disk->closing) {
        struct timespec until;
        uint32_t copy = (uint32_t)(at / disk->spec.inventory->count);
        uint32_t record = (uint32_t)(at % disk->spec.inventory->count);
        if (disk->where[at] == EN_NOT_HELD || disk->bad[at]) {
            at = (at + 1) % cells; /* what is known to be bad is not told again */
        } else if (disk->urgent.first == NULL && disk->later.first == NULL) {
            scrub_one(disk, copy, record);
            at = (at + 1) % cells;
        }
        clock_gettime(CLOCK_MONOTONIC, &until);
        until = en_disk_time_add(until, disk->scrub_period_ns);
        if (!disk->closing) pthread_cond_timedwait(&disk->quiet, &disk->lock, &until);
    }
    en_disk_leave(disk);
    pthread_mutex_unlock(&disk->lock);
    return NULL;
}

rt_status en_tier_disk_scrub(en_tier_disk *disk, uint64_t period_ns, rt_err *err)
{
    int error;

    RT_ASSERT(!disk->scrubbing);
    if (disk->spec.inventory->count == 0) return RT_OK;
    RT_TRY(rt_slab_alloc(en_tier_disk_scrub_bytes(disk->spec.inventory), &disk->scrub_buffer, err));
    disk->scrub_period_ns = period_ns;
    error = en_disk_start_thread(&disk->scrubber, scrub_loop, disk);
    if (error != 0) return rt_fail(err, RT_ENOMEM, "scrub thread: %s", strerror(error));
    disk->scrubbing = true;
    pthread_mutex_lock(&disk->lock);
    disk->running++;
    pthread_mutex_unlock(&disk->lock);
    return RT_OK;
}
