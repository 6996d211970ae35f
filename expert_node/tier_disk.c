/* tier_disk.c - a queue of reads, reader threads of each disk, and the choice of copies. */
#include "expert_node/tier_disk.h"

#include "base/check.h"
#include "base/log.h"
#include "base/slab.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum {
    DEVICES_MAX = 16,
    ROUNDS = 3, /* over all copies, before a record of several copies is given up */
    NOT_HELD = 0xff,
    STACK_BYTES = 512 << 10,
    BOUNCES_MAX = 32,
};

typedef struct read_job {
    struct read_job *next;
    uint8_t *data;
    uint32_t record, tag;
    uint32_t tried; /* copies of this round, as bits */
    uint32_t round;
    bool urgent;
    rt_status status;
    rt_err err;
} read_job;

typedef struct {
    read_job *first, *last;
} job_list;

typedef struct {
    en_tier_disk *disk;
    uint32_t device;
    pthread_t thread;
} reader;

struct en_tier_disk {
    en_tier_disk_spec spec;
    const md_container *copies[EN_COPIES_MAX];
    dev_t device[DEVICES_MAX];
    uint32_t device_count;
    uint8_t *where;                      /* owned [copies][records]: device, or NOT_HELD */
    atomic_bool buffered[EN_COPIES_MAX]; /* this copy's filesystem refuses O_DIRECT */
    rt_slab bounce;
    read_job jobs[EN_DISK_READS_MAX];
    reader readers[DEVICES_MAX * EN_DISK_THREADS];
    uint32_t reader_count;
    uint32_t asked; /* by the owner, not yet returned to it */
    pthread_mutex_t lock;
    pthread_cond_t work, finished, quiet;
    bool ready; /* lock and conditions exist */
    /* Under lock: */
    job_list urgent, later, done, unused;
    uint32_t bounces_free;           /* bits */
    uint32_t under_way[DEVICES_MAX]; /* reads, at most EN_DISK_DEPTH */
    uint8_t *bad;                    /* owned [copies][records]: quarantined */
    bool closing;
    en_tier_disk_stats stats;
    /* Scrub: */
    pthread_t scrubber;
    bool scrubbing;
    uint64_t scrub_period_ns;
    rt_slab scrub_buffer;
};

static void push(job_list *list, read_job *job)
{
    job->next = NULL;
    if (list->last == NULL)
        list->first = job;
    else
        list->last->next = job;
    list->last = job;
}

static void push_front(job_list *list, read_job *job)
{
    job->next = list->first;
    list->first = job;
    if (list->last == NULL) list->last = job;
}

/* Takes `job`, which follows `before` (NULL: it is the first), out of the list. */
static void unlink_job(job_list *list, read_job *before, read_job *job)
{
    if (before == NULL)
        list->first = job->next;
    else
        before->next = job->next;
    if (list->last == job) list->last = before;
    job->next = NULL;
}

static read_job *pop(job_list *list)
{
    read_job *job = list->first;

    if (job != NULL) unlink_job(list, NULL, job);
    return job;
}

static size_t cell(const en_tier_disk *disk, uint32_t copy, uint32_t record)
{
    return (size_t)copy * disk->spec.inventory->count + record;
}

static md_record record_of(const en_tier_disk *disk, uint32_t copy, uint32_t record)
{
    const en_owned *owned = &disk->spec.inventory->records[record];
    md_key key = {owned->layer, MD_EXPERT, owned->expert};
    md_record found = {.fd = -1, .fd_direct = -1};
    bool known = md_container_find(disk->copies[copy], key, &found);

    RT_ASSERT(known);
    return found;
}

/* A quarantined copy is not read while a sound one is left. Under lock. */
static bool has_sound_copy(const en_tier_disk *disk, uint32_t record)
{
    for (uint32_t copy = 0; copy < disk->spec.copy_count; copy++) {
        size_t at = cell(disk, copy, record);
        if (disk->where[at] != NOT_HELD && !disk->bad[at]) return true;
    }
    return false;
}

