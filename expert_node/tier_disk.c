/* tier_disk.c - the queue of reads, the copies and their disks. */
#include "expert_node/tier_disk_internal.h"

#include "base/check.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { STACK_BYTES = 512 << 10 };

void en_jobs_push(en_job_list *list, en_read_job *job)
{
    job->next = NULL;
    if (list->last == NULL)
        list->first = job;
    else
        list->last->next = job;
    list->last = job;
}

void en_jobs_push_front(en_job_list *list, en_read_job *job)
{
    job->next = list->first;
    list->first = job;
    if (list->last == NULL) list->last = job;
}

void en_jobs_unlink(en_job_list *list, en_read_job *before, en_read_job *job)
{
    if (before == NULL)
        list->first = job->next;
    else
        before->next = job->next;
    if (list->last == job) list->last = before;
    job->next = NULL;
}

void en_jobs_remove(en_job_list *list, en_read_job *job)
{
    en_read_job *before = NULL;

    for (en_read_job *at = list->first; at != job; before = at, at = at->next)
        RT_ASSERT(at != NULL);
    en_jobs_unlink(list, before, job);
}

en_read_job *en_jobs_pop(en_job_list *list)
{
    en_read_job *job = list->first;

    if (job != NULL) en_jobs_unlink(list, NULL, job);
    return job;
}

size_t en_disk_cell(const en_tier_disk *disk, uint32_t copy, uint32_t record)
{
    return (size_t)copy * disk->spec.inventory->count + record;
}

md_record en_disk_record_of(const en_tier_disk *disk, uint32_t copy, uint32_t record)
{
    const en_owned *owned = &disk->spec.inventory->records[record];
    md_key key = {owned->layer, MD_EXPERT, owned->expert};
    md_record found = {.fd = -1, .fd_direct = -1};
    bool known = md_container_find(disk->copies[copy], key, &found);

    RT_ASSERT(known);
    return found;
}

static rt_status add_device(en_tier_disk *disk, int fd, uint8_t *index, rt_err *err)
{
    struct stat about;

    if (fstat(fd, &about) != 0) return rt_fail(err, RT_EIO, "fstat: %s", strerror(errno));
    for (uint32_t i = 0; i < disk->device_count; i++) {
        *index = (uint8_t)i;
        if (disk->device[i] == about.st_dev) return RT_OK;
    }
    if (disk->device_count == EN_DEVICES_MAX) return RT_OK; /* it shares the last one's readers */
    *index = (uint8_t)disk->device_count;
    disk->device[disk->device_count++] = about.st_dev;
    return RT_OK;
}

static rt_status find_devices(en_tier_disk *disk, rt_err *err)
{
    const en_inventory *inventory = disk->spec.inventory;

    for (uint32_t copy = 0; copy < disk->spec.copy_count; copy++) {
        int last_fd = -1;
        uint8_t device = 0;
        for (uint32_t r = 0; r < inventory->count; r++) {
            md_record record = en_disk_record_of(disk, copy, r);
            disk->where[en_disk_cell(disk, copy, r)] = EN_NOT_HELD;
            if (record.fd < 0) continue;
            if (record.fd != last_fd) RT_TRY(add_device(disk, record.fd, &device, err));
            last_fd = record.fd;
            disk->where[en_disk_cell(disk, copy, r)] = device;
        }
    }
    return RT_OK;
}

int en_disk_start_thread(pthread_t *thread, void *(*run)(void *), void *context)
{
    pthread_attr_t attributes;
    sigset_t all, before;
    int error = pthread_attr_init(&attributes);

    if (error != 0) return error;
    sigfillset(&all);
    error = pthread_attr_setstacksize(&attributes, STACK_BYTES);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (error == 0) error = pthread_create(thread, &attributes, run, context);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return error;
}

