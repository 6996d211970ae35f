/* source_size.c - sums the tensors that every record is made of. */
#include "model/convert/source_size.h"

#include "base/check.h"
#include "model/container/manifest.h"
#include "model/container/shape.h"
#include "model/convert/source.h"

#include <stdlib.h>

/* Whether the release's FP8 files store the tensors of this kind in FP8. */
static bool is_quantised(uint16_t kind)
{
    switch (kind) {
    case MD_Q_A:
    case MD_Q_B:
    case MD_KV_A:
    case MD_UK_T:
    case MD_O:
    case MD_INDEX_Q:
    case MD_INDEX_K:
    case MD_GATE:
    case MD_UP:
    case MD_DOWN:
    case MD_SHARED:
    case MD_EXPERT:
        return true;
    default:
        return false;
    }
}

static uint64_t blocks_of(uint64_t width)
{
    return (width + MD_SOURCE_BLOCK - 1) / MD_SOURCE_BLOCK;
}

static void add_tensors(md_source_size *sum, uint16_t kind, bool fp8, uint64_t count, uint64_t rows,
                        uint64_t cols)
{
    uint64_t values = rows * cols;

    if (kind != MD_ROUTER_BIAS) sum->parameters += count * values;
    sum->tensors += count;
    if (fp8 && is_quantised(kind)) {
        sum->tensors += count;
        sum->bytes += count * (values + blocks_of(rows) * blocks_of(cols) * sizeof(float));
    } else if (kind == MD_ROUTER_BIAS) {
        sum->bytes += count * values * sizeof(float);
    } else {
        sum->bytes += count * values * sizeof(uint16_t);
    }
}

static void add_record(md_source_size *sum, const md_config *c, bool fp8, md_key key,
                       const md_shape *shape)
{
    switch (key.kind) {
    case MD_ROPE_INV_FREQ: /* computed */
    case MD_UV:            /* a half of kv_b, counted with the other */
        return;
    case MD_UK_T:
        add_tensors(sum, key.kind, fp8, 1, (uint64_t)c->heads * (c->nope_dim + c->v_dim),
                    c->kv_rank);
        return;
    case MD_INDEX_K_NORM: /* weight and bias */
        add_tensors(sum, key.kind, fp8, 2, 1, shape->cols);
        return;
    case MD_SHARED:
    case MD_EXPERT:
        add_tensors(sum, key.kind, fp8, 2, shape->rows, shape->cols);
        add_tensors(sum, key.kind, fp8, 1, shape->cols, shape->rows);
        return;
    default:
        add_tensors(sum, key.kind, fp8, 1, shape->rows, shape->cols);
        return;
    }
}

rt_status md_source_size_of(const md_config *config, bool fp8, md_source_size *out, rt_err *err)
{
    md_manifest_entry *entries = NULL;
    md_source_size sum = {0};
    md_container_info info;
    uint64_t count = 0;

    /* Which formats the records would have does not matter here, only which records there are. */
    md_container_info_init(&info, config, KN_BF16, KN_BF16);
    RT_TRY(md_manifest_expected(config, &info, &entries, &count, err));
    for (uint64_t i = 0; i < count; i++) {
        md_shape shape;
        bool known = md_record_shape(config, &info, entries[i].key, &shape);

        RT_ASSERT(known);
        add_record(&sum, config, fp8, entries[i].key, &shape);
    }
    free(entries);
    *out = sum;
    return RT_OK;
}
