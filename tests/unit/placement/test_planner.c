/* test_planner.c - the plan adds up, and more of anything is never worse. */
#include "placement/planner.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const uint64_t GIB = 1ull << 30;

/* GLM-5.2 with 4-bit experts in groups of 64 (kernels note: 20.05 MB each), 8-bit dense weights. */
static pl_model glm52(void)
{
    return (pl_model){.dense_bytes = 19800000000,
                      .dense_token_bytes = 17900000000,
                      .kv_bytes = 3100000000,
                      .attention_scratch_bytes = 200000000,
                      .expert_scratch_bytes = 100000000,
                      .record_bytes = 20054016,
                      .layers = 75,
                      .experts = 256,
                      .topk = 8,
                      .attention_flop = 22.2e9,
                      .row_out_bytes = 6600,
                      .row_back_bytes = 12500};
}

static pl_machine desktop(uint64_t ram_bytes)
{
    return (pl_machine){.ram_bytes = ram_bytes,
                        .nodes = 1,
                        .ram_rate = 40e9,
                        .disk_rate = 2e9,
                        .flop_rate = 150e9,
                        .link_rate = 1.25e9,
                        .link_latency_s = 100e-6};
}

static pl_plan make(const pl_model *model, const pl_machine *machine, const pl_curve *curve)
{
    pl_plan plan;
    rt_err err = {0};

    if (pl_plan_make(model, machine, curve, &plan, &err) != RT_OK) fail_msg("%s", err.text);
    return plan;
}

static void near(double found, double expected, double tolerance)
{
    if (!(fabs(found - expected) <= tolerance)) fail_msg("expected %g, found %g", expected, found);
}

/* ---- curves ---- */

static void glm52_curve_has_the_measured_points(void **state)
{
    pl_curve curve = pl_curve_glm52();

    (void)state;
    assert_int_equal(pl_curve_check(&curve, NULL), RT_OK);
    near(pl_curve_at(&curve, .25), .576, 1e-12);
    near(pl_curve_at(&curve, .5), .824, 1e-12);
    near(pl_curve_at(&curve, .75), .955, 1e-12);
    near(pl_curve_at(&curve, .4375), (.718 + .824) / 2, 1e-12);
}

static void curve_is_clipped_and_never_falls(void **state)
{
    pl_curve curves[] = {pl_curve_glm52(), pl_curve_flat()};

    (void)state;
    for (int c = 0; c < 2; c++) {
        double last = 0;

        assert_true(pl_curve_at(&curves[c], -1) == 0 && pl_curve_at(&curves[c], NAN) == 0);
        assert_true(pl_curve_at(&curves[c], 1) == 1 && pl_curve_at(&curves[c], 7) == 1);
        for (int i = 1; i <= 1000; i++) {
            double share = pl_curve_at(&curves[c], i / 1000.);

            assert_true(share >= last && share >= i / 1000. - 1e-12);
            last = share;
        }
    }
}

