/* gather.h - some rows of a dispatch side by side, as the kernels want them.
 *
 * An expert's rows lie anywhere in its frame. Where they follow one another already (every row of a decode
 * step does) they are used in place.
 *
 * Threads: any, each with its own memory. */
#ifndef EXPERT_NODE_GATHER_H
#define EXPERT_NODE_GATHER_H

#include "kernels/quant.h"
#include "transport/frame.h"

typedef struct {
    const tr_dispatch_view *dispatch; /* borrowed; int8 rows, or f32 */
    const int32_t *sums;              /* [rows][groups] of its int8 rows (kn_rows_sums); borrowed */
    uint32_t hidden, group;           /* group: of int8 rows */
} en_gather_source;

/* The memory that en_gather needs for so many rows of either kind. */
size_t en_gather_bytes(uint32_t rows, uint32_t hidden, uint32_t group);

/* The rows row[count], count >= 1, ascending, as a view of the frame or of copies in memory.
 *   memory  [en_gather_bytes], 64-byte aligned */
kn_rows en_gather(const en_gather_source *from, const uint32_t *row, uint32_t count, void *memory);

#endif
