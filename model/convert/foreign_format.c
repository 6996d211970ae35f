/* foreign_format.c - one row a format: how many bytes and scales a matrix takes in it. */
#include "model/convert/foreign_format.h"

#include "base/check.h"

#include <stdio.h>
#include <string.h>

enum { FP8_BLOCK = 128, INT3_GROUP = 64, INT3_BYTES = 24, E8_BLOCK = 256, E8_BYTES = 98 };

static const char advice[] =
    "imported are int8-row, int4-row and int4-grouped; convert the original "
    "checkpoint instead (moesaic convert)";

static const char *const names[] = {
    [MD_FOREIGN_INT8_ROW] = "int8-row",         [MD_FOREIGN_INT4_ROW] = "int4-row",
    [MD_FOREIGN_INT4_GROUPED] = "int4-grouped", [MD_FOREIGN_INT2_ROW] = "int2-row",
    [MD_FOREIGN_INT3_G64] = "int3-g64",         [MD_FOREIGN_E8] = "e8-iq3-lattice",
    [MD_FOREIGN_FP8] = "fp8-e4m3-b128",         [MD_FOREIGN_MXFP4] = "mxfp4",
    [MD_FOREIGN_RANS] = "int4-rans256-g0",
};

enum { KIND_COUNT = sizeof(names) / sizeof(names[0]) };

static bool is_supported(md_foreign_kind kind)
{
    return kind <= MD_FOREIGN_INT4_GROUPED;
}

const char *md_foreign_kind_name(md_foreign_kind kind)
{
    return (size_t)kind < KIND_COUNT ? names[kind] : "?";
}

static uint64_t parts(uint64_t count, uint64_t size)
{
    return (count + size - 1) / size;
}

/* The group of so many scales a row, a power of two, 0 when none gives that number. At least two
 * scales a row: then at most one power of two fits. */
static uint32_t group_of(uint32_t cols, uint64_t scales)
{
    for (uint32_t group = MD_FOREIGN_GROUP_MIN; scales > 1 && group < cols && group < 1u << 31;
         group *= 2)
        if (parts(cols, group) == scales) return group;
    return 0;
}

/* Whether the numbers are those of a format. mxfp4 has scales of another type and rans any size: only
 * a stamp tells these. */
static bool fits(const md_foreign_tensor *t, md_foreign_kind kind, uint32_t *group)
{
    uint64_t rows = t->rows, cols = t->cols, bytes = t->weight_bytes, scales = t->scale_count;

    *group = 0;
    switch (kind) {
    case MD_FOREIGN_INT8_ROW:
        return bytes == rows * cols && scales == rows;
    case MD_FOREIGN_INT4_ROW:
        return bytes == rows * parts(cols, 2) && scales == rows;
    case MD_FOREIGN_INT4_GROUPED:
        *group = scales % rows == 0 ? group_of(t->cols, scales / rows) : 0;
        return bytes == rows * parts(cols, 2) && *group != 0;
    case MD_FOREIGN_INT2_ROW:
        return bytes == rows * parts(cols, 4) && scales == rows;
    case MD_FOREIGN_INT3_G64:
        return bytes == rows * parts(cols, INT3_GROUP) * INT3_BYTES &&
               scales == rows * parts(cols, INT3_GROUP);
    case MD_FOREIGN_E8:
        return bytes == rows * parts(cols, E8_BLOCK) * E8_BYTES && scales == 1;
    case MD_FOREIGN_FP8:
        return bytes == rows * cols && scales == parts(rows, FP8_BLOCK) * parts(cols, FP8_BLOCK);
    case MD_FOREIGN_MXFP4:
    case MD_FOREIGN_RANS:
        break;
    }
    return false;
}

static rt_status fail_unsupported(const md_foreign_tensor *t, const char *format, rt_err *err)
{
    return rt_fail(err, RT_EUNSUPPORTED, "%s: format %.60s is not imported: %s", t->name, format,
                   advice);
}

static rt_status fail_bytes(const md_foreign_tensor *t, rt_err *err)
{
    unsigned long long rows = t->rows, cols = t->cols;

    return rt_fail(err, RT_EFORMAT,
                   "%s: %llu bytes with %llu scales fit no format of [%llu, %llu] (int8 has %llu "
                   "bytes, int4 %llu; scales: %llu, or that times the groups of a row)",
                   t->name, (unsigned long long)t->weight_bytes, (unsigned long long)t->scale_count,
                   rows, cols, rows * cols, rows * parts(cols, 2), rows);
}

static rt_status take(const md_foreign_tensor *t, md_foreign_kind kind, md_foreign_layout *out,
                      rt_err *err)
{
    uint32_t group;

    if (!is_supported(kind)) return fail_unsupported(t, names[kind], err);
    (void)fits(t, kind, &group);
    *out = (md_foreign_layout){
        .kind = kind, .bits = kind == MD_FOREIGN_INT8_ROW ? 8 : 4, .group = group};
    return RT_OK;
}

static rt_status infer_stamped(const md_foreign_tensor *t, md_foreign_layout *out, rt_err *err)
{
    uint32_t group;

    for (int k = 0; k < KIND_COUNT; k++) {
        md_foreign_kind kind = (md_foreign_kind)k;

        if (strcmp(t->stamp, names[k]) != 0) continue;
        if (fits(t, kind, &group) || kind == MD_FOREIGN_MXFP4 || kind == MD_FOREIGN_RANS)
            return take(t, kind, out, err);
        return rt_fail(err, RT_EFORMAT,
                       "%s: the file says %s, which %llu bytes with %llu scales for [%u, %u] are "
                       "not: the file is damaged or was put together wrongly",
                       t->name, t->stamp, (unsigned long long)t->weight_bytes,
                       (unsigned long long)t->scale_count, t->rows, t->cols);
    }
    return fail_unsupported(t, t->stamp, err);
}

rt_status md_foreign_infer(const md_foreign_tensor *tensor, md_foreign_layout *out, rt_err *err)
{
    md_foreign_kind found[KIND_COUNT];
    uint32_t count = 0, group;

    RT_ASSERT(tensor->rows > 0 && tensor->cols > 0);
    if (tensor->cols < MD_FOREIGN_COLS_MIN)
        return rt_fail(err, RT_EUNSUPPORTED,
                       "%s: [%u, %u] is too narrow to tell its integer format", tensor->name,
                       tensor->rows, tensor->cols);
    if (tensor->stamp != NULL) return infer_stamped(tensor, out, err);
    for (int k = 0; k < KIND_COUNT; k++)
        if (fits(tensor, (md_foreign_kind)k, &group)) found[count++] = (md_foreign_kind)k;
    if (count == 0) return fail_bytes(tensor, err);
    /* The engine itself reads int8 here and stamps what is FP8: GLM-5.2's o_proj [6144, 16384] has as
     * many rows as blocks, and its int8 files must not be refused for that. */
    if (count == 2 && found[0] == MD_FOREIGN_INT8_ROW && found[1] == MD_FOREIGN_FP8 &&
        !tensor->fp8_declared)
        count = 1;
    if (count == 1 || !is_supported(found[0])) return take(tensor, found[0], out, err);
    return rt_fail(
        err, RT_EUNSUPPORTED,
        "%s: %llu bytes with %llu scales for [%u, %u] may be %s or %s, and the file does "
        "not say which: convert the original checkpoint instead (moesaic convert)",
        tensor->name, (unsigned long long)tensor->weight_bytes,
        (unsigned long long)tensor->scale_count, tensor->rows, tensor->cols, names[found[0]],
        names[found[1]]);
}
