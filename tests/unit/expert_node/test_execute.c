/* test_execute.c - frames against a row-by-row computation, and their independence of everything. */
#include "expert_node/execute.h"

#include "kernels/select.h"
#include "tests/support/expert_answer.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct {
    kn_format experts;
    bool float_activations;
} flavour;

static const flavour flavours[] = {
    {KN_F32, false}, {KN_BF16, false}, {KN_Q8, false},    {KN_Q4, false},
    {KN_Q8, true},   {KN_Q4, true},    {KN_Q8F32, false}, {KN_Q4F32, true},
};
enum { FLAVOURS = sizeof(flavours) / sizeof(flavours[0]) };

static tiny_model_spec model_of(const flavour *f)
{
    tiny_model_spec spec = tiny_model_default();

    spec.expert_format = f->experts;
    return spec;
}

static void a_frame_is_the_sum_of_its_contributions_in_every_format(void **state)
{
    static const uint32_t row_counts[] = {1, 5, 50};

    (void)state;
    for (int i = 0; i < FLAVOURS; i++) {
        tiny_model_spec spec = model_of(&flavours[i]);
        char *dir = tiny_model_build(&spec);
        for (uint32_t threads = 1; threads <= 4; threads *= 2) {
            expert_rig rig;
            expert_rig_open(&rig,
                            &(expert_rig_spec){.dir = dir,
                                               .threads = threads,
                                               .float_activations = flavours[i].float_activations});
            for (int c = 0; c < 3; c++) {
                expert_rows rows;
                expert_answer defined, found;
                expert_rows_make(&rows, rig.container, 1 + (uint32_t)c % 2, row_counts[c], 9);
                defined = expert_answer_make(&rows);
                found = expert_answer_make(&rows);
                expert_answer_define(rig.container, &rows, flavours[i].float_activations, &defined);
                expert_answer_add(&rig, &rows, NULL, flavours[i].float_activations, 0, rows.rows,
                                  &found);
                expert_answers_assert_equal(&defined, &found, &rows);
                assert_false(defined.poison[0]);
                expert_answer_free(&defined);
                expert_answer_free(&found);
                expert_rows_free(&rows);
            }
            expert_rig_close(&rig);
        }
        temp_dir_remove(dir);
    }
}

static void odd_shapes_and_wide_rows_of_choices_are_exact(void **state)
{
    /* 72 columns: groups are padded; 80 neurons: the last slice is short; 5 experts of each row */
    (void)state;
    for (int i = 0; i < FLAVOURS; i++) {
        tiny_model_spec spec = model_of(&flavours[i]);
        expert_rig rig;
        expert_rows rows;
        expert_answer defined, found;
        char *dir;

        spec.hidden = 72;
        spec.expert_inter = 88;
        spec.experts = 7;
        spec.topk = 5;
        dir = tiny_model_build(&spec);
        expert_rig_open(&rig,
                        &(expert_rig_spec){.dir = dir,
                                           .threads = 2,
                                           .float_activations = flavours[i].float_activations});
        expert_rows_make(&rows, rig.container, 2, 64, 4);
        defined = expert_answer_make(&rows);
        found = expert_answer_make(&rows);
        expert_answer_define(rig.container, &rows, flavours[i].float_activations, &defined);
        expert_answer_add(&rig, &rows, NULL, flavours[i].float_activations, 0, rows.rows, &found);
        expert_answers_assert_equal(&defined, &found, &rows);
        expert_answer_free(&defined);
        expert_answer_free(&found);
        expert_rows_free(&rows);
        expert_rig_close(&rig);
        temp_dir_remove(dir);
    }
}

static void any_partition_over_nodes_gives_the_same_sums(void **state)
{
    static const uint32_t nodes[] = {2, 3, 5, 8};

    (void)state;
    for (int i = 0; i < FLAVOURS; i++) {
        tiny_model_spec spec = model_of(&flavours[i]);
        char *dir = tiny_model_build(&spec);
        expert_rig one;
        expert_rows rows;
        expert_answer whole;

        expert_rig_open(&one, &(expert_rig_spec){
                                  .dir = dir, .float_activations = flavours[i].float_activations});
        expert_rows_make(&rows, one.container, 1, 20, 3);
        whole = expert_answer_make(&rows);
        expert_answer_add(&one, &rows, NULL, flavours[i].float_activations, 0, rows.rows, &whole);
        for (int n = 0; n < 4; n++) {
            for (int mode = 0; mode < 2; mode++) {
                expert_answer sum = expert_answer_make(&rows);
                for (uint32_t node = nodes[n]; node-- > 0;) { /* replies in any order */
                    expert_rig rig;
                    expert_rig_open(&rig, &(expert_rig_spec){.dir = dir,
                                                             .mode = mode ? PL_SLICED : PL_WHOLE,
                                                             .nodes = nodes[n],
                                                             .node = node,
                                                             .threads = 1 + node % 2,
                                                             .float_activations =
                                                                 flavours[i].float_activations});
                    expert_answer_add(&rig, &rows, rig.map, flavours[i].float_activations, 0,
                                      rows.rows, &sum);
                    expert_rig_close(&rig);
                }
                expert_answers_assert_equal(&whole, &sum, &rows);
                expert_answer_free(&sum);
            }
        }
        expert_answer_free(&whole);
        expert_rows_free(&rows);
        expert_rig_close(&one);
        temp_dir_remove(dir);
    }
}

