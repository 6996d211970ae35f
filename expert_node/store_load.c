/* store_load.c - the start of a store. */
#include "expert_node/store_load.h"

#include "base/check.h"
#include "base/progress.h"
#include "base/stop.h"
#include "placement/planner.h"

#include <stdlib.h>

static bool shared(const pl_heat *heat, const pl_heat *known, uint32_t layer)
{
    return layer < pl_heat_layers(known) && pl_heat_sparse(known, layer) &&
           pl_heat_sparse(heat, layer);
}

void en_heat_seed(pl_heat *heat, const pl_heat *known, uint32_t topk)
{
    double limit = pl_heat_layer_limit(heat, topk), most = 0, scale;
    uint32_t experts = pl_heat_experts(heat);

    if (pl_heat_experts(known) != experts) return;
    for (uint32_t layer = 0; layer < pl_heat_layers(heat); layer++) {
        double total = shared(heat, known, layer) ? pl_heat_layer_total(known, layer) : 0;
        if (total > most) most = total;
    }
    scale = most > limit ? limit / most : 1;
    for (uint32_t layer = 0; layer < pl_heat_layers(heat); layer++) {
        if (!shared(heat, known, layer)) continue;
        for (uint32_t expert = 0; expert < experts; expert++)
            pl_heat_add(heat, layer, expert, scale * pl_heat_get(known, layer, expert));
    }
}

/* Assigns the layer's records to its slots, hottest first, and pins the first of them. */
static rt_status assign_layer(en_tier_ram *ram, const pl_heat *heat, uint32_t layer, double pin,
                              rt_err *err)
{
    const en_inventory *inventory = ram->inventory;
    uint32_t slot = ram->layer_first[layer], end = ram->layer_first[layer + 1];
    uint32_t pinned = slot + (uint32_t)(pin * (end - slot));
    uint32_t found;
    pl_heat_entry *order;
    rt_status status;

    if (slot == end) return RT_OK;
    order = calloc(inventory->experts, sizeof(*order));
    if (order == NULL) return rt_fail(err, RT_ENOMEM, "expert store: heat of layer %u", layer);
    status = pl_heat_layer_top(heat, layer, order, inventory->experts, &found);
    for (uint32_t i = 0; status == RT_OK && i < found && slot < end; i++) {
        uint32_t record = en_inventory_find(inventory, layer, order[i].expert);
        if (record == EN_NOT_OWNED) continue;
        en_tier_ram_assign(ram, record, slot);
        ram->slots[slot].pinned = slot < pinned && order[i].heat > 0;
        slot++;
    }
    free(order);
    return status == RT_OK ? RT_OK : rt_fail(err, status, "expert store: heat of layer %u", layer);
}

/* When everything fits, a slot has the size of its record: each goes where it was cut for. */
static void assign_all(en_tier_ram *ram)
{
    for (uint32_t r = 0; r < ram->inventory->count; r++) {
        en_tier_ram_assign(ram, r, r);
        ram->slots[r].pinned = true;
    }
}

/* Reads into the slots that are assigned, as many at a time as the disks take. */
static rt_status read_assigned(en_tier_ram *ram, en_tier_disk *disk, rt_progress *progress,
                               rt_err *err)
{
    uint32_t next = 0;
    en_disk_done done;

    for (;;) {
        if (rt_stop_requested()) return rt_fail(err, RT_ECANCELED, "load experts: stopped");
        while (next < ram->transit_first && en_tier_disk_asked(disk) < EN_DISK_READS_MAX) {
            en_slot *slot = &ram->slots[next];
            if (slot->state == EN_SLOT_READING &&
                !en_tier_disk_ask(disk, slot->record, en_tier_ram_data(ram, next), next, true))
                break;
            next++;
        }
        if (!en_tier_disk_next(disk, true, &done, err)) return RT_OK;
        if (done.status != RT_OK) return done.status;
        rt_progress_add(progress,
                        en_inventory_kept_bytes(ram->inventory, ram->slots[done.tag].record));
        en_tier_ram_arrived(ram, done.tag, true);
    }
}

rt_status en_store_load(en_tier_ram *ram, en_tier_disk *disk, const pl_heat *heat,
                        const pl_heat *known, bool quiet, rt_err *err)
{
    double pin = known == NULL ? 0 : pl_pinned_share(pl_heat_confidence(known));
    rt_progress *progress;
    rt_status status;
    uint64_t bytes = 0;

    if (en_tier_ram_holds_all(ram))
        assign_all(ram);
    else
        for (uint32_t layer = 0; layer < ram->inventory->layers; layer++)
            RT_TRY(assign_layer(ram, heat, layer, pin, err));
    for (uint32_t i = 0; i < ram->transit_first; i++)
        if (ram->slots[i].state == EN_SLOT_READING)
            bytes += en_inventory_kept_bytes(ram->inventory, ram->slots[i].record);
    progress = rt_progress_begin("load experts", bytes, quiet);
    status = read_assigned(ram, disk, progress, err);
    rt_progress_end(progress);
    return status;
}
