/* test_config.c - releases are read as they are meant; everything else is refused by name. */
#include "model/config.h"

#include "base/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

static json_t *load_fixture(const char *name)
{
    char path[512];
    json_error_t error;
    json_t *root;

    (void)snprintf(path, sizeof(path), "%s/%s", MOESAIC_FIXTURES, name);
    root = json_load_file(path, 0, &error);
    assert_non_null(root);
    return root;
}

static rt_status parse(const json_t *root, md_config *out, rt_err *err)
{
    char *text = json_dumps(root, 0);
    rt_status status;

    assert_non_null(text);
    *err = (rt_err){RT_OK, ""};
    status = md_config_parse(text, strlen(text), out, err);
    free(text);
    return status;
}

static void must_parse(const json_t *root, md_config *out)
{
    rt_err err;

    assert_int_equal(parse(root, out, &err), RT_OK);
}

/* Replaces key by the JSON value, or removes it when value is NULL. */
static void set(json_t *root, const char *key, const char *value)
{
    if (value == NULL) {
        (void)json_object_del(root, key);
    } else {
        json_t *parsed = json_loads(value, JSON_DECODE_ANY, NULL);

        assert_non_null(parsed);
        assert_int_equal(json_object_set_new(root, key, parsed), 0);
    }
}

static void reads_glm_5_2(void **state)
{
    json_t *root = load_fixture("configs/glm-5.2.json");
    uint32_t full = 0, sparse = 0;
    md_config c;

    (void)state;
    must_parse(root, &c);
    assert_string_equal(c.model_type, "glm_moe_dsa");
    assert_int_equal(c.hidden, 6144);
    assert_int_equal(c.layers, 78);
    assert_int_equal(c.mtp_layers, 1);
    assert_int_equal(md_config_layers_total(&c), 79);
    assert_int_equal(c.vocab, 154880);
    assert_int_equal(c.context_max, 1048576);
    assert_int_equal(c.heads, 64);
    assert_int_equal(c.q_rank, 2048);
    assert_int_equal(c.kv_rank, 512);
    assert_int_equal(c.nope_dim, 192);
    assert_int_equal(c.rope_dim, 64); /* head_dim 192 is a trap */
    assert_int_equal(c.v_dim, 256);
    assert_int_equal(c.index_heads, 32);
    assert_int_equal(c.index_dim, 128);
    assert_int_equal(c.index_topk, 2048);
    assert_int_equal(c.inter, 12288);
    assert_int_equal(c.expert_inter, 2048);
    assert_int_equal(c.experts, 256);
    assert_int_equal(c.topk, 8);
    assert_int_equal(c.shared_experts, 1);
    assert_true(c.rms_eps == 1e-5f);
    assert_true(c.routed_scale == 2.5f);
    assert_true(c.rope_theta == 8e6);
    assert_true(c.norm_topk);
    assert_int_equal(c.eos_count, 3);
    assert_int_equal(c.eos[2], 154829);
    for (uint32_t i = 0; i < 78; i++) {
        full += c.index_full[i];
        sparse += c.sparse[i];
    }
    assert_int_equal(full, 21);
    assert_int_equal(sparse, 75);
    assert_false(c.sparse[2]);
    assert_true(c.sparse[3]);
    assert_int_equal(c.index_source[5], 2);
    assert_int_equal(c.index_source[6], 6);
    assert_int_equal(c.index_source[77], 74);
    /* The MTP layer is a MoE layer with its own indexer. */
    assert_true(c.sparse[78] && c.index_full[78]);
    assert_int_equal(c.index_source[78], 78);
    json_decref(root);
}

static void reads_glm_5_with_every_layer_full(void **state)
{
    json_t *root = load_fixture("configs/glm-5.json");
    md_config c;

    (void)state;
    must_parse(root, &c);
    for (uint32_t i = 0; i < 78; i++) {
        assert_true(c.index_full[i]);
        assert_int_equal(c.index_source[i], i);
        assert_int_equal(c.sparse[i], i >= 3); /* first_k_dense_replace */
    }
    assert_true(c.rope_theta == 1e6); /* top level, the older style */
    json_decref(root);
}

