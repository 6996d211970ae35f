/* attention.c - the public side of attention: shapes checked, then the active variant. */
#include "kernels/attention.h"

#include "base/check.h"
#include "kernels/ops.h"

static bool view_is_valid(const kn_cache_view *view)
{
    size_t value_bytes = view->bf16 ? sizeof(uint16_t) : sizeof(float);

    return view->row_bytes >= view->width * value_bytes && view->row_bytes % value_bytes == 0 &&
           (uintptr_t)view->rows % value_bytes == 0;
}

void kn_attn_scores(float *score, const float *q, size_t q_stride, uint32_t heads,
                    const kn_cache_view *cache, const uint32_t *list, uint32_t count, float scale)
{
    RT_ASSERT(view_is_valid(cache) && (heads <= 1 || q_stride >= cache->width));
    kn_ops_active()->attn_scores(score, q, q_stride, heads, cache, list, count, scale);
}

float kn_softmax_exp(float *score, uint32_t count)
{
    return kn_ops_active()->softmax_exp(score, count);
}

void kn_attn_values(float *out, size_t out_stride, const float *e, const float *sum, uint32_t heads,
                    uint32_t rank, const kn_cache_view *cache, const uint32_t *list, uint32_t count)
{
    RT_ASSERT(view_is_valid(cache) && rank <= cache->width && (heads <= 1 || out_stride >= rank));
    kn_ops_active()->attn_values(out, out_stride, e, sum, heads, rank, cache, list, count);
}

void kn_index_scores(float *score, const float *q, const float *weight, uint32_t heads,
                     uint32_t dim, const kn_cache_view *keys, uint32_t count, float key_scale)
{
    RT_ASSERT(view_is_valid(keys) && dim <= keys->width);
    kn_ops_active()->index_scores(score, q, weight, heads, dim, keys, count, key_scale);
}

void kn_cache_store(void *row, bool bf16, const float *values, uint32_t count)
{
    kn_ops_active()->cache_store(row, bf16, values, count);
}

void kn_cache_load(float *values, bool bf16, const void *row, uint32_t count)
{
    kn_ops_active()->cache_load(values, bf16, row, count);
}