static void rows_do_not_see_their_neighbours(void **state)
{
    tiny_model_spec spec = tiny_model_default();
    static const uint32_t chunks[] = {1, 7, 33};
    expert_rig rig;
    expert_rows rows;
    expert_answer together;
    char *dir = tiny_model_build(&spec);

    (void)state;
    expert_rig_open(&rig, &(expert_rig_spec){.dir = dir, .threads = 2});
    expert_rows_make(&rows, rig.container, 2, 60, 8);
    together = expert_answer_make(&rows);
    expert_answer_add(&rig, &rows, NULL, false, 0, rows.rows, &together);
    for (int c = 0; c < 3; c++) {
        expert_answer apart = expert_answer_make(&rows);
        for (uint32_t at = 0; at < rows.rows; at += chunks[c]) {
            uint32_t count = rows.rows - at < chunks[c] ? rows.rows - at : chunks[c];
            expert_answer_add(&rig, &rows, NULL, false, at, count, &apart);
        }
        expert_answers_assert_equal(&together, &apart, &rows);
        expert_answer_free(&apart);
    }
    expert_answer_free(&together);
    expert_rows_free(&rows);
    expert_rig_close(&rig);
    temp_dir_remove(dir);
}

static void reference_and_best_kernels_reply_the_same_bytes(void **state)
{
    rt_err err = {RT_OK, ""};

    (void)state;
    for (int i = 0; i < FLAVOURS; i++) {
        static const char *const variants[] = {"ref", "auto"};
        tiny_model_spec spec = model_of(&flavours[i]);
        char *dir = tiny_model_build(&spec);
        uint8_t *payload[2];
        size_t bytes[2];
        for (int v = 0; v < 2; v++) {
            expert_rig rig;
            expert_rows rows;
            uint8_t *frame;
            size_t frame_bytes;
            assert_int_equal(kn_select(variants[v], &err), RT_OK);
            expert_rig_open(
                &rig,
                &(expert_rig_spec){.dir = dir, .float_activations = flavours[i].float_activations});
            expert_rows_make(&rows, rig.container, 1, 37, 6);
            frame = expert_frame(&rows, rig.container, NULL, 0, flavours[i].float_activations, 0,
                                 rows.rows, &frame_bytes);
            assert_int_equal(
                expert_rig_execute(&rig, frame, frame_bytes, &payload[v], &bytes[v], &err), RT_OK);
            free(frame);
            expert_rows_free(&rows);
            expert_rig_close(&rig);
        }
        assert_int_equal(bytes[0], bytes[1]);
        assert_memory_equal(payload[0], payload[1], bytes[0]);
        free(payload[0]);
        free(payload[1]);
        temp_dir_remove(dir);
    }
}

static void a_small_ram_budget_changes_no_byte(void **state)
{
    tiny_model_spec spec = tiny_model_default();
    char *dir = tiny_model_build(&spec);
    expert_answer all = {0};
    expert_rows rows;
    expert_rig rig;
    md_expert_layout layout;

    (void)state;
    for (uint32_t records = 0; records < 7; records++) { /* 0: no limit */
        expert_answer found;
        if (records == 1) continue; /* not enough for two staging slots */
        expert_rig_open(&rig, &(expert_rig_spec){.dir = dir, .threads = 2});
        md_container_expert_layout(rig.container, 1, &layout);
        expert_rig_close(&rig);
        expert_rig_open(&rig, &(expert_rig_spec){.dir = dir,
                                                 .threads = 2,
                                                 .ram_bytes = records * layout.record_bytes});
        if (records == 0) {
            expert_rows_make(&rows, rig.container, 1, 40, 5);
            all = expert_answer_make(&rows);
            expert_answer_add(&rig, &rows, NULL, false, 0, rows.rows, &all);
            assert_int_equal(en_store_get_stats(rig.store).reads, 0);
        } else {
            found = expert_answer_make(&rows);
            expert_answer_add(&rig, &rows, NULL, false, 0, rows.rows, &found);
            expert_answers_assert_equal(&all, &found, &rows);
            assert_true(en_store_get_stats(rig.store).reads > 0);
            expert_answer_free(&found);
        }
        expert_rig_close(&rig);
    }
    expert_answer_free(&all);
    expert_rows_free(&rows);
    temp_dir_remove(dir);
}

