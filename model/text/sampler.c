/* sampler.c - see sampler.h. Candidates come out of a heap one at a time, likeliest first: a draw
 * is usually decided within a few dozen of 154,880, so nothing is sorted as a whole. */
#include "model/text/sampler.h"

#include "base/check.h"
#include "kernels/mathf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct md_sampler {
    md_sampler_spec spec;
    uint32_t vocab;
    float largest;
    /* [0, heap_count) is a heap of keys, smallest at 0; candidate i, once taken, is at
     * vocab - 1 - i. */
    uint64_t *keys; /* owned */
    uint32_t heap_count;
    double *mass; /* owned: of candidates 0..i together */
};

rt_status md_sampler_create(const md_sampler_spec *spec, uint32_t vocab, md_sampler **out,
                            rt_err *err)
{
    md_sampler *sampler;

    RT_ASSERT(vocab > 0);
    if (!isfinite(spec->temperature) || spec->temperature < 0.0f)
        return rt_fail(err, RT_EINVAL, "temperature: expected 0 or more, found %g",
                       (double)spec->temperature);
    if (!(spec->top_p > 0.0f && spec->top_p <= 1.0f))
        return rt_fail(err, RT_EINVAL, "top_p: expected more than 0 and at most 1, found %g",
                       (double)spec->top_p);
    if (!(spec->min_p >= 0.0f && spec->min_p <= 1.0f))
        return rt_fail(err, RT_EINVAL, "min_p: expected 0 to 1, found %g", (double)spec->min_p);
    sampler = calloc(1, sizeof(*sampler));
    if (sampler == NULL) return rt_fail(err, RT_ENOMEM, "sampler");
    sampler->spec = *spec;
    sampler->vocab = vocab;
    sampler->keys = malloc(vocab * sizeof(*sampler->keys));
    sampler->mass = malloc(vocab * sizeof(*sampler->mass));
    if (sampler->keys == NULL || sampler->mass == NULL) {
        md_sampler_free(sampler);
        return rt_fail(err, RT_ENOMEM, "sampler for %u tokens", vocab);
    }
    *out = sampler;
    return RT_OK;
}

void md_sampler_free(md_sampler *sampler)
{
    if (sampler == NULL) return;
    free(sampler->keys);
    free(sampler->mass);
    free(sampler);
}

rt_status md_sampler_greedy(const float *logits, uint32_t vocab, uint32_t *id)
{
    uint32_t best = 0;

    RT_ASSERT(vocab > 0);
    for (uint32_t i = 0; i < vocab; i++) {
        /* False for NaN and +Inf. */
        if (!(logits[i] < INFINITY)) return RT_ENUMERIC;
        if (logits[i] > logits[best]) best = i;
    }
    if (logits[best] == -INFINITY) return RT_ENUMERIC;
    *id = best;
    return RT_OK;
}

/* ---- candidates in order: larger logit first, then lower id ---- */

static uint64_t key_of(float logit, uint32_t id)
{
    uint32_t bits;

    logit += 0.0f; /* -0 becomes +0 */
    memcpy(&bits, &logit, sizeof(bits));
    bits = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u; /* ascending with the value */
    return (uint64_t)~bits << 32 | id;
}

static void sift_down(uint64_t *keys, uint32_t count, uint32_t at)
{
    uint64_t key = keys[at];

    for (;;) {
        uint32_t child = 2 * at + 1;

        if (child >= count) break;
        if (child + 1 < count && keys[child + 1] < keys[child]) child++;
        if (key <= keys[child]) break;
        keys[at] = keys[child];
        at = child;
    }
    keys[at] = key;
}

static void heap_fill(md_sampler *s, const float *logits)
{
    for (uint32_t id = 0; id < s->vocab; id++)
        s->keys[id] = key_of(logits[id], id);
    s->heap_count = s->vocab;
    for (uint32_t at = s->vocab / 2; at-- > 0;)
        sift_down(s->keys, s->vocab, at);
}