static void reads_the_fixtures(void **state)
{
    static const char *const names[] = {"nano-bf16", "nano-f32", "nano-fp8", "tiny-fp8",
                                        "wide-bf16"};

    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char name[64];
        json_t *root;
        md_config c;

        (void)snprintf(name, sizeof(name), "%s/config.json", names[i]);
        root = load_fixture(name);
        must_parse(root, &c);
        assert_int_equal(c.mtp_layers, 1);
        json_decref(root);
    }
}

static void same_indexers(const md_config *a, const md_config *b)
{
    assert_memory_equal(a->index_full, b->index_full, sizeof(a->index_full));
    assert_memory_equal(a->index_source, b->index_source, sizeof(a->index_source));
}

static void frequency_gives_the_list_when_there_is_none(void **state)
{
    json_t *root = load_fixture("configs/glm-5.2.json");
    md_config listed, counted;

    (void)state;
    must_parse(root, &listed);
    set(root, "indexer_types", NULL);
    must_parse(root, &counted);
    same_indexers(&listed, &counted);
    json_decref(root);
    /* The list wins over frequency and pattern. */
    root = load_fixture("configs/glm-5.2.json");
    set(root, "index_topk_freq", "1");
    set(root, "index_topk_pattern", "\"F\"");
    must_parse(root, &counted);
    same_indexers(&listed, &counted);
    json_decref(root);
}

static void pattern_wins_over_frequency(void **state)
{
    json_t *root = load_fixture("nano-bf16/config.json");
    md_config c;

    (void)state;
    set(root, "indexer_types", NULL);
    set(root, "index_topk_pattern", "\"FFS\"");
    must_parse(root, &c);
    assert_true(c.index_full[0] && c.index_full[1] && !c.index_full[2]);
    assert_int_equal(c.index_source[2], 1);
    json_decref(root);
}

static void mlp_types_win_over_the_dense_count(void **state)
{
    json_t *root = load_fixture("nano-bf16/config.json");
    md_config c;

    (void)state;
    set(root, "mlp_layer_types", "[\"sparse\",\"dense\",\"sparse\"]");
    must_parse(root, &c);
    assert_true(c.sparse[0] && !c.sparse[1] && c.sparse[2]);
    json_decref(root);
}

static void optional_keys_may_be_absent_or_null(void **state)
{
    static const char *const keys[] = {
        "attention_bias",       "hidden_act",       "indexer_rope_interleave",
        "moe_layer_freq",       "moe_router_dtype", "n_group",
        "rope_interleave",      "scoring_func",     "tie_word_embeddings",
        "topk_group",           "topk_method",      "num_key_value_heads",
        "qk_head_dim",          "eos_token_id",     "head_dim",
        "first_k_dense_replace"};
    md_config c;

    (void)state;
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        json_t *root = load_fixture("nano-bf16/config.json");

        set(root, keys[i], "null");
        must_parse(root, &c);
        set(root, keys[i], NULL);
        must_parse(root, &c);
        json_decref(root);
    }
}

static void eos_may_be_one_id_and_no_mtp_is_fine(void **state)
{
    json_t *root = load_fixture("nano-bf16/config.json");
    md_config c;

    (void)state;
    set(root, "eos_token_id", "7");
    set(root, "num_nextn_predict_layers", NULL);
    must_parse(root, &c);
    assert_int_equal(c.eos_count, 1);
    assert_int_equal(c.eos[0], 7);
    assert_int_equal(c.mtp_layers, 0);
    assert_int_equal(md_config_layers_total(&c), 3);
    json_decref(root);
}

typedef struct {
    const char *key, *value; /* NULL: removed */
    rt_status status;
    const char *found; /* must be in the text, beside the key */
} refusal;

