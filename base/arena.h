/* arena.h - scratch memory for one pass: sized once at start, bump-allocated, reset between passes.
 *
 * Why: the token path allocates nothing. Memory comes from rt_slab (huge pages where granted).
 *
 * Threads: one owner. */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include "base/status.h"

#include <stddef.h>

typedef struct rt_arena rt_arena;

/* RT_ENOMEM when the memory cannot be had. */
RT_MUST_CHECK rt_status rt_arena_create(size_t bytes, rt_arena **out, rt_err *err);
void rt_arena_free(rt_arena *arena);

/* 64-byte aligned, not zeroed. Asks that exceed the arena are our own sizing mistake: asserted. */
void *rt_arena_take(rt_arena *arena, size_t bytes);

/* Mark and return, for nested scopes. rt_arena_return gives back all that was taken since. */
size_t rt_arena_mark(const rt_arena *arena);
void rt_arena_return(rt_arena *arena, size_t mark);
size_t rt_arena_peak_bytes(const rt_arena *arena);

/* The bytes that one take of `bytes` uses, for adding up an arena's size. */
size_t rt_arena_cost(size_t bytes);

#endif
