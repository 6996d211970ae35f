/* test_engine_split.c - the same logits, bit for bit, however the work is split: over nodes and
 * slices, orders of replies, chunks, batch neighbours and threads. */
#include "tests/oracle/engine_rig.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TOKENS = 40 };

static char *dir_q4, *dir_f32;
static uint32_t tokens[TOKENS];

static int setup(void **state)
{
    tiny_model_spec spec = tiny_model_default();
    uint64_t seed = 5;

    (void)state;
    spec.layers = 5;
    dir_q4 = tiny_model_build(&spec);
    spec.expert_format = KN_F32;
    spec.dense_format = KN_F32;
    dir_f32 = tiny_model_build(&spec);
    for (uint32_t i = 0; i < TOKENS; i++)
        tokens[i] = (uint32_t)((tiny_model_uniform(&seed) + 1) * 0.5F * (float)spec.vocab);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    temp_dir_remove(dir_q4);
    temp_dir_remove(dir_f32);
    return 0;
}

static float *run(engine_rig_spec spec, uint32_t chunk)
{
    engine_rig rig;
    float *logits;

    engine_rig_open(&rig, &spec);
    logits = engine_rig_logits(&rig, tokens, TOKENS, chunk);
    engine_rig_close(&rig);
    return logits;
}

/* Runs both ways and compares all logits; distinct logits of two rows show that the test can fail. */
static void assert_same(engine_rig_spec a, uint32_t chunk_a, engine_rig_spec b, uint32_t chunk_b)
{
    size_t vocab = tiny_model_default().vocab;
    float *first = run(a, chunk_a), *second = run(b, chunk_b);

    assert_memory_equal(first, second, TOKENS * vocab * sizeof(*first));
    assert_memory_not_equal(first, first + vocab, vocab * sizeof(*first));
    free(first);
    free(second);
}

static void logits_do_not_depend_on_the_chunk(void **state)
{
    static const uint32_t chunks[] = {1, 7, 13};

    (void)state;
    for (size_t i = 0; i < sizeof(chunks) / sizeof(*chunks); i++) {
        assert_same((engine_rig_spec){.dir = dir_q4}, TOKENS, (engine_rig_spec){.dir = dir_q4},
                    chunks[i]);
        assert_same((engine_rig_spec){.dir = dir_f32}, TOKENS, (engine_rig_spec){.dir = dir_f32},
                    chunks[i]);
    }
}

static void logits_do_not_depend_on_nodes_or_slices(void **state)
{
    static const uint32_t nodes[] = {2, 3, 5, 8};

    (void)state;
    for (size_t i = 0; i < sizeof(nodes) / sizeof(*nodes); i++) {
        engine_rig_spec spec = {.dir = dir_q4, .nodes = nodes[i], .mode = PL_WHOLE};

        assert_same((engine_rig_spec){.dir = dir_q4}, TOKENS, spec, TOKENS);
        spec.mode = PL_SLICED;
        assert_same((engine_rig_spec){.dir = dir_q4}, TOKENS, spec, 9);
        spec.dir = dir_f32;
        assert_same((engine_rig_spec){.dir = dir_f32}, TOKENS, spec, 1);
    }
}

static void logits_do_not_depend_on_the_order_of_replies(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 5; seed++)
        assert_same(
            (engine_rig_spec){.dir = dir_q4}, TOKENS,
            (engine_rig_spec){.dir = dir_q4, .nodes = 5, .mode = PL_SLICED, .permute = seed},
            TOKENS);
}

static void logits_do_not_depend_on_threads(void **state)
{
    (void)state;
    for (uint32_t threads = 2; threads <= 5; threads++) {
        assert_same((engine_rig_spec){.dir = dir_q4}, TOKENS,
                    (engine_rig_spec){.dir = dir_q4, .threads = threads}, TOKENS);
        assert_same((engine_rig_spec){.dir = dir_f32}, TOKENS,
                    (engine_rig_spec){.dir = dir_f32, .threads = threads}, 1);
    }
}

