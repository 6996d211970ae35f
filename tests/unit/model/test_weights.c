/* test_weights.c - every dense record is loaded once, under its own name, and proved. */
/* wrap: calloc */
#include "model/weights.h"

#include "kernels/quant.h"
#include "model/container/shape.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static int failing_allocation; /* 1: the next one */

void *__real_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size);

void *__wrap_calloc(size_t count, size_t size)
{
    return failing_allocation > 0 && --failing_allocation == 0 ? NULL : __real_calloc(count, size);
}

typedef struct {
    char *dir;
    md_container *container;
    md_weights *weights;
} loaded;

static void open_tiny(loaded *l, kn_format dense, bool mtp)
{
    tiny_model_spec spec = tiny_model_default();
    rt_err err;

    spec.dense_format = dense;
    spec.mtp = mtp;
    l->dir = tiny_model_build(&spec);
    assert_int_equal(md_container_open(l->dir, &l->container, &err), RT_OK);
    l->weights = NULL;
}

static void load(loaded *l, bool with_mtp)
{
    rt_budget budget;
    rt_err err;

    rt_budget_init(&budget, 1 << 30);
    assert_int_equal(md_weights_load(l->container, with_mtp, &budget, &l->weights, &err), RT_OK);
}

static void close_tiny(loaded *l)
{
    md_weights_free(l->weights);
    md_container_close(l->container);
    temp_dir_remove(l->dir);
}

/* data is the record's bytes from `skip` on. */
static void holds(const loaded *l, uint32_t layer, uint16_t kind, size_t skip, const void *data)
{
    md_record record;
    unsigned char *bytes;
    rt_err err;

    assert_true(md_container_find(l->container, (md_key){(uint16_t)layer, kind, 0}, &record));
    bytes = malloc(record.bytes);
    assert_non_null(bytes);
    assert_int_equal(md_record_read(&record, bytes, &err), RT_OK);
    assert_non_null(data);
    assert_memory_equal(data, bytes + skip, record.bytes - skip);
    free(bytes);
}

static void matrix_holds(const loaded *l, uint32_t layer, uint16_t kind, const kn_qmat *mat)
{
    md_shape shape;

    assert_true(md_record_shape(md_container_config(l->container),
                                md_container_get_info(l->container),
                                (md_key){(uint16_t)layer, kind, 0}, &shape));
    assert_int_equal(mat->format, shape.format);
    assert_int_equal(mat->rows, shape.rows);
    assert_int_equal(mat->cols, shape.cols);
    assert_int_equal(mat->group, shape.group);
    assert_int_equal((uintptr_t)mat->data % 64, 0);
    if (shape.count == 1) holds(l, layer, kind, 0, mat->data);
}

static void heads_hold(const loaded *l, uint32_t layer, uint16_t kind, const kn_qmat *heads)
{
    uint32_t count = md_container_config(l->container)->heads;
    size_t bytes = kn_qmat_bytes(heads->format, heads->rows, heads->cols, heads->group);

    for (uint32_t i = 0; i < count; i++) {
        matrix_holds(l, layer, kind, &heads[i]);
        holds(l, layer, kind, i * bytes, heads[i].data);
    }
}

