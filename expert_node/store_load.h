/* store_load.h - what a store starts with: heat from the file, the hottest records in RAM.
 *
 * Threads: the store's owner. */
#ifndef EXPERT_NODE_STORE_LOAD_H
#define EXPERT_NODE_STORE_LOAD_H

#include "expert_node/tier_disk.h"
#include "expert_node/tier_ram.h"

/* heat += known, scaled down so that no layer has more than it could ever count itself: an old heat must
 * not outweigh what happens now for longer than the half-life. */
void en_heat_seed(pl_heat *heat, const pl_heat *known, uint32_t topk);

/* Fills the cache slots of every layer with its hottest records (lowest ids where heat is equal), and
 * pins of them as many as `known` is sure of (NULL: none): half of the slots at most, so that the rest
 * can follow what this run is about.
 *   Errors  of reading, with the record named;  RT_ENOMEM;  RT_ECANCELED  a stop was requested */
RT_MUST_CHECK rt_status en_store_load(en_tier_ram *ram, en_tier_disk *disk, const pl_heat *heat,
                                      const pl_heat *known, bool quiet, rt_err *err);

#endif
