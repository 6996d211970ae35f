/* arena.c - a bump pointer over one slab. */
#include "base/arena.h"

#include "base/check.h"
#include "base/slab.h"

#include <stdint.h>
#include <stdlib.h>

enum { ALIGN_BYTES = 64 }; /* one cache line, one AVX-512 register */

struct rt_arena {
    rt_slab slab; /* owned */
    size_t used_bytes;
    size_t peak_bytes;
};

size_t rt_arena_cost(size_t bytes)
{
    RT_ASSERT(bytes <= SIZE_MAX - ALIGN_BYTES);
    return (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
}

rt_status rt_arena_create(size_t bytes, rt_arena **out, rt_err *err)
{
    rt_arena *arena = calloc(1, sizeof(*arena));
    rt_status status;

    if (arena == NULL) return rt_fail(err, RT_ENOMEM, "arena");
    status = rt_slab_alloc(bytes > 0 ? bytes : ALIGN_BYTES, &arena->slab, err);
    if (status != RT_OK) {
        rt_err_prefix(err, "arena: ");
        goto fail;
    }
    *out = arena;
    return RT_OK;
fail:
    rt_arena_free(arena);
    return status;
}

void rt_arena_free(rt_arena *arena)
{
    if (arena == NULL) return;
    rt_slab_free(&arena->slab);
    free(arena);
}

void *rt_arena_take(rt_arena *arena, size_t bytes)
{
    size_t cost = rt_arena_cost(bytes);
    char *data = (char *)arena->slab.data + arena->used_bytes;

    /* The last take may end unrounded: a whole arena of `bytes` can be taken as one. */
    RT_ASSERT(bytes <= arena->slab.bytes && arena->used_bytes <= arena->slab.bytes - bytes);
    arena->used_bytes += cost;
    if (arena->used_bytes > arena->slab.bytes) arena->used_bytes = arena->slab.bytes;
    if (arena->used_bytes > arena->peak_bytes) arena->peak_bytes = arena->used_bytes;
    return data;
}

size_t rt_arena_mark(const rt_arena *arena)
{
    return arena->used_bytes;
}

void rt_arena_return(rt_arena *arena, size_t mark)
{
    RT_ASSERT(mark <= arena->used_bytes);
    arena->used_bytes = mark;
}

size_t rt_arena_peak_bytes(const rt_arena *arena)
{
    return arena->peak_bytes;
}
