/* store.c - plans the RAM of a node's experts, loads what fits, stages the rest. */
#include "expert_node/store.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/progress.h"
#include "base/slab.h"
#include "base/stop.h"
#include "expert_node/disk.h"

#include <stdlib.h>
#include <string.h>

enum {
    STAGING_RAM_DIVISOR = 8, /* staging takes at most an eighth: residents never miss */
};

static const uint32_t NOT_OWNED = UINT32_MAX;
static const uint32_t RESIDENT_SLOT = UINT32_MAX;
static const uint32_t EMPTY = UINT32_MAX;

typedef struct {
    uint16_t layer, expert;
    uint32_t mask;   /* owned slices */
    uint64_t offset; /* in the slab; residents only */
} owned_record;

typedef struct {
    uint32_t record; /* index of what it holds, or EMPTY */
    uint32_t pins;
    uint64_t used; /* tick of the last acquire */
} staging_slot;

struct en_store {
    const md_container *container; /* borrowed */
    uint32_t layers, experts;
    md_expert_layout *layouts; /* owned [layers]; of sparse ones */
    bool *buffered;            /* owned [layers]: its pack's filesystem refuses O_DIRECT */
    uint32_t *index;           /* owned [layers][experts] into records, or NOT_OWNED */
    owned_record *records;     /* owned; by layer, then expert */
    uint32_t record_count, resident_count;
    rt_slab slab;   /* residents, then staging slots */
    rt_slab bounce; /* whole records of which only slices are kept */
    uint64_t resident_bytes;
    size_t slot_bytes;   /* of a staging slot */
    staging_slot *slots; /* owned [slot_count] */
    uint32_t slot_count;
    uint64_t tick;
    rt_clock clock;
    en_store_stats stats;
};

static uint32_t all_slices(const md_expert_layout *layout)
{
    RT_ASSERT(layout->slices >= 1 && layout->slices <= MD_SLICES_MAX);
    return UINT32_MAX >> (MD_SLICES_MAX - layout->slices);
}

static bool is_whole(const en_store *store, const owned_record *record)
{
    const md_expert_layout *layout = &store->layouts[record->layer];

    return record->mask == all_slices(layout);
}

/* What the owned slices of a record take in RAM, each a multiple of 4 KiB. */
static size_t slices_bytes(const md_expert_layout *layout, uint32_t mask)
{
    size_t bytes = 0;

    for (uint32_t s = 0; s < layout->slices; s++) {
        if (mask >> s & 1) bytes += md_slice_size(layout, s);
    }
    return bytes;
}

static size_t kept_bytes(const en_store *store, const owned_record *record)
{
    return slices_bytes(&store->layouts[record->layer], record->mask);
}

/* An owned record that this copy lacks is found at start, not by the first token that needs it. */
static rt_status check_held(const en_store *store, const owned_record *record, rt_err *err)
{
    md_key key = {record->layer, MD_EXPERT, record->expert};
    const md_expert_layout *layout = &store->layouts[record->layer];
    md_record found;
    char name[64];

    md_key_format(key, name, sizeof(name));
    if (!md_container_find(store->container, key, &found)) {
        return rt_fail(err, RT_EFORMAT, "%s: not in the manifest", name);
    }
    if (found.fd < 0) {
        return rt_fail(err, RT_EIO, "%s: %s is this node's, but this copy does not hold it",
                       found.pack, name);
    }
    if (found.bytes != layout->record_bytes) {
        return rt_fail(err, RT_EFORMAT, "%s: %s: expected %zu bytes, found %llu", found.pack, name,
                       layout->record_bytes, (unsigned long long)found.bytes);
    }
    return RT_OK;
}

