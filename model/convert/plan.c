/* plan.c - records to source tensors: the table of names of the release. */
#include "model/convert/plan.h"

#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 128 };

static const struct {
    md_record_kind kind;
    const char *name; /* after "model.layers.L." where the record has a layer */
} names[] = {
    {MD_EMBED, "model.embed_tokens.weight"},
    {MD_LM_HEAD, "lm_head.weight"},
    {MD_FINAL_NORM, "model.norm.weight"},
    {MD_INPUT_NORM, "input_layernorm.weight"},
    {MD_POST_NORM, "post_attention_layernorm.weight"},
    {MD_Q_A, "self_attn.q_a_proj.weight"},
    {MD_Q_A_NORM, "self_attn.q_a_layernorm.weight"},
    {MD_Q_B, "self_attn.q_b_proj.weight"},
    {MD_KV_A, "self_attn.kv_a_proj_with_mqa.weight"},
    {MD_KV_A_NORM, "self_attn.kv_a_layernorm.weight"},
    {MD_UK_T, "self_attn.kv_b_proj.weight"},
    {MD_UV, "self_attn.kv_b_proj.weight"},
    {MD_O, "self_attn.o_proj.weight"},
    {MD_INDEX_Q, "self_attn.indexer.wq_b.weight"},
    {MD_INDEX_K, "self_attn.indexer.wk.weight"},
    {MD_INDEX_K_NORM, "self_attn.indexer.k_norm.weight"}, /* and .bias */
    {MD_INDEX_WEIGHT, "self_attn.indexer.weights_proj.weight"},
    {MD_GATE, "mlp.gate_proj.weight"},
    {MD_UP, "mlp.up_proj.weight"},
    {MD_DOWN, "mlp.down_proj.weight"},
    {MD_ROUTER, "mlp.gate.weight"},
    {MD_ROUTER_BIAS, "mlp.gate.e_score_correction_bias"},
    {MD_ENORM, "enorm.weight"},
    {MD_HNORM, "hnorm.weight"},
    {MD_HEAD_NORM, "shared_head.norm.weight"},
    {MD_EH_PROJ, "eh_proj.weight"},
};

/* Copies of the embedding and the head that some makers put into MTP layers; SPEC 2.2. */
static const char *const accepted_copies[] = {"embed_tokens.weight", "shared_head.head.weight"};

/* ---- the units ---- */

rt_status md_plan_create(const md_config *config, const md_container_info *info, md_plan *out,
                         rt_err *err)
{
    md_manifest_entry *entries = NULL;
    md_plan plan = {0};
    rt_status status;

    RT_TRY(md_manifest_expected(config, info, &entries, &plan.count, err));
    RT_ASSERT(plan.count < MD_SOURCE_NONE);
    plan.units = calloc(plan.count + 1, sizeof(*plan.units));
    plan.order = calloc(plan.count + 1, sizeof(*plan.order));
    if (plan.units == NULL || plan.order == NULL) {
        status = rt_fail(err, RT_ENOMEM, "plan of %llu records", (unsigned long long)plan.count);
        goto fail;
    }
    for (uint64_t i = 0; i < plan.count; i++) {
        md_unit *unit = &plan.units[i];
        bool known = md_record_shape(config, info, entries[i].key, &unit->shape);

        RT_ASSERT(known && unit->shape.bytes == entries[i].bytes);
        unit->key = entries[i].key;
        plan.order[i] = (uint32_t)i;
        plan.target_bytes += unit->shape.bytes;
    }
    free(entries);
    *out = plan;
    return RT_OK;
fail:
    free(entries);
    md_plan_free(&plan);
    return status;
}

void md_plan_free(md_plan *plan)
{
    free(plan->units);
    free(plan->order);
    *plan = (md_plan){0};
}

static int compare_key(const void *a, const void *b)
{
    return md_key_compare(((const md_unit *)a)->key, ((const md_unit *)b)->key);
}

md_unit *md_plan_find(const md_plan *plan, md_key key)
{
    md_unit wanted = {.key = key};

    return bsearch(&wanted, plan->units, plan->count, sizeof(wanted), compare_key);
}

void md_plan_visit_tensors(const md_unit *unit, md_plan_visit visit, void *context)
{
    for (uint32_t i = 0; i < unit->source_count; i++) {
        visit(context, unit->source[i].weight);
        if (unit->source[i].scale != MD_SOURCE_NONE) visit(context, unit->source[i].scale);
    }
}

/* ---- names ---- */

/* What a unit is made of: names, and the shape each must have. */
typedef struct {
    struct {
        char name[NAME_BYTES];
        uint32_t rows, cols;
    } part[MD_UNIT_SOURCES_MAX];
    uint32_t count;
} recipe;

static void add_part(recipe *out, md_key key, const char *name, uint32_t rows, uint32_t cols)
{
    char *text = out->part[out->count].name;
    int length = key.layer == MD_NO_LAYER
                     ? snprintf(text, NAME_BYTES, "%s", name)
                     : snprintf(text, NAME_BYTES, "model.layers.%u.%s", key.layer, name);

    RT_ASSERT(length > 0 && length < NAME_BYTES && out->count < MD_UNIT_SOURCES_MAX);
    out->part[out->count].rows = rows;
    out->part[out->count].cols = cols;
    out->count++;
}

