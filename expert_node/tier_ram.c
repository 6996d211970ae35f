/* tier_ram.c - planning and filling the slots of the RAM tier. */
#include "expert_node/tier_ram.h"

#include "base/check.h"
#include "expert_node/evict.h"
#include "placement/planner.h"

#include <stdlib.h>

static uint32_t owned_in(const en_inventory *inventory, uint32_t layer)
{
    return inventory->layer_first[layer + 1] - inventory->layer_first[layer];
}

static size_t slot_bytes(const en_inventory *inventory, uint32_t layer)
{
    size_t largest = 0;

    for (uint32_t r = inventory->layer_first[layer]; r < inventory->layer_first[layer + 1]; r++) {
        size_t bytes = en_inventory_kept_bytes(inventory, r);
        if (bytes > largest) largest = bytes;
    }
    return largest;
}

/* One slot more for each layer in turn, as long as there is room: equal counts, and what is left over
 * goes to the lowest layers, whose heat is the flattest. */
static void deal_slots(const en_inventory *inventory, const size_t *bytes, uint64_t room,
                       en_ram_plan *plan)
{
    bool dealt = true;

    while (dealt) {
        dealt = false;
        for (uint32_t layer = 0; layer < inventory->layers; layer++) {
            if (plan->layer_slots[layer] == owned_in(inventory, layer)) continue;
            if (bytes[layer] > room) return;
            room -= bytes[layer];
            plan->slab_bytes += bytes[layer];
            plan->layer_slots[layer]++;
            plan->cached++;
            dealt = true;
        }
    }
}

static uint64_t total_bytes(const en_inventory *inventory, size_t *largest)
{
    uint64_t total = 0;

    *largest = 0;
    for (uint32_t r = 0; r < inventory->count; r++) {
        size_t bytes = en_inventory_kept_bytes(inventory, r);
        total += bytes;
        if (bytes > *largest) *largest = bytes;
    }
    return total;
}

rt_status en_ram_plan_make(const en_inventory *inventory, uint64_t budget_bytes,
                           uint64_t reserved_bytes, uint32_t transit_wanted, en_ram_plan *out,
                           rt_err *err)
{
    en_ram_plan plan = {0};
    uint64_t total = total_bytes(inventory, &plan.transit_bytes);
    uint64_t needed = (uint64_t)plan.transit_bytes * PL_TRANSIT_LEAST + reserved_bytes;
    size_t *bytes = calloc(inventory->layers, sizeof(*bytes));

    plan.layer_slots = calloc(inventory->layers, sizeof(*plan.layer_slots));
    if (bytes == NULL || plan.layer_slots == NULL) {
        free(bytes);
        en_ram_plan_fini(&plan);
        return rt_fail(err, RT_ENOMEM, "expert store: plan of %u layers", inventory->layers);
    }
    if (total <= budget_bytes) {
        for (uint32_t layer = 0; layer < inventory->layers; layer++)
            plan.layer_slots[layer] = owned_in(inventory, layer);
        plan.cached = inventory->count;
        plan.slab_bytes = total;
    } else if (budget_bytes >= needed) {
        plan.transit =
            pl_transit_slots(budget_bytes, reserved_bytes, plan.transit_bytes, transit_wanted);
        plan.slab_bytes = (uint64_t)plan.transit * plan.transit_bytes;
        for (uint32_t layer = 0; layer < inventory->layers; layer++)
            bytes[layer] = slot_bytes(inventory, layer);
        deal_slots(inventory, bytes, budget_bytes - reserved_bytes - plan.slab_bytes, &plan);
    } else {
        free(bytes);
        en_ram_plan_fini(&plan);
        return rt_fail(err, RT_ENOMEM,
                       "expert store: %llu bytes of RAM given; at least %llu are needed to read "
                       "experts of %zu bytes from disk (%llu hold all %u)",
                       (unsigned long long)budget_bytes, (unsigned long long)needed,
                       plan.transit_bytes, (unsigned long long)total, inventory->count);
    }
    free(bytes);
    *out = plan;
    return RT_OK;
}

