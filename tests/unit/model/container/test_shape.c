/* test_shape.c - names and shapes of records, against GLM-5.2's published totals. */
#include "model/container/shape.h"

#include "base/file.h"
#include "model/container/manifest.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static md_config read_config(const char *path)
{
    char *text = NULL;
    size_t bytes = 0;
    md_config config;
    rt_err err;

    assert_int_equal(rt_file_read(path, 1 << 20, &text, &bytes, &err), RT_OK);
    assert_int_equal(md_config_parse(text, bytes, &config, &err), RT_OK);
    free(text);
    return config;
}

static md_config glm(void)
{
    return read_config(MOESAIC_FIXTURES "/configs/glm-5.2.json");
}

static md_container_info formats(kn_format expert, kn_format dense, const md_config *config)
{
    return (md_container_info){.expert_format = expert,
                               .dense_format = dense,
                               .embed_format = dense == KN_F32 ? KN_F32 : KN_BF16,
                               .slice_width = md_slice_width(config)};
}

static md_shape shape_of(const md_config *config, const md_container_info *info, uint16_t layer,
                         uint16_t kind, uint32_t index)
{
    md_shape shape;

    assert_true(md_record_shape(config, info, (md_key){layer, kind, index}, &shape));
    return shape;
}

static void keys_have_names_for_people(void **state)
{
    char text[64], small[8];

    (void)state;
    assert_string_equal(md_key_format((md_key){12, MD_EXPERT, 200}, text, sizeof(text)),
                        "layer 12 expert 200");
    assert_string_equal(md_key_format((md_key){3, MD_EXPERT, 0}, text, sizeof(text)),
                        "layer 3 expert 0");
    assert_string_equal(md_key_format((md_key){3, MD_Q_A, 0}, text, sizeof(text)), "layer 3 q_a");
    assert_string_equal(md_key_format((md_key){MD_NO_LAYER, MD_EMBED, 0}, text, sizeof(text)),
                        "embed");
    assert_string_equal(md_key_format((md_key){3, 999, 7}, text, sizeof(text)), "layer 3 ?[7]");
    assert_string_equal(md_key_format((md_key){12, MD_EXPERT, 200}, small, sizeof(small)),
                        "layer 1");
    assert_string_equal(md_kind_name(MD_EH_PROJ), "eh_proj");
    assert_string_equal(md_kind_name(0), "?");
}

static void packs_are_dense_and_one_per_layer(void **state)
{
    char text[32];

    (void)state;
    assert_string_equal(md_pack_name((md_key){3, MD_EXPERT, 9}, text, sizeof(text)),
                        "experts-003.bin");
    assert_string_equal(md_pack_name((md_key){254, MD_EXPERT, 0}, text, sizeof(text)),
                        "experts-254.bin");
    assert_string_equal(md_pack_name((md_key){3, MD_SHARED, 0}, text, sizeof(text)), "dense.bin");
    assert_string_equal(md_pack_name((md_key){MD_NO_LAYER, MD_EMBED, 0}, text, sizeof(text)),
                        "dense.bin");
}

static void glm_in_f32_has_the_published_number_of_parameters(void **state)
{
    md_config config = glm();
    md_container_info info = formats(KN_F32, KN_F32, &config);
    md_manifest_entry *entries = NULL;
    uint64_t count = 0, bytes = 0;
    rt_err err;

    (void)state;
    assert_int_equal(md_manifest_expected(&config, &info, &entries, &count, &err), RT_OK);
    for (uint64_t i = 0; i < count; i++)
        bytes += entries[i].bytes;
    /* 753,329,921,024 weights, 76 layers of 256 router biases, 32 rope frequencies. */
    assert_true(bytes == (753329921024ull + 76 * 256 + 32) * 4);
    free(entries);
}

