/* execute.c - a frame's rows grouped by expert, cut into (expert, slice, rows) tasks, run, summed.
 */
#include "expert_node/execute.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/slab.h"
#include "expert_node/gather.h"
#include "expert_node/sums.h"
#include "kernels/grid.h"
#include "model/ffn.h"
#include "transport/partial.h"

#include <stdlib.h>
#include <string.h>

enum {
    BLOCK_ROWS = 32, /* rows of one task: a slice's weights are read once for so many, and the f32
                        outputs (BLOCK_ROWS x hidden) stay within a core's share of cache */
    SCRATCH_ALIGN = 64,
    TASKS_PER_MEMBER = 32, /* while there are more, tasks take several slices */
    BATCH_EXPERTS = 16,    /* of one job of the team while a disk reads on */
    GRID_Q_MIN = -126,     /* below it 2^q is no normal f32 */
};

static_assert(BLOCK_ROWS <= 32, "the choices of a task are bits of a word");
static_assert((int)TR_ROW_CONTRIBUTIONS_MAX <= (int)KN_GRID_CONTRIBUTIONS_MAX,
              "a checked row fits int32 sums");

/* One entry of the frame, grouped by expert. */
typedef struct {
    uint32_t row;
    uint32_t slice_mask;
    float ws; /* weight * 2^q */
} choice;

/* Some slices of an expert for some rows. One after another, they share the gathered rows, and the sums
 * they go into are still in cache. */
typedef struct {
    uint32_t record; /* of the batch */
    uint32_t slice_mask;
    uint32_t begin, end; /* choices; at most BLOCK_ROWS */
} task;

/* What one team member needs of its own. */
typedef struct {
    uint8_t *rows; /* gathered rows: int8 with scales and sums, or f32 */
    float *y;      /* [BLOCK_ROWS][hidden] */
    void *ffn;
} member_scratch;

typedef struct {
    uint32_t hidden, groups; /* of activations */
    uint32_t group, experts, slices;
    uint32_t rows_max, block_rows, entries_max, tasks_max;
    size_t ffn_bytes;
} dimensions;

struct en_executor {
    en_executor_spec spec;
    dimensions dims;
    uint32_t members;
    rt_slab slab;            /* member scratch and sums of the frame's int8 rows */
    member_scratch *scratch; /* owned [members] */
    int32_t *group_sums;     /* [rows_max][groups], in slab */
    choice *choices;         /* owned [entries_max] */
    uint32_t *first;         /* owned [experts + 1]: choices of expert e are first[e]..first[e+1] */
    en_want *wants;          /* owned [experts]: of the frame, ascending */
    en_record *records;      /* owned [experts]: acquired for the batch */
    task *tasks;             /* owned [tasks_max] */
    uint32_t want_count, record_count, task_count;
    uint32_t task_slices; /* of one task */
    uint64_t read_bytes;  /* of the store, as the profile knows it */
    en_sums *sums;        /* owned */
    rt_clock clock;
    en_execute_stats stats;
    /* Of the frame being computed: */
    const tr_dispatch_view *dispatch;
    en_gather_source from;
    md_expert_layout layout;
    uint64_t batch_bytes, staged_bytes; /* that the batch touches; of those, not from RAM tier */
};

size_t en_reply_bytes_max(uint32_t rows, uint32_t cols)
{
    return rows * tr_partial_bytes_max(cols);
}

static dimensions measure(const md_container *container, uint32_t rows_max)
{
    const md_config *config = md_container_config(container);
    dimensions dims = {.hidden = config->hidden, .experts = config->experts};

    dims.rows_max = rows_max;
    dims.block_rows = rows_max < BLOCK_ROWS ? rows_max : BLOCK_ROWS;
    dims.entries_max = rows_max * TR_ROW_ENTRIES_MAX;
    for (uint32_t layer = 0; layer < md_config_layers_total(config); layer++) {
        md_expert_layout layout;
        size_t bytes;
        if (!config->sparse[layer]) continue;
        md_container_expert_layout(container, layer, &layout);
        bytes = md_ffn_scratch_bytes(dims.block_rows, layout.slice_width, layout.inter_group);
        if (bytes > dims.ffn_bytes) dims.ffn_bytes = bytes;
        dims.group = layout.hidden_group;
        if (layout.slices > dims.slices) dims.slices = layout.slices;
    }
    if (dims.group == 0) dims.group = kn_group(dims.hidden, 0);
    dims.groups = kn_groups(dims.hidden, dims.group);
    /* Each expert's choices are cut into blocks, the last of them short. */
    dims.tasks_max = dims.slices * (dims.entries_max / dims.block_rows + dims.experts);
    return dims;
}

