/* test_description.c - moesaic.json has one text for one meaning, and no field of it can lie. */
#include "model/container/description.h"

#include "base/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

static const md_image_stamp tokenizer = {12345, {0x1122334455667788u, 0x99aabbccddeeff00u}};

static md_config nano(void)
{
    char *text = NULL;
    size_t bytes = 0;
    md_config config;
    rt_err err;

    assert_int_equal(
        rt_file_read(MOESAIC_FIXTURES "/nano-bf16/config.json", 1 << 20, &text, &bytes, &err),
        RT_OK);
    assert_int_equal(md_config_parse(text, bytes, &config, &err), RT_OK);
    free(text);
    return config;
}

static md_container_info described(const md_config *config)
{
    md_container_info info = {.expert_format = KN_Q4,
                              .dense_format = KN_Q8,
                              .embed_format = KN_BF16,
                              .slice_width = md_slice_width(config),
                              .latent_eps = 1e-5f,
                              .conversion_id = 1,
                              .template_id = "42994f78b64752fe472149dd7e20410d"};

    info.grid_q[1] = 13;
    info.grid_q[2] = -4;
    info.grid_q[3] = 11;
    for (uint8_t i = 0; i < 32; i++)
        info.model_id[i] = (uint8_t)(i * 8 + 1);
    return info;
}

static char *printed(void)
{
    md_config config = nano();
    md_container_info info = described(&config);
    char *text = md_description_print(&config, &info, &tokenizer);

    assert_non_null(text);
    return text;
}

static rt_status parse(const char *text, md_container_info *info, md_image_stamp *stamp,
                       rt_err *err)
{
    md_config config = nano();

    *err = (rt_err){RT_OK, ""};
    return md_description_parse(text, strlen(text), &config, info, stamp, err);
}

static void what_is_printed_is_parsed(void **state)
{
    md_config config = nano();
    md_container_info expected = described(&config), info;
    md_image_stamp stamp;
    char *text = printed(), *again;
    rt_err err;

    (void)state;
    assert_int_equal(parse(text, &info, &stamp, &err), RT_OK);
    assert_int_equal(info.expert_format, expected.expert_format);
    assert_int_equal(info.dense_format, expected.dense_format);
    assert_int_equal(info.embed_format, expected.embed_format);
    assert_int_equal(info.slice_width, expected.slice_width);
    assert_int_equal(info.conversion_id, expected.conversion_id);
    assert_int_equal(info.grid_fine, expected.grid_fine);
    assert_memory_equal(info.grid_q, expected.grid_q, sizeof(info.grid_q));
    assert_memory_equal(info.model_id, expected.model_id, sizeof(info.model_id));
    assert_string_equal(info.template_id, expected.template_id);
    assert_memory_equal(&stamp, &tokenizer, sizeof(stamp));
    again = md_description_print(&config, &info, &stamp);
    assert_string_equal(again, text);
    assert_int_equal(text[strlen(text) - 1], '\n');
    assert_null(strchr(text, ' '));
    free(again);
    free(text);
}

static void every_format_is_read_back(void **state)
{
    md_config config = nano();

    (void)state;
    for (int f = KN_F32; f <= KN_Q4F32; f++) {
        md_container_info info = described(&config), found;
        md_image_stamp stamp;
        char *text;
        rt_err err;

        info.expert_format = (kn_format)f;
        info.dense_format = (kn_format)(KN_Q4F32 + KN_F32 - f);
        text = md_description_print(&config, &info, &tokenizer);
        assert_non_null(text);
        assert_int_equal(parse(text, &found, &stamp, &err), RT_OK);
        assert_int_equal(found.expert_format, info.expert_format);
        assert_int_equal(found.dense_format, info.dense_format);
        free(text);
    }
}

static void latent_eps_keeps_every_bit(void **state)
{
    md_config config = nano();
    md_container_info info = described(&config), parsed;
    md_image_stamp stamp;
    char *text;
    rt_err err;

    (void)state;
    info.latent_eps = 1e-6f * 1.0000001f;
    text = md_description_print(&config, &info, &tokenizer);
    assert_non_null(strstr(text, "\"bits\":\"358637be\""));
    assert_int_equal(parse(text, &parsed, &stamp, &err), RT_OK);
    assert_memory_equal(&parsed.latent_eps, &info.latent_eps, sizeof(float));
    free(text);
}

typedef struct {
    const char *key, *sub; /* sub: of an object */
    const char *value;     /* NULL: removed */
    rt_status status;
    const char *found;
} change;

