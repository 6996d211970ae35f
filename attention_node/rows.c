/* rows.c - row-parallel and tile-parallel jobs. */
#include "attention_node/rows.h"

#include "base/check.h"
#include "kernels/norm.h"

#include <string.h>

enum {
    ROW_BLOCK = 4,            /* rows of one chunk: a chunk costs a few hundred ns to hand out */
    CHUNKS_PER_MEMBER = 8,    /* so that a descheduled member holds up an eighth of its share */
    GROUP_MIN = 16,           /* the smallest quantisation group */
    CHUNK_WORK_MIN = 1 << 18, /* multiply-adds: 20 us of q8 from memory; for less no member is
                                 worth waking (docs/performance.md) */
};

static uint32_t block_end(uint32_t begin, uint32_t rows)
{
    return rows - begin < ROW_BLOCK ? rows : begin + ROW_BLOCK;
}

static size_t block_count(uint32_t rows)
{
    return (rows + ROW_BLOCK - 1) / ROW_BLOCK;
}

typedef struct {
    float *out;
    const float *x, *weight;
    size_t out_stride, x_stride;
    uint32_t rows, dim;
    float eps;
} norm_job;

static void norm_chunk(void *context, size_t chunk, uint32_t member)
{
    const norm_job *job = context;
    uint32_t begin = (uint32_t)chunk * ROW_BLOCK, end = block_end(begin, job->rows);

    (void)member;
    kn_rms_norm(job->out + begin * job->out_stride, job->out_stride, job->x + begin * job->x_stride,
                job->x_stride, job->weight, end - begin, job->dim, job->eps);
}

void an_rows_norm(const an_pass *pass, float *out, size_t out_stride, const float *x,
                  size_t x_stride, const float *weight, uint32_t rows, uint32_t dim, float eps)
{
    norm_job job = {out, x, weight, out_stride, x_stride, rows, dim, eps};
    rt_phase before = an_pass_enter(pass, RT_PHASE_ROWS);

    rt_team_run(pass->team, norm_chunk, &job, block_count(rows));
    an_pass_enter(pass, before);
}

size_t an_rows_member_bytes(uint32_t cols)
{
    /* The smallest group has the most scales. */
    return an_align(kn_rows_quant_bytes(ROW_BLOCK, cols, GROUP_MIN));
}

size_t an_rows_quant_cost(uint32_t rows, uint32_t cols, uint32_t group)
{
    size_t groups = (size_t)rows * kn_groups(cols, group);

    return rt_arena_cost((size_t)rows * kn_round_up(cols, group)) +
           rt_arena_cost(groups * sizeof(float)) + rt_arena_cost(groups * sizeof(int32_t));
}

typedef struct {
    const an_pass *pass;
    const float *x;
    size_t stride;
    uint32_t rows, cols, group;
    int8_t *q;
    float *scale;
    int32_t *sum;
} quant_job;

/* A block is quantised into the member's memory and copied to its place, since the three parts of
 * all rows lie apart. */
static void quant_chunk(void *context, size_t chunk, uint32_t member)
{
    const quant_job *job = context;
    uint32_t begin = (uint32_t)chunk * ROW_BLOCK, end = block_end(begin, job->rows);
    size_t groups = kn_groups(job->cols, job->group);
    size_t padded = kn_round_up(job->cols, job->group);
    kn_rows block = kn_rows_quantise(job->x + begin * job->stride, job->stride, end - begin,
                                     job->cols, job->group, an_pass_member(job->pass, member));

    memcpy(job->q + begin * padded, block.q, (end - begin) * padded);
    memcpy(job->scale + begin * groups, block.scale, (end - begin) * groups * sizeof(float));
    memcpy(job->sum + begin * groups, block.sum, (end - begin) * groups * sizeof(int32_t));
}

kn_rows an_rows_view(const an_pass *pass, const float *x, size_t stride, uint32_t rows,
                     uint32_t cols, uint32_t group, bool quantise)
{
    kn_rows view = kn_rows_float(x, stride, rows, cols);
    size_t groups = (size_t)rows * kn_groups(cols, group);
    quant_job job = {.pass = pass, .x = x, .stride = stride, .rows = rows, .cols = cols};
    rt_phase before;

    if (!quantise) return view;
    RT_ASSERT(an_rows_member_bytes(cols) <= pass->member_bytes);
    job.group = group;
    job.q = rt_arena_take(pass->arena, (size_t)rows * kn_round_up(cols, group));
    job.scale = rt_arena_take(pass->arena, groups * sizeof(float));
    job.sum = rt_arena_take(pass->arena, groups * sizeof(int32_t));
    before = an_pass_enter(pass, RT_PHASE_ROWS);
    rt_team_run(pass->team, quant_chunk, &job, block_count(rows));
    an_pass_enter(pass, before);
    view.group = group;
    view.q = job.q;
    view.scale = job.scale;
    view.sum = job.sum;
    return view;
}

