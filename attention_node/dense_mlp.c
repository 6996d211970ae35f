/* dense_mlp.c - as the slices of experts are computed, but split over output tiles. */
#include "attention_node/dense_mlp.h"

#include "kernels/mathf.h"

enum { GROUP_MIN = 16 }; /* the smallest quantisation group */

size_t an_dense_cost(const md_config *config, uint32_t rows)
{
    return rt_arena_cost((size_t)rows * config->inter * sizeof(float)) * 2 +
           an_rows_quant_cost(rows, config->inter, GROUP_MIN);
}

size_t an_dense_member_bytes(const md_config *config)
{
    return an_rows_member_bytes(config->inter);
}

typedef struct {
    float *gate;
    const float *up;
    size_t inter;
} silu_job;

static void silu_chunk(void *context, size_t row, uint32_t member)
{
    const silu_job *job = context;
    float *gate = job->gate + row * job->inter;

    (void)member;
    kn_silu_mul(gate, gate, job->up + row * job->inter, job->inter);
}

void an_dense_run(const an_pass *pass, uint32_t layer, const kn_rows *x, float *out)
{
    const md_layer_weights *weights = &pass->weights->layers[layer];
    uint32_t inter = weights->gate.rows;
    size_t mark = rt_arena_mark(pass->arena), bytes = (size_t)x->rows * inter * sizeof(float);
    float *gate = rt_arena_take(pass->arena, bytes), *up = rt_arena_take(pass->arena, bytes);
    an_linear maps[2] = {{gate, inter, x, &weights->gate}, {up, inter, x, &weights->up}};
    silu_job job = {gate, up, inter};
    rt_phase before = an_pass_enter(pass, RT_PHASE_DENSE_MLP);
    kn_rows h;

    an_linear_run(pass, maps, 2);
    rt_team_run(pass->team, silu_chunk, &job, x->rows);
    h = an_rows_view(pass, gate, inter, x->rows, inter, weights->down.group,
                     an_wants_int8(pass, weights->down.format));
    an_linear_run(pass, &(an_linear){out, weights->down.rows, &h, &weights->down}, 1);
    an_pass_enter(pass, before);
    rt_arena_return(pass->arena, mark);
}
