/* test_rows.c - splitting rows and tiles over a team changes no bit; bad rows are named. */
#include "attention_node/rows.h"

#include "kernels/norm.h"
#include "tests/support/tiny_model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 19, COLS = 96, OUT = 150, GROUP = 32 };

typedef struct {
    an_pass pass;
    float x[ROWS * COLS];
    size_t bytes;
} fixture;

static int open_fixture(void **state, uint32_t threads)
{
    fixture *f = calloc(1, sizeof(*f));
    rt_team_spec team = {.threads = threads};
    uint64_t seed = 11;

    assert_non_null(f);
    assert_int_equal(rt_team_create(&team, &f->pass.team, NULL), RT_OK);
    f->pass.members = rt_team_size(f->pass.team);
    f->pass.member_bytes = an_rows_member_bytes(COLS);
    f->bytes = rt_arena_cost(f->pass.member_bytes * f->pass.members) +
               an_rows_quant_cost(ROWS, COLS, GROUP);
    assert_int_equal(rt_arena_create(f->bytes, &f->pass.arena, NULL), RT_OK);
    f->pass.member_memory = rt_arena_take(f->pass.arena, f->pass.member_bytes * f->pass.members);
    for (uint32_t i = 0; i < ROWS * COLS; i++)
        f->x[i] = tiny_model_uniform(&seed);
    *state = f;
    return 0;
}

static int setup(void **state)
{
    return open_fixture(state, 0);
}

static int setup_team(void **state)
{
    return open_fixture(state, 4);
}

static int teardown(void **state)
{
    fixture *f = *state;

    rt_arena_free(f->pass.arena);
    rt_team_free(f->pass.team);
    free(f);
    return 0;
}

static void *memory(size_t bytes)
{
    void *data = aligned_alloc(64, (bytes + 63) / 64 * 64);

    assert_non_null(data);
    return data;
}

static void the_int8_view_is_what_one_call_gives(void **state)
{
    fixture *f = *state;
    void *quant = memory(kn_rows_quant_bytes(ROWS, COLS, GROUP));
    kn_rows whole = kn_rows_quantise(f->x, COLS, ROWS, COLS, GROUP, quant);
    kn_rows view = an_rows_view(&f->pass, f->x, COLS, ROWS, COLS, GROUP, true);
    kn_rows part = an_rows_part(&view, 7, 5);

    assert_ptr_equal(view.f32, f->x);
    assert_memory_equal(view.q, whole.q, ROWS * COLS);
    assert_memory_equal(view.scale, whole.scale, ROWS * (COLS / GROUP) * sizeof(float));
    assert_memory_equal(view.sum, whole.sum, ROWS * (COLS / GROUP) * sizeof(int32_t));
    assert_int_equal(part.rows, 5);
    assert_memory_equal(part.q, whole.q + 7 * COLS, 5 * COLS);
    assert_memory_equal(part.scale, whole.scale + 7 * (COLS / GROUP),
                        5 * (COLS / GROUP) * sizeof(float));
    assert_memory_equal(part.f32, f->x + 7 * COLS, 5 * COLS * sizeof(float));
    free(quant);
}

static void a_float_view_takes_no_memory(void **state)
{
    fixture *f = *state;
    size_t mark = rt_arena_mark(f->pass.arena);
    kn_rows view = an_rows_view(&f->pass, f->x, COLS, ROWS, COLS, GROUP, false);

    assert_null(view.q);
    assert_ptr_equal(view.f32, f->x);
    assert_int_equal(rt_arena_mark(f->pass.arena), mark);
}

static void norms_are_those_of_one_call(void **state)
{
    fixture *f = *state;
    float weight[COLS], out[ROWS * COLS], whole[ROWS * COLS];

    for (uint32_t i = 0; i < COLS; i++)
        weight[i] = (float)i / COLS;
    an_rows_norm(&f->pass, out, COLS, f->x, COLS, weight, ROWS, COLS, 1e-5F);
    kn_rms_norm(whole, COLS, f->x, COLS, weight, ROWS, COLS, 1e-5F);
    assert_memory_equal(out, whole, sizeof(out));
}