static void manifest_lists_every_record_once_in_order(void **state)
{
    md_config config = glm();
    md_container_info info = formats(KN_Q4, KN_Q8, &config);
    md_manifest_entry *entries = NULL;
    uint64_t count = 0, experts = 0, indexers = 0, expert_bytes = 0;
    rt_err err;

    (void)state;
    assert_int_equal(md_manifest_expected(&config, &info, &entries, &count, &err), RT_OK);
    for (uint64_t i = 0; i < count; i++) {
        if (i > 0) assert_true(md_key_compare(entries[i - 1].key, entries[i].key) < 0);
        assert_true(entries[i].hash.low == 0 && entries[i].hash.high == 0);
        experts += entries[i].key.kind == MD_EXPERT;
        indexers += entries[i].key.kind == MD_INDEX_K;
        if (entries[i].key.kind == MD_EXPERT && entries[i].key.layer < 78)
            expert_bytes += entries[i].bytes;
    }
    assert_int_equal(experts, 76 * 256);
    assert_int_equal(indexers, 22); /* 21 full layers and the MTP layer */
    assert_true(expert_bytes == 19200ull * 20054016);
    /* 79 layers x 10, 22 indexers x 4, 3 MLPs x 3, 76 x (router, bias, shared), MTP 4, globals 4 */
    assert_int_equal(count, 79 * 10 + 22 * 4 + 3 * 3 + 76 * (3 + 256) + 4 + 4);
    free(entries);
}

static void formats_follow_their_options(void **state)
{
    md_config config = glm();
    md_container_info info = formats(KN_Q4, KN_Q8, &config);

    (void)state;
    assert_int_equal(shape_of(&config, &info, 5, MD_EXPERT, 255).format, KN_Q4);
    assert_int_equal(shape_of(&config, &info, 78, MD_EXPERT, 0).format, KN_Q8); /* MTP */
    assert_int_equal(shape_of(&config, &info, 5, MD_SHARED, 0).format, KN_Q8);
    assert_int_equal(shape_of(&config, &info, 5, MD_O, 0).format, KN_Q8);
    assert_int_equal(shape_of(&config, &info, 78, MD_EH_PROJ, 0).format, KN_Q8);
    assert_int_equal(shape_of(&config, &info, MD_NO_LAYER, MD_LM_HEAD, 0).format, KN_Q8);
    assert_int_equal(shape_of(&config, &info, MD_NO_LAYER, MD_EMBED, 0).format, KN_BF16);
    assert_int_equal(shape_of(&config, &info, 5, MD_ROUTER, 0).format, KN_F32);
    assert_int_equal(shape_of(&config, &info, 6, MD_INDEX_WEIGHT, 0).format, KN_F32);
    assert_int_equal(shape_of(&config, &info, 6, MD_INDEX_K_NORM, 0).form, MD_FORM_VECTOR);
}

static void of_an_import_what_its_scales_cannot_reach_is_f32(void **state)
{
    static const kn_format kept[] = {KN_Q8F32, KN_Q4F32};
    md_config config = glm();

    (void)state;
    for (int i = 0; i < 2; i++) {
        md_container_info info = {0};

        md_container_info_init(&info, &config, KN_Q4F32, kept[i]);
        assert_int_equal(shape_of(&config, &info, MD_NO_LAYER, MD_EMBED, 0).format, KN_F32);
        assert_int_equal(shape_of(&config, &info, 5, MD_UK_T, 0).format, KN_F32);
        assert_int_equal(shape_of(&config, &info, 5, MD_UV, 0).format, kept[i]);
        assert_int_equal(shape_of(&config, &info, 5, MD_O, 0).format, kept[i]);
        assert_int_equal(shape_of(&config, &info, 78, MD_EXPERT, 0).format, kept[i]);
        assert_int_equal(shape_of(&config, &info, 5, MD_EXPERT, 0).format, KN_Q4F32);
    }
}

static void shapes_are_those_of_the_release(void **state)
{
    md_config config = glm();
    md_container_info info = formats(KN_Q4, KN_Q8, &config);
    static const struct {
        uint16_t layer, kind;
        uint32_t count, rows, cols, group;
    } rows[] = {
        {0, MD_Q_A, 1, 2048, 6144, 64},        {0, MD_Q_B, 1, 16384, 2048, 64},
        {0, MD_KV_A, 1, 576, 6144, 64},        {0, MD_UK_T, 64, 512, 192, 64},
        {0, MD_UV, 64, 256, 512, 64},          {0, MD_O, 1, 6144, 16384, 64},
        {0, MD_INDEX_Q, 1, 4096, 2048, 64},    {0, MD_INDEX_K, 1, 128, 6144, 64},
        {0, MD_INDEX_WEIGHT, 1, 32, 6144, 64}, {0, MD_GATE, 1, 12288, 6144, 64},
        {0, MD_DOWN, 1, 6144, 12288, 64},      {3, MD_ROUTER, 1, 256, 6144, 64},
        {78, MD_EH_PROJ, 1, 6144, 12288, 64},  {MD_NO_LAYER, MD_LM_HEAD, 1, 154880, 6144, 64},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        md_shape shape = shape_of(&config, &info, rows[i].layer, rows[i].kind, 0);

        assert_int_equal(shape.count, rows[i].count);
        assert_int_equal(shape.rows, rows[i].rows);
        assert_int_equal(shape.cols, rows[i].cols);
        assert_int_equal(shape.group, rows[i].group);
        assert_true(shape.bytes == (uint64_t)shape.count * kn_qmat_bytes(shape.format, shape.rows,
                                                                         shape.cols, shape.group));
    }
}

