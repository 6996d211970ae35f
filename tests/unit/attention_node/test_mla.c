/* test_mla.c - absorbed attention against the explicit form: keys and values rebuilt for every head
 * from the cached latents, in double, over the lists the indexer gave. */
#include "attention_node/mla.h"

#include "kernels/rope.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 40, CONTEXT = 64 };

typedef struct {
    char *dir;
    md_container *container;
    const md_config *config;
    an_pass pass;
    an_index_lists lists;
    float *x, *out;
} fixture;

static int open_fixture(void **state, kn_format dense, bool kv_bf16)
{
    tiny_model_spec model = tiny_model_default();
    fixture *f = calloc(1, sizeof(*f));
    rt_team_spec team = {.threads = 2};
    uint64_t seed = 21;
    rt_budget budget;
    an_pass *pass;
    md_weights *weights;

    assert_non_null(f);
    pass = &f->pass;
    model.dense_format = dense;
    f->dir = tiny_model_build(&model);
    rt_budget_init(&budget, 1ULL << 30);
    assert_int_equal(md_container_open(f->dir, &f->container, NULL), RT_OK);
    assert_int_equal(md_weights_load(f->container, false, &budget, &weights, NULL), RT_OK);
    f->config = md_container_config(f->container);
    *pass = (an_pass){.config = f->config, .weights = weights, .rows = ROWS};
    assert_int_equal(rt_team_create(&team, &pass->team, NULL), RT_OK);
    pass->members = rt_team_size(pass->team);
    assert_int_equal(an_kv_create(f->config, CONTEXT, 2, kv_bf16, &pass->kv, NULL), RT_OK);
    pass->member_bytes =
        an_mla_member_bytes(f->config, CONTEXT) + an_rows_member_bytes(f->config->hidden);
    assert_int_equal(rt_arena_create(rt_arena_cost(pass->member_bytes * pass->members) +
                                         an_index_lists_cost(f->config, CONTEXT, ROWS) +
                                         an_rows_quant_cost(ROWS, f->config->hidden, 16) +
                                         an_mla_cost(f->config, ROWS, CONTEXT, pass->members),
                                     &pass->arena, NULL),
                     RT_OK);
    pass->member_memory = rt_arena_take(pass->arena, pass->member_bytes * pass->members);
    an_index_lists_init(&f->lists, pass, ROWS);
    pass->seq = calloc(ROWS, sizeof(*pass->seq));
    pass->slot = calloc(ROWS, sizeof(*pass->slot));
    pass->position = calloc(ROWS, sizeof(*pass->position));
    pass->cos = calloc(ROWS, f->config->rope_dim / 2 * sizeof(float));
    pass->sin = calloc(ROWS, f->config->rope_dim / 2 * sizeof(float));
    for (uint32_t row = 0; row < ROWS; row++) {
        size_t half = f->config->rope_dim / 2;

        pass->slot[row] = row < ROWS / 2; /* two sequences */
        pass->position[row] = row % (ROWS / 2);
        kn_rope_angles(pass->position[row], weights->rope_inv_freq, f->config->rope_dim,
                       pass->cos + row * half, pass->sin + row * half);
    }
    f->x = malloc(ROWS * f->config->hidden * sizeof(float));
    f->out = malloc(ROWS * f->config->hidden * sizeof(float));
    for (uint32_t i = 0; i < ROWS * f->config->hidden; i++)
        f->x[i] = tiny_model_uniform(&seed) * 2;
    *state = f;
    return 0;
}

static int setup_f32(void **state)
{
    return open_fixture(state, KN_F32, false);
}

static int setup_q8(void **state)
{
    return open_fixture(state, KN_Q8, true);
}

