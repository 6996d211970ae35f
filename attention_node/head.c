/* head.c - the vocabulary in pieces: each piece for all rows, so that lm_head is read once, then
 * copied to where each row's logits belong (sequences have buffers of their own). */
#include "attention_node/head.h"

#include <string.h>

enum {
    PIECE = 64, /* outputs of a chunk: 4 tiles */
    GROUP_MIN = 16,
};

size_t an_head_cost(const md_config *config, uint32_t rows)
{
    return an_rows_quant_cost(rows, config->hidden, GROUP_MIN);
}

size_t an_head_member_bytes(const md_config *config, uint32_t rows)
{
    size_t piece = an_align((size_t)rows * PIECE * sizeof(float));
    size_t quantise = an_rows_member_bytes(config->hidden);

    return piece > quantise ? piece : quantise;
}

typedef struct {
    const an_pass *pass;
    const kn_rows *x;
    float *const *logits;
    _Atomic uint32_t bad;
} head_job;

static void head_chunk(void *context, size_t chunk, uint32_t member)
{
    head_job *job = context;
    const kn_qmat *head = &job->pass->weights->lm_head;
    uint32_t begin = (uint32_t)chunk * PIECE;
    uint32_t count = head->rows - begin < PIECE ? head->rows - begin : PIECE;
    kn_qmat piece = kn_qmat_rows(head, begin, count);
    float *y = an_pass_member(job->pass, member);

    kn_matmul(y, PIECE, job->x, &piece, 0, count);
    for (uint32_t row = 0; row < job->x->rows; row++) {
        const float *logit = y + (size_t)row * PIECE;

        if (!an_is_finite(logit, count)) an_note_lowest(&job->bad, row);
        memcpy(job->logits[row] + begin, logit, count * sizeof(float));
    }
}

/* TOKEN:11 the last hidden state -> logits. */
rt_status an_head_run(const an_pass *pass, const float *x, uint32_t rows, float *const *logits,
                      uint32_t *bad_row)
{
    const kn_qmat *head = &pass->weights->lm_head;
    size_t mark = rt_arena_mark(pass->arena);
    kn_rows view;
    head_job job = {.pass = pass, .x = &view, .logits = logits};

    if (rows == 0) return RT_OK;
    view = an_rows_view(pass, x, pass->config->hidden, rows, pass->config->hidden, head->group,
                        an_wants_int8(pass, head->format));
    atomic_init(&job.bad, rows);
    rt_profile_bytes(pass->profile, an_qmat_bytes(head));
    rt_team_run(pass->team, head_chunk, &job, (head->rows + PIECE - 1) / PIECE);
    rt_arena_return(pass->arena, mark);
    *bad_row = atomic_load(&job.bad);
    return *bad_row < rows ? RT_ENUMERIC : RT_OK;
}
