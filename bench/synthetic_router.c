/* synthetic_router.c - biases that give a router of random weights a wanted heat.
 *
 * A random router's logits are independent and normal over tokens, so its choices can be simulated
 * without a model: draw logits, add the biases, take the topk, compare how often each expert was taken
 * with how often it should be, move its bias, again. */
#include "bench/synthetic.h"

#include "base/check.h"
#include "kernels/mathf.h"

#include <stdlib.h>
#include <string.h>

enum {
    SAMPLES = 8192,
    STEPS = 80,
    COARSE_STEPS = 40,
    TERMS = 12, /* uniform numbers whose sum, less 6, stands for a normal one */
};

static const double COARSE = 0.25, FINE = 0.08; /* how far a bias moves at most; scores are 0..1 */
static const double SHARE_MAX = 0.9;            /* a bias cannot make a choice certain */
static const double SMOOTHING = 0.25; /* selections added to each count: none is impossible */

static float draw_normal(synthetic_rng *rng)
{
    uint32_t sum = 0;

    for (int i = 0; i < TERMS; i += 4)
        for (uint64_t r = synthetic_next(rng), k = 0; k < 4; k++, r >>= 16)
            sum += (uint32_t)(r & 0xffff);
    return (float)((double)sum * 0x1p-16 - TERMS / 2);
}

/* Adds one to each of the topk with the largest score + bias; ties to the lower id. */
static void choose(const float *score, const float *bias, uint32_t experts, uint32_t topk,
                   uint32_t *taken)
{
    float best[MD_TOPK_MAX];
    uint32_t id[MD_TOPK_MAX], used = 0;

    for (uint32_t e = 0; e < experts; e++) {
        float value = score[e] + bias[e];
        uint32_t at = used;

        if (used == topk && value <= best[topk - 1]) continue;
        if (used < topk) used++;
        if (at == topk) at--;
        for (; at > 0 && best[at - 1] < value; at--) {
            best[at] = best[at - 1];
            id[at] = id[at - 1];
        }
        best[at] = value;
        id[at] = e;
    }
    for (uint32_t i = 0; i < used; i++)
        taken[id[i]]++;
}

rt_status synthetic_bias_solve(const double *share, uint32_t experts, uint32_t topk, uint64_t seed,
                               float *bias, rt_err *err)
{
    float *score = malloc((size_t)SAMPLES * experts * sizeof(*score));
    uint32_t *taken = malloc(experts * sizeof(*taken));
    synthetic_rng rng = {seed};
    rt_status status = RT_OK;

    RT_ASSERT(topk > 0 && topk <= MD_TOPK_MAX && topk < experts);
    if (score == NULL || taken == NULL) {
        status = rt_fail(err, RT_ENOMEM, "%d samples of %u logits", SAMPLES, experts);
        goto done;
    }
    for (size_t i = 0; i < (size_t)SAMPLES * experts; i++)
        score[i] = kn_sigmoidf(draw_normal(&rng));
    memset(bias, 0, experts * sizeof(*bias));
    for (int step = 0; step < STEPS; step++) {
        double reach = step < COARSE_STEPS ? COARSE : FINE;

        memset(taken, 0, experts * sizeof(*taken));
        for (size_t i = 0; i < SAMPLES; i++)
            choose(score + i * experts, bias, experts, topk, taken);
        for (uint32_t e = 0; e < experts; e++) {
            double now = (double)taken[e] / SAMPLES;

            bias[e] += (float)(reach * (share[e] - now) / (share[e] + now));
        }
    }
done:
    free(taken);
    free(score);
    return status;
}

void synthetic_shares(const pl_heat *heat, uint32_t layer, uint32_t experts, uint32_t topk,
                      double *share)
{
    uint32_t known = pl_heat_experts(heat);
    double left = topk, sum = 0;
    uint32_t capped = 0;

    for (uint32_t e = 0; e < experts; e++) {
        uint32_t from = experts < known ? (uint32_t)((uint64_t)e * known / experts) : e % known;

        share[e] = pl_heat_get(heat, layer, from) + SMOOTHING;
        sum += share[e];
    }
    /* What is above the cap is given to the others, which may bring more of them to it. */
    for (uint32_t before = experts; capped != before;) {
        double factor = left / sum;

        before = capped;
        for (uint32_t e = 0; e < experts; e++) {
            if (share[e] < 0 || share[e] * factor <= SHARE_MAX) continue;
            sum -= share[e];
            left -= SHARE_MAX;
            share[e] = -1;
            capped++;
        }
    }
    for (uint32_t e = 0; e < experts; e++)
        share[e] = share[e] < 0 ? SHARE_MAX : share[e] * (left / sum);
}