kn_rows an_rows_part(const kn_rows *x, uint32_t first, uint32_t count)
{
    kn_rows part = *x;

    RT_ASSERT(first <= x->rows && count <= x->rows - first);
    part.rows = count;
    if (x->f32 != NULL) part.f32 = x->f32 + first * x->f32_stride;
    if (x->q != NULL) {
        size_t groups = kn_groups(x->cols, x->group);

        part.q = x->q + (size_t)first * kn_round_up(x->cols, x->group);
        part.scale = x->scale + first * groups;
        part.sum = x->sum + first * groups;
    }
    return part;
}

static uint32_t largest_magnitude(const float *x, size_t count)
{
    uint32_t largest = 0;

    for (size_t i = 0; i < count; i++) {
        uint32_t bits;

        memcpy(&bits, &x[i], sizeof(bits));
        bits &= 0x7fffffffU;
        if (bits > largest) largest = bits;
    }
    return largest;
}

bool an_is_finite(const float *x, size_t count)
{
    return largest_magnitude(x, count) < 0x7f800000U;
}

/* Below 2^55: the squares of 65,536 such values add up to less than 2^126. Beyond, a norm's sum becomes
 * infinite and its output zero, which would look like an answer. */
static bool can_be_normed(const float *x, size_t count)
{
    return largest_magnitude(x, count) < 0x5b000000U;
}

typedef struct {
    float *x;
    const float *y;
    uint32_t rows, cols;
    _Atomic uint32_t bad; /* lowest row that cannot be normed */
} add_job;

void an_note_lowest(_Atomic uint32_t *lowest, uint32_t row)
{
    uint32_t seen = atomic_load_explicit(lowest, memory_order_relaxed);

    while (row < seen && !atomic_compare_exchange_weak_explicit(
                             lowest, &seen, row, memory_order_relaxed, memory_order_relaxed))
        continue;
}

static void add_chunk(void *context, size_t chunk, uint32_t member)
{
    add_job *job = context;
    uint32_t begin = (uint32_t)chunk * ROW_BLOCK, end = block_end(begin, job->rows);

    (void)member;
    for (uint32_t row = begin; row < end; row++) {
        float *x = job->x + (size_t)row * job->cols;

        kn_add(x, job->y + (size_t)row * job->cols, job->cols);
        if (!can_be_normed(x, job->cols)) an_note_lowest(&job->bad, row);
    }
}

uint32_t an_rows_add(const an_pass *pass, float *x, const float *y, uint32_t rows, uint32_t cols)
{
    add_job job = {.x = x, .y = y, .rows = rows, .cols = cols};
    rt_phase before = an_pass_enter(pass, RT_PHASE_ROWS);

    atomic_init(&job.bad, rows);
    rt_team_run(pass->team, add_chunk, &job, block_count(rows));
    an_pass_enter(pass, before);
    return atomic_load(&job.bad);
}

typedef struct {
    const an_linear *maps;
    uint32_t count;
    uint32_t tiles[AN_LINEAR_MAX]; /* of 16 outputs, in one chunk */
    size_t first_chunk[AN_LINEAR_MAX];
} linear_job;

static void linear_chunk(void *context, size_t chunk, uint32_t member)
{
    const linear_job *job = context;
    uint32_t i = job->count - 1;
    const an_linear *map;
    size_t begin, end;

    (void)member;
    while (chunk < job->first_chunk[i])
        i--;
    map = &job->maps[i];
    begin = (chunk - job->first_chunk[i]) * job->tiles[i] * KN_TILE_ROWS;
    end = begin + (size_t)job->tiles[i] * KN_TILE_ROWS;
    if (end > map->w->rows) end = map->w->rows;
    kn_matmul(map->y, map->y_stride, map->x, map->w, (uint32_t)begin, (uint32_t)end);
}

/* Chunks of about equal work over all maps together. */
void an_linear_run(const an_pass *pass, const an_linear *maps, uint32_t count)
{
    linear_job job = {.maps = maps, .count = count};
    uint64_t work = 0, chunk_work;
    size_t chunks = 0;

    RT_ASSERT(count > 0 && count <= AN_LINEAR_MAX);
    for (uint32_t i = 0; i < count; i++)
        work += (uint64_t)maps[i].w->rows * maps[i].w->cols * maps[i].x->rows;
    chunk_work = work / (pass->members * CHUNKS_PER_MEMBER);
    if (chunk_work < CHUNK_WORK_MIN) chunk_work = CHUNK_WORK_MIN;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t tile_work = (uint64_t)KN_TILE_ROWS * maps[i].w->cols * maps[i].x->rows;
        uint64_t tiles = tile_work > 0 ? (chunk_work + tile_work - 1) / tile_work : 1;
        uint32_t total = (maps[i].w->rows + KN_TILE_ROWS - 1) / KN_TILE_ROWS;

        job.tiles[i] = tiles < total ? (uint32_t)tiles : total;
        job.first_chunk[i] = chunks;
        chunks += (total + job.tiles[i] - 1) / job.tiles[i];
        rt_profile_bytes(pass->profile, an_qmat_bytes(maps[i].w));
    }
    rt_team_run(pass->team, linear_chunk, &job, chunks);
}
