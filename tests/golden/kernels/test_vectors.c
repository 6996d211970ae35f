/* The bits of every kernel on fixed inputs, as committed hashes.
 *
 * A hash that changes means other tokens for every existing container (raise the numerics id) or
 * other bytes of a conversion (raise the conversion id); see docs/numerics.md. All variants of this
 * machine must give the same bits: a machine that runs this test may call its variant exact. */
#include "kernels/attention.h"
#include "kernels/grid.h"
#include "kernels/mathf.h"
#include "kernels/matmul.h"
#include "kernels/norm.h"
#include "kernels/rope.h"
#include "tests/support/numbers.h"
#include "tests/support/variants.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 48, COLS = 192, TOKENS = 5, N = 4096 };

/* FNV-1a */
static uint64_t hash_of(const void *data, size_t bytes)
{
    const uint8_t *at = data;
    uint64_t hash = 0xcbf29ce484222325U;

    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ at[i]) * 0x100000001b3U;
    return hash;
}

static bool expect(const char *what, const void *data, size_t bytes, uint64_t expected)
{
    uint64_t found = hash_of(data, bytes);

    if (found == expected) return true;
    printf("%s under %s: %#018llx, expected %#018llx\n", what, kn_variant_name(kn_selected()),
           (unsigned long long)found, (unsigned long long)expected);
    return false;
}

static void weights_quantise_and_pack_to_the_same_bytes(void **state)
{
    static _Alignas(64) uint8_t tiles[ROWS * COLS * 4];
    static float w[ROWS * COLS];
    static const struct {
        kn_format format;
        uint64_t hash;
    } cases[] = {{KN_F32, 0xcc508d14a27583a9},
                 {KN_BF16, 0x98bfe8200beeb6e1},
                 {KN_Q8, 0x2626c133775ec7b1},
                 {KN_Q4, 0xc136b983a8a4737f}};
    test_random random = {41};
    bool good = true;

    (void)state;
    test_random_fill(&random, w, ROWS * COLS, 0.02F);
    for (int v = 0; v < KN_VARIANT_COUNT; v++) {
        if (!test_variant_select(v)) continue;
        for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
            kn_qmat_pack(cases[c].format, COLS, 64, w, COLS, ROWS, tiles);
            good &= expect(kn_format_name(cases[c].format), tiles,
                           kn_qmat_bytes(cases[c].format, ROWS, COLS, 64), cases[c].hash);
        }
    }
    assert_true(good);
}

static void products_have_the_same_bits(void **state)
{
    static _Alignas(64) uint8_t tiles[ROWS * COLS * 4], quantised[TOKENS * COLS * 4];
    static float w[ROWS * COLS], x[TOKENS * COLS], y[TOKENS * ROWS];
    static const struct {
        const char *what;
        kn_format format;
        bool int_rows;
        uint64_t hash;
    } cases[] = {
        {"f32", KN_F32, false, 0x1ff45742ecea3fda},
        {"bf16", KN_BF16, false, 0x6af89a308c8f1cd7},
        {"q8", KN_Q8, true, 0x87a79ceaf8e939d4},
        {"q4", KN_Q4, true, 0x6bc65a72cc776e1b},
        {"q8 float rows", KN_Q8, false, 0x1cf8895437e0f75d},
        {"q4 float rows", KN_Q4, false, 0x74db05ac48b61d4c},
    };
    test_random random = {42};
    bool good = true;

    (void)state;
    test_random_fill(&random, w, ROWS * COLS, 0.02F);
    test_random_fill(&random, x, TOKENS * COLS, 1);
    for (int v = 0; v < KN_VARIANT_COUNT; v++) {
        if (!test_variant_select(v)) continue;
        for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
            kn_qmat mat = {cases[c].format, ROWS, COLS, 32, tiles};
            kn_rows rows = cases[c].int_rows
                               ? kn_rows_quantise(x, COLS, TOKENS, COLS, 32, quantised)
                               : kn_rows_float(x, COLS, TOKENS, COLS);

            kn_qmat_pack(cases[c].format, COLS, 32, w, COLS, ROWS, tiles);
            kn_matmul(y, ROWS, &rows, &mat, 0, ROWS);
            good &= expect(cases[c].what, y, sizeof(y), cases[c].hash);
        }
    }
    assert_true(good);
}

