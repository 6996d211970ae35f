/* store.h - the expert records this node owns and where each one lives: RAM, else disk.
 *
 * RAM (tier_ram.h) holds what fits: per layer the same number of slots, the hottest pinned, the rest an
 * adaptive cache (evict.h). What is not there is read by the disk tier's threads (tier_disk.h) from one of
 * the container's copies, hash-checked, into the cache when it is hotter than what it replaces, else
 * into a transit slot. Memory is taken at open and never grows.
 *
 * A frame says at once which experts it wants (en_store_begin): all reads are asked, and records are
 * given (en_store_take) as they are there, those in RAM first, so that disk and computation overlap.
 *
 * Heat is counted here, from the frames that this node sees: decayed counts with a short half-life,
 * seeded by the heat file's at open. Only speed depends on it, never a token.
 *
 * VRAM has its place as the tier of a record: en_record.tier says whose memory the slices lie in.
 *
 * Threads: the node's owner thread. */
#ifndef EXPERT_NODE_STORE_H
#define EXPERT_NODE_STORE_H

#include "base/budget.h"
#include "expert_node/disk.h"
#include "model/container/container.h"
#include "placement/heat.h"
#include "placement/map.h"

typedef struct en_store en_store;

typedef enum { EN_TIER_VRAM, EN_TIER_RAM, EN_TIER_DISK } en_tier;

enum {
    /* Long enough to tell the 128th from the 129th of 256 experts, short enough to follow a change of
     * topic within an answer or two (docs/DECISIONS.md). */
    EN_HEAT_HALF_LIFE_TOKENS = 4096,
    EN_SCRUB_PERIOD_S = 2, /* between two records: 10 MB/s at GLM-5.2's size */
};

typedef struct {
    const md_container *container; /* borrowed; outlives the store */
    const pl_map *map;             /* borrowed for the call: which records are this node's */
    uint32_t node;
    uint64_t ram_bytes;  /* the most to use; only what is needed is taken */
    const char *mirrors; /* other copies' folders, separated by ':'; NULL: none */
    const pl_heat
        *heat;     /* what is known about the model so far; borrowed for the call; NULL: nothing */
    bool with_mtp; /* the MTP layers' experts too */
    bool buffered; /* read through the page cache */
    bool scrub;    /* verify what the disks hold in the background */
    bool quiet;
    const en_disk_ops *disk; /* borrowed for the call; NULL: the real one */
} en_store_spec;

typedef struct {
    uint64_t records, records_in_ram; /* owned; in RAM when opened */
    uint64_t records_pinned;
    uint64_t ram_bytes;                /* held: slots, read buffers */
    uint64_t hits_pinned, hits_cached; /* wants answered from RAM */
    uint64_t hits;                     /* their sum */
    uint64_t reads;                    /* wants that had to wait for a disk */
    uint64_t read_bytes;               /* that came from disks since open, hints' included */
    uint64_t wait_ns;                  /* nothing to do but wait for a disk */
    uint64_t evictions;
    uint64_t ahead_reads, ahead_useful,
        ahead_wasted;                    /* by hints; those of no use yet are neither */
    uint64_t read_failures, quarantined; /* attempts; records of copies */
} en_store_stats;

/* Loads what fits of the owned records, the hottest of each layer first, with progress.
 *   Errors  RT_ENOMEM  ram_bytes holds not even two transit slots (needed and given are named), or
 *                      the machine refuses the memory
 *           RT_EIO     an owned record is in no copy of the container (named), or a read failed
 *           RT_EFORMAT a record's bytes do not match the manifest in any copy (named)
 *           RT_EINVAL  a mirror is of another model (both ids are named)
 *           RT_ECANCELED  a stop was requested while loading */
RT_MUST_CHECK rt_status en_store_open(const en_store_spec *spec, en_store **out, rt_err *err);
void en_store_close(en_store *store);

/* The least ram_bytes with which a store of this node opens: all of its records, or the transit slots
 * and the read buffer when those take less; with `scrub` its buffer too. `container` may be a blueprint. */
uint64_t en_store_least_bytes(const md_container *container, const pl_map *map, uint32_t node,
                              bool with_mtp, bool scrub);

typedef struct {
    const void *slice[MD_SLICES_MAX]; /* data of each owned slice, NULL for others */
    uint32_t slice_mask;
    en_tier tier;  /* whose memory that is: EN_TIER_RAM */
    bool staged;   /* it was not in RAM when the frame began */
    uint32_t slot; /* private to the store */
} en_record;

typedef struct {
    uint32_t expert;
    uint32_t selections; /* rows that chose it: its heat */
} en_want;

/* A frame begins: what it wants of a layer, owned here (asserted), none twice. Reads are asked for what
 * is not in RAM. Ends a frame that was left. rows: of the frame, the time that heat knows. */
void en_store_begin(en_store *store, uint32_t layer, const en_want *wants, uint32_t count,
                    uint32_t rows);
/* Gives one of the wants that are left and pins it until release: *index of wants. Without `wait`
 * *index is EN_NONE_READY when all that are left still have to be read.
 *   Errors  RT_EIO, RT_EFORMAT  a wanted record cannot be read from any copy (record, pack, and expected and
 *                               found hash are named)
 *           RT_EBUSY   with wait: every slot is pinned
 *           RT_ECANCELED  with wait: a stop was requested */
enum { EN_NONE_READY = 0xffffffff };
RT_MUST_CHECK rt_status en_store_take(en_store *store, bool wait, uint32_t *index, en_record *out,
                                      rt_err *err);
void en_store_release(en_store *store, const en_record *record);
/* The frame is done, or given up. */
void en_store_end(en_store *store);

/* Experts that the next frames may want: read early, behind all wants, into slots that are free or whose
 * record is colder. Takes effect when the next frame has begun, or by en_store_idle. Replaces
 * what an earlier hint left. What this node does not own is skipped. */
void en_store_hint(en_store *store, uint32_t layer, const uint16_t *experts, uint32_t count);
void en_store_idle(en_store *store);

/* A frame of one want. Errors of take; RT_EINVAL: not owned here. */
RT_MUST_CHECK rt_status en_store_acquire(en_store *store, uint32_t layer, uint32_t expert,
                                         en_record *out, rt_err *err);

bool en_store_holds_all(const en_store *store); /* in RAM: there is nothing to read */
bool en_store_is_resident(const en_store *store, uint32_t layer, uint32_t expert); /* now */
uint32_t en_store_mask(const en_store *store, uint32_t layer, uint32_t expert); /* 0: not owned */

en_store_stats en_store_get_stats(const en_store *store);

#endif