static size_t round_up(size_t bytes)
{
    return (bytes + SCRATCH_ALIGN - 1) / SCRATCH_ALIGN * SCRATCH_ALIGN;
}

static size_t gather_bytes(const dimensions *dims)
{
    return en_gather_bytes(dims->block_rows, dims->hidden, dims->group);
}

static size_t y_bytes(const dimensions *dims)
{
    return round_up((size_t)dims->block_rows * dims->hidden * sizeof(float));
}

static size_t group_sums_bytes(const dimensions *dims)
{
    return round_up((size_t)dims->rows_max * dims->groups * sizeof(int32_t));
}

static size_t slab_bytes(const dimensions *dims, uint32_t members)
{
    size_t member = gather_bytes(dims) + y_bytes(dims) + round_up(dims->ffn_bytes);

    return group_sums_bytes(dims) + members * member;
}

uint64_t en_executor_bytes(const md_container *container, uint32_t rows_max, uint32_t members)
{
    dimensions dims = measure(container, rows_max);
    uint64_t bytes = slab_bytes(&dims, members) + en_sums_bytes(rows_max, dims.hidden, members);

    bytes += (uint64_t)dims.entries_max * sizeof(choice) + (uint64_t)dims.tasks_max * sizeof(task);
    return bytes + dims.experts * (sizeof(en_record) + sizeof(en_want) + sizeof(uint32_t));
}

static rt_status take_memory(en_executor *executor, rt_err *err)
{
    const dimensions *dims = &executor->dims;
    uint8_t *at;

    executor->scratch = calloc(executor->members, sizeof(*executor->scratch));
    executor->choices = calloc(dims->entries_max, sizeof(*executor->choices));
    executor->first = calloc((size_t)dims->experts + 1, sizeof(*executor->first));
    executor->wants = calloc(dims->experts, sizeof(*executor->wants));
    executor->records = calloc(dims->experts, sizeof(*executor->records));
    executor->tasks = calloc(dims->tasks_max, sizeof(*executor->tasks));
    if (executor->scratch == NULL || executor->choices == NULL || executor->first == NULL ||
        executor->wants == NULL || executor->records == NULL || executor->tasks == NULL) {
        return rt_fail(err, RT_ENOMEM, "expert executor of %u rows", dims->rows_max);
    }
    RT_TRY(rt_slab_alloc(slab_bytes(dims, executor->members), &executor->slab, err));
    at = executor->slab.data;
    executor->group_sums = (int32_t *)(void *)at;
    at += group_sums_bytes(dims);
    for (uint32_t m = 0; m < executor->members; m++) {
        executor->scratch[m].rows = at;
        at += gather_bytes(dims);
        executor->scratch[m].y = (float *)(void *)at;
        at += y_bytes(dims);
        executor->scratch[m].ffn = at;
        at += round_up(dims->ffn_bytes);
    }
    return en_sums_create(dims->rows_max, dims->hidden, executor->members, &executor->sums, err);
}

rt_status en_executor_create(const en_executor_spec *spec, en_executor **out, rt_err *err)
{
    const md_config *config = md_container_config(spec->container);
    en_executor *executor;
    rt_status status;

    if (spec->rows_max == 0 || spec->rows_max > TR_ROWS_MAX) {
        return rt_fail(err, RT_EINVAL, "expert executor: rows expected 1..%d, found %u",
                       TR_ROWS_MAX, spec->rows_max);
    }
    if (config->experts == 0) {
        return rt_fail(err, RT_EINVAL, "expert executor: the model has no experts");
    }
    executor = calloc(1, sizeof(*executor));
    if (executor == NULL) return rt_fail(err, RT_ENOMEM, "expert executor");
    executor->spec = *spec;
    executor->members = rt_team_size(spec->team);
    executor->dims = measure(spec->container, spec->rows_max);
    executor->clock = rt_clock_real();
    status = take_memory(executor, err);
    if (status != RT_OK) goto fail;
    *out = executor;
    return RT_OK;
fail:
    en_executor_free(executor);
    return status;
}

void en_executor_free(en_executor *executor)
{
    if (executor == NULL) return;
    en_sums_free(executor->sums);
    rt_slab_free(&executor->slab);
    free(executor->tasks);
    free(executor->records);
    free(executor->wants);
    free(executor->first);
    free(executor->choices);
    free(executor->scratch);
    free(executor);
}