/* Fills index and records from the map. */
static rt_status take_inventory(en_store *store, const en_store_spec *spec, rt_err *err)
{
    const md_config *config = md_container_config(store->container);
    size_t cells = (size_t)store->layers * store->experts;
    size_t count = 0;

    for (uint32_t layer = 0; layer < store->layers; layer++) {
        if (!config->sparse[layer]) continue;
        md_container_expert_layout(store->container, layer, &store->layouts[layer]);
        for (uint32_t expert = 0; expert < store->experts; expert++) {
            if (pl_map_mask(spec->map, layer, expert, spec->node) != 0) count++;
        }
    }
    store->records = calloc(count > 0 ? count : 1, sizeof(*store->records));
    if (store->records == NULL) return rt_fail(err, RT_ENOMEM, "expert store: %zu records", count);
    for (size_t i = 0; i < cells; i++) {
        store->index[i] = NOT_OWNED;
    }
    for (uint32_t layer = 0; layer < store->layers; layer++) {
        if (!config->sparse[layer]) continue;
        for (uint32_t expert = 0; expert < store->experts; expert++) {
            uint32_t mask = pl_map_mask(spec->map, layer, expert, spec->node) &
                            all_slices(&store->layouts[layer]);
            owned_record *record = &store->records[store->record_count];
            if (mask == 0) continue;
            *record = (owned_record){(uint16_t)layer, (uint16_t)expert, mask, 0};
            RT_TRY(check_held(store, record, err));
            store->index[(size_t)layer * store->experts + expert] = store->record_count++;
        }
    }
    return RT_OK;
}

typedef struct {
    uint64_t total; /* of all owned records */
    size_t largest; /* of one */
    size_t bounce;  /* read buffer, 0 when every record is owned whole */
    uint32_t slots; /* staging */
} ram_plan;

static void measure(const md_expert_layout *layout, uint32_t mask, ram_plan *plan)
{
    size_t bytes = slices_bytes(layout, mask);

    plan->total += bytes;
    if (bytes > plan->largest) plan->largest = bytes;
    if (mask != all_slices(layout) && layout->record_bytes > plan->bounce)
        plan->bounce = layout->record_bytes;
}

/* To read experts from disk. */
static uint64_t least_bytes(const ram_plan *plan)
{
    return (uint64_t)plan->largest * EN_STORE_SLOTS_LEAST + plan->bounce;
}

uint64_t en_store_least_bytes(const md_container *container, const pl_map *map, uint32_t node,
                              bool with_mtp)
{
    const md_config *config = md_container_config(container);
    uint32_t layers = with_mtp ? md_config_layers_total(config) : config->layers;
    ram_plan plan = {0};

    for (uint32_t layer = 0; layer < layers; layer++) {
        md_expert_layout layout;

        if (!config->sparse[layer]) continue;
        md_container_expert_layout(container, layer, &layout);
        for (uint32_t expert = 0; expert < config->experts; expert++) {
            uint32_t mask = pl_map_mask(map, layer, expert, node) & all_slices(&layout);

            if (mask != 0) measure(&layout, mask, &plan);
        }
    }
    return plan.total < least_bytes(&plan) ? plan.total : least_bytes(&plan);
}

/* Decides residents and staging slots. Staging stays small: under the cyclic access of layer after
 * layer a bigger LRU hits no more often, while each resident record is a sure hit. */
static rt_status plan_ram(en_store *store, uint64_t ram_bytes, ram_plan *plan, rt_err *err)
{
    uint32_t topk = md_container_config(store->container)->topk;
    uint64_t room, needed;

    *plan = (ram_plan){0};
    for (uint32_t i = 0; i < store->record_count; i++)
        measure(&store->layouts[store->records[i].layer], store->records[i].mask, plan);
    if (plan->total <= ram_bytes) {
        store->resident_count = store->record_count;
        store->resident_bytes = plan->total;
        return RT_OK;
    }
    needed = least_bytes(plan);
    if (ram_bytes < needed) {
        return rt_fail(err, RT_ENOMEM,
                       "expert store: %llu bytes of RAM given; at least %llu are needed to read "
                       "experts of %zu bytes from disk (%llu hold all %u)",
                       (unsigned long long)ram_bytes, (unsigned long long)needed, plan->largest,
                       (unsigned long long)plan->total, store->record_count);
    }
    room = ram_bytes / STAGING_RAM_DIVISOR / plan->largest;
    plan->slots = room > topk + 1 ? topk + 1 : (uint32_t)room;
    if (plan->slots < EN_STORE_SLOTS_LEAST) plan->slots = EN_STORE_SLOTS_LEAST;
    room = ram_bytes - (uint64_t)plan->largest * plan->slots;
    /* An eighth and a read buffer may be more than a tiny budget has beside two slots. */
    if (room < plan->bounce) plan->slots = EN_STORE_SLOTS_LEAST;
    room = ram_bytes - (uint64_t)plan->largest * plan->slots - plan->bounce;
    while (store->resident_count < store->record_count) {
        size_t bytes = kept_bytes(store, &store->records[store->resident_count]);
        if (store->resident_bytes + bytes > room) break;
        store->resident_bytes += bytes;
        store->resident_count++;
    }
    return RT_OK;
}

