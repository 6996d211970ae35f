/* test_plan.c - every record finds its tensors; the order of work frees shards early. */
#include "model/convert/plan.h"

#include "base/file.h"
#include "tests/support/safetensors_file.h"
#include "tests/support/temp_dir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct {
    md_config config;
    md_container_info info;
    md_source *source;
    md_plan plan;
} rig;

static rig rig_open(const char *name)
{
    rig r = {.info = {.expert_format = KN_Q4, .dense_format = KN_Q8, .embed_format = KN_BF16}};
    char *dir = rt_path_join(MOESAIC_FIXTURES, name);
    char *path = rt_path_join(dir, "config.json");
    char *json = NULL;
    size_t bytes = 0;

    assert_int_equal(rt_file_read(path, 1 << 20, &json, &bytes, NULL), RT_OK);
    assert_int_equal(md_config_parse(json, bytes, &r.config, NULL), RT_OK);
    r.info.slice_width = md_slice_width(&r.config);
    assert_int_equal(md_source_open(dir, NULL, 0, &r.source, NULL), RT_OK);
    assert_int_equal(md_plan_create(&r.config, &r.info, &r.plan, NULL), RT_OK);
    free(json);
    free(path);
    free(dir);
    return r;
}

static void rig_close(rig *r)
{
    md_plan_free(&r->plan);
    md_source_close(r->source);
}

static const char *tensor_of(const rig *r, md_key key, uint32_t part)
{
    const md_unit *unit = md_plan_find(&r->plan, key);

    assert_non_null(unit);
    assert_true(part < unit->source_count);
    return md_source_tensor_name(r->source, unit->source[part].weight);
}

static void every_fixture_is_planned_with_no_tensor_left(void **state)
{
    static const char *const names[] = {"nano-bf16", "nano-f32", "nano-fp8",
                                        "nano-mtp",  "tiny-fp8", "wide-bf16"};

    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        rig r = rig_open(names[i]);
        const char *first = "";
        uint64_t bytes = 0;
        rt_err err = {0};

        if (md_plan_resolve(&r.plan, &r.config, r.source, &err) != RT_OK)
            fail_msg("%s: %s", names[i], err.text);
        if (md_source_unused(r.source, &first) != 0) fail_msg("%s: %s is left", names[i], first);
        for (uint64_t u = 0; u < r.plan.count; u++)
            bytes += r.plan.units[u].shape.bytes;
        assert_int_equal(bytes, r.plan.target_bytes);
        rig_close(&r);
    }
}

static void records_name_the_tensors_of_the_release(void **state)
{
    rig r = rig_open("nano-bf16");

    (void)state;
    assert_int_equal(md_plan_resolve(&r.plan, &r.config, r.source, NULL), RT_OK);
    assert_string_equal(tensor_of(&r, (md_key){MD_NO_LAYER, MD_EMBED, 0}, 0),
                        "model.embed_tokens.weight");
    assert_string_equal(tensor_of(&r, (md_key){1, MD_KV_A, 0}, 0),
                        "model.layers.1.self_attn.kv_a_proj_with_mqa.weight");
    assert_string_equal(tensor_of(&r, (md_key){2, MD_UK_T, 0}, 0),
                        "model.layers.2.self_attn.kv_b_proj.weight");
    assert_string_equal(tensor_of(&r, (md_key){2, MD_INDEX_K_NORM, 0}, 1),
                        "model.layers.2.self_attn.indexer.k_norm.bias");
    assert_string_equal(tensor_of(&r, (md_key){1, MD_EXPERT, 5}, MD_UNIT_UP),
                        "model.layers.1.mlp.experts.5.up_proj.weight");
    assert_string_equal(tensor_of(&r, (md_key){1, MD_EXPERT, 5}, MD_UNIT_NORM),
                        "model.layers.1.post_attention_layernorm.weight");
    assert_string_equal(tensor_of(&r, (md_key){3, MD_SHARED, 0}, MD_UNIT_DOWN),
                        "model.layers.3.mlp.shared_experts.down_proj.weight");
    assert_string_equal(tensor_of(&r, (md_key){3, MD_HEAD_NORM, 0}, 0),
                        "model.layers.3.shared_head.norm.weight");
    assert_int_equal(
        md_plan_find(&r.plan, (md_key){MD_NO_LAYER, MD_ROPE_INV_FREQ, 0})->source_count, 0);
    assert_null(md_plan_find(&r.plan, (md_key){1, MD_EXPERT, 8}));
    assert_null(md_plan_find(&r.plan, (md_key){1, MD_GATE, 0}));    /* a MoE layer */
    assert_null(md_plan_find(&r.plan, (md_key){1, MD_INDEX_Q, 0})); /* a shared-indexer layer */
    rig_close(&r);
}

static void count_scales(void *context, uint32_t tensor)
{
    (void)tensor;
    ++*(int *)context;
}

static void scales_are_tensors_of_a_unit(void **state)
{
    rig r = rig_open("nano-fp8");
    int count = 0;

    (void)state;
    assert_int_equal(md_plan_resolve(&r.plan, &r.config, r.source, NULL), RT_OK);
    md_plan_visit_tensors(md_plan_find(&r.plan, (md_key){1, MD_EXPERT, 0}), count_scales, &count);
    assert_int_equal(count, 7); /* three weights, three scales, one norm */
    rig_close(&r);
}

