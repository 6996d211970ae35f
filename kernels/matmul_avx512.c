/* matmul_avx512.c - the matrix products with AVX-512 and VNNI: one register holds a whole tile.
 *
 * dpbusd adds four products of unsigned by signed bytes to 32 bits without saturation, so q8
 * weights need no split: w + 128 is w with its top bit turned. The offsets leave through the sums
 * of the activations, as with AVX2. Integer sums are exact, so their order is free: they run in two
 * parts where the chain of dpbusd would be too slow. */
#include "kernels/matmul_tiles.h"

#if KN_X86

#include <immintrin.h>

enum { FLOAT_TILES = 4 };

KN_AVX512_INLINE __m512i load_line512(const uint8_t *at)
{
    return _mm512_loadu_si512((const void *)at);
}

KN_AVX512_INLINE __m512i broadcast4(const int8_t *at)
{
    return _mm512_set1_epi32(kn_load_i32(at));
}

KN_AVX512_INLINE __m512 load_scales(const uint8_t *at, bool f32_scales)
{
    if (f32_scales) return _mm512_loadu_ps((const void *)at);
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)at));
}

/* Adds one line (q4: 8 inputs, q8: 4) to the sums of T tokens. */
KN_AVX512_INLINE void int_line(__m512i (*sum)[2], const uint8_t *w, const int8_t *x,
                               size_t x_stride, int j, kn_tile_ahead *ahead, bool q4, int T)
{
    __m512i v = load_line512(w);

    kn_prefetch(ahead);
    if (q4) {
        const __m512i low = _mm512_set1_epi8(15);
        __m512i a = _mm512_and_si512(v, low);
        __m512i b = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);

        KN_UNROLL
        for (int t = 0; t < T; t++) {
            const int8_t *xt = x + (size_t)t * x_stride;
            int second = T <= 4 ? 1 : 0;

            sum[t][0] = _mm512_dpbusd_epi32(sum[t][0], a, broadcast4(xt));
            sum[t][second] = _mm512_dpbusd_epi32(sum[t][second], b, broadcast4(xt + 4));
        }
    } else {
        int part = T <= 4 ? j % 2 : 0;

        v = _mm512_xor_si512(v, _mm512_set1_epi8((char)0x80));
        KN_UNROLL
        for (int t = 0; t < T; t++)
            sum[t][part] =
                _mm512_dpbusd_epi32(sum[t][part], v, broadcast4(x + (size_t)t * x_stride));
    }
}

KN_AVX512_INLINE void int_tile(const uint8_t *w, const kn_rows *x, uint32_t s, float *out,
                               size_t out_stride, kn_tile_ahead ahead, bool q4, bool f32_scales,
                               int T)
{
    const uint32_t group = x->group, per_line = q4 ? 8 : 4;
    uint32_t groups = kn_groups(x->cols, group);
    size_t x_stride = (size_t)groups * group;
    const int8_t *q = x->q + s * x_stride;
    const float *scale = x->scale + (size_t)s * groups;
    const int32_t *offset = x->sum + (size_t)s * groups;
    __m512 acc[KN_TOKENS_MAX];

    KN_UNROLL
    for (int t = 0; t < T; t++)
        acc[t] = _mm512_setzero_ps();
    for (uint32_t g = 0; g < groups; g++) {
        __m512 sw = load_scales(w, f32_scales);
        __m512i sum[KN_TOKENS_MAX][2];

        w += kn_scales_size(f32_scales);
        kn_prefetch_scales(&ahead, f32_scales);
        KN_UNROLL
        for (int t = 0; t < T; t++) {
            sum[t][0] = _mm512_set1_epi32((q4 ? -8 : -128) * offset[(size_t)t * groups + g]);
            sum[t][1] = _mm512_setzero_si512();
        }
        for (uint32_t k = 0; k < group; k += 2 * per_line) {
            int_line(sum, w, q, x_stride, 0, &ahead, q4, T);
            int_line(sum, w + KN_LINE_BYTES, q + per_line, x_stride, 1, &ahead, q4, T);
            w += 2 * KN_LINE_BYTES;
            q += 2 * per_line;
        }
        KN_UNROLL
        for (int t = 0; t < T; t++) {
            __m512i total = T <= 4 ? _mm512_add_epi32(sum[t][0], sum[t][1]) : sum[t][0];
            __m512 factor = _mm512_mul_ps(sw, _mm512_set1_ps(scale[(size_t)t * groups + g]));

            acc[t] = _mm512_fmadd_ps(factor, _mm512_cvtepi32_ps(total), acc[t]);
        }
    }
    KN_UNROLL
    for (int t = 0; t < T; t++)
        _mm512_storeu_ps(out + (size_t)t * out_stride, acc[t]);
}

/* name is of a format, for the integers and scales that it has. */
#define INT_KERNEL(name, q4, f32_scales, T)                                                        \
    KN_AVX512_FN static void name##_t##T(const uint8_t *tile, const kn_rows *x, uint32_t s,        \
                                         float *out, size_t out_stride, kn_tile_ahead ahead)       \
    {                                                                                              \
        int_tile(tile, x, s, out, out_stride, ahead, q4, f32_scales, T);                           \
    }
#define INT_KERNELS(name, q4, f32_scales)                                                          \
    INT_KERNEL(name, q4, f32_scales, 1)                                                            \
    INT_KERNEL(name, q4, f32_scales, 2)                                                            \
    INT_KERNEL(name, q4, f32_scales, 3)                                                            \
    INT_KERNEL(name, q4, f32_scales, 4)                                                            \
    INT_KERNEL(name, q4, f32_scales, 5)                                                            \
    INT_KERNEL(name, q4, f32_scales, 6)                                                            \
    INT_KERNEL(name, q4, f32_scales, 7)                                                            \
    INT_KERNEL(name, q4, f32_scales, 8)
