/* store.c - opens the tiers, counts heat, and brings the records of a frame from one to the other. */
#include "expert_node/store.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/stop.h"
#include "expert_node/copies.h"
#include "expert_node/store_load.h"
#include "expert_node/tier_disk.h"
#include "expert_node/tier_ram.h"
#include "placement/planner.h"

#include <stdlib.h>
#include <string.h>

enum { HINTS_MAX = 64 };

struct en_store {
    en_copies copies;
    en_inventory inventory;
    en_tier_ram ram;
    en_tier_disk *disk; /* owned; NULL when everything is in RAM and nothing is scrubbed */
    pl_heat *heat;      /* owned; NULL when there are no records */
    uint32_t layers_used;
    rt_clock clock;
    en_store_stats stats;
    uint64_t loaded_bytes; /* read by open */
    /* The frame under way: */
    uint32_t *wants; /* owned [experts]: records, EN_NO_RECORD once taken */
    uint32_t want_count, want_left;
    uint32_t failed; /* record that could not be read, or EN_NO_RECORD */
    rt_err failure;
    /* What the last hint left: */
    uint32_t hints[HINTS_MAX]; /* records */
    uint32_t hint_count, hint_layer;
};

static rt_status open_heat(en_store *store, const en_store_spec *spec, rt_err *err)
{
    const md_config *config = md_container_config(spec->container);
    pl_heat_spec heat = {.layers = store->inventory.layers,
                         .sparse = config->sparse,
                         .experts = store->inventory.experts,
                         .half_life_tokens = EN_HEAT_HALF_LIFE_TOKENS};

    if (store->inventory.count == 0) return RT_OK;
    RT_TRY(pl_heat_create(&heat, &store->heat, err));
    if (spec->heat != NULL) en_heat_seed(store->heat, spec->heat, config->topk);
    return RT_OK;
}

/* Reads buffers for records that are owned in part: some for each copy, at most an eighth of the RAM. */
static uint32_t bounce_count(const en_store *store, uint64_t ram_bytes, size_t *bytes)
{
    uint64_t count;

    *bytes = 0;
    for (uint32_t r = 0; r < store->inventory.count; r++) {
        size_t whole = en_inventory_record_bytes(&store->inventory, r);
        if (!en_inventory_is_whole(&store->inventory, r) && whole > *bytes) *bytes = whole;
    }
    if (*bytes == 0) return 0;
    count = ram_bytes / 8 / *bytes;
    if (count > (uint64_t)EN_DISK_BOUNCES * store->copies.count)
        count = (uint64_t)EN_DISK_BOUNCES * store->copies.count;
    return count < 1 ? 1 : (uint32_t)count;
}

static rt_status open_tiers(en_store *store, const en_store_spec *spec, rt_err *err)
{
    uint32_t topk = md_container_config(spec->container)->topk;
    en_tier_disk_spec disk = {.inventory = &store->inventory,
                              .copies = store->copies.all,
                              .copy_count = store->copies.count,
                              .ops = spec->disk == NULL ? en_disk_real() : *spec->disk,
                              .buffered = spec->buffered};
    uint64_t budget = spec->ram_bytes;
    en_ram_plan plan;
    rt_status status;

    if (spec->scrub) {
        size_t scrub = en_tier_disk_scrub_bytes(&store->inventory);
        budget -= budget < scrub ? budget : scrub;
    }
    disk.bounces = bounce_count(store, budget, &disk.bounce_bytes);
    RT_TRY(en_ram_plan_make(&store->inventory, budget, disk.bounces * disk.bounce_bytes,
                            PL_TRANSIT_PER_CHOICE * topk, &plan, err));
    if (plan.transit == 0 && disk.bounces > 1 &&
        plan.slab_bytes + disk.bounces * disk.bounce_bytes > budget)
        disk.bounces = 1; /* for the time of loading only */
    status = en_tier_ram_init(&store->ram, &store->inventory, &plan, err);
    en_ram_plan_fini(&plan);
    if (status != RT_OK) return status;
    store->stats.ram_bytes = store->ram.slab.bytes;
    if (store->inventory.count == 0) return RT_OK;
    RT_TRY(en_tier_disk_create(&disk, &store->disk, err));
    RT_TRY(en_store_load(&store->ram, store->disk, store->heat, spec->heat, spec->quiet, err));
    store->loaded_bytes = en_tier_disk_get_stats(store->disk).bytes;
    if (en_tier_ram_holds_all(&store->ram) && !spec->scrub) {
        en_tier_disk_free(store->disk);
        store->disk = NULL;
    } else if (en_tier_ram_holds_all(&store->ram)) {
        en_tier_disk_end_reads(store->disk); /* before the scrub's buffer takes their place */
    } else {
        store->stats.ram_bytes += disk.bounces * disk.bounce_bytes;
    }
    if (!spec->scrub) return RT_OK;
    store->stats.ram_bytes += en_tier_disk_scrub_bytes(&store->inventory);
    return en_tier_disk_scrub(store->disk, EN_SCRUB_PERIOD_S * 1000000000ULL, err);
}