static uint32_t taken(const md_sampler *s)
{
    return s->vocab - s->heap_count;
}

static uint32_t candidate(const md_sampler *s, uint32_t index)
{
    return (uint32_t)s->keys[s->vocab - 1 - index];
}

static float weight(const md_sampler *s, float logit)
{
    return kn_expf((logit - s->largest) / s->spec.temperature);
}

static void take_next(md_sampler *s, const float *logits)
{
    uint32_t index = taken(s);
    uint64_t top = s->keys[0];
    double before = index == 0 ? 0.0 : s->mass[index - 1];

    s->heap_count--;
    s->keys[0] = s->keys[s->heap_count];
    s->keys[s->heap_count] = top;
    if (s->heap_count > 1) sift_down(s->keys, s->heap_count, 0);
    s->mass[index] = before + (double)weight(s, logits[(uint32_t)top]);
}

/* ---- the draw ---- */

static double uniform(const md_sampler *s, uint64_t position)
{
    uint32_t counter[4] = {(uint32_t)position, (uint32_t)(position >> 32), s->spec.choice, 0};
    uint32_t key[2] = {(uint32_t)s->spec.seed, (uint32_t)(s->spec.seed >> 32)};
    uint32_t out[4];

    md_philox4x32_10(counter, key, out);
    return (double)(((uint64_t)out[0] << 32 | out[1]) >> 11) * 0x1p-53;
}

static double whole_mass(const md_sampler *s, const float *logits)
{
    double sum = 0.0;

    for (uint32_t id = 0; id < s->vocab; id++)
        sum += (double)weight(s, logits[id]);
    return sum;
}

/* Takes candidates until the filters end the list; returns how many are kept, at least one. */
static uint32_t filter(md_sampler *s, const float *logits)
{
    uint32_t limit = s->spec.top_k == 0 || s->spec.top_k > s->vocab ? s->vocab : s->spec.top_k;
    double wanted = INFINITY; /* mass at which top_p ends the list */
    uint32_t kept = 0;

    if (s->spec.top_p < 1.0f && limit == s->vocab) {
        wanted = (double)s->spec.top_p * whole_mass(s, logits);
    } else if (s->spec.top_p < 1.0f) {
        while (taken(s) < limit)
            take_next(s, logits);
        wanted = (double)s->spec.top_p * s->mass[limit - 1];
    }
    while (kept < limit) {
        if (taken(s) == kept) take_next(s, logits);
        if (kept > 0 && weight(s, logits[candidate(s, kept)]) < s->spec.min_p) break;
        kept++;
        if (s->mass[kept - 1] >= wanted) break;
    }
    return kept;
}

/* TOKEN:11 logits -> a token id. */
rt_status md_sampler_pick(md_sampler *s, const float *logits, uint64_t position, uint32_t *id)
{
    bool filtered = s->spec.top_k != 0 || s->spec.top_p < 1.0f || s->spec.min_p > 0.0f;
    uint32_t best, kept = s->vocab, index = 0;
    double target;

    RT_TRY(md_sampler_greedy(logits, s->vocab, &best));
    if (s->spec.temperature == 0.0f) {
        *id = best;
        return RT_OK;
    }
    s->largest = logits[best];
    heap_fill(s, logits);
    if (filtered) {
        kept = filter(s, logits);
        target = uniform(s, position) * s->mass[kept - 1];
    } else {
        target = uniform(s, position) * whole_mass(s, logits);
    }
    for (; index < kept; index++) {
        if (taken(s) == index) take_next(s, logits);
        if (s->mass[index] > target) break;
    }
    if (index == kept) {
        /* Rounding put the target at or past the end: the last token with any probability. */
        index--;
        while (index > 0 && s->mass[index] == s->mass[index - 1])
            index--;
    }
    *id = candidate(s, index);
    return RT_OK;
}
