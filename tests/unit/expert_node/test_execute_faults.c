/* test_execute_faults.c - frames whose weights, records or shape are not as they should be: exact sums of
 * what is huge, poison for what is not finite, a refusal by name for the rest. */
#include "expert_node/execute.h"

#include "tests/support/expert_answer.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Records of one expert of an f32 model, changed before they are hashed. */
typedef struct {
    uint32_t expert;
    float factor; /* of all weights */
    float first;  /* replaces the first weight unless 0 */
} change;

static void patch_expert(void *context, md_key key, void *record, size_t bytes)
{
    const change *c = context;
    float *w = record;

    if (key.kind != MD_EXPERT || key.index != c->expert) return;
    for (size_t i = 0; i < bytes / sizeof(*w); i++) {
        w[i] *= c->factor;
    }
    if (c->first != 0.0f) w[0] = c->first;
}

/* Rows that choose expert 2 feel the change; every other row is as before. */
static void check_change(change *c, bool poison)
{
    tiny_model_spec spec = tiny_model_default();
    expert_rig rig;
    expert_rows rows;
    expert_answer defined, found;
    uint32_t touched = 0;
    const tr_entry *entry;
    char *dir;

    spec.expert_format = KN_F32;
    spec.patch = patch_expert;
    spec.patch_context = c;
    dir = tiny_model_build(&spec);
    expert_rig_open(&rig, &(expert_rig_spec){.dir = dir, .threads = 2});
    expert_rows_make(&rows, rig.container, 1, 60, 2);
    defined = expert_answer_make(&rows);
    found = expert_answer_make(&rows);
    expert_answer_define(rig.container, &rows, false, &defined);
    expert_answer_add(&rig, &rows, NULL, false, 0, rows.rows, &found);
    expert_answers_assert_equal(&defined, &found, &rows);
    entry = rows.entries;
    for (uint32_t r = 0; r < rows.rows; r++) {
        bool chosen = false;
        int64_t most = 0;
        for (uint32_t e = 0; e < rows.entry_count[r]; e++, entry++) {
            chosen = chosen || entry->expert == c->expert;
        }
        for (uint32_t i = 0; i < rows.hidden; i++) {
            int64_t v = llabs(found.sums[(size_t)r * rows.hidden + i]);
            if (v > most) most = v;
        }
        assert_int_equal(found.poison[r], chosen && poison);
        if (!poison) assert_int_equal(most > INT32_MAX, chosen);
        touched += chosen;
    }
    assert_true(touched > 8 && touched < rows.rows); /* more than the pool of wide sums */
    expert_answer_free(&defined);
    expert_answer_free(&found);
    expert_rows_free(&rows);
    expert_rig_close(&rig);
    temp_dir_remove(dir);
}

static void huge_contributions_are_summed_exactly(void **state)
{
    change c = {.expert = 2, .factor = 512.0f};

    (void)state;
    check_change(&c, false);
}

static void weights_that_are_not_finite_poison_the_rows_that_use_them(void **state)
{
    change nan = {.expert = 2, .factor = 1.0f, .first = NAN};
    change inf = {.expert = 2, .factor = 0x1p100f};

    (void)state;
    check_change(&nan, true);
    check_change(&inf, true);
}

/* A frame of `rows` for a rig must fail with status and a text that contains `word`. */
static void expect_refusal(const expert_rig *rig, const expert_rows *rows, bool float_activations,
                           rt_status status, const char *word)
{
    rt_err err = {RT_OK, ""};
    size_t bytes, payload_bytes;
    uint8_t *payload;
    uint8_t *frame =
        expert_frame(rows, rig->container, NULL, 0, float_activations, 0, rows->rows, &bytes);

    assert_non_null(frame);
    assert_int_equal(expert_rig_execute(rig, frame, bytes, &payload, &payload_bytes, &err), status);
    if (strstr(err.text, word) == NULL) fail_msg("no '%s' in: %s", word, err.text);
    free(frame);
}

