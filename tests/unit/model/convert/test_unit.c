/* test_unit.c - a record's bytes are its tensors, laid out as the kernels read them. */
#include "model/convert/unit.h"

#include "base/file.h"
#include "kernels/quant.h"
#include "kernels/rope.h"
#include "tests/support/numbers.h"
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
    rt_arena *arena;
    uint8_t *record; /* of the last convert, 64-byte aligned */
    uint64_t bytes;
    md_unit_result result;
} rig;

static rig rig_open(const char *name, kn_format experts, kn_format dense)
{
    rig r = {.info = {.expert_format = experts,
                      .dense_format = dense,
                      .embed_format = dense == KN_F32 ? KN_F32 : KN_BF16}};
    char *dir = rt_path_join(MOESAIC_FIXTURES, name);
    char *path = rt_path_join(dir, "config.json");
    char *json = NULL;
    size_t bytes = 0, most = 0;

    assert_int_equal(rt_file_read(path, 1 << 20, &json, &bytes, NULL), RT_OK);
    assert_int_equal(md_config_parse(json, bytes, &r.config, NULL), RT_OK);
    r.info.slice_width = md_slice_width(&r.config);
    assert_int_equal(md_source_open(dir, NULL, 0, &r.source, NULL), RT_OK);
    assert_int_equal(md_plan_create(&r.config, &r.info, &r.plan, NULL), RT_OK);
    assert_int_equal(md_plan_resolve(&r.plan, &r.config, r.source, NULL), RT_OK);
    for (uint64_t i = 0; i < r.plan.count; i++) {
        size_t need = md_unit_memory(&r.plan.units[i], &r.config);

        if (need > most) most = need;
    }
    assert_int_equal(rt_arena_create(most, &r.arena, NULL), RT_OK);
    free(json);
    free(path);
    free(dir);
    return r;
}

static void rig_close(rig *r)
{
    free(r->record);
    rt_arena_free(r->arena);
    md_plan_free(&r->plan);
    md_source_close(r->source);
}

static rt_status collect(void *context, uint64_t offset, const void *data, size_t bytes,
                         rt_err *err)
{
    rig *r = context;

    (void)err;
    assert_int_equal(offset, r->bytes); /* ascending, no gap */
    memcpy(r->record + offset, data, bytes);
    r->bytes += bytes;
    return RT_OK;
}

static const md_unit *convert(rig *r, md_key key)
{
    const md_unit *unit = md_plan_find(&r->plan, key);
    md_unit_sink sink = {collect, r};
    md_hash128 hash;
    rt_err err = {0};

    assert_non_null(unit);
    free(r->record);
    r->record = aligned_alloc(64, (unit->shape.bytes + 127) / 64 * 64);
    r->bytes = 0;
    if (md_unit_convert(unit, &r->config, &r->info, r->source, r->arena, &sink, &r->result, &err) !=
        RT_OK)
        fail_msg("%s", err.text);
    assert_int_equal(r->bytes, unit->shape.bytes);
    assert_int_equal(rt_arena_mark(r->arena), 0);
    hash = md_hash_bytes(r->record, r->bytes);
    assert_memory_equal(&hash, &r->result.hash, sizeof(hash));
    return unit;
}

/* A tensor of the source, whole, malloc'd. */
static float *tensor(const rig *r, const char *name, uint32_t rows, uint32_t cols)
{
    float *out = malloc((size_t)rows * cols * sizeof(float));
    void *raw = malloc(md_source_raw_bytes(rows, cols));
    md_source_matrix matrix;

    assert_int_equal(md_source_resolve(r->source, name, rows, cols, &matrix, NULL), RT_OK);
    assert_int_equal(md_source_read_rows(r->source, &matrix, 0, rows, out, raw, NULL), RT_OK);
    free(raw);
    return out;
}

/* mat must be what packing `expected` [rows][cols] gives. */
static void expect_packed(const kn_qmat *mat, const float *expected, size_t stride)
{
    size_t bytes = kn_qmat_bytes(mat->format, mat->rows, mat->cols, mat->group);
    void *packed = aligned_alloc(64, bytes);

    kn_qmat_pack(mat->format, mat->cols, mat->group, expected, stride, mat->rows, packed);
    assert_memory_equal(mat->data, packed, bytes);
    free(packed);
}

