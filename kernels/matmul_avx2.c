/* matmul_avx2.c - q4 and q8 weights times int8 activations with AVX2; f16 and f32 scales.
 *
 * maddubs multiplies unsigned by signed bytes and adds pairs into 16 bits. A q4 weight is stored as
 * an unsigned nibble: 8 products of two add up to 8 * 2 * 15 * 128 = 30,720 at most, so 32 inputs
 * are summed in 16 bits before they are widened. A q8 weight w is split into the nibbles of w +
 * 128, because maddubs of whole bytes would saturate. The offsets (8 and 128) leave through the
 * sums of the activations. All of it is exact; one f32 chain per output runs over the groups. */
#include "kernels/matmul_tiles.h"

#if KN_X86

#include <immintrin.h>

/* gcc 12 otherwise keeps every product alive and spills: a quarter of the speed at 4 tokens. */
#define KEEP_IN_REGISTER(v) __asm__("" : "+x"(v))

typedef struct {
    __m256 scale[2]; /* of the 16 rows */
} group_scales;

KN_AVX2_INLINE group_scales load_scales(const uint8_t *at, bool f32_scales)
{
    const __m128i *h = (const __m128i *)(const void *)at;
    group_scales s;

    if (f32_scales) {
        s.scale[0] = _mm256_loadu_ps((const float *)(const void *)at);
        s.scale[1] = _mm256_loadu_ps((const float *)(const void *)(at + 32));
        return s;
    }
    s.scale[0] = _mm256_cvtph_ps(_mm_loadu_si128(h));
    s.scale[1] = _mm256_cvtph_ps(_mm_loadu_si128(h + 1));
    return s;
}

KN_AVX2_INLINE __m256i load_line(const uint8_t *at)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)at);
}

KN_AVX2_INLINE __m256 chain_step(__m256 acc, __m256 scale_w, float scale_x, __m256i sum)
{
    __m256 scale = _mm256_mul_ps(scale_w, _mm256_set1_ps(scale_x));

    return _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(sum), acc);
}

/* `lines` lines of 8 inputs (2 or 4) for T tokens, summed in 16 bits, added to sum. */
KN_AVX2_INLINE void q4_lines(__m256i (*sum)[2], const uint8_t *w, const int8_t *x, size_t x_stride,
                             int lines, kn_tile_ahead *ahead, int T)
{
    const __m256i low = _mm256_set1_epi8(15), one = _mm256_set1_epi16(1);
    __m256i h[4][2];

    KN_UNROLL
    for (int j = 0; j < lines; j++, w += KN_LINE_BYTES, x += 8) {
        __m256i v0 = load_line(w), v1 = load_line(w + 32);
        __m256i a0 = _mm256_and_si256(v0, low), a1 = _mm256_and_si256(v1, low);
        __m256i b0 = _mm256_and_si256(_mm256_srli_epi16(v0, 4), low);
        __m256i b1 = _mm256_and_si256(_mm256_srli_epi16(v1, 4), low);

        kn_prefetch(ahead);
        KN_UNROLL
        for (int t = 0; t < T; t++) {
            const int8_t *xt = x + (size_t)t * x_stride;
            __m256i xa = _mm256_set1_epi32(kn_load_i32(xt));
            __m256i xb = _mm256_set1_epi32(kn_load_i32(xt + 4));
            __m256i p0 = _mm256_maddubs_epi16(a0, xa), p1 = _mm256_maddubs_epi16(a1, xa);

            h[t][0] = j == 0 ? p0 : _mm256_add_epi16(h[t][0], p0);
            h[t][1] = j == 0 ? p1 : _mm256_add_epi16(h[t][1], p1);
            KEEP_IN_REGISTER(h[t][0]);
            KEEP_IN_REGISTER(h[t][1]);
            h[t][0] = _mm256_add_epi16(h[t][0], _mm256_maddubs_epi16(b0, xb));
            h[t][1] = _mm256_add_epi16(h[t][1], _mm256_maddubs_epi16(b1, xb));
            KEEP_IN_REGISTER(h[t][0]);
            KEEP_IN_REGISTER(h[t][1]);
        }
    }
    KN_UNROLL
    for (int t = 0; t < T; t++) {
        KN_UNROLL
        for (int i = 0; i < 2; i++)
            sum[t][i] = _mm256_add_epi32(sum[t][i], _mm256_madd_epi16(h[t][i], one));
    }
}