static void layer_holds(const loaded *l, uint32_t i)
{
    const md_layer_weights *w = &l->weights->layers[i];
    const md_config *c = md_container_config(l->container);
    md_expert_layout shared;

    holds(l, i, MD_INPUT_NORM, 0, w->input_norm);
    holds(l, i, MD_POST_NORM, 0, w->post_norm);
    holds(l, i, MD_Q_A_NORM, 0, w->q_a_norm);
    holds(l, i, MD_KV_A_NORM, 0, w->kv_a_norm);
    matrix_holds(l, i, MD_Q_A, &w->q_a);
    matrix_holds(l, i, MD_Q_B, &w->q_b);
    matrix_holds(l, i, MD_KV_A, &w->kv_a);
    matrix_holds(l, i, MD_O, &w->o);
    heads_hold(l, i, MD_UK_T, w->uk_t);
    heads_hold(l, i, MD_UV, w->uv);
    assert_int_equal(w->has_indexer, c->index_full[i]);
    if (w->has_indexer) {
        matrix_holds(l, i, MD_INDEX_Q, &w->index_q);
        matrix_holds(l, i, MD_INDEX_K, &w->index_k);
        matrix_holds(l, i, MD_INDEX_WEIGHT, &w->index_weight);
        assert_int_equal(w->index_weight.format, KN_F32);
        holds(l, i, MD_INDEX_K_NORM, 0, w->index_k_norm);
        holds(l, i, MD_INDEX_K_NORM, c->index_dim * sizeof(float), w->index_k_bias);
    } else {
        assert_null(w->index_q.data);
    }
    assert_int_equal(w->sparse, c->sparse[i]);
    assert_int_equal(w->grid_q, md_container_get_info(l->container)->grid_q[i]);
    if (w->sparse) {
        matrix_holds(l, i, MD_ROUTER, &w->router);
        assert_int_equal(w->router.format, KN_F32);
        holds(l, i, MD_ROUTER_BIAS, 0, w->router_bias);
        holds(l, i, MD_SHARED, 0, w->shared);
        md_container_shared_layout(l->container, &shared);
        assert_int_equal(w->shared_layout.record_bytes, shared.record_bytes);
        assert_int_equal(w->shared_layout.slice_width, shared.slice_width);
        assert_int_equal(w->shared_layout.format, shared.format);
    } else {
        matrix_holds(l, i, MD_GATE, &w->gate);
        matrix_holds(l, i, MD_UP, &w->up);
        matrix_holds(l, i, MD_DOWN, &w->down);
        assert_int_equal(w->down.group, md_inter_group(c->inter));
    }
}

static void every_record_has_its_name(void **state)
{
    static const kn_format formats[] = {KN_F32, KN_BF16, KN_Q8, KN_Q4, KN_Q8F32, KN_Q4F32};

    (void)state;
    for (size_t f = 0; f < 6; f++) {
        const md_layer_weights *mtp;
        loaded l;

        open_tiny(&l, formats[f], true);
        load(&l, true);
        for (uint32_t i = 0; i < md_config_layers_total(md_container_config(l.container)); i++)
            layer_holds(&l, i);
        mtp = &l.weights->layers[md_container_config(l.container)->layers];
        holds(&l, 3, MD_ENORM, 0, mtp->enorm);
        holds(&l, 3, MD_HNORM, 0, mtp->hnorm);
        holds(&l, 3, MD_HEAD_NORM, 0, mtp->head_norm);
        matrix_holds(&l, 3, MD_EH_PROJ, &mtp->eh_proj);
        matrix_holds(&l, MD_NO_LAYER, MD_LM_HEAD, &l.weights->lm_head);
        holds(&l, MD_NO_LAYER, MD_EMBED, 0, l.weights->embed);
        holds(&l, MD_NO_LAYER, MD_FINAL_NORM, 0, l.weights->final_norm);
        holds(&l, MD_NO_LAYER, MD_ROPE_INV_FREQ, 0, l.weights->rope_inv_freq);
        assert_ptr_equal(l.weights->config, md_container_config(l.container));
        assert_true(l.weights->latent_eps == 1e-6f);
        close_tiny(&l);
    }
}

static void mtp_is_left_out_when_not_wanted(void **state)
{
    loaded l;

    (void)state;
    open_tiny(&l, KN_Q8, true);
    load(&l, false);
    assert_true(md_weights_bytes(l.container, false) < md_weights_bytes(l.container, true));
    for (uint32_t i = 0; i < 3; i++)
        layer_holds(&l, i);
    assert_null(l.weights->layers[3].input_norm);
    assert_null(l.weights->layers[3].eh_proj.data);
    assert_null(l.weights->layers[3].shared);
    close_tiny(&l);
}

static void embedding_rows_come_as_f32(void **state)
{
    (void)state;
    for (int f = 0; f < 2; f++) {
        float row[64];
        loaded l;

        open_tiny(&l, f == 0 ? KN_F32 : KN_Q8, false);
        load(&l, false);
        assert_int_equal(l.weights->embed_format, f == 0 ? KN_F32 : KN_BF16);
        md_weights_embed(l.weights, 95, row);
        for (uint32_t i = 0; i < 64; i++) {
            size_t at = 95 * 64 + i;
            float expected = f == 0 ? ((const float *)l.weights->embed)[at]
                                    : kn_f32_from_bf16(((const uint16_t *)l.weights->embed)[at]);

            assert_true(row[i] == expected);
        }
        close_tiny(&l);
    }
}

