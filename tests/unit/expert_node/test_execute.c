/* test_execute.c - frames against a row-by-row computation, and their independence of everything. */
#include "expert_node/execute.h"

#include "kernels/select.h"
#include "model/ffn.h"
#include "tests/support/expert_rig.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "transport/partial.h"

#include <math.h>
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

typedef struct {
    int64_t *sums; /* [rows][hidden] */
    bool *poison;  /* [rows] */
} answer;

static answer answer_make(const expert_rows *rows)
{
    answer a = {calloc((size_t)rows->rows * rows->hidden, sizeof(int64_t)),
                calloc(rows->rows, sizeof(bool))};

    assert_true(a.sums != NULL && a.poison != NULL);
    return a;
}

static void answer_free(answer *a)
{
    free(a->sums);
    free(a->poison);
}

static void assert_answers_equal(const answer *a, const answer *b, const expert_rows *rows)
{
    assert_memory_equal(a->poison, b->poison, rows->rows);
    for (uint32_t r = 0; r < rows->rows; r++) {
        if (a->poison[r]) continue;
        assert_memory_equal(a->sums + (size_t)r * rows->hidden, b->sums + (size_t)r * rows->hidden,
                            rows->hidden * sizeof(int64_t));
    }
}

/* Adds what a rig answers for rows row_begin.. of its share (map) of the entries. */
static void add_answer(const expert_rig *rig, const expert_rows *rows, const pl_map *map,
                       bool float_activations, uint32_t row_begin, uint32_t row_count, answer *a)
{
    rt_err err = {RT_OK, ""};
    size_t bytes, payload_bytes;
    uint8_t *payload;
    uint8_t *frame = expert_frame(rows, rig->container, map, rig->node, float_activations,
                                  row_begin, row_count, &bytes);

    if (frame == NULL) return; /* nothing of these rows lives here */
    assert_int_equal(expert_rig_execute(rig, frame, bytes, &payload, &payload_bytes, &err), RT_OK);
    expert_payload_add(payload, payload_bytes, row_count, rows->hidden,
                       a->sums + (size_t)row_begin * rows->hidden, a->poison + row_begin);
    free(payload);
    free(frame);
}