KN_AVX2_INLINE void q4_tile(const uint8_t *w, const kn_rows *x, uint32_t s, float *out,
                            size_t out_stride, kn_tile_ahead ahead, uint32_t group, bool f32_scales,
                            int T)
{
    const int lines = group == 16 ? 2 : 4;
    uint32_t groups = kn_groups(x->cols, group);
    size_t x_stride = (size_t)groups * group;
    const int8_t *q = x->q + s * x_stride;
    const float *scale = x->scale + (size_t)s * groups;
    const int32_t *offset = x->sum + (size_t)s * groups;
    __m256 acc[4][2];

    KN_UNROLL
    for (int t = 0; t < T; t++)
        acc[t][0] = acc[t][1] = _mm256_setzero_ps();
    for (uint32_t g = 0; g < groups; g++) {
        group_scales sw = load_scales(w, f32_scales);
        __m256i sum[4][2];

        w += kn_scales_size(f32_scales);
        kn_prefetch_scales(&ahead, f32_scales);
        KN_UNROLL
        for (int t = 0; t < T; t++)
            sum[t][0] = sum[t][1] = _mm256_set1_epi32(-8 * offset[(size_t)t * groups + g]);
        for (uint32_t k = 0; k < group; k += 8 * (uint32_t)lines) {
            q4_lines(sum, w, q, x_stride, lines, &ahead, T);
            w += KN_LINE_BYTES * lines;
            q += 8 * lines;
        }
        KN_UNROLL
        for (int t = 0; t < T; t++) {
            KN_UNROLL
            for (int i = 0; i < 2; i++)
                acc[t][i] =
                    chain_step(acc[t][i], sw.scale[i], scale[(size_t)t * groups + g], sum[t][i]);
        }
    }
    KN_UNROLL
    for (int t = 0; t < T; t++) {
        KN_UNROLL
        for (int i = 0; i < 2; i++)
            _mm256_storeu_ps(out + (size_t)t * out_stride + 8 * i, acc[t][i]);
    }
}

/* 4 lines of 4 inputs for T tokens: low and high nibbles of w + 128 summed in 16 bits. One half of
 * the rows after the other: four tokens then fit the registers, and the activations are read twice,
 * which is free. */
KN_AVX2_INLINE void q8_lines(__m256i (*sum)[2], const uint8_t *w, const int8_t *x, size_t x_stride,
                             kn_tile_ahead *ahead, int T)
{
    const __m256i low = _mm256_set1_epi8(15), top = _mm256_set1_epi8(8);
    const __m256i one = _mm256_set1_epi16(1), sixteen = _mm256_set1_epi16(16);

    KN_UNROLL
    for (int i = 0; i < 2; i++) {
        __m256i a[4], b[4];

        KN_UNROLL
        for (int j = 0; j < 4; j++) {
            __m256i v = load_line(w + KN_LINE_BYTES * j + 32 * i);
            __m256i va = _mm256_and_si256(v, low);
            __m256i vb = _mm256_and_si256(_mm256_srli_epi16(v, 4), low);

            vb = _mm256_xor_si256(vb, top);
            if (i == 0) kn_prefetch(ahead);
            KN_UNROLL
            for (int t = 0; t < T; t++) {
                __m256i xa = _mm256_set1_epi32(kn_load_i32(x + (size_t)t * x_stride + 4 * j));
                __m256i pa = _mm256_maddubs_epi16(va, xa), pb = _mm256_maddubs_epi16(vb, xa);

                a[t] = j == 0 ? pa : _mm256_add_epi16(a[t], pa);
                b[t] = j == 0 ? pb : _mm256_add_epi16(b[t], pb);
                KEEP_IN_REGISTER(a[t]);
                KEEP_IN_REGISTER(b[t]);
            }
        }
        KN_UNROLL
        for (int t = 0; t < T; t++) {
            sum[t][i] = _mm256_add_epi32(sum[t][i], _mm256_madd_epi16(a[t], one));
            sum[t][i] = _mm256_add_epi32(sum[t][i], _mm256_madd_epi16(b[t], sixteen));
        }
    }
}

