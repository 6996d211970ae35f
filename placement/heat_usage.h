/* heat_usage.h - reads the usage text of another engine (colibri's .coli_usage) into a heat.
 *
 * Lines (also with CR LF, also after a byte order mark) are "layer expert count", blanks between, in any order; layers count from the model's first.
 * Two kinds of header line may be among them: "-1 layers experts" states the shape, "-2 version hash"
 * the format and the build that wrote it (neither changes what the other lines mean). Empty lines and
 * lines that begin with # are skipped. Nothing is guessed: whatever else a line says is refused with
 * its number, and so is an expert that is listed twice, since nobody knows whether to add or replace.
 *
 * Threads: any. */
#ifndef PLACEMENT_HEAT_USAGE_H
#define PLACEMENT_HEAT_USAGE_H

#include "placement/heat.h"

#include <stddef.h>

typedef struct {
    uint64_t lines;    /* with counts */
    double selections; /* their sum */
} pl_heat_usage;

/* Adds the counts of text [bytes] to heat. Neither tokens nor decay: the caller knows what they are
 * worth. On an error the heat is unchanged.
 *   main_layers  the layers without MTP layers, which a stated shape may leave out
 *   name         of the file, for the text only
 *   Errors  RT_EFORMAT  a line that is none of the above, a count beyond PL_HEAT_COUNT_MAX, an expert
 *                       listed twice (line number, expected and found); no line with counts
 *           RT_EINVAL   another model's: the stated shape, a layer or an expert that the model does not
 *                       have, or counts in a layer without experts (line number, expected and found)
 *           RT_ENOMEM */
RT_MUST_CHECK rt_status pl_heat_usage_read(const char *text, size_t bytes, uint32_t main_layers,
                                           const char *name, pl_heat *heat, pl_heat_usage *out,
                                           rt_err *err);

#endif
