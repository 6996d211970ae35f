/* test_dsa_index.c - the positions a row attends to, against a plain search over plain scores. */
#include "attention_node/dsa_index.h"

#include "tests/support/tiny_model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { HEADS = 3, DIM = 8, ROPE = 4, TOPK = 4, CONTEXT = 2500, ROWS_MAX = 8 };

typedef struct {
    md_config config;
    md_layer_weights layers[2];
    md_weights weights;
    an_pass pass;
    an_index_lists lists;
    an_index_work work;
    float ones[DIM], zeros[DIM];
    float key[ROWS_MAX * DIM], query[ROWS_MAX * HEADS * DIM], weight[ROWS_MAX * HEADS];
    float cos[ROWS_MAX * ROPE / 2], sin[ROWS_MAX * ROPE / 2];
    uint32_t slot[ROWS_MAX], position[ROWS_MAX];
    an_seq *seq[ROWS_MAX];
    float *keys; /* [CONTEXT][DIM] what the cache holds */
    uint64_t random;
} fixture;

static int open_fixture(void **state, uint32_t threads)
{
    fixture *f = calloc(1, sizeof(*f));
    rt_team_spec team = {.threads = threads};
    size_t arena;

    assert_non_null(f);
    f->random = 3;
    f->config = (md_config){.layers = 2,
                            .kv_rank = 4,
                            .rope_dim = ROPE,
                            .index_heads = HEADS,
                            .index_dim = DIM,
                            .index_topk = TOPK,
                            .index_full = {true, false},
                            .index_source = {0, 0}};
    for (uint32_t k = 0; k < DIM; k++)
        f->ones[k] = 1;
    f->layers[0].index_k_norm = f->ones;
    f->layers[0].index_k_bias = f->zeros;
    f->weights.layers = f->layers;
    f->work = (an_index_work){f->key, f->query, f->weight};
    f->pass = (an_pass){.config = &f->config,
                        .weights = &f->weights,
                        .slot = f->slot,
                        .position = f->position,
                        .seq = f->seq,
                        .cos = f->cos,
                        .sin = f->sin};
    for (uint32_t i = 0; i < ROWS_MAX * ROPE / 2; i++)
        f->cos[i] = 1; /* rotation by nothing: rope has its own tests */
    assert_int_equal(rt_team_create(&team, &f->pass.team, NULL), RT_OK);
    f->pass.members = rt_team_size(f->pass.team);
    assert_int_equal(an_kv_create(&f->config, CONTEXT, 1, false, &f->pass.kv, NULL), RT_OK);
    arena = an_index_lists_cost(&f->config, CONTEXT, ROWS_MAX) +
            an_index_choose_cost(CONTEXT, f->pass.members);
    assert_int_equal(rt_arena_create(arena, &f->pass.arena, NULL), RT_OK);
    an_index_lists_init(&f->lists, &f->pass, ROWS_MAX);
    f->keys = calloc(CONTEXT * DIM, sizeof(float));
    assert_non_null(f->keys);
    for (uint32_t t = 0; t < CONTEXT; t++) {
        for (uint32_t k = 0; k < DIM; k++)
            f->keys[t * DIM + k] = tiny_model_uniform(&f->random);
        an_kv_put_index(f->pass.kv, 0, 0, t, f->keys + (size_t)t * DIM);
    }
    *state = f;
    return 0;
}

static int setup(void **state)
{
    return open_fixture(state, 0);
}

static int setup_team(void **state)
{
    return open_fixture(state, 3);
}

static int teardown(void **state)
{
    fixture *f = *state;

    an_kv_free(f->pass.kv);
    rt_arena_free(f->pass.arena);
    rt_team_free(f->pass.team);
    free(f->keys);
    free(f);
    return 0;
}

/* Rows at these positions, with queries by chance. */
static void lay(fixture *f, const uint32_t *positions, uint32_t rows)
{
    f->pass.rows = rows;
    memcpy(f->position, positions, rows * sizeof(*positions));
    for (uint32_t i = 0; i < ROWS_MAX * HEADS * DIM; i++)
        f->query[i] = tiny_model_uniform(&f->random);
    for (uint32_t i = 0; i < ROWS_MAX * HEADS; i++)
        f->weight[i] = tiny_model_uniform(&f->random);
}

static double score(const fixture *f, uint32_t row, uint32_t t)
{
    double sum = 0;

    for (uint32_t h = 0; h < HEADS; h++) {
        double dot = 0;

        for (uint32_t k = 0; k < DIM; k++)
            dot += (double)f->query[(row * HEADS + h) * DIM + k] * f->keys[t * DIM + k];
        if (dot > 0) sum += f->weight[row * HEADS + h] * dot / sqrt(DIM);
    }
    return sum;
}

static rt_status choose(fixture *f, uint32_t layer, uint32_t *bad)
{
    return an_index_choose(&f->pass, layer, &f->work, &f->lists, bad);
}

/* Chosen, ascending, visible, and no position left out has a better score. */
static void check_selected(const fixture *f, uint32_t row)
{
    const uint32_t *list = f->lists.list[row];
    uint32_t next = 0;
    double worst = INFINITY;

    assert_int_equal(f->lists.count[row], TOPK);
    for (uint32_t i = 0; i < TOPK; i++) {
        if (i > 0) assert_true(list[i] > list[i - 1]);
        assert_true(list[i] <= f->position[row]);
        worst = fmin(worst, score(f, row, list[i]));
    }
    for (uint32_t t = 0; t <= f->position[row]; t++) {
        if (next < TOPK && list[next] == t)
            next++;
        else
            assert_true(score(f, row, t) <= worst + 1e-6);
    }
}

