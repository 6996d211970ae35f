/* test_engine_reference.c - an attention node and two expert nodes against transformers' float32:
 * logits, argmax, experts, indexer's positions and the hidden states on the way. */
#include "model/convert/convert.h"
#include "model/convert/safetensors.h"
#include "tests/oracle/engine_rig.h"
#include "tests/support/temp_dir.h"

#include "kernels/topk.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const float LOGIT_TOLERANCE = 1e-4F;  /* correct float32 code is within 5.1e-5 */
static const float HIDDEN_TOLERANCE = 1e-4F; /* of the largest value of the tensor, plus this */

typedef struct {
    const char *name;
    float latent_eps;
    int dbg_prompt; /* -1: no hidden states */
    uint32_t prompts;
} fixture;

typedef struct {
    md_st_file *file;
    uint32_t prompt;
    bool dbg;
    const md_config *config;
    uint32_t routed_rows, index_rows, hidden_values; /* compared */
} comparison;

/* The named tensor's values, malloc'd; NULL when the reference has none. */
static void *read_tensor(md_st_file *file, const char *name, md_st_dtype dtype, uint64_t shape[2])
{
    const md_st_tensor *tensor = md_st_find(file, name);
    rt_err err = {RT_OK, ""};
    void *data;

    if (tensor == NULL) return NULL;
    assert_true(tensor->dtype == dtype && tensor->dims <= 2);
    shape[0] = tensor->shape[0];
    shape[1] = tensor->dims == 2 ? tensor->shape[1] : 1;
    data = malloc(tensor->bytes);
    assert_non_null(data);
    engine_rig_check(md_st_read(file, tensor, 0, data, tensor->bytes, &err), &err, name);
    return data;
}

static void compare_sets(comparison *c, const an_probe_event *event, const char *tensor,
                         uint32_t *compared)
{
    const uint32_t *found = event->data;
    uint64_t shape[2];
    char name[64];
    int32_t *expected;

    snprintf(name, sizeof(name), "p%u.layer%u.%s", c->prompt, event->layer, tensor);
    expected = read_tensor(c->file, name, MD_ST_I32, shape);
    assert_non_null(expected);
    assert_int_equal(shape[1], event->count);
    for (uint32_t row = 0; row < event->rows; row++) {
        const int32_t *want = expected + (event->position + row) * shape[1];

        assert_true(event->position + row < shape[0]);
        if (memcmp(want, found + (size_t)row * event->count, shape[1] * 4) != 0)
            fail_msg("%s: row %u differs", name, event->position + row);
        (*compared)++;
    }
    free(expected);
}

static void compare_hidden(comparison *c, const an_probe_event *event, const char *name,
                           float tolerance)
{
    const float *found = event->data;
    uint64_t shape[2];
    float *expected = read_tensor(c->file, name, MD_ST_F32, shape);
    float largest = 0;

    if (expected == NULL) return;
    assert_int_equal(shape[1], event->count);
    for (uint64_t i = 0; i < shape[0] * shape[1]; i++)
        largest = fmaxf(largest, fabsf(expected[i]));
    for (uint32_t row = 0; row < event->rows && event->position + row < shape[0]; row++)
        for (uint32_t i = 0; i < event->count; i++) {
            float want = expected[(event->position + row) * shape[1] + i];
            float got = found[(size_t)row * event->count + i];

            if (!(fabsf(want - got) <= tolerance * (1 + largest)))
                fail_msg("%s: row %u, column %u: expected %g, found %g", name,
                         event->position + row, i, (double)want, (double)got);
            c->hidden_values++;
        }
    free(expected);
}

static void probe(void *context, const an_probe_event *event)
{
    static const char *const names[] = {
        [AN_PROBE_EMBED] = "embed",
        [AN_PROBE_Q_RESID] = "q_resid",
        [AN_PROBE_KV_LATENT] = "kv_latent",
        [AN_PROBE_ATTN] = "attn",
        [AN_PROBE_MLP] = "mlp",
        [AN_PROBE_OUT] = "out",
        [AN_PROBE_FINAL_NORM] = "final_norm",
    };
    comparison *c = context;
    char name[64];

    switch (event->kind) {
    case AN_PROBE_ROUTER_IDS:
        compare_sets(c, event, "router_idx", &c->routed_rows);
        return;
    case AN_PROBE_INDEX_SET:
        compare_sets(c, event, "topk", &c->index_rows);
        return;
    case AN_PROBE_ROUTER_WEIGHTS:
        snprintf(name, sizeof(name), "p%u.layer%u.router_w", c->prompt, event->layer);
        compare_hidden(c, event, name, 1e-5F);
        return;
    default:
        break;
    }
    if (!c->dbg) return;
    if (event->layer == MD_NO_LAYER)
        snprintf(name, sizeof(name), "dbg.%s", names[event->kind]);
    else
        snprintf(name, sizeof(name), "dbg.layer%u.%s", event->layer, names[event->kind]);
    compare_hidden(c, event, name, HIDDEN_TOLERANCE);
}

static uint32_t selecting_rows(const md_config *config, uint64_t rows)
{
    uint32_t full = 0;

    for (uint32_t layer = 0; layer < config->layers; layer++)
        full += config->index_full[layer];
    return rows > config->index_topk ? (uint32_t)(rows - config->index_topk) * full : 0;
}

static uint32_t sparse_layers(const md_config *config)
{
    uint32_t sparse = 0;

    for (uint32_t layer = 0; layer < config->layers; layer++)
        sparse += config->sparse[layer];
    return sparse;
}