/* What the frame says against what this node computes with. Sets executor->layout. */
static rt_status check_head(en_executor *executor, const tr_frame_header *head, rt_err *err)
{
    const md_config *config = md_container_config(executor->spec.container);
    const dimensions *dims = &executor->dims;
    bool wants_int8;

    RT_ASSERT(head->rows > 0 && head->cols == dims->hidden);
    RT_ASSERT(head->encoding != TR_ROWS_INT8 || head->group == dims->group);
    if (head->layer >= md_config_layers_total(config) || !config->sparse[head->layer]) {
        return rt_fail(err, RT_EINVAL, "layer %u has no experts", head->layer);
    }
    if (head->rows > dims->rows_max) {
        return rt_fail(err, RT_EINVAL, "dispatch: rows expected 1..%u, found %u", dims->rows_max,
                       head->rows);
    }
    md_container_expert_layout(executor->spec.container, head->layer, &executor->layout);
    wants_int8 = kn_format_is_int(executor->layout.format) && !executor->spec.float_activations;
    if (head->encoding != (wants_int8 ? TR_ROWS_INT8 : TR_ROWS_F32)) {
        return rt_fail(err, RT_EPROTO,
                       "dispatch: layer %u has %s experts and takes %s rows here, found encoding "
                       "%u: do all processes use the same activations?",
                       head->layer, kn_format_name(executor->layout.format),
                       wants_int8 ? "int8" : "f32", head->encoding);
    }
    if (head->q < GRID_Q_MIN) {
        return rt_fail(err, RT_EPROTO, "dispatch: q expected %d or more, found %d", GRID_Q_MIN,
                       head->q);
    }
    return RT_OK;
}

/* Every slice must be of this node. An expert that the model does not have is held by none. */
static rt_status check_entries(const en_executor *executor, const tr_dispatch_view *dispatch,
                               rt_err *err)
{
    uint32_t layer = dispatch->head.layer;

    for (uint32_t i = 0; i < dispatch->head.entries; i++) {
        const tr_entry *entry = &dispatch->entries[i];
        uint32_t held = en_store_mask(executor->spec.store, layer, entry->expert);
        RT_ASSERT(entry->slice_mask != 0);
        if ((entry->slice_mask & ~held) != 0) {
            return rt_fail(err, RT_EINVAL,
                           "layer %u expert %u: slices 0x%x asked, this node holds 0x%x", layer,
                           entry->expert, entry->slice_mask, held);
        }
    }
    return RT_OK;
}

/* Counting sort of the entries by expert. ws = w * 2^q is one multiply by a power of two: exact
 * unless it leaves the normal range, where every node rounds it alike and an Inf poisons the row.
 */
static void group_by_expert(en_executor *executor)
{
    const tr_dispatch_view *dispatch = executor->dispatch;
    uint32_t experts = executor->dims.experts;
    const float step = kn_exp2i(dispatch->head.q);
    const tr_entry *entry = dispatch->entries;
    uint32_t *first = executor->first;

    memset(first, 0, ((size_t)experts + 1) * sizeof(*first));
    for (uint32_t i = 0; i < dispatch->head.entries; i++) {
        first[dispatch->entries[i].expert + 1]++;
    }
    for (uint32_t e = 0; e < experts; e++) {
        first[e + 1] += first[e];
    }
    /* first[e] walks to the end of e's choices while they are placed, and is moved back below. */
    for (uint32_t row = 0; row < dispatch->head.rows; row++) {
        for (uint32_t i = 0; i < dispatch->entry_count[row]; i++, entry++) {
            executor->choices[first[entry->expert]++] =
                (choice){row, entry->slice_mask, entry->weight * step};
        }
    }
    memmove(first + 1, first, experts * sizeof(*first));
    first[0] = 0;
}

/* What the frame wants of the store. */
static void list_wants(en_executor *executor)
{
    executor->want_count = 0;
    for (uint32_t e = 0; e < executor->dims.experts; e++) {
        uint32_t selections = executor->first[e + 1] - executor->first[e];
        if (selections > 0) executor->wants[executor->want_count++] = (en_want){e, selections};
    }
}

static uint32_t lowest_bits(uint32_t mask, uint32_t count)
{
    uint32_t bits = 0;

    for (; count > 0 && mask != 0; count--) {
        uint32_t lowest = mask & (0 - mask);
        bits |= lowest;
        mask &= ~lowest;
    }
    return bits;
}