static rt_status take_ram(en_store *store, const ram_plan *plan, rt_err *err)
{
    size_t bytes = store->resident_bytes + plan->largest * plan->slots;

    if (bytes > 0) RT_TRY(rt_slab_alloc(bytes, &store->slab, err));
    if (plan->bounce > 0) RT_TRY(rt_slab_alloc(plan->bounce, &store->bounce, err));
    if (plan->slots > 0) {
        store->slots = calloc(plan->slots, sizeof(*store->slots));
        if (store->slots == NULL) return rt_fail(err, RT_ENOMEM, "expert store: staging slots");
        store->slot_count = plan->slots;
        store->slot_bytes = plan->largest;
        for (uint32_t i = 0; i < plan->slots; i++) {
            store->slots[i].record = EMPTY;
        }
    }
    return RT_OK;
}

/* The owned slices of a record, back to back at data. */
static rt_status read_record(en_store *store, const owned_record *record, uint8_t *data,
                             rt_err *err)
{
    md_key key = {record->layer, MD_EXPERT, record->expert};
    const md_expert_layout *layout = &store->layouts[record->layer];
    bool whole = is_whole(store, record);
    uint8_t *target = whole ? data : store->bounce.data;
    md_record disk;

    RT_ASSERT(md_container_find(store->container, key, &disk));
    RT_TRY(en_disk_read(&disk, target, &store->buffered[record->layer], err));
    store->stats.read_bytes += disk.bytes;
    if (whole) return RT_OK;
    for (uint32_t s = 0; s < layout->slices; s++) {
        if (!(record->mask >> s & 1)) continue;
        memcpy(data, target + md_slice_offset(layout, s), md_slice_size(layout, s));
        data += md_slice_size(layout, s);
    }
    return RT_OK;
}

static rt_status load_residents(en_store *store, bool quiet, rt_err *err)
{
    rt_progress *progress = rt_progress_begin("load experts", store->resident_bytes, quiet);
    rt_status status = RT_OK;
    uint64_t offset = 0;

    for (uint32_t i = 0; i < store->resident_count; i++) {
        owned_record *record = &store->records[i];
        size_t bytes = kept_bytes(store, record);
        if (rt_stop_requested()) {
            status = rt_fail(err, RT_ECANCELED, "load experts: stopped");
            break;
        }
        record->offset = offset;
        status = read_record(store, record, (uint8_t *)store->slab.data + offset, err);
        if (status != RT_OK) break;
        offset += bytes;
        rt_progress_add(progress, bytes);
    }
    rt_progress_end(progress);
    return status;
}

rt_status en_store_open(const en_store_spec *spec, en_store **out, rt_err *err)
{
    const md_config *config = md_container_config(spec->container);
    en_store *store = calloc(1, sizeof(*store));
    ram_plan plan;
    rt_status status;

    if (store == NULL) return rt_fail(err, RT_ENOMEM, "expert store");
    store->container = spec->container;
    store->layers = spec->with_mtp ? md_config_layers_total(config) : config->layers;
    store->experts = config->experts;
    store->clock = rt_clock_real();
    store->layouts = calloc(store->layers, sizeof(*store->layouts));
    store->buffered = calloc(store->layers, sizeof(*store->buffered));
    store->index = calloc((size_t)store->layers * store->experts, sizeof(*store->index));
    if (store->layouts == NULL || store->buffered == NULL || store->index == NULL) {
        status = rt_fail(err, RT_ENOMEM, "expert store: index of %u layers", store->layers);
        goto fail;
    }
    status = take_inventory(store, spec, err);
    if (status != RT_OK) goto fail;
    status = plan_ram(store, spec->ram_bytes, &plan, err);
    if (status != RT_OK) goto fail;
    status = take_ram(store, &plan, err);
    if (status != RT_OK) goto fail;
    status = load_residents(store, spec->quiet, err);
    if (status != RT_OK) goto fail;
    if (store->slot_count == 0) rt_slab_free(&store->bounce);
    store->stats = (en_store_stats){.records = store->record_count,
                                    .records_in_ram = store->resident_count,
                                    .ram_bytes = store->slab.bytes + store->bounce.bytes};
    *out = store;
    return RT_OK;
fail:
    en_store_close(store);
    return status;
}

