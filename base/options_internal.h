/* options_internal.h - names of options: their twins, and which of several is nearest to a mistyped one. */
#ifndef BASE_OPTIONS_INTERNAL_H
#define BASE_OPTIONS_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>

enum { RT_OPT_NAME_BYTES = 64, RT_OPT_TWIN_BYTES = RT_OPT_NAME_BYTES + 16 };

/* "experts-here" -> "MOESAIC_EXPERTS_HERE" in twin [RT_OPT_TWIN_BYTES]; returns twin. */
const char *rt_opt_twin_name(const char *option, char *twin);

/* The search for the name that was meant. */
typedef struct {
    const char *name; /* as written; borrowed */
    size_t name_bytes;
    size_t best;       /* edits; a found name has fewer */
    const char *found; /* NULL: none is near enough to be meant */
} rt_opt_nearest;

rt_opt_nearest rt_opt_nearest_begin(const char *name, size_t name_bytes);
/* Returns whether this is the nearest so far. */
bool rt_opt_nearest_offer(rt_opt_nearest *nearest, const char *candidate);

#endif