static void rows_with_few_positions_attend_to_all(void **state)
{
    static const uint32_t positions[] = {0, 1, 2, TOPK - 1};
    fixture *f = *state;
    uint32_t bad;

    lay(f, positions, 4);
    assert_false(an_index_selects(&f->pass));
    for (uint32_t i = 0; i < ROWS_MAX * HEADS; i++)
        f->weight[i] = NAN; /* no score is computed */
    assert_int_equal(choose(f, 0, &bad), RT_OK);
    for (uint32_t row = 0; row < 4; row++) {
        assert_int_equal(f->lists.count[row], positions[row] + 1);
        for (uint32_t i = 0; i <= positions[row]; i++)
            assert_int_equal(f->lists.list[row][i], i);
    }
}

static void the_best_visible_positions_are_chosen(void **state)
{
    /* Within one block of positions, at its edges, and over several. */
    static const uint32_t positions[] = {TOPK, 9, 1022, 1023, 1024, 2047, 2048, CONTEXT - 1};
    fixture *f = *state;
    uint32_t bad;

    lay(f, positions, 8);
    assert_true(an_index_selects(&f->pass));
    assert_int_equal(choose(f, 0, &bad), RT_OK);
    for (uint32_t row = 0; row < 8; row++)
        check_selected(f, row);
}

static void a_mixed_step_keeps_both_kinds_of_rows(void **state)
{
    static const uint32_t positions[] = {1, 700, 3, 1500};
    fixture *f = *state;
    uint32_t bad;

    lay(f, positions, 4);
    assert_int_equal(choose(f, 0, &bad), RT_OK);
    assert_int_equal(f->lists.count[0], 2);
    check_selected(f, 1);
    assert_int_equal(f->lists.count[2], 4);
    check_selected(f, 3);
}

static void equal_scores_go_to_the_earlier_positions(void **state)
{
    static const uint32_t positions[] = {1500};
    fixture *f = *state;
    uint32_t bad;

    lay(f, positions, 1);
    for (uint32_t i = 0; i < HEADS; i++)
        f->weight[i] = 0;
    assert_int_equal(choose(f, 0, &bad), RT_OK);
    for (uint32_t i = 0; i < TOPK; i++)
        assert_int_equal(f->lists.list[0][i], i);
}

static void a_shared_layer_uses_the_very_list_of_its_source(void **state)
{
    static const uint32_t positions[] = {800, 20};
    fixture *f = *state;
    const uint32_t *before;
    uint32_t bad;

    lay(f, positions, 2);
    assert_int_equal(choose(f, 0, &bad), RT_OK);
    before = f->lists.list[1];
    for (uint32_t i = 0; i < ROWS_MAX * HEADS * DIM; i++)
        f->query[i] = NAN; /* not looked at */
    assert_int_equal(choose(f, 1, &bad), RT_OK);
    assert_ptr_equal(f->lists.list[1], before);
    assert_int_equal(f->lists.layer, 0);
}

static void a_score_that_is_nan_names_the_first_row(void **state)
{
    static const uint32_t positions[] = {50, 2000, 60, 2200};
    fixture *f = *state;
    float nan_key[DIM];
    uint32_t bad = 99;

    lay(f, positions, 4);
    for (uint32_t k = 0; k < DIM; k++)
        nan_key[k] = NAN;
    an_kv_put_index(f->pass.kv, 0, 0, 1700, nan_key);
    assert_int_equal(choose(f, 0, &bad), RT_ENUMERIC);
    assert_int_equal(bad, 1);
}

static void preparing_norms_rotates_and_stores_the_key(void **state)
{
    static const uint32_t positions[] = {5};
    fixture *f = *state;
    float stored[DIM], mean = 0, square = 0;
    kn_cache_view view;

    lay(f, positions, 1);
    for (uint32_t k = 0; k < DIM; k++)
        f->key[k] = (float)k * 3 + 7;
    f->cos[0] = 0; /* a quarter turn of the first pair */
    f->sin[0] = 1;
    an_index_prepare(&f->pass, 0, 0, &f->work, true);
    view = an_kv_index(f->pass.kv, 0, 0);
    kn_cache_load(stored, false, (const char *)view.rows + 5 * view.row_bytes, DIM);
    for (uint32_t k = 0; k < DIM; k++) {
        mean += stored[k];
        square += stored[k] * stored[k];
    }
    assert_true(fabsf(square / DIM - 1) < 1e-3F);
    /* Before the turn the values ascended evenly around 0: (a, b) became (-b, a). */
    assert_true(stored[0] > 0 && stored[1] < stored[2] && stored[2] < stored[3]);
    assert_true(fabsf(-stored[0] - (stored[1] + stored[2]) / 2) < 1e-3F);
    assert_true(fabsf(mean - 2 * stored[0]) < 1e-3F);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
#define TEAM(name)                                                                                 \
    {                                                                                              \
#name " (team)", name, setup_team, teardown, NULL                                          \
    }
    const struct CMUnitTest tests[] = {
        TEST(rows_with_few_positions_attend_to_all),
        TEST(the_best_visible_positions_are_chosen),
        TEAM(the_best_visible_positions_are_chosen),
        TEST(a_mixed_step_keeps_both_kinds_of_rows),
        TEAM(a_mixed_step_keeps_both_kinds_of_rows),
        TEST(equal_scores_go_to_the_earlier_positions),
        TEST(a_shared_layer_uses_the_very_list_of_its_source),
        TEST(a_score_that_is_nan_names_the_first_row),
        TEAM(a_score_that_is_nan_names_the_first_row),
        TEST(preparing_norms_rotates_and_stores_the_key),
    };
#undef TEST
#undef TEAM

    return cmocka_run_group_tests(tests, NULL, NULL);
}