void en_store_close(en_store *store)
{
    if (store == NULL) return;
    for (uint32_t i = 0; i < store->slot_count; i++) {
        RT_ASSERT(store->slots[i].pins == 0);
    }
    rt_slab_free(&store->bounce);
    rt_slab_free(&store->slab);
    free(store->slots);
    free(store->records);
    free(store->index);
    free(store->buffered);
    free(store->layouts);
    free(store);
}

static uint32_t find_record(const en_store *store, uint32_t layer, uint32_t expert)
{
    if (layer >= store->layers || expert >= store->experts) return NOT_OWNED;
    return store->index[(size_t)layer * store->experts + expert];
}

static void fill_record(const en_store *store, const owned_record *record, const uint8_t *data,
                        uint32_t slot, en_record *out)
{
    const md_expert_layout *layout = &store->layouts[record->layer];

    memset(out, 0, sizeof(*out));
    out->slice_mask = record->mask;
    out->slot = slot;
    for (uint32_t s = 0; s < layout->slices; s++) {
        if (!(record->mask >> s & 1)) continue;
        out->slice[s] = data;
        data += md_slice_size(layout, s);
    }
}

/* The slot that holds the record, else the unpinned one that was used longest ago (empty ones were
 * never used), else slot_count. */
static uint32_t choose_slot(const en_store *store, uint32_t record)
{
    uint32_t best = store->slot_count;

    for (uint32_t i = 0; i < store->slot_count; i++) {
        const staging_slot *slot = &store->slots[i];
        if (slot->record == record) return i;
        if (slot->pins > 0) continue;
        if (best == store->slot_count || slot->used < store->slots[best].used) best = i;
    }
    return best;
}

static uint8_t *slot_data(const en_store *store, uint32_t slot)
{
    return (uint8_t *)store->slab.data + store->resident_bytes + slot * store->slot_bytes;
}

static rt_status stage(en_store *store, uint32_t record, uint32_t slot, rt_err *err)
{
    uint64_t begin = rt_clock_now(&store->clock);
    rt_status status;

    store->slots[slot].record = EMPTY; /* a failed read leaves no half record to be found */
    status = read_record(store, &store->records[record], slot_data(store, slot), err);
    store->stats.reads++;
    store->stats.wait_ns += rt_clock_now(&store->clock) - begin;
    if (status != RT_OK) return status;
    store->slots[slot].record = record;
    return RT_OK;
}

rt_status en_store_acquire(en_store *store, uint32_t layer, uint32_t expert, en_record *out,
                           rt_err *err)
{
    uint32_t found = find_record(store, layer, expert);
    const owned_record *record;
    uint32_t slot;

    if (found == NOT_OWNED) {
        return rt_fail(err, RT_EINVAL, "layer %u expert %u: not held by this node", layer, expert);
    }
    record = &store->records[found];
    if (found < store->resident_count) {
        store->stats.hits++;
        fill_record(store, record, (const uint8_t *)store->slab.data + record->offset,
                    RESIDENT_SLOT, out);
        return RT_OK;
    }
    slot = choose_slot(store, found);
    if (slot == store->slot_count) {
        return rt_fail(err, RT_EBUSY, "layer %u expert %u: all %u staging slots are in use", layer,
                       expert, store->slot_count);
    }
    if (store->slots[slot].record == found) {
        store->stats.hits++;
    } else {
        RT_TRY(stage(store, found, slot, err));
    }
    store->slots[slot].pins++;
    store->slots[slot].used = ++store->tick;
    fill_record(store, record, slot_data(store, slot), slot, out);
    return RT_OK;
}

void en_store_release(en_store *store, const en_record *record)
{
    if (record->slot == RESIDENT_SLOT) return;
    RT_ASSERT(record->slot < store->slot_count && store->slots[record->slot].pins > 0);
    store->slots[record->slot].pins--;
}

uint32_t en_store_pins_max(const en_store *store)
{
    return store->slot_count;
}

bool en_store_is_resident(const en_store *store, uint32_t layer, uint32_t expert)
{
    return find_record(store, layer, expert) < store->resident_count;
}

uint32_t en_store_mask(const en_store *store, uint32_t layer, uint32_t expert)
{
    uint32_t found = find_record(store, layer, expert);

    return found == NOT_OWNED ? 0 : store->records[found].mask;
}

en_store_stats en_store_get_stats(const en_store *store)
{
    return store->stats;
}
