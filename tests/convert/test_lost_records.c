/* test_lost_records.c - records that the ledger names and the disk does not give back are converted
 * again, or named with the shards that they were made of; with --consume no shard goes before its
 * records read back whole. */
/* wrap: pwrite fdatasync fsync rename unlink ftruncate mkdir */
#include "model/convert/convert.h"

#include "base/file.h"
#include "model/convert/ledger.h"
#include "tests/support/conversion.h"
#include "tests/support/interruption.h"
#include "tests/support/safetensors_file.h"

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

/* What becomes of a pack. */
typedef enum { LOSS_MISSING, LOSS_EMPTY, LOSS_SHORT, LOSS_LONG, LOSS_BYTES, LOSS_COUNT } loss;

static void inflict(const interruption_ground *g, const char *name, loss what)
{
    char *pack = rt_path_join(g->target, name);
    uint8_t zeros[64] = {0};
    int fd = open(pack, O_RDWR);

    assert_true(fd >= 0);
    switch (what) {
    case LOSS_MISSING:
        assert_int_equal(unlink(pack), 0);
        break;
    case LOSS_EMPTY:
        assert_int_equal(ftruncate(fd, 0), 0);
        break;
    case LOSS_SHORT:
        assert_int_equal(ftruncate(fd, 4096 + 100), 0);
        break;
    case LOSS_LONG:
        assert_int_equal(ftruncate(fd, 1 << 24), 0);
        break;
    default:
        assert_int_equal(pwrite(fd, zeros, sizeof(zeros), 4096), sizeof(zeros));
        break;
    }
    close(fd);
    free(pack);
}

static void records_that_were_lost_are_converted_again(void **state)
{
    static const char *const packs[] = {"experts-001.bin", "dense.bin"};
    interruption_ground g = {.checkpoint = checkpoint};

    (void)state;
    interruption_lay(&g, false);
    g.whole = interruption_run(&g.spec, 1, DURABLE_NOTHING, 0, 0);
    for (int what = 0; what < LOSS_COUNT; what++) {
        for (int consume = 0; consume < 2; consume++) {
            for (size_t p = 0; p < sizeof(packs) / sizeof(packs[0]); p++) {
                interruption_lay(&g, false);
                (void)interruption_run(&g.spec, 1, DURABLE_KILL, g.whole.steps * 3 / 4, 0);
                inflict(&g, packs[p], (loss)what);
                g.spec.consume = consume != 0;
                interruption_expect_resumed(&g, DURABLE_KILL, what);
            }
        }
    }
    interruption_take_up(&g);
}

static void a_dry_run_counts_what_was_lost_and_changes_nothing(void **state)
{
    md_convert_result before = {0}, after = {0};
    interruption_ground g = {.checkpoint = checkpoint};

    (void)state;
    interruption_lay(&g, false);
    g.whole = interruption_run(&g.spec, 1, DURABLE_NOTHING, 0, 0);
    interruption_lay(&g, false);
    (void)interruption_run(&g.spec, 1, DURABLE_KILL, g.whole.steps * 3 / 4, 0);
    g.spec.dry_run = true;
    assert_int_equal(conversion_run(&g.spec, 0, &before, NULL), RT_OK);
    assert_true(before.records_resumed > 0);
    assert_int_equal(before.records_lost, 0);
    inflict(&g, "experts-001.bin", LOSS_MISSING);
    assert_int_equal(conversion_run(&g.spec, 0, &after, NULL), RT_OK);
    assert_true(after.records_lost > 0);
    assert_int_equal(after.records_lost + after.records_resumed, before.records_resumed);
    assert_false(test_file_exists(g.target, "experts-001.bin"));
    interruption_take_up(&g);
}

static void lost_records_whose_shards_were_consumed_are_named_with_them(void **state)
{
    static const char shard[] = "model-00001-of-00002.safetensors";
    md_convert_result result;
    interruption_ground g = {.checkpoint = checkpoint};
    rt_err err = {0};
    int at;

    (void)state;
    interruption_lay(&g, true);
    g.whole = interruption_run(&g.spec, 1, DURABLE_NOTHING, 0, 0);
    for (at = g.whole.steps / 4; at < g.whole.steps; at++) {
        interruption_lay(&g, true);
        (void)interruption_run(&g.spec, 1, DURABLE_KILL, at, 0);
        if (!test_file_exists(g.source, shard)) break;
    }
    assert_true(test_file_exists(g.target, MD_LEDGER_NAME));
    inflict(&g, "experts-001.bin", LOSS_MISSING);
    for (int twice = 0; twice < 2; twice++) {
        assert_int_equal(conversion_run(&g.spec, 0, &result, &err), RT_EFORMAT);
        assert_non_null(strstr(err.text, "layer 1 expert 0"));
        assert_non_null(strstr(err.text, shard));
        assert_non_null(strstr(err.text, "put these back"));
    }
    /* Put back, it goes on. */
    {
        char *back = rt_path_join(g.source, shard);

        test_file_copy(MOESAIC_FIXTURES "/nano-fp8/model-00001-of-00002.safetensors", back);
        free(back);
    }
    interruption_expect_resumed(&g, DURABLE_KILL, at);
    interruption_take_up(&g);
}

/* A record that the disk gives back wrong at once ends the run and keeps its shard; it is said once,
 * and the next run mends it. */
static void consume_keeps_the_shards_of_a_record_that_reads_back_wrong(void **state)
{
    interruption_ground g = {.checkpoint = checkpoint};
    int seen = 0;

    (void)state;
    interruption_lay(&g, true);
    g.whole = interruption_run(&g.spec, 1, DURABLE_NOTHING, 0, 0);
    for (int at = 10; at < g.whole.steps; at += 7 * INTERRUPTION_STRIDE) {
        interruption_result broken;

        interruption_lay(&g, true);
        broken = interruption_run(&g.spec, 1, DURABLE_CORRUPTION, at, 0);
        if (broken.exit_code == 0) continue; /* it was no record's bytes, or none at all */
        if (broken.exit_code != 100 + RT_EFORMAT)
            fail_msg("step %d: ended with %d", at, broken.exit_code);
        assert_true(test_file_exists(g.source, "model-00001-of-00002.safetensors") ||
                    test_file_exists(g.source, "model-00002-of-00002.safetensors"));
        interruption_expect_resumed(&g, DURABLE_CORRUPTION, at);
        seen++;
    }
    assert_true(seen > 3);
    interruption_take_up(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_that_were_lost_are_converted_again),
        cmocka_unit_test(a_dry_run_counts_what_was_lost_and_changes_nothing),
        cmocka_unit_test(lost_records_whose_shards_were_consumed_are_named_with_them),
        cmocka_unit_test(consume_keeps_the_shards_of_a_record_that_reads_back_wrong),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
