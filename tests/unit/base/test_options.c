/* test_options.c - values by kind, twins, help, and one line for each way to get it wrong. */
/* wrap: calloc */
#include "base/options.h"

#include "tests/support/capture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct {
    bool json, given_temp;
    const char *prompt, *kv, *ids, *grid;
    bool raw;
    uint64_t chunk, ram_bytes, tokens;
    double temp;
} values;

static const rt_opt table[] = {
    {.name = "chunk",
     .kind = RT_OPT_UINT,
     .offset = offsetof(values, chunk),
     .arg = "ROWS",
     .doc = "Rows of a prefill chunk",
     .min = 1,
     .max = 4096},
    {.name = "experts-here",
     .key = 'n',
     .kind = RT_OPT_UINT,
     .offset = offsetof(values, tokens),
     .arg = "N",
     .doc = "Experts of this rank"},
    {.name = "ids",
     .kind = RT_OPT_TEXT,
     .offset = offsetof(values, ids),
     .arg = "LIST",
     .doc = "Token ids",
     .excludes = "prompt"},
    {.name = "json",
     .key = 'j',
     .kind = RT_OPT_FLAG,
     .offset = offsetof(values, json),
     .doc = "Print JSON"},
    {.name = "kv",
     .kind = RT_OPT_CHOICE,
     .offset = offsetof(values, kv),
     .doc = "Format of the KV cache",
     .choices = "f32|bf16"},
    {.name = "prompt",
     .kind = RT_OPT_TEXT,
     .offset = offsetof(values, prompt),
     .arg = "TEXT",
     .doc = "The prompt"},
    {.name = "print-ids",
     .kind = RT_OPT_FLAG,
     .offset = offsetof(values, json),
     .doc = "Print ids"},
    {.name = "raw",
     .kind = RT_OPT_FLAG,
     .offset = offsetof(values, raw),
     .doc = "No template",
     .excludes = "system|no-think"},
    {.name = "system",
     .kind = RT_OPT_TEXT,
     .offset = offsetof(values, ids),
     .arg = "TEXT",
     .doc = "The system's text"},
    {.name = "no-think",
     .kind = RT_OPT_FLAG,
     .offset = offsetof(values, json),
     .doc = "No thinking"},
    {.name = "grid",
     .kind = RT_OPT_CHOICE,
     .offset = offsetof(values, grid),
     .arg = "G",
     .doc = "Precision",
     .choices = "std|fine"},
    {.name = "ram",
     .kind = RT_OPT_BYTES,
     .offset = offsetof(values, ram_bytes),
     .arg = "SIZE",
     .doc = "Memory limit"},
    {.name = "temp",
     .kind = RT_OPT_FLOAT,
     .offset = offsetof(values, temp),
     .arg = "T",
     .doc = "Temperature",
     .min = 0,
     .max = 2,
     .given_offset = offsetof(values, given_temp)},
    {0},
};

static const rt_opt_spec spec = {
    .verb = "run",
    .args_doc = "MODEL",
    .doc = "Runs a model.\vStandard output carries text alone.",
    .table = table,
    .positional_min = 1,
    .positional_max = 1,
};

typedef struct {
    values v;
    const char *positional[4];
    uint32_t positional_count;
    char *out, *err; /* what was printed; owned */
} outcome;

static bool no_memory;

void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);

void *__wrap_calloc(size_t count, size_t bytes)
{
    return no_memory ? NULL : __real_calloc(count, bytes);
}

/* line: arguments parted by blanks. */
static rt_parse_result parse_with(const rt_opt_spec *verb, const char *line, outcome *o)
{
    char *copy = strdup(line), *rest = copy, *word, *argv[32] = {copy};
    int argc = 0;
    capture out, err;
    rt_parse_result result;
    char name[] = "run";

    memset(o, 0, sizeof(*o));
    o->v = (values){.chunk = 64, .temp = 1, .kv = "bf16"};
    argv[argc++] = name;
    while ((word = strsep(&rest, " ")) != NULL) {
        if (*word != '\0') argv[argc++] = word;
    }
    argv[argc] = NULL;
    out = capture_begin(STDOUT_FILENO);
    err = capture_begin(STDERR_FILENO);
    result = rt_options_parse(verb, argc, argv, &o->v, o->positional, &o->positional_count);
    o->err = capture_end(&err);
    o->out = capture_end(&out);
    /* Texts are borrowed from argv: keep what the tests look at. */
    if (o->v.prompt != NULL) o->v.prompt = strdup(o->v.prompt);
    if (o->positional_count > 0) o->positional[0] = strdup(o->positional[0]);
    if (o->v.kv != NULL) o->v.kv = strcmp(o->v.kv, "f32") == 0 ? "f32" : "bf16";
    free(copy);
    return result;
}

