/* foreign_format.h - which integer format a tensor of the colibri engine's files has.
 *
 * Its files store no format: a weight is so many bytes (U8) with so many scales (`<name>.qs`), and
 * what they mean follows from these numbers and the tensor's shape. Where two formats fit the same
 * numbers, guessing would give a model of noise without an error: that is refused by name, unless
 * the file says which one it is (`__metadata__["colibri.fmt"]`, a name for each tensor). Such a stamp
 * must fit the bytes as well.
 *
 * Threads: pure. */
#ifndef MODEL_CONVERT_FOREIGN_FORMAT_H
#define MODEL_CONVERT_FOREIGN_FORMAT_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum {
    MD_FOREIGN_INT8_ROW,     /* int8; a scale per row */
    MD_FOREIGN_INT4_ROW,     /* two a byte, the even column low, stored + 8; a scale per row */
    MD_FOREIGN_INT4_GROUPED, /* the same with a scale per `group` columns, ceil(cols / group) a row */
    /* Known by name and refused: */
    MD_FOREIGN_INT2_ROW,
    MD_FOREIGN_INT3_G64,
    MD_FOREIGN_E8,
    MD_FOREIGN_FP8,
    MD_FOREIGN_MXFP4,
    MD_FOREIGN_RANS,
} md_foreign_kind;

enum {
    MD_FOREIGN_COLS_MIN = 4, /* narrower ones look alike in every format */
    MD_FOREIGN_GROUP_MIN = 8,
};

typedef struct {
    const char *name;  /* of the tensor, for errors */
    const char *stamp; /* what the file calls its format; NULL: nothing */
    bool fp8_declared; /* the file says that it holds FP8 weights somewhere */
    uint32_t rows, cols;
    uint64_t weight_bytes, scale_count;
} md_foreign_tensor;

typedef struct {
    md_foreign_kind kind;
    uint32_t bits;  /* 8 or 4 */
    uint32_t group; /* columns per scale; 0: one per row */
} md_foreign_layout;

/* "int4-grouped"; text for any kind. */
const char *md_foreign_kind_name(md_foreign_kind kind);

/* Errors  RT_EFORMAT       the numbers fit nothing, or not what the stamp says
 *         RT_EUNSUPPORTED  a format that is not imported, an unknown stamp, or more than one format
 *                          fits; the tensor is named */
RT_MUST_CHECK rt_status md_foreign_infer(const md_foreign_tensor *tensor, md_foreign_layout *out,
                                         rt_err *err);

#endif
