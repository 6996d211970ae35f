/* shared_expert.c - slices in parallel into tables of f32, then rows in parallel onto the grid.
 *
 * A chunk is one slice for a block of rows: every slice's weights are read once per block. Two jobs
 * instead of sums per member: at hidden 6144 a table of sums for every member and row would be
 * gigabytes on a large machine. */
#include "attention_node/shared_expert.h"

#include "base/check.h"
#include "kernels/grid.h"
#include "model/ffn.h"

#include <string.h>

enum { ROW_BLOCK = 16 };

/* Tables of y that are filled by one job: a whole number of row blocks, two chunks a member. */
static uint32_t blocks_at_once(const md_expert_layout *layout, uint32_t members)
{
    return (2 * members + layout->slices - 1) / layout->slices;
}

static size_t table_bytes(const md_expert_layout *layout)
{
    return (size_t)ROW_BLOCK * layout->hidden * sizeof(float);
}

size_t an_shared_cost(const md_expert_layout *layout, uint32_t members)
{
    return rt_arena_cost(blocks_at_once(layout, members) * layout->slices * table_bytes(layout));
}

size_t an_shared_member_bytes(const md_expert_layout *layout)
{
    size_t ffn =
        an_align(md_ffn_scratch_bytes(ROW_BLOCK, layout->slice_width, layout->inter_group));
    size_t sums = an_align(layout->hidden * sizeof(int32_t));

    return ffn > sums ? ffn : sums;
}

typedef struct {
    const an_pass *pass;
    const md_layer_weights *weights;
    const kn_rows *x;
    an_combine *combine;
    float *y;       /* [row block of this round][slice][ROW_BLOCK][hidden] */
    uint32_t first; /* row this round starts at */
    uint32_t rows;  /* of this round */
} shared_job;

static float *table(const shared_job *job, uint32_t block, uint32_t slice)
{
    const md_expert_layout *layout = &job->weights->shared_layout;

    return job->y + ((size_t)block * layout->slices + slice) * ROW_BLOCK * layout->hidden;
}

static void slice_chunk(void *context, size_t chunk, uint32_t member)
{
    const shared_job *job = context;
    const md_expert_layout *layout = &job->weights->shared_layout;
    uint32_t block = (uint32_t)(chunk / layout->slices);
    uint32_t slice = (uint32_t)(chunk % layout->slices);
    uint32_t begin = block * ROW_BLOCK;
    uint32_t rows = job->rows - begin < ROW_BLOCK ? job->rows - begin : ROW_BLOCK;
    kn_rows x = an_rows_part(job->x, job->first + begin, rows);
    md_slice view = md_slice_view(
        layout, slice, (const char *)job->weights->shared + md_slice_offset(layout, slice));

    if (!an_wants_int8(job->pass, layout->format)) x.q = NULL;
    md_ffn_slice(table(job, block, slice), layout->hidden, &x, &view,
                 an_pass_member(job->pass, member));
}

/* All slices of one row. A contribution beyond int32's range goes to the 64-bit sums at once. */
static void sum_chunk(void *context, size_t chunk, uint32_t member)
{
    const shared_job *job = context;
    const md_expert_layout *layout = &job->weights->shared_layout;
    uint32_t row = (uint32_t)chunk, hidden = layout->hidden;
    int32_t *narrow = an_pass_member(job->pass, member);
    int64_t *sums = an_combine_sums(job->combine, job->first + row);
    float unit = kn_exp2i(job->weights->grid_q); /* weight 1 on the layer's grid */

    memset(narrow, 0, hidden * sizeof(*narrow));
    for (uint32_t slice = 0; slice < layout->slices; slice++) {
        const float *y = table(job, row / ROW_BLOCK, slice) + (size_t)(row % ROW_BLOCK) * hidden;

        switch (kn_grid_add(narrow, y, unit, hidden)) {
        case KN_GRID_NARROW:
            break;
        case KN_GRID_WIDE:
            kn_grid_add_wide(sums, y, unit, hidden);
            break;
        case KN_GRID_POISON:
            an_combine_poison(job->combine, job->first + row);
            break;
        }
    }
    kn_grid_widen(sums, narrow, hidden);
}

rt_status an_shared_run(const an_pass *pass, uint32_t layer, const kn_rows *x, an_combine *combine,
                        an_pump pump, void *pump_context)
{
    const md_layer_weights *weights = &pass->weights->layers[layer];
    const md_expert_layout *layout = &weights->shared_layout;
    size_t mark = rt_arena_mark(pass->arena);
    shared_job job = {.pass = pass, .weights = weights, .x = x, .combine = combine};
    rt_status status = RT_OK;
    uint32_t round;

    if (weights->shared == NULL) return RT_OK;
    RT_ASSERT(layout->hidden == x->cols);
    round = blocks_at_once(layout, pass->members) * ROW_BLOCK;
    rt_profile_bytes(pass->profile, layout->record_bytes);
    job.y = rt_arena_take(pass->arena, an_shared_cost(layout, pass->members));
    while (job.first < x->rows && status == RT_OK) {
        job.rows = x->rows - job.first < round ? x->rows - job.first : round;
        rt_team_run(pass->team, slice_chunk, &job,
                    (size_t)((job.rows + ROW_BLOCK - 1) / ROW_BLOCK) * layout->slices);
        rt_team_run(pass->team, sum_chunk, &job, job.rows);
        job.first += job.rows;
        status = pump(pump_context);
    }
    rt_arena_return(pass->arena, mark);
    return status;
}
