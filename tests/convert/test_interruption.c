/* test_interruption.c - a conversion that dies, or whose disk fails, at any durable step goes on to
 * the same container; with --consume no shard is lost before what was made of it is safe. */
/* wrap: pwrite fdatasync fsync rename unlink ftruncate mkdir */
#include "model/convert/convert.h"

#include "base/file.h"
#include "tests/support/conversion.h"
#include "tests/support/interruption.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const char checkpoint[] = MOESAIC_FIXTURES "/nano-fp8";

static void over_steps(durable_event what, int stride, bool consume)
{
    interruption_ground g = {.checkpoint = checkpoint};

    interruption_lay(&g, consume);
    g.whole = interruption_run(&g.spec, 1, DURABLE_NOTHING, 0, 0);
    assert_int_equal(g.whole.exit_code, 0);
    assert_true(g.whole.steps > 100);
    for (int at = 0; at < g.whole.steps; at += stride * INTERRUPTION_STRIDE) {
        interruption_result broken;

        interruption_lay(&g, consume);
        broken = interruption_run(&g.spec, 1, what, at, 0);
        if (what == DURABLE_KILL || what == DURABLE_POWER_LOSS)
            assert_int_equal(broken.exit_code, DURABLE_DIED);
        /* A second interruption while it resumes changes nothing. */
        if (at % 5 == 0 && broken.exit_code != 0)
            (void)interruption_run(&g.spec, 1, what, at / 2, 0);
        interruption_expect_resumed(&g, what, at);
    }
    interruption_take_up(&g);
}

static void killed_at_every_other_step_it_resumes_to_the_same_model(void **state)
{
    (void)state;
    over_steps(DURABLE_KILL, 2, false);
}

static void losing_power_at_any_step_it_resumes_to_the_same_model(void **state)
{
    (void)state;
    over_steps(DURABLE_POWER_LOSS, 1, false);
}

static void consuming_and_losing_power_at_any_step_nothing_is_lost(void **state)
{
    (void)state;
    over_steps(DURABLE_POWER_LOSS, 1, true);
}

static void stopped_by_a_signal_it_resumes(void **state)
{
    (void)state;
    over_steps(DURABLE_SIGNAL, 3, true);
}

/* A disk that is full from then on (even steps) or fails once (odd steps) ends the run with that
 * error and loses nothing. */
static void a_failing_disk_ends_the_run_and_loses_nothing(void **state)
{
    static const struct {
        durable_event what;
        int error;
        rt_status status;
    } faults[] = {{DURABLE_ERRORS, ENOSPC, RT_ENOSPACE}, {DURABLE_ERROR, EIO, RT_EIO}};
    interruption_ground g = {.checkpoint = checkpoint};

    (void)state;
    interruption_lay(&g, true);
    g.whole = interruption_run(&g.spec, 1, DURABLE_NOTHING, 0, 0);
    for (size_t f = 0; f < sizeof(faults) / sizeof(faults[0]); f++) {
        for (int at = (int)f; at < g.whole.steps; at += 2 * INTERRUPTION_STRIDE) {
            interruption_result broken;

            interruption_lay(&g, true);
            broken = interruption_run(&g.spec, 1, faults[f].what, at, faults[f].error);
            if (broken.exit_code < 100)
                fail_msg("error %d at step %d went unnoticed", faults[f].error, at);
            if (broken.exit_code != 100 + (int)faults[f].status &&
                broken.exit_code != 100 + (int)RT_EIO)
                fail_msg("error %d at step %d: ended with %d", faults[f].error, at,
                         broken.exit_code);
            interruption_expect_resumed(&g, faults[f].what, at);
        }
    }
    interruption_take_up(&g);
}

static void killed_with_several_threads_it_resumes_to_the_same_model(void **state)
{
    interruption_ground g = {.checkpoint = checkpoint};

    (void)state;
    interruption_lay(&g, true);
    g.whole = interruption_run(&g.spec, 3, DURABLE_NOTHING, 0, 0);
    for (int at = 1; at < g.whole.steps; at += 11) {
        interruption_lay(&g, true);
        (void)interruption_run(&g.spec, 3, DURABLE_KILL, at, 0);
        interruption_expect_resumed(&g, DURABLE_KILL, at);
    }
    interruption_take_up(&g);
}

static void a_shard_that_is_gone_and_still_needed_is_named(void **state)
{
    interruption_ground g = {.checkpoint = checkpoint};
    interruption_result broken;
    md_convert_result result;
    rt_err err = {0};
    char *shard;

    (void)state;
    interruption_lay(&g, false);
    g.whole = interruption_run(&g.spec, 1, DURABLE_NOTHING, 0, 0);
    interruption_lay(&g, false);
    broken = interruption_run(&g.spec, 1, DURABLE_KILL, g.whole.steps / 2, 0);
    assert_int_equal(broken.exit_code, DURABLE_DIED);
    shard = rt_path_join(g.source, "model-00002-of-00002.safetensors");
    assert_int_equal(unlink(shard), 0);
    assert_int_equal(conversion_run(&g.spec, 0, &result, &err), RT_EFORMAT);
    assert_non_null(strstr(err.text, "model-00002-of-00002.safetensors"));
    free(shard);
    interruption_take_up(&g);
}

static void a_resumed_conversion_refuses_other_options_and_other_sources(void **state)
{
    interruption_ground g = {.checkpoint = checkpoint};
    md_convert_spec other;
    char *shard;
    interruption_result broken;
    int fd;
    char byte;

    (void)state;
    interruption_lay(&g, false);
    g.whole = interruption_run(&g.spec, 1, DURABLE_NOTHING, 0, 0);
    interruption_lay(&g, false);
    (void)interruption_run(&g.spec, 1, DURABLE_KILL, g.whole.steps / 2, 0);
    other = g.spec;
    other.dense_format = KN_F32;
    assert_int_equal(interruption_run(&other, 1, DURABLE_NOTHING, 0, 0).exit_code, 100 + RT_EINVAL);
    shard = rt_path_join(g.source, "model-00002-of-00002.safetensors");
    fd = open(shard, O_RDWR);
    assert_int_equal(lseek(fd, -3, SEEK_END) > 0, 1);
    assert_int_equal(read(fd, &byte, 1), 1);
    byte ^= 1;
    assert_int_equal(lseek(fd, -3, SEEK_END) > 0, 1);
    assert_int_equal(write(fd, &byte, 1), 1);
    close(fd);
    broken = interruption_run(&g.spec, 1, DURABLE_NOTHING, 0, 0);
    assert_int_equal(broken.exit_code, 100 + RT_EINVAL);
    free(shard);
    interruption_take_up(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_at_every_other_step_it_resumes_to_the_same_model),
        cmocka_unit_test(losing_power_at_any_step_it_resumes_to_the_same_model),
        cmocka_unit_test(consuming_and_losing_power_at_any_step_nothing_is_lost),
        cmocka_unit_test(stopped_by_a_signal_it_resumes),
        cmocka_unit_test(a_failing_disk_ends_the_run_and_loses_nothing),
        cmocka_unit_test(killed_with_several_threads_it_resumes_to_the_same_model),
        cmocka_unit_test(a_shard_that_is_gone_and_still_needed_is_named),
        cmocka_unit_test(a_resumed_conversion_refuses_other_options_and_other_sources),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