static void drop(outcome *o)
{
    free(o->out);
    free(o->err);
    free((void *)(uintptr_t)o->v.prompt);
    if (o->positional_count > 0) free((void *)(uintptr_t)o->positional[0]);
}

/* The line must end in a usage error that says `expected` and where to read on, in one line. */
static void expect_usage(const char *line, const char *expected)
{
    char whole[512];
    outcome o;

    assert_int_equal(parse_with(&spec, line, &o), RT_PARSE_USAGE);
    snprintf(whole, sizeof(whole), "%.*s (see moesaic run --help)\n", (int)strcspn(expected, "\n"),
             expected);
    assert_string_equal(o.err, whole);
    assert_string_equal(o.out, "");
    drop(&o);
}

static int clean_environment(void **state)
{
    (void)state;
    unsetenv("MOESAIC_CHUNK");
    unsetenv("MOESAIC_EXPERTS_HERE");
    unsetenv("MOESAIC_JSON");
    unsetenv("MOESAIC_KV");
    unsetenv("MOESAIC_TEMP");
    unsetenv("MOESAIC_PROMPT");
    unsetenv("MOESAIC_IDS");
    unsetenv("MOESAIC_RAW");
    unsetenv("MOESAIC_TMEP");
    unsetenv("MOESAIC_WAVELENGTH");
    return 0;
}

static void defaults_stay_without_options(void **state)
{
    outcome o;

    (void)state;
    assert_int_equal(parse_with(&spec, "dir", &o), RT_PARSE_OK);
    assert_int_equal(o.positional_count, 1);
    assert_string_equal(o.positional[0], "dir");
    assert_int_equal(o.v.chunk, 64);
    assert_false(o.v.json || o.v.given_temp);
    assert_true(o.v.temp == 1);
    drop(&o);
}

static void every_kind_is_written_to_its_field(void **state)
{
    outcome o;

    (void)state;
    assert_int_equal(parse_with(&spec,
                                "--chunk 7 --json --kv=f32 dir --prompt=--x --ram 1.5G --temp 0.25 "
                                "-n 5",
                                &o),
                     RT_PARSE_OK);
    assert_int_equal(o.v.chunk, 7);
    assert_int_equal(o.v.tokens, 5);
    assert_true(o.v.json && o.v.given_temp);
    assert_string_equal(o.v.kv, "f32");
    assert_string_equal(o.v.prompt, "--x");
    assert_true(o.v.ram_bytes == 3ull << 29);
    assert_true(o.v.temp == 0.25);
    assert_string_equal(o.positional[0], "dir");
    drop(&o);
}

static void the_last_of_a_repeated_option_counts(void **state)
{
    outcome o;

    (void)state;
    assert_int_equal(parse_with(&spec, "--chunk 7 --chunk 8 dir", &o), RT_PARSE_OK);
    assert_int_equal(o.v.chunk, 8);
    drop(&o);
}

static void two_dashes_end_the_options(void **state)
{
    outcome o;

    (void)state;
    assert_int_equal(parse_with(&spec, "-j -- --json", &o), RT_PARSE_OK);
    assert_string_equal(o.positional[0], "--json");
    drop(&o);
}

static void a_twin_stands_between_default_and_command_line(void **state)
{
    outcome o;

    (void)state;
    setenv("MOESAIC_CHUNK", "5", 1);
    setenv("MOESAIC_JSON", "yes", 1);
    setenv("MOESAIC_EXPERTS_HERE", "9", 1);
    setenv("MOESAIC_TEMP", "0.5", 1);
    assert_int_equal(parse_with(&spec, "dir --experts-here 2", &o), RT_PARSE_OK);
    assert_int_equal(o.v.chunk, 5);
    assert_int_equal(o.v.tokens, 2);
    assert_true(o.v.json && o.v.given_temp && o.v.temp == 0.5);
    drop(&o);
    setenv("MOESAIC_JSON", "0", 1);
    setenv("MOESAIC_CHUNK", "", 1); /* as good as unset */
    assert_int_equal(parse_with(&spec, "dir", &o), RT_PARSE_OK);
    assert_false(o.v.json);
    assert_int_equal(o.v.chunk, 64);
    drop(&o);
}

