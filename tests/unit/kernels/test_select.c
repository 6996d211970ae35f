/* The choice of a kernel variant. */
#include "kernels/select.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void each_supported_variant_can_be_forced(void **state)
{
    (void)state;
    for (int v = 0; v < KN_VARIANT_COUNT; v++) {
        rt_err err = {0};
        rt_status status = kn_select(kn_variant_name((kn_variant)v), &err);

        if (kn_variant_supported((kn_variant)v)) {
            assert_int_equal(status, RT_OK);
            assert_int_equal(kn_selected(), v);
        } else {
            assert_int_equal(status, RT_EUNSUPPORTED);
            assert_non_null(strstr(err.text, kn_variant_name((kn_variant)v)));
        }
    }
}

static void the_reference_runs_everywhere(void **state)
{
    (void)state;
    assert_true(kn_variant_supported(KN_REF));
}

static void auto_takes_the_best_supported_variant(void **state)
{
    (void)state;
    assert_int_equal(kn_select("auto", NULL), RT_OK);
    for (int v = (int)kn_selected() + 1; v < KN_VARIANT_COUNT; v++)
        assert_false(kn_variant_supported((kn_variant)v));
    assert_true(kn_variant_supported(kn_selected()));
}

static void another_name_is_refused_with_the_choices_and_changes_nothing(void **state)
{
    static const char *const names[] = {"", "AVX2", "avx", "avx2 ", "sse", "best", "avx512|avx2"};

    (void)state;
    assert_int_equal(kn_select("ref", NULL), RT_OK);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        rt_err err = {0};

        assert_int_equal(kn_select(names[i], &err), RT_EINVAL);
        assert_non_null(strstr(err.text, "avx512"));
        assert_non_null(strstr(err.text, names[i]));
        assert_int_equal(kn_selected(), KN_REF);
    }
    assert_int_equal(kn_select("avx3", NULL), RT_EINVAL);
}

static void the_choices_name_every_variant_and_auto(void **state)
{
    char expected[128] = "auto";

    (void)state;
    for (int v = 0; v < KN_VARIANT_COUNT; v++) {
        strcat(expected, "|");
        strcat(expected, kn_variant_name((kn_variant)v));
    }
    assert_string_equal(KN_VARIANT_CHOICES, expected);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_supported_variant_can_be_forced),
        cmocka_unit_test(the_reference_runs_everywhere),
        cmocka_unit_test(the_choices_name_every_variant_and_auto),
        cmocka_unit_test(auto_takes_the_best_supported_variant),
        cmocka_unit_test(another_name_is_refused_with_the_choices_and_changes_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
