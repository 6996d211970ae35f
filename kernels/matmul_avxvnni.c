/* matmul_avxvnni.c - q4 and q8 weights times int8 activations with the 256-bit dpbusd of AVX-VNNI,
 * f16 and f32 scales, for processors that have it without AVX-512 (Intel's since Alder Lake, AMD's Zen 5 has both).
 *
 * As in matmul_avx512.c, but a line of 16 rows is two registers and there are only sixteen: four
 * tokens at a time fill them. Integer sums are exact, so their order is free: with one or two
 * tokens they run in two parts, because a chain of dpbusd would wait for itself. */
#include "kernels/matmul_tiles.h"

#if KN_X86

#include <immintrin.h>

enum { VNNI_TOKENS = 4 };

typedef struct {
    __m256i part[2][2]; /* [part][half of the 16 rows] */
} tile_sums;

KN_AVXVNNI_INLINE __m256i load_line(const uint8_t *at)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)at);
}

KN_AVXVNNI_INLINE __m256i broadcast4(const int8_t *at)
{
    return _mm256_set1_epi32(kn_load_i32(at));
}

/* Of half i of the rows. */
KN_AVXVNNI_INLINE __m256 load_scales(const uint8_t *at, int i, bool f32_scales)
{
    if (f32_scales) return _mm256_loadu_ps((const float *)(const void *)(at + 32 * i));
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(at + 16 * i)));
}

/* Adds one line of 8 inputs. */
KN_AVXVNNI_INLINE void q4_line(tile_sums *sum, const uint8_t *w, const int8_t *x, size_t x_stride,
                               int T)
{
    const __m256i low = _mm256_set1_epi8(15);
    const int second = T <= 2 ? 1 : 0;
    __m256i v[2] = {load_line(w), load_line(w + 32)};
    __m256i a[2], b[2];

    KN_UNROLL
    for (int i = 0; i < 2; i++) {
        a[i] = _mm256_and_si256(v[i], low);
        b[i] = _mm256_and_si256(_mm256_srli_epi16(v[i], 4), low);
    }
    KN_UNROLL
    for (int t = 0; t < T; t++) {
        const int8_t *xt = x + (size_t)t * x_stride;
        __m256i xa = broadcast4(xt), xb = broadcast4(xt + 4);

        KN_UNROLL
        for (int i = 0; i < 2; i++) {
            __m256i *first = &sum[t].part[0][i], *next = &sum[t].part[second][i];

            *first = _mm256_dpbusd_avx_epi32(*first, a[i], xa);
            *next = _mm256_dpbusd_avx_epi32(*next, b[i], xb);
        }
    }
}

/* Adds one line of 4 inputs; j: which of two neighbours it is. */
KN_AVXVNNI_INLINE void q8_line(tile_sums *sum, const uint8_t *w, const int8_t *x, size_t x_stride,
                               int j, int T)
{
    const __m256i top = _mm256_set1_epi8((char)0x80);
    const int part = T <= 2 ? j : 0;
    __m256i v[2];

    KN_UNROLL
    for (int i = 0; i < 2; i++)
        v[i] = _mm256_xor_si256(load_line(w + 32 * i), top);
    KN_UNROLL
    for (int t = 0; t < T; t++) {
        __m256i xt = broadcast4(x + (size_t)t * x_stride);

        KN_UNROLL
        for (int i = 0; i < 2; i++)
            sum[t].part[part][i] = _mm256_dpbusd_avx_epi32(sum[t].part[part][i], v[i], xt);
    }
}

