/* test_kv_cache.c - rows keep what was written, rounded once; nothing overlaps. */
#include "attention_node/kv_cache.h"

#include "kernels/quant.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { LAYERS = 4, RANK = 20, ROPE = 8, INDEX = 12, CONTEXT = 7, SLOTS = 3 };

static const md_config config = {.layers = LAYERS,
                                 .kv_rank = RANK,
                                 .rope_dim = ROPE,
                                 .index_dim = INDEX,
                                 .index_full = {true, false, true, false}};

static float number(uint32_t slot, uint32_t layer, uint32_t position, uint32_t k)
{
    return (float)(((slot * LAYERS + layer) * CONTEXT + position) * 64 + k) * 1.00390637F;
}

static void write_all(an_kv *kv)
{
    float values[RANK + ROPE];

    for (uint32_t slot = 0; slot < SLOTS; slot++)
        for (uint32_t layer = 0; layer < LAYERS; layer++)
            for (uint32_t position = 0; position < CONTEXT; position++) {
                for (uint32_t k = 0; k < RANK + ROPE; k++)
                    values[k] = number(slot, layer, position, k);
                an_kv_put_latent(kv, slot, layer, position, values);
                for (uint32_t k = 0; k < INDEX; k++)
                    values[k] = -number(slot, layer, position, k);
                if (config.index_full[layer]) an_kv_put_index(kv, slot, layer, position, values);
            }
}

static void check_row(const kn_cache_view *view, uint32_t position, uint32_t slot, uint32_t layer,
                      float sign)
{
    float values[RANK + ROPE];

    kn_cache_load(values, view->bf16, (const char *)view->rows + position * view->row_bytes,
                  view->width);
    for (uint32_t k = 0; k < view->width; k++) {
        float expected = sign * number(slot, layer, position, k);

        if (view->bf16) expected = kn_f32_from_bf16(kn_bf16_from_f32(expected));
        assert_true(values[k] == expected);
    }
}

static void check(bool bf16)
{
    an_kv *kv;

    assert_int_equal(an_kv_create(&config, CONTEXT, SLOTS, bf16, &kv, NULL), RT_OK);
    assert_int_equal(an_kv_context(kv), CONTEXT);
    write_all(kv);
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        for (uint32_t layer = 0; layer < LAYERS; layer++)
            for (uint32_t position = 0; position < CONTEXT; position++) {
                kn_cache_view view = an_kv_latent(kv, slot, layer);

                assert_int_equal(view.width, RANK + ROPE);
                check_row(&view, position, slot, layer, 1);
                if (!config.index_full[layer]) continue;
                view = an_kv_index(kv, slot, layer);
                assert_int_equal(view.width, INDEX);
                check_row(&view, position, slot, layer, -1);
            }
    an_kv_free(kv);
}

static void f32_rows_keep_every_bit(void **state)
{
    (void)state;
    check(false);
}

static void bf16_rows_are_rounded_once(void **state)
{
    (void)state;
    check(true);
}

/* GLM-5.2: 78 x (512 + 64) + 21 x 128 values a position, no padding. */
static void a_position_of_the_real_model_takes_95_kb(void **state)
{
    md_config real = {.layers = 78, .kv_rank = 512, .rope_dim = 64, .index_dim = 128};

    (void)state;
    for (uint32_t layer = 0; layer < 78; layer++)
        real.index_full[layer] = layer < 3 || (layer - 2) % 4 == 0;
    assert_int_equal(an_kv_slot_bytes(&real, 1000, true), 1000 * 95232);
    assert_int_equal(an_kv_slot_bytes(&real, 1000, false), 1000 * 190464);
}

static void memory_that_cannot_be_had_is_refused(void **state)
{
    md_config huge = config;
    an_kv *kv = NULL;
    rt_err err = {RT_OK, ""};

    (void)state;
    huge.kv_rank = 1U << 26;
    assert_int_equal(an_kv_create(&huge, 1U << 31, 1, false, &kv, &err), RT_ENOMEM);
    assert_null(kv);
    assert_non_null(strstr(err.text, "kv cache"));
    an_kv_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f32_rows_keep_every_bit),
        cmocka_unit_test(bf16_rows_are_rounded_once),
        cmocka_unit_test(a_position_of_the_real_model_takes_95_kb),
        cmocka_unit_test(memory_that_cannot_be_had_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
