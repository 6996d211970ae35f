/* test_heat_image.c - what is written is read; what is damaged, foreign or newer is refused by name. */
/* wrap: calloc */
#include "placement/heat_image.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include <cmocka.h>

enum { LAYERS = 3, EXPERTS = 5, HEADER = 96, MASK = 8, BYTES = HEADER + MASK + 2 * EXPERTS * 8 };

static const bool sparse[LAYERS] = {false, true, true};
static const uint8_t id[32] = {1, 2, 3, 4};
static int failing_allocation;

void *__real_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size);

void *__wrap_calloc(size_t count, size_t size)
{
    return failing_allocation > 0 && --failing_allocation == 0 ? NULL : __real_calloc(count, size);
}

static pl_heat *make(const bool *which, uint32_t layers, uint32_t experts)
{
    pl_heat_spec spec = {.layers = layers, .sparse = which, .experts = experts};
    pl_heat *heat = NULL;

    assert_int_equal(pl_heat_create(&spec, &heat, NULL), RT_OK);
    return heat;
}

static unsigned char *image_of_some(void)
{
    pl_heat *heat = make(sparse, LAYERS, EXPERTS);
    unsigned char *image = NULL;
    size_t bytes = 0;

    pl_heat_add(heat, 1, 4, 2.5);
    pl_heat_add(heat, 2, 0, 1e6);
    pl_heat_set_tokens(heat, 12345);
    assert_int_equal(pl_heat_image_write(heat, id, &image, &bytes, NULL), RT_OK);
    assert_int_equal(bytes, BYTES);
    pl_heat_free(heat);
    return image;
}

/* As an attacker would: the checksums fit whatever is there. */
static void repair(unsigned char *image, size_t bytes)
{
    uint64_t hash = XXH3_64bits(image + HEADER, bytes - HEADER);

    memcpy(image + 64, &hash, 8);
    hash = XXH3_64bits(image, 88);
    memcpy(image + 88, &hash, 8);
}

static void expect(const unsigned char *image, size_t bytes, rt_status status, const char *text)
{
    pl_heat *heat = make(sparse, LAYERS, EXPERTS);
    rt_err err = {0};

    pl_heat_add(heat, 1, 1, 7);
    assert_int_equal(pl_heat_image_read(image, bytes, id, "some.heat", heat, &err), status);
    if (status != RT_OK) {
        if (strstr(err.text, text) == NULL) fail_msg("expected '%s' in '%s'", text, err.text);
        assert_non_null(strstr(err.text, "some.heat"));
        assert_true(pl_heat_total(heat) == 7 && pl_heat_tokens(heat) == 0); /* unchanged */
    }
    pl_heat_free(heat);
}

static void what_is_written_is_read(void **state)
{
    unsigned char *image = image_of_some();
    pl_heat *heat = make(sparse, LAYERS, EXPERTS);

    (void)state;
    pl_heat_add(heat, 1, 4, 1);
    assert_int_equal(pl_heat_image_read(image, BYTES, id, "x", heat, NULL), RT_OK);
    assert_true(pl_heat_get(heat, 1, 4) == 3.5); /* added to what was there */
    assert_true(pl_heat_get(heat, 2, 0) == 1e6);
    assert_true(pl_heat_total(heat) == 1000003.5);
    assert_true(pl_heat_tokens(heat) == 12345);
    pl_heat_free(heat);
    free(image);
}

static void counts_beyond_the_limit_are_written_as_the_limit(void **state)
{
    pl_heat *heat = make(sparse, LAYERS, EXPERTS), *again = make(sparse, LAYERS, EXPERTS);
    unsigned char *image = NULL;
    size_t bytes = 0;

    (void)state;
    for (int i = 0; i < 3; i++)
        pl_heat_add(heat, 1, 1, PL_HEAT_COUNT_MAX);
    assert_int_equal(pl_heat_image_write(heat, id, &image, &bytes, NULL), RT_OK);
    assert_int_equal(pl_heat_image_read(image, bytes, id, "x", again, NULL), RT_OK);
    assert_true(pl_heat_get(again, 1, 1) == PL_HEAT_COUNT_MAX);
    pl_heat_free(heat);
    pl_heat_free(again);
    free(image);
}

static void every_truncation_is_refused(void **state)
{
    unsigned char *image = image_of_some();

    (void)state;
    for (size_t bytes = 0; bytes < BYTES; bytes++)
        expect(image, bytes, RT_EFORMAT, bytes < HEADER ? "at least 96" : "expected 184");
    free(image);
}