/* How many slices a task takes: as many as leave every member its number of tasks. */
static uint32_t choose_task_slices(const en_executor *executor)
{
    uint64_t wanted = (uint64_t)TASKS_PER_MEMBER * executor->members;
    uint64_t tasks = 0;

    for (uint32_t i = 0; i < executor->want_count; i++) {
        uint32_t rows = executor->wants[i].selections, step = executor->dims.block_rows;
        tasks += (uint64_t)((rows + step - 1) / step) * executor->layout.slices;
    }
    if (tasks / wanted <= 1) return 1;
    return tasks / wanted < executor->layout.slices ? (uint32_t)(tasks / wanted)
                                                    : executor->layout.slices;
}

static void add_tasks(en_executor *executor, uint32_t expert, uint32_t record)
{
    uint32_t begin = executor->first[expert], end = executor->first[expert + 1];
    uint32_t step = executor->dims.block_rows;
    uint32_t mask = 0;

    for (uint32_t i = begin; i < end; i++) {
        mask |= executor->choices[i].slice_mask;
    }
    for (uint32_t slice = 0; slice < executor->layout.slices; slice++) {
        if (mask >> slice & 1) executor->batch_bytes += md_slice_size(&executor->layout, slice);
    }
    while (mask != 0) {
        uint32_t some = lowest_bits(mask, executor->task_slices);
        mask &= ~some;
        for (uint32_t at = begin; at < end; at += step) {
            RT_ASSERT(executor->task_count < executor->dims.tasks_max);
            executor->tasks[executor->task_count++] =
                (task){record, some, at, end - at < step ? end : at + step};
        }
    }
}

static void release_batch(en_executor *executor)
{
    for (uint32_t i = 0; i < executor->record_count; i++) {
        en_store_release(executor->spec.store, &executor->records[i]);
    }
    executor->record_count = 0;
}

/* The next record that is there. The first of a batch is waited for. */
static rt_status take(en_executor *executor, bool wait, uint32_t *index, rt_err *err)
{
    en_record *record = &executor->records[executor->record_count];
    rt_profile *profile = executor->spec.profile;
    uint64_t read_bytes;
    rt_phase before;
    rt_status status;

    status = en_store_take(executor->spec.store, false, index, record, err);
    if (status != RT_OK || *index != EN_NONE_READY || !wait) return status;
    before = rt_profile_enter(profile, RT_PHASE_DISK);
    status = en_store_take(executor->spec.store, true, index, record, err);
    read_bytes = en_store_get_stats(executor->spec.store).read_bytes;
    rt_profile_bytes(profile, read_bytes - executor->read_bytes);
    executor->read_bytes = read_bytes;
    rt_profile_enter(profile, before);
    return status;
}

/* Pins what is there of the frame's wants and lists its tasks. With a disk behind the store a batch is
 * short, so that slots become free for the reads that wait for one. */
static rt_status take_batch(en_executor *executor, uint32_t *left, rt_err *err)
{
    uint32_t most = en_store_holds_all(executor->spec.store) ? *left : BATCH_EXPERTS;

    executor->record_count = 0;
    executor->task_count = 0;
    executor->batch_bytes = 0;
    executor->staged_bytes = 0;
    while (*left > 0 && executor->record_count < most) {
        uint64_t before = executor->batch_bytes;
        uint32_t index;
        rt_status status = take(executor, executor->record_count == 0, &index, err);

        if (status != RT_OK) {
            release_batch(executor);
            return status;
        }
        if (index == EN_NONE_READY) break;
        add_tasks(executor, executor->wants[index].expert, executor->record_count);
        if (executor->records[executor->record_count].staged)
            executor->staged_bytes += executor->batch_bytes - before;
        executor->record_count++;
        --*left;
    }
    return RT_OK;
}

/* The choices of a task that want a slice, as bits and as a list; the block's rows may want other
 * slices of the expert. */
static uint32_t pick(const en_executor *executor, const task *task_now, uint32_t slice,
                     const choice **picked, uint32_t *row, uint32_t *count)
{
    uint32_t bits = 0;

    *count = 0;
    for (uint32_t i = task_now->begin; i < task_now->end; i++) {
        if (!(executor->choices[i].slice_mask >> slice & 1)) continue;
        row[*count] = executor->choices[i].row;
        picked[(*count)++] = &executor->choices[i];
        bits |= UINT32_C(1) << (i - task_now->begin);
    }
    return bits;
}

