/* test_shared_expert.c - the shared expert's slices on the integer sums: narrow, wide and poison. */
#include "attention_node/shared_expert.h"

#include "kernels/grid.h"
#include "model/ffn.h"
#include "tests/support/fake_link.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 37, LAYER = 2 };

typedef struct {
    char *dir;
    md_container *container;
    md_weights *weights;
    pl_map *map;
    an_dispatch *dispatch;
    an_combine *combine;
    an_pass pass;
    uint32_t hidden, pumps;
    float *x;
    kn_rows rows;
    uint32_t id[ROWS];
    float weight[ROWS];
} fixture;

static fixture *open_fixture(uint32_t threads, int grid_q, kn_format dense)
{
    tiny_model_spec model = tiny_model_default();
    fixture *f = calloc(1, sizeof(*f));
    rt_team_spec team = {.threads = threads};
    uint32_t share = 1;
    uint64_t seed = 2;
    md_expert_layout layout;
    pl_map_spec map = {.nodes = 1, .share = &share, .mode = PL_WHOLE};
    rt_budget budget;

    assert_non_null(f);
    model.grid_q = grid_q;
    model.dense_format = dense;
    f->dir = tiny_model_build(&model);
    f->hidden = model.hidden;
    rt_budget_init(&budget, 1ULL << 30);
    assert_int_equal(md_container_open(f->dir, &f->container, NULL), RT_OK);
    assert_int_equal(md_weights_load(f->container, false, &budget, &f->weights, NULL), RT_OK);
    md_container_shared_layout(f->container, &layout);
    map.layers = model.layers;
    map.sparse = md_container_config(f->container)->sparse;
    map.experts = model.experts;
    map.slices = layout.slices;
    assert_int_equal(pl_map_create(&map, &f->map, NULL), RT_OK);
    assert_int_equal(rt_team_create(&team, &f->pass.team, NULL), RT_OK);
    f->pass.config = md_container_config(f->container);
    f->pass.weights = f->weights;
    f->pass.members = rt_team_size(f->pass.team);
    f->pass.rows = ROWS;
    f->pass.member_bytes = an_shared_member_bytes(&layout) + an_rows_member_bytes(model.hidden);
    assert_int_equal(rt_arena_create(rt_arena_cost(f->pass.member_bytes * f->pass.members) +
                                         an_rows_quant_cost(ROWS, model.hidden, 16) +
                                         an_shared_cost(&layout, f->pass.members),
                                     &f->pass.arena, NULL),
                     RT_OK);
    f->pass.member_memory = rt_arena_take(f->pass.arena, f->pass.member_bytes * f->pass.members);
    f->x = malloc(ROWS * model.hidden * sizeof(float));
    for (uint32_t i = 0; i < ROWS * model.hidden; i++)
        f->x[i] = tiny_model_uniform(&seed);
    assert_int_equal(an_dispatch_create(1, ROWS, &f->dispatch, NULL), RT_OK);
    assert_int_equal(an_combine_create(1, ROWS, model.hidden, &f->combine, NULL), RT_OK);
    return f;
}

static void close_fixture(fixture *f)
{
    an_combine_free(f->combine);
    an_dispatch_free(f->dispatch);
    pl_map_free(f->map);
    md_weights_free(f->weights);
    md_container_close(f->container);
    rt_arena_free(f->pass.arena);
    rt_team_free(f->pass.team);
    temp_dir_remove(f->dir);
    free(f->x);
    free(f);
}

static rt_status count_pump(void *context)
{
    fixture *f = context;

    f->pumps++;
    return RT_OK;
}

static void run(fixture *f)
{
    const md_layer_weights *weights = &f->weights->layers[LAYER];
    an_dispatch_layer layer = {.request = 1,
                               .layer = LAYER,
                               .x = &f->rows,
                               .topk = 1,
                               .id = f->id,
                               .weight = f->weight,
                               .map = f->map};

    f->rows = an_rows_view(&f->pass, f->x, f->hidden, ROWS, f->hidden,
                           weights->shared_layout.hidden_group,
                           an_wants_int8(&f->pass, weights->shared_layout.format));
    an_dispatch_plan(f->dispatch, &layer);
    an_combine_begin(f->combine, f->dispatch);
    assert_int_equal(an_shared_run(&f->pass, LAYER, &f->rows, f->combine, count_pump, f), RT_OK);
}

