/* ops.h - the kernels of one variant as a table; internal to this folder.
 *
 * Public functions check shapes and call through the active table, so that a variant is a list of
 * functions and nothing else. A variant may borrow functions of a lesser one: the bytes are equal.
 *
 * Threads: tables are constant; the active one is an atomic pointer (select.c). */
#ifndef KERNELS_OPS_H
#define KERNELS_OPS_H

#include "kernels/attention.h"
#include "kernels/grid.h"
#include "kernels/matmul.h"
#include "kernels/quant.h"

#if defined(__x86_64__)
#define KN_X86 1
/* On every loop over register arrays: one that stays a loop keeps the array in memory. clang 14 takes
 * a count as advice for its last passes, which is too late for that. */
#if defined(__clang__)
#define KN_UNROLL _Pragma("clang loop unroll(full)")
#define KN_UNROLL_24 _Pragma("clang loop unroll(full)")
#else
#define KN_UNROLL _Pragma("GCC unroll 8")
#define KN_UNROLL_24 _Pragma("GCC unroll 24")
#endif
/* Instruction sets are switched on per function, never per build: the same binary runs on every
 * x86-64 and a constant folded by the compiler cannot differ between builds. */
#define KN_AVX2_FN __attribute__((target("avx2,fma,f16c")))
#define KN_AVX2_INLINE static inline __attribute__((always_inline, target("avx2,fma,f16c")))
#define KN_AVXVNNI_FN __attribute__((target("avx2,fma,f16c,avxvnni")))
#define KN_AVXVNNI_INLINE                                                                          \
    static inline __attribute__((always_inline, target("avx2,fma,f16c,avxvnni")))
#define KN_AVX512_FN                                                                               \
    __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))
#define KN_AVX512_INLINE                                                                           \
    static inline __attribute__((                                                                  \
        always_inline, target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))
#else
#define KN_X86 0
#endif

/* X(name, result, (arguments)): one list declares the table and every variant's functions. */
#define KN_OPS_INT(X)                                                                              \
    X(matmul_q4, void,                                                                             \
      (float *y, size_t y_stride, const kn_rows *x, const kn_qmat *w, uint32_t row_begin,          \
       uint32_t row_end))                                                                          \
    X(matmul_q8, void,                                                                             \
      (float *y, size_t y_stride, const kn_rows *x, const kn_qmat *w, uint32_t row_begin,          \
       uint32_t row_end))

#define KN_OPS_FLOAT(X)                                                                            \
    X(matmul_float, void,                                                                          \
      (float *y, size_t y_stride, const kn_rows *x, const kn_qmat *w, uint32_t row_begin,          \
       uint32_t row_end))                                                                          \
    X(attn_scores, void,                                                                           \
      (float *score, const float *q, size_t q_stride, uint32_t heads, const kn_cache_view *cache,  \
       const uint32_t *list, uint32_t count, float scale))                                         \
    X(softmax_exp, float, (float *score, uint32_t count))                                          \
    X(attn_values, void,                                                                           \
      (float *out, size_t out_stride, const float *e, const float *sum, uint32_t heads,            \
       uint32_t rank, const kn_cache_view *cache, const uint32_t *list, uint32_t count))           \
    X(index_scores, void,                                                                          \
      (float *score, const float *q, const float *weight, uint32_t heads, uint32_t dim,            \
       const kn_cache_view *keys, uint32_t count, float key_scale))

#define KN_OPS_OTHER(X)                                                                            \
    X(quantise_row, void,                                                                          \
      (const float *x, uint32_t cols, uint32_t group, int8_t *q, float *scale, int32_t *sum))      \
    X(group_sums, void, (const int8_t *q, size_t groups, uint32_t group, int32_t *sum))            \
    X(quant_q8_group, uint16_t, (const float *w, uint32_t n, int8_t *q))                           \
    X(quant_q4_group, uint16_t, (const float *w, uint32_t n, int8_t *q))                           \
    X(sum, float, (const float *x, size_t n))                                                      \
    X(sum_squares, float, (const float *x, size_t n))                                              \
    X(rms_apply, void, (float *out, const float *x, const float *weight, float inv, size_t n))     \
    X(subtract, void, (float *out, const float *x, float value, size_t n))                         \
    X(layer_apply, void,                                                                           \
      (float *out, const float *weight, const float *bias, float inv, size_t n))                   \
    X(add, void, (float *x, const float *y, size_t n))                                             \
    X(scale, void, (float *out, const float *x, float factor, size_t n))                           \
    X(sigmoid, void, (float *out, const float *x, size_t n))                                       \
    X(silu_mul, void, (float *out, const float *gate, const float *up, size_t n))                  \
    X(rope_apply, void,                                                                            \
      (float *v, size_t stride, size_t count, const float *cos_in, const float *sin_in,            \
       uint32_t dim))                                                                              \
    X(cache_store, void, (void *row, bool bf16, const float *values, uint32_t count))              \
    X(cache_load, void, (float *values, bool bf16, const void *row, uint32_t count))               \
    X(grid_max, uint32_t, (const float *y, float ws, size_t n))                                    \
    X(grid_add, kn_grid_class, (int32_t * acc, const float *y, float ws, size_t n))                \
    X(grid_finish, void, (float *out, const int32_t *narrow, size_t n, float unit))                \
    X(argmax, uint32_t, (const float *x, uint32_t n))

/* What gains from wider registers, and everything. */
#define KN_OPS_WIDE(X) KN_OPS_INT(X) KN_OPS_FLOAT(X)
#define KN_OPS(X) KN_OPS_WIDE(X) KN_OPS_OTHER(X)

typedef struct {
#define X(name, result, args) result(*name) args;
    KN_OPS(X)
#undef X
} kn_ops;

/* kn_ref_*: plain C, the definition. The others are equal byte for byte, except that the sign and
 * payload of a NaN are nobody's promise (a NaN ends its request). */
#define X(name, result, args) result kn_ref_##name args;
KN_OPS(X)
#undef X
#if KN_X86
#define X(name, result, args) result kn_avx2_##name args;
KN_OPS(X)
#undef X
#define X(name, result, args) result kn_avxvnni_##name args;
KN_OPS_INT(X)
#undef X
#define X(name, result, args) result kn_avx512_##name args;
KN_OPS_WIDE(X)
#undef X
#endif

/* How far ahead q kernels prefetch. Intel's servers gain 10-20 % at one token from 2 KiB; a Zen 3
 * lost speed by any prefetch, so others get 0, which asks for the line at hand (docs/performance.md
 * has the figures). It changes no bits. */
size_t kn_prefetch_bytes(void);

/* The table that kn_select chose; the first call without one selects "auto". */
const kn_ops *kn_ops_active(void);

#endif
