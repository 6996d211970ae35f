/* slab.h - large aligned memory: 2 MiB aligned, huge pages by madvise, zero-filled by the kernel.
 *
 * Why: weights streamed from 4 KiB pages lose 10-30 % of the read bandwidth (docs/performance.md).
 * Small asks (< 2 MiB) get plain 4 KiB-aligned pages. Either is fit for O_DIRECT.
 *
 * Threads: any. */
#ifndef BASE_SLAB_H
#define BASE_SLAB_H

#include "base/status.h"

#include <stddef.h>

typedef struct {
    void *data; /* NULL when empty */
    size_t bytes;
} rt_slab;

/* RT_ENOMEM names the size; *out is untouched then. bytes > 0. */
RT_MUST_CHECK rt_status rt_slab_alloc(size_t bytes, rt_slab *out, rt_err *err);
void rt_slab_free(rt_slab *slab); /* accepts an empty slab; leaves it empty */

#endif
