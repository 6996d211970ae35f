/* import.c - looks through a quantised model with a plan whose formats do not matter yet. */
#include "model/convert/import.h"

#include "base/check.h"
#include "base/file.h"
#include "model/convert/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIG_BYTES_MAX = 16 << 20, NAMED_MAX = 3 /* shards that an error names */ };

/* The two parts of a model that the engine's own converter leaves out unless asked. */
enum { PART_INDEXER, PART_MTP, PART_COUNT, PART_NONE = PART_COUNT };

static int part_of(const md_config *config, md_key key)
{
    if (key.layer == MD_NO_LAYER) return PART_NONE;
    if (key.layer >= config->layers) return PART_MTP;
    return key.kind >= MD_INDEX_Q && key.kind <= MD_INDEX_WEIGHT ? PART_INDEXER : PART_NONE;
}

/* ---- what is missing ---- */

typedef struct {
    const md_config *config;
    const md_source *source;
    uint64_t missing[PART_COUNT], elsewhere[PART_COUNT];
    char first[PART_COUNT][100];
    bool *gone; /* owned: shards of the second directory that are needed and not there */
} completeness;

static void look_at_name(void *context, const md_unit *unit, const char *name)
{
    completeness *c = context;
    int part = part_of(c->config, unit->key);
    uint32_t shard = 0;

    /* A tensor that several records are made of counts once. */
    if (part == PART_NONE || unit->key.kind == MD_UV) return;
    if (unit->shape.form == MD_FORM_EXPERT && strstr(name, "_layernorm.") != NULL) return;
    switch (md_source_find_place(c->source, name, &shard)) {
    case MD_SOURCE_OWN:
        break;
    case MD_SOURCE_OTHER:
        c->elsewhere[part]++;
        break;
    case MD_SOURCE_OTHER_GONE:
        c->gone[shard] = true;
        break;
    case MD_SOURCE_NOWHERE:
        if (c->missing[part]++ == 0) snprintf(c->first[part], sizeof(c->first[part]), "%s", name);
        break;
    }
}

static rt_status fail_missing(const completeness *c, const char *dir, const char *other,
                              rt_err *err)
{
    static const char *const names[] = {"the indexer", "the MTP layer"};
    char what[320] = "";

    for (int part = 0; part < PART_COUNT; part++) {
        size_t used = strlen(what);

        if (c->missing[part] > 0)
            snprintf(what + used, sizeof(what) - used, "%s%llu tensors of %s (%s for one)",
                     used > 0 ? " and " : "", (unsigned long long)c->missing[part], names[part],
                     c->first[part]);
    }
    if (other != NULL)
        return rt_fail(err, RT_EFORMAT, "%s are neither in %.80s nor in %.80s", what, dir, other);
    return rt_fail(err, RT_EFORMAT,
                   "%.80s lacks %s. Give the original checkpoint: --indexer-from HF_DIR; it needs "
                   "config.json, its index and only the shards with these tensors",
                   dir, what);
}

static rt_status fail_gone(const completeness *c, const char *other, rt_err *err)
{
    char files[NAMED_MAX * 72 + 8] = "";
    uint64_t count = 0;

    for (uint32_t s = 0; s < md_source_shard_count(c->source); s++) {
        size_t used = strlen(files);

        if (!c->gone[s] || ++count > NAMED_MAX) continue;
        snprintf(files + used, sizeof(files) - used, "%s%.64s", count > 1 ? ", " : "",
                 md_source_shard_at(c->source, s)->name + sizeof(MD_SOURCE_OTHER_PREFIX) - 1);
    }
    if (count == 0) return RT_OK;
    return rt_fail(err, RT_EFORMAT,
                   "--indexer-from %.80s: %llu shards with tensors of the indexer or the MTP layer "
                   "are not there (%s%s): put them there and run again",
                   other, (unsigned long long)count, files, count > NAMED_MAX ? ", ..." : "");
}

static rt_status check_complete(const md_plan *plan, const md_config *config,
                                const md_source *source, const char *dir, const char *other,
                                md_import_summary *summary, rt_err *err)
{
    completeness c = {.config = config, .source = source};
    rt_status status = RT_OK;

    c.gone = calloc(md_source_shard_count(source) + 1, sizeof(*c.gone));
    if (c.gone == NULL) return rt_fail(err, RT_ENOMEM, "check of %s", dir);
    md_plan_visit_names(plan, config, look_at_name, &c);
    if (c.missing[PART_INDEXER] + c.missing[PART_MTP] > 0)
        status = fail_missing(&c, dir, other, err);
    else if (other != NULL)
        status = fail_gone(&c, other, err);
    free(c.gone);
    summary->indexer_elsewhere = c.elsewhere[PART_INDEXER];
    summary->mtp_elsewhere = c.elsewhere[PART_MTP];
    return status;
}

/* ---- the second directory is of the same model ---- */

