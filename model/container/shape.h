/* shape.h - what each record holds: its form, format, shape and bytes, from config and formats.
 *
 * One table that conversion, the manifest and loading share, so that they cannot disagree about a
 * group or a padding. Groups follow numerics R2: the largest of 64, 32, 16 that divides the
 * contraction width; for MD_DOWN, whose contraction is the intermediate width, also at most its
 * half.
 *
 * Threads: pure. */
#ifndef MODEL_CONTAINER_SHAPE_H
#define MODEL_CONTAINER_SHAPE_H

#include "model/container/container.h"

typedef enum {
    MD_FORM_VECTOR, /* f32 [rows][cols], plain */
    MD_FORM_ROWS,   /* f32 or bf16 [rows][cols], plain row-major: the embedding */
    MD_FORM_MATRIX, /* one kn_qmat [rows][cols] */
    MD_FORM_HEADS,  /* `count` kn_qmat [rows][cols] back to back: uk_t, uv */
    MD_FORM_EXPERT, /* an expert record, md_record_expert_layout */
} md_form;

typedef struct {
    md_form form;
    kn_format format;
    uint32_t count; /* of HEADS; 1 otherwise */
    uint32_t rows, cols, group;
    uint64_t bytes; /* of the whole record */
} md_shape;

/* false when a model of this config has no such record. Of info only the formats and slice_width
 * are read. For MD_FORM_EXPERT rows is the intermediate width, cols hidden, group that of hidden.
 */
bool md_record_shape(const md_config *config, const md_container_info *info, md_key key,
                     md_shape *out);

/* The layout of an MD_EXPERT record of `layer`, or of an MD_SHARED record. */
void md_record_expert_layout(const md_config *config, const md_container_info *info, md_key key,
                             md_expert_layout *out);

#endif
