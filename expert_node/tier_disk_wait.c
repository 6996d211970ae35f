/* tier_disk_wait.c - waiting for disks, which may never answer. */
#include "base/log.h"
#include "base/stop.h"
#include "expert_node/tier_disk_internal.h"

#include <errno.h>

enum { WARN_S = 10 };

static const uint64_t SECOND_NS = 1000000000;

struct timespec en_disk_time_add(struct timespec time, uint64_t ns)
{
    ns += (uint64_t)time.tv_nsec;
    time.tv_sec += (time_t)(ns / SECOND_NS);
    time.tv_nsec = (long)(ns % SECOND_NS);
    return time;
}

void en_disk_leave(en_tier_disk *disk)
{
    disk->running--;
    pthread_cond_signal(&disk->finished);
}

static const char *pack_of(const en_tier_disk *disk, const en_read_job *job)
{
    uint32_t copy = 0;

    if (job->begun) return job->from.pack;
    while (copy + 1 < disk->spec.copy_count &&
           disk->where[en_disk_cell(disk, copy, job->record)] == EN_NOT_HELD)
        copy++;
    return en_disk_record_of(disk, copy, job->record).pack;
}

/* A pack that is being read, or will be as soon as a reader wakes up; NULL: none. The name lives as long as
 * its container. */
static const char *pack_awaited(const en_tier_disk *disk)
{
    const en_read_job *asked = NULL;

    for (uint32_t i = 0; i < EN_DISK_READS_MAX; i++) {
        const en_read_job *job = &disk->jobs[i];
        if (job->begun && job->reading > 0) return job->from.pack;
        if (job->asked && asked == NULL) asked = job;
    }
    return asked == NULL ? disk->scrub_waits : pack_of(disk, asked);
}

static uint64_t now_ns(struct timespec *now)
{
    clock_gettime(CLOCK_MONOTONIC, now);
    return (uint64_t)now->tv_sec * SECOND_NS + (uint64_t)now->tv_nsec;
}

void en_disk_wait(en_tier_disk *disk, en_disk_patience *patience)
{
    const char *pack = pack_awaited(disk), *outer = rt_stop_waiting_for(pack);
    struct timespec time;
    uint64_t now = now_ns(&time), waited, due;
    int error;

    if (patience->since_ns == 0) {
        patience->since_ns = now;
        patience->told_after_ns = disk->spec.warn_ns > 0 ? disk->spec.warn_ns : WARN_S * SECOND_NS;
    }
    waited = now - patience->since_ns;
    due = patience->told_after_ns > waited ? patience->told_after_ns - waited : 0;
    time = en_disk_time_add(time, due);
    rt_stop_blocking(true);
    error = pthread_cond_timedwait(&disk->finished, &disk->lock, &time);
    rt_stop_blocking(false);
    (void)rt_stop_waiting_for(outer);
    if (error != ETIMEDOUT) return;
    if (pack != NULL)
        rt_log_warn("disk", "%s: waiting for it for %llu s already", pack,
                    (unsigned long long)(patience->told_after_ns / SECOND_NS));
    patience->told_after_ns *= 2;
}
