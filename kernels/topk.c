/* topk.c - selection by a radix search for the k-th largest key.
 *
 * Scores become 32-bit keys whose unsigned order is the order of the scores; four passes over ever
 * fewer candidates find the k-th key, one pass takes what lies above it and the first of its
 * equals. The cost is linear whatever the data; a heap or a sort would depend on it. */
#include "kernels/topk.h"

#include "base/check.h"
#include "kernels/ops.h"

#include <string.h>

enum { BINS = 256 };

static uint32_t key_of(float score)
{
    uint32_t u;

    memcpy(&u, &score, sizeof(u));
    if ((u << 1) == 0) u = 0; /* -0 is +0 */
    return (u & 0x80000000U) != 0 ? ~u : u | 0x80000000U;
}

/* The k-th largest (k from 1) of key[0..n), which is overwritten. */
static uint32_t kth_largest(uint32_t *key, uint32_t n, uint32_t k)
{
    uint32_t prefix = 0;

    for (int shift = 24; shift >= 0; shift -= 8) {
        uint32_t bin[BINS] = {0};
        uint32_t digit = BINS - 1, kept = 0;

        for (uint32_t i = 0; i < n; i++)
            bin[key[i] >> shift & (BINS - 1)]++;
        while (bin[digit] < k)
            k -= bin[digit--];
        prefix |= digit << shift;
        for (uint32_t i = 0; i < n; i++)
            if ((key[i] >> shift & (BINS - 1)) == digit) key[kept++] = key[i];
        n = kept;
    }
    return prefix;
}

bool kn_topk(uint32_t *out, const float *score, uint32_t n, uint32_t k, uint32_t *scratch)
{
    uint32_t limit, above = 0, equal, at = 0;

    for (uint32_t i = 0; i < n; i++) {
        if (score[i] != score[i]) return false;
        scratch[i] = key_of(score[i]);
    }
    if (k >= n) {
        for (uint32_t i = 0; i < n; i++)
            out[i] = i;
        return true;
    }
    if (k == 0) return true;
    limit = kth_largest(scratch, n, k);
    for (uint32_t i = 0; i < n; i++)
        above += key_of(score[i]) > limit;
    equal = k - above; /* the first ones: lower index wins */
    for (uint32_t i = 0; i < n && at < k; i++) {
        uint32_t key = key_of(score[i]);

        if (key == limit && equal > 0) {
            equal--;
            out[at++] = i;
        } else if (key > limit) {
            out[at++] = i;
        }
    }
    RT_ASSERT(at == k);
    return true;
}

uint32_t kn_ref_argmax(const float *x, uint32_t n)
{
    uint32_t best = 0;

    for (uint32_t i = 0; i < n; i++) {
        if (x[i] != x[i]) return UINT32_MAX;
        if (x[i] > x[best]) best = i;
    }
    return best;
}

uint32_t kn_argmax(const float *x, uint32_t n)
{
    RT_ASSERT(n > 0);
    return kn_ops_active()->argmax(x, n);
}