/* Returns the largest difference of a logit. */
static float compare_prompt(engine_rig *rig, md_st_file *file, uint32_t prompt, bool dbg,
                            uint32_t chunk)
{
    const md_config *config = md_container_config(rig->container);
    comparison c = {.file = file, .prompt = prompt, .dbg = dbg, .config = config};
    uint64_t shape[2], logit_shape[2];
    float *logits, *expected, largest = 0;
    uint32_t *ids, first;
    char name[64];

    snprintf(name, sizeof(name), "p%u.ids", prompt);
    ids = read_tensor(file, name, MD_ST_I32, shape);
    assert_non_null(ids);
    an_engine_set_probe(rig->engine, probe, &c);
    logits = engine_rig_logits(rig, ids, (uint32_t)shape[0], chunk);
    assert_int_equal(c.routed_rows, shape[0] * sparse_layers(config));
    assert_int_equal(c.index_rows, selecting_rows(config, shape[0]));
    if (dbg) assert_true(c.hidden_values > 0);

    snprintf(name, sizeof(name), "p%u.logits", prompt);
    expected = read_tensor(file, name, MD_ST_F32, logit_shape);
    assert_non_null(expected);
    assert_int_equal(logit_shape[1], config->vocab);
    first = (uint32_t)(shape[0] - logit_shape[0]);
    for (uint32_t row = first; row < shape[0]; row++) {
        const float *found = logits + (size_t)row * config->vocab;
        const float *want = expected + (size_t)(row - first) * config->vocab;

        for (uint32_t i = 0; i < config->vocab; i++)
            largest = fmaxf(largest, fabsf(found[i] - want[i]));
        assert_int_equal(kn_argmax(found, config->vocab), kn_argmax(want, config->vocab));
    }
    free(ids);
    free(logits);
    free(expected);
    return largest;
}

static char *convert(const fixture *f)
{
    char source[512];
    char *dir = temp_dir_make(), *target = malloc(strlen(dir) + 8);
    rt_team_spec team_spec = {.threads = 2};
    rt_err err = {RT_OK, ""};
    md_convert_result result;
    rt_team *team;

    assert_non_null(target);
    snprintf(source, sizeof(source), MOESAIC_FIXTURES "/%s", f->name);
    strcpy(target, dir);
    engine_rig_check(rt_team_create(&team_spec, &team, &err), &err, "team");
    engine_rig_check(md_convert(&(md_convert_spec){.source = source,
                                                   .target = target,
                                                   .expert_format = KN_F32,
                                                   .dense_format = KN_F32,
                                                   .grid_fine = true,
                                                   .latent_eps = f->latent_eps,
                                                   .quiet = true},
                                team, &result, &err),
                     &err, f->name);
    rt_team_free(team);
    free(target);
    return dir;
}

static void compare_fixture(const fixture *f)
{
    char *dir = convert(f), path[512];
    engine_rig_spec spec = {.dir = dir, .nodes = 2, .mode = PL_SLICED, .threads = 2};
    rt_err err = {RT_OK, ""};
    float largest = 0;
    engine_rig rig;
    md_st_file *file;

    snprintf(path, sizeof(path), MOESAIC_FIXTURES "/%s/reference.safetensors", f->name);
    engine_rig_check(md_st_open(path, &file, &err), &err, path);
    engine_rig_open(&rig, &spec);
    for (uint32_t prompt = 0; prompt < f->prompts; prompt++) {
        /* A step of whole prompts, and one of single rows after a few. */
        float whole = compare_prompt(&rig, file, prompt, f->dbg_prompt == (int)prompt, 64);
        float split = compare_prompt(&rig, file, prompt, f->dbg_prompt == (int)prompt, 5);

        assert_true(whole == split);
        largest = fmaxf(largest, whole);
    }
    print_message("%s: max logit diff %g\n", f->name, (double)largest);
    assert_true(largest <= LOGIT_TOLERANCE);
    engine_rig_close(&rig);
    md_st_close(file);
    temp_dir_remove(dir);
}

#define FIXTURE_TEST(test, ...)                                                                    \
    static void test(void **state)                                                                 \
    {                                                                                              \
        (void)state;                                                                               \
        compare_fixture(&(fixture){__VA_ARGS__});                                                  \
    }

FIXTURE_TEST(nano_bf16_equals_its_reference, "nano-bf16", 1e-6F, 2, 3)
FIXTURE_TEST(nano_f32_equals_its_reference, "nano-f32", 1e-6F, 2, 3)
FIXTURE_TEST(nano_fp8_equals_its_reference, "nano-fp8", 1e-6F, 2, 3)
FIXTURE_TEST(nano_bf16_with_the_other_eps_equals_its_reference, "nano-bf16-eps1e5", 1e-5F, 2, 3)
FIXTURE_TEST(nano_mtp_equals_its_reference, "nano-mtp", 1e-6F, -1, 3)
FIXTURE_TEST(tiny_fp8_equals_its_reference, "tiny-fp8", 1e-6F, 2, 4)
FIXTURE_TEST(wide_bf16_equals_its_reference, "wide-bf16", 1e-6F, 1, 7)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nano_bf16_equals_its_reference),
        cmocka_unit_test(nano_f32_equals_its_reference),
        cmocka_unit_test(nano_fp8_equals_its_reference),
        cmocka_unit_test(nano_bf16_with_the_other_eps_equals_its_reference),
        cmocka_unit_test(nano_mtp_equals_its_reference),
        cmocka_unit_test(tiny_fp8_equals_its_reference),
        cmocka_unit_test(wide_bf16_equals_its_reference),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
