/* unit.h - converts one record: reads its tensors by row blocks, quantises, hands the bytes on.
 *
 * Everything but an expert streams through blocks of a MB or so in ascending order; an expert's record
 * is assembled whole, since every row of down has a part in every slice.
 *
 * Threads: any, each with its own arena. */
#ifndef MODEL_CONVERT_UNIT_H
#define MODEL_CONVERT_UNIT_H

#include "base/arena.h"
#include "model/convert/plan.h"

enum { MD_UNIT_BLOCK_BYTES = 1 << 20 }; /* f32 of a row block, unless 16 rows are more */

/* Takes a record's bytes, ascending and without gaps from offset 0. An error ends the unit. */
typedef struct {
    rt_status (*write)(void *context, uint64_t offset, const void *data, size_t bytes, rt_err *err);
    void *context;
} md_unit_sink;

typedef struct {
    md_hash128 hash; /* of the whole record */
    double power;    /* P_e^2 of experts, 0 for others */
} md_unit_result;

/* Arena bytes that md_unit_convert takes for this unit. */
size_t md_unit_memory(const md_unit *unit, const md_config *config);

/* The arena is as it was afterwards. Errors  of md_source_read_rows and of the sink; RT_ENOMEM. */
RT_MUST_CHECK rt_status md_unit_convert(const md_unit *unit, const md_config *config,
                                        const md_container_info *info, const md_source *source,
                                        rt_arena *arena, const md_unit_sink *sink,
                                        md_unit_result *out, rt_err *err);

#endif
