/* Sizes and layouts of weight matrices: packing, unpacking, padding, and the bytes themselves. */
#include "kernels/qmat.h"

#include "kernels/quant.h"
#include "tests/support/numbers.h"
#include "tests/support/variants.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const kn_format all_formats[] = {KN_F32, KN_BF16, KN_Q8, KN_Q4};

static void format_names_are_those_of_the_options(void **state)
{
    kn_format format = KN_F32;

    (void)state;
    for (int i = 0; i < 4; i++) {
        assert_true(kn_format_parse(kn_format_name(all_formats[i]), &format));
        assert_int_equal(format, all_formats[i]);
    }
    assert_null(kn_format_name((kn_format)0));
    assert_null(kn_format_name((kn_format)5));
    format = KN_Q8;
    assert_false(kn_format_parse("Q4", &format));
    assert_false(kn_format_parse("", &format));
    assert_int_equal(format, KN_Q8);
}

static void groups_are_the_largest_divisor_within_the_limit(void **state)
{
    (void)state;
    assert_int_equal(kn_group(6144, 0), 64);
    assert_int_equal(kn_group(2048, 1024), 64);
    assert_int_equal(kn_group(96, 0), 32);
    assert_int_equal(kn_group(80, 0), 16);
    assert_int_equal(kn_group(64, 32), 32);
    assert_int_equal(kn_group(64, 24), 16);
    assert_int_equal(kn_group(32, 16), 16);
    assert_int_equal(kn_group(7, 0), 16);
    assert_int_equal(kn_group(0, 0), 64);
}

static void sizes_are_those_of_the_layout(void **state)
{
    (void)state;
    assert_int_equal(kn_qmat_tile_bytes(KN_F32, 5, 16), 5 * 64);
    assert_int_equal(kn_qmat_tile_bytes(KN_BF16, 5, 16), 6 * 32);
    assert_int_equal(kn_qmat_tile_bytes(KN_Q8, 16, 16), 320);     /* 32 + 256, padded */
    assert_int_equal(kn_qmat_tile_bytes(KN_Q4, 16, 16), 192);     /* 32 + 128, padded */
    assert_int_equal(kn_qmat_tile_bytes(KN_Q4, 17, 16), 320);     /* two groups */
    assert_int_equal(kn_qmat_tile_bytes(KN_Q4, 6144, 64), 52224); /* 96 * 544 */
    assert_int_equal(kn_qmat_bytes(KN_Q4, 2048, 6144, 64), 128 * 52224);
    assert_int_equal(kn_qmat_bytes(KN_Q4, 17, 6144, 64), 2 * 52224);
    assert_int_equal(kn_qmat_bytes(KN_F32, 0, 6144, 64), 0);
}

/* What a weight becomes, by the group quantisers and conversions alone. */
static void expected_row(kn_format format, const float *w, uint32_t cols, uint32_t group,
                         float *out)
{
    for (uint32_t k = 0; k < cols; k += group) {
        uint32_t n = cols - k < group ? cols - k : group;
        int8_t q[64];
        float scale;

        if (!kn_format_is_int(format)) {
            for (uint32_t i = k; i < k + n; i++)
                out[i] = format == KN_F32 ? w[i] : kn_f32_from_bf16(kn_bf16_from_f32(w[i]));
            continue;
        }
        scale = kn_f32_from_f16(format == KN_Q4 ? kn_quant_q4_group(w + k, n, q)
                                                : kn_quant_q8_group(w + k, n, q));
        for (uint32_t i = 0; i < n; i++)
            out[k + i] = scale * (float)q[i];
    }
}

