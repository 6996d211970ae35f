/* selfcheck.c - the fixed inputs, the kernels run on them, and the hashes of what they must give.
 *
 * Shapes are chosen so that every loop and every tail of every variant runs: whole and short tiles,
 * full and short blocks of tokens, heads and positions. */
#include "kernels/selfcheck.h"

#include "base/check.h"
#include "kernels/attention.h"
#include "kernels/grid.h"
#include "kernels/mathf.h"
#include "kernels/matmul.h"
#include "kernels/norm.h"
#include "kernels/rope.h"
#include "kernels/topk.h"

#include <stdlib.h>
#include <string.h>

enum {
    ROWS = 73,      /* four tiles and a short one */
    COLS = 320,     /* groups of 64, 32 and 16 */
    TOKENS = 11,    /* 8 + 3, 4 + 4 + 3 */
    N = 4096,       /* of functions of one row */
    HEADS = 15,     /* 8 + 4 + 2 + 1, 6 + 6 + 2 + 1 */
    WIDTH = 300,    /* three pieces of score columns, the last short */
    RANK = 230,     /* two pieces of value columns, the last short */
    CACHE = 240,    /* cached rows */
    POSITIONS = 75, /* of them attended: one block of scores or two of values, and a tail */
};

typedef struct {
    _Alignas(64) uint8_t tiles[(size_t)(ROWS + 7) * COLS * 4];
    _Alignas(64) uint8_t quantised[(size_t)TOKENS * COLS * 8];
    _Alignas(64) uint8_t cache[(size_t)CACHE * WIDTH * 4];
    float w[ROWS * COLS], x[TOKENS * COLS], y[TOKENS * ROWS];
    int8_t ints[ROWS * COLS];
    float row[3][N];
    int32_t acc[N];
    float values[CACHE * WIDTH], q[HEADS * WIDTH], score[HEADS * CACHE], out[HEADS * RANK];
    float sum[HEADS];
    uint32_t list[POSITIONS], chosen[N], scratch[N];
} work;

/* splitmix64; the sum of twelve is near a normal number and exact in f64. */
static uint64_t random_bits(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15U;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9U;
    z = (z ^ z >> 27) * 0x94d049bb133111ebU;
    return z ^ z >> 31;
}

static void fill(float *x, size_t n, float scale, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) {
        double sum = 0;

        for (int j = 0; j < 12; j++)
            sum += (double)(random_bits(&seed) >> 11) * 0x1p-53;
        x[i] = (float)(sum - 6) * scale;
    }
}

/* FNV-1a, continued. */
static uint64_t hash_more(uint64_t hash, const void *data, size_t bytes)
{
    const uint8_t *at = data;

    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ at[i]) * 0x100000001b3U;
    return hash;
}

static uint64_t hash_of(const void *data, size_t bytes)
{
    return hash_more(0xcbf29ce484222325U, data, bytes);
}

typedef struct check {
    const char *what;
    uint64_t (*run)(work *k, const struct check *check);
    kn_format format;
    uint32_t group;
    bool bf16; /* of the cache */
    uint64_t hash;
} check;

static uint64_t check_pack(work *k, const check *c)
{
    kn_qmat_pack(c->format, COLS, c->group, k->w, COLS, ROWS, k->tiles);
    return hash_of(k->tiles, kn_qmat_bytes(c->format, ROWS, COLS, c->group));
}

/* Weights that came quantised: random integers, a scale for 64 columns, either sign. */
static void pack_ints(work *k, const check *c)
{
    int8_t *q = k->ints;
    uint64_t state = 47;

    for (size_t i = 0; i < (size_t)ROWS * COLS; i++) {
        uint64_t bits = random_bits(&state) >> 32;

        q[i] =
            (int8_t)(kn_format_is_q4(c->format) ? (int)(bits % 16) - 8 : (int)(bits % 255) - 127);
    }
    kn_qmat_pack_quantised(c->format, COLS, c->group, q, COLS, k->w, COLS / 64, 0, 64, ROWS,
                           k->tiles);
}

static uint64_t check_pack_ints(work *k, const check *c)
{
    pack_ints(k, c);
    return hash_of(k->tiles, kn_qmat_bytes(c->format, ROWS, COLS, c->group));
}

static uint64_t product(work *k, const check *c, const kn_rows *x)
{
    kn_qmat mat = {c->format, ROWS, COLS, c->group, k->tiles};

    if (kn_format_has_f32_scales(c->format))
        pack_ints(k, c);
    else
        kn_qmat_pack(c->format, COLS, c->group, k->w, COLS, ROWS, k->tiles);
    kn_matmul(k->y, ROWS, x, &mat, 0, ROWS);
    return hash_of(k->y, sizeof(k->y));
}

