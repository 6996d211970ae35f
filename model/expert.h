/* expert.h - the shape of an expert record: its slices back to back.
 *
 * A slice is a fixed range of the intermediate width (those rows of gate and up, those columns of
 * down): a complete small FFN. It is the unit of placement and of the exact combine, also when one
 * node owns the whole expert. Slices start 4 KiB aligned in the record, so that O_DIRECT can read
 * one alone. Inside a slice: gate, up, down, each a packed kn_qmat at a 64-byte aligned offset.
 *
 * Width: max(g, inter/8 rounded down to a multiple of g), widened by g while (topk + shared) x
 * slices would exceed the 127 contributions that int32 always holds, or the shared expert has more
 * than MD_SLICES_MAX slices. */
#ifndef MODEL_EXPERT_H
#define MODEL_EXPERT_H

#include "kernels/qmat.h"
#include "model/config.h"

enum { MD_RECORD_ALIGN = 4096, MD_SLICES_MAX = 32 };

typedef struct {
    kn_format format;
    uint32_t hidden, inter;             /* inter of the whole expert, without padding */
    uint32_t hidden_group, inter_group; /* numerics R2; inter_group also <= inter / 2 */
    uint32_t slice_width;               /* multiple of inter_group */
    uint32_t slices;                    /* ceil(inter / slice_width) */
    size_t slice_bytes;                 /* of a full slice, a multiple of MD_RECORD_ALIGN */
    size_t record_bytes;                /* all slices; the last may be shorter */
} md_expert_layout;

typedef struct {
    kn_qmat gate, up; /* [width][hidden] */
    kn_qmat down;     /* [hidden][width] */
    uint32_t width;   /* intermediate neurons of this slice */
} md_slice;

uint32_t md_inter_group(uint32_t inter);
uint32_t
md_slice_width(const md_config *config); /* of the routed experts; the shared one uses it too */

/* Whether a container may use this width: whole groups, at most MD_SLICES_MAX slices, and no more
 * contributions than the exact combine holds. */
bool md_slice_width_fits(const md_config *config, uint32_t width);

/* inter: config->expert_inter, or expert_inter * shared_experts for the shared expert. The group of
 * the intermediate width is that of `inter`, halved until it divides the slice width. */
void md_expert_layout_init(md_expert_layout *out, kn_format format, uint32_t hidden, uint32_t inter,
                           uint32_t slice_width);

uint32_t md_slice_begin(const md_expert_layout *layout, uint32_t slice); /* first neuron */
uint32_t md_slice_neurons(const md_expert_layout *layout, uint32_t slice);
size_t md_slice_offset(const md_expert_layout *layout, uint32_t slice); /* in the record */
size_t md_slice_size(const md_expert_layout *layout, uint32_t slice);   /* bytes, 4 KiB multiple */

/* Views of slice `slice` whose bytes start at `data` (64-byte aligned). */
md_slice md_slice_view(const md_expert_layout *layout, uint32_t slice, const void *data);

#endif