static void run_task(void *context, size_t chunk, uint32_t member)
{
    en_executor *executor = context;
    const task *task_now = &executor->tasks[chunk];
    member_scratch *scratch = &executor->scratch[member];
    const choice *picked[BLOCK_ROWS];
    uint32_t row[BLOCK_ROWS], gathered = 0;
    kn_rows rows = {0};

    for (uint32_t s = 0; s < executor->layout.slices; s++) {
        uint32_t bits, count;
        md_slice slice;

        if (!(task_now->slice_mask >> s & 1)) continue;
        bits = pick(executor, task_now, s, picked, row, &count);
        if (count == 0) continue;
        if (bits != gathered) rows = en_gather(&executor->from, row, count, scratch->rows);
        gathered = bits;
        slice = md_slice_view(&executor->layout, s, executor->records[task_now->record].slice[s]);
        md_ffn_slice(scratch->y, executor->dims.hidden, &rows, &slice, scratch->ffn);
        for (uint32_t i = 0; i < count; i++) {
            en_sums_add(executor->sums, member, row[i],
                        scratch->y + (size_t)i * executor->dims.hidden, picked[i]->ws);
        }
    }
}

static rt_status compute(en_executor *executor, rt_err *err)
{
    const tr_dispatch_view *dispatch = executor->dispatch;
    uint32_t left = executor->want_count;

    executor->task_slices = choose_task_slices(executor);
    rt_profile_enter(executor->spec.profile, RT_PHASE_ROWS);
    if (dispatch->head.encoding == TR_ROWS_INT8) {
        kn_rows_sums(dispatch->q, dispatch->head.rows, executor->dims.hidden, executor->dims.group,
                     executor->group_sums);
    }
    while (left > 0) {
        uint64_t begin, mark;

        rt_profile_enter(executor->spec.profile, RT_PHASE_DISPATCH);
        RT_TRY(take_batch(executor, &left, err));
        begin = rt_clock_now(&executor->clock);
        rt_profile_enter(executor->spec.profile, RT_PHASE_EXPERTS_RAM);
        mark = rt_profile_mark(executor->spec.profile);
        rt_profile_bytes(executor->spec.profile, executor->batch_bytes);
        rt_team_run(executor->spec.team, run_task, executor, executor->task_count);
        rt_profile_split(executor->spec.profile, mark, RT_PHASE_EXPERTS_STAGED,
                         executor->staged_bytes, executor->batch_bytes);
        executor->stats.compute_ns += rt_clock_now(&executor->clock) - begin;
        executor->stats.experts += executor->record_count;
        release_batch(executor);
    }
    return RT_OK;
}

static rt_status sum_up(en_executor *executor, uint8_t *payload, size_t *payload_bytes, rt_err *err)
{
    uint64_t begin = rt_clock_now(&executor->clock);

    RT_TRY(en_sums_finish(executor->sums, executor->spec.team, payload, payload_bytes, err));
    executor->stats.compute_ns += rt_clock_now(&executor->clock) - begin;
    executor->stats.frames++;
    executor->stats.rows += executor->dispatch->head.rows;
    return RT_OK;
}

rt_status en_execute(en_executor *executor, const tr_dispatch_view *dispatch, uint8_t *payload,
                     size_t *payload_bytes, rt_err *err)
{
    rt_phase before;
    rt_status status;

    RT_TRY(check_head(executor, &dispatch->head, err));
    RT_TRY(check_entries(executor, dispatch, err));
    executor->dispatch = dispatch;
    executor->from = (en_gather_source){.dispatch = dispatch,
                                        .sums = executor->group_sums,
                                        .hidden = executor->dims.hidden,
                                        .group = executor->dims.group};
    before = rt_profile_enter(executor->spec.profile, RT_PHASE_COMBINE);
    en_sums_begin(executor->sums, dispatch->head.rows);
    rt_profile_enter(executor->spec.profile, RT_PHASE_DISPATCH);
    group_by_expert(executor);
    list_wants(executor);
    en_store_begin(executor->spec.store, dispatch->head.layer, executor->wants,
                   executor->want_count, dispatch->head.rows);
    status = compute(executor, err);
    en_store_end(executor->spec.store);
    rt_profile_enter(executor->spec.profile, RT_PHASE_COMBINE);
    if (status == RT_OK) status = sum_up(executor, payload, payload_bytes, err);
    rt_profile_enter(executor->spec.profile, before);
    executor->dispatch = NULL;
    return status;
}

void en_executor_hint(en_executor *executor, uint32_t layer, const uint16_t *experts,
                      uint32_t count)
{
    en_store_hint(executor->spec.store, layer, experts, count);
}

void en_executor_idle(en_executor *executor)
{
    en_store_idle(executor->spec.store);
}

en_execute_stats en_executor_get_stats(const en_executor *executor)
{
    return executor->stats;
}
