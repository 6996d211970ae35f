/* test_expert.c - the layout of expert records: GLM-5.2's numbers, small and odd widths, views. */
#include "model/expert.h"

#include "tests/support/capture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/wait.h>

#include <cmocka.h>

static md_config shaped(uint32_t inter, uint32_t topk, uint32_t shared)
{
    md_config config = {.expert_inter = inter, .topk = topk, .shared_experts = shared};

    return config;
}

static void group_divides_the_width_and_leaves_two_slices(void **state)
{
    (void)state;
    assert_int_equal(md_inter_group(2048), 64);
    assert_int_equal(md_inter_group(128), 64);
    assert_int_equal(md_inter_group(96), 32); /* 64 does not divide 96 */
    assert_int_equal(md_inter_group(64), 32); /* half of the width */
    assert_int_equal(md_inter_group(32), 16);
    assert_int_equal(md_inter_group(16), 16); /* nothing fits: padded */
    assert_int_equal(md_inter_group(40), 16);
    assert_int_equal(md_inter_group(1), 16);
}

static void glm_has_eight_slices_of_256(void **state)
{
    md_config config = shaped(2048, 8, 1);
    md_expert_layout layout;

    (void)state;
    assert_int_equal(md_slice_width(&config), 256);
    md_expert_layout_init(&layout, KN_Q4, 6144, 2048, 256);
    assert_int_equal(layout.slices, 8);
    assert_int_equal(layout.hidden_group, 64);
    assert_int_equal(layout.inter_group, 64);
    /* A group of 64 inputs x 16 rows: 32 bytes of scales and 512 of nibbles. */
    assert_int_equal(layout.slice_bytes, 3 * 16 * 96 * 544);
    assert_int_equal(layout.record_bytes, 20054016);
    md_expert_layout_init(&layout, KN_Q8, 6144, 2048, 256);
    assert_int_equal(layout.slice_bytes, 3 * 16 * 96 * 1056);
    md_expert_layout_init(&layout, KN_F32, 6144, 2048, 256);
    assert_int_equal(layout.record_bytes, 3ull * 2048 * 6144 * 4);
    md_expert_layout_init(&layout, KN_BF16, 6144, 2048, 256);
    assert_int_equal(layout.record_bytes, 3ull * 2048 * 6144 * 2);
}

static void nano_is_cut_in_two(void **state)
{
    md_config config = shaped(32, 2, 1);
    md_expert_layout layout;

    (void)state;
    assert_int_equal(md_slice_width(&config), 16);
    md_expert_layout_init(&layout, KN_Q4, 64, 32, 16);
    assert_int_equal(layout.slices, 2);
    assert_int_equal(layout.inter_group, 16);
    assert_int_equal(layout.hidden_group, 64);
}

static void width_grows_until_the_exact_combine_holds_all(void **state)
{
    static const uint32_t inters[] = {16, 24, 32, 40, 64, 96, 512, 960, 1040, 1408, 1536, 2048};

    (void)state;
    /* 15 groups of 64: an eighth is one group, and 9 x 15 contributions would be too many. */
    assert_int_equal(
        md_slice_width(&(md_config){.expert_inter = 960, .topk = 8, .shared_experts = 1}), 128);
    for (size_t i = 0; i < sizeof(inters) / sizeof(inters[0]); i++) {
        for (uint32_t topk = 1; topk <= MD_TOPK_MAX; topk++) {
            for (uint32_t shared = 1; shared <= MD_SHARED_MAX; shared++) {
                md_config config = shaped(inters[i], topk, shared);
                uint32_t width = md_slice_width(&config);
                md_expert_layout routed, all;

                md_expert_layout_init(&routed, KN_Q4, 64, inters[i], width);
                md_expert_layout_init(&all, KN_Q4, 64, inters[i] * shared, width);
                assert_true(topk * routed.slices + all.slices <= 127);
                assert_true(all.slices <= MD_SLICES_MAX);
                assert_int_equal(width % routed.inter_group, 0);
                assert_int_equal(width % all.inter_group, 0);
                assert_int_equal(routed.inter_group, md_inter_group(inters[i]));
                assert_true(md_slice_width_fits(&config, width));
            }
        }
    }
}

