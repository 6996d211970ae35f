/* matmul_float_avx2.c - f32 and bf16 weights, and q weights with float activations, with AVX2.
 *
 * An output is one chain of fused adds, 4 cycles each: ten chains must run side by side to keep the
 * multipliers busy. Few tokens therefore take several tiles at once. */
#include "kernels/matmul_tiles.h"

#include "kernels/vec_avx2.h"

#if KN_X86

enum { TILES_MAX = 4 };

/* Half i of the 16 weights of input k. */
KN_AVX2_INLINE __m256 load_weights(const uint8_t *tile, size_t k, int i, bool bf16)
{
    if (bf16) return kn_load8_bf16(tile + k * 32 + 16 * (size_t)i);
    return _mm256_loadu_ps((const float *)(const void *)(tile + k * 64 + 32 * (size_t)i));
}

/* N tiles for T tokens. */
KN_AVX2_INLINE void float_tiles(const kn_float_job *job, bool bf16, int T, int N)
{
    __m256 acc[TILES_MAX][4][2];

    KN_UNROLL
    for (int n = 0; n < N; n++) {
        KN_UNROLL
        for (int t = 0; t < T; t++) {
            const float *out = job->out + (size_t)t * job->out_stride + (size_t)n * KN_TILE_ROWS;

            acc[n][t][0] = job->first ? _mm256_setzero_ps() : _mm256_loadu_ps(out);
            acc[n][t][1] = job->first ? _mm256_setzero_ps() : _mm256_loadu_ps(out + 8);
        }
    }
    for (size_t k = 0; k < job->cols; k++) {
        __m256 x[4];

        KN_UNROLL
        for (int t = 0; t < T; t++)
            x[t] = _mm256_broadcast_ss(job->x + (size_t)t * job->x_stride + k);
        __builtin_prefetch(job->ahead + k * (bf16 ? 32 : 64));
        KN_UNROLL
        for (int n = 0; n < N; n++) {
            const uint8_t *tile = job->tile + (size_t)n * job->tile_bytes;
            __m256 w0 = load_weights(tile, k, 0, bf16), w1 = load_weights(tile, k, 1, bf16);

            KN_UNROLL
            for (int t = 0; t < T; t++) {
                acc[n][t][0] = _mm256_fmadd_ps(x[t], w0, acc[n][t][0]);
                acc[n][t][1] = _mm256_fmadd_ps(x[t], w1, acc[n][t][1]);
            }
        }
    }
    KN_UNROLL
    for (int n = 0; n < N; n++) {
        KN_UNROLL
        for (int t = 0; t < T; t++) {
            float *out = job->out + (size_t)t * job->out_stride + (size_t)n * KN_TILE_ROWS;

            _mm256_storeu_ps(out, acc[n][t][0]);
            _mm256_storeu_ps(out + 8, acc[n][t][1]);
        }
    }
}

/* The weights of input k of a group: scale * q, rounded once. */
KN_AVX2_INLINE __m256 decode(const uint8_t *lines, uint32_t k, int i, __m256 scale, bool q4)
{
    const uint8_t *line = lines + k / (q4 ? 8 : 4) * KN_LINE_BYTES + 32 * (size_t)i;
    __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)line);
    __m128i shift;

    if (q4) {
        shift = _mm_cvtsi32_si128((int)(k % 4 * 8 + (k % 8 < 4 ? 0 : 4)));
        v = _mm256_and_si256(_mm256_srl_epi32(v, shift), _mm256_set1_epi32(15));
        v = _mm256_sub_epi32(v, _mm256_set1_epi32(8));
    } else {
        shift = _mm_cvtsi32_si128((int)(24 - k % 4 * 8));
        v = _mm256_srai_epi32(_mm256_sll_epi32(v, shift), 24);
    }
    return _mm256_mul_ps(scale, _mm256_cvtepi32_ps(v));
}

/* Of half i of the rows. */
KN_AVX2_INLINE __m256 load_scales(const uint8_t *at, int i, bool f32_scales)
{
    if (f32_scales) return _mm256_loadu_ps((const float *)(const void *)(at + 32 * i));
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(at + 16 * i)));
}