static bool may_read(const en_tier_disk *disk, const read_job *job, uint32_t copy)
{
    size_t at = cell(disk, copy, job->record);

    if (disk->where[at] == NOT_HELD || (job->tried >> copy & 1)) return false;
    return !disk->bad[at] || !has_sound_copy(disk, job->record);
}

static bool needs_bounce(const en_tier_disk *disk, uint32_t record)
{
    return !en_inventory_is_whole(disk->spec.inventory, record);
}

/* The first job of the list that this device can read from a copy; it leaves the list. */
static read_job *take_from(en_tier_disk *disk, job_list *list, uint32_t device, uint32_t *copy)
{
    read_job *before = NULL;

    if (disk->under_way[device] == EN_DISK_DEPTH) return NULL;
    for (read_job *job = list->first; job != NULL; before = job, job = job->next) {
        if (needs_bounce(disk, job->record) && disk->bounces_free == 0) continue;
        for (*copy = 0; *copy < disk->spec.copy_count; ++*copy) {
            if (disk->where[cell(disk, *copy, job->record)] != device) continue;
            if (!may_read(disk, job, *copy)) continue;
            unlink_job(list, before, job);
            return job;
        }
    }
    return NULL;
}

static void quarantine(en_tier_disk *disk, uint32_t record, uint32_t copy, const rt_err *err)
{
    uint8_t *bad = &disk->bad[cell(disk, copy, record)];

    if (*bad) return;
    *bad = 1;
    disk->stats.quarantined++;
    rt_log_warn("disk", "%s; this copy of the record is not used while there is another",
                err->text);
}

/* A failed job goes to another copy, into the next round, or back to the owner. Under lock. */
static void settle(en_tier_disk *disk, read_job *job, uint32_t copy)
{
    bool again = false;

    if (job->status == RT_OK) {
        disk->stats.reads++;
        disk->stats.bytes += en_inventory_record_bytes(disk->spec.inventory, job->record);
    } else {
        disk->stats.failures++;
        if (job->status == RT_EFORMAT) quarantine(disk, job->record, copy, &job->err);
        job->tried |= 1U << copy;
        for (uint32_t c = 0; c < disk->spec.copy_count; c++)
            again = again || may_read(disk, job, c);
        if (!again && disk->spec.copy_count > 1 && ++job->round < ROUNDS) {
            job->tried = 0;
            again = true;
        }
    }
    if (again) {
        push_front(job->urgent ? &disk->urgent : &disk->later, job);
        pthread_cond_broadcast(&disk->work);
    } else {
        push(&disk->done, job);
        pthread_cond_signal(&disk->finished);
    }
}

static uint8_t *take_bounce(en_tier_disk *disk, uint32_t *index)
{
    *index = (uint32_t)__builtin_ctz(disk->bounces_free);
    disk->bounces_free &= ~(1U << *index);
    return (uint8_t *)disk->bounce.data + *index * disk->spec.bounce_bytes;
}

/* Under lock, which is left while the disk works and while the hash is checked. */
static void run_job(en_tier_disk *disk, uint32_t device, read_job *job, uint32_t copy)
{
    bool partial = needs_bounce(disk, job->record);
    uint32_t bounce = 0;
    uint8_t *data = partial ? take_bounce(disk, &bounce) : job->data;
    md_record record;

    disk->under_way[device]++;
    pthread_mutex_unlock(&disk->lock);
    record = record_of(disk, copy, job->record);
    job->err = (rt_err){RT_OK, ""};
    job->status = en_disk_fetch(&disk->spec.ops, &record, data, &disk->buffered[copy], &job->err);
    pthread_mutex_lock(&disk->lock);
    disk->under_way[device]--;
    pthread_cond_broadcast(&disk->work);
    pthread_mutex_unlock(&disk->lock);
    if (job->status == RT_OK) job->status = en_disk_check(&record, data, &job->err);
    if (job->status == RT_OK && partial)
        en_inventory_keep(disk->spec.inventory, job->record, data, job->data);
    pthread_mutex_lock(&disk->lock);
    if (partial) {
        disk->bounces_free |= 1U << bounce;
        pthread_cond_broadcast(&disk->work);
    }
    settle(disk, job, copy);
}