static void unpacked_rows_are_the_quantised_weights_over_odd_shapes(void **state)
{
    float *w = calloc(40 * 210, sizeof(float)), found[200], expected[200];
    void *tiles = aligned_alloc(64, kn_qmat_bytes(KN_F32, 48, 210, 16));
    test_random random = {3};

    (void)state;
    assert_true(w != NULL && tiles != NULL);
    test_random_fill(&random, w, 40 * 210, 0.1F);
    for (int f = 0; f < 4; f++) {
        for (uint32_t group = 16; group <= 64; group *= 2) {
            for (uint32_t rows = 1; rows <= 40; rows += 13) {
                for (uint32_t cols = 1; cols <= 200; cols += cols < 3 ? 1 : 41) {
                    kn_qmat mat = {all_formats[f], rows, cols, group, tiles};

                    kn_qmat_pack(all_formats[f], cols, group, w, 210, rows, tiles);
                    for (uint32_t r = 0; r < rows; r++) {
                        kn_qmat_unpack_row(&mat, r, found);
                        expected_row(all_formats[f], w + r * 210, cols, group, expected);
                        assert_true(test_floats_equal("weight", found, expected, cols));
                    }
                }
            }
        }
    }
    free(w);
    free(tiles);
}

static void packing_is_the_same_in_pieces_and_under_every_variant(void **state)
{
    enum { ROWS = 37, COLS = 150, GROUP = 32 };
    float *w = calloc((size_t)ROWS * COLS, sizeof(float));
    size_t bytes = kn_qmat_bytes(KN_F32, ROWS, COLS, GROUP);
    uint8_t *whole = aligned_alloc(64, bytes), *pieces = aligned_alloc(64, bytes);
    test_random random = {4};

    (void)state;
    assert_true(w != NULL && whole != NULL && pieces != NULL);
    test_random_fill(&random, w, (size_t)ROWS * COLS, 0.1F);
    for (int f = 0; f < 4; f++) {
        size_t tile = kn_qmat_tile_bytes(all_formats[f], COLS, GROUP);
        size_t used = kn_qmat_bytes(all_formats[f], ROWS, COLS, GROUP);

        test_variant_select(KN_REF);
        memset(whole, 0xaa, bytes);
        kn_qmat_pack(all_formats[f], COLS, GROUP, w, COLS, ROWS, whole);
        for (int v = 0; v < KN_VARIANT_COUNT; v++) {
            if (!test_variant_select(v)) continue;
            memset(pieces, 0x55, bytes);
            kn_qmat_pack(all_formats[f], COLS, GROUP, w + 32 * COLS, COLS, 5, pieces + 2 * tile);
            kn_qmat_pack(all_formats[f], COLS, GROUP, w, COLS, 32, pieces);
            assert_memory_equal(whole, pieces, used);
        }
    }
    free(w);
    free(whole);
    free(pieces);
}

static void padding_rows_and_columns_are_zero_weights(void **state)
{
    enum { COLS = 17, GROUP = 16 };
    static _Alignas(64) uint8_t tiles[4096];
    float w[COLS], row[COLS];

    (void)state;
    for (int i = 0; i < COLS; i++)
        w[i] = 1.0F + (float)i;
    for (int f = 0; f < 4; f++) {
        kn_qmat mat = {all_formats[f], 16, COLS, GROUP, tiles};
        size_t bytes = kn_qmat_tile_bytes(all_formats[f], COLS, GROUP);

        assert_true(bytes <= sizeof(tiles));
        memset(tiles, 0xaa, sizeof(tiles));
        kn_qmat_pack(all_formats[f], COLS, GROUP, w, COLS, 1, tiles);
        assert_int_equal(tiles[bytes < sizeof(tiles) ? bytes : 0], 0xaa);
        for (uint32_t r = 1; r < 16; r++) {
            kn_qmat_unpack_row(&mat, r, row);
            for (int i = 0; i < COLS; i++)
                assert_true(row[i] == 0);
        }
        mat.cols = f < 2 ? COLS + (f == 1) : 2 * GROUP; /* the padding seen as columns */
        if (f > 0) {
            float wide[2 * GROUP];

            kn_qmat_unpack_row(&mat, 0, wide);
            for (uint32_t i = COLS; i < mat.cols; i++)
                assert_true(wide[i] == 0);
        }
    }
}