static void frames_this_node_cannot_compute_are_refused_by_name(void **state)
{
    tiny_model_spec spec = tiny_model_default();
    char *dir = tiny_model_build(&spec);
    expert_rig rig;
    expert_rows rows;

    (void)state;
    expert_rig_open(&rig, &(expert_rig_spec){.dir = dir, .nodes = 2, .node = 1, .rows_max = 8});
    expert_rows_make(&rows, rig.container, 1, 8, 1);
    expect_refusal(&rig, &rows, false, RT_EINVAL, "expert"); /* node 0's, too */
    expect_refusal(&rig, &rows, true, RT_EPROTO, "int8");
    rows.q = -127;
    expect_refusal(&rig, &rows, false, RT_EPROTO, "-127");
    rows.q = 13;
    rows.layer = 0;
    expert_rows_free(&rows);
    expert_rows_make(&rows, rig.container, 1, 9, 1);
    expect_refusal(&rig, &rows, false, RT_EINVAL, "9");
    expert_rows_free(&rows);
    expert_rig_close(&rig);

    expert_rig_open(&rig, &(expert_rig_spec){.dir = dir, .float_activations = true});
    expert_rows_make(&rows, rig.container, 1, 8, 1);
    expect_refusal(&rig, &rows, false, RT_EPROTO, "f32");
    expert_rows_free(&rows);
    expert_rig_close(&rig);
    temp_dir_remove(dir);
}

static void a_layer_without_experts_is_refused(void **state)
{
    tiny_model_spec spec = tiny_model_default();
    char *dir = tiny_model_build(&spec);
    expert_rig rig;
    expert_rows rows;
    rt_err err = {RT_OK, ""};
    size_t bytes, payload_bytes;
    uint8_t *payload, *frame;
    tr_frame_header head;

    (void)state;
    expert_rig_open(&rig, &(expert_rig_spec){.dir = dir});
    expert_rows_make(&rows, rig.container, 1, 2, 1);
    frame = expert_frame(&rows, rig.container, NULL, 0, false, 0, 2, &bytes);
    memcpy(&head, frame, sizeof(head));
    head.layer = 0;
    tr_frame_seal(frame, bytes, &head);
    assert_int_equal(expert_rig_execute(&rig, frame, bytes, &payload, &payload_bytes, &err),
                     RT_EINVAL);
    assert_non_null(strstr(err.text, "layer 0"));
    free(frame);
    expert_rows_free(&rows);
    expert_rig_close(&rig);
    temp_dir_remove(dir);
}

static void a_damaged_record_fails_its_frames_and_no_others(void **state)
{
    tiny_model_spec spec = tiny_model_default();
    char *dir = tiny_model_build(&spec);
    expert_rig rig;
    expert_rows rows, good;
    md_expert_layout layout;
    expert_answer defined, found;

    (void)state;
    expert_rig_open(&rig, &(expert_rig_spec){.dir = dir});
    md_container_expert_layout(rig.container, 1, &layout);
    expert_rig_close(&rig);
    tiny_model_damage(dir, 2, 6);
    expert_rig_open(&rig, &(expert_rig_spec){.dir = dir, .ram_bytes = 4 * layout.record_bytes});
    expert_rows_make(&rows, rig.container, 2, 40, 1); /* the union is all experts */
    expert_rows_make(&good, rig.container, 2, 1, 1);
    good.entries[0].expert = 5;
    good.entries[1].expert = 7;
    defined = expert_answer_make(&good);
    expert_answer_define(rig.container, &good, false, &defined);
    for (int i = 0; i < 3; i++) { /* no pin is left behind */
        expect_refusal(&rig, &rows, false, RT_EFORMAT, "layer 2 expert 6");
        found = expert_answer_make(&good);
        expert_answer_add(&rig, &good, NULL, false, 0, 1, &found);
        expert_answers_assert_equal(&defined, &found, &good);
        expert_answer_free(&found);
    }
    expert_answer_free(&defined);
    expert_rows_free(&rows);
    expert_rows_free(&good);
    expert_rig_close(&rig);
    temp_dir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(huge_contributions_are_summed_exactly),
        cmocka_unit_test(weights_that_are_not_finite_poison_the_rows_that_use_them),
        cmocka_unit_test(frames_this_node_cannot_compute_are_refused_by_name),
        cmocka_unit_test(a_layer_without_experts_is_refused),
        cmocka_unit_test(a_damaged_record_fails_its_frames_and_no_others),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