rt_status en_store_open(const en_store_spec *spec, en_store **out, rt_err *err)
{
    en_store *store = calloc(1, sizeof(*store));
    rt_status status;

    if (store == NULL) return rt_fail(err, RT_ENOMEM, "expert store");
    store->clock = rt_clock_real();
    store->failed = EN_NO_RECORD;
    status = en_copies_open(&store->copies, spec->container, spec->mirrors, err);
    if (status != RT_OK) goto fail;
    status = en_inventory_init(&store->inventory, store->copies.all, store->copies.count, spec->map,
                               spec->node, spec->with_mtp, err);
    if (status != RT_OK) goto fail;
    store->wants = calloc((size_t)store->inventory.experts + 1, sizeof(*store->wants));
    if (store->wants == NULL) {
        status = rt_fail(err, RT_ENOMEM, "expert store: %u wants", store->inventory.experts);
        goto fail;
    }
    status = open_heat(store, spec, err);
    if (status == RT_OK) status = open_tiers(store, spec, err);
    if (status != RT_OK) goto fail;
    store->layers_used = store->ram.layers_used > 0 ? store->ram.layers_used : 1;
    store->stats.records = store->inventory.count;
    for (uint32_t i = 0; i < store->ram.slot_count; i++) {
        store->stats.records_in_ram += store->ram.slots[i].state == EN_SLOT_READY;
        store->stats.records_pinned += store->ram.slots[i].pinned;
    }
    *out = store;
    return RT_OK;
fail:
    en_store_close(store);
    return status;
}

void en_store_close(en_store *store)
{
    if (store == NULL) return;
    for (uint32_t i = 0; i < store->ram.slot_count; i++)
        RT_ASSERT(store->ram.slots[i].refs == 0);
    en_tier_disk_free(store->disk); /* before the memory it reads into */
    en_tier_ram_fini(&store->ram);
    pl_heat_free(store->heat);
    free(store->wants);
    en_inventory_fini(&store->inventory);
    en_copies_close(&store->copies);
    free(store);
}

static en_slot *slot_of(const en_store *store, uint32_t record)
{
    uint32_t slot = store->ram.slot_of[record];

    return slot == EN_NO_SLOT ? NULL : &store->ram.slots[slot];
}

/* Asks for a record that has no slot; false when there is none for it now, or no room in the queue. */
static bool ask(en_store *store, uint32_t record, bool urgent)
{
    en_evicted evicted;
    uint32_t slot;

    if (en_tier_disk_asked(store->disk) == EN_DISK_READS_MAX) return false;
    slot = en_tier_ram_place(&store->ram, store->heat, record, &evicted);
    if (slot == EN_NO_SLOT) return false;
    store->stats.evictions += evicted != EN_EVICTED_NONE;
    store->stats.ahead_wasted += evicted == EN_EVICTED_UNUSED;
    store->ram.slots[slot].wanted = store->ram.slots[slot].staged = urgent;
    store->ram.slots[slot].ahead = !urgent;
    store->stats.ahead_reads += !urgent;
    if (!en_tier_disk_ask(store->disk, record, en_tier_ram_data(&store->ram, slot), slot, urgent))
        RT_ASSERT(false);
    return true;
}

/* Takes what the disk has finished; waits for the first when told to. */
static bool collect(en_store *store, bool wait)
{
    en_disk_done done;
    rt_err err = {RT_OK, ""};
    bool any = false;

    while (store->disk != NULL && en_tier_disk_next(store->disk, wait && !any, &done, &err)) {
        en_slot *slot = &store->ram.slots[done.tag];
        if (done.status != RT_OK && slot->wanted) {
            store->failed = slot->record;
            store->failure = err;
        }
        if (done.status == RT_ECANCELED) store->stats.ahead_reads--;
        en_tier_ram_arrived(&store->ram, done.tag, done.status == RT_OK);
        any = true;
    }
    return any;
}