static void mtp_experts_are_computed_in_the_dense_format(void **state)
{
    tiny_model_spec spec = tiny_model_default();
    expert_rig rig;
    expert_rows rows;
    expert_answer defined, found;
    char *dir;

    (void)state;
    spec.mtp = true;
    dir = tiny_model_build(&spec);
    expert_rig_open(&rig, &(expert_rig_spec){.dir = dir, .with_mtp = true});
    expert_rows_make(&rows, rig.container, spec.layers, 6, 5);
    defined = expert_answer_make(&rows);
    found = expert_answer_make(&rows);
    expert_answer_define(rig.container, &rows, false, &defined);
    expert_answer_add(&rig, &rows, NULL, false, 0, rows.rows, &found);
    expert_answers_assert_equal(&defined, &found, &rows);
    expert_answer_free(&defined);
    expert_answer_free(&found);
    expert_rows_free(&rows);
    expert_rig_close(&rig);
    temp_dir_remove(dir);
}

/* With few members a task takes several slices, whose rows are then not the same. */
static void slice_masks_of_one_expert_may_differ_by_row(void **state)
{
    tiny_model_spec spec = tiny_model_default();
    char *dir = tiny_model_build(&spec);

    (void)state;
    for (uint32_t threads = 1; threads <= 4; threads *= 2) {
        expert_rig rig;
        expert_rows rows;
        expert_answer defined, found;

        expert_rig_open(&rig, &(expert_rig_spec){.dir = dir, .threads = threads});
        expert_rows_make(&rows, rig.container, 1, 64, 7);
        for (uint32_t i = 0; i < rows.entry_total; i++) {
            rows.entries[i].slice_mask = 1 + i * 37 % 511;
            if (i % 16 == 3) rows.entries[i].slice_mask = 0x100;
        }
        defined = expert_answer_make(&rows);
        found = expert_answer_make(&rows);
        expert_answer_define(rig.container, &rows, false, &defined);
        expert_answer_add(&rig, &rows, NULL, false, 0, rows.rows, &found);
        expert_answers_assert_equal(&defined, &found, &rows);
        expert_answer_free(&defined);
        expert_answer_free(&found);
        expert_rows_free(&rows);
        expert_rig_close(&rig);
    }
    temp_dir_remove(dir);
}

static void the_executor_counts_and_states_its_memory(void **state)
{
    tiny_model_spec spec = tiny_model_default();
    char *dir = tiny_model_build(&spec);
    expert_rig rig;
    expert_rows rows;
    expert_answer found;
    en_execute_stats stats;
    en_executor_spec bad;
    en_executor *executor = NULL;
    rt_err err = {RT_OK, ""};

    (void)state;
    expert_rig_open(&rig, &(expert_rig_spec){.dir = dir});
    expert_rows_make(&rows, rig.container, 1, 1, 7);
    found = expert_answer_make(&rows);
    expert_answer_add(&rig, &rows, NULL, false, 0, 1, &found);
    expert_answer_add(&rig, &rows, NULL, false, 0, 1, &found);
    stats = en_executor_get_stats(rig.executor);
    assert_int_equal(stats.frames, 2);
    assert_int_equal(stats.rows, 2);
    assert_int_equal(stats.experts, 4);
    assert_true(en_executor_bytes(rig.container, 64, 2) > en_executor_bytes(rig.container, 64, 1));
    assert_true(en_executor_bytes(rig.container, 64, 1) > 64 * 64 * sizeof(int32_t));
    bad = (en_executor_spec){.store = rig.store, .container = rig.container, .team = rig.team};
    assert_int_equal(en_executor_create(&bad, &executor, &err), RT_EINVAL);
    bad.rows_max = TR_ROWS_MAX + 1;
    assert_int_equal(en_executor_create(&bad, &executor, &err), RT_EINVAL);
    assert_null(executor);
    expert_answer_free(&found);
    expert_rows_free(&rows);
    expert_rig_close(&rig);
    temp_dir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_frame_is_the_sum_of_its_contributions_in_every_format),
        cmocka_unit_test(odd_shapes_and_wide_rows_of_choices_are_exact),
        cmocka_unit_test(any_partition_over_nodes_gives_the_same_sums),
        cmocka_unit_test(rows_do_not_see_their_neighbours),
        cmocka_unit_test(reference_and_best_kernels_reply_the_same_bytes),
        cmocka_unit_test(a_small_ram_budget_changes_no_byte),
        cmocka_unit_test(mtp_experts_are_computed_in_the_dense_format),
        cmocka_unit_test(slice_masks_of_one_expert_may_differ_by_row),
        cmocka_unit_test(the_executor_counts_and_states_its_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