static void curves_that_are_none_are_refused(void **state)
{
    const pl_curve bad[] = {
        {.count = 0},
        {.count = 1, .fraction = {0}, .share = {0}},
        {.count = PL_CURVE_POINTS_MAX + 1},
        {.count = 2, .fraction = {0, .9}, .share = {0, 1}},
        {.count = 2, .fraction = {0, 1}, .share = {0, .9}},
        {.count = 2, .fraction = {.1, 1}, .share = {0, 1}},
        {.count = 2, .fraction = {0, 1}, .share = {.1, 1}},
        {.count = 3, .fraction = {0, 0, 1}, .share = {0, .5, 1}},
        {.count = 3, .fraction = {0, .5, 1}, .share = {0, 1.5, 1}},
        {.count = 4, .fraction = {0, .3, .6, 1}, .share = {0, .6, .5, 1}},
        {.count = 3, .fraction = {0, NAN, 1}, .share = {0, .5, 1}},
        {.count = 3, .fraction = {0, .5, 1}, .share = {0, NAN, 1}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        rt_err err = {0};

        assert_int_equal(pl_curve_check(&bad[i], &err), RT_EINVAL);
        assert_non_null(strstr(err.text, "heat curve"));
    }
}

/* ---- placement ---- */

static void bytes_add_up_and_stay_within_the_budget(void **state)
{
    pl_curve curve = pl_curve_glm52();
    pl_model model = glm52();
    uint64_t fixed = model.dense_bytes + model.kv_bytes + model.attention_scratch_bytes +
                     model.expert_scratch_bytes;

    (void)state;
    for (uint64_t ram = 24 * GIB; ram <= 512 * GIB; ram += 4 * GIB) {
        pl_machine machine = desktop(ram);
        pl_plan plan = make(&model, &machine, &curve);

        assert_int_equal(plan.records, 19200);
        assert_true(plan.fits && plan.ram_used_bytes <= ram);
        assert_int_equal(plan.ram_used_bytes,
                         fixed + (plan.records_in_ram + plan.transit_slots) * model.record_bytes);
        assert_int_equal(plan.transit_slots == 0, plan.records_in_ram == plan.records);
        assert_true(plan.transit_slots <= 16 && plan.records_pinned <= plan.records_in_ram);
        assert_true(plan.records_in_ram == plan.records ||
                    ram - plan.ram_used_bytes < model.record_bytes);
        assert_int_equal(plan.all_bytes, fixed + 19200 * model.record_bytes);
        assert_int_equal(plan.records_in_ram == plan.records, ram >= plan.all_bytes);
    }
}

static void more_ram_never_lowers_hit_rate_or_speed(void **state)
{
    pl_curve curve = pl_curve_glm52();
    pl_model model = glm52();
    double hit = 0, fast = 0, slow = 0;

    (void)state;
    for (uint64_t ram = 22 * GIB; ram <= 512 * GIB; ram += GIB / 2) {
        pl_machine machine = desktop(ram);
        pl_plan plan = make(&model, &machine, &curve);

        if (!plan.fits) continue;
        assert_true(plan.hit_rate >= hit && plan.fast_tok_s >= fast && plan.slow_tok_s >= slow);
        assert_true(plan.slow_tok_s <= plan.fast_tok_s);
        hit = plan.hit_rate;
        fast = plan.fast_tok_s;
        slow = plan.slow_tok_s;
    }
    assert_true(hit == 1);
}

static void faster_parts_never_make_it_slower(void **state)
{
    pl_curve curve = pl_curve_glm52();
    pl_model model = glm52();

    (void)state;
    for (int part = 0; part < 5; part++) {
        pl_machine before = desktop(64 * GIB), after;
        pl_plan a, b;

        before.nodes = part == 4 ? 3 : 1;
        after = before;
        if (part == 0) after.ram_rate *= 2;
        if (part == 1) after.disk_rate *= 2;
        if (part == 2) after.flop_rate *= 2;
        if (part >= 3) after.link_rate *= 2;
        a = make(&model, &before, &curve);
        b = make(&model, &after, &curve);
        assert_true(b.fast_tok_s >= a.fast_tok_s && b.slow_tok_s >= a.slow_tok_s);
        assert_true((part == 3) == (b.slow_tok_s == a.slow_tok_s)); /* alone: no link */
    }
}

static void all_in_ram_reads_nothing_from_the_disk(void **state)
{
    pl_curve curve = pl_curve_flat();
    pl_model model = glm52();
    pl_machine machine = desktop(512 * GIB);
    pl_plan plan;

    (void)state;
    machine.disk_rate = 0;
    plan = make(&model, &machine, &curve);
    assert_true(plan.fits && plan.hit_rate == 1 && plan.term_s[PL_TERM_DISK] == 0);
    /* kernels note, limits: 12 GB of experts and 17.9 of dense at 40 GB/s. */
    near(plan.term_s[PL_TERM_EXPERTS], 600 * 20054016. / 40e9, 1e-9);
    near(plan.term_s[PL_TERM_DENSE], 17.9 / 40, 1e-9);
    assert_int_equal(plan.limit, PL_TERM_DENSE);
    near(plan.fast_tok_s, 1 / (.4475 + .300810 + 22.2 / 150), 1e-3);
    near(plan.slow_tok_s, plan.fast_tok_s * PL_SLOW, 1e-9);
    assert_int_equal(plan.nodes_for_all, 1);
}

static void without_a_disk_half_of_the_experts_is_none(void **state)
{
    pl_curve curve = pl_curve_flat();
    pl_model model = glm52();
    pl_machine machine = desktop(128 * GIB);
    pl_plan plan;

    (void)state;
    machine.disk_rate = 0;
    plan = make(&model, &machine, &curve);
    assert_false(plan.fits);
    assert_int_equal(plan.needed_bytes, plan.all_bytes);
    assert_int_equal(plan.missing_bytes, plan.all_bytes - 128 * GIB);
}

static void disk_limits_a_small_machine(void **state)
{
    pl_curve curve = pl_curve_glm52();
    pl_model model = glm52();
    pl_machine machine = desktop(32 * GIB);
    pl_plan plan = make(&model, &machine, &curve);

    (void)state;
    assert_int_equal(plan.limit, PL_TERM_DISK);
    near(plan.term_s[PL_TERM_DISK], (1 - plan.hit_rate) * 600 * 20054016. / 2e9, 1e-9);
    near(plan.hit_rate, pl_curve_at(&curve, (double)plan.records_in_ram / 19200), 1e-12);
    near(plan.fast_tok_s, 1 / plan.term_s[PL_TERM_DISK], 1e-9);
}

static void too_little_ram_says_how_much_is_missing(void **state)
{
    pl_curve curve = pl_curve_glm52();
    pl_model model = glm52();
    pl_machine machine = desktop(16 * GIB);
    pl_plan plan = make(&model, &machine, &curve);

    (void)state;
    assert_false(plan.fits);
    assert_int_equal(plan.needed_bytes, 19800000000 + 3100000000 + 300000000 + 2 * 20054016);
    assert_int_equal(plan.missing_bytes, plan.needed_bytes - 16 * GIB);
    assert_int_equal(plan.nodes_for_all, 0);
    machine.ram_bytes = plan.needed_bytes;
    plan = make(&model, &machine, &curve);
    assert_true(plan.fits && plan.records_in_ram == 0 && plan.transit_slots == 2);
    machine.ram_bytes--;
    plan = make(&model, &machine, &curve);
    assert_true(!plan.fits && plan.missing_bytes == 1);
}

static void transit_takes_an_eighth_at_most_and_two_slots_at_least(void **state)
{
    (void)state;
    assert_int_equal(pl_transit_slots(1000, 0, 1, 16), 16);
    assert_int_equal(pl_transit_slots(80, 0, 1, 16), 10);
    assert_int_equal(pl_transit_slots(17, 0, 1, 16), 2);
    assert_int_equal(pl_transit_slots(2, 0, 1, 16), 2);
    assert_int_equal(pl_transit_slots(80, 75, 1, 16), 2); /* the read buffers leave no more */
    assert_int_equal(pl_transit_slots(1000, 0, 1, 1), 2);
}

static void pinned_are_as_many_as_the_heat_is_sure_of(void **state)
{
    pl_curve curve = pl_curve_glm52();
    pl_model model = glm52();
    pl_machine machine = desktop(128 * GIB);
    pl_plan none = make(&model, &machine, &curve), half;

    (void)state;
    assert_int_equal(none.records_pinned, 0);
    model.heat_confidence = 1;
    half = make(&model, &machine, &curve);
    assert_int_equal(half.records_pinned % 75, 0);
    assert_true(half.records_pinned * 2 <= half.records_in_ram &&
                half.records_pinned * 2 + 150 >= half.records_in_ram - 75);
}

/* ---- nodes ---- */

static void nodes_for_all_is_the_fewest_that_hold_everything(void **state)
{
    pl_curve curve = pl_curve_glm52();
    pl_model model = glm52();

    (void)state;
    for (uint64_t ram = 24 * GIB; ram <= 512 * GIB; ram += 8 * GIB) {
        pl_machine machine = desktop(ram);
        pl_plan plan = make(&model, &machine, &curve);
        uint32_t nodes = plan.nodes_for_all;

        assert_true(nodes >= 1);
        machine.nodes = nodes;
        plan = make(&model, &machine, &curve);
        assert_true(plan.hit_rate == 1 && plan.all_bytes <= ram);
        if (nodes == 1) continue;
        machine.nodes = nodes - 1;
        plan = make(&model, &machine, &curve);
        assert_true(plan.hit_rate < 1);
    }
}

static void busiest_node_is_that_of_balls_in_bins(void **state)
{
    (void)state;
    near(pl_plan_busiest(8, 1), 8, 1e-9);
    near(pl_plan_busiest(1, 7), 1, 1e-9);
    near(pl_plan_busiest(2, 2), 1.5, 1e-12);
    near(pl_plan_busiest(2, 4), 1.25, 1e-12);
    near(pl_plan_busiest(3, 3), (6 * 1 + 18 * 2 + 3 * 3) / 27., 1e-12);
    /* Simulated and measured in the field: 3.46 to 3.53 and 2.55 to 2.60. */
    near(pl_plan_busiest(8, 4), 3.5, .08);
    near(pl_plan_busiest(8, 8), 2.6, .06);
    assert_true(pl_plan_busiest(64, 1024) > 1 && pl_plan_busiest(64, 1024) < 4);
    for (uint32_t n = 2; n < 100; n++)
        assert_true(pl_plan_busiest(8, n) <= pl_plan_busiest(8, n - 1));
}

static void slices_balance_what_whole_experts_do_not(void **state)
{
    pl_curve curve = pl_curve_glm52();
    pl_model model = glm52();
    pl_machine machine = desktop(128 * GIB);
    pl_plan whole, sliced;

    (void)state;
    machine.nodes = 5;
    whole = make(&model, &machine, &curve);
    machine.sliced = true;
    sliced = make(&model, &machine, &curve);
    near(sliced.term_s[PL_TERM_EXPERTS], 75 * 2 * 20054016. / 40e9, 1e-9);
    near(whole.term_s[PL_TERM_EXPERTS], 75 * pl_plan_busiest(8, 4) * 20054016. / 40e9, 1e-9);
    /* Four frames out and back instead of 3.6. */
    assert_true(sliced.term_s[PL_TERM_NETWORK] > whole.term_s[PL_TERM_NETWORK]);
    near(sliced.term_s[PL_TERM_NETWORK], 75 * (100e-6 + 4 * 19100 / 1.25e9), 1e-9);
    near(whole.term_s[PL_TERM_NETWORK], 75 * (100e-6 + 3.5995 * 19100 / 1.25e9), 1e-6);
}

static void expert_nodes_need_no_dense_weights(void **state)
{
    pl_curve curve = pl_curve_glm52();
    pl_model model = glm52();
    pl_machine machine = desktop(24 * GIB);
    pl_plan plan;

    (void)state;
    machine.nodes = 17;
    plan = make(&model, &machine, &curve);
    assert_int_equal(plan.records_node, 1200);
    assert_true(plan.fits && plan.hit_rate == 1);
    assert_int_equal(plan.all_bytes, 100000000 + 1200 * model.record_bytes);
    assert_int_equal(plan.ram_used_bytes, plan.all_bytes);
}

/* ---- input ---- */

static void numbers_that_make_no_sense_are_named(void **state)
{
    static const char *const named[] = {
        "memory read rate", "memory read rate", "disk rate", "attention rate", "nodes", "nodes",
        "link rate",        "link latency",     "experts",   "top-k",          "top-k"};
    pl_curve curve = pl_curve_flat();

    (void)state;
    for (size_t i = 0; i < sizeof(named) / sizeof(named[0]); i++) {
        pl_machine machine = desktop(64 * GIB);
        pl_model model = glm52();
        pl_plan plan, before;
        rt_err err = {0};

        if (i == 0) machine.ram_rate = 0;
        if (i == 1) machine.ram_rate = NAN;
        if (i == 2) machine.disk_rate = -1;
        if (i == 3) machine.flop_rate = INFINITY;
        if (i == 4) machine.nodes = 0;
        if (i == 5) machine.nodes = PL_PLAN_NODES_MAX + 1;
        if (i == 6 || i == 7) machine.nodes = 2;
        if (i == 6) machine.link_rate = 0;
        if (i == 7) machine.link_latency_s = -1;
        if (i == 8) model.experts = 0;
        if (i == 9) model.topk = 0;
        if (i == 10) model.topk = 257;
        memset(&plan, 7, sizeof(plan));
        before = plan;
        assert_int_equal(pl_plan_make(&model, &machine, &curve, &plan, &err), RT_EINVAL);
        if (strstr(err.text, named[i]) == NULL) fail_msg("%s: %s", named[i], err.text);
        assert_memory_equal(&plan, &before, sizeof(plan));
    }
}

static void a_curve_that_is_none_is_refused_by_the_plan(void **state)
{
    pl_curve curve = {.count = 1};
    pl_machine machine = desktop(64 * GIB);
    pl_model model = glm52();
    pl_plan plan;

    (void)state;
    assert_int_equal(pl_plan_make(&model, &machine, &curve, &plan, NULL), RT_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(glm52_curve_has_the_measured_points),
        cmocka_unit_test(curve_is_clipped_and_never_falls),
        cmocka_unit_test(curves_that_are_none_are_refused),
        cmocka_unit_test(bytes_add_up_and_stay_within_the_budget),
        cmocka_unit_test(more_ram_never_lowers_hit_rate_or_speed),
        cmocka_unit_test(faster_parts_never_make_it_slower),
        cmocka_unit_test(all_in_ram_reads_nothing_from_the_disk),
        cmocka_unit_test(without_a_disk_half_of_the_experts_is_none),
        cmocka_unit_test(disk_limits_a_small_machine),
        cmocka_unit_test(too_little_ram_says_how_much_is_missing),
        cmocka_unit_test(transit_takes_an_eighth_at_most_and_two_slots_at_least),
        cmocka_unit_test(pinned_are_as_many_as_the_heat_is_sure_of),
        cmocka_unit_test(nodes_for_all_is_the_fewest_that_hold_everything),
        cmocka_unit_test(busiest_node_is_that_of_balls_in_bins),
        cmocka_unit_test(slices_balance_what_whole_experts_do_not),
        cmocka_unit_test(expert_nodes_need_no_dense_weights),
        cmocka_unit_test(numbers_that_make_no_sense_are_named),
        cmocka_unit_test(a_curve_that_is_none_is_refused_by_the_plan),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
