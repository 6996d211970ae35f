/* sums.c - members' int32 sums, the rows that outgrow them, and the reply they end in. */
#include "expert_node/sums.h"

#include "base/check.h"
#include "base/slab.h"
#include "kernels/grid.h"
#include "transport/partial.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    WIDE_POOL_ROWS = 8, /* wide sums of a frame that allocate nothing */
    INLINE_ROWS = 4,    /* merging fewer rows costs less than waking the team */
    GROUP_ROWS = 64,    /* rows that one job of the team merges and writes */
};

static const uint32_t NO_MEMBER = UINT32_MAX;

struct en_sums {
    uint32_t rows_max, cols, members;
    uint32_t rows;    /* of this frame */
    rt_slab slab;     /* narrow, then the wide pool */
    int32_t *narrow;  /* [members][rows_max][cols]; a row is zeroed by its first contribution */
    uint8_t *touched; /* owned [members][rows_max]: the member's row counts */
    uint8_t *poison;  /* owned [rows_max]; set by any member, atomically */
    uint32_t *merged; /* owned [rows_max]: the member whose row got all others', or NO_MEMBER */
    /* Of the group of rows that the team writes: */
    uint32_t first;
    uint8_t *room; /* each row at its most bytes, while the lengths of those before are not known */
    size_t written[GROUP_ROWS];
    pthread_mutex_t lock;
    bool lock_ready;
    int64_t *wide_pool; /* [WIDE_POOL_ROWS][cols] */
    /* Under lock while the team runs: */
    int64_t **wide; /* owned [rows_max]: NULL, a pool row, or one of its own */
    uint32_t wide_count;
    bool wide_failed;
};

static size_t narrow_bytes(uint32_t rows_max, uint32_t cols, uint32_t members)
{
    size_t bytes = (size_t)members * rows_max * cols * sizeof(int32_t);

    return (bytes + 63) / 64 * 64;
}

static size_t pool_bytes(uint32_t cols)
{
    return (size_t)WIDE_POOL_ROWS * cols * sizeof(int64_t);
}

uint64_t en_sums_bytes(uint32_t rows_max, uint32_t cols, uint32_t members)
{
    uint64_t row = members + sizeof(uint8_t) + sizeof(uint32_t) + sizeof(int64_t *);

    return narrow_bytes(rows_max, cols, members) + pool_bytes(cols) + row * rows_max;
}

rt_status en_sums_create(uint32_t rows_max, uint32_t cols, uint32_t members, en_sums **out,
                         rt_err *err)
{
    en_sums *sums = calloc(1, sizeof(*sums));
    rt_status status;

    RT_ASSERT(rows_max > 0 && cols > 0 && members > 0);
    if (sums == NULL) return rt_fail(err, RT_ENOMEM, "partial sums");
    sums->rows_max = rows_max;
    sums->cols = cols;
    sums->members = members;
    status =
        rt_slab_alloc(narrow_bytes(rows_max, cols, members) + pool_bytes(cols), &sums->slab, err);
    if (status != RT_OK) goto fail;
    sums->narrow = sums->slab.data;
    sums->wide_pool =
        (int64_t *)(void *)((uint8_t *)sums->slab.data + narrow_bytes(rows_max, cols, members));
    sums->touched = calloc((size_t)members * rows_max, sizeof(*sums->touched));
    sums->poison = calloc(rows_max, sizeof(*sums->poison));
    sums->merged = calloc(rows_max, sizeof(*sums->merged));
    sums->wide = calloc(rows_max, sizeof(*sums->wide));
    if (sums->touched == NULL || sums->poison == NULL || sums->merged == NULL ||
        sums->wide == NULL || pthread_mutex_init(&sums->lock, NULL) != 0) {
        status = rt_fail(err, RT_ENOMEM, "partial sums of %u rows", rows_max);
        goto fail;
    }
    sums->lock_ready = true;
    *out = sums;
    return RT_OK;
fail:
    en_sums_free(sums);
    return status;
}

static bool in_pool(const en_sums *sums, const int64_t *wide)
{
    uintptr_t begin = (uintptr_t)sums->wide_pool;

    return (uintptr_t)wide >= begin && (uintptr_t)wide < begin + pool_bytes(sums->cols);
}

static void drop_wide(en_sums *sums)
{
    if (sums->wide == NULL || sums->wide_count == 0) return;
    for (uint32_t row = 0; row < sums->rows; row++) {
        if (!in_pool(sums, sums->wide[row])) free(sums->wide[row]);
        sums->wide[row] = NULL;
    }
    sums->wide_count = 0;
}

void en_sums_free(en_sums *sums)
{
    if (sums == NULL) return;
    drop_wide(sums);
    if (sums->lock_ready) pthread_mutex_destroy(&sums->lock);
    free(sums->wide);
    free(sums->merged);
    free(sums->poison);
    free(sums->touched);
    rt_slab_free(&sums->slab);
    free(sums);
}

void en_sums_begin(en_sums *sums, uint32_t rows)
{
    RT_ASSERT(rows > 0 && rows <= sums->rows_max);
    drop_wide(sums);
    sums->wide_failed = false;
    sums->rows = rows;
    memset(sums->poison, 0, rows);
    for (uint32_t m = 0; m < sums->members; m++) {
        memset(sums->touched + (size_t)m * sums->rows_max, 0, rows);
    }
}

static int32_t *narrow_row(const en_sums *sums, uint32_t member, uint32_t row)
{
    return sums->narrow + ((size_t)member * sums->rows_max + row) * sums->cols;
}

