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

static const kn_format all_formats[] = {KN_F32, KN_BF16, KN_Q8, KN_Q4, KN_Q8F32, KN_Q4F32};
enum { FORMATS = sizeof(all_formats) / sizeof(all_formats[0]) };

static void format_names_are_those_of_the_options(void **state)
{
    kn_format format = KN_F32;

    (void)state;
    for (int i = 0; i < FORMATS; i++) {
        assert_true(kn_format_parse(kn_format_name(all_formats[i]), &format));
        assert_int_equal(format, all_formats[i]);
    }
    assert_null(kn_format_name((kn_format)0));
    assert_null(kn_format_name((kn_format)7));
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
    assert_int_equal(kn_qmat_tile_bytes(KN_Q8F32, 17, 16), 2 * (64 + 256));
    assert_int_equal(kn_qmat_tile_bytes(KN_Q4F32, 17, 16), 2 * (64 + 128));
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
        if (format == KN_Q8F32)
            scale = kn_quant_q8f32_group(w + k, n, q);
        else
            scale = kn_f32_from_f16(kn_format_is_q4(format) ? kn_quant_q4_group(w + k, n, q)
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
    for (int f = 0; f < FORMATS; f++) {
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
    for (int f = 0; f < FORMATS; f++) {
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
    for (int f = 0; f < FORMATS; f++) {
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
    static const uint8_t one[] = {0x00, 0x00, 0x80, 0x3f}; /* f32 1.0, little endian */
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
    /* With f32 scales the same lines follow 64 bytes of scales. */
    kn_qmat_pack(KN_Q8F32, 16, 16, w[0], 16, 16, tiles);
    assert_memory_equal(tiles + 3 * 4, one, sizeof(one));
    for (int k = 0; k < 16; k++)
        assert_int_equal((int8_t)tiles[64 + k / 4 * 64 + 3 * 4 + k % 4], (int)w[3][k]);
    w[3][5] = 0;
    kn_qmat_pack(KN_Q4F32, 16, 16, w[0], 16, 16, tiles);
    for (int r = 0; r < 16; r++) {
        assert_memory_equal(tiles + r * 4, one, sizeof(one));
        for (int k = 0; k < 16; k++) {
            uint8_t byte = tiles[64 + k / 8 * 64 + r * 4 + k % 4];

            assert_int_equal(k % 8 < 4 ? byte & 15 : byte >> 4, (int)w[r][k] + 8);
        }
    }
    w[3][5] = 127;
    kn_qmat_pack(KN_F32, 16, 16, w[0], 16, 16, tiles);
    assert_memory_equal(tiles + 5 * 64 + 3 * 4, &w[3][5], 4);
    kn_qmat_pack(KN_BF16, 15, 16, w[0], 16, 16, tiles);
    assert_int_equal(tiles[5 * 32 + 3 * 2] | tiles[5 * 32 + 3 * 2 + 1] << 8, 0x42fe); /* 127 */
}

/* A source of quantised rows: per-row scales (scale_group 0) or groups of columns. */
typedef struct {
    uint32_t cols, scale_group;
    int8_t q[40][320];
    float scale[40][20];
} quantised_source;

static void fill_source(quantised_source *s, kn_format format, uint32_t cols, uint32_t scale_group)
{
    /* Scales that f16 cannot hold, and the odd ones: negative, zero, subnormal, huge. */
    static const float odd[] = {-0.37F, 0, -0.0F, 0x1.8p-140F, 0x1.fffffep120F, -0x1p-149F};
    test_random random = {cols + scale_group};
    float scales[40 * 20];

    s->cols = cols;
    s->scale_group = scale_group;
    test_random_fill(&random, scales, 40 * 20, 0.01F);
    memcpy(s->scale, scales, sizeof(s->scale));
    for (uint32_t r = 0; r < 40; r++) {
        if (r % 3 == 0) s->scale[r][r % 20 % (scale_group == 0 ? 1 : 5)] = odd[r / 3 % 6];
        for (uint32_t k = 0; k < 320; k++) {
            uint32_t step = r * 59 + k * 31;

            s->q[r][k] =
                (int8_t)(kn_format_is_q4(format) ? (int)(step % 16) - 8 : (int)(step % 255) - 127);
        }
    }
}

/* Packs columns first .. first+cols of all rows and compares every weight with (float)q * scale. */
static void check_pack_quantised(const quantised_source *s, kn_format format, uint32_t first,
                                 uint32_t cols, uint32_t group, uint32_t rows)
{
    size_t bytes = kn_qmat_bytes(format, rows, cols, group);
    uint8_t *tiles = aligned_alloc(64, bytes), *again = aligned_alloc(64, bytes);
    kn_qmat mat = {format, rows, cols, group, tiles};
    float found[320], expected[320];

    assert_true(tiles != NULL && again != NULL);
    memset(tiles, 0xaa, bytes);
    memset(again, 0x55, bytes);
    kn_qmat_pack_quantised(format, cols, group, &s->q[0][first], 320, s->scale[0], 20, first,
                           s->scale_group, rows, tiles);
    kn_qmat_pack_quantised(format, cols, group, &s->q[0][first], 320, s->scale[0], 20, first,
                           s->scale_group, rows, again);
    assert_memory_equal(tiles, again, bytes); /* the padding is written too */
    for (uint32_t r = 0; r < rows; r++) {
        kn_qmat_unpack_row(&mat, r, found);
        for (uint32_t k = 0; k < cols; k++) {
            uint32_t at = s->scale_group == 0 ? 0 : (first + k) / s->scale_group;

            expected[k] = (float)s->q[r][first + k] * s->scale[r][at];
        }
        assert_memory_equal(found, expected, cols * sizeof(float));
    }
    free(tiles);
    free(again);
}

static void rows_quantised_elsewhere_keep_every_bit(void **state)
{
    static const kn_format formats[] = {KN_Q8F32, KN_Q4F32};
    quantised_source *s = calloc(1, sizeof(*s));

    (void)state;
    assert_non_null(s);
    for (int f = 0; f < 2; f++) {
        for (uint32_t group = 16; group <= 64; group *= 2) {
            for (uint32_t rows = 1; rows <= 40; rows += 13) {
                fill_source(s, formats[f], 320, 0);
                check_pack_quantised(s, formats[f], 0, 320, group, rows);
                check_pack_quantised(s, formats[f], 0, 1, group, rows);
                check_pack_quantised(s, formats[f], 0, 199, group, rows);
                check_pack_quantised(s, formats[f], 64, 200, group, rows);
                fill_source(s, formats[f], 320, 64);
                check_pack_quantised(s, formats[f], 0, 320, group, rows);
                check_pack_quantised(s, formats[f], 192, 77, group, rows);
                fill_source(s, formats[f], 320, 128); /* the last scale covers half a group */
                check_pack_quantised(s, formats[f], 64, 256, group, rows);
            }
        }
    }
    free(s);
}

/* Packing a matrix and packing what its quantiser gives are one. */
static void packing_quantised_rows_gives_the_bytes_of_packing_their_source(void **state)
{
    enum { ROWS = 19, COLS = 75, GROUP = 16, SCALES = 5 };
    static _Alignas(64) uint8_t direct[32768], indirect[32768];
    float w[ROWS][COLS], scale[ROWS][SCALES];
    int8_t q[ROWS][SCALES * GROUP];
    test_random random = {9};

    (void)state;
    test_random_fill(&random, w[0], (size_t)ROWS * COLS, 0.1F);
    memset(w[4], 0, sizeof(w[4]));
    for (int f = 0; f < 2; f++) {
        kn_format format = f == 0 ? KN_Q8F32 : KN_Q4F32;

        for (uint32_t r = 0; r < ROWS; r++) {
            for (uint32_t g = 0; g < SCALES; g++) {
                const float *from = &w[r][g * GROUP];
                uint32_t n = COLS - g * GROUP < GROUP ? COLS - g * GROUP : GROUP;

                scale[r][g] = f == 0
                                  ? kn_quant_q8f32_group(from, n, &q[r][g * GROUP])
                                  : kn_f32_from_f16(kn_quant_q4_group(from, n, &q[r][g * GROUP]));
            }
        }
        assert_true(kn_qmat_bytes(format, ROWS, COLS, GROUP) <= sizeof(direct));
        kn_qmat_pack(format, COLS, GROUP, w[0], COLS, ROWS, direct);
        kn_qmat_pack_quantised(format, COLS, GROUP, q[0], SCALES * GROUP, scale[0], SCALES, 0,
                               GROUP, ROWS, indirect);
        assert_memory_equal(direct, indirect, kn_qmat_bytes(format, ROWS, COLS, GROUP));
    }
}

static void a_view_of_rows_sees_the_same_weights(void **state)
{
    enum { COLS = 40, ROWS = 50 };
    static _Alignas(64) uint8_t tiles[16384];
    float w[ROWS][COLS], whole[COLS], part[COLS];
    test_random random = {5};

    (void)state;
    test_random_fill(&random, w[0], (size_t)ROWS * COLS, 1);
    for (int f = 0; f < FORMATS; f++) {
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
        cmocka_unit_test(rows_quantised_elsewhere_keep_every_bit),
        cmocka_unit_test(packing_quantised_rows_gives_the_bytes_of_packing_their_source),
        cmocka_unit_test(a_view_of_rows_sees_the_same_weights),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