static void row_functions_have_the_same_bits(void **state)
{
    static float x[N], weight[N], out[N];
    float inv[32], table[64];
    int32_t acc[N];
    test_random random = {43};
    bool good = true;

    (void)state;
    test_random_fill(&random, x, N, 4);
    test_random_fill(&random, weight, N, 1);
    for (int v = 0; v < KN_VARIANT_COUNT; v++) {
        if (!test_variant_select(v)) continue;
        kn_rms_norm(out, N, x, N, weight, 1, N, 1e-5F);
        good &= expect("rms norm", out, sizeof(out), 0xb2c96048d6c5350d);
        kn_layer_norm(out, N, x, N, weight, x, 1, N, 1e-6F);
        good &= expect("layer norm", out, sizeof(out), 0x0c85b283866ae6d8);
        kn_silu_mul(out, x, weight, N);
        good &= expect("silu", out, sizeof(out), 0x5a69834b97ba8015);
        kn_sigmoid(out, x, N);
        good &= expect("sigmoid", out, sizeof(out), 0xe120a1d9dc59e192);
        for (int i = 0; i < N; i++)
            out[i] = kn_logf(x[i] * x[i]);
        good &= expect("log", out, sizeof(out), 0xff5892a082f33018);
        memcpy(out, x, sizeof(out));
        out[0] = kn_softmax_exp(out, N);
        good &= expect("softmax", out, sizeof(out), 0x07df236db731ee24);
        kn_rope_inv_freq(8e6, 64, inv);
        kn_rope_angles(123457, inv, 64, table, table + 32);
        good &= expect("rope tables", table, sizeof(table), 0xf8f3a3fa8953748a);
        memcpy(out, x, sizeof(out));
        kn_rope_apply(out, 64, N / 64, table, table + 32, 64);
        good &= expect("rope", out, sizeof(out), 0x55470e1fc962efff);
        memset(acc, 0, sizeof(acc));
        assert_int_equal(kn_grid_add(acc, x, 0.3F * kn_exp2i(13), N), KN_GRID_NARROW);
        good &= expect("grid", acc, sizeof(acc), 0x82b70657fc733385);
    }
    assert_true(good);
}

static void attention_has_the_same_bits(void **state)
{
    enum { HEADS = 8, WIDTH = 96, POSITIONS = 40 };
    static uint16_t cache[POSITIONS * WIDTH];
    static float q[HEADS * WIDTH], values[POSITIONS * WIDTH], score[HEADS * POSITIONS];
    static float out[HEADS * 64];
    float sum[HEADS];
    uint32_t list[POSITIONS];
    kn_cache_view view = {cache, WIDTH * 2, WIDTH, true};
    test_random random = {44};
    bool good = true;

    (void)state;
    test_random_fill(&random, values, POSITIONS * WIDTH, 1);
    test_random_fill(&random, q, HEADS * WIDTH, 0.5F);
    for (uint32_t i = 0; i < POSITIONS; i++)
        list[i] = i;
    for (int v = 0; v < KN_VARIANT_COUNT; v++) {
        if (!test_variant_select(v)) continue;
        kn_cache_store(cache, true, values, POSITIONS * WIDTH);
        kn_attn_scores(score, q, WIDTH, HEADS, &view, list, POSITIONS, 0.0625F);
        good &= expect("scores", score, sizeof(score), 0xe2134ea176e1c209);
        for (size_t h = 0; h < HEADS; h++)
            sum[h] = kn_softmax_exp(score + h * POSITIONS, POSITIONS);
        kn_attn_values(out, 64, score, sum, HEADS, 64, &view, list, POSITIONS);
        good &= expect("values", out, sizeof(out), 0xb3438067947fdf77);
        kn_index_scores(score, q, sum, HEADS, WIDTH, &view, POSITIONS, 0.1F);
        good &= expect("index scores", score, POSITIONS * sizeof(float), 0x33d548b65aba9ac3);
    }
    assert_true(good);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_quantise_and_pack_to_the_same_bytes),
        cmocka_unit_test(products_have_the_same_bits),
        cmocka_unit_test(row_functions_have_the_same_bits),
        cmocka_unit_test(attention_has_the_same_bits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