/* One tile of a q format for T tokens. */
KN_AVX2_INLINE void dequant_tile(const kn_float_job *job, bool q4, bool f32_scales, int T)
{
    const uint8_t *at = job->tile;
    __m256 acc[4][2];

    KN_UNROLL
    for (int t = 0; t < T; t++)
        acc[t][0] = acc[t][1] = _mm256_setzero_ps();
    for (uint32_t begin = 0; begin < job->cols; begin += job->group) {
        uint32_t n = job->cols - begin < job->group ? job->cols - begin : job->group;
        __m256 s0 = load_scales(at, 0, f32_scales), s1 = load_scales(at, 1, f32_scales);

        at += kn_scales_size(f32_scales);
        for (uint32_t k = 0; k < n; k++) {
            __m256 w0 = decode(at, k, 0, s0, q4), w1 = decode(at, k, 1, s1, q4);

            KN_UNROLL
            for (int t = 0; t < T; t++) {
                __m256 x = _mm256_broadcast_ss(job->x + (size_t)t * job->x_stride + begin + k);

                acc[t][0] = _mm256_fmadd_ps(x, w0, acc[t][0]);
                acc[t][1] = _mm256_fmadd_ps(x, w1, acc[t][1]);
            }
        }
        at += (size_t)job->group * (q4 ? 8 : 16);
    }
    KN_UNROLL
    for (int t = 0; t < T; t++) {
        KN_UNROLL
        for (int i = 0; i < 2; i++)
            _mm256_storeu_ps(job->out + (size_t)t * job->out_stride + 8 * i, acc[t][i]);
    }
}

#define FLOAT_KERNEL(T, N)                                                                         \
    KN_AVX2_FN static void f32_t##T##_n##N(const kn_float_job *job)                                \
    {                                                                                              \
        float_tiles(job, false, T, N);                                                             \
    }                                                                                              \
    KN_AVX2_FN static void bf16_t##T##_n##N(const kn_float_job *job)                               \
    {                                                                                              \
        float_tiles(job, true, T, N);                                                              \
    }
FLOAT_KERNEL(1, 1)
FLOAT_KERNEL(1, 4)
FLOAT_KERNEL(2, 1)
FLOAT_KERNEL(2, 2)
FLOAT_KERNEL(3, 1)
FLOAT_KERNEL(3, 2)

#define DEQUANT_KERNEL(name, q4, f32_scales, T)                                                    \
    KN_AVX2_FN static void name##_t##T(const kn_float_job *job)                                    \
    {                                                                                              \
        dequant_tile(job, q4, f32_scales, T);                                                      \
    }
#define DEQUANT_KERNELS(name, q4, f32_scales)                                                      \
    DEQUANT_KERNEL(name, q4, f32_scales, 1)                                                        \
    DEQUANT_KERNEL(name, q4, f32_scales, 2)                                                        \
    DEQUANT_KERNEL(name, q4, f32_scales, 3)                                                        \
    DEQUANT_KERNEL(name, q4, f32_scales, 4)
DEQUANT_KERNELS(q8, false, false)
DEQUANT_KERNELS(q4, true, false)
DEQUANT_KERNELS(q8f32, false, true)
DEQUANT_KERNELS(q4f32, true, true)

static const kn_float_kernels f32_kernels = {{f32_t1_n1, f32_t2_n1, f32_t3_n1, NULL},
                                             {f32_t1_n4, f32_t2_n2, f32_t3_n2, NULL},
                                             {4, 2, 2, 0},
                                             3,
                                             64};
static const kn_float_kernels bf16_kernels = {{bf16_t1_n1, bf16_t2_n1, bf16_t3_n1, NULL},
                                              {bf16_t1_n4, bf16_t2_n2, bf16_t3_n2, NULL},
                                              {4, 2, 2, 0},
                                              3,
                                              32};
#define DEQUANT_TABLE(name)                                                                        \
    {                                                                                              \
        {name##_t1, name##_t2, name##_t3, name##_t4},                                              \
            {name##_t1, name##_t2, name##_t3, name##_t4}, {1, 1, 1, 1}, 4, 0                       \
    }
static const kn_float_kernels q8_kernels = DEQUANT_TABLE(q8);
static const kn_float_kernels q4_kernels = DEQUANT_TABLE(q4);
static const kn_float_kernels q8f32_kernels = DEQUANT_TABLE(q8f32);
static const kn_float_kernels q4f32_kernels = DEQUANT_TABLE(q4f32);

static const kn_float_kernels *kernels_of(kn_format format)
{
    switch (format) {
    case KN_F32:
        return &f32_kernels;
    case KN_BF16:
        return &bf16_kernels;
    case KN_Q8:
        return &q8_kernels;
    case KN_Q4:
        return &q4_kernels;
    case KN_Q8F32:
        return &q8f32_kernels;
    case KN_Q4F32:
        break;
    }
    return &q4f32_kernels;
}

void kn_avx2_matmul_float(float *y, size_t y_stride, const kn_rows *x, const kn_qmat *w,
                          uint32_t row_begin, uint32_t row_end)
{
    kn_float_run(kernels_of(w->format), y, y_stride, x, w, row_begin, row_end);
}

#endif
