/* tier_disk_read.c - the readers: which piece of which record from which copy is next. */
#include "expert_node/tier_disk_internal.h"

#include "base/check.h"
#include "base/log.h"

enum { ROUNDS = 3 /* over all copies, before a record of several copies is given up */ };

/* Whether a copy is held that this round has not tried. Under lock. */
static bool is_untried(const en_tier_disk *disk, const en_read_job *job, uint32_t copy)
{
    size_t at = en_disk_cell(disk, copy, job->record);

    return disk->where[at] != EN_NOT_HELD && !(job->tried >> copy & 1);
}

static bool has_sound_copy(const en_tier_disk *disk, const en_read_job *job)
{
    for (uint32_t copy = 0; copy < disk->spec.copy_count; copy++)
        if (is_untried(disk, job, copy) && !disk->bad[en_disk_cell(disk, copy, job->record)])
            return true;
    return false;
}

/* A quarantined copy is not read while a sound one is left in this round: some untried copy may always be
 * read, whatever the scrub finds out while the job waits in its list. */
static bool may_read(const en_tier_disk *disk, const en_read_job *job, uint32_t copy)
{
    if (!is_untried(disk, job, copy)) return false;
    return !disk->bad[en_disk_cell(disk, copy, job->record)] || !has_sound_copy(disk, job);
}

static bool needs_bounce(const en_tier_disk *disk, uint32_t record)
{
    return !en_inventory_is_whole(disk->spec.inventory, record);
}

void en_disk_quarantine(en_tier_disk *disk, uint32_t record, uint32_t copy, const rt_err *err)
{
    uint8_t *bad = &disk->bad[en_disk_cell(disk, copy, record)];

    if (*bad) return;
    *bad = 1;
    disk->stats.quarantined++;
    rt_log_warn("disk", "%s; this copy of the record is not used while there is another",
                err->text);
}

/* A failed job goes to another copy, into the next round, or back to the owner. Under lock. */
static void settle(en_tier_disk *disk, en_read_job *job, uint32_t copy)
{
    bool again = false;

    if (job->status == RT_OK) {
        disk->stats.reads++;
        disk->stats.bytes += en_inventory_record_bytes(disk->spec.inventory, job->record);
    } else {
        disk->stats.failures++;
        if (job->status == RT_EFORMAT) en_disk_quarantine(disk, job->record, copy, &job->err);
        job->tried |= 1U << copy;
        for (uint32_t c = 0; c < disk->spec.copy_count; c++)
            again = again || may_read(disk, job, c);
        if (!again && disk->spec.copy_count > 1 && ++job->round < ROUNDS) {
            job->tried = 0;
            again = true;
        }
    }
    if (again) {
        en_jobs_push_front(job->urgent ? &disk->urgent : &disk->later, job);
        pthread_cond_broadcast(&disk->work);
    } else {
        job->asked = false;
        en_jobs_push(&disk->done, job);
        pthread_cond_signal(&disk->finished);
    }
}

/* How a record is cut: in pieces of the wanted size, larger where there would be too many. */
static void cut(const en_tier_disk *disk, en_read_job *job)
{
    size_t blocks = en_disk_bytes(&job->from) / MD_RECORD_ALIGN;
    size_t wanted = disk->spec.piece_bytes == 0 ? EN_PIECE_BYTES : disk->spec.piece_bytes;
    size_t least = (blocks + EN_PIECES_MAX - 1) / EN_PIECES_MAX * MD_RECORD_ALIGN;

    job->piece_bytes = wanted > least ? wanted : least;
    job->pieces = (uint32_t)((job->from.bytes + job->piece_bytes - 1) / job->piece_bytes);
    RT_ASSERT(job->pieces >= 1 && job->pieces <= EN_PIECES_MAX);
}

static void begin(en_tier_disk *disk, en_read_job *job, uint32_t device, uint32_t copy)
{
    job->begun = true;
    job->device = device;
    job->copy = copy;
    job->from = en_disk_record_of(disk, copy, job->record);
    job->into = job->data;
    if (needs_bounce(disk, job->record)) {
        job->bounce = (uint32_t)__builtin_ctz(disk->bounces_free);
        disk->bounces_free &= ~(1U << job->bounce);
        job->into = (uint8_t *)disk->bounce.data + job->bounce * disk->spec.bounce_bytes;
    }
    job->status = RT_OK;
    job->err = (rt_err){RT_OK, ""};
    job->handed = job->reading = job->arrived = job->hashed = 0;
    cut(disk, job);
    (void)XXH3_128bits_reset(job->hash);
}

/* Whether this device can begin the job, and from which copy. */
static bool can_begin(const en_tier_disk *disk, const en_read_job *job, uint32_t device,
                      uint32_t *copy)
{
    if (needs_bounce(disk, job->record) && disk->bounces_free == 0) return false;
    for (*copy = 0; *copy < disk->spec.copy_count; ++*copy) {
        if (disk->where[en_disk_cell(disk, *copy, job->record)] == device &&
            may_read(disk, job, *copy))
            return true;
    }
    return false;
}

/* The first job of the list of which this device can read a piece now, and which. With its last piece it
 * leaves the list. */
