/* test_slab.c - alignment, zeroes, and refusal of what no machine has. */
#include "base/slab.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void big_slabs_start_on_a_huge_page(void **state)
{
    static const size_t sizes[] = {2u << 20, (2u << 20) + 1, 5000000, 16u << 20};

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        rt_slab slab = {0};

        assert_int_equal(rt_slab_alloc(sizes[i], &slab, NULL), RT_OK);
        assert_int_equal((uintptr_t)slab.data % (2u << 20), 0);
        assert_int_equal(slab.bytes, sizes[i]);
        assert_int_equal(((char *)slab.data)[0], 0);
        ((char *)slab.data)[sizes[i] - 1] = 1;
        rt_slab_free(&slab);
    }
}

static void small_slabs_are_page_aligned_and_zero(void **state)
{
    static const size_t sizes[] = {1, 4095, 4096, 4097, (2u << 20) - 1};

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        rt_slab slab = {0};
        char *data;

        assert_int_equal(rt_slab_alloc(sizes[i], &slab, NULL), RT_OK);
        data = slab.data;
        assert_int_equal((uintptr_t)data % 4096, 0);
        for (size_t k = 0; k < sizes[i]; k += 511)
            assert_int_equal(data[k], 0);
        memset(data, 0xff, sizes[i]);
        rt_slab_free(&slab);
    }
}

static void too_much_is_enomem_with_the_size_and_out_untouched(void **state)
{
    static const size_t sizes[] = {SIZE_MAX, SIZE_MAX / 2 + 1, SIZE_MAX / 2, (size_t)1 << 60};
    rt_slab slab = {.data = &slab, .bytes = 77};
    rt_err err;

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        assert_int_equal(rt_slab_alloc(sizes[i], &slab, &err), RT_ENOMEM);
        assert_ptr_equal(slab.data, &slab);
        assert_int_equal(slab.bytes, 77);
    }
    assert_non_null(strstr(err.text, "1152921504606846976 bytes"));
}

static void free_empties_and_accepts_empty(void **state)
{
    rt_slab slab = {0};

    (void)state;
    rt_slab_free(NULL);
    rt_slab_free(&slab);
    assert_int_equal(rt_slab_alloc(100, &slab, NULL), RT_OK);
    rt_slab_free(&slab);
    assert_null(slab.data);
    assert_int_equal(slab.bytes, 0);
    rt_slab_free(&slab);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(big_slabs_start_on_a_huge_page),
        cmocka_unit_test(small_slabs_are_page_aligned_and_zero),
        cmocka_unit_test(too_much_is_enomem_with_the_size_and_out_untouched),
        cmocka_unit_test(free_empties_and_accepts_empty),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
