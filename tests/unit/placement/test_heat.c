/* test_heat.c - counts, decay, order, coverage: what a hot set is chosen by. */
/* wrap: calloc */
#include "placement/heat.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LAYERS = 5, EXPERTS = 8, HALF_LIFE = 1000 };

static const bool sparse[LAYERS] = {false, true, true, false, true};
static int failing_allocation; /* 1: the next one */

void *__real_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size);

void *__wrap_calloc(size_t count, size_t size)
{
    return failing_allocation > 0 && --failing_allocation == 0 ? NULL : __real_calloc(count, size);
}

static pl_heat_spec spec_of(void)
{
    return (pl_heat_spec){
        .layers = LAYERS, .sparse = sparse, .experts = EXPERTS, .half_life_tokens = HALF_LIFE};
}

static pl_heat *make(void)
{
    pl_heat_spec spec = spec_of();
    pl_heat *heat = NULL;
    rt_err err = {0};

    if (pl_heat_create(&spec, &heat, &err) != RT_OK) fail_msg("%s", err.text);
    return heat;
}

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-9 * (1 + fabs(b));
}

static void a_new_heat_is_zero_and_has_the_shape_of_the_model(void **state)
{
    pl_heat *heat = make();

    (void)state;
    assert_int_equal(pl_heat_layers(heat), LAYERS);
    assert_int_equal(pl_heat_experts(heat), EXPERTS);
    assert_int_equal(pl_heat_sparse_layers(heat), 3);
    assert_false(pl_heat_sparse(heat, 0));
    assert_true(pl_heat_sparse(heat, 4));
    assert_true(pl_heat_total(heat) == 0 && pl_heat_tokens(heat) == 0);
    assert_true(pl_heat_confidence(heat) == 0);
    assert_true(pl_heat_get(heat, 0, 3) == 0 && pl_heat_layer_total(heat, 0) == 0);
    pl_heat_free(heat);
    pl_heat_free(NULL);
}

static void refuse(pl_heat_spec spec, const char *text)
{
    pl_heat *heat = NULL;
    rt_err err = {0};

    assert_int_equal(pl_heat_create(&spec, &heat, &err), RT_EINVAL);
    assert_null(heat);
    if (strstr(err.text, text) == NULL) fail_msg("expected '%s' in '%s'", text, err.text);
}

static void specs_out_of_range_are_named(void **state)
{
    static const bool none[LAYERS];
    pl_heat_spec spec = spec_of();

    (void)state;
    spec.layers = 0;
    refuse(spec, "found 0");
    spec.layers = PL_HEAT_LAYERS_MAX + 1;
    refuse(spec, "1025");
    spec = spec_of();
    spec.experts = 0;
    refuse(spec, "experts");
    spec.experts = PL_HEAT_EXPERTS_MAX + 1;
    refuse(spec, "4097");
    spec = spec_of();
    spec.half_life_tokens = -1;
    refuse(spec, "half-life");
    spec.half_life_tokens = NAN;
    refuse(spec, "half-life");
    spec.half_life_tokens = INFINITY;
    refuse(spec, "half-life");
    spec = spec_of();
    spec.sparse = none;
    refuse(spec, "has experts");
}

static void a_heat_without_memory_is_none(void **state)
{
    pl_heat_spec spec = spec_of();
    rt_err err = {0};

    (void)state;
    for (int i = 1; i <= 3; i++) {
        pl_heat *heat = NULL;

        failing_allocation = i;
        assert_int_equal(pl_heat_create(&spec, &heat, &err), RT_ENOMEM);
        assert_null(heat);
    }
    failing_allocation = 0;
}

static void selections_count_one_each(void **state)
{
    static const uint32_t ids[] = {1, 5, 1};
    pl_heat *heat = make();

    (void)state;
    pl_heat_add_ids(heat, 2, ids, 3);
    pl_heat_add(heat, 2, 5, 0.5);
    pl_heat_add_ids(heat, 4, ids, 1);
    assert_true(pl_heat_get(heat, 2, 1) == 2);
    assert_true(pl_heat_get(heat, 2, 5) == 1.5);
    assert_true(pl_heat_get(heat, 1, 1) == 0);
    assert_true(pl_heat_layer_total(heat, 2) == 3.5);
    assert_true(pl_heat_total(heat) == 4.5);
    pl_heat_clear(heat);
    assert_true(pl_heat_total(heat) == 0);
    pl_heat_free(heat);
}

