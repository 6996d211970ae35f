/* record.c - names of records for people. */
#include "model/container/record.h"

#include <stdio.h>

const char *md_kind_name(uint16_t kind)
{
    switch ((md_record_kind)kind) {
    case MD_EMBED:
        return "embed";
    case MD_LM_HEAD:
        return "lm_head";
    case MD_FINAL_NORM:
        return "final_norm";
    case MD_ROPE_INV_FREQ:
        return "rope_inv_freq";
    case MD_INPUT_NORM:
        return "input_norm";
    case MD_POST_NORM:
        return "post_norm";
    case MD_Q_A:
        return "q_a";
    case MD_Q_A_NORM:
        return "q_a_norm";
    case MD_Q_B:
        return "q_b";
    case MD_KV_A:
        return "kv_a";
    case MD_KV_A_NORM:
        return "kv_a_norm";
    case MD_UK_T:
        return "uk_t";
    case MD_UV:
        return "uv";
    case MD_O:
        return "o";
    case MD_INDEX_Q:
        return "index_q";
    case MD_INDEX_K:
        return "index_k";
    case MD_INDEX_K_NORM:
        return "index_k_norm";
    case MD_INDEX_WEIGHT:
        return "index_weight";
    case MD_GATE:
        return "gate";
    case MD_UP:
        return "up";
    case MD_DOWN:
        return "down";
    case MD_ROUTER:
        return "router";
    case MD_ROUTER_BIAS:
        return "router_bias";
    case MD_SHARED:
        return "shared";
    case MD_EXPERT:
        return "expert";
    case MD_ENORM:
        return "enorm";
    case MD_HNORM:
        return "hnorm";
    case MD_HEAD_NORM:
        return "head_norm";
    case MD_EH_PROJ:
        return "eh_proj";
    }
    return "?";
}

const char *md_key_format(md_key key, char *text, size_t text_bytes)
{
    const char *kind = md_kind_name(key.kind);

    if (key.layer == MD_NO_LAYER && key.index == 0)
        (void)snprintf(text, text_bytes, "%s", kind);
    else if (key.kind == MD_EXPERT)
        (void)snprintf(text, text_bytes, "layer %u expert %u", key.layer, key.index);
    else if (key.index == 0)
        (void)snprintf(text, text_bytes, "layer %u %s", key.layer, kind);
    else
        (void)snprintf(text, text_bytes, "layer %u %s[%u]", key.layer, kind, key.index);
    return text;
}
