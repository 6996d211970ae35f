/* inventory.c - a node's records from the map, checked against the container. */
#include "expert_node/inventory.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

uint32_t en_all_slices(const md_expert_layout *layout)
{
    RT_ASSERT(layout->slices >= 1 && layout->slices <= MD_SLICES_MAX);
    return UINT32_MAX >> (MD_SLICES_MAX - layout->slices);
}

bool en_inventory_is_whole(const en_inventory *inventory, uint32_t record)
{
    const en_owned *owned = &inventory->records[record];

    return owned->mask == en_all_slices(&inventory->layouts[owned->layer]);
}

/* Each slice is a multiple of 4 KiB, so what is kept stays aligned. */
size_t en_slices_bytes(const md_expert_layout *layout, uint32_t mask)
{
    size_t bytes = 0;

    for (uint32_t s = 0; s < layout->slices; s++)
        if (mask >> s & 1) bytes += md_slice_size(layout, s);
    return bytes;
}

size_t en_inventory_kept_bytes(const en_inventory *inventory, uint32_t record)
{
    const en_owned *owned = &inventory->records[record];

    return en_slices_bytes(&inventory->layouts[owned->layer], owned->mask);
}

size_t en_inventory_record_bytes(const en_inventory *inventory, uint32_t record)
{
    return inventory->layouts[inventory->records[record].layer].record_bytes;
}

void en_inventory_keep(const en_inventory *inventory, uint32_t record, const void *whole,
                       void *kept)
{
    const en_owned *owned = &inventory->records[record];
    const md_expert_layout *layout = &inventory->layouts[owned->layer];
    uint8_t *to = kept;

    for (uint32_t s = 0; s < layout->slices; s++) {
        if (!(owned->mask >> s & 1)) continue;
        memcpy(to, (const uint8_t *)whole + md_slice_offset(layout, s), md_slice_size(layout, s));
        to += md_slice_size(layout, s);
    }
}

uint32_t en_inventory_find(const en_inventory *inventory, uint32_t layer, uint32_t expert)
{
    if (layer >= inventory->layers || expert >= inventory->experts) return EN_NOT_OWNED;
    return inventory->index[(size_t)layer * inventory->experts + expert];
}

/* An owned record that no copy holds is found at start, not by the first token that needs it. */
static rt_status check_held(const en_inventory *inventory, const md_container *const *copies,
                            uint32_t copy_count, uint32_t record, rt_err *err)
{
    const en_owned *owned = &inventory->records[record];
    md_key key = {owned->layer, MD_EXPERT, owned->expert};
    size_t expected = en_inventory_record_bytes(inventory, record);
    const char *pack = "";
    md_record found;
    char name[64];

    md_key_format(key, name, sizeof(name));
    for (uint32_t i = copy_count; i-- > 0;) {
        if (!md_container_find(copies[i], key, &found))
            return rt_fail(err, RT_EFORMAT, "%s: not in the manifest", name);
        if (found.bytes != expected)
            return rt_fail(err, RT_EFORMAT, "%s: %s: expected %zu bytes, found %llu", found.pack,
                           name, expected, (unsigned long long)found.bytes);
        if (found.fd >= 0) return RT_OK;
        pack = found.pack;
    }
    return rt_fail(err, RT_EIO, "%s: %s is this node's, but %s", pack, name,
                   copy_count == 1 ? "this copy does not hold it" : "no copy holds it");
}

static uint32_t owned_mask(const en_inventory *inventory, const pl_map *map, uint32_t node,
                           uint32_t layer, uint32_t expert)
{
    return pl_map_mask(map, layer, expert, node) & en_all_slices(&inventory->layouts[layer]);
}

static rt_status take_memory(en_inventory *inventory, const md_container *container,
                             const pl_map *map, uint32_t node, rt_err *err)
{
    const md_config *config = md_container_config(container);
    size_t cells = (size_t)inventory->layers * inventory->experts;
    size_t count = 0;

    inventory->layouts = calloc(inventory->layers, sizeof(*inventory->layouts));
    inventory->layer_first = calloc((size_t)inventory->layers + 1, sizeof(*inventory->layer_first));
    inventory->index = calloc(cells, sizeof(*inventory->index));
    if (inventory->layouts == NULL || inventory->layer_first == NULL || inventory->index == NULL)
        return rt_fail(err, RT_ENOMEM, "expert store: index of %u layers", inventory->layers);
    for (uint32_t layer = 0; layer < inventory->layers; layer++) {
        if (!config->sparse[layer]) continue;
        md_container_expert_layout(container, layer, &inventory->layouts[layer]);
        for (uint32_t expert = 0; expert < inventory->experts; expert++)
            count += owned_mask(inventory, map, node, layer, expert) != 0;
    }
    inventory->records = calloc(count > 0 ? count : 1, sizeof(*inventory->records));
    if (inventory->records == NULL)
        return rt_fail(err, RT_ENOMEM, "expert store: %zu records", count);
    for (size_t i = 0; i < cells; i++)
        inventory->index[i] = EN_NOT_OWNED;
    return RT_OK;
}

rt_status en_inventory_init(en_inventory *out, const md_container *const *copies,
                            uint32_t copy_count, const pl_map *map, uint32_t node, bool with_mtp,
                            rt_err *err)
{
    const md_config *config = md_container_config(copies[0]);
    en_inventory inventory = {.layers = with_mtp ? md_config_layers_total(config) : config->layers,
                              .experts = config->experts};
    rt_status status = take_memory(&inventory, copies[0], map, node, err);

    if (status != RT_OK) goto fail;
    for (uint32_t layer = 0; layer < inventory.layers; layer++) {
        inventory.layer_first[layer] = inventory.count;
        for (uint32_t expert = 0; config->sparse[layer] && expert < inventory.experts; expert++) {
            uint32_t mask = owned_mask(&inventory, map, node, layer, expert);
            if (mask == 0) continue;
            inventory.records[inventory.count] =
                (en_owned){(uint16_t)layer, (uint16_t)expert, mask};
            status = check_held(&inventory, copies, copy_count, inventory.count, err);
            if (status != RT_OK) goto fail;
            inventory.index[(size_t)layer * inventory.experts + expert] = inventory.count++;
        }
    }
    inventory.layer_first[inventory.layers] = inventory.count;
    *out = inventory;
    return RT_OK;
fail:
    en_inventory_fini(&inventory);
    return status;
}

void en_inventory_fini(en_inventory *inventory)
{
    free(inventory->records);
    free(inventory->index);
    free(inventory->layer_first);
    free(inventory->layouts);
    *inventory = (en_inventory){0};
}