static void ask_wants(en_store *store)
{
    for (uint32_t i = 0; i < store->want_count; i++) {
        uint32_t record = store->wants[i];
        if (record == EN_NO_RECORD || store->ram.slot_of[record] != EN_NO_SLOT) continue;
        if (!ask(store, record, true)) return;
    }
}

static void count_want(en_store *store, en_slot *slot)
{
    bool ready = slot != NULL && slot->state == EN_SLOT_READY;

    store->stats.hits += ready;
    store->stats.hits_pinned += ready && slot->pinned;
    store->stats.hits_cached += ready && !slot->pinned;
    store->stats.reads += !ready;
    if (slot == NULL) return;
    store->stats.ahead_useful += slot->ahead;
    slot->ahead = false;
    slot->staged = !ready;
    slot->wanted = true;
    slot->used = store->ram.frame;
    if (!ready) en_tier_disk_hurry(store->disk, (uint32_t)(slot - store->ram.slots));
}

void en_store_begin(en_store *store, uint32_t layer, const en_want *wants, uint32_t count,
                    uint32_t rows)
{
    en_store_end(store);
    RT_ASSERT(count <= store->inventory.experts);
    store->ram.frame++;
    store->want_count = store->want_left = count;
    if (count == 0) return;
    collect(store, false);
    pl_heat_advance(store->heat, (double)rows / store->layers_used);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t record = en_inventory_find(&store->inventory, layer, wants[i].expert);
        RT_ASSERT(record != EN_NOT_OWNED);
        store->wants[i] = record;
        pl_heat_add(store->heat, layer, wants[i].expert, wants[i].selections);
        count_want(store, slot_of(store, record));
    }
    if (store->disk == NULL) return;
    /* What was foreseen for this layer or one before, and is not wanted. */
    if (layer >= store->hint_layer) en_tier_disk_cancel(store->disk);
    collect(store, false);
    ask_wants(store);
    en_store_idle(store);
}

void en_store_end(en_store *store)
{
    for (uint32_t i = 0; i < store->want_count; i++) {
        en_slot *slot = store->wants[i] == EN_NO_RECORD ? NULL : slot_of(store, store->wants[i]);
        if (slot != NULL) slot->wanted = false;
    }
    store->want_count = store->want_left = 0;
    store->failed = EN_NO_RECORD;
}

static void fill_record(const en_store *store, uint32_t slot, en_record *out)
{
    const en_owned *owned = &store->inventory.records[store->ram.slots[slot].record];
    const md_expert_layout *layout = &store->inventory.layouts[owned->layer];
    const uint8_t *data = en_tier_ram_data(&store->ram, slot);

    *out = (en_record){.slice_mask = owned->mask, .tier = EN_TIER_RAM, .slot = slot};
    for (uint32_t s = 0; s < layout->slices; s++) {
        if (!(owned->mask >> s & 1)) continue;
        out->slice[s] = data;
        data += md_slice_size(layout, s);
    }
}

/* The first want that is in RAM, pinned for the caller; EN_NONE_READY: none is. */
static uint32_t take_ready(en_store *store, en_record *out)
{
    for (uint32_t i = 0; i < store->want_count; i++) {
        uint32_t record = store->wants[i];
        en_slot *slot = record == EN_NO_RECORD ? NULL : slot_of(store, record);
        if (slot == NULL || slot->state != EN_SLOT_READY) continue;
        slot->refs++;
        slot->wanted = false;
        store->wants[i] = EN_NO_RECORD;
        store->want_left--;
        fill_record(store, store->ram.slot_of[record], out);
        out->staged = slot->staged;
        return i;
    }
    return EN_NONE_READY;
}

static rt_status no_slot(const en_store *store, rt_err *err)
{
    uint32_t i = 0;

    while (store->wants[i] == EN_NO_RECORD)
        i++;
    return rt_fail(err, RT_EBUSY, "layer %u expert %u: all %u slots for it are in use",
                   store->inventory.records[store->wants[i]].layer,
                   store->inventory.records[store->wants[i]].expert,
                   store->ram.slot_count - store->ram.transit_first);
}