static void *read_loop(void *context)
{
    const reader *self = context;
    en_tier_disk *disk = self->disk;

    pthread_mutex_lock(&disk->lock);
    while (!disk->closing) {
        uint32_t copy;
        read_job *job = take_from(disk, &disk->urgent, self->device, &copy);
        if (job == NULL) job = take_from(disk, &disk->later, self->device, &copy);
        if (job != NULL)
            run_job(disk, self->device, job, copy);
        else
            pthread_cond_wait(&disk->work, &disk->lock);
    }
    pthread_mutex_unlock(&disk->lock);
    return NULL;
}

static rt_status add_device(en_tier_disk *disk, int fd, uint8_t *index, rt_err *err)
{
    struct stat about;

    if (fstat(fd, &about) != 0) return rt_fail(err, RT_EIO, "fstat: %s", strerror(errno));
    for (uint32_t i = 0; i < disk->device_count; i++) {
        *index = (uint8_t)i;
        if (disk->device[i] == about.st_dev) return RT_OK;
    }
    if (disk->device_count == DEVICES_MAX) return RT_OK; /* it shares the last one's readers */
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
            md_record record = record_of(disk, copy, r);
            disk->where[cell(disk, copy, r)] = NOT_HELD;
            if (record.fd < 0) continue;
            if (record.fd != last_fd) RT_TRY(add_device(disk, record.fd, &device, err));
            last_fd = record.fd;
            disk->where[cell(disk, copy, r)] = device;
        }
    }
    return RT_OK;
}