static en_read_job *take_piece(en_tier_disk *disk, en_job_list *list, uint32_t device,
                               uint32_t *piece)
{
    en_read_job *before = NULL;
    uint32_t copy;

    if (disk->under_way[device] == disk->spec.depth) return NULL;
    for (en_read_job *job = list->first; job != NULL; before = job, job = job->next) {
        if (job->begun ? job->device != device : !can_begin(disk, job, device, &copy)) continue;
        if (!job->begun) begin(disk, job, device, copy);
        *piece = job->handed++;
        job->reading++;
        if (job->handed == job->pieces) en_jobs_unlink(list, before, job);
        return job;
    }
    return NULL;
}

/* Takes a job whose read failed out of its list, where it is while pieces are left. Under lock. */
static void stop_handing(en_tier_disk *disk, en_read_job *job)
{
    if (job->handed == job->pieces) return;
    en_jobs_remove(job->urgent ? &disk->urgent : &disk->later, job);
    job->handed = job->pieces;
}

static md_hash128 hash_of(const en_read_job *job)
{
    XXH128_hash_t hash = XXH3_128bits_digest(job->hash);

    return (md_hash128){.low = hash.low64, .high = hash.high64};
}

static size_t bytes_of(const en_read_job *job, uint32_t piece)
{
    size_t left = job->from.bytes - piece * job->piece_bytes;

    return left < job->piece_bytes ? left : job->piece_bytes;
}

/* All pieces are back and none is to be hashed. Under lock, which is left for the slices of a record that
 * is owned in part. */
static void finish(en_tier_disk *disk, en_read_job *job)
{
    bool partial = needs_bounce(disk, job->record);

    if (job->status == RT_OK) job->status = en_disk_judge(&job->from, hash_of(job), &job->err);
    if (job->status == RT_OK && partial) {
        pthread_mutex_unlock(&disk->lock);
        en_inventory_keep(disk->spec.inventory, job->record, job->into, job->data);
        pthread_mutex_lock(&disk->lock);
    }
    if (partial) {
        disk->bounces_free |= 1U << job->bounce;
        pthread_cond_broadcast(&disk->work);
    }
    job->begun = false;
    settle(disk, job, job->copy);
}

static bool can_hash(const en_read_job *job)
{
    return job->status == RT_OK && job->hashed < job->pieces && (job->arrived >> job->hashed & 1);
}

/* A piece has come, or was hashed: what is to be done with its job next. Under lock. */
static void go_on(en_tier_disk *disk, en_read_job *job)
{
    if (job->hashing) return;
    if (can_hash(job)) {
        job->hashing = true;
        disk->to_hash[(disk->to_hash_first + disk->to_hash_count++) % EN_DISK_READS_MAX] = job;
        pthread_cond_signal(&disk->work);
    } else if (job->reading == 0 && job->handed == job->pieces) {
        finish(disk, job);
    }
}

static en_read_job *pop_to_hash(en_tier_disk *disk)
{
    en_read_job *job = disk->to_hash[disk->to_hash_first];

    disk->to_hash_first = (disk->to_hash_first + 1) % EN_DISK_READS_MAX;
    disk->to_hash_count--;
    return job;
}

/* Hashes what has arrived of a job and follows what is hashed. Under lock, which is left meanwhile. */
static void hash_arrived(en_tier_disk *disk, en_read_job *job)
{
    while (can_hash(job)) {
        const uint8_t *at = job->into + job->hashed * job->piece_bytes;
        pthread_mutex_unlock(&disk->lock);
        (void)XXH3_128bits_update(job->hash, at, bytes_of(job, job->hashed));
        pthread_mutex_lock(&disk->lock);
        job->hashed++;
    }
    job->hashing = false;
    go_on(disk, job);
}

/* Under lock, which is left while the disk works. */
static void read_piece(en_tier_disk *disk, en_read_job *job, uint32_t piece)
{
    size_t at = piece * job->piece_bytes;
    rt_err err = {RT_OK, ""};
    rt_status status;

    disk->under_way[job->device]++;
    pthread_mutex_unlock(&disk->lock);
    status = en_disk_fetch(&disk->spec.ops, &job->from, at, bytes_of(job, piece), job->into + at,
                           &disk->buffered[job->copy], &err);
    pthread_mutex_lock(&disk->lock);
    disk->under_way[job->device]--;
    job->reading--;
    if (status == RT_OK) {
        job->arrived |= UINT32_C(1) << piece;
    } else if (job->status == RT_OK) {
        job->status = status;
        job->err = err;
        stop_handing(disk, job);
    }
    go_on(disk, job);
}

/* A reader that has got its piece goes on reading at once: the disk waits for no other thread to wake up.
 * Hashing is for those that have nothing to read; at the end of a frame's reads that is itself. */
void *en_disk_read_loop(void *context)
{
    const en_disk_reader *self = context;
    en_tier_disk *disk = self->disk;

    pthread_mutex_lock(&disk->lock);
    while (!disk->closing) {
        uint32_t piece;
        en_read_job *job = take_piece(disk, &disk->urgent, self->device, &piece);
        if (job == NULL) job = take_piece(disk, &disk->later, self->device, &piece);
        if (job != NULL)
            read_piece(disk, job, piece);
        else if (disk->to_hash_count > 0)
            hash_arrived(disk, pop_to_hash(disk));
        else
            pthread_cond_wait(&disk->work, &disk->lock);
    }
    en_disk_leave(disk);
    pthread_mutex_unlock(&disk->lock);
    return NULL;
}
