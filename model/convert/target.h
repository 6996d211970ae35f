/* target.h - the packs of a conversion: every unit's place, written in any order.
 *
 * Threads: md_target_write and md_target_verify from any; the rest from one at a time. */
#ifndef MODEL_CONVERT_TARGET_H
#define MODEL_CONVERT_TARGET_H

#include "model/container/pack.h"
#include "model/convert/plan.h"

typedef struct md_target md_target; /* opaque */

/* Creates the packs of a plan in dir, or reopens those of an interrupted conversion, and makes their
 * names durable. The plan is borrowed. RT_EIO, RT_ENOSPACE, RT_ENOMEM. */
RT_MUST_CHECK rt_status md_target_create(const char *dir, const md_plan *plan, md_target **out,
                                         rt_err *err);

/* The same packs as an interrupted conversion left them, for md_target_verify alone: a pack that is
 * missing or cut short is no error here. Changes nothing. RT_EIO, RT_ENOMEM. */
RT_MUST_CHECK rt_status md_target_look(const char *dir, const md_plan *plan, md_target **out,
                                       rt_err *err);
void md_target_close(md_target *target); /* NULL allowed */

uint32_t md_target_pack_count(const md_target *target);
bool md_target_pack_exists(const md_target *target, uint32_t pack);
/* "experts-003.bin". Returns text. */
const char *md_target_pack_name(const md_target *target, uint32_t pack, char *text,
                                size_t text_bytes);
uint32_t md_target_pack_of(const md_target *target, uint32_t unit);

RT_MUST_CHECK rt_status md_target_write(md_target *target, uint32_t unit, uint64_t offset,
                                        const void *data, size_t bytes, rt_err *err);

/* Syncs one pack's data. */
RT_MUST_CHECK rt_status md_target_sync(md_target *target, uint32_t pack, rt_err *err);

/* Reads a unit back from the disk and compares it with unit->hash.
 *   Errors  RT_EIO      cannot be read, or its pack is missing
 *           RT_EFORMAT  other bytes than were written
 *           both name the record and its pack; RT_ENOMEM */
RT_MUST_CHECK rt_status md_target_verify(md_target *target, uint32_t unit, rt_err *err);

/* Writes index and header of every pack; all units are done. */
RT_MUST_CHECK rt_status md_target_finish(md_target *target, rt_err *err);

/* Bytes of all packs with headers, indexes and alignment, for units that are not done (what a
 * conversion still has to allocate) and for all. */
uint64_t md_target_file_bytes(const md_plan *plan, bool all);

#endif
