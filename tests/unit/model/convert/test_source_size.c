/* test_source_size.c - the size of a checkpoint from its config alone. */
#include "model/convert/source_size.h"

#include "base/file.h"
#include "model/convert/source.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

static void read_config(const char *name, md_config *out)
{
    char path[512];
    char *json = NULL;
    size_t bytes = 0;

    snprintf(path, sizeof(path), "%s/%s", MOESAIC_FIXTURES, name);
    assert_int_equal(rt_file_read(path, 1 << 20, &json, &bytes, NULL), RT_OK);
    assert_int_equal(md_config_parse(json, bytes, out, NULL), RT_OK);
    free(json);
}

static void size_equals_the_published_inventory_of_glm_5_2(void **state)
{
    md_source_size size;
    md_config config;

    (void)state;
    read_config("configs/glm-5.2.json", &config);
    assert_int_equal(md_source_size_of(&config, true, &size, NULL), RT_OK);
    assert_int_equal(size.bytes, 755617140416);
    assert_int_equal(size.tensors, 118629);
    assert_int_equal(size.parameters, 753329921024);
    assert_int_equal(md_source_size_of(&config, false, &size, NULL), RT_OK);
    assert_int_equal(size.bytes, 1506659919872);
    assert_int_equal(size.parameters, 753329921024);
}

/* The tensors of a fixture's shards, as its files have them. */
static uint64_t stored_bytes(const char *name, uint64_t *tensors)
{
    static const uint32_t shards_max = 16;
    uint64_t sum = 0;

    *tensors = 0;
    for (uint32_t of = 1; of <= shards_max; of++) {
        for (uint32_t i = 1; i <= of; i++) {
            char path[512];
            md_st_file *file = NULL;

            snprintf(path, sizeof(path), "%s/%s/model-%05u-of-%05u.safetensors", MOESAIC_FIXTURES,
                     name, i, of);
            if (md_st_open(path, &file, NULL) != RT_OK) continue;
            for (uint64_t t = 0; t < md_st_count(file); t++)
                sum += md_st_at(file, t)->bytes;
            *tensors += md_st_count(file);
            md_st_close(file);
        }
    }
    return sum;
}

static void size_equals_what_the_fixtures_store(void **state)
{
    static const struct {
        const char *name;
        bool fp8;
    } fixtures[] = {{"nano-bf16", false},
                    {"nano-fp8", true},
                    {"nano-mtp", false},
                    {"tiny-fp8", true},
                    {"wide-bf16", false}};

    (void)state;
    for (size_t i = 0; i < sizeof(fixtures) / sizeof(fixtures[0]); i++) {
        char config_path[64];
        md_source_size size;
        md_config config;
        uint64_t tensors;

        snprintf(config_path, sizeof(config_path), "%s/config.json", fixtures[i].name);
        read_config(config_path, &config);
        assert_int_equal(md_source_size_of(&config, fixtures[i].fp8, &size, NULL), RT_OK);
        assert_int_equal(size.bytes, stored_bytes(fixtures[i].name, &tensors));
        assert_int_equal(size.tensors, tensors);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(size_equals_the_published_inventory_of_glm_5_2),
        cmocka_unit_test(size_equals_what_the_fixtures_store),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