static rt_status start_readers(en_tier_disk *disk, rt_err *err)
{
    for (uint32_t i = 0; i < disk->device_count * EN_DISK_THREADS; i++) {
        en_disk_reader *self = &disk->readers[i];
        int error;
        *self = (en_disk_reader){.disk = disk, .device = i / EN_DISK_THREADS};
        error = en_disk_start_thread(&self->thread, en_disk_read_loop, self);
        if (error != 0) return rt_fail(err, RT_ENOMEM, "disk reader thread: %s", strerror(error));
        disk->reader_count++;
        pthread_mutex_lock(&disk->lock);
        disk->running++;
        pthread_mutex_unlock(&disk->lock);
    }
    return RT_OK;
}

static bool init_sync(en_tier_disk *disk)
{
    pthread_condattr_t monotonic;

    if (pthread_condattr_init(&monotonic) != 0) return false;
    disk->ready = pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC) == 0 &&
                  pthread_mutex_init(&disk->lock, NULL) == 0 &&
                  pthread_cond_init(&disk->work, NULL) == 0 &&
                  pthread_cond_init(&disk->finished, &monotonic) == 0 &&
                  pthread_cond_init(&disk->quiet, &monotonic) == 0;
    pthread_condattr_destroy(&monotonic);
    return disk->ready;
}

rt_status en_tier_disk_create(const en_tier_disk_spec *spec, en_tier_disk **out, rt_err *err)
{
    en_tier_disk *disk = calloc(1, sizeof(*disk));
    size_t cells = (size_t)spec->copy_count * spec->inventory->count + 1;
    rt_status status;

    RT_ASSERT(spec->copy_count >= 1 && spec->copy_count <= EN_COPIES_MAX);
    RT_ASSERT(spec->bounces <= EN_BOUNCES_MAX && spec->piece_bytes % MD_RECORD_ALIGN == 0);
    if (disk == NULL) return rt_fail(err, RT_ENOMEM, "disk tier");
    disk->spec = *spec;
    if (disk->spec.depth == 0) disk->spec.depth = EN_DISK_DEPTH;
    RT_ASSERT(disk->spec.depth <= EN_DISK_DEPTH);
    memcpy(disk->copies, spec->copies, spec->copy_count * sizeof(*spec->copies));
    for (uint32_t copy = 0; copy < EN_COPIES_MAX; copy++)
        atomic_init(&disk->buffered[copy], spec->buffered);
    for (uint32_t i = 0; i < EN_DISK_READS_MAX; i++) {
        disk->jobs[i].hash = XXH3_createState();
        if (disk->jobs[i].hash == NULL) {
            status = rt_fail(err, RT_ENOMEM, "disk tier: %d reads", EN_DISK_READS_MAX);
            goto fail;
        }
        en_jobs_push(&disk->unused, &disk->jobs[i]);
    }
    disk->where = calloc(cells, 1);
    disk->bad = calloc(cells, 1);
    if (disk->where == NULL || disk->bad == NULL || !init_sync(disk)) {
        status = rt_fail(err, RT_ENOMEM, "disk tier of %u records", spec->inventory->count);
        goto fail;
    }
    if (spec->bounces > 0) {
        status = rt_slab_alloc(spec->bounces * spec->bounce_bytes, &disk->bounce, err);
        if (status != RT_OK) goto fail;
        disk->bounces_free = UINT32_MAX >> (EN_BOUNCES_MAX - spec->bounces);
    }
    status = find_devices(disk, err);
    if (status == RT_OK) status = start_readers(disk, err);
    if (status != RT_OK) goto fail;
    *out = disk;
    return RT_OK;
fail:
    en_tier_disk_free(disk);
    return status;
}

void en_tier_disk_free(en_tier_disk *disk)
{
    en_disk_patience patience = {0};

    if (disk == NULL) return;
    if (disk->ready) {
        pthread_mutex_lock(&disk->lock);
        disk->closing = true;
        pthread_cond_broadcast(&disk->work);
        pthread_cond_broadcast(&disk->quiet);
        while (disk->running > 0)
            en_disk_wait(disk, &patience);
        pthread_mutex_unlock(&disk->lock);
    }
    for (uint32_t i = 0; i < disk->reader_count; i++)
        pthread_join(disk->readers[i].thread, NULL);
    if (disk->scrubbing) pthread_join(disk->scrubber, NULL);
    if (disk->ready) {
        pthread_cond_destroy(&disk->quiet);
        pthread_cond_destroy(&disk->finished);
        pthread_cond_destroy(&disk->work);
        pthread_mutex_destroy(&disk->lock);
    }
    for (uint32_t i = 0; i < EN_DISK_READS_MAX; i++)
        (void)XXH3_freeState(disk->jobs[i].hash);
    rt_slab_free(&disk->scrub_buffer);
    rt_slab_free(&disk->bounce);
    free(disk->bad);
    free(disk->where);
    free(disk);
}