static void a_wrong_twin_is_named_unless_the_command_line_overrides_it(void **state)
{
    outcome o;

    (void)state;
    setenv("MOESAIC_CHUNK", "many", 1);
    expect_usage("dir", "moesaic run: MOESAIC_CHUNK: expected a whole number from 1 to 4096, "
                        "found \"many\"\n");
    assert_int_equal(parse_with(&spec, "--chunk 3 dir", &o), RT_PARSE_OK);
    drop(&o);
    assert_int_equal(parse_with(&spec, "--help", &o), RT_PARSE_HELP);
    drop(&o);
    unsetenv("MOESAIC_CHUNK");
    setenv("MOESAIC_JSON", "maybe", 1);
    expect_usage("dir", "moesaic run: MOESAIC_JSON: expected 0 or 1, found \"maybe\"\n");
    unsetenv("MOESAIC_JSON");
    setenv("MOESAIC_KV", "f16", 1);
    expect_usage("dir", "moesaic run: MOESAIC_KV: expected one of f32|bf16, found \"f16\"\n");
}

static void options_that_exclude_each_other_are_refused_from_one_place(void **state)
{
    (void)state;
    expect_usage("dir --ids 1 --prompt x", "moesaic run: give --ids or --prompt, not both\n");
    expect_usage("dir --prompt x --ids 1", "moesaic run: give --ids or --prompt, not both\n");
    expect_usage("dir --no-think --raw", "moesaic run: give --raw or --no-think, not both\n");
    setenv("MOESAIC_PROMPT", "x", 1);
    setenv("MOESAIC_IDS", "1", 1);
    expect_usage("dir", "moesaic run: MOESAIC_IDS and MOESAIC_PROMPT exclude each other\n");
}

static void the_command_line_wins_over_a_twin_that_it_excludes(void **state)
{
    outcome o;

    (void)state;
    setenv("MOESAIC_PROMPT", "x", 1);
    assert_int_equal(parse_with(&spec, "dir --ids 1,2", &o), RT_PARSE_OK);
    assert_null(o.v.prompt);
    assert_non_null(o.v.ids);
    drop(&o);
    setenv("MOESAIC_RAW", "1", 1);
    assert_int_equal(parse_with(&spec, "dir --system x", &o), RT_PARSE_OK);
    assert_false(o.v.raw);
    drop(&o);
    setenv("MOESAIC_RAW", "0", 1); /* off: nothing to exclude */
    assert_int_equal(parse_with(&spec, "dir --system x", &o), RT_PARSE_OK);
    drop(&o);
}

static void an_unknown_variable_is_named_with_the_nearest_twin(void **state)
{
    static const rt_opt_spec *const specs[] = {&spec};
    capture c;
    char *text;

    (void)state;
    setenv("MOESAIC_TEMP", "1", 1);
    setenv("MOESAIC_GLM5_TOKENIZER_JSON", "x", 1);
    c = capture_begin(STDERR_FILENO);
    rt_env_warn_unknown(specs, 1);
    text = capture_end(&c);
    assert_string_equal(text, "");
    free(text);
    setenv("MOESAIC_TMEP", "1", 1);
    c = capture_begin(STDERR_FILENO);
    rt_env_warn_unknown(specs, 1);
    text = capture_end(&c);
    assert_string_equal(text, "moesaic: the environment variable MOESAIC_TMEP is no option's twin: "
                              "did you mean MOESAIC_TEMP?\n");
    free(text);
    unsetenv("MOESAIC_TMEP");
    setenv("MOESAIC_WAVELENGTH", "1", 1);
    c = capture_begin(STDERR_FILENO);
    rt_env_warn_unknown(specs, 1);
    text = capture_end(&c);
    assert_string_equal(
        text, "moesaic: the environment variable MOESAIC_WAVELENGTH is no option's twin\n");
    free(text);
    unsetenv("MOESAIC_GLM5_TOKENIZER_JSON");
}