static void expert_recipe(const md_unit *unit, recipe *out)
{
    static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
    uint32_t inter = unit->shape.rows, hidden = unit->shape.cols;

    for (uint32_t i = 0; i < 3; i++) {
        char name[NAME_BYTES / 2];

        if (unit->key.kind == MD_SHARED)
            snprintf(name, sizeof(name), "mlp.shared_experts.%s.weight", parts[i]);
        else
            snprintf(name, sizeof(name), "mlp.experts.%u.%s.weight", unit->key.index, parts[i]);
        add_part(out, unit->key, name, i == MD_UNIT_DOWN ? hidden : inter,
                 i == MD_UNIT_DOWN ? inter : hidden);
    }
    add_part(out, unit->key, "post_attention_layernorm.weight", 1, hidden);
}

static void make_recipe(const md_config *config, const md_unit *unit, recipe *out)
{
    const char *name = NULL;
    const md_shape *shape = &unit->shape;

    out->count = 0;
    if (unit->key.kind == MD_ROPE_INV_FREQ) return;
    if (shape->form == MD_FORM_EXPERT) {
        expert_recipe(unit, out);
        return;
    }
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if ((uint16_t)names[i].kind == unit->key.kind) name = names[i].name;
    RT_ASSERT(name != NULL);
    if (shape->form == MD_FORM_HEADS)
        add_part(out, unit->key, name, config->heads * (config->nope_dim + config->v_dim),
                 config->kv_rank);
    else if (unit->key.kind == MD_INDEX_K_NORM) {
        add_part(out, unit->key, name, 1, shape->cols);
        add_part(out, unit->key, "self_attn.indexer.k_norm.bias", 1, shape->cols);
    } else
        add_part(out, unit->key, name, shape->rows, shape->cols);
}

/* ---- resolving ---- */

typedef struct {
    const md_source *source;
    uint32_t last;
} last_shard;

static void note_shard(void *context, uint32_t tensor)
{
    last_shard *state = context;
    uint32_t shard = md_source_tensor_shard(state->source, tensor);

    if (shard > state->last) state->last = shard;
}

static rt_status resolve_unit(md_unit *unit, const md_config *config, md_source *source,
                              rt_err *err)
{
    last_shard state = {.source = source};
    recipe parts;

    make_recipe(config, unit, &parts);
    for (uint32_t i = 0; i < parts.count; i++)
        RT_TRY(md_source_resolve(source, parts.part[i].name, parts.part[i].rows, parts.part[i].cols,
                                 &unit->source[i], err));
    unit->source_count = parts.count;
    md_plan_visit_tensors(unit, note_shard, &state);
    unit->last_shard = state.last;
    return RT_OK;
}

/* A unit that is done needs no tensor, but its shards may be deleted only after it was read back.
 */
static void look_up_unit(md_unit *unit, const md_config *config, md_source *source)
{
    recipe parts;

    make_recipe(config, unit, &parts);
    for (uint32_t i = 0; i < parts.count; i++)
        if (md_source_lookup_matrix(source, parts.part[i].name, &unit->source[unit->source_count]))
            unit->source_count++;
}

void md_plan_visit_names(const md_plan *plan, const md_config *config, md_plan_name_visit visit,
                         void *context)
{
    for (uint64_t i = 0; i < plan->count; i++) {
        recipe parts;

        make_recipe(config, &plan->units[i], &parts);
        for (uint32_t p = 0; p < parts.count; p++)
            visit(context, &plan->units[i], parts.part[p].name);
    }
}

static void visit_gone_part(const md_source *source, const md_unit *unit, const char *name,
                            md_plan_gone_visit visit, void *context)
{
    uint32_t shard = md_source_gone_shard(source, name);

    if (shard != MD_SOURCE_NONE) visit(context, unit, shard);
}

void md_plan_visit_gone(const md_plan *plan, const md_config *config, const md_source *source,
                        md_plan_gone_visit visit, void *context)
{
    for (uint64_t i = 0; i < plan->count; i++) {
        const md_unit *unit = &plan->units[i];
        recipe parts;

        if (unit->done) continue;
        make_recipe(config, unit, &parts);
        for (uint32_t p = 0; p < parts.count; p++) {
            char name[NAME_BYTES + 16];

            snprintf(name, sizeof(name), "%s_scale_inv", parts.part[p].name);
            visit_gone_part(source, unit, parts.part[p].name, visit, context);
            visit_gone_part(source, unit, name, visit, context);
        }
    }
}

static void ignore_copies(const md_config *config, md_source *source)
{
    for (uint32_t layer = config->layers; layer < md_config_layers_total(config); layer++) {
        for (size_t i = 0; i < sizeof(accepted_copies) / sizeof(accepted_copies[0]); i++) {
            char name[NAME_BYTES];
            md_source_matrix unused;

            snprintf(name, sizeof(name), "model.layers.%u.%s", layer, accepted_copies[i]);
            (void)md_source_lookup_matrix(source, name, &unused);
        }
    }
}

static int compare_work(const void *a, const void *b, void *context)
{
    const md_unit *units = context;
    uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;

    if (units[i].last_shard != units[j].last_shard)
        return units[i].last_shard < units[j].last_shard ? -1 : 1;
    return i < j ? -1 : i > j; /* numbers are in key order */
}

rt_status md_plan_resolve(md_plan *plan, const md_config *config, md_source *source, rt_err *err)
{
    for (uint64_t i = 0; i < plan->count; i++) {
        if (plan->units[i].done)
            look_up_unit(&plan->units[i], config, source);
        else
            RT_TRY(resolve_unit(&plan->units[i], config, source, err));
    }
    ignore_copies(config, source);
    qsort_r(plan->order, plan->count, sizeof(plan->order[0]), compare_work, plan->units);
    return RT_OK;
}