static void a_count_halves_every_half_life(void **state)
{
    pl_heat *heat = make();

    (void)state;
    pl_heat_add(heat, 1, 0, 8);
    pl_heat_advance(heat, HALF_LIFE);
    assert_true(near(pl_heat_get(heat, 1, 0), 4));
    pl_heat_add(heat, 1, 0, 4);
    pl_heat_advance(heat, 3 * HALF_LIFE);
    assert_true(near(pl_heat_get(heat, 1, 0), 1));
    assert_true(pl_heat_tokens(heat) == 4 * HALF_LIFE);
    pl_heat_free(heat);
}

/* Steps of one token, of a thousand, of a fraction: only the sum matters; rescaling is not seen. */
static void decay_does_not_depend_on_the_steps(void **state)
{
    pl_heat *a = make(), *b = make();

    (void)state;
    pl_heat_add(a, 1, 3, 1e6);
    pl_heat_add(b, 1, 3, 1e6);
    for (int i = 0; i < 200; i++)
        pl_heat_advance(a, HALF_LIFE / 10.0);
    pl_heat_advance(b, 20 * HALF_LIFE);
    assert_true(near(pl_heat_get(a, 1, 3), pl_heat_get(b, 1, 3)));
    assert_true(near(pl_heat_get(a, 1, 3), 1e6 / 1048576));
    for (int i = 0; i < 70; i++) { /* beyond 2^64: rescaled on the way */
        pl_heat_add(a, 1, 4, 1);
        pl_heat_advance(a, HALF_LIFE);
    }
    assert_true(near(pl_heat_get(a, 1, 4), 1));
    pl_heat_free(a);
    pl_heat_free(b);
}

static void an_age_beyond_all_numbers_forgets_everything(void **state)
{
    pl_heat *heat = make();

    (void)state;
    pl_heat_add(heat, 1, 3, 1e9);
    pl_heat_advance(heat, 1e15);
    assert_true(pl_heat_get(heat, 1, 3) == 0);
    pl_heat_add(heat, 1, 3, 2);
    assert_true(pl_heat_get(heat, 1, 3) == 2);
    pl_heat_free(heat);
}

static void steady_use_settles_at_the_limit(void **state)
{
    pl_heat *heat = make();
    double limit = pl_heat_layer_limit(heat, 2);

    (void)state;
    for (int token = 0; token < 30 * HALF_LIFE; token++) {
        pl_heat_add(heat, 1, (uint32_t)token % EXPERTS, 1);
        pl_heat_add(heat, 1, (uint32_t)(token + 3) % EXPERTS, 1);
        pl_heat_advance(heat, 1);
    }
    assert_true(fabs(pl_heat_layer_total(heat, 1) / limit - 1) < 1e-3);
    pl_heat_free(heat);
}

static void merging_adds_what_both_know_now(void **state)
{
    pl_heat *a = make(), *b = make();

    (void)state;
    pl_heat_add(a, 1, 0, 8);
    pl_heat_advance(a, HALF_LIFE); /* 4 */
    pl_heat_add(b, 1, 0, 3);
    pl_heat_add(b, 4, 7, 2);
    pl_heat_set_tokens(b, 50);
    pl_heat_merge(a, b);
    assert_true(near(pl_heat_get(a, 1, 0), 7));
    assert_true(near(pl_heat_get(a, 4, 7), 2));
    assert_true(pl_heat_tokens(a) == HALF_LIFE + 50);
    assert_true(pl_heat_get(b, 1, 0) == 3);
    pl_heat_free(a);
    pl_heat_free(b);
}

static void appending_ages_what_was_before(void **state)
{
    pl_heat *a = make(), *b = make();

    (void)state;
    pl_heat_add(a, 1, 0, 8);
    pl_heat_add(b, 1, 0, 3);
    pl_heat_set_tokens(b, HALF_LIFE);
    pl_heat_append(a, b);
    assert_true(near(pl_heat_get(a, 1, 0), 4 + 3));
    assert_true(pl_heat_tokens(a) == HALF_LIFE);
    pl_heat_free(a);
    pl_heat_free(b);
}