static void the_order_of_work_is_by_the_last_shard_needed(void **state)
{
    rig r = rig_open("wide-bf16");
    uint8_t *seen;

    (void)state;
    assert_int_equal(md_plan_resolve(&r.plan, &r.config, r.source, NULL), RT_OK);
    seen = calloc(r.plan.count, 1);
    for (uint64_t i = 0; i < r.plan.count; i++) {
        const md_unit *unit = &r.plan.units[r.plan.order[i]];

        assert_int_equal(seen[r.plan.order[i]]++, 0);
        for (uint32_t s = 0; s < unit->source_count; s++)
            assert_true(md_source_tensor_shard(r.source, unit->source[s].weight) <=
                        unit->last_shard);
        if (i > 0) assert_true(r.plan.units[r.plan.order[i - 1]].last_shard <= unit->last_shard);
    }
    free(seen);
    rig_close(&r);
}

static void copies_in_the_mtp_layer_are_accepted_and_others_are_not(void **state)
{
    st_checkpoint checkpoint = st_checkpoint_load(MOESAIC_FIXTURES, "nano-bf16");
    static const float zeros[384 * 64];
    char *dir = temp_dir_make();
    rig r = rig_open("nano-bf16");
    const char *first = NULL;

    (void)state;
    st_items_add(&checkpoint.tensors, "model.layers.3.embed_tokens.weight", MD_ST_F32, 384, 64,
                 zeros);
    st_items_add(&checkpoint.tensors, "model.layers.3.shared_head.head.weight", MD_ST_F32, 384, 64,
                 zeros);
    st_items_add(&checkpoint.tensors, "model.layers.1.surprise", MD_ST_F32, 0, 4, zeros);
    st_checkpoint_write(&checkpoint, dir, true);
    md_source_close(r.source);
    assert_int_equal(md_source_open(dir, NULL, 0, &r.source, NULL), RT_OK);
    assert_int_equal(md_plan_resolve(&r.plan, &r.config, r.source, NULL), RT_OK);
    assert_int_equal(md_source_unused(r.source, &first), 1);
    assert_string_equal(first, "model.layers.1.surprise");
    rig_close(&r);
    st_checkpoint_free(&checkpoint);
    temp_dir_remove(dir);
}

static void any_missing_tensor_is_named(void **state)
{
    static const char *const names[] = {
        "model.layers.3.eh_proj.weight",              /* MTP is always converted */
        "model.layers.2.self_attn.indexer.wk.weight", /* and so is the indexer */
        "model.layers.2.mlp.experts.7.down_proj.weight",
        "model.layers.1.mlp.gate.e_score_correction_bias",
        "lm_head.weight",
    };

    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        st_checkpoint checkpoint = st_checkpoint_load(MOESAIC_FIXTURES, "nano-bf16");
        char *dir = temp_dir_make();
        rig r = rig_open("nano-bf16");
        rt_err err = {0};

        st_items_remove(&checkpoint.tensors, names[i]);
        st_checkpoint_write(&checkpoint, dir, true);
        md_source_close(r.source);
        assert_int_equal(md_source_open(dir, NULL, 0, &r.source, NULL), RT_OK);
        assert_int_equal(md_plan_resolve(&r.plan, &r.config, r.source, &err), RT_EFORMAT);
        assert_non_null(strstr(err.text, names[i]));
        rig_close(&r);
        st_checkpoint_free(&checkpoint);
        temp_dir_remove(dir);
    }
}

static void a_done_unit_needs_no_tensor_but_knows_its_shards(void **state)
{
    st_checkpoint checkpoint = st_checkpoint_load(MOESAIC_FIXTURES, "nano-bf16");
    char *dir = temp_dir_make();
    rig r = rig_open("nano-bf16");
    md_unit *unit = md_plan_find(&r.plan, (md_key){1, MD_EXPERT, 3});
    const char *first = NULL;

    (void)state;
    st_items_remove(&checkpoint.tensors, "model.layers.1.mlp.experts.3.up_proj.weight");
    st_checkpoint_write(&checkpoint, dir, true);
    md_source_close(r.source);
    assert_int_equal(md_source_open(dir, NULL, 0, &r.source, NULL), RT_OK);
    unit->done = true;
    assert_int_equal(md_plan_resolve(&r.plan, &r.config, r.source, NULL), RT_OK);
    assert_int_equal(unit->source_count, 3);
    assert_int_equal(md_source_unused(r.source, &first), 0);
    rig_close(&r);
    st_checkpoint_free(&checkpoint);
    temp_dir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_fixture_is_planned_with_no_tensor_left),
        cmocka_unit_test(records_name_the_tensors_of_the_release),
        cmocka_unit_test(scales_are_tensors_of_a_unit),
        cmocka_unit_test(the_order_of_work_is_by_the_last_shard_needed),
        cmocka_unit_test(copies_in_the_mtp_layer_are_accepted_and_others_are_not),
        cmocka_unit_test(any_missing_tensor_is_named),
        cmocka_unit_test(a_done_unit_needs_no_tensor_but_knows_its_shards),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