static void matrices_are_packed_as_one(void **state)
{
    static const kn_format formats[] = {KN_F32, KN_BF16, KN_Q8, KN_Q4};

    (void)state;
    for (int f = 0; f < 4; f++) {
        rig r = rig_open("tiny-fp8", KN_Q4, formats[f]);
        uint32_t hidden = r.config.hidden, inter = r.config.inter;
        float *down = tensor(&r, "model.layers.0.mlp.down_proj.weight", hidden, inter);
        const md_unit *unit = convert(&r, (md_key){0, MD_DOWN, 0});
        kn_qmat mat = {formats[f], hidden, inter, unit->shape.group, r.record};

        expect_packed(&mat, down, inter);
        free(down);
        rig_close(&r);
    }
}

static void the_embedding_is_plain_rows(void **state)
{
    rig r = rig_open("nano-f32", KN_Q4, KN_F32);
    float *embed = tensor(&r, "model.embed_tokens.weight", r.config.vocab, r.config.hidden);

    (void)state;
    convert(&r, (md_key){MD_NO_LAYER, MD_EMBED, 0});
    assert_memory_equal(r.record, embed, r.bytes);
    free(embed);
    rig_close(&r);

    r = rig_open("nano-f32", KN_Q4, KN_Q8);
    embed = tensor(&r, "model.embed_tokens.weight", r.config.vocab, r.config.hidden);
    convert(&r, (md_key){MD_NO_LAYER, MD_EMBED, 0});
    assert_int_equal(r.bytes, (uint64_t)r.config.vocab * r.config.hidden * 2);
    for (uint64_t i = 0; i < r.bytes / 2; i++)
        assert_int_equal(((uint16_t *)r.record)[i], kn_bf16_from_f32(embed[i]));
    free(embed);
    rig_close(&r);
}

static void both_halves_of_kv_b_are_stored_along_their_contraction(void **state)
{
    static const kn_format formats[] = {KN_F32, KN_Q8};

    (void)state;
    for (int f = 0; f < 2; f++) {
        rig r = rig_open("tiny-fp8", KN_Q4, formats[f]);
        const md_config *c = &r.config;
        uint32_t head_rows = c->nope_dim + c->v_dim, rank = c->kv_rank;
        float *kv_b =
            tensor(&r, "model.layers.1.self_attn.kv_b_proj.weight", c->heads * head_rows, rank);
        float *turned = malloc((size_t)rank * c->nope_dim * sizeof(float));
        const md_unit *unit = convert(&r, (md_key){1, MD_UK_T, 0});

        for (uint32_t h = 0; h < c->heads; h++) {
            const float *head = kv_b + (size_t)h * head_rows * rank;
            kn_qmat mat = {formats[f], rank, c->nope_dim, unit->shape.group,
                           r.record + h * (unit->shape.bytes / c->heads)};

            for (uint32_t k = 0; k < rank; k++)
                for (uint32_t d = 0; d < c->nope_dim; d++)
                    turned[k * c->nope_dim + d] = head[d * rank + k];
            expect_packed(&mat, turned, c->nope_dim);
        }
        unit = convert(&r, (md_key){1, MD_UV, 0});
        for (uint32_t h = 0; h < c->heads; h++) {
            const float *head = kv_b + ((size_t)h * head_rows + c->nope_dim) * rank;
            kn_qmat mat = {formats[f], c->v_dim, rank, unit->shape.group,
                           r.record + h * (unit->shape.bytes / c->heads)};

            expect_packed(&mat, head, rank);
        }
        free(turned);
        free(kv_b);
        rig_close(&r);
    }
}