static void what_does_not_fit_fails_before_anything_is_read(void **state)
{
    rt_budget budget;
    loaded l;
    rt_err err = {RT_OK, ""};

    (void)state;
    open_tiny(&l, KN_Q8, false);
    rt_budget_init(&budget, md_weights_bytes(l.container, false) - 1);
    assert_int_equal(md_weights_load(l.container, false, &budget, &l.weights, &err), RT_ENOMEM);
    assert_non_null(strstr(err.text, "dense weights"));
    assert_null(l.weights);
    rt_budget_init(&budget, md_weights_bytes(l.container, false));
    assert_int_equal(md_weights_load(l.container, false, &budget, &l.weights, &err), RT_OK);
    assert_int_equal(rt_budget_left(&budget), 0);
    close_tiny(&l);
}

static void damaged_record_is_named(void **state)
{
    md_record record;
    rt_budget budget;
    loaded l;
    rt_err err = {RT_OK, ""};
    int fd;

    (void)state;
    open_tiny(&l, KN_Q8, false);
    assert_true(md_container_find(l.container, (md_key){1, MD_KV_A, 0}, &record));
    fd = open(record.pack, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, "\x55\xaa", 2, (off_t)record.offset + 7), 2);
    (void)close(fd);
    rt_budget_init(&budget, 1 << 30);
    assert_int_equal(md_weights_load(l.container, false, &budget, &l.weights, &err), RT_EFORMAT);
    assert_non_null(strstr(err.text, "layer 1 kv_a"));
    assert_non_null(strstr(err.text, "dense.bin"));
    close_tiny(&l);
}

static void patch_frequency(void *context, md_key key, void *record, size_t bytes)
{
    if (key.kind == MD_ROPE_INV_FREQ) memcpy(record, context, bytes < 4 ? bytes : 4);
}

static void rope_frequencies_outside_their_range_are_refused(void **state)
{
    const uint32_t bad[] = {0x7fc00000U, 0x7f800000U, 0xff800000U, 0, 0x3f800001U, 0xbf000000U};

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        tiny_model_spec spec = tiny_model_default();
        uint32_t bits = bad[i];
        rt_err err = {RT_OK, ""};
        loaded l = {0};
        rt_budget budget;

        spec.patch = patch_frequency;
        spec.patch_context = &bits;
        l.dir = tiny_model_build(&spec);
        assert_int_equal(md_container_open(l.dir, &l.container, &err), RT_OK);
        rt_budget_init(&budget, 1 << 30);
        assert_int_equal(md_weights_load(l.container, false, &budget, &l.weights, &err),
                         RT_EFORMAT);
        assert_non_null(strstr(err.text, "rope frequency 0"));
        close_tiny(&l);
    }
}

static void missing_dense_pack_is_not_held(void **state)
{
    char path[512];
    rt_budget budget;
    loaded l;
    rt_err err = {RT_OK, ""};

    (void)state;
    open_tiny(&l, KN_Q8, false);
    md_container_close(l.container);
    (void)snprintf(path, sizeof(path), "%s/dense.bin", l.dir);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(md_container_open(l.dir, &l.container, &err), RT_OK);
    rt_budget_init(&budget, 1 << 30);
    assert_int_equal(md_weights_load(l.container, false, &budget, &l.weights, &err), RT_EIO);
    assert_non_null(strstr(err.text, "not held"));
    close_tiny(&l);
}

static void failed_allocations_are_errors(void **state)
{
    loaded l;

    (void)state;
    open_tiny(&l, KN_Q8, false);
    for (int i = 1; i <= 3; i++) {
        rt_budget budget;
        rt_err err;

        rt_budget_init(&budget, 1 << 30);
        failing_allocation = i;
        assert_int_equal(md_weights_load(l.container, false, &budget, &l.weights, &err), RT_ENOMEM);
        assert_null(l.weights);
    }
    failing_allocation = 0;
    close_tiny(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_record_has_its_name),
        cmocka_unit_test(mtp_is_left_out_when_not_wanted),
        cmocka_unit_test(embedding_rows_come_as_f32),
        cmocka_unit_test(what_does_not_fit_fails_before_anything_is_read),
        cmocka_unit_test(damaged_record_is_named),
        cmocka_unit_test(rope_frequencies_outside_their_range_are_refused),
        cmocka_unit_test(missing_dense_pack_is_not_held),
        cmocka_unit_test(failed_allocations_are_errors),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
