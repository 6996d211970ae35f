/* The measures: what they count, and memory that is not there. No figure is judged: machines are
 * noisy. */
#include "kernels/measure.h"

#include "base/slab.h"
#include "base/team.h"
#include "kernels/select.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* wrap: calloc aligned_alloc rt_slab_alloc */
static int allocations_left = -1; /* before one fails; -1: none does */

static bool allocation_fails(void)
{
    if (allocations_left < 0) return false;
    return allocations_left-- == 0;
}

void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
rt_status __real_rt_slab_alloc(size_t bytes, rt_slab *out, rt_err *err);
rt_status __wrap_rt_slab_alloc(size_t bytes, rt_slab *out, rt_err *err);

void *__wrap_calloc(size_t count, size_t bytes)
{
    return allocation_fails() ? NULL : __real_calloc(count, bytes);
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    return allocation_fails() ? NULL : __real_aligned_alloc(alignment, bytes);
}

rt_status __wrap_rt_slab_alloc(size_t bytes, rt_slab *out, rt_err *err)
{
    if (allocation_fails()) return rt_fail(err, RT_ENOMEM, "no %zu bytes", bytes);
    return __real_rt_slab_alloc(bytes, out, err);
}

static const kn_measure_spec spec = {.pool_bytes = (size_t)32 << 20, .threads = 2, .passes = 2};
static const kn_measure_expert_shape expert_shape = {256, 64, 32};
static const kn_qmat product_shape = {KN_BF16, 300, 64, 0, NULL};
static const kn_measure_attention_shape attention_shape = {5, 32, 16, 40, true};

static int open_measure(void **state)
{
    rt_float_env_set();
    return kn_measure_create(&spec, (kn_measure **)state, NULL) == RT_OK ? 0 : -1;
}

static int close_measure(void **state)
{
    kn_measure_free(*state);
    return 0;
}

static void reading_counts_the_pool(void **state)
{
    for (int t = KN_ONE_THREAD; t <= KN_ALL_THREADS; t++) {
        kn_measured m = {0};

        kn_measure_read(*state, (kn_measure_threads)t, &m);
        assert_true(m.bytes == (double)spec.pool_bytes && m.ops == 0);
        assert_true(m.seconds > 0 && m.seconds < 1e9);
    }
}

static void an_expert_counts_its_bytes_and_operations(void **state)
{
    /* Per slice of 32: gate and up of two tiles with groups of 64, down of 16 with groups of 32. */
    double slice =
        2.0 * (double)kn_qmat_bytes(KN_Q4, 32, 256, 64) + (double)kn_qmat_bytes(KN_Q4, 256, 32, 32);

    for (int t = KN_ONE_THREAD; t <= KN_ALL_THREADS; t++) {
        kn_measured m = {0};

        assert_int_equal(
            kn_measure_expert(*state, (kn_measure_threads)t, &expert_shape, 3, &m, NULL), RT_OK);
        assert_true(m.bytes == 2 * slice);
        assert_true(m.ops == 2.0 * 3 * 3 * 256 * 64);
        assert_true(m.seconds > 0 && m.seconds < 1);
    }
}

static void a_product_counts_its_bytes_and_operations_in_every_format(void **state)
{
    for (int format = KN_F32; format <= KN_Q4F32; format++) {
        kn_qmat shape = product_shape;
        kn_measured m = {0};

        shape.format = (kn_format)format;
        assert_int_equal(kn_measure_product(*state, KN_ALL_THREADS, &shape, 2, &m, NULL), RT_OK);
        assert_true(m.bytes == (double)kn_qmat_bytes(shape.format, 300, 64, 64));
        assert_true(m.ops == 2.0 * 2 * 300 * 64);
        assert_true(m.seconds > 0 && m.seconds < 1);
    }
}