uint64_t en_store_least_bytes(const md_container *container, const pl_map *map, uint32_t node,
                              bool with_mtp, bool scrub)
{
    const md_config *config = md_container_config(container);
    uint32_t layers = with_mtp ? md_config_layers_total(config) : config->layers;
    uint64_t total = 0, largest = 0, bounce = 0, record = 0, least;

    for (uint32_t layer = 0; layer < layers; layer++) {
        md_expert_layout layout;
        if (!config->sparse[layer]) continue;
        md_container_expert_layout(container, layer, &layout);
        for (uint32_t expert = 0; expert < config->experts; expert++) {
            uint32_t mask = pl_map_mask(map, layer, expert, node) & en_all_slices(&layout);
            size_t bytes = en_slices_bytes(&layout, mask);
            total += bytes;
            if (bytes > largest) largest = bytes;
            if (mask != 0 && layout.record_bytes > record) record = layout.record_bytes;
            if (mask != 0 && mask != en_all_slices(&layout) && layout.record_bytes > bounce)
                bounce = layout.record_bytes;
        }
    }
    least = largest * PL_TRANSIT_LEAST + bounce;
    return (total < least ? total : least) + (scrub ? record : 0);
}

void en_ram_plan_fini(en_ram_plan *plan)
{
    free(plan->layer_slots);
    plan->layer_slots = NULL;
}

static void cut_slots(en_tier_ram *ram, const en_ram_plan *plan)
{
    const en_inventory *inventory = ram->inventory;
    bool exact = plan->transit == 0;
    uint64_t offset = 0;
    uint32_t next = 0;

    for (uint32_t layer = 0; layer < inventory->layers; layer++) {
        size_t bytes = slot_bytes(inventory, layer);
        uint32_t record = inventory->layer_first[layer];
        ram->layer_first[layer] = next;
        ram->layers_used += owned_in(inventory, layer) > 0;
        for (uint32_t i = 0; i < plan->layer_slots[layer]; i++) {
            ram->slots[next++] = (en_slot){.offset = offset, .record = EN_NO_RECORD};
            offset += exact ? en_inventory_kept_bytes(inventory, record++) : bytes;
        }
    }
    ram->layer_first[inventory->layers] = ram->transit_first = next;
    for (uint32_t i = 0; i < plan->transit; i++) {
        ram->slots[next++] = (en_slot){.offset = offset, .record = EN_NO_RECORD};
        offset += plan->transit_bytes;
    }
    RT_ASSERT(offset == plan->slab_bytes && next == ram->slot_count);
}

rt_status en_tier_ram_init(en_tier_ram *out, const en_inventory *inventory, const en_ram_plan *plan,
                           rt_err *err)
{
    en_tier_ram ram = {.inventory = inventory, .slot_count = plan->cached + plan->transit};
    rt_status status;

    ram.slots = calloc((size_t)ram.slot_count + 1, sizeof(*ram.slots));
    ram.slot_of = calloc((size_t)inventory->count + 1, sizeof(*ram.slot_of));
    ram.layer_first = calloc((size_t)inventory->layers + 1, sizeof(*ram.layer_first));
    if (ram.slots == NULL || ram.slot_of == NULL || ram.layer_first == NULL) {
        status = rt_fail(err, RT_ENOMEM, "expert store: %u slots", ram.slot_count);
        goto fail;
    }
    for (uint32_t r = 0; r < inventory->count; r++)
        ram.slot_of[r] = EN_NO_SLOT;
    if (plan->slab_bytes > 0) {
        status = rt_slab_alloc(plan->slab_bytes, &ram.slab, err);
        if (status != RT_OK) goto fail;
    }
    cut_slots(&ram, plan);
    *out = ram;
    return RT_OK;
fail:
    en_tier_ram_fini(&ram);
    return status;
}

void en_tier_ram_fini(en_tier_ram *ram)
{
    rt_slab_free(&ram->slab);
    free(ram->layer_first);
    free(ram->slot_of);
    free(ram->slots);
    *ram = (en_tier_ram){0};
}