bool en_tier_disk_ask(en_tier_disk *disk, uint32_t record, void *data, uint32_t tag, bool urgent)
{
    en_read_job *job;

    if (disk->asked == EN_DISK_READS_MAX) return false;
    pthread_mutex_lock(&disk->lock);
    job = en_jobs_pop(&disk->unused);
    RT_ASSERT(job != NULL);
    *job = (en_read_job){.data = data,
                         .record = record,
                         .tag = tag,
                         .urgent = urgent,
                         .asked = true,
                         .hash = job->hash};
    en_jobs_push(urgent ? &disk->urgent : &disk->later, job);
    /* Not every reader can take every job: another disk's would sleep on. */
    pthread_cond_broadcast(&disk->work);
    pthread_mutex_unlock(&disk->lock);
    disk->asked++;
    return true;
}

uint32_t en_tier_disk_asked(const en_tier_disk *disk)
{
    return disk->asked;
}

void en_tier_disk_hurry(en_tier_disk *disk, uint32_t tag)
{
    pthread_mutex_lock(&disk->lock);
    for (uint32_t i = 0; i < EN_DISK_READS_MAX; i++) {
        en_read_job *job = &disk->jobs[i];
        if (!job->asked || job->urgent || job->tag != tag) continue;
        job->urgent = true;
        if (job->begun && job->handed == job->pieces) continue; /* in no list until it fails */
        en_jobs_remove(&disk->later, job);
        en_jobs_push(&disk->urgent, job);
    }
    pthread_mutex_unlock(&disk->lock);
}

void en_tier_disk_cancel(en_tier_disk *disk)
{
    en_read_job *before = NULL, *next;

    pthread_mutex_lock(&disk->lock);
    for (en_read_job *job = disk->later.first; job != NULL; job = next) {
        next = job->next;
        if (job->begun) {
            before = job;
            continue;
        }
        en_jobs_unlink(&disk->later, before, job);
        job->asked = false;
        job->status = RT_ECANCELED;
        job->err = (rt_err){RT_ECANCELED, "the read was given up"};
        en_jobs_push(&disk->done, job);
    }
    pthread_mutex_unlock(&disk->lock);
}

bool en_tier_disk_next(en_tier_disk *disk, bool wait, en_disk_done *out, rt_err *err)
{
    en_disk_patience patience = {0};
    en_read_job *job;

    if (disk->asked == 0) return false;
    pthread_mutex_lock(&disk->lock);
    while (wait && disk->done.first == NULL)
        en_disk_wait(disk, &patience);
    job = en_jobs_pop(&disk->done);
    if (job != NULL) {
        *out = (en_disk_done){job->tag, job->status};
        if (err != NULL && job->status != RT_OK) *err = job->err;
        en_jobs_push(&disk->unused, job);
    }
    pthread_mutex_unlock(&disk->lock);
    if (job == NULL) return false;
    disk->asked--;
    return true;
}

void en_tier_disk_end_reads(en_tier_disk *disk)
{
    RT_ASSERT(disk->asked == 0);
    pthread_mutex_lock(&disk->lock);
    disk->bounces_free = 0;
    rt_slab_free(&disk->bounce);
    pthread_mutex_unlock(&disk->lock);
}

en_tier_disk_stats en_tier_disk_get_stats(en_tier_disk *disk)
{
    en_tier_disk_stats stats;

    pthread_mutex_lock(&disk->lock);
    stats = disk->stats;
    pthread_mutex_unlock(&disk->lock);
    return stats;
}