static uint64_t check_int_product(work *k, const check *c)
{
    kn_rows x = kn_rows_quantise(k->x, COLS, TOKENS, COLS, c->group, k->quantised);

    return product(k, c, &x);
}

static uint64_t check_float_product(work *k, const check *c)
{
    kn_rows x = kn_rows_float(k->x, COLS, TOKENS, COLS);

    return product(k, c, &x);
}

/* Rows as they come over a wire: the sums are computed from the integers. */
static uint64_t check_quantise(work *k, const check *c)
{
    kn_rows x = kn_rows_quantise(k->x, COLS, TOKENS, COLS, c->group, k->quantised);
    size_t groups = (size_t)TOKENS * kn_groups(COLS, c->group);
    uint64_t hash = hash_of(x.q, (size_t)TOKENS * COLS);

    hash = hash_more(hash, x.scale, groups * sizeof(float));
    hash = hash_more(hash, x.sum, groups * sizeof(int32_t));
    kn_rows_sums(x.q, TOKENS, COLS, c->group, k->acc);
    return hash_more(hash, k->acc, groups * sizeof(int32_t));
}

static uint64_t check_rms_norm(work *k, const check *c)
{
    (void)c;
    kn_rms_norm(k->row[2], N, k->row[0], N, k->row[1], 1, N, 1e-5F);
    return hash_of(k->row[2], sizeof(k->row[2]));
}

static uint64_t check_layer_norm(work *k, const check *c)
{
    (void)c;
    kn_layer_norm(k->row[2], N, k->row[0], N, k->row[1], k->row[0], 1, N, 1e-6F);
    return hash_of(k->row[2], sizeof(k->row[2]));
}

static uint64_t check_add_scale(work *k, const check *c)
{
    (void)c;
    memcpy(k->row[2], k->row[0], sizeof(k->row[2]));
    kn_add(k->row[2], k->row[1], N - 3);
    kn_scale(k->row[2], k->row[2], 0.3F, N - 1);
    return hash_of(k->row[2], sizeof(k->row[2]));
}

static uint64_t check_silu(work *k, const check *c)
{
    (void)c;
    kn_silu_mul(k->row[2], k->row[0], k->row[1], N);
    return hash_of(k->row[2], sizeof(k->row[2]));
}

static uint64_t check_sigmoid(work *k, const check *c)
{
    (void)c;
    kn_sigmoid(k->row[2], k->row[0], N);
    return hash_of(k->row[2], sizeof(k->row[2]));
}

static uint64_t check_log(work *k, const check *c)
{
    (void)c;
    for (int i = 0; i < N; i++)
        k->row[2][i] = kn_logf(k->row[0][i] * k->row[0][i]);
    return hash_of(k->row[2], sizeof(k->row[2]));
}

static uint64_t check_softmax(work *k, const check *c)
{
    (void)c;
    memcpy(k->row[2], k->row[0], sizeof(k->row[2]));
    k->row[2][0] = kn_softmax_exp(k->row[2], N - 5);
    return hash_of(k->row[2], sizeof(k->row[2]));
}

static uint64_t check_rope(work *k, const check *c)
{
    float inv[32], table[64];

    (void)c;
    kn_rope_inv_freq(8e6, 64, inv);
    kn_rope_angles(123457, inv, 64, table, table + 32);
    memcpy(k->row[2], k->row[0], sizeof(k->row[2]));
    kn_rope_apply(k->row[2], 64, N / 64, table, table + 32, 64);
    return hash_more(hash_of(table, sizeof(table)), k->row[2], sizeof(k->row[2]));
}

static uint64_t check_grid(work *k, const check *c)
{
    float ws = 0.3F * kn_exp2i(13);
    kn_grid_class class;

    (void)c;
    memset(k->acc, 0, sizeof(k->acc));
    class = kn_grid_add(k->acc, k->row[0], ws, N);
    kn_grid_finish(k->row[2], k->acc, N, 13);
    class = kn_grid_classify(k->row[0], ws, N) == class ? class : KN_GRID_POISON;
    return hash_more(hash_of(&class, sizeof(class)), k->row[2], sizeof(k->row[2]));
}

static uint64_t check_selection(work *k, const check *c)
{
    uint32_t best = kn_argmax(k->row[0], N);
    bool good = kn_topk(k->chosen, k->row[0], N, 100, k->scratch);

    (void)c;
    return good ? hash_more(hash_of(&best, sizeof(best)), k->chosen, 100 * sizeof(uint32_t)) : 0;
}

