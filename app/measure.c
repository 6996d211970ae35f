/* measure.c - how fast memory is read and attention computed: the kernels' own measures, once. */
#include "app/measure.h"

#include "base/budget.h"
#include "kernels/measure.h"

enum {
    RAM_MIB = 256, /* several times the last cache of a desktop */
    LEAST_MIB = 32,
    SPARE = 4, /* as much of memory must be available as is taken for measuring */
    PASSES = 5,
    POSITIONS_MAX = 2048, /* what sparse attention of the release looks at */
    SPREAD = 3,           /* cached rows a position of kn_measure_attention takes */
};

static bool is_memory_short(void)
{
    return rt_memory_available_bytes() < (uint64_t)SPARE * LEAST_MIB << 20;
}

rt_status app_measure_ram(uint32_t threads, double *bytes_s, rt_err *err)
{
    uint64_t mib = rt_memory_available_bytes() / 8 >> 20;
    kn_measure_spec spec = {.threads = threads, .passes = PASSES};
    kn_measure *measure = NULL;
    kn_measured read;

    *bytes_s = 0;
    if (is_memory_short()) return RT_OK;
    if (mib > RAM_MIB) mib = RAM_MIB;
    if (mib < LEAST_MIB) mib = LEAST_MIB;
    spec.pool_bytes = (size_t)mib << 20;
    RT_TRY(kn_measure_create(&spec, &measure, err));
    kn_measure_read(measure, KN_ALL_THREADS, &read);
    kn_measure_free(measure);
    *bytes_s = read.bytes / read.seconds;
    return RT_OK;
}

rt_status app_measure_attention(const md_config *config, uint32_t threads, double *flop_s,
                                rt_err *err)
{
    kn_measure_spec spec = {.pool_bytes = (size_t)LEAST_MIB << 20, .threads = 1, .passes = PASSES};
    kn_measure_attention_shape shape = {.heads = config->heads,
                                        .rank = config->kv_rank,
                                        .rope_dim = config->rope_dim,
                                        .positions = POSITIONS_MAX,
                                        .bf16 = true};
    size_t row_bytes = ((size_t)shape.rank + shape.rope_dim) * sizeof(uint16_t);
    kn_measured_attention attention;
    kn_measure *measure = NULL;
    rt_status status;

    *flop_s = 0;
    if (is_memory_short()) return RT_OK;
    if (config->index_topk < shape.positions) shape.positions = config->index_topk;
    while (shape.positions > 1 && shape.positions * SPREAD * row_bytes > spec.pool_bytes)
        shape.positions /= 2;
    RT_TRY(kn_measure_create(&spec, &measure, err));
    status = kn_measure_attention(measure, &shape, &attention, err);
    kn_measure_free(measure);
    if (status == RT_OK) *flop_s = threads * attention.all.ops / attention.all.seconds;
    return status;
}