static void every_flipped_byte_is_seen(void **state)
{
    unsigned char *image = image_of_some();

    (void)state;
    for (size_t at = 0; at < BYTES; at++) {
        image[at] ^= 0x40;
        expect(image, BYTES, RT_EFORMAT, "");
        image[at] ^= 0x40;
    }
    expect(image, BYTES, RT_OK, "");
    free(image);
}

static void bytes_that_follow_are_refused(void **state)
{
    unsigned char *image = image_of_some();
    unsigned char longer[BYTES + 8] = {0};

    (void)state;
    memcpy(longer, image, BYTES);
    expect(longer, sizeof(longer), RT_EFORMAT, "found 192");
    free(image);
}

static void another_models_heat_is_refused_with_both_ids(void **state)
{
    unsigned char *image = image_of_some();

    (void)state;
    image[32] = 0xab;
    repair(image, BYTES);
    expect(image, BYTES, RT_EINVAL, "ab020304");
    expect(image, BYTES, RT_EINVAL, "01020304");
    free(image);
}

static void a_newer_version_is_unsupported(void **state)
{
    unsigned char *image = image_of_some();

    (void)state;
    image[8] = 2;
    repair(image, BYTES);
    expect(image, BYTES, RT_EUNSUPPORTED, "found 2");
    image[8] = 0;
    repair(image, BYTES);
    expect(image, BYTES, RT_EFORMAT, "header");
    free(image);
}

static void another_shape_is_refused(void **state)
{
    static const bool all[LAYERS] = {true, true, true};
    unsigned char *image = image_of_some();
    pl_heat *other[] = {make(sparse, LAYERS, EXPERTS + 1), make(sparse, LAYERS - 1, EXPERTS),
                        make(all, LAYERS, EXPERTS)};

    (void)state;
    for (int i = 0; i < 3; i++) {
        rt_err err = {0};

        assert_int_equal(pl_heat_image_read(image, BYTES, id, "x", other[i], &err), RT_EINVAL);
        pl_heat_free(other[i]);
    }
    /* The same numbers, but other layers have the experts. */
    image[HEADER] = 1;
    image[HEADER + 2] = 0;
    repair(image, BYTES);
    expect(image, BYTES, RT_EINVAL, "layer 0");
    /* A shape that the stated bytes do not hold. */
    free(image);
    image = image_of_some();
    image[24] = (unsigned char)(BYTES - 8);
    repair(image, BYTES - 8);
    expect(image, BYTES - 8, RT_EFORMAT, "for its shape");
    free(image);
}

static void put_count(unsigned char *image, double value)
{
    memcpy(image + HEADER + MASK + 24, &value, 8);
    repair(image, BYTES);
}

static void counts_that_are_none_are_refused(void **state)
{
    unsigned char *image = image_of_some();
    double tokens = -1;

    (void)state;
    put_count(image, -1);
    expect(image, BYTES, RT_EFORMAT, "count 3");
    put_count(image, NAN);
    expect(image, BYTES, RT_EFORMAT, "count 3");
    put_count(image, INFINITY);
    expect(image, BYTES, RT_EFORMAT, "count 3");
    put_count(image, PL_HEAT_COUNT_MAX * 2);
    expect(image, BYTES, RT_EFORMAT, "count 3");
    put_count(image, 0);
    expect(image, BYTES, RT_OK, "");
    memcpy(image + 72, &tokens, 8);
    repair(image, BYTES);
    expect(image, BYTES, RT_EFORMAT, "header");
    free(image);
}

static void writing_without_memory_says_so(void **state)
{
    pl_heat *heat = make(sparse, LAYERS, EXPERTS);
    unsigned char *image = NULL;
    size_t bytes = 0;
    rt_err err = {0};

    (void)state;
    failing_allocation = 1;
    assert_int_equal(pl_heat_image_write(heat, id, &image, &bytes, &err), RT_ENOMEM);
    failing_allocation = 0;
    assert_null(image);
    pl_heat_free(heat);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(counts_beyond_the_limit_are_written_as_the_limit),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(every_flipped_byte_is_seen),
        cmocka_unit_test(bytes_that_follow_are_refused),
        cmocka_unit_test(another_models_heat_is_refused_with_both_ids),
        cmocka_unit_test(a_newer_version_is_unsupported),
        cmocka_unit_test(another_shape_is_refused),
        cmocka_unit_test(counts_that_are_none_are_refused),
        cmocka_unit_test(writing_without_memory_says_so),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