static void an_expert_is_its_slices(void **state)
{
    static const kn_format formats[] = {KN_F32, KN_Q4};

    (void)state;
    for (int f = 0; f < 2; f++) {
        rig r = rig_open("tiny-fp8", formats[f], KN_Q8);
        uint32_t hidden = r.config.hidden, inter = r.config.expert_inter;
        md_key key = {3, MD_EXPERT, 9};
        float *gate = tensor(&r, "model.layers.3.mlp.experts.9.gate_proj.weight", inter, hidden);
        float *up = tensor(&r, "model.layers.3.mlp.experts.9.up_proj.weight", inter, hidden);
        float *down = tensor(&r, "model.layers.3.mlp.experts.9.down_proj.weight", hidden, inter);
        md_expert_layout layout;

        convert(&r, key);
        assert_true(r.result.power > 0);
        md_record_expert_layout(&r.config, &r.info, key, &layout);
        assert_true(layout.slices > 1);
        for (uint32_t s = 0; s < layout.slices; s++) {
            const uint8_t *data = r.record + md_slice_offset(&layout, s);
            md_slice slice = md_slice_view(&layout, s, data);
            uint32_t begin = md_slice_begin(&layout, s);
            const uint8_t *end =
                (const uint8_t *)slice.down.data + kn_qmat_bytes(slice.down.format, slice.down.rows,
                                                                 slice.down.cols, slice.down.group);

            expect_packed(&slice.gate, gate + (size_t)begin * hidden, hidden);
            expect_packed(&slice.up, up + (size_t)begin * hidden, hidden);
            expect_packed(&slice.down, down + begin, inter);
            for (; end < data + md_slice_size(&layout, s); end++)
                assert_int_equal(*end, 0); /* the padding */
        }
        free(gate);
        free(up);
        free(down);
        rig_close(&r);
    }
}

/* The head of tiny is larger than a block. */
static void a_matrix_of_several_blocks_is_packed_as_one(void **state)
{
    rig r = rig_open("tiny-fp8", KN_Q4, KN_Q8);
    uint32_t vocab = r.config.vocab, hidden = r.config.hidden;
    float *head = tensor(&r, "lm_head.weight", vocab, hidden);
    const md_unit *unit = convert(&r, (md_key){MD_NO_LAYER, MD_LM_HEAD, 0});
    kn_qmat mat = {KN_Q8, vocab, hidden, unit->shape.group, r.record};

    (void)state;
    assert_true((uint64_t)vocab * hidden * sizeof(float) > MD_UNIT_BLOCK_BYTES);
    expect_packed(&mat, head, hidden);
    free(head);
    rig_close(&r);
}

/* Rows of a slice and of down are cut into several blocks, with a rest. */
static void an_expert_of_many_blocks_is_its_slices(void **state)
{
    enum { HIDDEN = 1040, INTER = 2400 };
    static const char *const names[] = {
        "model.layers.1.mlp.experts.2.gate_proj.weight",
        "model.layers.1.mlp.experts.2.up_proj.weight",
        "model.layers.1.mlp.experts.2.down_proj.weight",
        "model.layers.1.post_attention_layernorm.weight",
    };
    rig r = rig_open("nano-bf16", KN_Q8, KN_Q8);
    md_key key = {1, MD_EXPERT, 2};
    float *values = malloc((size_t)HIDDEN * INTER * sizeof(float));
    char *dir = temp_dir_make();
    char *path = rt_path_join(dir, "model.safetensors");
    test_random random = {11};
    st_items items = {0};
    md_expert_layout layout;
    md_unit *unit;

    (void)state;
    r.config.hidden = HIDDEN;
    r.config.expert_inter = INTER;
    r.info.slice_width = md_slice_width(&r.config);
    test_random_fill(&random, values, (size_t)HIDDEN * INTER, 0.1f);
    for (uint32_t i = 0; i < 4; i++)
        st_items_add(&items, names[i], MD_ST_F32,
                     i == 3   ? 0
                     : i == 2 ? HIDDEN
                              : INTER,
                     i == 2 ? INTER : HIDDEN, values);
    st_items_write(&items, path, ST_ALL_SHARDS);
    md_source_close(r.source);
    assert_int_equal(md_source_open(dir, NULL, 0, &r.source, NULL), RT_OK);
    md_plan_free(&r.plan);
    assert_int_equal(md_plan_create(&r.config, &r.info, &r.plan, NULL), RT_OK);
    unit = md_plan_find(&r.plan, key);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(md_source_resolve(r.source, names[i],
                                           i == 3   ? 1
                                           : i == 2 ? HIDDEN
                                                    : INTER,
                                           i == 2 ? INTER : HIDDEN, &unit->source[i], NULL),
                         RT_OK);
    unit->source_count = 4;
    rt_arena_free(r.arena);
    assert_int_equal(rt_arena_create(md_unit_memory(unit, &r.config), &r.arena, NULL), RT_OK);
    convert(&r, key);
    md_record_expert_layout(&r.config, &r.info, key, &layout);
    assert_true((uint64_t)layout.slice_width * HIDDEN * sizeof(float) > MD_UNIT_BLOCK_BYTES);
    for (uint32_t s = 0; s < layout.slices; s++) {
        md_slice slice = md_slice_view(&layout, s, r.record + md_slice_offset(&layout, s));
        uint32_t begin = md_slice_begin(&layout, s);

        expect_packed(&slice.gate, values + (size_t)begin * HIDDEN, HIDDEN);
        expect_packed(&slice.up, values + (size_t)begin * HIDDEN, HIDDEN);
        expect_packed(&slice.down, values + begin, INTER);
    }
    st_items_free(&items);
    free(values);
    free(path);
    temp_dir_remove(dir);
    rig_close(&r);
}

