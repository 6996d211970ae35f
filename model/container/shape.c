/* shape.c - the table of shapes: one case a record kind. */
#include "model/container/shape.h"

#include "base/check.h"

static void set_vector(md_shape *out, uint32_t rows, uint32_t cols)
{
    out->form = MD_FORM_VECTOR;
    out->format = KN_F32;
    out->rows = rows;
    out->cols = cols;
    out->bytes = (uint64_t)rows * cols * sizeof(float);
}

static void set_rows(md_shape *out, kn_format format, uint32_t rows, uint32_t cols)
{
    RT_ASSERT(format == KN_F32 || format == KN_BF16);
    out->form = MD_FORM_ROWS;
    out->format = format;
    out->rows = rows;
    out->cols = cols;
    out->bytes = (uint64_t)rows * cols * (format == KN_F32 ? sizeof(float) : sizeof(uint16_t));
}

static void set_matrix(md_shape *out, kn_format format, uint32_t rows, uint32_t cols)
{
    out->form = MD_FORM_MATRIX;
    out->format = format;
    out->rows = rows;
    out->cols = cols;
    out->group = kn_group(cols, 0);
    out->bytes = kn_qmat_bytes(format, rows, cols, out->group);
}

static void set_heads(md_shape *out, kn_format format, uint32_t count, uint32_t rows, uint32_t cols)
{
    set_matrix(out, format, rows, cols);
    out->form = MD_FORM_HEADS;
    out->count = count;
    out->bytes *= count;
}

static void set_expert(md_shape *out, const md_expert_layout *layout)
{
    out->form = MD_FORM_EXPERT;
    out->format = layout->format;
    out->rows = layout->inter;
    out->cols = layout->hidden;
    out->group = layout->hidden_group;
    out->bytes = layout->record_bytes;
}

void md_record_expert_layout(const md_config *config, const md_container_info *info, md_key key,
                             md_expert_layout *out)
{
    bool shared = key.kind == MD_SHARED;
    /* An int4 MTP layer drafts nothing worth verifying, so its experts have the dense format. */
    bool dense = shared || key.layer >= config->layers;
    uint32_t inter = shared ? config->expert_inter * config->shared_experts : config->expert_inter;

    RT_ASSERT(shared || key.kind == MD_EXPERT);
    md_expert_layout_init(out, dense ? info->dense_format : info->expert_format, config->hidden,
                          inter, info->slice_width);
}

static bool global_shape(const md_config *c, const md_container_info *info, uint16_t kind,
                         md_shape *out)
{
    switch (kind) {
    case MD_EMBED:
        set_rows(out, info->embed_format, c->vocab, c->hidden);
        return true;
    case MD_LM_HEAD:
        set_matrix(out, info->dense_format, c->vocab, c->hidden);
        return true;
    case MD_FINAL_NORM:
        set_vector(out, 1, c->hidden);
        return true;
    case MD_ROPE_INV_FREQ:
        set_vector(out, 1, c->rope_dim / 2);
        return true;
    default:
        return false;
    }
}

static bool attention_shape(const md_config *c, kn_format dense, uint16_t kind, md_shape *out)
{
    switch (kind) {
    case MD_INPUT_NORM:
    case MD_POST_NORM:
        set_vector(out, 1, c->hidden);
        return true;
    case MD_Q_A:
        set_matrix(out, dense, c->q_rank, c->hidden);
        return true;
    case MD_Q_A_NORM:
        set_vector(out, 1, c->q_rank);
        return true;
    case MD_Q_B:
        set_matrix(out, dense, c->heads * (c->nope_dim + c->rope_dim), c->q_rank);
        return true;
    case MD_KV_A:
        set_matrix(out, dense, c->kv_rank + c->rope_dim, c->hidden);
        return true;
    case MD_KV_A_NORM:
        set_vector(out, 1, c->kv_rank);
        return true;
    case MD_UK_T:
        /* Scales of weights that were quantised elsewhere lie along the other axis of kv_b. */
        set_heads(out, kn_format_has_f32_scales(dense) ? KN_F32 : dense, c->heads, c->kv_rank,
                  c->nope_dim);
        return true;
    case MD_UV:
        set_heads(out, dense, c->heads, c->v_dim, c->kv_rank);
        return true;
    case MD_O:
        set_matrix(out, dense, c->hidden, c->heads * c->v_dim);
        return true;
    default:
        return false;
    }
}

static bool indexer_shape(const md_config *c, kn_format dense, uint16_t kind, md_shape *out)
{
    switch (kind) {
    case MD_INDEX_Q:
        set_matrix(out, dense, c->index_heads * c->index_dim, c->q_rank);
        return true;
    case MD_INDEX_K:
        set_matrix(out, dense, c->index_dim, c->hidden);
        return true;
    case MD_INDEX_K_NORM:
        set_vector(out, 2, c->index_dim);
        return true;
    case MD_INDEX_WEIGHT:
        set_matrix(out, KN_F32, c->index_heads, c->hidden);
        return true;
    default:
        return false;
    }
}

static bool mlp_shape(const md_config *c, kn_format dense, uint16_t kind, md_shape *out)
{
    switch (kind) {
    case MD_GATE:
    case MD_UP:
        set_matrix(out, dense, c->inter, c->hidden);
        return true;
    case MD_DOWN:
        set_matrix(out, dense, c->hidden, c->inter);
        out->group = md_inter_group(c->inter);
        out->bytes = kn_qmat_bytes(dense, c->hidden, c->inter, out->group);
        return true;
    default:
        return false;
    }
}

static bool moe_shape(const md_config *c, const md_container_info *info, md_key key, md_shape *out)
{
    md_expert_layout layout;

    switch (key.kind) {
    case MD_ROUTER:
        set_matrix(out, KN_F32, c->experts, c->hidden);
        return true;
    case MD_ROUTER_BIAS:
        set_vector(out, 1, c->experts);
        return true;
    case MD_SHARED:
    case MD_EXPERT:
        md_record_expert_layout(c, info, key, &layout);
        set_expert(out, &layout);
        return true;
    default:
        return false;
    }
}

static bool mtp_shape(const md_config *c, kn_format dense, uint16_t kind, md_shape *out)
{
    switch (kind) {
    case MD_ENORM:
    case MD_HNORM:
    case MD_HEAD_NORM:
        set_vector(out, 1, c->hidden);
        return true;
    case MD_EH_PROJ:
        set_matrix(out, dense, c->hidden, 2 * c->hidden);
        return true;
    default:
        return false;
    }
}

bool md_record_shape(const md_config *config, const md_container_info *info, md_key key,
                     md_shape *out)
{
    md_shape shape = {.count = 1};
    kn_format dense = info->dense_format;
    bool known;

    if (key.index != 0 && (key.kind != MD_EXPERT || key.index >= config->experts)) return false;
    if (key.layer == MD_NO_LAYER) {
        known = global_shape(config, info, key.kind, &shape);
    } else if (key.layer >= md_config_layers_total(config)) {
        known = false;
    } else {
        known = attention_shape(config, dense, key.kind, &shape) ||
                (config->index_full[key.layer] && indexer_shape(config, dense, key.kind, &shape)) ||
                (!config->sparse[key.layer] && mlp_shape(config, dense, key.kind, &shape)) ||
                (config->sparse[key.layer] && moe_shape(config, info, key, &shape)) ||
                (key.layer >= config->layers && mtp_shape(config, dense, key.kind, &shape));
    }
    if (known) *out = shape;
    return known;
}