static void the_bytes_are_those_of_the_documented_layout(void **state)
{
    static _Alignas(64) uint8_t tiles[4096];
    float w[16][16];

    (void)state;
    /* Row r, column k: q4 value (r + k) % 16 - 8 with the scale 1: -8 and 7 both occur, and a
     * perfect fit has no error, so the search finds scale 1 (factor 0.875 of 8 / 7). */
    for (int r = 0; r < 16; r++)
        for (int k = 0; k < 16; k++)
            w[r][k] = (float)((r + k) % 16 - 8);
    kn_qmat_pack(KN_Q4, 16, 16, w[0], 16, 16, tiles);
    for (int r = 0; r < 16; r++) {
        assert_int_equal(tiles[2 * r], 0x00); /* f16 1.0, little endian */
        assert_int_equal(tiles[2 * r + 1], 0x3c);
        for (int k = 0; k < 16; k++) {
            uint8_t byte = tiles[32 + k / 8 * 64 + r * 4 + k % 4];

            assert_int_equal(k % 8 < 4 ? byte & 15 : byte >> 4, (r + k) % 16);
        }
    }
    for (int i = 32 + 128; i < 192; i++)
        assert_int_equal(tiles[i], 0);
    w[3][5] = 127; /* the scale of row 3 becomes exactly 1 */
    kn_qmat_pack(KN_Q8, 16, 16, w[0], 16, 16, tiles);
    assert_int_equal(tiles[6] | tiles[7] << 8, 0x3c00);
    for (int k = 0; k < 16; k++)
        assert_int_equal((int8_t)tiles[32 + k / 4 * 64 + 3 * 4 + k % 4], (int)w[3][k]);
    kn_qmat_pack(KN_F32, 16, 16, w[0], 16, 16, tiles);
    assert_memory_equal(tiles + 5 * 64 + 3 * 4, &w[3][5], 4);
    kn_qmat_pack(KN_BF16, 15, 16, w[0], 16, 16, tiles);
    assert_int_equal(tiles[5 * 32 + 3 * 2] | tiles[5 * 32 + 3 * 2 + 1] << 8, 0x42fe); /* 127 */
}

static void a_view_of_rows_sees_the_same_weights(void **state)
{
    enum { COLS = 40, ROWS = 50 };
    static _Alignas(64) uint8_t tiles[16384];
    float w[ROWS][COLS], whole[COLS], part[COLS];
    test_random random = {5};

    (void)state;
    test_random_fill(&random, w[0], (size_t)ROWS * COLS, 1);
    for (int f = 0; f < 4; f++) {
        kn_qmat mat = {all_formats[f], ROWS, COLS, 16, tiles};
        kn_qmat view;

        assert_true(kn_qmat_bytes(all_formats[f], ROWS, COLS, 16) <= sizeof(tiles));
        kn_qmat_pack(all_formats[f], COLS, 16, w[0], COLS, ROWS, tiles);
        view = kn_qmat_rows(&mat, 32, 18);
        assert_int_equal(view.rows, 18);
        kn_qmat_unpack_row(&mat, 49, whole);
        kn_qmat_unpack_row(&view, 17, part);
        assert_memory_equal(whole, part, sizeof(whole));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(format_names_are_those_of_the_options),
        cmocka_unit_test(groups_are_the_largest_divisor_within_the_limit),
        cmocka_unit_test(sizes_are_those_of_the_layout),
        cmocka_unit_test(unpacked_rows_are_the_quantised_weights_over_odd_shapes),
        cmocka_unit_test(packing_is_the_same_in_pieces_and_under_every_variant),
        cmocka_unit_test(padding_rows_and_columns_are_zero_weights),
        cmocka_unit_test(the_bytes_are_those_of_the_documented_layout),
        cmocka_unit_test(a_view_of_rows_sees_the_same_weights),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