static kn_cache_view fill_cache(work *k, bool bf16)
{
    size_t row_bytes = (size_t)WIDTH * (bf16 ? 2 : 4);

    for (size_t i = 0; i < CACHE; i++)
        kn_cache_store(k->cache + i * row_bytes, bf16, k->values + i * WIDTH, WIDTH);
    return (kn_cache_view){k->cache, row_bytes, WIDTH, bf16};
}

/* Fills out [heads][RANK]; hash is continued by the scores, which the softmax takes the place of. */
static uint64_t attend(work *k, const kn_cache_view *view, uint32_t heads, const uint32_t *list,
                       uint32_t positions, uint64_t hash)
{
    kn_attn_scores(k->score, k->q, WIDTH, heads, view, list, positions, 0.0625F);
    hash = hash_more(hash, k->score, (size_t)heads * positions * sizeof(float));
    for (size_t h = 0; h < heads; h++)
        k->sum[h] = kn_softmax_exp(k->score + h * positions, positions);
    kn_attn_values(k->out, RANK, k->score, k->sum, heads, RANK, view, list, positions);
    return hash;
}

static uint64_t check_attention(work *k, const check *c)
{
    kn_cache_view view = fill_cache(k, c->bf16);
    uint64_t hash = attend(k, &view, HEADS, k->list, POSITIONS, hash_of(NULL, 0));

    kn_cache_load(k->row[2], c->bf16, k->cache, WIDTH);
    hash = hash_more(hash, k->row[2], WIDTH * sizeof(float));
    return hash_more(hash, k->out, sizeof(k->out));
}

/* More positions than any variant takes at once, by many heads and by few. */
static uint64_t check_long_attention(work *k, const check *c)
{
    enum { FEW = 5, LONG = CACHE - 1 };
    kn_cache_view view = fill_cache(k, c->bf16);
    uint64_t hash;

    for (uint32_t i = 0; i < LONG; i++)
        k->chosen[i] = i + (i >= LONG / 2); /* all rows but one */
    hash = attend(k, &view, HEADS, k->chosen, LONG, hash_of(NULL, 0));
    hash = hash_more(hash, k->out, sizeof(k->out));
    hash = attend(k, &view, FEW, k->chosen, LONG, hash);
    return hash_more(hash, k->out, (size_t)FEW * RANK * sizeof(float));
}

static uint64_t check_index(work *k, const check *c)
{
    enum { DIM = 132 };
    kn_cache_view view = fill_cache(k, c->bf16);

    view.width = DIM;
    kn_index_scores(k->score, k->q, k->row[1], HEADS, DIM, &view, CACHE - 3, 0.1F);
    return hash_of(k->score, (size_t)(CACHE - 3) * sizeof(float));
}

