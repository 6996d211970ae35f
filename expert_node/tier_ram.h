/* tier_ram.h - the slots in RAM that hold expert records: who lies where, who gives way.
 *
 * All memory is one slab of huge pages, cut at start; nothing is taken later, so the bound is exact.
 * When everything owned fits, each record has a place of exactly its size. Otherwise:
 *   - every layer has the same number of cache slots (a global hot set gains nothing over equal ones:
 *     hottest half of the experts 82.7 against 82.4 % of the choices), each as large as the layer's
 *     largest record: MTP experts have the dense format and would double the slots of all layers;
 *   - the hottest of a layer's slots may be pinned;
 *   - a few transit slots, as large as the largest record, take what is too cold for the cache while it
 *     is computed. They are given up by least recent use.
 * A read goes straight to its slot; what was there is gone when the read is asked.
 *
 * Threads: the store's owner. */
#ifndef EXPERT_NODE_TIER_RAM_H
#define EXPERT_NODE_TIER_RAM_H

#include "base/slab.h"
#include "expert_node/inventory.h"
#include "expert_node/store.h"
#include "placement/heat.h"

enum {
    EN_NO_SLOT = 0xffffffff,
    EN_NO_RECORD = 0xffffffff,
};

typedef enum { EN_SLOT_EMPTY, EN_SLOT_READING, EN_SLOT_READY } en_slot_state;

typedef struct {
    uint64_t offset; /* in the slab */
    uint64_t used;   /* frame that used it last */
    uint32_t record; /* it holds or reads, or EN_NO_RECORD */
    uint32_t refs;
    en_slot_state state;
    bool pinned; /* never given up */
    bool staged; /* read for the frame under way */
    bool wanted; /* by the frame under way, which has not got it yet */
    bool ahead;  /* read because of a hint and not used yet */
} en_slot;

/* What a budget is spent on. */
typedef struct {
    uint64_t slab_bytes;
    uint32_t transit;      /* slots; 0: everything owned is held */
    size_t transit_bytes;  /* of one */
    uint32_t *layer_slots; /* owned [layers]: cache slots */
    uint32_t cached;       /* their sum */
} en_ram_plan;

/* budget_bytes less reserved_bytes (read buffers) is what may be spent, unless all fits without them.
 *   transit_wanted  slots, of which at most an eighth of the budget is spent
 *   Errors  RT_ENOMEM  not even two transit slots fit (needed and given are named), or no memory */
RT_MUST_CHECK rt_status en_ram_plan_make(const en_inventory *inventory, uint64_t budget_bytes,
                                         uint64_t reserved_bytes, uint32_t transit_wanted,
                                         en_ram_plan *out, rt_err *err);
void en_ram_plan_fini(en_ram_plan *plan);

typedef struct {
    const en_inventory *inventory; /* borrowed */
    rt_slab slab;
    en_slot *slots; /* owned: cache slots by layer, then transit */
    uint32_t slot_count, transit_first;
    uint32_t *layer_first; /* owned [layers + 1]: cache slots of a layer */
    uint32_t *slot_of;     /* owned [records] */
    uint32_t layers_used;  /* that have records */
    uint64_t frame;        /* counts frames */
} en_tier_ram;

RT_MUST_CHECK rt_status en_tier_ram_init(en_tier_ram *out, const en_inventory *inventory,
                                         const en_ram_plan *plan, rt_err *err);
void en_tier_ram_fini(en_tier_ram *ram);

bool en_tier_ram_holds_all(const en_tier_ram *ram);
void *en_tier_ram_data(const en_tier_ram *ram, uint32_t slot);

typedef enum {
    EN_EVICTED_NONE,
    EN_EVICTED,
    EN_EVICTED_UNUSED /* a hint's read, in vain */
} en_evicted;

/* A slot for a record that has none: an empty one of its layer, that of a colder record (evict.h), else a
 * transit slot; EN_NO_SLOT when all are in use. The slot then belongs to the record and is READING. */
uint32_t en_tier_ram_place(en_tier_ram *ram, const pl_heat *heat, uint32_t record,
                           en_evicted *evicted);
/* The same in a given empty slot, at start. */
void en_tier_ram_assign(en_tier_ram *ram, uint32_t record, uint32_t slot);
/* The read is done; failed ones leave the slot empty. */
void en_tier_ram_arrived(en_tier_ram *ram, uint32_t slot, bool whole);

#endif