INT_KERNELS(q4, true, false)
INT_KERNELS(q8, false, false)
INT_KERNELS(q4f32, true, true)
INT_KERNELS(q8f32, false, true)

#define BY_TOKENS(name)                                                                            \
    {                                                                                              \
        name##_t1, name##_t2, name##_t3, name##_t4, name##_t5, name##_t6, name##_t7, name##_t8     \
    }

void kn_avx512_matmul_q4(float *y, size_t y_stride, const kn_rows *x, const kn_qmat *w,
                         uint32_t row_begin, uint32_t row_end)
{
    static const kn_tile_kernel kernels[2][KN_TOKENS_MAX] = {BY_TOKENS(q4), BY_TOKENS(q4f32)};

    kn_tiles_run(kernels[kn_format_has_f32_scales(w->format)], KN_TOKENS_MAX, y, y_stride, x, w,
                 row_begin, row_end);
}

void kn_avx512_matmul_q8(float *y, size_t y_stride, const kn_rows *x, const kn_qmat *w,
                         uint32_t row_begin, uint32_t row_end)
{
    static const kn_tile_kernel kernels[2][KN_TOKENS_MAX] = {BY_TOKENS(q8), BY_TOKENS(q8f32)};

    kn_tiles_run(kernels[kn_format_has_f32_scales(w->format)], KN_TOKENS_MAX, y, y_stride, x, w,
                 row_begin, row_end);
}

/* N tiles for T tokens; a chain of fused adds takes 4 cycles, so several run side by side. */
KN_AVX512_INLINE void float_tiles(const kn_float_job *job, bool bf16, int T, int N)
{
    __m512 acc[FLOAT_TILES][KN_FLOAT_TOKENS];

    KN_UNROLL
    for (int n = 0; n < N; n++) {
        KN_UNROLL
        for (int t = 0; t < T; t++)
            acc[n][t] = job->first ? _mm512_setzero_ps()
                                   : _mm512_loadu_ps(job->out + (size_t)t * job->out_stride +
                                                     (size_t)n * KN_TILE_ROWS);
    }
    for (size_t k = 0; k < job->cols; k++) {
        __m512 x[KN_FLOAT_TOKENS];

        KN_UNROLL
        for (int t = 0; t < T; t++)
            x[t] = _mm512_set1_ps(job->x[(size_t)t * job->x_stride + k]);
        __builtin_prefetch(job->ahead + k * (bf16 ? 32 : 64));
        KN_UNROLL
        for (int n = 0; n < N; n++) {
            const uint8_t *at = job->tile + (size_t)n * job->tile_bytes + k * (bf16 ? 32 : 64);
            __m512 w;

            if (bf16)
                w = _mm512_castsi512_ps(_mm512_slli_epi32(
                    _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)at)),
                    16));
            else
                w = _mm512_loadu_ps((const void *)at);
            KN_UNROLL
            for (int t = 0; t < T; t++)
                acc[n][t] = _mm512_fmadd_ps(x[t], w, acc[n][t]);
        }
    }
    KN_UNROLL
    for (int n = 0; n < N; n++) {
        KN_UNROLL
        for (int t = 0; t < T; t++)
            _mm512_storeu_ps(job->out + (size_t)t * job->out_stride + (size_t)n * KN_TILE_ROWS,
                             acc[n][t]);
    }
}

#define FLOAT_KERNEL(T, N)                                                                         \
    KN_AVX512_FN static void f32_t##T##_n##N(const kn_float_job *job)                              \
    {                                                                                              \
        float_tiles(job, false, T, N);                                                             \
    }                                                                                              \
    KN_AVX512_FN static void bf16_t##T##_n##N(const kn_float_job *job)                             \
    {                                                                                              \
        float_tiles(job, true, T, N);                                                              \
    }
FLOAT_KERNEL(1, 1)
FLOAT_KERNEL(1, 4)
FLOAT_KERNEL(2, 1)
FLOAT_KERNEL(2, 4)
FLOAT_KERNEL(3, 1)
FLOAT_KERNEL(3, 4)
FLOAT_KERNEL(4, 1)
FLOAT_KERNEL(4, 4)

static const kn_float_kernels f32_kernels = {{f32_t1_n1, f32_t2_n1, f32_t3_n1, f32_t4_n1},
                                             {f32_t1_n4, f32_t2_n4, f32_t3_n4, f32_t4_n4},
                                             {4, 4, 4, 4},
                                             4,
                                             64};
static const kn_float_kernels bf16_kernels = {{bf16_t1_n1, bf16_t2_n1, bf16_t3_n1, bf16_t4_n1},
                                              {bf16_t1_n4, bf16_t2_n4, bf16_t3_n4, bf16_t4_n4},
                                              {4, 4, 4, 4},
                                              4,
                                              32};

/* q formats with float activations serve oracles only: the AVX2 code is good enough. */
void kn_avx512_matmul_float(float *y, size_t y_stride, const kn_rows *x, const kn_qmat *w,
                            uint32_t row_begin, uint32_t row_end)
{
    if (kn_format_is_int(w->format))
        kn_avx2_matmul_float(y, y_stride, x, w, row_begin, row_end);
    else
        kn_float_run(w->format == KN_F32 ? &f32_kernels : &bf16_kernels, y, y_stride, x, w,
                     row_begin, row_end);
}

#endif
