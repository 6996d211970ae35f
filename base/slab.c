/* slab.c - anonymous mappings placed so that the kernel can back them with 2 MiB pages.
 *
 * mmap alone aligns to 4 KiB, and a huge page can only start on a 2 MiB border: the mapping is made
 * 2 MiB too long and trimmed. MADV_HUGEPAGE is a wish; where it is refused the memory still works.
 */
#include "base/slab.h"

#include "base/check.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

static const size_t HUGE_BYTES = (size_t)2 << 20;
static const size_t PAGE_BYTES = 4096;

/* The length that is mapped for `bytes`; 0 when it cannot be expressed. */
static size_t mapped_bytes(size_t bytes)
{
    size_t unit = bytes >= HUGE_BYTES ? HUGE_BYTES : PAGE_BYTES;

    if (bytes > SIZE_MAX / 2) return 0;
    return (bytes + unit - 1) / unit * unit;
}

static void *map_anonymous(size_t bytes)
{
    void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    return data == MAP_FAILED ? NULL : data;
}

static void *map_huge(size_t bytes)
{
    char *raw = (char *)map_anonymous(bytes + HUGE_BYTES);
    size_t head;

    if (raw == NULL) return NULL;
    head = (HUGE_BYTES - (uintptr_t)raw % HUGE_BYTES) % HUGE_BYTES;
    if (head > 0) munmap(raw, head);
    munmap(raw + head + bytes, HUGE_BYTES - head);
    (void)madvise(raw + head, bytes, MADV_HUGEPAGE);
    return raw + head;
}

rt_status rt_slab_alloc(size_t bytes, rt_slab *out, rt_err *err)
{
    size_t mapped = mapped_bytes(bytes);
    void *data = NULL;

    RT_ASSERT(bytes > 0);
    if (mapped > 0) data = mapped >= HUGE_BYTES ? map_huge(mapped) : map_anonymous(mapped);
    if (data == NULL)
        return rt_fail(err, RT_ENOMEM, "%zu bytes of memory: %s", bytes, strerror(ENOMEM));
    out->data = data;
    out->bytes = bytes;
    return RT_OK;
}

void rt_slab_free(rt_slab *slab)
{
    if (slab == NULL || slab->data == NULL) return;
    RT_ASSERT(munmap(slab->data, mapped_bytes(slab->bytes)) == 0);
    slab->data = NULL;
    slab->bytes = 0;
}