static void attention_counts_scores_and_values(void **state)
{
    kn_measured_attention m = {0};
    kn_measured index = {0}, topk = {0};

    assert_int_equal(kn_measure_attention(*state, &attention_shape, &m, NULL), RT_OK);
    assert_true(m.scores.ops == 2.0 * 5 * 48 * 40 && m.values.ops == 2.0 * 5 * 32 * 40);
    assert_true(m.all.ops == m.scores.ops + m.values.ops);
    assert_true(m.all.seconds >= m.scores.seconds && m.all.seconds < 1);
    assert_true(m.of_peak.scores > 0 && m.of_peak.values > 0 && m.of_peak.all > 0);
    assert_true(m.of_peak.all < 2); /* twice the peak means that other things are counted */
    assert_int_equal(kn_measure_index(*state, 3, 32, 100, false, &index, NULL), RT_OK);
    assert_true(index.ops == 2.0 * 3 * 32 * 100 && index.bytes == 100.0 * 32 * 4);
    assert_int_equal(kn_measure_topk(*state, 1000, 10, &topk, NULL), RT_OK);
    assert_true(topk.bytes == 4000 && topk.seconds > 0 && topk.seconds < 1);
}

static void the_peak_runs_under_every_variant(void **state)
{
    for (int v = 0; v < KN_VARIANT_COUNT; v++) {
        kn_measured m = {0};

        if (kn_select(kn_variant_name((kn_variant)v), NULL) != RT_OK) continue;
        kn_measure_peak(*state, &m);
        assert_true(m.ops > 0 && m.seconds > 0 && m.seconds < 10);
    }
    assert_int_equal(kn_select("auto", NULL), RT_OK);
}

static void memory_that_is_not_there_is_an_error_and_leaves_nothing(void **state)
{
    kn_measure *measure = NULL;
    rt_status status = RT_ENOMEM;
    int failures = -1;

    (void)state;
    while (status != RT_OK) {
        allocations_left = ++failures;
        status = kn_measure_create(&spec, &measure, NULL);
        allocations_left = -1;
        assert_true(status == RT_OK || (status == RT_ENOMEM && measure == NULL));
    }
    assert_in_range(failures, 3, 100);
    kn_measure_free(measure);
}

static void scratch_that_is_not_there_is_an_error_and_writes_no_figure(void **state)
{
    kn_measured m = {0};
    kn_measured_attention a = {.all = {0}};

    for (int n = 0; n < 2; n++) {
        allocations_left = n;
        assert_int_equal(kn_measure_expert(*state, KN_ONE_THREAD, &expert_shape, 1, &m, NULL),
                         RT_ENOMEM);
        allocations_left = n;
        assert_int_equal(kn_measure_product(*state, KN_ONE_THREAD, &product_shape, 1, &m, NULL),
                         RT_ENOMEM);
    }
    allocations_left = 0;
    assert_int_equal(kn_measure_attention(*state, &attention_shape, &a, NULL), RT_ENOMEM);
    allocations_left = 0;
    assert_int_equal(kn_measure_index(*state, 3, 32, 100, false, &m, NULL), RT_ENOMEM);
    allocations_left = 0;
    assert_int_equal(kn_measure_topk(*state, 1000, 10, &m, NULL), RT_ENOMEM);
    allocations_left = -1;
    assert_true(m.seconds == 0 && a.all.seconds == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reading_counts_the_pool),
        cmocka_unit_test(an_expert_counts_its_bytes_and_operations),
        cmocka_unit_test(a_product_counts_its_bytes_and_operations_in_every_format),
        cmocka_unit_test(attention_counts_scores_and_values),
        cmocka_unit_test(the_peak_runs_under_every_variant),
        cmocka_unit_test(memory_that_is_not_there_is_an_error_and_leaves_nothing),
        cmocka_unit_test(scratch_that_is_not_there_is_an_error_and_writes_no_figure),
    };

    return cmocka_run_group_tests(tests, open_measure, close_measure);
}