static void help_goes_to_stdout_with_docs_defaults_and_twins(void **state)
{
    outcome o;
    static const char *const parts[] = {
        "Usage: moesaic run [OPTION...] MODEL",
        "Runs a model.",
        "--chunk=ROWS",
        "Rows of a prefill chunk (default 64,",
        "MOESAIC_CHUNK)",
        "-n, --experts-here=N",
        "MOESAIC_EXPERTS_HERE)",
        "--kv=f32|bf16",
        "(default bf16,",
        "Precision: std|fine (",
        "--help",
        "Standard output carries text alone.",
    };

    (void)state;
    assert_int_equal(parse_with(&spec, "--chunk 3 --help --nonsense", &o), RT_PARSE_HELP);
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        if (strstr(o.out, parts[i]) == NULL) fail_msg("\"%s\" is not in:\n%s", parts[i], o.out);
    }
    assert_null(strstr(o.out, "default 0"));
    assert_string_equal(o.err, "");
    drop(&o);
    assert_int_equal(parse_with(&spec, "-h", &o), RT_PARSE_HELP);
    drop(&o);
}

static void an_unknown_option_gets_the_nearest_name(void **state)
{
    (void)state;
    expect_usage("dir --chnuk 3", "moesaic run: unknown option --chnuk: did you mean --chunk?\n");
    expect_usage("dir --promt=x", "moesaic run: unknown option --promt: did you mean --prompt?\n");
    expect_usage("dir --expert-here 1",
                 "moesaic run: unknown option --expert-here: did you mean --experts-here?\n");
    expect_usage("dir --wavelength 1", "moesaic run: unknown option --wavelength\n");
    expect_usage("dir -x", "moesaic run: unknown option -x\n");
    expect_usage("dir -jx", "moesaic run: unknown option -x\n");
    expect_usage("-xj dir", "moesaic run: unknown option -x\n");
    expect_usage("-n 5 -xj dir", "moesaic run: unknown option -x\n");
}

static void a_hostile_name_is_cut_and_not_overrun(void **state)
{
    char line[6000] = "--";
    outcome o;

    (void)state;
    memset(line + 2, 'a', sizeof(line) - 3);
    assert_int_equal(parse_with(&spec, line, &o), RT_PARSE_USAGE);
    assert_true(strlen(o.err) < 200);
    drop(&o);
    memcpy(line, "--chunk=", 8);
    assert_int_equal(parse_with(&spec, line, &o), RT_PARSE_USAGE);
    assert_true(strlen(o.err) < 700);
    drop(&o);
}

static void values_too_few_and_too_many_are_named(void **state)
{
    (void)state;
    expect_usage("dir --chunk", "moesaic run: option --chunk: expected a whole number from 1 to "
                                "4096, found nothing\n");
    expect_usage("dir --kv", "moesaic run: option --kv: expected one of f32|bf16, found nothing\n");
    expect_usage("dir -n", "moesaic run: option -n: expected N, found nothing\n");
    expect_usage("dir --json=1", "moesaic run: option --json: expected no value, found \"1\"\n");
    expect_usage("dir --pr x", "moesaic run: option --pr is ambiguous\n");
}

static void wrong_values_are_refused_with_what_was_expected(void **state)
{
    static const char *const numbers[] = {
        "0", "4097", "-1", "+1", "1.5", "1k", "0x10", "1e2", "99999999999999999999"};
    static const char *const floats[] = {"nan", "inf", "-0.1", "2.1", "1,5", "0.5x"};

    (void)state;
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        char line[64], expected[160];

        snprintf(line, sizeof(line), "dir --chunk %s", numbers[i]);
        snprintf(expected, sizeof(expected),
                 "moesaic run: option --chunk: expected a whole number from 1 to 4096, found "
                 "\"%s\"\n",
                 numbers[i]);
        expect_usage(line, expected);
    }
    for (size_t i = 0; i < sizeof(floats) / sizeof(floats[0]); i++) {
        char line[64], expected[160];

        snprintf(line, sizeof(line), "dir --temp %s", floats[i]);
        snprintf(expected, sizeof(expected),
                 "moesaic run: option --temp: expected a number from 0 to 2, found \"%s\"\n",
                 floats[i]);
        expect_usage(line, expected);
    }
    expect_usage("dir --chunk=", "moesaic run: option --chunk: expected a whole number from 1 to "
                                 "4096, found \"\"\n");
    expect_usage("dir --kv f3", "moesaic run: option --kv: expected one of f32|bf16, found "
                                "\"f3\"\n");
    expect_usage("dir --kv f32|bf16", "moesaic run: option --kv: expected one of f32|bf16, found "
                                      "\"f32|bf16\"\n");
    expect_usage("dir --ram 24GB", "moesaic run: option --ram: expected a size such as 512M or "
                                   "24G, found \"24GB\"\n");
}

