/* bpe.c - byte-pair merging with a heap of candidate pairs.
 *
 * The textbook loop (scan for the lowest rank, merge, repeat) is quadratic, and a piece can be as
 * long as the whole text (a run of letters, base64). Here a pair enters the heap when its two
 * symbols become neighbours and is dropped on its way out if either has been merged since: symbols
 * only ever grow, so a candidate still holds exactly when the two still cover the span they
 * covered. */
#include "model/text/tokenizer_internal.h"

#include "base/check.h"

#include <stdlib.h>

struct md_bpe_symbol {
    uint32_t id;
    uint32_t length; /* bytes covered; 0: merged into its left neighbour */
    uint32_t previous;
    uint32_t next;
};

struct md_bpe_pair {
    uint64_t key;  /* rank << 32 | left: lowest rank first, then leftmost */
    uint32_t span; /* bytes that both cover */
    uint32_t result;
};

static const uint32_t none = UINT32_MAX;

void md_bpe_fini(md_bpe *bpe)
{
    free(bpe->symbols);
    free(bpe->heap);
    *bpe = (md_bpe){0};
}

static rt_status reserve(md_bpe *bpe, size_t symbols, rt_err *err)
{
    /* n - 1 pairs at the start, and each of at most n - 1 merges takes one and adds two. */
    size_t pairs = 2 * symbols;

    if (symbols > bpe->symbols_capacity) {
        md_bpe_symbol *grown = realloc(bpe->symbols, symbols * sizeof(*grown));

        if (grown == NULL) return rt_fail(err, RT_ENOMEM, "merging a piece of %zu bytes", symbols);
        bpe->symbols = grown;
        bpe->symbols_capacity = symbols;
    }
    if (pairs > bpe->heap_capacity) {
        md_bpe_pair *grown = realloc(bpe->heap, pairs * sizeof(*grown));

        if (grown == NULL) return rt_fail(err, RT_ENOMEM, "merging a piece of %zu bytes", symbols);
        bpe->heap = grown;
        bpe->heap_capacity = pairs;
    }
    return RT_OK;
}

static void heap_push(md_bpe *bpe, md_bpe_pair pair)
{
    size_t at = bpe->heap_count++;

    RT_ASSERT(at < bpe->heap_capacity);
    while (at > 0) {
        size_t parent = (at - 1) / 2;

        if (bpe->heap[parent].key <= pair.key) break;
        bpe->heap[at] = bpe->heap[parent];
        at = parent;
    }
    bpe->heap[at] = pair;
}

static md_bpe_pair heap_pop(md_bpe *bpe)
{
    md_bpe_pair top = bpe->heap[0];
    md_bpe_pair last = bpe->heap[--bpe->heap_count];
    size_t at = 0;

    for (;;) {
        size_t child = 2 * at + 1;

        if (child >= bpe->heap_count) break;
        if (child + 1 < bpe->heap_count && bpe->heap[child + 1].key < bpe->heap[child].key) child++;
        if (last.key <= bpe->heap[child].key) break;
        bpe->heap[at] = bpe->heap[child];
        at = child;
    }
    bpe->heap[at] = last;
    return top;
}

static void consider(md_bpe *bpe, const md_image *image, uint32_t left)
{
    const md_bpe_symbol *symbol = &bpe->symbols[left];
    const md_bpe_symbol *next;
    uint32_t rank, result;

    if (symbol->next == none) return;
    next = &bpe->symbols[symbol->next];
    if (!md_image_merge(image, symbol->id, next->id, &rank, &result)) return;
    heap_push(bpe,
              (md_bpe_pair){(uint64_t)rank << 32 | left, symbol->length + next->length, result});
}

static void merge_all(md_bpe *bpe, const md_image *image)
{
    md_bpe_symbol *symbols = bpe->symbols;

    while (bpe->heap_count > 0) {
        md_bpe_pair pair = heap_pop(bpe);
        uint32_t left = (uint32_t)pair.key;
        uint32_t right = symbols[left].next;

        if (symbols[left].length == 0 || right == none) continue;
        if (symbols[left].length + symbols[right].length != pair.span) continue;
        symbols[left].id = pair.result;
        symbols[left].length = pair.span;
        symbols[left].next = symbols[right].next;
        symbols[right].length = 0;
        if (symbols[left].next != none) symbols[symbols[left].next].previous = left;
        if (symbols[left].previous != none) consider(bpe, image, symbols[left].previous);
        consider(bpe, image, left);
    }
}

rt_status md_bpe_encode(md_bpe *bpe, const md_image *image, md_text piece, md_ids *out, rt_err *err)
{
    uint32_t id;

    RT_ASSERT(piece.count > 0 && piece.count <= MD_TEXT_BYTES_MAX);
    if ((image->header.flags & MD_IMAGE_IGNORE_MERGES) != 0 && md_image_find(image, piece, &id))
        return md_ids_push(out, id, err);
    RT_TRY(reserve(bpe, piece.count, err));
    bpe->heap_count = 0;
    for (uint32_t i = 0; i < piece.count; i++) {
        bpe->symbols[i] = (md_bpe_symbol){
            .id = md_image_u32(image->byte_ids, (uint8_t)piece.bytes[i]),
            .length = 1,
            .previous = i == 0 ? none : i - 1,
            .next = i + 1 == piece.count ? none : i + 1,
        };
    }
    for (uint32_t i = 0; i < piece.count; i++)
        consider(bpe, image, i);
    merge_all(bpe, image);
    for (uint32_t i = 0; i != none; i = bpe->symbols[i].next)
        RT_TRY(md_ids_push(out, bpe->symbols[i].id, err));
    return RT_OK;
}
