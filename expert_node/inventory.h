/* inventory.h - which expert records a node owns, and what each takes in RAM.
 *
 * A node owns some slices of an expert (all, unless the map slices experts over nodes). What is kept
 * are the owned slices back to back; what is read is always the whole record, whose hash covers it.
 *
 * Threads: any after creation. */
#ifndef EXPERT_NODE_INVENTORY_H
#define EXPERT_NODE_INVENTORY_H

#include "model/container/container.h"
#include "placement/map.h"

enum { EN_NOT_OWNED = 0xffffffff };

typedef struct {
    uint16_t layer, expert;
    uint32_t mask; /* owned slices, not 0 */
} en_owned;

typedef struct {
    uint32_t layers, experts;
    md_expert_layout *layouts; /* owned [layers]; of layers with experts, else zeros */
    uint32_t *index;           /* owned [layers][experts] into records, or EN_NOT_OWNED */
    en_owned *records;         /* owned [count], by layer, then expert */
    uint32_t *layer_first;     /* owned [layers + 1]: records of a layer */
    uint32_t count;
} en_inventory;

/*   copies    [copy_count >= 1] of one model; a record may be in any of them
 *   with_mtp  the MTP layers' experts too
 *   Errors  RT_EIO      an owned record is in none of the copies (named)
 *           RT_EFORMAT  a record's size is not that of its layer;  RT_ENOMEM */
RT_MUST_CHECK rt_status en_inventory_init(en_inventory *out, const md_container *const *copies,
                                          uint32_t copy_count, const pl_map *map, uint32_t node,
                                          bool with_mtp, rt_err *err);
void en_inventory_fini(en_inventory *inventory);

uint32_t en_all_slices(const md_expert_layout *layout);
size_t en_slices_bytes(const md_expert_layout *layout, uint32_t mask); /* of those slices in RAM */

uint32_t en_inventory_find(const en_inventory *inventory, uint32_t layer, uint32_t expert);
bool en_inventory_is_whole(const en_inventory *inventory, uint32_t record);
size_t en_inventory_kept_bytes(const en_inventory *inventory, uint32_t record);
size_t en_inventory_record_bytes(const en_inventory *inventory, uint32_t record);

/* Copies the owned slices of a whole record to where they are kept. */
void en_inventory_keep(const en_inventory *inventory, uint32_t record, const void *whole,
                       void *kept);

#endif