static void the_number_of_arguments_is_checked(void **state)
{
    rt_opt_spec none = spec;
    outcome o;

    (void)state;
    expect_usage("", "moesaic run: expected MODEL, found 0 arguments\n");
    expect_usage("a b", "moesaic run: expected at most 1 argument (MODEL), found \"b\" as well\n");
    none.positional_min = none.positional_max = 0;
    assert_int_equal(parse_with(&none, "a", &o), RT_PARSE_USAGE);
    assert_string_equal(
        o.err, "moesaic run: expected no arguments, found \"a\" (see moesaic run --help)\n");
    drop(&o);
}

static void a_program_of_its_own_has_its_name_and_no_twins(void **state)
{
    rt_opt_spec program = spec;
    outcome o;

    (void)state;
    program.is_program = true;
    assert_int_equal(parse_with(&program, "", &o), RT_PARSE_USAGE);
    assert_string_equal(o.err, "run: expected MODEL, found 0 arguments (see run --help)\n");
    drop(&o);
    setenv("MOESAIC_CHUNK", "7", 1);
    assert_int_equal(parse_with(&program, "a", &o), RT_PARSE_OK);
    assert_int_equal(o.v.chunk, 64);
    drop(&o);
    assert_int_equal(parse_with(&program, "--help", &o), RT_PARSE_HELP);
    assert_non_null(strstr(o.out, "(default 64)"));
    assert_null(strstr(o.out, "MOESAIC_"));
    drop(&o);
    unsetenv("MOESAIC_CHUNK");
}

static void missing_memory_is_a_usage_line_and_no_crash(void **state)
{
    char name[] = "run", *argv[] = {name, NULL};
    values v = {0};
    capture c = capture_begin(STDERR_FILENO);
    rt_parse_result result;
    char *text;

    (void)state;
    no_memory = true;
    result = rt_options_parse(&spec, 1, argv, &v, NULL, NULL);
    no_memory = false;
    text = capture_end(&c);
    assert_int_equal(result, RT_PARSE_USAGE);
    assert_string_equal(text, "moesaic run: out of memory\n");
    free(text);
}

static void env_get_tells_unset_from_set(void **state)
{
    (void)state;
    setenv("MOESAIC_CHUNK", "x", 1);
    assert_string_equal(rt_env_get("MOESAIC_CHUNK"), "x");
    unsetenv("MOESAIC_CHUNK");
    assert_null(rt_env_get("MOESAIC_CHUNK"));
}

#define OPTIONS_TEST(name)                                                                         \
    cmocka_unit_test_setup_teardown(name, clean_environment, clean_environment)

int main(void)
{
    const struct CMUnitTest tests[] = {
        OPTIONS_TEST(defaults_stay_without_options),
        OPTIONS_TEST(every_kind_is_written_to_its_field),
        OPTIONS_TEST(the_last_of_a_repeated_option_counts),
        OPTIONS_TEST(two_dashes_end_the_options),
        OPTIONS_TEST(a_twin_stands_between_default_and_command_line),
        OPTIONS_TEST(a_wrong_twin_is_named_unless_the_command_line_overrides_it),
        OPTIONS_TEST(options_that_exclude_each_other_are_refused_from_one_place),
        OPTIONS_TEST(the_command_line_wins_over_a_twin_that_it_excludes),
        OPTIONS_TEST(an_unknown_variable_is_named_with_the_nearest_twin),
        OPTIONS_TEST(help_goes_to_stdout_with_docs_defaults_and_twins),
        OPTIONS_TEST(an_unknown_option_gets_the_nearest_name),
        OPTIONS_TEST(a_hostile_name_is_cut_and_not_overrun),
        OPTIONS_TEST(values_too_few_and_too_many_are_named),
        OPTIONS_TEST(wrong_values_are_refused_with_what_was_expected),
        OPTIONS_TEST(the_number_of_arguments_is_checked),
        OPTIONS_TEST(a_program_of_its_own_has_its_name_and_no_twins),
        OPTIONS_TEST(missing_memory_is_a_usage_line_and_no_crash),
        OPTIONS_TEST(env_get_tells_unset_from_set),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