static void widths_that_do_not_fit_are_told(void **state)
{
    md_config config = shaped(2048, 8, 1);

    (void)state;
    assert_true(md_slice_width_fits(&config, 256));
    assert_true(md_slice_width_fits(&config, 2048));
    assert_false(md_slice_width_fits(&config, 0));
    assert_false(md_slice_width_fits(&config, 100));  /* not whole groups */
    assert_false(md_slice_width_fits(&config, 128));  /* 9 x 16 contributions */
    assert_false(md_slice_width_fits(&config, 4096)); /* wider than the expert */
    assert_false(md_slice_width_fits(&config, 0xffffffc0u));
}

static void last_slice_may_be_shorter(void **state)
{
    md_expert_layout layout;

    (void)state;
    md_expert_layout_init(&layout, KN_F32, 64, 40, 16);
    assert_int_equal(layout.slices, 3);
    assert_int_equal(md_slice_neurons(&layout, 0), 16);
    assert_int_equal(md_slice_neurons(&layout, 2), 8);
    assert_int_equal(md_slice_begin(&layout, 2), 32);
    assert_int_equal(layout.slice_bytes, 3 * 16 * 64 * 4);
    /* gate and up still have a whole tile of 16 rows, down 8 columns. */
    assert_int_equal(md_slice_size(&layout, 2), (2 * 16 * 64 + 64 * 8) * 4 + 2048);
    assert_int_equal(layout.record_bytes, md_slice_offset(&layout, 2) + md_slice_size(&layout, 2));
}

static void slices_are_aligned_and_views_stay_inside(void **state)
{
    static const kn_format formats[] = {KN_F32, KN_BF16, KN_Q8, KN_Q4, KN_Q8F32, KN_Q4F32};
    static const uint32_t shapes[][3] = {{64, 32, 16}, {192, 96, 32}, {50, 40, 16}, {17, 5, 16}};

    (void)state;
    for (size_t i = 0; i < 24; i++) {
        const uint32_t *shape = shapes[i / 6];
        md_expert_layout layout;

        md_expert_layout_init(&layout, formats[i % 6], shape[0], shape[1], shape[2]);
        for (uint32_t s = 0; s < layout.slices; s++) {
            const unsigned char *data = (const unsigned char *)4096 + md_slice_offset(&layout, s);
            md_slice view = md_slice_view(&layout, s, data);
            const unsigned char *end =
                (const unsigned char *)view.down.data +
                kn_qmat_bytes(view.down.format, view.down.rows, view.down.cols, view.down.group);

            assert_int_equal(md_slice_offset(&layout, s) % MD_RECORD_ALIGN, 0);
            assert_int_equal(md_slice_size(&layout, s) % MD_RECORD_ALIGN, 0);
            assert_ptr_equal(view.gate.data, data);
            assert_int_equal((uintptr_t)view.up.data % 64, 0);
            assert_int_equal((uintptr_t)view.down.data % 64, 0);
            assert_true(end <= data + md_slice_size(&layout, s));
            assert_int_equal(view.gate.rows, view.width);
            assert_int_equal(view.gate.cols, layout.hidden);
            assert_int_equal(view.down.rows, layout.hidden);
            assert_int_equal(view.down.cols, view.width);
            assert_int_equal(view.down.group, layout.inter_group);
            assert_int_equal(view.up.group, layout.hidden_group);
        }
    }
}

static void ask_for_a_slice_that_is_not_there(void *context)
{
    (void)md_slice_offset(context, ((const md_expert_layout *)context)->slices);
}

static void slice_out_of_range_is_our_own_mistake(void **state)
{
    md_expert_layout layout;
    int status;

    (void)state;
    md_expert_layout_init(&layout, KN_F32, 64, 32, 16);
    status = run_in_child(ask_for_a_slice_that_is_not_there, &layout);
    assert_true(WIFSIGNALED(status));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(group_divides_the_width_and_leaves_two_slices),
        cmocka_unit_test(glm_has_eight_slices_of_256),
        cmocka_unit_test(nano_is_cut_in_two),
        cmocka_unit_test(width_grows_until_the_exact_combine_holds_all),
        cmocka_unit_test(widths_that_do_not_fit_are_told),
        cmocka_unit_test(last_slice_may_be_shorter),
        cmocka_unit_test(slices_are_aligned_and_views_stay_inside),
        cmocka_unit_test(slice_out_of_range_is_our_own_mistake),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