KN_AVXVNNI_INLINE void int_tile(const uint8_t *w, const kn_rows *x, uint32_t s, float *out,
                                size_t out_stride, kn_tile_ahead ahead, bool q4, bool f32_scales,
                                int T)
{
    const uint32_t group = x->group, per_line = q4 ? 8 : 4;
    uint32_t groups = kn_groups(x->cols, group);
    size_t x_stride = (size_t)groups * group;
    const int8_t *q = x->q + s * x_stride;
    const float *scale = x->scale + (size_t)s * groups;
    const int32_t *offset = x->sum + (size_t)s * groups;
    __m256 acc[VNNI_TOKENS][2];

    KN_UNROLL
    for (int t = 0; t < T; t++)
        acc[t][0] = acc[t][1] = _mm256_setzero_ps();
    for (uint32_t g = 0; g < groups; g++) {
        __m256 sw[2] = {load_scales(w, 0, f32_scales), load_scales(w, 1, f32_scales)};
        tile_sums sum[VNNI_TOKENS];

        w += kn_scales_size(f32_scales);
        kn_prefetch_scales(&ahead, f32_scales);
        KN_UNROLL
        for (int t = 0; t < T; t++) {
            KN_UNROLL
            for (int i = 0; i < 2; i++) {
                sum[t].part[0][i] =
                    _mm256_set1_epi32((q4 ? -8 : -128) * offset[(size_t)t * groups + g]);
                sum[t].part[1][i] = _mm256_setzero_si256();
            }
        }
        for (uint32_t k = 0; k < group; k += 2 * per_line) {
            KN_UNROLL
            for (int j = 0; j < 2; j++, w += KN_LINE_BYTES, q += per_line) {
                kn_prefetch(&ahead);
                if (q4)
                    q4_line(sum, w, q, x_stride, T);
                else
                    q8_line(sum, w, q, x_stride, j, T);
            }
        }
        KN_UNROLL
        for (int t = 0; t < T; t++) {
            __m256 sx = _mm256_set1_ps(scale[(size_t)t * groups + g]);

            KN_UNROLL
            for (int i = 0; i < 2; i++) {
                __m256i total = sum[t].part[0][i];

                if (T <= 2) total = _mm256_add_epi32(total, sum[t].part[1][i]);
                acc[t][i] =
                    _mm256_fmadd_ps(_mm256_mul_ps(sw[i], sx), _mm256_cvtepi32_ps(total), acc[t][i]);
            }
        }
    }
    KN_UNROLL
    for (int t = 0; t < T; t++) {
        KN_UNROLL
        for (int i = 0; i < 2; i++)
            _mm256_storeu_ps(out + (size_t)t * out_stride + 8 * i, acc[t][i]);
    }
}

/* name is of a format, for the integers and scales that it has. */
#define INT_KERNEL(name, q4, f32_scales, T)                                                        \
    KN_AVXVNNI_FN static void name##_t##T(const uint8_t *tile, const kn_rows *x, uint32_t s,       \
                                          float *out, size_t out_stride, kn_tile_ahead ahead)      \
    {                                                                                              \
        int_tile(tile, x, s, out, out_stride, ahead, q4, f32_scales, T);                           \
    }
#define INT_KERNELS(name, q4, f32_scales)                                                          \
    INT_KERNEL(name, q4, f32_scales, 1)                                                            \
    INT_KERNEL(name, q4, f32_scales, 2)                                                            \
    INT_KERNEL(name, q4, f32_scales, 3)                                                            \
    INT_KERNEL(name, q4, f32_scales, 4)
INT_KERNELS(q4, true, false)
INT_KERNELS(q8, false, false)
INT_KERNELS(q4f32, true, true)
INT_KERNELS(q8f32, false, true)

#define BY_TOKENS(name)                                                                            \
    {                                                                                              \
        name##_t1, name##_t2, name##_t3, name##_t4                                                 \
    }

void kn_avxvnni_matmul_q4(float *y, size_t y_stride, const kn_rows *x, const kn_qmat *w,
                          uint32_t row_begin, uint32_t row_end)
{
    static const kn_tile_kernel kernels[2][VNNI_TOKENS] = {BY_TOKENS(q4), BY_TOKENS(q4f32)};

    kn_tiles_run(kernels[kn_format_has_f32_scales(w->format)], VNNI_TOKENS, y, y_stride, x, w,
                 row_begin, row_end);
}

void kn_avxvnni_matmul_q8(float *y, size_t y_stride, const kn_rows *x, const kn_qmat *w,
                          uint32_t row_begin, uint32_t row_end)
{
    static const kn_tile_kernel kernels[2][VNNI_TOKENS] = {BY_TOKENS(q8), BY_TOKENS(q8f32)};

    kn_tiles_run(kernels[kn_format_has_f32_scales(w->format)], VNNI_TOKENS, y, y_stride, x, w,
                 row_begin, row_end);
}

#endif