static void bf16_cache_rows_do_not_depend_on_the_chunk(void **state)
{
    (void)state;
    assert_same((engine_rig_spec){.dir = dir_q4, .kv_bf16 = true}, TOKENS,
                (engine_rig_spec){.dir = dir_q4, .kv_bf16 = true}, 3);
}

/* Three sequences in lockstep, of different lengths and tokens, in one step each time. */
static void logits_do_not_depend_on_batch_neighbours(void **state)
{
    engine_rig_spec spec = {.dir = dir_q4, .nodes = 3, .mode = PL_SLICED, .threads = 2};
    size_t vocab = tiny_model_default().vocab;
    float *alone = run((engine_rig_spec){.dir = dir_q4}, TOKENS);
    float *logits = calloc(TOKENS * vocab, sizeof(*logits));
    uint32_t other[TOKENS];
    rt_err err = {RT_OK, ""};
    engine_rig rig;
    an_seq *seq[3];

    (void)state;
    assert_non_null(logits);
    for (uint32_t i = 0; i < TOKENS; i++)
        other[i] = (tokens[i] + 11) % (uint32_t)vocab;
    engine_rig_open(&rig, &spec);
    for (int i = 0; i < 3; i++)
        engine_rig_check(an_seq_open(rig.engine, &seq[i], &err), &err, "sequence");
    for (uint32_t at = 0; at < TOKENS; at += 4) {
        an_step_item items[3] = {
            {.seq = seq[0], .tokens = other + at, .count = 4, .logits_from = 4},
            {.seq = seq[1], .tokens = tokens + at, .count = 4, .logits = logits + at * vocab},
            {.seq = seq[2], .tokens = other, .count = at % 3, .logits_from = at % 3},
        };

        engine_rig_check(an_engine_step(rig.engine, items, 3, &err), &err, "step");
    }
    assert_memory_equal(alone, logits, TOKENS * vocab * sizeof(*logits));
    engine_rig_close(&rig);
    free(alone);
    free(logits);
}

/* Speculation and prefix reuse: what was dropped leaves no trace. */
static void truncation_is_exact(void **state)
{
    size_t vocab = tiny_model_default().vocab;
    float *straight = run((engine_rig_spec){.dir = dir_q4}, TOKENS);
    float *logits = calloc(TOKENS * vocab, sizeof(*logits));
    uint32_t wrong[TOKENS] = {0};
    engine_rig rig;
    rt_err err = {RT_OK, ""};
    an_seq *seq;

    (void)state;
    assert_non_null(logits);
    engine_rig_open(&rig, &(engine_rig_spec){.dir = dir_q4});
    engine_rig_check(an_seq_open(rig.engine, &seq, &err), &err, "sequence");
    for (uint32_t at = 0; at < TOKENS; at += 10) {
        an_step_item draft = {.seq = seq, .tokens = wrong, .count = 12, .logits_from = 12};
        an_step_item item = {
            .seq = seq, .tokens = tokens + at, .count = 10, .logits = logits + at * vocab};

        engine_rig_check(an_engine_step(rig.engine, &draft, 1, &err), &err, "draft");
        an_seq_truncate(seq, at);
        engine_rig_check(an_engine_step(rig.engine, &item, 1, &err), &err, "step");
        assert_int_equal(an_seq_length(seq), at + 10);
    }
    assert_memory_equal(straight, logits, TOKENS * vocab * sizeof(*logits));
    engine_rig_close(&rig);
    free(straight);
    free(logits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_do_not_depend_on_the_chunk),
        cmocka_unit_test(logits_do_not_depend_on_nodes_or_slices),
        cmocka_unit_test(logits_do_not_depend_on_the_order_of_replies),
        cmocka_unit_test(logits_do_not_depend_on_threads),
        cmocka_unit_test(bf16_cache_rows_do_not_depend_on_the_chunk),
        cmocka_unit_test(logits_do_not_depend_on_batch_neighbours),
        cmocka_unit_test(truncation_is_exact),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