/* Each row is nano-bf16 with one key changed. */
static const refusal refusals[] = {
    {"model_type", "\"glm4_moe\"", RT_EUNSUPPORTED, "glm4_moe"},
    {"model_type", NULL, RT_EFORMAT, "absent"},
    {"model_type", "3", RT_EFORMAT, "3"},
    {"hidden_size", NULL, RT_EFORMAT, "absent"},
    {"hidden_size", "0", RT_EFORMAT, "found 0"},
    {"hidden_size", "-64", RT_EFORMAT, "-64"},
    {"hidden_size", "64.0", RT_EFORMAT, "64"},
    {"hidden_size", "\"64\"", RT_EFORMAT, "\"64\""},
    {"hidden_size", "65537", RT_EFORMAT, "65537"},
    {"hidden_size", "9223372036854775807", RT_EFORMAT, "9223372036854775807"},
    {"num_hidden_layers", "256", RT_EFORMAT, "256"},
    {"vocab_size", "4194305", RT_EFORMAT, "4194305"},
    {"max_position_embeddings", "0", RT_EFORMAT, "found 0"},
    {"num_attention_heads", "1025", RT_EFORMAT, "1025"},
    {"num_key_value_heads", "2", RT_EUNSUPPORTED, "found 2"},
    {"q_lora_rank", "null", RT_EFORMAT, "absent"},
    {"kv_lora_rank", "true", RT_EFORMAT, "true"},
    {"qk_rope_head_dim", "7", RT_EFORMAT, "found 7"},
    {"qk_head_dim", "16", RT_EUNSUPPORTED, "found 16"},
    {"qk_nope_head_dim", "4097", RT_EFORMAT, "4097"},
    {"v_head_dim", "[1]", RT_EFORMAT, "a list of 1"},
    {"index_n_heads", "0", RT_EFORMAT, "found 0"},
    {"index_head_dim", "4", RT_EFORMAT, "found 4"},
    {"index_topk", "0", RT_EFORMAT, "found 0"},
    {"intermediate_size", "1048577", RT_EFORMAT, "1048577"},
    {"moe_intermediate_size", "{}", RT_EFORMAT, "an object"},
    {"n_routed_experts", "4097", RT_EFORMAT, "4097"},
    {"num_experts_per_tok", "33", RT_EFORMAT, "33"},
    {"num_experts_per_tok", "9", RT_EFORMAT, "found 9"},
    {"n_shared_experts", "0", RT_EFORMAT, "found 0"},
    {"num_experts", "9", RT_EUNSUPPORTED, "found 9"},
    {"num_nextn_predict_layers", "2", RT_EUNSUPPORTED, "found 2"},
    {"num_nextn_predict_layers", "\"1\"", RT_EFORMAT, "\"1\""},
    {"attention_bias", "true", RT_EUNSUPPORTED, "true"},
    {"hidden_act", "\"gelu\"", RT_EUNSUPPORTED, "gelu"},
    {"indexer_rope_interleave", "false", RT_EUNSUPPORTED, "false"},
    {"moe_layer_freq", "2", RT_EUNSUPPORTED, "found 2"},
    {"moe_router_dtype", "\"bfloat16\"", RT_EUNSUPPORTED, "bfloat16"},
    {"n_group", "8", RT_EUNSUPPORTED, "found 8"},
    {"topk_group", "4", RT_EUNSUPPORTED, "found 4"},
    {"rope_interleave", "false", RT_EUNSUPPORTED, "false"},
    {"scoring_func", "\"softmax\"", RT_EUNSUPPORTED, "softmax"},
    {"topk_method", "\"greedy\"", RT_EUNSUPPORTED, "greedy"},
    {"tie_word_embeddings", "true", RT_EUNSUPPORTED, "true"},
    {"tie_word_embeddings", "\"no\"", RT_EUNSUPPORTED, "no"},
    {"norm_topk_prob", NULL, RT_EFORMAT, "absent"},
    {"norm_topk_prob", "1", RT_EFORMAT, "found 1"},
    {"rms_norm_eps", "0", RT_EFORMAT, "found 0"},
    {"rms_norm_eps", "-1e-5", RT_EFORMAT, "-1e-05"},
    {"routed_scaling_factor", "1e300", RT_EFORMAT, "1e+300"},
    {"mlp_layer_types", "[\"dense\",\"sparse\"]", RT_EFORMAT, "a list of 2"},
    {"mlp_layer_types", "[\"dense\",\"sparse\",\"mixed\"]", RT_EUNSUPPORTED, "mixed"},
    {"mlp_layer_types", "[\"dense\",\"sparse\",null]", RT_EUNSUPPORTED, "null"},
    {"indexer_types", "[\"shared\",\"full\",\"full\"]", RT_EFORMAT, "shared"},
    {"indexer_types", "[\"full\",\"full\",\"half\"]", RT_EUNSUPPORTED, "half"},
    {"indexer_types", "\"full\"", RT_EFORMAT, "full"},
    {"eos_token_id", "384", RT_EFORMAT, "384"},
    {"eos_token_id", "[1,-1]", RT_EFORMAT, "-1"},
    {"eos_token_id", "[1,2,3,4,5,6,7,8,9]", RT_EFORMAT, "9"},
    {"rope_parameters", "[]", RT_EFORMAT, "a list of 0"},
    {"rope_scaling", "{\"type\":\"yarn\"}", RT_EUNSUPPORTED, "yarn"},
};