/* One contribution after the other: the definition, without groups, blocks, tasks or members. */
static void define_answer(const md_container *container, const expert_rows *rows,
                          bool float_activations, answer *a)
{
    uint32_t hidden = rows->hidden;
    float *y = malloc(hidden * sizeof(*y));
    const tr_entry *entry = rows->entries;
    md_expert_layout layout;
    void *quantised, *scratch, *record;

    md_container_expert_layout(container, rows->layer, &layout);
    quantised =
        aligned_alloc(64, kn_rows_quant_bytes(1, hidden, layout.hidden_group) / 64 * 64 + 64);
    scratch = aligned_alloc(
        64, md_ffn_scratch_bytes(1, layout.slice_width, layout.inter_group) / 64 * 64 + 64);
    record = aligned_alloc(4096, layout.record_bytes);
    assert_true(y != NULL && quantised != NULL && scratch != NULL && record != NULL);
    for (uint32_t r = 0; r < rows->rows; r++) {
        const float *x = rows->x + (size_t)r * hidden;
        bool int8 = kn_format_is_int(layout.format) && !float_activations;
        kn_rows row = int8 ? kn_rows_quantise(x, hidden, 1, hidden, layout.hidden_group, quantised)
                           : kn_rows_float(x, hidden, 1, hidden);
        for (uint32_t e = 0; e < rows->entry_count[r]; e++, entry++) {
            md_record disk;
            rt_err err = {RT_OK, ""};
            float ws = entry->weight * ldexpf(1.0f, rows->q);
            assert_true(md_container_find(
                container, (md_key){(uint16_t)rows->layer, MD_EXPERT, entry->expert}, &disk));
            assert_int_equal(md_record_read(&disk, record, &err), RT_OK);
            for (uint32_t s = 0; s < layout.slices; s++) {
                md_slice slice =
                    md_slice_view(&layout, s, (uint8_t *)record + md_slice_offset(&layout, s));
                if (!(entry->slice_mask >> s & 1)) continue;
                md_ffn_slice(y, hidden, &row, &slice, scratch);
                for (uint32_t i = 0; i < hidden; i++) {
                    float v = y[i] * ws;
                    if (!(fabsf(v) < 0x1p55f)) {
                        a->poison[r] = true;
                    } else {
                        a->sums[(size_t)r * hidden + i] += (int64_t)nearbyint((double)v);
                    }
                }
            }
        }
    }
    free(y);
    free(quantised);
    free(scratch);
    free(record);
}

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
                answer defined, found;
                expert_rows_make(&rows, rig.container, 1 + (uint32_t)c % 2, row_counts[c], 9);
                defined = answer_make(&rows);
                found = answer_make(&rows);
                define_answer(rig.container, &rows, flavours[i].float_activations, &defined);
                add_answer(&rig, &rows, NULL, flavours[i].float_activations, 0, rows.rows, &found);
                assert_answers_equal(&defined, &found, &rows);
                assert_false(defined.poison[0]);
                answer_free(&defined);
                answer_free(&found);
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
        answer defined, found;
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
        defined = answer_make(&rows);
        found = answer_make(&rows);
        define_answer(rig.container, &rows, flavours[i].float_activations, &defined);
        add_answer(&rig, &rows, NULL, flavours[i].float_activations, 0, rows.rows, &found);
        assert_answers_equal(&defined, &found, &rows);
        answer_free(&defined);
        answer_free(&found);
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
        answer whole;

        expert_rig_open(&one, &(expert_rig_spec){
                                  .dir = dir, .float_activations = flavours[i].float_activations});
        expert_rows_make(&rows, one.container, 1, 20, 3);
        whole = answer_make(&rows);
        add_answer(&one, &rows, NULL, flavours[i].float_activations, 0, rows.rows, &whole);
        for (int n = 0; n < 4; n++) {
            for (int mode = 0; mode < 2; mode++) {
                answer sum = answer_make(&rows);
                for (uint32_t node = nodes[n]; node-- > 0;) { /* replies in any order */
                    expert_rig rig;
                    expert_rig_open(&rig, &(expert_rig_spec){.dir = dir,
                                                             .mode = mode ? PL_SLICED : PL_WHOLE,
                                                             .nodes = nodes[n],
                                                             .node = node,
                                                             .threads = 1 + node % 2,
                                                             .float_activations =
                                                                 flavours[i].float_activations});
                    add_answer(&rig, &rows, rig.map, flavours[i].float_activations, 0, rows.rows,
                               &sum);
                    expert_rig_close(&rig);
                }
                assert_answers_equal(&whole, &sum, &rows);
                answer_free(&sum);
            }
        }
        answer_free(&whole);
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
    answer together;
    char *dir = tiny_model_build(&spec);

    (void)state;
    expert_rig_open(&rig, &(expert_rig_spec){.dir = dir, .threads = 2});
    expert_rows_make(&rows, rig.container, 2, 60, 8);
    together = answer_make(&rows);
    add_answer(&rig, &rows, NULL, false, 0, rows.rows, &together);
    for (int c = 0; c < 3; c++) {
        answer apart = answer_make(&rows);
        for (uint32_t at = 0; at < rows.rows; at += chunks[c]) {
            uint32_t count = rows.rows - at < chunks[c] ? rows.rows - at : chunks[c];
            add_answer(&rig, &rows, NULL, false, at, count, &apart);
        }
        assert_answers_equal(&together, &apart, &rows);
        answer_free(&apart);
    }
    answer_free(&together);
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
    answer all = {0};
    expert_rows rows;
    expert_rig rig;
    md_expert_layout layout;

    (void)state;
    for (uint32_t records = 0; records < 7; records++) { /* 0: no limit */
        answer found;
        if (records == 1) continue; /* not enough for two staging slots */
        expert_rig_open(&rig, &(expert_rig_spec){.dir = dir, .threads = 2});
        md_container_expert_layout(rig.container, 1, &layout);
        expert_rig_close(&rig);
        expert_rig_open(&rig, &(expert_rig_spec){.dir = dir,
                                                 .threads = 2,
                                                 .ram_bytes = records * layout.record_bytes});
        if (records == 0) {
            expert_rows_make(&rows, rig.container, 1, 40, 5);
            all = answer_make(&rows);
            add_answer(&rig, &rows, NULL, false, 0, rows.rows, &all);
            assert_int_equal(en_store_get_stats(rig.store).reads, 0);
        } else {
            found = answer_make(&rows);
            add_answer(&rig, &rows, NULL, false, 0, rows.rows, &found);
            assert_answers_equal(&all, &found, &rows);
            assert_true(en_store_get_stats(rig.store).reads > 0);
            answer_free(&found);
        }
        expert_rig_close(&rig);
    }
    answer_free(&all);
    expert_rows_free(&rows);
    temp_dir_remove(dir);
}