static void shapes_are_compared_layer_by_layer(void **state)
{
    static const bool other[LAYERS] = {true, false, true, false, true};
    pl_heat_spec spec = spec_of();
    pl_heat *a = make(), *b = make(), *c = NULL;

    (void)state;
    spec.sparse = other;
    assert_int_equal(pl_heat_create(&spec, &c, NULL), RT_OK);
    assert_true(pl_heat_same_shape(a, b));
    assert_false(pl_heat_same_shape(a, c));
    pl_heat_free(a);
    pl_heat_free(b);
    pl_heat_free(c);
}

static void scaling_keeps_proportions(void **state)
{
    pl_heat *heat = make();

    (void)state;
    pl_heat_add(heat, 1, 0, 8);
    pl_heat_add(heat, 1, 1, 2);
    pl_heat_scale(heat, 0.25);
    assert_true(pl_heat_get(heat, 1, 0) == 2 && pl_heat_get(heat, 1, 1) == 0.5);
    pl_heat_free(heat);
}

static void the_hottest_come_first_and_ties_by_layer_and_id(void **state)
{
    pl_heat *heat = make();
    pl_heat_entry top[3 * EXPERTS + 1];
    uint32_t found = 0;

    (void)state;
    pl_heat_add(heat, 4, 1, 5);
    pl_heat_add(heat, 2, 6, 5);
    pl_heat_add(heat, 2, 3, 5);
    pl_heat_add(heat, 1, 7, 9);
    assert_int_equal(pl_heat_top(heat, top, 4, &found), RT_OK);
    assert_int_equal(found, 4);
    assert_true(top[0].layer == 1 && top[0].expert == 7 && top[0].heat == 9);
    assert_true(top[1].layer == 2 && top[1].expert == 3);
    assert_true(top[2].layer == 2 && top[2].expert == 6);
    assert_true(top[3].layer == 4 && top[3].expert == 1);
    assert_int_equal(pl_heat_top(heat, top, 3 * EXPERTS + 1, &found), RT_OK);
    assert_int_equal(found, 3 * EXPERTS);
    assert_true(top[4].layer == 1 && top[4].expert == 0 && top[4].heat == 0);
    assert_int_equal(pl_heat_layer_top(heat, 2, top, 3, &found), RT_OK);
    assert_true(found == 3 && top[0].expert == 3 && top[1].expert == 6 && top[2].expert == 0);
    assert_int_equal(pl_heat_layer_top(heat, 0, top, 3, &found), RT_OK);
    assert_int_equal(found, 0);
    pl_heat_free(heat);
}

static void coverage_is_what_a_store_of_the_hottest_would_hit(void **state)
{
    pl_heat *heat = make();
    pl_heat_cover cover;
    double share;

    (void)state;
    for (uint32_t e = 0; e < EXPERTS; e++)
        pl_heat_add(heat, 1, e, e); /* 0..7, sum 28 */
    assert_int_equal(pl_heat_cover_of(heat, 1, &cover), RT_OK);
    assert_true(near(cover.quarter, 13.0 / 28) && near(cover.half, 22.0 / 28) &&
                near(cover.three_quarters, 27.0 / 28));
    assert_int_equal(pl_heat_coverage(heat, 1, 3.5 / EXPERTS, &share), RT_OK);
    assert_true(near(share, (18 + 2.0) / 28)); /* half of the fourth */
    assert_int_equal(pl_heat_coverage(heat, 1, 1, &share), RT_OK);
    assert_true(near(share, 1));
    assert_int_equal(pl_heat_coverage(heat, 1, 0, &share), RT_OK);
    assert_true(share == 0);
    assert_int_equal(pl_heat_cover_of(heat, 2, &cover), RT_OK);
    assert_true(cover.quarter == 0 && cover.half == 0);
    pl_heat_free(heat);
}