static void refuses_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
        const refusal *r = &refusals[i];
        json_t *root = load_fixture("nano-bf16/config.json");
        md_config c = {.hidden = 77};
        rt_err err;

        set(root, r->key, r->value);
        if (parse(root, &c, &err) != r->status || strstr(err.text, r->key) == NULL ||
            strstr(err.text, r->found) == NULL || strncmp(err.text, "config.json: ", 13) != 0)
            fail_msg("%s = %s: %s: %s", r->key, r->value != NULL ? r->value : "absent",
                     rt_status_name(err.status), err.text);
        assert_int_equal(c.hidden, 77); /* outputs are written on success only */
        json_decref(root);
    }
}

static void refuses_other_ropes(void **state)
{
    static const refusal ropes[] = {
        {"rope_type", "{\"rope_theta\":1e6,\"rope_type\":\"yarn\"}", RT_EUNSUPPORTED, "yarn"},
        {"partial_rotary_factor", "{\"rope_theta\":1e6,\"partial_rotary_factor\":0.5}",
         RT_EUNSUPPORTED, "0.5"},
        {"rope_theta", "{\"rope_type\":\"default\"}", RT_EFORMAT, "absent"},
        {"rope_theta", "{\"rope_theta\":0}", RT_EFORMAT, "found 0"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(ropes) / sizeof(ropes[0]); i++) {
        json_t *root = load_fixture("nano-bf16/config.json");
        md_config c;
        rt_err err;

        set(root, "rope_parameters", ropes[i].value);
        assert_int_equal(parse(root, &c, &err), ropes[i].status);
        assert_non_null(strstr(err.text, ropes[i].key));
        assert_non_null(strstr(err.text, ropes[i].found));
        json_decref(root);
    }
}

static void refuses_index_sharing_without_a_source(void **state)
{
    static const char *const patterns[] = {"\"SFF\"", "\"FF\"", "\"FFX\"", "7"};

    (void)state;
    for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++) {
        json_t *root = load_fixture("nano-bf16/config.json");
        md_config c;
        rt_err err;

        set(root, "indexer_types", NULL);
        set(root, "index_topk_pattern", patterns[i]);
        assert_int_equal(parse(root, &c, &err), RT_EFORMAT);
        assert_non_null(strstr(err.text, "index_topk_pattern"));
        set(root, "index_topk_pattern", NULL);
        set(root, "index_skip_topk_offset", "0");
        assert_int_equal(parse(root, &c, &err), RT_EFORMAT);
        assert_non_null(strstr(err.text, "index_skip_topk_offset"));
        set(root, "index_skip_topk_offset", NULL);
        assert_int_equal(parse(root, &c, &err), RT_EFORMAT);
        assert_non_null(strstr(err.text, "index_skip_topk_offset"));
        json_decref(root);
    }
}

static void refuses_text_that_is_not_one_json_object(void **state)
{
    static const char *const texts[] = {"", "[]", "7", "{", "{\"a\":1,\"a\":2}", "{} {}", "\xff{}"};

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        md_config c;
        rt_err err = {RT_OK, ""};

        assert_int_equal(md_config_parse(texts[i], strlen(texts[i]), &c, &err), RT_EFORMAT);
        assert_non_null(strstr(err.text, "config.json"));
    }
}