rt_status en_store_take(en_store *store, bool wait, uint32_t *index, en_record *out, rt_err *err)
{
    RT_ASSERT(store->want_left > 0);
    for (;;) {
        uint64_t begin;
        if (store->failed != EN_NO_RECORD)
            return rt_fail(err, store->failure.status, "%s", store->failure.text);
        *index = take_ready(store, out);
        if (*index != EN_NONE_READY) return RT_OK;
        RT_ASSERT(store->disk != NULL);
        ask_wants(store);
        if (collect(store, false)) continue;
        if (!wait) return RT_OK;
        if (en_tier_disk_asked(store->disk) == 0) return no_slot(store, err);
        if (rt_stop_requested())
            return rt_fail(err, RT_ECANCELED, "stopped by signal %d while reading experts",
                           rt_stop_signal());
        begin = rt_clock_now(&store->clock);
        collect(store, true);
        store->stats.wait_ns += rt_clock_now(&store->clock) - begin;
    }
}

void en_store_release(en_store *store, const en_record *record)
{
    RT_ASSERT(record->slot < store->ram.slot_count && store->ram.slots[record->slot].refs > 0);
    store->ram.slots[record->slot].refs--;
    /* The slot may be what another want waits for: the disk need not idle until the next take. */
    if (store->want_left > 0 && store->disk != NULL) ask_wants(store);
}

void en_store_hint(en_store *store, uint32_t layer, const uint16_t *experts, uint32_t count)
{
    store->hint_count = 0;
    store->hint_layer = layer;
    if (store->disk == NULL) return;
    for (uint32_t i = 0; i < count && store->hint_count < HINTS_MAX; i++) {
        uint32_t record = en_inventory_find(&store->inventory, layer, experts[i]);
        if (record != EN_NOT_OWNED) store->hints[store->hint_count++] = record;
    }
}

/* Sets whether what is foreseen and in RAM already may give way to what is foreseen and is not. */
static void hold_foreseen(en_store *store, const bool *held, bool hold)
{
    for (uint32_t i = 0; i < store->hint_count; i++)
        if (held[i]) slot_of(store, store->hints[i])->wanted = hold;
}

void en_store_idle(en_store *store)
{
    bool held[HINTS_MAX] = {false};

    for (uint32_t i = 0; i < store->hint_count; i++) {
        const en_slot *slot = slot_of(store, store->hints[i]);
        held[i] = slot != NULL && slot->state == EN_SLOT_READY && !slot->wanted;
    }
    hold_foreseen(store, held, true);
    for (uint32_t i = 0; i < store->hint_count; i++)
        if (slot_of(store, store->hints[i]) == NULL && !ask(store, store->hints[i], false)) break;
    hold_foreseen(store, held, false);
    store->hint_count = 0;
}

rt_status en_store_acquire(en_store *store, uint32_t layer, uint32_t expert, en_record *out,
                           rt_err *err)
{
    en_want want = {expert, 1};
    uint32_t index;
    rt_status status;

    if (en_inventory_find(&store->inventory, layer, expert) == EN_NOT_OWNED)
        return rt_fail(err, RT_EINVAL, "layer %u expert %u: not held by this node", layer, expert);
    en_store_begin(store, layer, &want, 1, 1);
    status = en_store_take(store, true, &index, out, err);
    en_store_end(store);
    return status;
}

bool en_store_holds_all(const en_store *store)
{
    return en_tier_ram_holds_all(&store->ram);
}

bool en_store_is_resident(const en_store *store, uint32_t layer, uint32_t expert)
{
    uint32_t record = en_inventory_find(&store->inventory, layer, expert);
    const en_slot *slot = record == EN_NOT_OWNED ? NULL : slot_of(store, record);

    return slot != NULL && slot->state == EN_SLOT_READY;
}

uint32_t en_store_mask(const en_store *store, uint32_t layer, uint32_t expert)
{
    uint32_t record = en_inventory_find(&store->inventory, layer, expert);

    return record == EN_NOT_OWNED ? 0 : store->inventory.records[record].mask;
}

en_store_stats en_store_get_stats(const en_store *store)
{
    en_store_stats stats = store->stats;
    en_tier_disk_stats disk;

    if (store->disk == NULL) return stats;
    disk = en_tier_disk_get_stats(store->disk);
    stats.read_bytes = disk.bytes - store->loaded_bytes;
    stats.read_failures = disk.failures;
    stats.quarantined = disk.quarantined;
    return stats;
}
