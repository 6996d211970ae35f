/* test_memory.c - converting a sparse checkpoint of several GB stays within the stated memory. */
#include "model/convert/convert.h"

#include "base/file.h"
#include "base/check.h"
#include "tests/support/temp_dir.h"
#include "tests/support/safetensors_file.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum {
    HIDDEN = 6144,
    VOCAB = 32000,
    INTER = 12288,
    EXPERT_INTER = 2048,
    EXPERTS = 12,
    HEADS = 16,
    NOPE = 192,
    ROPE = 64,
    VALUE = 256,
    Q_RANK = 2048,
    KV_RANK = 512,
    INDEX_HEADS = 32,
    INDEX_DIM = 128,
    MIB = 1 << 20,
    BUDGET_MIB = 64, /* three units in flight: an expert at q4 is 20 MB */
    BASE_MIB = 48,   /* docs/container.md: program, tables of tensors and records */
};

/* ---- a checkpoint of zeros in holes ---- */

typedef struct {
    FILE *header;
    char *text;
    size_t bytes;
    uint64_t offset;
} shard;

static void begin(shard *s)
{
    *s = (shard){0};
    s->header = open_memstream(&s->text, &s->bytes);
    assert_non_null(s->header);
    fprintf(s->header, "{\"__metadata__\":{\"format\":\"pt\"}");
}

static void add(shard *s, const char *name, uint32_t rows, uint32_t cols)
{
    uint64_t bytes = (uint64_t)(rows > 0 ? rows : 1) * cols * 2;

    fprintf(s->header, ",\"%s\":{\"dtype\":\"BF16\",\"shape\":[", name);
    if (rows > 0) fprintf(s->header, "%u,", rows);
    fprintf(s->header, "%u],\"data_offsets\":[%llu,%llu]}", cols, (unsigned long long)s->offset,
            (unsigned long long)(s->offset + bytes));
    s->offset += bytes;
}

static void add_in_layer(shard *s, uint32_t layer, const char *name, uint32_t rows, uint32_t cols)
{
    char full[160];

    snprintf(full, sizeof(full), "model.layers.%u.%s", layer, name);
    add(s, full, rows, cols);
}

static void finish(shard *s, const char *dir, const char *name)
{
    char *path = rt_path_join(dir, name);

    fprintf(s->header, "}");
    fclose(s->header);
    st_raw_write(path, s->text, s->offset);
    free(s->text);
    free(path);
}

static void add_layer(shard *s, uint32_t layer, bool sparse)
{
    add_in_layer(s, layer, "input_layernorm.weight", 0, HIDDEN);
    add_in_layer(s, layer, "post_attention_layernorm.weight", 0, HIDDEN);
    add_in_layer(s, layer, "self_attn.q_a_proj.weight", Q_RANK, HIDDEN);
    add_in_layer(s, layer, "self_attn.q_a_layernorm.weight", 0, Q_RANK);
    add_in_layer(s, layer, "self_attn.q_b_proj.weight", HEADS * (NOPE + ROPE), Q_RANK);
    add_in_layer(s, layer, "self_attn.kv_a_proj_with_mqa.weight", KV_RANK + ROPE, HIDDEN);
    add_in_layer(s, layer, "self_attn.kv_a_layernorm.weight", 0, KV_RANK);
    add_in_layer(s, layer, "self_attn.kv_b_proj.weight", HEADS * (NOPE + VALUE), KV_RANK);
    add_in_layer(s, layer, "self_attn.o_proj.weight", HIDDEN, HEADS * VALUE);
    add_in_layer(s, layer, "self_attn.indexer.wq_b.weight", INDEX_HEADS * INDEX_DIM, Q_RANK);
    add_in_layer(s, layer, "self_attn.indexer.wk.weight", INDEX_DIM, HIDDEN);
    add_in_layer(s, layer, "self_attn.indexer.k_norm.weight", 0, INDEX_DIM);
    add_in_layer(s, layer, "self_attn.indexer.k_norm.bias", 0, INDEX_DIM);
    add_in_layer(s, layer, "self_attn.indexer.weights_proj.weight", INDEX_HEADS, HIDDEN);
    if (!sparse) {
        add_in_layer(s, layer, "mlp.gate_proj.weight", INTER, HIDDEN);
        add_in_layer(s, layer, "mlp.up_proj.weight", INTER, HIDDEN);
        add_in_layer(s, layer, "mlp.down_proj.weight", HIDDEN, INTER);
        return;
    }
    add_in_layer(s, layer, "mlp.gate.weight", EXPERTS, HIDDEN);
    add_in_layer(s, layer, "mlp.gate.e_score_correction_bias", 0, EXPERTS);
    for (uint32_t e = 0; e <= EXPERTS; e++) {
        static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};

        for (int p = 0; p < 3; p++) {
            char name[96];

            if (e == EXPERTS)
                snprintf(name, sizeof(name), "mlp.shared_experts.%s.weight", parts[p]);
            else
                snprintf(name, sizeof(name), "mlp.experts.%u.%s.weight", e, parts[p]);
            add_in_layer(s, layer, name, p == 2 ? HIDDEN : EXPERT_INTER,
                         p == 2 ? EXPERT_INTER : HIDDEN);
        }
    }
}