/* A file cut anywhere is an error, never a smaller model. */
static void every_prefix_is_refused(void **state)
{
    char *text = NULL;
    size_t bytes = 0;
    rt_err err;

    (void)state;
    assert_int_equal(
        rt_file_read(MOESAIC_FIXTURES "/nano-bf16/config.json", 1 << 20, &text, &bytes, &err),
        RT_OK);
    while (bytes > 0 && text[bytes - 1] != '}')
        bytes--;
    for (size_t cut = 0; cut < bytes; cut++) {
        md_config c;

        assert_int_equal(md_config_parse(text, cut, &c, &err), RT_EFORMAT);
    }
    free(text);
}

static rt_status generation(const char *text, md_generation *out, rt_err *err)
{
    *err = (rt_err){RT_OK, ""};
    return md_generation_parse(text, strlen(text), out, err);
}

static void generation_overwrites_what_is_given(void **state)
{
    md_generation g = {.temperature = 0.5f, .top_p = 0.25f, .min_p = 0.125f, .top_k = 3};
    rt_err err;

    (void)state;
    assert_int_equal(generation("{\"unknown\":1}", &g, &err), RT_OK);
    assert_true(g.temperature == 0.5f && g.top_p == 0.25f && g.min_p == 0.125f && g.top_k == 3);
    assert_int_equal(generation("{\"temperature\":1,\"top_p\":0.95,\"min_p\":0.1,\"top_k\":40,"
                                "\"eos_token_id\":[1,2]}",
                                &g, &err),
                     RT_OK);
    assert_true(g.temperature == 1.0f && g.top_p == 0.95f && g.min_p == 0.1f && g.top_k == 40);
    assert_int_equal(g.eos_count, 2);
    assert_int_equal(g.eos[1], 2);
    assert_int_equal(generation("{\"eos_token_id\":9}", &g, &err), RT_OK);
    assert_int_equal(g.eos_count, 1);
    assert_int_equal(g.eos[0], 9);
}

static void generation_refuses_values_out_of_range(void **state)
{
    static const refusal cases[] = {
        {"temperature", "{\"temperature\":-1}", RT_EFORMAT, "-1"},
        {"temperature", "{\"temperature\":\"hot\"}", RT_EFORMAT, "hot"},
        {"top_p", "{\"top_p\":1.5}", RT_EFORMAT, "1.5"},
        {"min_p", "{\"min_p\":2}", RT_EFORMAT, "2"},
        {"top_k", "{\"top_k\":-1}", RT_EFORMAT, "-1"},
        {"eos_token_id", "{\"eos_token_id\":\"</s>\"}", RT_EFORMAT, "</s>"},
        {"generation_config.json", "[]", RT_EFORMAT, "object"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        md_generation g = {.temperature = 0.5f};
        rt_err err;

        assert_int_equal(generation(cases[i].value, &g, &err), cases[i].status);
        assert_non_null(strstr(err.text, cases[i].key));
        assert_non_null(strstr(err.text, cases[i].found));
        assert_true(g.temperature == 0.5f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_glm_5_2),
        cmocka_unit_test(reads_glm_5_with_every_layer_full),
        cmocka_unit_test(reads_the_fixtures),
        cmocka_unit_test(frequency_gives_the_list_when_there_is_none),
        cmocka_unit_test(pattern_wins_over_frequency),
        cmocka_unit_test(mlp_types_win_over_the_dense_count),
        cmocka_unit_test(optional_keys_may_be_absent_or_null),
        cmocka_unit_test(eos_may_be_one_id_and_no_mtp_is_fine),
        cmocka_unit_test(refuses_by_name),
        cmocka_unit_test(refuses_other_ropes),
        cmocka_unit_test(refuses_index_sharing_without_a_source),
        cmocka_unit_test(refuses_text_that_is_not_one_json_object),
        cmocka_unit_test(every_prefix_is_refused),
        cmocka_unit_test(generation_overwrites_what_is_given),
        cmocka_unit_test(generation_refuses_values_out_of_range),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