static int teardown(void **state)
{
    fixture *f = *state;

    md_weights_free((md_weights *)(uintptr_t)f->pass.weights);
    md_container_close(f->container);
    rt_team_free(f->pass.team);
    rt_arena_free(f->pass.arena);
    an_kv_free(f->pass.kv);
    free(f->pass.seq);
    free(f->pass.slot);
    free(f->pass.position);
    free(f->pass.cos);
    free(f->pass.sin);
    free(f->x);
    free(f->out);
    temp_dir_remove(f->dir);
    free(f);
    return 0;
}

static void run(fixture *f, uint32_t layer)
{
    size_t mark = rt_arena_mark(f->pass.arena);
    const md_layer_weights *weights = &f->pass.weights->layers[layer];
    kn_rows x = an_rows_view(&f->pass, f->x, f->config->hidden, ROWS, f->config->hidden,
                             weights->q_a.group, an_wants_int8(&f->pass, weights->q_a.format));
    uint32_t bad;

    assert_int_equal(an_mla_run(&f->pass, layer, &x, &f->lists, f->out, &bad), RT_OK);
    rt_arena_return(f->pass.arena, mark);
}

/* y = W x with the weights as stored, in double. */
static void matvec(const kn_qmat *w, const double *x, double *y)
{
    float *row = malloc(w->cols * sizeof(float));

    for (uint32_t n = 0; n < w->rows; n++) {
        kn_qmat_unpack_row(w, n, row);
        y[n] = 0;
        for (uint32_t k = 0; k < w->cols; k++)
            y[n] += (double)row[k] * x[k];
    }
    free(row);
}

static void rms(double *x, const float *weight, uint32_t n, double eps)
{
    double square = 0;

    for (uint32_t i = 0; i < n; i++)
        square += x[i] * x[i];
    for (uint32_t i = 0; i < n; i++)
        x[i] = x[i] / sqrt(square / n + eps) * weight[i];
}

static void rotate(const fixture *f, uint32_t row, double *v)
{
    uint32_t half = f->config->rope_dim / 2;

    for (uint32_t j = 0; j < half; j++) {
        double c = f->pass.cos[row * half + j], s = f->pass.sin[row * half + j];
        double a = v[2 * j], b = v[2 * j + 1];

        v[2 * j] = a * c - b * s;
        v[2 * j + 1] = b * c + a * s;
    }
}

static void cached(const fixture *f, uint32_t layer, uint32_t row, uint32_t t, double *out)
{
    kn_cache_view view = an_kv_latent(f->pass.kv, f->pass.slot[row], layer);
    float values[256];

    kn_cache_load(values, view.bf16, (const char *)view.rows + t * view.row_bytes, view.width);
    for (uint32_t k = 0; k < view.width; k++)
        out[k] = values[k];
}

/* One head of one row: keys k_t = [UK lat_t | rope key], values UV lat_t. */
static void head(const fixture *f, uint32_t layer, uint32_t row, uint32_t h, const double *query,
                 double *out)
{
    const md_config *c = f->config;
    const md_layer_weights *weights = &f->pass.weights->layers[layer];
    double score[CONTEXT], latent[256], value[64], key[64], sum = 0, best = -INFINITY;
    float column[64];
    uint32_t count = f->lists.count[row];

    for (uint32_t i = 0; i < count; i++) {
        double dot = 0;

        cached(f, layer, row, f->lists.list[row][i], latent);
        memset(key, 0, sizeof(key));
        for (uint32_t r = 0; r < c->kv_rank; r++) {
            kn_qmat_unpack_row(&weights->uk_t[h], r, column); /* transposed: [kv_rank][nope] */
            for (uint32_t d = 0; d < c->nope_dim; d++)
                key[d] += (double)column[d] * latent[r];
        }
        for (uint32_t d = 0; d < c->nope_dim; d++)
            dot += query[d] * key[d];
        for (uint32_t d = 0; d < c->rope_dim; d++)
            dot += query[c->nope_dim + d] * latent[c->kv_rank + d];
        score[i] = dot / sqrt(c->nope_dim + c->rope_dim);
        best = fmax(best, score[i]);
    }
    for (uint32_t d = 0; d < c->v_dim; d++)
        out[d] = 0;
    for (uint32_t i = 0; i < count; i++) {
        double e = exp(score[i] - best);

        cached(f, layer, row, f->lists.list[row][i], latent);
        matvec(&weights->uv[h], latent, value);
        for (uint32_t d = 0; d < c->v_dim; d++)
            out[d] += e * value[d];
        sum += e;
    }
    for (uint32_t d = 0; d < c->v_dim; d++)
        out[d] /= sum;
}

