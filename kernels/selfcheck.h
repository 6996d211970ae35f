/* selfcheck.h - does this machine compute the bits that were promised? Every kernel on fixed inputs
 * against a committed hash of its output.
 *
 * Bit identity between variants is claimed for processors on which this was run (docs/numerics.md);
 * with it any machine can prove itself. The golden test and `moesaic bench --selfcheck` share this
 * table. A hash that changes with the source means other tokens for every existing container (raise
 * the numerics id) or other bytes of a conversion (raise the conversion id).
 *
 * Threads: none may compute meanwhile: the active variant is switched. */
#ifndef KERNELS_SELFCHECK_H
#define KERNELS_SELFCHECK_H

#include "base/status.h"
#include "kernels/select.h"

#include <stdint.h>

typedef struct {
    const char *what; /* "q4 times int8, groups of 64" */
    uint64_t expected, found;
} kn_selfcheck_row;

uint32_t kn_selfcheck_count(void);

/* Fills rows [kn_selfcheck_count()] for one variant. The variant selected before is selected again
 * afterwards.
 *   Errors  RT_EUNSUPPORTED  this processor cannot run the variant
 *           RT_ENOMEM */
RT_MUST_CHECK rt_status kn_selfcheck(kn_variant variant, kn_selfcheck_row *rows, rt_err *err);

#endif
