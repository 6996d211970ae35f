/* The bits of every kernel on fixed inputs (kernels/selfcheck.c), for every variant of this
 * machine. */
#include "kernels/selfcheck.h"
#include "tests/support/variants.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* wrap: aligned_alloc */

static bool allocation_fails;

void *__real_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    return allocation_fails ? NULL : __real_aligned_alloc(alignment, bytes);
}

static kn_selfcheck_row *rows_for_all(void)
{
    kn_selfcheck_row *rows = calloc(kn_selfcheck_count(), sizeof(*rows));

    assert_non_null(rows);
    return rows;
}

static void every_variant_gives_the_committed_bits(void **state)
{
    kn_selfcheck_row *rows = rows_for_all();
    bool good = true;

    (void)state;
    for (int v = 0; v < KN_VARIANT_COUNT; v++) {
        if (!kn_variant_supported((kn_variant)v)) continue;
        assert_int_equal(kn_selfcheck((kn_variant)v, rows, NULL), RT_OK);
        for (uint32_t i = 0; i < kn_selfcheck_count(); i++) {
            if (rows[i].found == rows[i].expected) continue;
            printf("%s, %s: %#018llx, expected %#018llx\n", kn_variant_name((kn_variant)v),
                   rows[i].what, (unsigned long long)rows[i].found,
                   (unsigned long long)rows[i].expected);
            good = false;
        }
    }
    free(rows);
    assert_true(good);
}

static void no_two_checks_are_the_same(void **state)
{
    kn_selfcheck_row *rows = rows_for_all();

    (void)state;
    assert_int_equal(kn_selfcheck(KN_REF, rows, NULL), RT_OK);
    for (uint32_t i = 0; i < kn_selfcheck_count(); i++) {
        for (uint32_t j = 0; j < i; j++) {
            assert_string_not_equal(rows[i].what, rows[j].what);
            assert_true(rows[i].expected != rows[j].expected);
        }
    }
    free(rows);
}

static void the_selected_variant_stays_selected(void **state)
{
    kn_selfcheck_row *rows = rows_for_all();

    (void)state;
    for (int v = 0; v < KN_VARIANT_COUNT; v++) {
        if (!test_variant_select(v)) continue;
        assert_int_equal(kn_selfcheck(KN_REF, rows, NULL), RT_OK);
        assert_int_equal(kn_selected(), v);
    }
    free(rows);
}

static void errors_leave_the_rows_and_the_variant_alone(void **state)
{
    kn_selfcheck_row *rows = rows_for_all();
    rt_err err = {0};

    (void)state;
    test_variant_select(KN_REF);
    allocation_fails = true;
    assert_int_equal(kn_selfcheck(KN_REF, rows, &err), RT_ENOMEM);
    allocation_fails = false;
    assert_null(rows[0].what);
    for (int v = 0; v < KN_VARIANT_COUNT; v++) {
        if (kn_variant_supported((kn_variant)v)) continue;
        assert_int_equal(kn_selfcheck((kn_variant)v, rows, &err), RT_EUNSUPPORTED);
        assert_null(rows[0].what);
    }
    assert_int_equal(kn_selected(), KN_REF);
    free(rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_variant_gives_the_committed_bits),
        cmocka_unit_test(no_two_checks_are_the_same),
        cmocka_unit_test(the_selected_variant_stays_selected),
        cmocka_unit_test(errors_leave_the_rows_and_the_variant_alone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