static double largest_difference(const fixture *f, uint32_t layer)
{
    const md_config *c = f->config;
    const md_layer_weights *weights = &f->pass.weights->layers[layer];
    double x[128], a[64], query[256], concat[128], y[128], largest = 0;
    uint32_t dim = c->nope_dim + c->rope_dim;

    for (uint32_t row = 0; row < ROWS; row++) {
        for (uint32_t k = 0; k < c->hidden; k++)
            x[k] = f->x[row * c->hidden + k];
        matvec(&weights->q_a, x, a);
        rms(a, weights->q_a_norm, c->q_rank, f->pass.weights->latent_eps);
        matvec(&weights->q_b, a, query);
        for (uint32_t h = 0; h < c->heads; h++) {
            rotate(f, row, query + h * dim + c->nope_dim);
            head(f, layer, row, h, query + h * dim, concat + h * c->v_dim);
        }
        matvec(&weights->o, concat, y);
        for (uint32_t k = 0; k < c->hidden; k++)
            largest = fmax(largest, fabs(y[k] - f->out[row * c->hidden + k]));
    }
    return largest;
}

static double scale_of(const fixture *f)
{
    double largest = 0;

    for (uint32_t i = 0; i < ROWS * f->config->hidden; i++)
        largest = fmax(largest, fabs(f->out[i]));
    return largest;
}

static void absorbed_equals_explicit_attention(void **state)
{
    fixture *f = *state;

    for (uint32_t layer = 0; layer < f->config->layers; layer++) {
        run(f, layer);
        assert_true(scale_of(f) > 1e-3);
        assert_true(largest_difference(f, layer) < 2e-6 * (1 + scale_of(f)));
    }
    assert_int_equal(f->lists.count[ROWS - 1], f->config->index_topk); /* lists were short */
}

static void int8_activations_and_bf16_rows_stay_close(void **state)
{
    fixture *f = *state;

    for (uint32_t layer = 0; layer < f->config->layers; layer++) {
        run(f, layer);
        assert_true(largest_difference(f, layer) < 0.05 * scale_of(f));
    }
}

static void the_cache_holds_the_normed_latent_and_the_rotated_key(void **state)
{
    fixture *f = *state;
    const md_config *c = f->config;
    const md_layer_weights *weights = &f->pass.weights->layers[0];

    run(f, 0);
    for (uint32_t row = 0; row < ROWS; row++) {
        double x[128], kv[256], found[256];

        for (uint32_t k = 0; k < c->hidden; k++)
            x[k] = f->x[row * c->hidden + k];
        matvec(&weights->kv_a, x, kv);
        rms(kv, weights->kv_a_norm, c->kv_rank, f->pass.weights->latent_eps);
        rotate(f, row, kv + c->kv_rank);
        cached(f, 0, row, f->pass.position[row], found);
        for (uint32_t k = 0; k < c->kv_rank + c->rope_dim; k++)
            assert_true(fabs(kv[k] - found[k]) < 1e-5);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(absorbed_equals_explicit_attention, setup_f32, teardown),
        cmocka_unit_test_setup_teardown(int8_activations_and_bf16_rows_stay_close, setup_q8,
                                        teardown),
        cmocka_unit_test_setup_teardown(the_cache_holds_the_normed_latent_and_the_rotated_key,
                                        setup_f32, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