static bool is_touched(const en_sums *sums, uint32_t member, uint32_t row)
{
    return sums->touched[(size_t)member * sums->rows_max + row] != 0;
}

/* The row's wide sum, made on its first use; NULL when there is no memory. Under the lock. */
static int64_t *wide_row(en_sums *sums, uint32_t row)
{
    int64_t *wide = sums->wide[row];

    if (wide != NULL) return wide;
    if (sums->wide_count < WIDE_POOL_ROWS) {
        wide = sums->wide_pool + (size_t)sums->wide_count * sums->cols;
        memset(wide, 0, sums->cols * sizeof(*wide));
    } else {
        wide = calloc(sums->cols, sizeof(*wide));
        if (wide == NULL) return NULL;
    }
    sums->wide[row] = wide;
    sums->wide_count++;
    return wide;
}

static void add_wide(en_sums *sums, uint32_t row, const float *y, float ws)
{
    int64_t *wide;

    pthread_mutex_lock(&sums->lock);
    wide = wide_row(sums, row);
    if (wide != NULL) {
        kn_grid_add_wide(wide, y, ws, sums->cols);
    } else {
        sums->wide_failed = true;
    }
    pthread_mutex_unlock(&sums->lock);
}

void en_sums_add(en_sums *sums, uint32_t member, uint32_t row, const float *y, float ws)
{
    int32_t *narrow = narrow_row(sums, member, row);

    RT_ASSERT(member < sums->members && row < sums->rows);
    if (!is_touched(sums, member, row)) {
        memset(narrow, 0, sums->cols * sizeof(*narrow));
        sums->touched[(size_t)member * sums->rows_max + row] = 1;
    }
    switch (kn_grid_add(narrow, y, ws, sums->cols)) {
    case KN_GRID_NARROW:
        return;
    case KN_GRID_WIDE:
        add_wide(sums, row, y, ws);
        return;
    case KN_GRID_POISON:
        __atomic_store_n(&sums->poison[row], (uint8_t)1, __ATOMIC_RELAXED);
        return;
    }
}

static void merge_row(en_sums *sums, uint32_t row)
{
    uint32_t base = NO_MEMBER;

    for (uint32_t m = 0; m < sums->members; m++) {
        if (!is_touched(sums, m, row)) continue;
        if (base == NO_MEMBER) {
            base = m;
        } else {
            kn_grid_merge(narrow_row(sums, base, row), narrow_row(sums, m, row), sums->cols);
        }
    }
    sums->merged[row] = base;
    if (sums->wide[row] != NULL && base != NO_MEMBER) {
        kn_grid_widen(sums->wide[row], narrow_row(sums, base, row), sums->cols);
    }
}

static size_t write_row(const en_sums *sums, uint32_t row, uint8_t *out)
{
    if (sums->poison[row] != 0) return tr_partial_write_poison(out);
    if (sums->wide[row] != NULL) return tr_partial_write_wide(out, sums->wide[row], sums->cols);
    RT_ASSERT(sums->merged[row] != NO_MEMBER);
    return tr_partial_write(out, narrow_row(sums, sums->merged[row], row), sums->cols);
}

/* A row without entries: the frame's bounds allow it, and its sum is zero. */
static size_t write_zero_row(const en_sums *sums, uint32_t row, uint8_t *out)
{
    int32_t *zero = narrow_row(sums, 0, row);

    memset(zero, 0, sums->cols * sizeof(*zero));
    return tr_partial_write(out, zero, sums->cols);
}

static size_t write_any_row(const en_sums *sums, uint32_t row, uint8_t *out)
{
    return sums->merged[row] == NO_MEMBER ? write_zero_row(sums, row, out)
                                          : write_row(sums, row, out);
}

static void finish_row(void *context, size_t chunk, uint32_t member)
{
    en_sums *sums = context;
    uint32_t row = sums->first + (uint32_t)chunk;

    (void)member; /* each row is one chunk; nothing is private to a member here */
    merge_row(sums, row);
    sums->written[chunk] =
        write_any_row(sums, row, sums->room + chunk * tr_partial_bytes_max(sums->cols));
}

/* Groups of rows: written apart, then moved together, so that a reply touches little more memory than
 * it has bytes. Returns these. */
static size_t finish_rows(en_sums *sums, rt_team *team, uint8_t *payload)
{
    size_t most = tr_partial_bytes_max(sums->cols), bytes = 0;

    for (sums->first = 0; sums->first < sums->rows; sums->first += GROUP_ROWS) {
        uint32_t left = sums->rows - sums->first;
        uint32_t count = left < GROUP_ROWS ? left : GROUP_ROWS;

        sums->room = payload + bytes;
        rt_team_run(team, finish_row, sums, count);
        for (uint32_t i = 0; i < count; i++) {
            memmove(payload + bytes, sums->room + i * most, sums->written[i]);
            bytes += sums->written[i];
        }
    }
    return bytes;
}

rt_status en_sums_finish(en_sums *sums, rt_team *team, uint8_t *payload, size_t *payload_bytes,
                         rt_err *err)
{
    size_t bytes = 0;

    if (sums->wide_failed) {
        return rt_fail(err, RT_ENOMEM, "a wide sum of %u values: no memory", sums->cols);
    }
    if (sums->rows < INLINE_ROWS) {
        for (uint32_t row = 0; row < sums->rows; row++) {
            merge_row(sums, row);
            bytes += write_any_row(sums, row, payload + bytes);
        }
    } else {
        bytes = finish_rows(sums, team, payload);
    }
    *payload_bytes = bytes;
    return RT_OK;
}