static const check checks[] = {
    {"pack f32", check_pack, KN_F32, 64, false, 0x8c599a85004cd0c8},
    {"pack bf16", check_pack, KN_BF16, 64, false, 0x1d658a50c8a8b7cc},
    {"pack q8, groups of 64", check_pack, KN_Q8, 64, false, 0x3e442f7fb83f412e},
    {"pack q8, groups of 16", check_pack, KN_Q8, 16, false, 0x50a423242e2e4c6b},
    {"pack q4, groups of 64", check_pack, KN_Q4, 64, false, 0x244f295fa5e3c76a},
    {"pack q4, groups of 32", check_pack, KN_Q4, 32, false, 0xcbe7bd6844729afd},
    {"pack q4, groups of 16", check_pack, KN_Q4, 16, false, 0x063f254d38efe842},
    {"quantise rows, groups of 64", check_quantise, KN_Q8, 64, false, 0x16602a5bc52e4810},
    {"quantise rows, groups of 16", check_quantise, KN_Q8, 16, false, 0x8045977cfa677a62},
    {"f32 product", check_float_product, KN_F32, 64, false, 0xcc2b1b40ce53dbd0},
    {"bf16 product", check_float_product, KN_BF16, 64, false, 0xfd523407284f9e07},
    {"q8 product, groups of 64", check_int_product, KN_Q8, 64, false, 0x6adde2eb0749be05},
    {"q8 product, groups of 32", check_int_product, KN_Q8, 32, false, 0xb392700403b3a71e},
    {"q8 product, groups of 16", check_int_product, KN_Q8, 16, false, 0xe73ccc6f21fd5868},
    {"q4 product, groups of 64", check_int_product, KN_Q4, 64, false, 0x6eeb72bd958e9306},
    {"q4 product, groups of 32", check_int_product, KN_Q4, 32, false, 0x3d205836adbc5de3},
    {"q4 product, groups of 16", check_int_product, KN_Q4, 16, false, 0xd7aaf3380151a1b0},
    {"q8 product, float rows", check_float_product, KN_Q8, 32, false, 0x683f592e61c50360},
    {"q4 product, float rows", check_float_product, KN_Q4, 32, false, 0xaaa199b16cff87f4},
    {"pack q8f32, groups of 32", check_pack, KN_Q8F32, 32, false, 0xda050179178fee3d},
    {"pack q4f32, groups of 64", check_pack, KN_Q4F32, 64, false, 0x400507c8531e42eb},
    {"q8f32 from integers", check_pack_ints, KN_Q8F32, 32, false, 0xce3def808fb877bd},
    {"q4f32 from integers", check_pack_ints, KN_Q4F32, 64, false, 0x28a3916a38305712},
    {"q8f32 product, groups of 64", check_int_product, KN_Q8F32, 64, false, 0x4cc600f4f8344295},
    {"q8f32 product, groups of 32", check_int_product, KN_Q8F32, 32, false, 0x10a79166d80dde30},
    {"q8f32 product, groups of 16", check_int_product, KN_Q8F32, 16, false, 0x541b7940bc09b392},
    {"q4f32 product, groups of 64", check_int_product, KN_Q4F32, 64, false, 0xd384448d20ca1510},
    {"q4f32 product, groups of 32", check_int_product, KN_Q4F32, 32, false, 0x640dc11740e5441a},
    {"q4f32 product, groups of 16", check_int_product, KN_Q4F32, 16, false, 0x40c09d0a59fa0faf},
    {"q8f32 product, float rows", check_float_product, KN_Q8F32, 32, false, 0x061b27bb2c060327},
    {"q4f32 product, float rows", check_float_product, KN_Q4F32, 32, false, 0x7b9fa1ba3d9cb28c},
    {"rms norm", check_rms_norm, KN_F32, 0, false, 0xc1c31a334f85bcf1},
    {"layer norm", check_layer_norm, KN_F32, 0, false, 0x175e7de17d8e82f4},
    {"add and scale", check_add_scale, KN_F32, 0, false, 0x89d52c33e1787b52},
    {"silu", check_silu, KN_F32, 0, false, 0xa7357a2c9362a957},
    {"sigmoid", check_sigmoid, KN_F32, 0, false, 0xe120a1d9dc59e192},
    {"log", check_log, KN_F32, 0, false, 0xff5892a082f33018},
    {"softmax", check_softmax, KN_F32, 0, false, 0x2f6221ee7504a8b8},
    {"rope", check_rope, KN_F32, 0, false, 0x86ff8f3bc5042e50},
    {"combine grid", check_grid, KN_F32, 0, false, 0x7bc770625c145e4f},
    {"argmax and top-k", check_selection, KN_F32, 0, false, 0xc883d1c505983fa1},
    {"attention, f32 cache", check_attention, KN_F32, 0, false, 0xa5606ab3079944bd},
    {"attention, bf16 cache", check_attention, KN_F32, 0, true, 0x1d84a0619c221297},
    {"long attention, f32 cache", check_long_attention, KN_F32, 0, false, 0xe00eb4b1e77ea70e},
    {"long attention, bf16 cache", check_long_attention, KN_F32, 0, true, 0x1b1c0de9e45fe6db},
    {"index scores, f32 keys", check_index, KN_F32, 0, false, 0x9a7ee82bf10998be},
    {"index scores, bf16 keys", check_index, KN_F32, 0, true, 0xc6ced05936c3225b},
};

uint32_t kn_selfcheck_count(void)
{
    return sizeof(checks) / sizeof(checks[0]);
}

static void fill_inputs(work *k)
{
    fill(k->w, ROWS * COLS, 0.02F, 41);
    fill(k->x, TOKENS * COLS, 1, 42);
    fill(k->row[0], N, 4, 43);
    fill(k->row[1], N, 1, 44);
    fill(k->values, CACHE * WIDTH, 1, 45);
    fill(k->q, HEADS * WIDTH, 0.5F, 46);
    for (uint32_t i = 0; i < POSITIONS; i++)
        k->list[i] = i * 3 + i % 2;
}

rt_status kn_selfcheck(kn_variant variant, kn_selfcheck_row *rows, rt_err *err)
{
    kn_variant before = kn_selected();
    work *k = aligned_alloc(64, sizeof(*k));
    rt_status status;

    if (k == NULL) return rt_fail(err, RT_ENOMEM, "kernel self-check");
    status = kn_select(kn_variant_name(variant), err);
    if (status != RT_OK) {
        free(k);
        return status;
    }
    fill_inputs(k);
    for (uint32_t i = 0; i < kn_selfcheck_count(); i++)
        rows[i] = (kn_selfcheck_row){checks[i].what, checks[i].hash, checks[i].run(k, &checks[i])};
    free(k);
    status = kn_select(kn_variant_name(before), NULL);
    RT_ASSERT(status == RT_OK);
    return RT_OK;
}