/* Slice by slice and row by row, in 64-bit integers. */
static void check_sums(const fixture *f)
{
    const md_layer_weights *weights = &f->weights->layers[LAYER];
    const md_expert_layout *layout = &weights->shared_layout;
    void *scratch = aligned_alloc(
        64, an_align(md_ffn_scratch_bytes(1, layout->slice_width, layout->inter_group)));
    float *y = malloc(f->hidden * sizeof(float));
    bool different = false;

    for (uint32_t row = 0; row < ROWS; row++) {
        int64_t expected[64] = {0};

        for (uint32_t s = 0; s < layout->slices; s++) {
            md_slice slice = md_slice_view(
                layout, s, (const char *)weights->shared + md_slice_offset(layout, s));
            kn_rows x = an_rows_part(&f->rows, row, 1);

            md_ffn_slice(y, f->hidden, &x, &slice, scratch);
            kn_grid_add_wide(expected, y, kn_exp2i(weights->grid_q), f->hidden);
        }
        assert_memory_equal(an_combine_sums(f->combine, row), expected,
                            f->hidden * sizeof(int64_t));
        different = different || expected[0] != an_combine_sums(f->combine, 0)[0];
    }
    assert_true(different);
    free(scratch);
    free(y);
}

static void sums_are_those_of_single_slices(void **state)
{
    static const struct {
        uint32_t threads;
        int grid_q;
        kn_format dense;
    } cases[] = {{0, 13, KN_Q8}, {4, 13, KN_Q8}, {0, 22, KN_F32}, {3, 22, KN_BF16}, {5, 13, KN_Q4}};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        fixture *f = open_fixture(cases[i].threads, cases[i].grid_q, cases[i].dense);

        run(f);
        check_sums(f);
        assert_true(f->pumps > 0);
        close_fixture(f);
    }
}

/* 2^40 times an output of about 1 does not fit int32. */
static void large_contributions_go_to_the_wide_sums(void **state)
{
    fixture *f = open_fixture(2, 40, KN_F32);

    (void)state;
    run(f);
    check_sums(f);
    close_fixture(f);
}

/* The routed experts of all rows give nothing. */
static void answer_zeros(fixture *f)
{
    static const uint8_t zeros[ROWS];
    size_t bytes = an_dispatch_frame_bytes(f->dispatch, 0), reply_bytes;
    uint8_t *frame = aligned_alloc(64, an_align(bytes)), *answer;
    an_reply reply;

    assert_non_null(frame);
    an_dispatch_write(f->dispatch, 0, 0, 0, frame);
    answer = fake_link_reply(frame, zeros, ROWS, &reply_bytes);
    assert_int_equal(an_combine_frame(f->combine, 0, answer, reply_bytes, &reply, NULL), RT_OK);
    assert_int_equal(reply, AN_REPLY_ADDED);
    free(frame);
    free(answer);
}

static void a_row_that_is_not_finite_is_poisoned_alone(void **state)
{
    fixture *f = open_fixture(2, 13, KN_F32);
    float out[64];

    (void)state;
    f->x[5 * f->hidden] = NAN;
    run(f);
    answer_zeros(f);
    for (uint32_t row = 0; row < ROWS; row++)
        assert_int_equal(an_combine_finish(f->combine, row, out), row != 5);
    close_fixture(f);
}

static rt_status failing_pump(void *context)
{
    (void)context;
    return RT_EPEER;
}

static void what_the_pump_reports_ends_the_run(void **state)
{
    fixture *f = open_fixture(0, 13, KN_Q8);

    (void)state;
    run(f);
    assert_int_equal(an_shared_run(&f->pass, LAYER, &f->rows, f->combine, failing_pump, NULL),
                     RT_EPEER);
    close_fixture(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_those_of_single_slices),
        cmocka_unit_test(large_contributions_go_to_the_wide_sums),
        cmocka_unit_test(a_row_that_is_not_finite_is_poisoned_alone),
        cmocka_unit_test(what_the_pump_reports_ends_the_run),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