static void write_config(const char *dir)
{
    char *text = NULL, *from = rt_path_join(MOESAIC_FIXTURES, "nano-bf16/tokenizer.json");
    char *to = rt_path_join(dir, "tokenizer.json");
    int length = asprintf(
        &text,
        "{\"model_type\":\"glm_moe_dsa\",\"vocab_size\":%d,\"hidden_size\":%d,"
        "\"num_hidden_layers\":2,\"intermediate_size\":%d,\"moe_intermediate_size\":%d,"
        "\"mlp_layer_types\":[\"dense\",\"sparse\"],\"n_routed_experts\":%d,"
        "\"num_experts_per_tok\":8,\"n_shared_experts\":1,\"scoring_func\":\"sigmoid\","
        "\"topk_method\":\"noaux_tc\",\"norm_topk_prob\":true,\"routed_scaling_factor\":2.5,"
        "\"n_group\":1,\"topk_group\":1,\"num_attention_heads\":%d,\"num_key_value_heads\":%d,"
        "\"q_lora_rank\":%d,\"kv_lora_rank\":%d,\"qk_nope_head_dim\":%d,\"qk_rope_head_dim\":%d,"
        "\"v_head_dim\":%d,\"rms_norm_eps\":1e-5,\"rope_parameters\":{\"rope_theta\":8000000,"
        "\"rope_type\":\"default\"},\"rope_interleave\":true,\"indexer_rope_interleave\":true,"
        "\"max_position_embeddings\":4096,\"index_n_heads\":%d,\"index_head_dim\":%d,"
        "\"index_topk\":64,\"indexer_types\":[\"full\",\"full\"],\"num_nextn_predict_layers\":0,"
        "\"hidden_act\":\"silu\",\"tie_word_embeddings\":false,\"attention_bias\":false,"
        "\"eos_token_id\":[348]}",
        VOCAB, HIDDEN, INTER, EXPERT_INTER, EXPERTS, HEADS, HEADS, Q_RANK, KV_RANK, NOPE, ROPE,
        VALUE, INDEX_HEADS, INDEX_DIM);

    assert_true(length > 0);
    free(temp_dir_write(dir, "config.json", text, (size_t)length));
    test_file_copy(from, to);
    free(text);
    free(from);
    free(to);
}

static void write_checkpoint(const char *dir)
{
    shard s;

    write_config(dir);
    begin(&s);
    add(&s, "model.embed_tokens.weight", VOCAB, HIDDEN);
    add(&s, "lm_head.weight", VOCAB, HIDDEN);
    add(&s, "model.norm.weight", 0, HIDDEN);
    add_layer(&s, 0, false);
    finish(&s, dir, "model-00001-of-00002.safetensors");
    begin(&s);
    add_layer(&s, 1, true);
    finish(&s, dir, "model-00002-of-00002.safetensors");
}

/* ---- the measurement ---- */

typedef struct {
    const char *source, *target;
} folders;

/* In a child of its own, so that its peak is the conversion's. */
static int convert_in_child(const folders *f, struct rusage *usage)
{
    int wait_status = 0;
    pid_t child;

    fflush(NULL);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        md_convert_spec spec = {
            .source = f->source,
            .target = f->target,
            .expert_format = KN_Q4,
            .dense_format = KN_Q8,
            .quiet = true,
            .memory_bytes = (uint64_t)BUDGET_MIB * MIB,
        };
        rt_team_spec team_spec = {.threads = 4};
        md_convert_result result;
        rt_team *team = NULL;
        rt_err err = {0};
        rt_status status = rt_team_create(&team_spec, &team, &err);

        if (status == RT_OK) status = md_convert(&spec, team, &result, &err);
        if (status != RT_OK) fprintf(stderr, "%s\n", err.text);
        _exit(status == RT_OK ? 0 : 1);
    }
    assert_int_equal(wait4(child, &wait_status, 0, usage), child);
    return WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : -1;
}

static void a_sparse_checkpoint_of_several_gb_converts_in_the_stated_memory(void **state)
{
    char *source = temp_dir_make(), *dir = temp_dir_make();
    char *target = rt_path_join(dir, "t");
    folders f = {source, target};
    struct rusage usage;
    long peak_mib;

    (void)state;
    write_checkpoint(source);
    assert_int_equal(convert_in_child(&f, &usage), 0);
    peak_mib = usage.ru_maxrss / 1024;
    print_message("peak %ld MiB, allowed %d + %d\n", peak_mib, BUDGET_MIB, BASE_MIB);
    assert_true(peak_mib <= BUDGET_MIB + BASE_MIB);
    assert_true(peak_mib > 20); /* it did hold an expert: the measurement measures */
    free(target);
    temp_dir_remove(dir);
    temp_dir_remove(source);
}

#if defined(__SANITIZE_ADDRESS__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sparse_checkpoint_of_several_gb_converts_in_the_stated_memory),
    };

    if (SANITIZED) {
        fprintf(stderr, "skipped: a sanitizer's own memory would be measured\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
