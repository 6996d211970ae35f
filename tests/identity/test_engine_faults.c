/* test_engine_faults.c - a disk that fails or lies changes no bit: the same logits as long as another
 * copy exists, else one clear error. So do not the size of RAM and the look-ahead. */
#include "tests/oracle/engine_rig.h"
#include "tests/support/faulty_disk.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TOKENS = 40 };

static char *dir, *mirror;
static uint32_t tokens[TOKENS];
static size_t vocab, record_bytes;
static float *expected;
static faulty_disk faulty;

static float *run(engine_rig_spec spec, uint32_t chunk)
{
    engine_rig rig;
    float *logits;

    spec.dir = dir;
    engine_rig_open(&rig, &spec);
    logits = engine_rig_logits(&rig, tokens, TOKENS, chunk);
    engine_rig_close(&rig);
    return logits;
}

static int setup(void **state)
{
    tiny_model_spec spec = tiny_model_default();
    md_container *container;
    md_expert_layout layout;
    rt_err err = {RT_OK, ""};
    uint64_t seed = 5;

    (void)state;
    spec.layers = 5;
    dir = tiny_model_build(&spec);
    mirror = tiny_model_build(&spec);
    vocab = spec.vocab;
    for (uint32_t i = 0; i < TOKENS; i++)
        tokens[i] = (uint32_t)((tiny_model_uniform(&seed) + 1) * 0.5F * (float)spec.vocab);
    if (md_container_open(dir, &container, &err) != RT_OK) return 1;
    md_container_expert_layout(container, spec.dense_layers, &layout);
    record_bytes = layout.record_bytes;
    md_container_close(container);
    expected = run((engine_rig_spec){0}, TOKENS);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    free(expected);
    temp_dir_remove(dir);
    temp_dir_remove(mirror);
    return 0;
}

static void assert_expected(float *logits)
{
    assert_memory_equal(logits, expected, TOKENS * vocab * sizeof(*logits));
    assert_memory_not_equal(logits, logits + vocab, vocab * sizeof(*logits));
    free(logits);
}

static void logits_do_not_depend_on_the_memory_for_experts(void **state)
{
    static const uint32_t records[] = {2, 3, 5, 9, 17, 31};

    (void)state;
    for (size_t i = 0; i < sizeof(records) / sizeof(*records); i++) {
        engine_rig_spec spec = {.ram_bytes = records[i] * record_bytes};
        assert_expected(run(spec, TOKENS));
        assert_expected(run(spec, 1));
        spec.threads = 2;
        spec.nodes = 2;
        spec.mode = PL_SLICED;
        spec.ram_bytes = (records[i] + 4) * record_bytes;
        assert_expected(run(spec, 7));
    }
}

static void hints_reach_the_nodes_and_some_are_right(void **state)
{
    engine_rig_spec spec = {
        .dir = dir, .nodes = 2, .ram_bytes = 8 * record_bytes, .look_ahead = AN_LOOK_AHEAD_ON};
    uint64_t useful = 0, reads = 0;
    engine_rig rig;

    (void)state;
    engine_rig_open(&rig, &spec);
    assert_expected(engine_rig_logits(&rig, tokens, TOKENS, 1));
    for (uint32_t node = 0; node < 2; node++) {
        en_store_stats stats = en_store_get_stats(rig.store[node]);
        useful += stats.ahead_useful;
        reads += stats.ahead_reads;
        assert_true(stats.ahead_useful + stats.ahead_wasted <= stats.ahead_reads);
    }
    assert_true(reads > 0 && useful > 0);
    engine_rig_close(&rig);
}

static void logits_do_not_depend_on_look_ahead(void **state)
{
    (void)state;
    for (int mode = AN_LOOK_AHEAD_ON; mode <= AN_LOOK_AHEAD_AUTO; mode++) {
        engine_rig_spec spec = {.look_ahead = (an_look_ahead)mode};
        assert_expected(run(spec, 1));
        for (uint32_t records = 2; records < 20; records += 4) {
            spec.ram_bytes = records * record_bytes;
            assert_expected(run(spec, 1));
            assert_expected(run(spec, 3));
        }
        spec.nodes = 3;
        spec.threads = 2;
        assert_expected(run(spec, 2));
        spec.mode = PL_SLICED;
        assert_expected(run(spec, 1));
    }
}

/* One fifth of the reads of both copies. */
static void a_fifth_of_bad_reads_changes_nothing_with_a_mirror(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 4; seed++) {
        en_disk_ops ops = faulty_disk_ops(&faulty);
        engine_rig_spec spec = {.ram_bytes = 6 * record_bytes,
                                .mirrors = mirror,
                                .disk = &ops,
                                .look_ahead = AN_LOOK_AHEAD_ON};
        faulty_disk_init(&faulty, seed, 20, NULL);
        assert_expected(run(spec, seed % 2 == 0 ? 1 : 9));
        assert_true(faulty.faults * 10 > faulty.reads);
    }
}

/* A step that fails leaves its sequence as it was: tried again it gives the same bits. */
static void without_a_mirror_a_bad_read_is_one_error_and_no_wrong_token(void **state)
{
    en_disk_ops ops = faulty_disk_ops(&faulty);
    engine_rig_spec spec = {.dir = dir, .ram_bytes = 6 * record_bytes, .disk = &ops};
    float *logits = calloc(TOKENS * vocab, sizeof(*logits));
    rt_err err = {RT_OK, ""};
    uint32_t errors = 0;
    engine_rig rig;
    an_seq *seq;

    (void)state;
    assert_non_null(logits);
    faulty_disk_init(&faulty, 11, 0, NULL);
    engine_rig_open(&rig, &spec);
    engine_rig_check(an_seq_open(rig.engine, &seq, &err), &err, "sequence");
    faulty.percent = 2; /* of reads: a step of 4 layers makes about 8 */
    while (an_seq_length(seq) < TOKENS) {
        uint32_t at = an_seq_length(seq);
        an_step_item item = {
            .seq = seq, .tokens = tokens + at, .count = 1, .logits = logits + at * vocab};
        rt_status status;
        err = (rt_err){RT_OK, ""};
        status = an_engine_step(rig.engine, &item, 1, &err);
        if (status == RT_OK) continue;
        errors++;
        assert_true(status == RT_EIO || status == RT_EFORMAT);
        assert_non_null(strstr(err.text, "experts-00"));
        assert_non_null(strstr(err.text, "expert "));
        assert_int_equal(an_seq_length(seq), at);
    }
    assert_true(errors > 0);
    an_seq_close(seq);
    engine_rig_close(&rig);
    assert_expected(logits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_do_not_depend_on_the_memory_for_experts),
        cmocka_unit_test(hints_reach_the_nodes_and_some_are_right),
        cmocka_unit_test(logits_do_not_depend_on_look_ahead),
        cmocka_unit_test(a_fifth_of_bad_reads_changes_nothing_with_a_mirror),
        cmocka_unit_test(without_a_mirror_a_bad_read_is_one_error_and_no_wrong_token),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
