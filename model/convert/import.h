/* import.h - what an import has to find out before it can be planned: whether the source is complete,
 * what of it comes from the second directory, and the formats that keep every integer.
 *
 * A container has one format for its routed experts and one for the other matrices. int4 fits into
 * int8 with the same scales, so the widest integers of each decide; values among integers would have
 * to be rounded, or all else blown up, and are refused.
 *
 * Threads: any. */
#ifndef MODEL_CONVERT_IMPORT_H
#define MODEL_CONVERT_IMPORT_H

#include "kernels/qmat.h"
#include "model/config.h"
#include "model/convert/plan.h"

/* Tensors of the model by how the source stores them, scales not counted. */
typedef struct {
    uint64_t int8_rows, int4_rows, int4_groups, values;
    uint64_t expanded; /* of the integers: stored as f32, each its exact value */
    uint64_t indexer_elsewhere, mtp_elsewhere; /* from the second directory */
} md_import_summary;

typedef struct {
    kn_format expert_format, dense_format;
    md_import_summary summary;
} md_import;

/* Reads the headers of dir (of the colibri engine) and other (NULL: none), and checks names, shapes
 * and formats of all that config's model needs.
 *   Errors  RT_EFORMAT       a tensor is missing (of indexer and MTP layer: counted, and what to do);
 *                            other is of another model; those of md_source_open_foreign
 *           RT_EUNSUPPORTED  a format that is not imported, values among integers, scales for groups
 *                            that are no multiple of ours
 *           RT_EIO, RT_ENOMEM */
RT_MUST_CHECK rt_status md_import_look(const char *dir, const char *other, const md_config *config,
                                       md_import *out, rt_err *err);

/* Whether a source that was opened again after the look still fits the formats that were chosen, for all
 * units that are not done. info: with these formats; plan: resolved.
 *   Errors  RT_EINVAL  the source changed meanwhile; RT_EUNSUPPORTED as above */
RT_MUST_CHECK rt_status md_import_check(const md_plan *plan, const md_config *config,
                                        const md_container_info *info, const md_source *source,
                                        rt_err *err);

#endif