static const change changes[] = {
    {"container_version", NULL, "2", RT_EUNSUPPORTED, "newer"},
    {"container_version", NULL, "0", RT_EFORMAT, "container_version"},
    {"container_version", NULL, NULL, RT_EFORMAT, "absent"},
    {"conversion_id", NULL, "99", RT_EUNSUPPORTED, "newer"},
    {"layout_id", NULL, "2", RT_EUNSUPPORTED, "newer"},
    {"expert_format", NULL, "\"q3\"", RT_EUNSUPPORTED, "q3"},
    {"expert_format", NULL, "4", RT_EFORMAT, "found 4"},
    {"dense_format", NULL, NULL, RT_EFORMAT, "absent"},
    {"embed_format", NULL, "\"q8\"", RT_EUNSUPPORTED, "q8"},
    {"slice_width", NULL, "0", RT_EFORMAT, "found 0"},
    {"slice_width", NULL, "17", RT_EFORMAT, "found 17"},
    {"slice_width", NULL, "4294967280", RT_EFORMAT, "4294967280"},
    {"latent_eps", NULL, "1e-5", RT_EFORMAT, "1e-05"},
    {"latent_eps", "bits", "\"7fc00000\"", RT_EFORMAT, "7fc00000"},
    {"latent_eps", "bits", "\"80000000\"", RT_EFORMAT, "80000000"},
    {"latent_eps", "bits", "\"3727c5\"", RT_EFORMAT, "hex"},
    {"latent_eps", "bits", "\"3727C5AC\"", RT_EFORMAT, "hex"},
    {"latent_eps", "decimal", "\"1e-06\"", RT_EFORMAT, "1e-06"},
    {"grid", "kind", "\"coarse\"", RT_EUNSUPPORTED, "coarse"},
    {"grid", "q", "[0,13,-4]", RT_EFORMAT, "a list of 3"},
    {"grid", "q", "[1,13,-4,11]", RT_EFORMAT, "grid.q[0]"},
    {"grid", "q", "[0,61,-4,11]", RT_EFORMAT, "61"},
    {"grid", "q", "[0,-41,-4,11]", RT_EFORMAT, "-41"},
    {"grid", "q", "[0,13.0,-4,11]", RT_EFORMAT, "13"},
    {"grid", "extra", "1", RT_EFORMAT, "grid"},
    {"template_id", NULL, "\"0123456789012345678901234567890123456789\"", RT_EFORMAT, "found 40"},
    {"template_id", NULL, "1", RT_EFORMAT, "found 1"},
    {"model_id", NULL, "\"00\"", RT_EFORMAT, "64 hex"},
    {"tokenizer", "bytes", "0", RT_EFORMAT, "tokenizer.bytes"},
    {"tokenizer", "bytes", "-1", RT_EFORMAT, "-1"},
    {"tokenizer", "xxh3_128", "\"xy\"", RT_EFORMAT, "32 hex"},
    {"tokenizer", NULL, "[]", RT_EFORMAT, "a list of 0"},
    {"model_type", NULL, "\"glm5_next\"", RT_EFORMAT, "glm5_next"},
    {"shapes", "experts", "9", RT_EFORMAT, "shapes"},
    {"shapes", NULL, NULL, RT_EFORMAT, "found nothing"},
    {"groups", "expert_inter", "32", RT_EFORMAT, "groups"},
    {"later_feature", NULL, "true", RT_EUNSUPPORTED, "later_feature"},
};

static void every_changed_field_is_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        const change *c = &changes[i];
        char *text = printed(), *changed;
        json_t *root = json_loads(text, 0, NULL);
        json_t *object = c->sub != NULL ? json_object_get(root, c->key) : root;
        const char *key = c->sub != NULL ? c->sub : c->key;
        md_container_info info = {.slice_width = 77};
        md_image_stamp stamp = {0};
        rt_err err;

        if (c->value == NULL)
            (void)json_object_del(object, key);
        else
            (void)json_object_set_new(object, key, json_loads(c->value, JSON_DECODE_ANY, NULL));
        changed = json_dumps(root, JSON_COMPACT);
        if (parse(changed, &info, &stamp, &err) != c->status ||
            strstr(err.text, c->found) == NULL || strncmp(err.text, "moesaic.json: ", 14) != 0)
            fail_msg("%s.%s = %s: %s: %s", c->key, key, c->value != NULL ? c->value : "absent",
                     rt_status_name(err.status), err.text);
        assert_int_equal(info.slice_width, 77);
        free(changed);
        json_decref(root);
        free(text);
    }
}

static void order_and_blanks_do_not_matter_to_a_reader(void **state)
{
    char *text = printed(), *indented;
    json_t *root = json_loads(text, 0, NULL);
    md_container_info info;
    md_image_stamp stamp;
    rt_err err;

    (void)state;
    indented = json_dumps(root, JSON_INDENT(2));
    assert_int_equal(parse(indented, &info, &stamp, &err), RT_OK);
    free(indented);
    json_decref(root);
    free(text);
}

static void every_cut_is_refused(void **state)
{
    char *text = printed();
    size_t bytes = strlen(text) - 1; /* the newline may go */

    (void)state;
    for (size_t cut = 0; cut < bytes; cut++) {
        md_container_info info;
        md_image_stamp stamp;
        rt_err err;

        text[cut] = '\0';
        assert_int_equal(parse(text, &info, &stamp, &err), RT_EFORMAT);
        free(text);
        text = printed();
    }
    free(text);
}

static void description_of_another_config_is_refused(void **state)
{
    md_config config = nano();
    md_container_info info;
    md_image_stamp stamp;
    char *text = printed();
    rt_err err;

    (void)state;
    config.experts = 16;
    assert_int_equal(md_description_parse(text, strlen(text), &config, &info, &stamp, &err),
                     RT_EFORMAT);
    assert_non_null(
        strstr(err.text, "shapes: expected experts 16, which config.json has, found 8"));
    config = nano();
    config.layers--; /* fewer values of the grid, too */
    assert_int_equal(md_description_parse(text, strlen(text), &config, &info, &stamp, &err),
                     RT_EFORMAT);
    assert_non_null(strstr(err.text, "which config.json has"));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_printed_is_parsed),
        cmocka_unit_test(every_format_is_read_back),
        cmocka_unit_test(latent_eps_keeps_every_bit),
        cmocka_unit_test(every_changed_field_is_named),
        cmocka_unit_test(order_and_blanks_do_not_matter_to_a_reader),
        cmocka_unit_test(every_cut_is_refused),
        cmocka_unit_test(description_of_another_config_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
