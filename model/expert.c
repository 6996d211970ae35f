/* expert.c - the arithmetic of expert records: group, slice width, offsets and views.
 *
 * Everything is a closed form of (format, hidden, inter, slice width), so that any node finds a
 * slice in a record without an index. docs/container.md states the same formulas. */
#include "model/expert.h"

#include "base/check.h"
#include "kernels/grid.h"

enum {
    SLICES_WANTED = 8, /* enough to balance four nodes at batch 1, few enough for the combine */
};

static_assert(MD_RECORD_ALIGN % 64 == 0, "slices keep the alignment that kernels need");
static_assert(MD_TOPK_MAX + MD_SHARED_MAX <= KN_GRID_CONTRIBUTIONS_MAX,
              "one slice per expert always fits the exact combine");

static uint32_t round_down(uint32_t value, uint32_t multiple)
{
    return value - value % multiple;
}

static uint32_t slice_count(uint32_t inter, uint32_t width)
{
    return (uint32_t)(((uint64_t)inter + width - 1) / width);
}

static size_t align_record(size_t bytes)
{
    return (bytes + MD_RECORD_ALIGN - 1) / MD_RECORD_ALIGN * MD_RECORD_ALIGN;
}

uint32_t md_inter_group(uint32_t inter)
{
    /* A limit of 0 would mean "none" to kn_group. */
    return kn_group(inter, inter > 1 ? inter / 2 : 1);
}

bool md_slice_width_fits(const md_config *config, uint32_t width)
{
    uint32_t group = md_inter_group(config->expert_inter);
    uint32_t slices, shared_slices;

    if (width == 0 || width % group != 0 || width > kn_round_up(config->expert_inter, group))
        return false;
    slices = slice_count(config->expert_inter, width);
    shared_slices = slice_count(config->expert_inter * config->shared_experts, width);
    return shared_slices <= MD_SLICES_MAX && slices <= MD_SLICES_MAX &&
           (uint64_t)(config->topk + config->shared_experts) * slices <= KN_GRID_CONTRIBUTIONS_MAX;
}

uint32_t md_slice_width(const md_config *config)
{
    uint32_t group = md_inter_group(config->expert_inter);
    uint32_t width = round_down(config->expert_inter / SLICES_WANTED, group);

    if (width < group) width = group;
    while (!md_slice_width_fits(config, width)) {
        width += group;
        RT_ASSERT(width <= kn_round_up(config->expert_inter, group));
    }
    return width;
}

static md_slice slice_shape(const md_expert_layout *layout, uint32_t neurons)
{
    md_slice slice = {.width = neurons};

    slice.gate = (kn_qmat){layout->format, neurons, layout->hidden, layout->hidden_group, NULL};
    slice.up = slice.gate;
    slice.down = (kn_qmat){layout->format, layout->hidden, neurons, layout->inter_group, NULL};
    return slice;
}

static size_t matrix_bytes(const kn_qmat *mat)
{
    return kn_qmat_bytes(mat->format, mat->rows, mat->cols, mat->group);
}

static size_t neurons_bytes(const md_expert_layout *layout, uint32_t neurons)
{
    md_slice slice = slice_shape(layout, neurons);

    return align_record(matrix_bytes(&slice.gate) * 2 + matrix_bytes(&slice.down));
}

void md_expert_layout_init(md_expert_layout *out, kn_format format, uint32_t hidden, uint32_t inter,
                           uint32_t slice_width)
{
    uint32_t last;

    RT_ASSERT(hidden > 0 && inter > 0);
    RT_ASSERT(slice_width > 0 && slice_width % KN_TILE_ROWS == 0);
    *out = (md_expert_layout){
        .format = format,
        .hidden = hidden,
        .inter = inter,
        .hidden_group = kn_group(hidden, 0),
        .inter_group = md_inter_group(inter),
        .slice_width = slice_width,
        .slices = slice_count(inter, slice_width),
    };
    /* A shared expert of several parts is wider than the slices were cut for. */
    while (slice_width % out->inter_group != 0)
        out->inter_group /= 2;
    last = inter - (out->slices - 1) * slice_width;
    out->slice_bytes = neurons_bytes(out, slice_width);
    out->record_bytes = (out->slices - 1) * out->slice_bytes + neurons_bytes(out, last);
}

uint32_t md_slice_begin(const md_expert_layout *layout, uint32_t slice)
{
    RT_ASSERT(slice < layout->slices);
    return slice * layout->slice_width;
}

uint32_t md_slice_neurons(const md_expert_layout *layout, uint32_t slice)
{
    uint32_t left = layout->inter - md_slice_begin(layout, slice);

    return left < layout->slice_width ? left : layout->slice_width;
}

size_t md_slice_offset(const md_expert_layout *layout, uint32_t slice)
{
    RT_ASSERT(slice < layout->slices);
    return slice * layout->slice_bytes;
}

size_t md_slice_size(const md_expert_layout *layout, uint32_t slice)
{
    return slice + 1 < layout->slices ? layout->slice_bytes
                                      : layout->record_bytes - md_slice_offset(layout, slice);
}

md_slice md_slice_view(const md_expert_layout *layout, uint32_t slice, const void *data)
{
    md_slice view = slice_shape(layout, md_slice_neurons(layout, slice));
    const unsigned char *bytes = data;
    size_t gate_bytes = matrix_bytes(&view.gate);

    RT_ASSERT((uintptr_t)data % 64 == 0);
    RT_ASSERT(gate_bytes % 64 == 0);
    view.gate.data = bytes;
    view.up.data = bytes + gate_bytes;
    view.down.data = bytes + gate_bytes * 2;
    return view;
}
