/* tier_disk.h - the copies of the container and the threads that read experts from them.
 *
 * Records are read in pieces, which are hashed while the next come in. Each disk (device of a pack) has at
 * most four pieces of 1 MiB under way: two left it waiting now and then, more only add latency
 * (docs/performance.md). Some more threads than that serve it, so that checking hashes holds up no read; they
 * sleep while nothing is asked. All readers take from one queue, so that a faster disk reads more: that is
 * how mirrors share the load. What is wanted now goes before what a hint foresees.
 *
 * A read that fails, or whose bytes do not match the manifest, is tried on the other copies, in
 * ROUNDS rounds. A copy's record that did not match is quarantined with one warning: it is read again
 * only when no other copy is left in the round. With one copy a failure is told at once.
 *
 * A disk that does not answer is named in a warning, again and again, and does not hold up a stop.
 *
 * Slices are not read alone: the manifest has one hash for a whole record, and unchecked bytes would
 * break the promise of equal tokens. A record of which only slices are owned passes through a buffer
 * of a whole record's size.
 *
 * Threads: its own readers; all functions from one owner. */
#ifndef EXPERT_NODE_TIER_DISK_H
#define EXPERT_NODE_TIER_DISK_H

#include "expert_node/disk.h"
#include "expert_node/inventory.h"

typedef struct en_tier_disk en_tier_disk;

enum {
    EN_COPIES_MAX = 8,
    EN_DISK_DEPTH = 4,      /* pieces under way of a disk */
    EN_DISK_THREADS = 6,    /* of a disk */
    EN_DISK_BOUNCES = 3,    /* of a copy: one is read, one hashed, one copied from */
    EN_DISK_READS_MAX = 64, /* asked and not yet taken by en_tier_disk_next */
};

typedef struct {
    const en_inventory *inventory;     /* borrowed */
    const md_container *const *copies; /* borrowed [copy_count], 1..EN_COPIES_MAX */
    uint32_t copy_count;
    en_disk_ops ops;
    uint32_t bounces; /* buffers of bounce_bytes; at least 1 when a record is owned in part */
    size_t bounce_bytes;
    size_t piece_bytes; /* at least; whole 4 KiB blocks; 0: what suits disks */
    uint32_t depth;     /* at most EN_DISK_DEPTH; 0: that */
    uint64_t warn_ns;   /* a wait is told after so long, and again after twice that; 0: 10 s */
    bool buffered;      /* never O_DIRECT */
} en_tier_disk_spec;

typedef struct {
    uint64_t reads, bytes; /* that succeeded */
    uint64_t failures;     /* attempts that did not */
    uint64_t quarantined;  /* records of copies */
    uint64_t scrubbed;     /* records verified in the background */
} en_tier_disk_stats;

/* RT_ENOMEM: memory or threads. */
RT_MUST_CHECK rt_status en_tier_disk_create(const en_tier_disk_spec *spec, en_tier_disk **out,
                                            rt_err *err);
void en_tier_disk_free(en_tier_disk *disk); /* what is not read yet is dropped; NULL allowed */

/* Asks for a record's owned slices in data, which stays the disk's until en_tier_disk_next gives it
 * back under the same tag. false: EN_DISK_READS_MAX are asked already. urgent: before all that is not.
 */
bool en_tier_disk_ask(en_tier_disk *disk, uint32_t record, void *data, uint32_t tag, bool urgent);
uint32_t en_tier_disk_asked(const en_tier_disk *disk);
/* The read of `tag` has become urgent, also if it has begun and has to be repeated. */
void en_tier_disk_hurry(en_tier_disk *disk, uint32_t tag);
/* Gives up what is neither urgent nor begun: next returns it as RT_ECANCELED. */
void en_tier_disk_cancel(en_tier_disk *disk);

typedef struct {
    uint32_t tag;
    rt_status status; /* RT_EIO, RT_EFORMAT: of the last copy tried; RT_ECANCELED */
} en_disk_done;

/* The next finished read; false when there is none (with wait: when nothing was asked). err says why
 * status is not RT_OK. */
bool en_tier_disk_next(en_tier_disk *disk, bool wait, en_disk_done *out, rt_err *err);

/* No record will be asked for any more: gives the read buffers back. Nothing is asked. */
void en_tier_disk_end_reads(en_tier_disk *disk);

/* Verifies in the background what the disks hold, one record each period_ns while nothing is asked,
 * over all copies again and again; what does not match is quarantined. Takes a buffer of
 * en_tier_disk_scrub_bytes. RT_ENOMEM. */
RT_MUST_CHECK rt_status en_tier_disk_scrub(en_tier_disk *disk, uint64_t period_ns, rt_err *err);
size_t en_tier_disk_scrub_bytes(const en_inventory *inventory);

en_tier_disk_stats en_tier_disk_get_stats(en_tier_disk *disk);

#endif