static rt_status check_same(const md_config *a, const md_config *b, const char *other, rt_err *err)
{
    const struct {
        const char *name;
        uint32_t here, there;
    } sizes[] = {
        {"hidden_size", a->hidden, b->hidden},
        {"num_hidden_layers", a->layers, b->layers},
        {"num_nextn_predict_layers", a->mtp_layers, b->mtp_layers},
        {"vocab_size", a->vocab, b->vocab},
        {"num_attention_heads", a->heads, b->heads},
        {"q_lora_rank", a->q_rank, b->q_rank},
        {"kv_lora_rank", a->kv_rank, b->kv_rank},
        {"qk_nope_head_dim", a->nope_dim, b->nope_dim},
        {"qk_rope_head_dim", a->rope_dim, b->rope_dim},
        {"v_head_dim", a->v_dim, b->v_dim},
        {"index_n_heads", a->index_heads, b->index_heads},
        {"index_head_dim", a->index_dim, b->index_dim},
        {"index_topk", a->index_topk, b->index_topk},
        {"intermediate_size", a->inter, b->inter},
        {"moe_intermediate_size", a->expert_inter, b->expert_inter},
        {"n_routed_experts", a->experts, b->experts},
        {"n_shared_experts", a->shared_experts, b->shared_experts},
    };

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        if (sizes[i].here != sizes[i].there)
            return rt_fail(
                err, RT_EFORMAT,
                "--indexer-from %s is another model: %s is %u there and %u in the source", other,
                sizes[i].name, sizes[i].there, sizes[i].here);
    if (strcmp(a->model_type, b->model_type) != 0 ||
        memcmp(a->index_full, b->index_full, sizeof(a->index_full)) != 0 ||
        memcmp(a->sparse, b->sparse, sizeof(a->sparse)) != 0)
        return rt_fail(err, RT_EFORMAT,
                       "--indexer-from %s is another model: its config.json has other layers",
                       other);
    return RT_OK;
}

static rt_status check_other_config(const char *other, const md_config *config, rt_err *err)
{
    char *path = rt_path_join(other, "config.json"), *text = NULL;
    md_config there;
    size_t bytes = 0;
    rt_status status;

    if (path == NULL) return rt_fail(err, RT_ENOMEM, "%s", other);
    status = rt_file_read(path, CONFIG_BYTES_MAX, &text, &bytes, err);
    if (status == RT_OK) {
        status = md_config_parse(text, bytes, &there, err);
        if (status != RT_OK) rt_err_prefix(err, "%s: ", path);
    }
    free(text);
    free(path);
    return status == RT_OK ? check_same(config, &there, other, err) : status;
}

/* ---- formats ---- */

/* The matrices that share one format. */
typedef struct {
    const char *values, *integers; /* a tensor of each, NULL: none */
    uint32_t bits;                 /* of the widest integers */
} matrix_class;

typedef struct {
    const md_config *config;
    const md_plan *plan;
    const md_source *source;
    md_import *import; /* NULL: nothing is counted */
    matrix_class experts, dense;
} survey;

static bool is_matrix(const md_unit *unit, uint32_t part)
{
    if (unit->shape.form == MD_FORM_EXPERT) return part <= MD_UNIT_DOWN;
    return unit->shape.form == MD_FORM_MATRIX || unit->shape.form == MD_FORM_HEADS;
}

/* Records that are f32 whatever the formats are; of kv_b the other half decides. */
static bool is_always_f32(const md_unit *unit)
{
    return unit->shape.form == MD_FORM_VECTOR || unit->shape.form == MD_FORM_ROWS ||
           unit->key.kind == MD_UK_T || unit->key.kind == MD_ROUTER ||
           unit->key.kind == MD_INDEX_WEIGHT;
}

static void count_tensor(survey *s, const md_unit *unit, const md_source_matrix *matrix)
{
    md_import_summary *sum = &s->import->summary;

    if (matrix->bits > 0 && is_always_f32(unit)) sum->expanded++;
    if (unit->key.kind == MD_UK_T) return; /* the same tensor as uv's */
    if (matrix->bits == 0)
        sum->values++;
    else if (matrix->bits == 8)
        sum->int8_rows++;
    else if (matrix->scale_group == 0)
        sum->int4_rows++;
    else
        sum->int4_groups++;
}

static bool is_routed(const md_config *config, const md_unit *unit)
{
    return unit->key.kind == MD_EXPERT && unit->key.layer < config->layers;
}

static void survey_unit(survey *s, const md_unit *unit)
{
    matrix_class *class = is_routed(s->config, unit) ? &s->experts : &s->dense;

    for (uint32_t i = 0; i < unit->source_count; i++) {
        const md_source_matrix *matrix = &unit->source[i];
        const char *name = md_source_tensor_name(s->source, matrix->weight);

        if (md_source_shard_is_other(s->source, md_source_tensor_shard(s->source, matrix->weight)))
            continue;
        if (unit->shape.form != MD_FORM_EXPERT || i <= MD_UNIT_DOWN) count_tensor(s, unit, matrix);
        if (!is_matrix(unit, i) || is_always_f32(unit)) continue;
        if (matrix->bits == 0 && class->values == NULL) class->values = name;
        if (matrix->bits > 0 && class->integers == NULL) class->integers = name;
        if (matrix->bits > class->bits) class->bits = matrix->bits;
    }
}

