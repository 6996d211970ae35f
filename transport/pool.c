/* pool.c - size classes in steps of a quarter octave: at most 25 % of a buffer is unused, and a few
 * dozen classes hold every frame size. */
#include "transport/pool.h"

#include "base/check.h"
#include "transport/frame.h"

#include <stdlib.h>

enum {
    SMALLEST_LOG2 = 10, /* a control message or an error frame fits */
    OCTAVES = 21,       /* up to TR_FRAME_BYTES_MAX */
    STEPS = 4,
    CLASSES = OCTAVES * STEPS,
};

static_assert(TR_FRAME_BYTES_MAX == 1 << (SMALLEST_LOG2 + OCTAVES - 1), "classes end at the cap");

typedef struct pool_buf pool_buf;

struct pool_buf {
    tr_buf buf; /* first: a tr_buf of ours is a pool_buf */
    uint32_t size_class;
    pool_buf *next; /* in the free list */
};

struct tr_pool {
    size_t limit_bytes, out_bytes, free_bytes;
    uint32_t out_count;
    bool closed;
    pool_buf *free[CLASSES];
};

tr_pool *tr_pool_create(size_t limit_bytes)
{
    tr_pool *pool = calloc(1, sizeof(*pool));

    if (pool != NULL) pool->limit_bytes = limit_bytes;
    return pool;
}

static void drop_free(tr_pool *pool)
{
    for (uint32_t size_class = 0; size_class < CLASSES; size_class++)
        while (pool->free[size_class] != NULL) {
            pool_buf *first = pool->free[size_class];

            pool->free[size_class] = first->next;
            free(first->buf.data);
            free(first);
        }
    pool->free_bytes = 0;
}

void tr_pool_close(tr_pool *pool)
{
    if (pool == NULL) return;
    RT_ASSERT(!pool->closed);
    pool->closed = true;
    drop_free(pool);
    if (pool->out_count == 0) free(pool);
}

size_t tr_pool_out_bytes(const tr_pool *pool)
{
    return pool->out_bytes;
}

static void release(tr_buf *buf)
{
    pool_buf *self = (pool_buf *)buf;
    tr_pool *pool = buf->owner;

    RT_ASSERT(pool->out_count > 0);
    pool->out_count--;
    pool->out_bytes -= buf->capacity;
    if (pool->closed) {
        free(buf->data);
        free(self);
        if (pool->out_count == 0) free(pool);
        return;
    }
    self->next = pool->free[self->size_class];
    pool->free[self->size_class] = self;
    pool->free_bytes += buf->capacity;
}

static size_t class_bytes(uint32_t size_class)
{
    size_t octave = (size_t)1 << (SMALLEST_LOG2 + size_class / STEPS);

    return octave + octave / STEPS * (size_class % STEPS);
}

static uint32_t class_of(size_t bytes)
{
    uint32_t size_class = 0;

    while (class_bytes(size_class) < bytes)
        size_class++;
    return size_class;
}

static pool_buf *allocate(tr_pool *pool, uint32_t size_class)
{
    pool_buf *self = calloc(1, sizeof(*self));
    void *data;

    if (self == NULL) return NULL;
    data = aligned_alloc(TR_FRAME_ALIGN, class_bytes(size_class));
    if (data == NULL) {
        free(self);
        return NULL;
    }
    self->size_class = size_class;
    self->buf.data = data;
    self->buf.capacity = class_bytes(size_class);
    self->buf.release = release;
    self->buf.owner = pool;
    return self;
}

rt_status tr_pool_acquire(tr_pool *pool, size_t bytes, tr_buf **out)
{
    uint32_t size_class;
    size_t need;
    pool_buf *self;

    RT_ASSERT(!pool->closed);
    if (bytes > TR_FRAME_BYTES_MAX) return RT_EINVAL;
    size_class = class_of(bytes);
    need = class_bytes(size_class);
    if (pool->out_count > 0 &&
        (pool->out_bytes > pool->limit_bytes || need > pool->limit_bytes - pool->out_bytes))
        return RT_EBUSY;
    self = pool->free[size_class];
    if (self != NULL) {
        pool->free[size_class] = self->next;
        pool->free_bytes -= need;
    } else {
        /* Sizes have changed, as between prefill and decode: what lies idle makes room. */
        if (pool->out_bytes + pool->free_bytes + need > pool->limit_bytes) drop_free(pool);
        self = allocate(pool, size_class);
        if (self == NULL) return RT_ENOMEM;
    }
    self->next = NULL;
    self->buf.length = 0;
    pool->out_count++;
    pool->out_bytes += need;
    *out = &self->buf;
    return RT_OK;
}