static void several_maps_at_once_are_those_of_single_calls(void **state)
{
    fixture *f = *state;
    uint64_t seed = 4;
    static const uint32_t outs[3] = {OUT, 16, 7};
    static const kn_format formats[3] = {KN_Q8, KN_F32, KN_Q4};
    kn_rows x = an_rows_view(&f->pass, f->x, COLS, ROWS, COLS, GROUP, true);
    an_linear maps[3];
    kn_qmat w[3];
    float *y[3], *expected = memory(ROWS * OUT * sizeof(float));

    for (uint32_t i = 0; i < 3; i++) {
        float *source = memory(outs[i] * COLS * sizeof(float));
        void *tiles = memory(kn_qmat_bytes(formats[i], outs[i], COLS, GROUP));

        for (uint32_t k = 0; k < outs[i] * COLS; k++)
            source[k] = tiny_model_uniform(&seed);
        kn_qmat_pack(formats[i], COLS, GROUP, source, COLS, outs[i], tiles);
        w[i] = (kn_qmat){formats[i], outs[i], COLS, GROUP, tiles};
        y[i] = memory(ROWS * outs[i] * sizeof(float));
        maps[i] = (an_linear){y[i], outs[i], &x, &w[i]};
        free(source);
    }
    an_linear_run(&f->pass, maps, 3);
    for (uint32_t i = 0; i < 3; i++) {
        kn_matmul(expected, outs[i], &x, &w[i], 0, outs[i]);
        assert_memory_equal(y[i], expected, ROWS * outs[i] * sizeof(float));
        free(y[i]);
        free((void *)(uintptr_t)w[i].data);
    }
    free(expected);
}

static void adding_names_the_first_row_that_is_not_finite(void **state)
{
    fixture *f = *state;
    float y[ROWS * COLS] = {0};

    assert_int_equal(an_rows_add(&f->pass, f->x, y, ROWS, COLS), ROWS);
    y[13 * COLS + 5] = INFINITY;
    y[17 * COLS] = NAN;
    assert_int_equal(an_rows_add(&f->pass, f->x, y, ROWS, COLS), 13);
    f->x[3 * COLS + COLS - 1] = -NAN;
    assert_int_equal(an_rows_add(&f->pass, f->x, y, ROWS, COLS), 3);
}

/* A norm squares them: beyond 2^55 the sum could become infinite and the row zeros. */
static void added_rows_name_the_first_that_a_norm_could_not_square(void **state)
{
    fixture *f = *state;
    float y[ROWS * COLS] = {0};

    memset(f->x, 0, ROWS * COLS * sizeof(float));
    y[9 * COLS + 1] = 0x1.fffffep54F;
    assert_int_equal(an_rows_add(&f->pass, f->x, y, ROWS, COLS), ROWS);
    y[9 * COLS + 1] = 0;
    y[7 * COLS + 2] = -0x1p55F;
    assert_int_equal(an_rows_add(&f->pass, f->x, y, ROWS, COLS), 7);
}

static void finite_means_neither_nan_nor_infinity(void **state)
{
    float x[3] = {0, -3.4e38F, 1e-45F};

    (void)state;
    assert_true(an_is_finite(x, 3));
    x[2] = -INFINITY;
    assert_false(an_is_finite(x, 3));
    assert_true(an_is_finite(x, 2));
    x[0] = NAN;
    assert_false(an_is_finite(x, 1));
}

int main(void)
{
#define BOTH(name)                                                                                 \
    cmocka_unit_test_setup_teardown(name, setup, teardown),                                        \
    {                                                                                              \
#name " (team)", name, setup_team, teardown, NULL                                          \
    }
    const struct CMUnitTest tests[] = {
        BOTH(the_int8_view_is_what_one_call_gives),
        BOTH(a_float_view_takes_no_memory),
        BOTH(norms_are_those_of_one_call),
        BOTH(several_maps_at_once_are_those_of_single_calls),
        BOTH(adding_names_the_first_row_that_is_not_finite),
        BOTH(added_rows_name_the_first_that_a_norm_could_not_square),
        cmocka_unit_test(finite_means_neither_nan_nor_infinity),
    };
#undef BOTH

    return cmocka_run_group_tests(tests, NULL, NULL);
}