static rt_status choose_format(const matrix_class *class, const char *what, kn_format *out,
                               rt_err *err)
{
    if (class->values != NULL && class->integers != NULL)
        return rt_fail(err, RT_EUNSUPPORTED,
                       "%.100s is stored as values and %.100s as integers: all %s of a container "
                       "have one format. Convert the original checkpoint instead (moesaic convert)",
                       class->values, class->integers, what);
    *out = class->bits == 0 ? KN_F32 : class->bits == 8 ? KN_Q8F32 : KN_Q4F32;
    return RT_OK;
}

/* ---- groups ---- */

static rt_status check_unit_groups(const survey *s, const md_container_info *info,
                                   const md_unit *unit, rt_err *err)
{
    bool expert = unit->shape.form == MD_FORM_EXPERT;
    md_expert_layout layout = {0};

    if (is_always_f32(unit)) return RT_OK;
    if (expert) md_record_expert_layout(s->config, info, unit->key, &layout);
    for (uint32_t i = 0; i < unit->source_count; i++) {
        const md_source_matrix *matrix = &unit->source[i];
        uint32_t ours = !expert             ? unit->shape.group
                        : i == MD_UNIT_DOWN ? layout.inter_group
                                            : layout.hidden_group;

        /* An expert's norm may be stored as integers too, but is read as values. */
        if (!is_matrix(unit, i) || matrix->scale_group == 0 || matrix->scale_group % ours == 0)
            continue;
        return rt_fail(err, RT_EUNSUPPORTED,
                       "%s has a scale for each %u columns, expected a multiple of %u: convert the "
                       "original checkpoint instead (moesaic convert), or quantise it again with "
                       "groups of 64",
                       md_source_tensor_name(s->source, matrix->weight), matrix->scale_group, ours);
    }
    return RT_OK;
}

static rt_status survey_all(survey *s, const md_container_info *info, rt_err *err)
{
    for (uint64_t i = 0; i < s->plan->count; i++)
        survey_unit(s, &s->plan->units[i]);
    RT_TRY(choose_format(&s->experts, "routed experts", &s->import->expert_format, err));
    RT_TRY(
        choose_format(&s->dense, "matrices but the routed experts", &s->import->dense_format, err));
    for (uint64_t i = 0; i < s->plan->count; i++)
        RT_TRY(check_unit_groups(s, info, &s->plan->units[i], err));
    return RT_OK;
}

/* ---- once more, when it is opened to be read ---- */

static bool holds(kn_format format, uint32_t bits)
{
    return format == KN_F32 ? bits == 0 : format == KN_Q4F32 ? bits == 4 : bits > 0;
}

rt_status md_import_check(const md_plan *plan, const md_config *config,
                          const md_container_info *info, const md_source *source, rt_err *err)
{
    const survey s = {.config = config, .plan = plan, .source = source};

    for (uint64_t n = 0; n < plan->count; n++) {
        const md_unit *unit = &plan->units[n];
        kn_format format = is_routed(config, unit) ? info->expert_format : info->dense_format;

        if (unit->done) continue;
        RT_TRY(check_unit_groups(&s, info, unit, err));
        for (uint32_t i = 0; i < unit->source_count; i++) {
            const md_source_matrix *matrix = &unit->source[i];

            if (!is_matrix(unit, i) || is_always_f32(unit) || holds(format, matrix->bits) ||
                md_source_shard_is_other(source, md_source_tensor_shard(source, matrix->weight)))
                continue;
            return rt_fail(
                err, RT_EINVAL,
                "%s is stored in another way than a moment ago: the source changed while "
                "it was looked at",
                md_source_tensor_name(source, matrix->weight));
        }
    }
    return RT_OK;
}

rt_status md_import_look(const char *dir, const char *other, const md_config *config,
                         md_import *out, rt_err *err)
{
    md_foreign_spec spec = {.dir = dir, .other = other, .layers = config->layers};
    md_import found = {0};
    md_container_info info;
    md_plan plan = {0};
    md_source *source = NULL;
    rt_status status = RT_OK;

    if (other != NULL) RT_TRY(check_other_config(other, config, err));
    md_container_info_init(&info, config, KN_F32, KN_F32);
    status = md_source_open_foreign(&spec, NULL, 0, &source, err);
    if (status == RT_OK) status = md_plan_create(config, &info, &plan, err);
    if (status == RT_OK)
        status = check_complete(&plan, config, source, dir, other, &found.summary, err);
    if (status == RT_OK) status = md_plan_resolve(&plan, config, source, err);
    if (status == RT_OK) {
        survey s = {.config = config, .plan = &plan, .source = source, .import = &found};

        status = survey_all(&s, &info, err);
    }
    md_plan_free(&plan);
    md_source_close(source);
    if (status == RT_OK) *out = found;
    return status;
}