static void groups_follow_the_contraction_width(void **state)
{
    md_config config = read_config(MOESAIC_FIXTURES "/nano-bf16/config.json");
    md_container_info info = formats(KN_Q4, KN_Q8, &config);

    (void)state;
    assert_int_equal(shape_of(&config, &info, 0, MD_Q_A, 0).group, 64);  /* hidden 64 */
    assert_int_equal(shape_of(&config, &info, 0, MD_Q_B, 0).group, 32);  /* q_rank 32 */
    assert_int_equal(shape_of(&config, &info, 0, MD_UK_T, 0).group, 16); /* nope 16 */
    assert_int_equal(shape_of(&config, &info, 0, MD_UV, 0).group, 32);   /* kv_rank 32 */
    assert_int_equal(shape_of(&config, &info, 0, MD_O, 0).group, 32);    /* 4 x 24 */
    assert_int_equal(shape_of(&config, &info, 0, MD_DOWN, 0).group, 32); /* inter 96, half 48 */
}

static void records_that_a_layer_lacks_are_told(void **state)
{
    static const md_key missing[] = {
        {3, MD_INDEX_Q, 0},
        {0, MD_ROUTER, 0},
        {0, MD_EXPERT, 0},
        {3, MD_GATE, 0},
        {3, MD_EXPERT, 256},
        {3, MD_Q_A, 1},
        {3, MD_ENORM, 0},
        {79, MD_Q_A, 0},
        {3, MD_EMBED, 0},
        {3, 0, 0},
        {3, 999, 0},
        {MD_NO_LAYER, MD_Q_A, 0},
        {MD_NO_LAYER, MD_EMBED, 1},
        {MD_NO_LAYER, MD_EXPERT, 0},
        {0x8000, MD_EXPERT, 0},
    };
    md_config config = glm();
    md_container_info info = formats(KN_Q4, KN_Q8, &config);

    (void)state;
    for (size_t i = 0; i < sizeof(missing) / sizeof(missing[0]); i++) {
        md_shape shape = {.rows = 77};

        assert_false(md_record_shape(&config, &info, missing[i], &shape));
        assert_int_equal(shape.rows, 77);
    }
}

static void wide_shared_expert_keeps_the_slice_width(void **state)
{
    md_config config = read_config(MOESAIC_FIXTURES "/nano-bf16/config.json");
    md_container_info info;
    md_expert_layout layout;

    (void)state;
    config.shared_experts = 2;
    info = formats(KN_Q4, KN_Q8, &config);
    md_record_expert_layout(&config, &info, (md_key){1, MD_SHARED, 0}, &layout);
    assert_int_equal(layout.inter, 64);
    assert_int_equal(layout.slice_width, 16);
    assert_int_equal(layout.slices, 4);
    assert_int_equal(layout.inter_group, 16); /* 64 alone would take 32 */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_have_names_for_people),
        cmocka_unit_test(packs_are_dense_and_one_per_layer),
        cmocka_unit_test(glm_in_f32_has_the_published_number_of_parameters),
        cmocka_unit_test(manifest_lists_every_record_once_in_order),
        cmocka_unit_test(formats_follow_their_options),
        cmocka_unit_test(of_an_import_what_its_scales_cannot_reach_is_f32),
        cmocka_unit_test(shapes_are_those_of_the_release),
        cmocka_unit_test(groups_follow_the_contraction_width),
        cmocka_unit_test(records_that_a_layer_lacks_are_told),
        cmocka_unit_test(wide_shared_expert_keeps_the_slice_width),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
