/* tier_disk_internal.h - what the parts of the disk tier share: the queue (tier_disk.c), the readers
 * (tier_disk_read.c) and the scrub (tier_disk_scrub.c).
 *
 * A job is a record that was asked for. It stays in its list until its last piece is being read, so that a
 * disk's readers work at one record at a time: the first one that is whole can be used while the next is
 * read. The pieces of a record all come from one copy, since its hash tells only whether all of them are
 * right. They are hashed in ascending order as they arrive, so that what is waited for at the end of a
 * record is one piece's hash, not the record's. */
#ifndef EXPERT_NODE_TIER_DISK_INTERNAL_H
#define EXPERT_NODE_TIER_DISK_INTERNAL_H

#include "base/slab.h"
#include "expert_node/tier_disk.h"

#include <assert.h>
#include <pthread.h>
#include <time.h>
#include <xxhash.h>

enum {
    EN_DEVICES_MAX = 16,
    EN_NOT_HELD = 0xff,
    EN_BOUNCES_MAX = 32, /* bits of a word */
    EN_PIECES_MAX = 32,  /* bits of a word */
    /* Read as fast as whole records are, and hashed in 0.1 ms (docs/performance.md). */
    EN_PIECE_BYTES = 1 << 20,
};

static_assert((int)EN_DISK_BOUNCES * (int)EN_COPIES_MAX <= (int)EN_BOUNCES_MAX, "a bit for each");

typedef struct en_read_job {
    struct en_read_job *next;
    uint8_t *data;
    uint32_t record, tag;
    uint32_t tried; /* copies of this round, as bits */
    uint32_t round;
    bool urgent;
    bool asked; /* neither unused nor done */
    rt_status status;
    rt_err err;
    /* From the first piece on: */
    bool begun;
    uint32_t copy, device;
    md_record from; /* of that copy */
    uint8_t *into;  /* data, or a bounce buffer */
    uint32_t bounce;
    size_t piece_bytes;
    uint32_t pieces, handed, reading; /* of the record; given to readers; of these, not back yet */
    uint32_t arrived;                 /* pieces in memory, as bits */
    uint32_t hashed;                  /* pieces, from the first on */
    bool hashing;                     /* a reader is at it, or will be */
    XXH3_state_t *hash;               /* owned */
} en_read_job;

typedef struct {
    en_read_job *first, *last;
} en_job_list;

typedef struct {
    en_tier_disk *disk;
    uint32_t device;
    pthread_t thread;
} en_disk_reader;

struct en_tier_disk {
    en_tier_disk_spec spec;
    const md_container *copies[EN_COPIES_MAX];
    dev_t device[EN_DEVICES_MAX];
    uint32_t device_count;
    uint8_t *where;                      /* owned [copies][records]: device, or EN_NOT_HELD */
    atomic_bool buffered[EN_COPIES_MAX]; /* this copy's filesystem refuses O_DIRECT */
    rt_slab bounce;
    en_read_job jobs[EN_DISK_READS_MAX];
    en_disk_reader readers[EN_DEVICES_MAX * EN_DISK_THREADS];
    uint32_t reader_count;
    uint32_t asked; /* by the owner, not yet returned to it */
    pthread_mutex_t lock;
    pthread_cond_t work, finished, quiet; /* finished: a read, or a thread at the end */
    bool ready;                           /* lock and conditions exist */
    /* Under lock: */
    en_job_list urgent, later, done, unused;
    en_read_job *to_hash[EN_DISK_READS_MAX]; /* a ring: a job may be in a list as well */
    uint32_t to_hash_first, to_hash_count;
    uint32_t bounces_free;              /* bits */
    uint32_t under_way[EN_DEVICES_MAX]; /* pieces, at most spec.depth */
    uint8_t *bad;                       /* owned [copies][records]: quarantined */
    bool closing;
    uint32_t running;        /* threads */
    const char *scrub_waits; /* pack that the scrub reads, else NULL */
    en_tier_disk_stats stats;
    /* Scrub: */
    pthread_t scrubber;
    bool scrubbing;
    uint64_t scrub_period_ns;
    rt_slab scrub_buffer;
};

void en_jobs_push(en_job_list *list, en_read_job *job);
void en_jobs_push_front(en_job_list *list, en_read_job *job);
/* Takes `job`, which follows `before` (NULL: it is the first), out of the list. */
void en_jobs_unlink(en_job_list *list, en_read_job *before, en_read_job *job);
void en_jobs_remove(en_job_list *list, en_read_job *job); /* `job` is in it */
en_read_job *en_jobs_pop(en_job_list *list);              /* NULL: the list is empty */

size_t en_disk_cell(const en_tier_disk *disk, uint32_t copy, uint32_t record);
md_record en_disk_record_of(const en_tier_disk *disk, uint32_t copy, uint32_t record);
/* Notes that a copy's record is bad, and warns once. Under lock. */
void en_disk_quarantine(en_tier_disk *disk, uint32_t record, uint32_t copy, const rt_err *err);

/* A thread with all signals blocked: they are for the main thread. An errno. */
int en_disk_start_thread(pthread_t *thread, void *(*run)(void *), void *context);
void *en_disk_read_loop(void *context); /* of an en_disk_reader */
/* A thread that such a loop was run by is at its end. Under lock. */
void en_disk_leave(en_tier_disk *disk);

/* What a wait that goes on too long has told already; zeros at first. */
typedef struct {
    uint64_t since_ns, told_after_ns;
} en_disk_patience;

/* Waits until something is finished, or for a while: the caller asks again. A disk may never answer: one
 * that takes too long is named, and a stop need not wait for it (base/stop.h). Under lock. */
void en_disk_wait(en_tier_disk *disk, en_disk_patience *patience);
/* `ns` later. */
struct timespec en_disk_time_add(struct timespec time, uint64_t ns);

#endif