/* Slots are uniform per layer: a layer that takes all selections does not get the other's slots. */
static void coverage_of_all_is_of_each_layers_own_hottest(void **state)
{
    pl_heat *heat = make();
    double share;

    (void)state;
    for (uint32_t e = 0; e < EXPERTS; e++)
        pl_heat_add(heat, 1, e, 10);
    pl_heat_add(heat, 4, 2, 20);
    assert_int_equal(pl_heat_coverage(heat, PL_HEAT_ALL, 0.25, &share), RT_OK);
    assert_true(near(share, (20.0 + 20) / 100));
    pl_heat_free(heat);
}

static void skew_is_zero_when_even_and_near_one_when_single(void **state)
{
    pl_heat *heat = make();
    double skew;

    (void)state;
    for (uint32_t e = 0; e < EXPERTS; e++)
        pl_heat_add(heat, 1, e, 3);
    pl_heat_add(heat, 2, 5, 9);
    pl_heat_add(heat, 4, 0, 1);
    pl_heat_add(heat, 4, 1, 3);
    assert_int_equal(pl_heat_skew(heat, 1, &skew), RT_OK);
    assert_true(near(skew, 0));
    assert_int_equal(pl_heat_skew(heat, 2, &skew), RT_OK);
    assert_true(near(skew, 7.0 / 8));
    assert_int_equal(pl_heat_skew(heat, 4, &skew), RT_OK);
    assert_true(near(skew, (7 * 3 + 5 * 1) / 32.0));
    pl_heat_clear(heat);
    assert_int_equal(pl_heat_skew(heat, 1, &skew), RT_OK);
    assert_true(skew == 0);
    pl_heat_free(heat);
}

static void confidence_grows_with_selections(void **state)
{
    pl_heat *heat = make();
    double last = 0;

    (void)state;
    pl_heat_add(heat, 1, 0, 0.2 * EXPERTS);
    assert_true(pl_heat_confidence(heat) == 0);
    for (int i = 0; i < 15; i++) {
        pl_heat_add(heat, 1, 1, EXPERTS);
        assert_true(pl_heat_confidence(heat) > last);
        last = pl_heat_confidence(heat);
        assert_true(last < 1);
    }
    pl_heat_add(heat, 1, 1, EXPERTS);
    assert_true(pl_heat_confidence(heat) == 1);
    pl_heat_add(heat, 2, 1, 1); /* a layer that has seen next to nothing lowers it */
    assert_true(pl_heat_confidence(heat) < 0.6);
    pl_heat_free(heat);
}

static void figures_without_memory_say_so(void **state)
{
    pl_heat *heat = make();
    pl_heat_entry top[2];
    uint32_t found = 7;
    double value = 7;

    (void)state;
    failing_allocation = 1;
    assert_int_equal(pl_heat_top(heat, top, 2, &found), RT_ENOMEM);
    failing_allocation = 1;
    assert_int_equal(pl_heat_coverage(heat, 1, 0.5, &value), RT_ENOMEM);
    failing_allocation = 1;
    assert_int_equal(pl_heat_skew(heat, 1, &value), RT_ENOMEM);
    assert_true(found == 7 && value == 7);
    failing_allocation = 0;
    pl_heat_free(heat);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_heat_is_zero_and_has_the_shape_of_the_model),
        cmocka_unit_test(specs_out_of_range_are_named),
        cmocka_unit_test(a_heat_without_memory_is_none),
        cmocka_unit_test(selections_count_one_each),
        cmocka_unit_test(a_count_halves_every_half_life),
        cmocka_unit_test(decay_does_not_depend_on_the_steps),
        cmocka_unit_test(an_age_beyond_all_numbers_forgets_everything),
        cmocka_unit_test(steady_use_settles_at_the_limit),
        cmocka_unit_test(merging_adds_what_both_know_now),
        cmocka_unit_test(appending_ages_what_was_before),
        cmocka_unit_test(shapes_are_compared_layer_by_layer),
        cmocka_unit_test(scaling_keeps_proportions),
        cmocka_unit_test(the_hottest_come_first_and_ties_by_layer_and_id),
        cmocka_unit_test(coverage_is_what_a_store_of_the_hottest_would_hit),
        cmocka_unit_test(coverage_of_all_is_of_each_layers_own_hottest),
        cmocka_unit_test(skew_is_zero_when_even_and_near_one_when_single),
        cmocka_unit_test(confidence_grows_with_selections),
        cmocka_unit_test(figures_without_memory_say_so),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
