/* test_router.c - the choice by biased sigmoid, the weights by the plain one. */
#include "attention_node/router.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { EXPERTS = 8, TOPK = 3 };

static md_config config(bool norm)
{
    md_config c = {.experts = EXPERTS, .topk = TOPK, .norm_topk = norm, .routed_scale = 2.5F};

    return c;
}

static bool pick(bool norm, const float *logit, const float *bias, uint32_t *id, float *weight)
{
    md_config c = config(norm);
    float scratch[2 * EXPERTS], copy[EXPERTS];

    memcpy(copy, logit, sizeof(copy));
    return an_router_pick(&c, copy, bias, scratch, id, weight);
}

/* ln 3 gives 3/4, -ln 3 gives 1/4, 0 gives 1/2. */
static void weights_are_shares_of_the_sigmoids_times_the_scale(void **state)
{
    const float ln3 = 1.0986123F;
    const float logit[EXPERTS] = {-9, ln3, -9, 0, -9, -9, -ln3, -9}, bias[EXPERTS] = {0};
    static const double sigmoid[TOPK] = {0.75, 0.5, 0.25};
    static const uint32_t expected[TOPK] = {1, 3, 6};
    uint32_t id[TOPK];
    float weight[TOPK];

    (void)state;
    assert_true(pick(true, logit, bias, id, weight));
    assert_memory_equal(id, expected, sizeof(id));
    for (int i = 0; i < TOPK; i++)
        assert_true(fabs(weight[i] - sigmoid[i] / 1.5 * 2.5) < 1e-6);
    assert_true(pick(false, logit, bias, id, weight));
    for (int i = 0; i < TOPK; i++)
        assert_true(fabs(weight[i] - sigmoid[i] * 2.5) < 1e-6);
}

static void the_bias_chooses_but_does_not_weigh(void **state)
{
    const float logit[EXPERTS] = {3, 2, 1, 0, -1, -2, -3, -4};
    const float bias[EXPERTS] = {-1, 0, 0, 0, 0, 0, 0, 2};
    static const uint32_t expected[TOPK] = {1, 2, 7};
    uint32_t id[TOPK];
    float weight[TOPK];

    (void)state;
    assert_true(pick(false, logit, bias, id, weight));
    assert_memory_equal(id, expected, sizeof(id));
    for (int i = 0; i < TOPK; i++)
        assert_true(fabs(weight[i] - 2.5 / (1 + exp(-(double)logit[id[i]]))) < 1e-6);
}

static void ties_go_to_the_lower_ids(void **state)
{
    const float logit[EXPERTS] = {0}, bias[EXPERTS] = {0};
    const float late[EXPERTS] = {0, 0, 0, 0, 0, 0, 0, 1};
    static const uint32_t first[TOPK] = {0, 1, 2}, with_last[TOPK] = {0, 1, 7};
    uint32_t id[TOPK];
    float weight[TOPK];

    (void)state;
    assert_true(pick(true, logit, bias, id, weight));
    assert_memory_equal(id, first, sizeof(id));
    assert_true(weight[0] == weight[1] && weight[1] == weight[2]);
    assert_true(pick(true, late, bias, id, weight));
    assert_memory_equal(id, with_last, sizeof(id));
}

static void a_nan_is_reported(void **state)
{
    float logit[EXPERTS] = {0}, bias[EXPERTS] = {0};
    uint32_t id[TOPK];
    float weight[TOPK];

    (void)state;
    for (int e = 0; e < EXPERTS; e++) {
        logit[e] = NAN;
        assert_false(pick(true, logit, bias, id, weight));
        logit[e] = 0;
    }
    assert_true(pick(true, logit, bias, id, weight));
}

/* All chosen sigmoids underflow to zero: no division of zero by zero. */
static void hopeless_logits_give_zero_weights(void **state)
{
    float logit[EXPERTS], bias[EXPERTS] = {0}, weight[TOPK];
    uint32_t id[TOPK];

    (void)state;
    for (int e = 0; e < EXPERTS; e++)
        logit[e] = -1000;
    assert_true(pick(true, logit, bias, id, weight));
    for (int i = 0; i < TOPK; i++)
        assert_true(weight[i] == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_are_shares_of_the_sigmoids_times_the_scale),
        cmocka_unit_test(the_bias_chooses_but_does_not_weigh),
        cmocka_unit_test(ties_go_to_the_lower_ids),
        cmocka_unit_test(a_nan_is_reported),
        cmocka_unit_test(hopeless_logits_give_zero_weights),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