static void vectors_and_computed_records_are_plain_f32(void **state)
{
    rig r = rig_open("nano-bf16", KN_Q4, KN_Q8);
    uint32_t dim = r.config.index_dim;
    float *weight = tensor(&r, "model.layers.0.self_attn.indexer.k_norm.weight", 1, dim);
    float *bias = tensor(&r, "model.layers.0.self_attn.indexer.k_norm.bias", 1, dim);
    float inv[64];

    (void)state;
    convert(&r, (md_key){0, MD_INDEX_K_NORM, 0});
    assert_memory_equal(r.record, weight, dim * sizeof(float));
    assert_memory_equal(r.record + dim * sizeof(float), bias, dim * sizeof(float));
    kn_rope_inv_freq(r.config.rope_theta, r.config.rope_dim, inv);
    convert(&r, (md_key){MD_NO_LAYER, MD_ROPE_INV_FREQ, 0});
    assert_memory_equal(r.record, inv, r.config.rope_dim / 2 * sizeof(float));
    free(weight);
    free(bias);
    rig_close(&r);
}

static void every_record_of_a_model_converts_within_its_stated_memory(void **state)
{
    rig r = rig_open("wide-bf16", KN_Q4, KN_BF16);

    (void)state;
    for (uint64_t i = 0; i < r.plan.count; i += 7) {
        size_t need = md_unit_memory(&r.plan.units[i], &r.config);

        rt_arena_free(r.arena);
        assert_int_equal(rt_arena_create(need, &r.arena, NULL), RT_OK); /* takes assert it */
        convert(&r, r.plan.units[i].key);
    }
    rig_close(&r);
}

static rt_status refuse(void *context, uint64_t offset, const void *data, size_t bytes, rt_err *err)
{
    (void)context;
    (void)offset;
    (void)data;
    (void)bytes;
    return rt_fail(err, RT_ENOSPACE, "full");
}

static void an_error_of_the_sink_ends_the_unit(void **state)
{
    rig r = rig_open("nano-bf16", KN_Q4, KN_Q8);
    md_unit_sink sink = {refuse, NULL};
    md_unit_result result = {.power = -1};
    rt_err err = {0};

    (void)state;
    for (uint64_t i = 0; i < r.plan.count; i++) {
        assert_int_equal(md_unit_convert(&r.plan.units[i], &r.config, &r.info, r.source, r.arena,
                                         &sink, &result, &err),
                         RT_ENOSPACE);
        assert_int_equal(rt_arena_mark(r.arena), 0);
    }
    assert_true(result.power == -1); /* untouched */
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matrices_are_packed_as_one),
        cmocka_unit_test(the_embedding_is_plain_rows),
        cmocka_unit_test(both_halves_of_kv_b_are_stored_along_their_contraction),
        cmocka_unit_test(an_expert_is_its_slices),
        cmocka_unit_test(a_matrix_of_several_blocks_is_packed_as_one),
        cmocka_unit_test(an_expert_of_many_blocks_is_its_slices),
        cmocka_unit_test(vectors_and_computed_records_are_plain_f32),
        cmocka_unit_test(every_record_of_a_model_converts_within_its_stated_memory),
        cmocka_unit_test(an_error_of_the_sink_ends_the_unit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
