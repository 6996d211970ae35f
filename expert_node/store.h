/* store.h - the expert records this node owns and where each one lives: RAM, else disk.
 *
 * The resident records lie packed in one slab of 2 MiB-aligned huge pages, lowest layers first.
 * What does not fit the budget is read from the container on demand (O_DIRECT, buffered where
 * refused) into a few equal staging slots, which are a small cache of their own: the least recently
 * used unpinned slot is given up. Residents are not of one size (MTP experts have the dense format,
 * masks differ with slices), so equal slots for all would waste up to half of the RAM. Every record
 * is hash-checked when it comes from disk. Tuned tiers, heat and eviction policies build on this
 * interface later; VRAM becomes another tier behind acquire.
 *
 * Threads: open/close and acquire/release from the node's owner thread. */
#ifndef EXPERT_NODE_STORE_H
#define EXPERT_NODE_STORE_H

#include "base/budget.h"
#include "model/container/container.h"
#include "placement/map.h"

typedef struct en_store en_store;

/* Staging slots with which experts can be used from disk: one being computed, one kept or read. */
enum { EN_STORE_SLOTS_LEAST = 2 };

typedef struct {
    const md_container *container; /* borrowed; outlives the store */
    const pl_map *map;             /* borrowed for the call: which records are this node's */
    uint32_t node;
    uint64_t ram_bytes; /* the most to use; only what is needed is taken */
    bool with_mtp;      /* the MTP layers' experts too */
    bool quiet;
} en_store_spec;

typedef struct {
    uint64_t records, records_in_ram; /* owned; resident */
    uint64_t ram_bytes;               /* held: residents, staging slots, read buffer */
    uint64_t hits, reads, read_bytes; /* acquires answered from RAM; from disk */
    uint64_t wait_ns;                 /* time acquires spent on disk */
} en_store_stats;

/* Loads the owned records up to ram_bytes, lowest layer first, with progress. With sliced ownership
 * only the owned slices are kept; the whole record is read all the same, since its hash covers all
 * of it, through one more buffer of a record's size. When everything fits there are no staging slots.
 *   Errors  RT_ENOMEM  ram_bytes holds not even two staging slots (needed and given are named), or
 *                      the machine refuses the memory
 *           RT_EIO     an owned record is not in this copy of the container (named), or a read failed
 *           RT_EFORMAT a record's bytes do not match the manifest (named)
 *           RT_ECANCELED  a stop was requested while loading */
RT_MUST_CHECK rt_status en_store_open(const en_store_spec *spec, en_store **out, rt_err *err);
void en_store_close(en_store *store);

/* The least ram_bytes with which a store of this node opens: all of its records, or the staging slots
 * and the read buffer when those take less. `container` may be a blueprint. */
uint64_t en_store_least_bytes(const md_container *container, const pl_map *map, uint32_t node,
                              bool with_mtp);

typedef struct {
    const void *slice[MD_SLICES_MAX]; /* data of each owned slice, NULL for others */
    uint32_t slice_mask;
    uint32_t slot; /* private to the store */
} en_record;

/* Gives the owned slices of an expert and pins them until release. Up to en_store_pins_max records
 * may be pinned at once.
 *   Errors  RT_EINVAL  not owned here;  RT_EIO, RT_EFORMAT  the read failed or the hash does not match
 *           RT_EBUSY   every staging slot is pinned */
RT_MUST_CHECK rt_status en_store_acquire(en_store *store, uint32_t layer, uint32_t expert,
                                         en_record *out, rt_err *err);
void en_store_release(en_store *store, const en_record *record);
uint32_t en_store_pins_max(const en_store *store); /* staging slots; residents pin freely */
bool en_store_is_resident(const en_store *store, uint32_t layer, uint32_t expert);
uint32_t en_store_mask(const en_store *store, uint32_t layer, uint32_t expert); /* 0: not owned */

en_store_stats en_store_get_stats(const en_store *store);

#endif
