/* test_model_id.c - the id changes with everything a token depends on, and with nothing else. */
#include "model/container/model_id.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

typedef struct {
    const char *json;
    md_config config;
    md_container_info info;
    md_image_stamp tokenizer;
    md_manifest_entry entries[2];
    uint64_t count;
} model;

static model base_model(void)
{
    return (model){
        .json = "{\"a\":1}",
        .config = {.layers = 2, .mtp_layers = 1},
        .info = {.expert_format = KN_Q4,
                 .dense_format = KN_Q8,
                 .embed_format = KN_BF16,
                 .slice_width = 256,
                 .latent_eps = 1e-5f,
                 .conversion_id = 1,
                 .grid_q = {0, 13, 12},
                 .template_id = "abc"},
        .tokenizer = {10, {1, 2}},
        .entries = {{{0, MD_Q_A, 0}, 64, {3, 4}}, {{1, MD_Q_A, 0}, 64, {5, 6}}},
        .count = 2,
    };
}

static void id_of(const model *m, uint8_t id[32])
{
    rt_err err;

    assert_int_equal(md_model_id_compute(m->json, strlen(m->json), &m->config, &m->info,
                                         &m->tokenizer, m->entries, m->count, id, &err),
                     RT_OK);
}

static void same_model_has_the_same_id(void **state)
{
    model a = base_model(), b = base_model();
    uint8_t first[32], second[32];

    (void)state;
    memset(b.info.model_id, 0x55, sizeof(b.info.model_id));               /* not part of itself */
    memset(b.info.template_id + 4, 0x55, sizeof(b.info.template_id) - 4); /* after the text's end */
    b.info.grid_q[3] = 9;                                                 /* no such layer */
    id_of(&a, first);
    id_of(&b, second);
    assert_memory_equal(first, second, 32);
}

/* One change each; returns false when there are no more. */
static bool change(model *m, int which)
{
    switch (which) {
    case 0:
        m->json = "{\"a\":2}";
        return true;
    case 1:
        m->json = "{\"a\":1} ";
        return true;
    case 2:
        m->info.expert_format = KN_Q8;
        return true;
    case 3:
        m->info.dense_format = KN_Q4;
        return true;
    case 4:
        m->info.embed_format = KN_F32;
        return true;
    case 5:
        m->info.slice_width = 512;
        return true;
    case 6:
        m->info.latent_eps = 1e-6f;
        return true;
    case 7:
        m->info.conversion_id = 2;
        return true;
    case 8:
        m->info.grid_fine = true;
        return true;
    case 9:
        m->info.grid_q[2] = 13;
        return true;
    case 10:
        m->info.template_id[0] = 'x';
        return true;
    case 11:
        m->tokenizer.bytes = 11;
        return true;
    case 12:
        m->tokenizer.hash.low = 9;
        return true;
    case 13:
        m->tokenizer.hash.high = 9;
        return true;
    case 14:
        m->count = 1;
        return true;
    case 15:
        m->entries[1].bytes = 65;
        return true;
    case 16:
        m->entries[1].hash.high ^= 1;
        return true;
    case 17:
        m->entries[0].hash.low ^= 1;
        return true;
    case 18:
        m->entries[0].key.kind = MD_Q_B;
        return true;
    case 19:
        m->config.mtp_layers = 0;
        return true;
    default:
        return false;
    }
}

static void every_part_changes_the_id(void **state)
{
    uint8_t ids[32][32];
    int count = 1;
    model m = base_model();

    (void)state;
    id_of(&m, ids[0]);
    for (int which = 0; change(&m, which); which++) {
        id_of(&m, ids[count]);
        for (int i = 0; i < count; i++)
            assert_memory_not_equal(ids[i], ids[count], 32);
        count++;
        m = base_model();
    }
    assert_int_equal(count, 21);
}

static void id_is_printed_as_64_hex_digits(void **state)
{
    uint8_t id[32] = {0x00, 0x01, 0xfe};
    char text[65];

    (void)state;
    id[31] = 0xa0;
    md_model_id_format(id, text);
    assert_int_equal(strlen(text), 64);
    assert_memory_equal(text, "0001fe00", 8);
    assert_string_equal(text + 62, "a0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_model_has_the_same_id),
        cmocka_unit_test(every_part_changes_the_id),
        cmocka_unit_test(id_is_printed_as_64_hex_digits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