static void mtp_experts_are_computed_in_the_dense_format(void **state)
{
    tiny_model_spec spec = tiny_model_default();
    expert_rig rig;
    expert_rows rows;
    answer defined, found;
    char *dir;

    (void)state;
    spec.mtp = true;
    dir = tiny_model_build(&spec);
    expert_rig_open(&rig, &(expert_rig_spec){.dir = dir, .with_mtp = true});
    expert_rows_make(&rows, rig.container, spec.layers, 6, 5);
    defined = answer_make(&rows);
    found = answer_make(&rows);
    define_answer(rig.container, &rows, false, &defined);
    add_answer(&rig, &rows, NULL, false, 0, rows.rows, &found);
    assert_answers_equal(&defined, &found, &rows);
    answer_free(&defined);
    answer_free(&found);
    expert_rows_free(&rows);
    expert_rig_close(&rig);
    temp_dir_remove(dir);
}

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
    answer defined, found;
    uint32_t touched = 0;
    const tr_entry *entry;
    char *dir;

    spec.expert_format = KN_F32;
    spec.patch = patch_expert;
    spec.patch_context = c;
    dir = tiny_model_build(&spec);
    expert_rig_open(&rig, &(expert_rig_spec){.dir = dir, .threads = 2});
    expert_rows_make(&rows, rig.container, 1, 60, 2);
    defined = answer_make(&rows);
    found = answer_make(&rows);
    define_answer(rig.container, &rows, false, &defined);
    add_answer(&rig, &rows, NULL, false, 0, rows.rows, &found);
    assert_answers_equal(&defined, &found, &rows);
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
    answer_free(&defined);
    answer_free(&found);
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
    answer defined, found;

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
    defined = answer_make(&good);
    define_answer(rig.container, &good, false, &defined);
    for (int i = 0; i < 3; i++) { /* no pin is left behind */
        expect_refusal(&rig, &rows, false, RT_EFORMAT, "layer 2 expert 6");
        found = answer_make(&good);
        add_answer(&rig, &good, NULL, false, 0, 1, &found);
        assert_answers_equal(&defined, &found, &good);
        answer_free(&found);
    }
    answer_free(&defined);
    expert_rows_free(&rows);
    expert_rows_free(&good);
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
        answer defined, found;

        expert_rig_open(&rig, &(expert_rig_spec){.dir = dir, .threads = threads});
        expert_rows_make(&rows, rig.container, 1, 64, 7);
        for (uint32_t i = 0; i < rows.entry_total; i++) {
            rows.entries[i].slice_mask = 1 + i * 37 % 511;
            if (i % 16 == 3) rows.entries[i].slice_mask = 0x100;
        }
        defined = answer_make(&rows);
        found = answer_make(&rows);
        define_answer(rig.container, &rows, false, &defined);
        add_answer(&rig, &rows, NULL, false, 0, rows.rows, &found);
        assert_answers_equal(&defined, &found, &rows);
        answer_free(&defined);
        answer_free(&found);
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
    answer found;
    en_execute_stats stats;
    en_executor_spec bad;
    en_executor *executor = NULL;
    rt_err err = {RT_OK, ""};

    (void)state;
    expert_rig_open(&rig, &(expert_rig_spec){.dir = dir});
    expert_rows_make(&rows, rig.container, 1, 1, 7);
    found = answer_make(&rows);
    add_answer(&rig, &rows, NULL, false, 0, 1, &found);
    add_answer(&rig, &rows, NULL, false, 0, 1, &found);
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
    answer_free(&found);
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
        cmocka_unit_test(huge_contributions_are_summed_exactly),
        cmocka_unit_test(weights_that_are_not_finite_poison_the_rows_that_use_them),
        cmocka_unit_test(frames_this_node_cannot_compute_are_refused_by_name),
        cmocka_unit_test(a_layer_without_experts_is_refused),
        cmocka_unit_test(a_damaged_record_fails_its_frames_and_no_others),
        cmocka_unit_test(slice_masks_of_one_expert_may_differ_by_row),
        cmocka_unit_test(the_executor_counts_and_states_its_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
