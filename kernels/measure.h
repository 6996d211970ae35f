/* measure.h - what this machine gives: read bandwidth, peak of fused adds, and the time of the
 * kernels on shapes of choice; for `moesaic bench` and bench/bench_kernels.
 *
 * Time is the processor time of the threads that work and the fastest of some passes counts: on a
 * shared machine neither waiting for a turn nor a neighbour's burst is ours. So only ratios of
 * figures of one run say much. With several threads a time is the sum of theirs over their number,
 * as if they had shared the work evenly. Weights are read from a pool larger than the caches.
 *
 * Threads: one owner; a measure uses the threads it was created with. */
#ifndef KERNELS_MEASURE_H
#define KERNELS_MEASURE_H

#include "base/status.h"
#include "kernels/qmat.h"

typedef struct kn_measure kn_measure;

typedef struct {
    size_t pool_bytes; /* on huge pages; at least 32 MiB */
    uint32_t threads;  /* of the measures that use all */
    uint32_t passes;   /* the fastest counts; at least 1 */
} kn_measure_spec;

/* What one unit (an expert, a product, a query row) takes. bytes and ops (multiply and add count
 * two) are what the unit reads of weights and computes. */
typedef struct {
    double seconds, bytes, ops;
} kn_measured;

typedef enum { KN_ONE_THREAD, KN_ALL_THREADS } kn_measure_threads;

/* An expert in q4, cut into slices of `slice` neurons, each a complete feed-forward network:
 * quantise, gate, up, silu, quantise, down. */
typedef struct {
    uint32_t hidden, inter, slice;
} kn_measure_expert_shape;

/* One query row over a list of scattered positions. */
typedef struct {
    uint32_t heads, rank, rope_dim, positions;
    bool bf16;
} kn_measure_attention_shape;

RT_MUST_CHECK rt_status kn_measure_create(const kn_measure_spec *spec, kn_measure **out,
                                          rt_err *err);
void kn_measure_free(kn_measure *measure); /* NULL allowed */

/* Each fills *out, or returns RT_ENOMEM naming the size of the scratch memory it could not have.
 * Shapes that do not fit the pool are asserted against; rows: at most KN_MEASURE_ROWS_MAX. */
enum { KN_MEASURE_ROWS_MAX = 64 };

/* Reading the pool, one stream a thread. */
void kn_measure_read(kn_measure *measure, kn_measure_threads threads, kn_measured *out);

/* Fused multiply-adds of one thread in the widest registers of the active variant. */
void kn_measure_peak(kn_measure *measure, kn_measured *out);

RT_MUST_CHECK rt_status kn_measure_expert(kn_measure *measure, kn_measure_threads threads,
                                          const kn_measure_expert_shape *shape, uint32_t rows,
                                          kn_measured *out, rt_err *err);

/* A dense product in the format's own activations (int8 for q formats, else f32). */
RT_MUST_CHECK rt_status kn_measure_product(kn_measure *measure, kn_measure_threads threads,
                                           const kn_qmat *shape, uint32_t rows, kn_measured *out,
                                           rt_err *err);

/* of_peak: the median over all passes of the speed over the peak of fused adds just before and after
 * the pass, the faster of both. The clock changes within milliseconds when wide registers are busy, so
 * a peak of another moment would compare clocks. */
typedef struct {
    kn_measured scores, softmax, values, all;
    struct {
        double scores, values, all;
    } of_peak;
} kn_measured_attention;

RT_MUST_CHECK rt_status kn_measure_attention(kn_measure *measure,
                                             const kn_measure_attention_shape *shape,
                                             kn_measured_attention *out, rt_err *err);
RT_MUST_CHECK rt_status kn_measure_index(kn_measure *measure, uint32_t heads, uint32_t dim,
                                         uint32_t count, bool bf16, kn_measured *out, rt_err *err);

/* The k best of n scores; bytes counts the scores. */
RT_MUST_CHECK rt_status kn_measure_topk(kn_measure *measure, uint32_t n, uint32_t k,
                                        kn_measured *out, rt_err *err);

#endif
