#include "model/text/sampler.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const md_sampler_spec plain = {.temperature = 1.0f, .top_p = 1.0f, .seed = 42};

static uint32_t pick(const md_sampler_spec *spec, const float *logits, uint32_t vocab,
                     uint64_t position)
{
    md_sampler *sampler = NULL;
    uint32_t id = UINT32_MAX;

    assert_int_equal(md_sampler_create(spec, vocab, &sampler, NULL), RT_OK);
    assert_int_equal(md_sampler_pick(sampler, logits, position, &id), RT_OK);
    md_sampler_free(sampler);
    return id;
}

/* How often each of up to 16 tokens is chosen over `positions` positions. */
static void count_picks(const md_sampler_spec *spec, const float *logits, uint32_t vocab,
                        uint32_t positions, uint32_t counts[16])
{
    md_sampler *sampler = NULL;
    uint32_t id;

    memset(counts, 0, 16 * sizeof(*counts));
    assert_int_equal(md_sampler_create(spec, vocab, &sampler, NULL), RT_OK);
    for (uint32_t position = 0; position < positions; position++) {
        assert_int_equal(md_sampler_pick(sampler, logits, position, &id), RT_OK);
        assert_true(id < vocab && id < 16);
        counts[id]++;
    }
    md_sampler_free(sampler);
}

/* Vectors published with the Random123 library. */
static void philox_gives_the_published_numbers(void **state)
{
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } cases[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint32_t out[4];

        md_philox4x32_10(cases[i].counter, cases[i].key, out);
        assert_memory_equal(out, cases[i].out, sizeof(out));
    }
}

static void greedy_takes_the_lowest_of_equal_ids(void **state)
{
    const float logits[] = {-1.0f, -0.0f, 0.0f, -2.0f, 0.0f};
    md_sampler_spec spec = plain;
    uint32_t id;

    (void)state;
    assert_int_equal(md_sampler_greedy(logits, 5, &id), RT_OK);
    assert_int_equal(id, 1); /* -0 is +0 */
    spec.temperature = 0.0f;
    assert_int_equal(pick(&spec, logits, 5, 3), 1);
    spec.temperature = 1.0f;
    spec.top_k = 1;
    assert_int_equal(pick(&spec, logits, 5, 3), 1);
    spec.top_k = 0;
    spec.top_p = 1e-6f;
    assert_int_equal(pick(&spec, logits, 5, 3), 1);
}

static void logits_that_are_no_numbers_are_refused(void **state)
{
    float logits[4] = {0.0f, 1.0f, NAN, 2.0f};
    md_sampler *sampler = NULL;
    uint32_t id = 77;

    (void)state;
    assert_int_equal(md_sampler_create(&plain, 4, &sampler, NULL), RT_OK);
    assert_int_equal(md_sampler_pick(sampler, logits, 0, &id), RT_ENUMERIC);
    assert_int_equal(md_sampler_greedy(logits, 4, &id), RT_ENUMERIC);
    logits[2] = INFINITY;
    assert_int_equal(md_sampler_pick(sampler, logits, 0, &id), RT_ENUMERIC);
    for (size_t i = 0; i < 4; i++)
        logits[i] = -INFINITY;
    assert_int_equal(md_sampler_pick(sampler, logits, 0, &id), RT_ENUMERIC);
    assert_int_equal(md_sampler_greedy(logits, 4, &id), RT_ENUMERIC);
    assert_int_equal(id, 77);
    logits[3] = -5.0f;
    assert_int_equal(md_sampler_pick(sampler, logits, 0, &id), RT_OK);
    assert_int_equal(id, 3);
    md_sampler_free(sampler);
}