/* Signals are for the main thread. */
static int start_thread(pthread_t *thread, void *(*run)(void *), void *context)
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
        reader *self = &disk->readers[i];
        int error;
        *self = (reader){.disk = disk, .device = i / EN_DISK_THREADS};
        error = start_thread(&self->thread, read_loop, self);
        if (error != 0) return rt_fail(err, RT_ENOMEM, "disk reader thread: %s", strerror(error));
        disk->reader_count++;
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
                  pthread_cond_init(&disk->finished, NULL) == 0 &&
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
    RT_ASSERT(spec->bounces <= BOUNCES_MAX);
    if (disk == NULL) return rt_fail(err, RT_ENOMEM, "disk tier");
    disk->spec = *spec;
    memcpy(disk->copies, spec->copies, spec->copy_count * sizeof(*spec->copies));
    for (uint32_t copy = 0; copy < EN_COPIES_MAX; copy++)
        atomic_init(&disk->buffered[copy], spec->buffered);
    for (uint32_t i = 0; i < EN_DISK_READS_MAX; i++)
        push(&disk->unused, &disk->jobs[i]);
    disk->where = calloc(cells, 1);
    disk->bad = calloc(cells, 1);
    if (disk->where == NULL || disk->bad == NULL || !init_sync(disk)) {
        status = rt_fail(err, RT_ENOMEM, "disk tier of %u records", spec->inventory->count);
        goto fail;
    }
    if (spec->bounces > 0) {
        status = rt_slab_alloc(spec->bounces * spec->bounce_bytes, &disk->bounce, err);
        if (status != RT_OK) goto fail;
        disk->bounces_free = UINT32_MAX >> (BOUNCES_MAX - spec->bounces);
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
    if (disk == NULL) return;
    if (disk->ready) {
        pthread_mutex_lock(&disk->lock);
        disk->closing = true;
        pthread_cond_broadcast(&disk->work);
        pthread_cond_broadcast(&disk->quiet);
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
    rt_slab_free(&disk->scrub_buffer);
    rt_slab_free(&disk->bounce);
    free(disk->bad);
    free(disk->where);
    free(disk);
}

bool en_tier_disk_ask(en_tier_disk *disk, uint32_t record, void *data, uint32_t tag, bool urgent)
{
    read_job *job;

    if (disk->asked == EN_DISK_READS_MAX) return false;
    pthread_mutex_lock(&disk->lock);
    job = pop(&disk->unused);
    RT_ASSERT(job != NULL);
    *job = (read_job){.data = data, .record = record, .tag = tag, .urgent = urgent};
    push(urgent ? &disk->urgent : &disk->later, job);
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
    read_job *before = NULL;

    pthread_mutex_lock(&disk->lock);
    for (read_job *job = disk->later.first; job != NULL; before = job, job = job->next) {
        if (job->tag != tag) continue;
        unlink_job(&disk->later, before, job);
        job->urgent = true;
        push(&disk->urgent, job);
        break;
    }
    pthread_mutex_unlock(&disk->lock);
}

void en_tier_disk_cancel(en_tier_disk *disk)
{
    pthread_mutex_lock(&disk->lock);
    for (read_job *job = pop(&disk->later); job != NULL; job = pop(&disk->later)) {
        job->status = RT_ECANCELED;
        job->err = (rt_err){RT_ECANCELED, "the read was given up"};
        push(&disk->done, job);
    }
    pthread_mutex_unlock(&disk->lock);
}

bool en_tier_disk_next(en_tier_disk *disk, bool wait, en_disk_done *out, rt_err *err)
{
    read_job *job;

    if (disk->asked == 0) return false;
    pthread_mutex_lock(&disk->lock);
    while (wait && disk->done.first == NULL)
        pthread_cond_wait(&disk->finished, &disk->lock);
    job = pop(&disk->done);
    if (job != NULL) {
        *out = (en_disk_done){job->tag, job->status};
        if (err != NULL && job->status != RT_OK) *err = job->err;
        push(&disk->unused, job);
    }
    pthread_mutex_unlock(&disk->lock);
    if (job == NULL) return false;
    disk->asked--;
    return true;
}

en_tier_disk_stats en_tier_disk_get_stats(en_tier_disk *disk)
{
    en_tier_disk_stats stats;

    pthread_mutex_lock(&disk->lock);
    stats = disk->stats;
    pthread_mutex_unlock(&disk->lock);
    return stats;
}

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
    md_record about = record_of(disk, copy, record);
    rt_err err = {RT_OK, ""};
    rt_status status;

    pthread_mutex_unlock(&disk->lock);
    status =
        en_disk_read(&disk->spec.ops, &about, disk->scrub_buffer.data, &disk->buffered[copy], &err);
    pthread_mutex_lock(&disk->lock);
    disk->stats.scrubbed++;
    if (status == RT_EFORMAT) quarantine(disk, record, copy, &err);
    if (status == RT_EIO) rt_log_warn("disk", "scrub: %s", err.text);
}

static void add_ns(struct timespec *time, uint64_t ns)
{
    ns += (uint64_t)time->tv_nsec;
    time->tv_sec += (time_t)(ns / 1000000000U);
    time->tv_nsec = (long)(ns % 1000000000U);
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
        if (disk->where[at] == NOT_HELD || disk->bad[at]) {
            at = (at + 1) % cells; /* what is known to be bad is not told again */
        } else if (disk->urgent.first == NULL && disk->later.first == NULL) {
            scrub_one(disk, copy, record);
            at = (at + 1) % cells;
        }
        clock_gettime(CLOCK_MONOTONIC, &until);
        add_ns(&until, disk->scrub_period_ns);
        if (!disk->closing) pthread_cond_timedwait(&disk->quiet, &disk->lock, &until);
    }
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
    error = start_thread(&disk->scrubber, scrub_loop, disk);
    if (error != 0) return rt_fail(err, RT_ENOMEM, "scrub thread: %s", strerror(error));
    disk->scrubbing = true;
    return RT_OK;
}