KN_AVX2_INLINE void q8_tile(const uint8_t *w, const kn_rows *x, uint32_t s, float *out,
                            size_t out_stride, kn_tile_ahead ahead, bool f32_scales, int T)
{
    uint32_t group = x->group, groups = kn_groups(x->cols, group);
    size_t x_stride = (size_t)groups * group;
    const int8_t *q = x->q + s * x_stride;
    const float *scale = x->scale + (size_t)s * groups;
    const int32_t *offset = x->sum + (size_t)s * groups;
    __m256 acc[4][2];

    KN_UNROLL
    for (int t = 0; t < T; t++)
        acc[t][0] = acc[t][1] = _mm256_setzero_ps();
    for (uint32_t g = 0; g < groups; g++) {
        group_scales sw = load_scales(w, f32_scales);
        __m256i sum[4][2];

        w += kn_scales_size(f32_scales);
        kn_prefetch_scales(&ahead, f32_scales);
        KN_UNROLL
        for (int t = 0; t < T; t++)
            sum[t][0] = sum[t][1] = _mm256_set1_epi32(-128 * offset[(size_t)t * groups + g]);
        for (uint32_t k = 0; k < group; k += 16) {
            q8_lines(sum, w, q, x_stride, &ahead, T);
            w += 4 * KN_LINE_BYTES;
            q += 16;
        }
        KN_UNROLL
        for (int t = 0; t < T; t++) {
            KN_UNROLL
            for (int i = 0; i < 2; i++)
                acc[t][i] =
                    chain_step(acc[t][i], sw.scale[i], scale[(size_t)t * groups + g], sum[t][i]);
        }
    }
    KN_UNROLL
    for (int t = 0; t < T; t++) {
        KN_UNROLL
        for (int i = 0; i < 2; i++)
            _mm256_storeu_ps(out + (size_t)t * out_stride + 8 * i, acc[t][i]);
    }
}

/* name is of a format, for the scales that it has. */
#define Q4_KERNEL(name, f32_scales, group, T)                                                      \
    KN_AVX2_FN static void name##_g##group##_t##T(const uint8_t *tile, const kn_rows *x,           \
                                                  uint32_t s, float *out, size_t out_stride,       \
                                                  kn_tile_ahead ahead)                             \
    {                                                                                              \
        q4_tile(tile, x, s, out, out_stride, ahead, group, f32_scales, T);                         \
    }
#define Q4_KERNELS(name, f32_scales, group)                                                        \
    Q4_KERNEL(name, f32_scales, group, 1)                                                          \
    Q4_KERNEL(name, f32_scales, group, 2)                                                          \
    Q4_KERNEL(name, f32_scales, group, 3)                                                          \
    Q4_KERNEL(name, f32_scales, group, 4)
Q4_KERNELS(q4, false, 16)
Q4_KERNELS(q4, false, 32)
Q4_KERNELS(q4, false, 64)
Q4_KERNELS(q4f32, true, 16)
Q4_KERNELS(q4f32, true, 32)
Q4_KERNELS(q4f32, true, 64)

#define Q8_KERNEL(name, f32_scales, T)                                                             \
    KN_AVX2_FN static void name##_t##T(const uint8_t *tile, const kn_rows *x, uint32_t s,          \
                                       float *out, size_t out_stride, kn_tile_ahead ahead)         \
    {                                                                                              \
        q8_tile(tile, x, s, out, out_stride, ahead, f32_scales, T);                                \
    }
#define Q8_KERNELS(name, f32_scales)                                                               \
    Q8_KERNEL(name, f32_scales, 1)                                                                 \
    Q8_KERNEL(name, f32_scales, 2)                                                                 \
    Q8_KERNEL(name, f32_scales, 3)                                                                 \
    Q8_KERNEL(name, f32_scales, 4)
Q8_KERNELS(q8, false)
Q8_KERNELS(q8f32, true)

#define BY_TOKENS(name)                                                                            \
    {                                                                                              \
        name##_t1, name##_t2, name##_t3, name##_t4                                                 \
    }

void kn_avx2_matmul_q4(float *y, size_t y_stride, const kn_rows *x, const kn_qmat *w,
                       uint32_t row_begin, uint32_t row_end)
{
    static const kn_tile_kernel kernels[2][3][4] = {
        {BY_TOKENS(q4_g16), BY_TOKENS(q4_g32), BY_TOKENS(q4_g64)},
        {BY_TOKENS(q4f32_g16), BY_TOKENS(q4f32_g32), BY_TOKENS(q4f32_g64)}};
    int row = w->group == 64 ? 2 : w->group == 32 ? 1 : 0;
    int wide = kn_format_has_f32_scales(w->format);

    kn_tiles_run(kernels[wide][row], 4, y, y_stride, x, w, row_begin, row_end);
}

void kn_avx2_matmul_q8(float *y, size_t y_stride, const kn_rows *x, const kn_qmat *w,
                       uint32_t row_begin, uint32_t row_end)
{
    static const kn_tile_kernel kernels[2][4] = {BY_TOKENS(q8), BY_TOKENS(q8f32)};

    kn_tiles_run(kernels[kn_format_has_f32_scales(w->format)], 4, y, y_stride, x, w, row_begin,
                 row_end);
}

#endif