static void settings_out_of_range_are_refused_by_name(void **state)
{
    static const struct {
        float temperature, top_p, min_p;
        const char *named;
    } cases[] = {
        {-0.5f, 1.0f, 0.0f, "temperature"},
        {NAN, 1.0f, 0.0f, "temperature"},
        {INFINITY, 1.0f, 0.0f, "temperature"},
        {1.0f, 0.0f, 0.0f, "top_p"},
        {1.0f, 1.5f, 0.0f, "top_p"},
        {1.0f, NAN, 0.0f, "top_p"},
        {1.0f, 1.0f, -0.1f, "min_p"},
        {1.0f, 1.0f, 1.1f, "min_p"},
        {1.0f, 1.0f, NAN, "min_p"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        md_sampler_spec spec = {
            .temperature = cases[i].temperature, .top_p = cases[i].top_p, .min_p = cases[i].min_p};
        md_sampler *sampler = NULL;
        rt_err err = {0};

        assert_int_equal(md_sampler_create(&spec, 4, &sampler, &err), RT_EINVAL);
        assert_non_null(strstr(err.text, cases[i].named));
        assert_null(sampler);
    }
}

static void a_draw_depends_on_seed_choice_and_position_alone(void **state)
{
    enum { VOCAB = 64, POSITIONS = 64 };
    float logits[VOCAB], other[VOCAB];
    uint32_t first[POSITIONS], id;
    md_sampler *sampler = NULL;
    md_sampler_spec spec = plain;
    size_t seeds = 0, choices = 0, high = 0;

    (void)state;
    for (uint32_t i = 0; i < VOCAB; i++) {
        logits[i] = (float)((i * 37) % 11) * 0.25f;
        other[i] = (float)i;
    }
    for (uint32_t p = 0; p < POSITIONS; p++)
        first[p] = pick(&spec, logits, VOCAB, p);
    assert_int_equal(md_sampler_create(&spec, VOCAB, &sampler, NULL), RT_OK);
    for (uint32_t p = POSITIONS; p-- > 0;) {
        assert_int_equal(md_sampler_pick(sampler, other, p + 1000, &id), RT_OK);
        assert_int_equal(md_sampler_pick(sampler, logits, p, &id), RT_OK);
        assert_int_equal(id, first[p]);
    }
    md_sampler_free(sampler);
    for (uint32_t p = 0; p < POSITIONS; p++) {
        md_sampler_spec seed = spec, choice = spec, upper = spec;

        seed.seed = 43;
        choice.choice = 1;
        upper.seed = spec.seed | 1ull << 32;
        seeds += pick(&seed, logits, VOCAB, p) != first[p];
        choices += pick(&choice, logits, VOCAB, p) != first[p];
        high += pick(&upper, logits, VOCAB, p) != first[p] ||
                pick(&spec, logits, VOCAB, p | 1ull << 40) != first[p];
    }
    assert_true(seeds > POSITIONS / 2 && choices > POSITIONS / 2 && high > POSITIONS / 2);
}

/* p = 8, 4, 2, 1, 1 sixteenths. */
static const float powers[] = {0.0f, 2.0794415f, 1.3862944f, 0.6931472f, 0.0f};

static void tokens_come_as_often_as_they_are_likely(void **state)
{
    static const uint32_t sixteenths[] = {1, 8, 4, 2, 1};
    uint32_t counts[16];

    (void)state;
    count_picks(&plain, powers, 5, 16000, counts);
    for (uint32_t i = 0; i < 5; i++) {
        double expected = 1000.0 * sixteenths[i];

        /* Five standard deviations; the seed is fixed, so this never flickers. */
        assert_true(fabs((double)counts[i] - expected) < 5.0 * sqrt(expected));
    }
}

static void temperature_sharpens_and_flattens(void **state)
{
    md_sampler_spec cold = plain, hot = plain;
    uint32_t counts[16];

    (void)state;
    cold.temperature = 0.05f;
    count_picks(&cold, powers, 5, 1000, counts);
    assert_int_equal(counts[1], 1000);
    hot.temperature = 100.0f;
    count_picks(&hot, powers, 5, 5000, counts);
    for (uint32_t i = 0; i < 5; i++)
        assert_true(counts[i] > 850 && counts[i] < 1150);
    cold.temperature = 1e-38f; /* the quotient overflows for all but the best */
    count_picks(&cold, powers, 5, 100, counts);
    assert_int_equal(counts[1], 100);
}

static void filters_keep_the_set_they_promise(void **state)
{
    static const struct {
        uint32_t top_k;
        float top_p, min_p;
        uint32_t kept; /* bits of ids that may and must come */
    } cases[] = {
        {2, 1.0f, 0.0f, 0x06},  {3, 1.0f, 0.0f, 0x0e},  {4, 1.0f, 0.0f, 0x0f}, /* tie: lower id */
        {99, 1.0f, 0.0f, 0x1f}, {0, 0.45f, 0.0f, 0x02}, {0, 0.55f, 0.0f, 0x06},
        {0, 0.80f, 0.0f, 0x0e}, {0, 0.90f, 0.0f, 0x0f}, {0, 1.0f, 0.4f, 0x06},
        {0, 1.0f, 0.2f, 0x0e},  {0, 1.0f, 1.0f, 0x02},  {2, 0.6f, 0.0f, 0x02},
        {2, 0.7f, 0.0f, 0x06},  {4, 0.95f, 0.3f, 0x06},
    };

    (void)state;
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        md_sampler_spec spec = plain;
        uint32_t counts[16], seen = 0;

        spec.top_k = cases[c].top_k;
        spec.top_p = cases[c].top_p;
        spec.min_p = cases[c].min_p;
        count_picks(&spec, powers, 5, 2000, counts);
        for (uint32_t i = 0; i < 5; i++)
            seen |= counts[i] > 0 ? 1u << i : 0;
        assert_int_equal(seen, cases[c].kept);
    }
}