bool en_tier_ram_holds_all(const en_tier_ram *ram)
{
    return ram->transit_first == ram->inventory->count;
}

void *en_tier_ram_data(const en_tier_ram *ram, uint32_t slot)
{
    return (uint8_t *)ram->slab.data + ram->slots[slot].offset;
}

static bool may_go(const en_slot *slot)
{
    return slot->state == EN_SLOT_READY && slot->refs == 0 && !slot->pinned && !slot->wanted;
}

static double heat_of(const en_tier_ram *ram, const pl_heat *heat, uint32_t record)
{
    const en_owned *owned = &ram->inventory->records[record];

    return pl_heat_get(heat, owned->layer, owned->expert);
}

/* The layer's empty slot, else its coldest if the record is hotter, else EN_NO_SLOT. */
static uint32_t choose_cached(const en_tier_ram *ram, const pl_heat *heat, uint32_t record)
{
    uint32_t layer = ram->inventory->records[record].layer;
    uint64_t lowest = UINT64_MAX;
    uint32_t best = EN_NO_SLOT;

    for (uint32_t i = ram->layer_first[layer]; i < ram->layer_first[layer + 1]; i++) {
        const en_slot *slot = &ram->slots[i];
        uint64_t score;
        if (slot->state == EN_SLOT_EMPTY) return i;
        if (!may_go(slot)) continue;
        score = en_evict_score(heat_of(ram, heat, slot->record),
                               (ram->frame - slot->used) / ram->layers_used);
        if (score >= lowest) continue;
        lowest = score;
        best = i;
    }
    if (best == EN_NO_SLOT) return best;
    return en_evict_displaces(heat_of(ram, heat, record),
                              heat_of(ram, heat, ram->slots[best].record))
               ? best
               : EN_NO_SLOT;
}

static uint32_t choose_transit(const en_tier_ram *ram)
{
    uint32_t best = EN_NO_SLOT;

    for (uint32_t i = ram->transit_first; i < ram->slot_count; i++) {
        const en_slot *slot = &ram->slots[i];
        if (slot->state == EN_SLOT_EMPTY) return i;
        if (!may_go(slot)) continue;
        if (best == EN_NO_SLOT || slot->used < ram->slots[best].used) best = i;
    }
    return best;
}

void en_tier_ram_assign(en_tier_ram *ram, uint32_t record, uint32_t slot)
{
    en_slot *to = &ram->slots[slot];

    RT_ASSERT(to->state == EN_SLOT_EMPTY && ram->slot_of[record] == EN_NO_SLOT);
    to->record = record;
    to->state = EN_SLOT_READING;
    to->used = ram->frame;
    ram->slot_of[record] = slot;
}

static void clear(en_tier_ram *ram, uint32_t slot)
{
    en_slot *from = &ram->slots[slot];

    ram->slot_of[from->record] = EN_NO_SLOT;
    *from = (en_slot){.offset = from->offset, .record = EN_NO_RECORD};
}

uint32_t en_tier_ram_place(en_tier_ram *ram, const pl_heat *heat, uint32_t record,
                           en_evicted *evicted)
{
    uint32_t slot = choose_cached(ram, heat, record);

    *evicted = EN_EVICTED_NONE;
    if (slot == EN_NO_SLOT) slot = choose_transit(ram);
    if (slot == EN_NO_SLOT) return slot;
    if (ram->slots[slot].state == EN_SLOT_READY) {
        *evicted = ram->slots[slot].ahead ? EN_EVICTED_UNUSED : EN_EVICTED;
        clear(ram, slot);
    }
    en_tier_ram_assign(ram, record, slot);
    return slot;
}

void en_tier_ram_arrived(en_tier_ram *ram, uint32_t slot, bool whole)
{
    RT_ASSERT(ram->slots[slot].state == EN_SLOT_READING);
    if (whole)
        ram->slots[slot].state = EN_SLOT_READY;
    else
        clear(ram, slot);
}