static void an_impossible_token_is_never_chosen(void **state)
{
    float logits[16];
    uint32_t counts[16];
    md_sampler_spec spec = plain;

    (void)state;
    for (uint32_t i = 0; i < 16; i++)
        logits[i] = i == 5 || i == 9 ? 1.0f : -INFINITY;
    count_picks(&spec, logits, 16, 2000, counts);
    assert_int_equal(counts[5] + counts[9], 2000);
    spec.top_k = 10;
    count_picks(&spec, logits, 16, 2000, counts);
    assert_int_equal(counts[5] + counts[9], 2000);
}

/* The numbers were computed apart, in double throughout. A change of them is a change of every sampled answer: raise the numerics id. */
static void draws_stay_what_they_are(void **state)
{
    enum { VOCAB = 1000 };
    static const uint32_t expected[3][6] = {{398, 645, 462, 440, 801, 707},
                                            {922, 501, 799, 550, 769, 116},
                                            {40, 440, 111, 323, 135, 35}};
    md_sampler_spec specs[3] = {plain, plain, plain};
    float logits[VOCAB];
    uint32_t random = 12345;

    (void)state;
    specs[1].temperature = 0.7f;
    specs[1].top_p = 0.9f;
    specs[1].top_k = 40;
    specs[2].min_p = 0.05f;
    specs[2].seed = 0x123456789abcdefull;
    specs[2].choice = 3;
    for (uint32_t i = 0; i < VOCAB; i++) {
        random = random * 1664525u + 1013904223u;
        logits[i] = (float)(random >> 20) * 0x1p-9f;
    }
    for (size_t s = 0; s < 3; s++)
        for (uint32_t p = 0; p < 6; p++)
            assert_int_equal(pick(&specs[s], logits, VOCAB, p * 1000), expected[s][p]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_published_numbers),
        cmocka_unit_test(greedy_takes_the_lowest_of_equal_ids),
        cmocka_unit_test(logits_that_are_no_numbers_are_refused),
        cmocka_unit_test(settings_out_of_range_are_refused_by_name),
        cmocka_unit_test(a_draw_depends_on_seed_choice_and_position_alone),
        cmocka_unit_test(tokens_come_as_often_as_they_are_likely),
        cmocka_unit_test(temperature_sharpens_and_flattens),
        cmocka_unit_test(filters_keep_the_set_they_promise),
        cmocka_unit_test(an_impossible_token_is_never_chosen),
        cmocka_unit_test(draws_stay_what_they_are),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
