/* test_allocation.c - a conversion or an import that runs out of memory anywhere says so, leaks nothing, and can be
 * run again. */
/* wrap: malloc calloc strdup realloc fsync fdatasync */
#include "model/convert/convert.h"

#include "base/file.h"
#include "tests/support/colibri_model.h"
#include "tests/support/temp_dir.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static bool counting;
static long allocations, fail_at; /* single-threaded */

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *data, size_t bytes);
char *__real_strdup(const char *text);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *data, size_t bytes);
char *__wrap_strdup(const char *text);

static bool refused(void)
{
    return counting && allocations++ == fail_at;
}

void *__wrap_malloc(size_t bytes)
{
    return refused() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return refused() ? NULL : __real_calloc(count, bytes);
}

void *__wrap_realloc(void *data, size_t bytes)
{
    return refused() ? NULL : __real_realloc(data, bytes);
}

char *__wrap_strdup(const char *text)
{
    return refused() ? NULL : __real_strdup(text);
}

/* Nobody cuts the power here. */
int __wrap_fsync(int fd);
int __wrap_fdatasync(int fd);

int __wrap_fsync(int fd)
{
    (void)fd;
    return 0;
}

int __wrap_fdatasync(int fd)
{
    (void)fd;
    return 0;
}

static rt_status convert_failing_at(const md_convert_spec *asked, const char *target, rt_team *team,
                                    long at, md_convert_result *result, rt_err *err)
{
    md_convert_spec spec = *asked;
    rt_status status;

    spec.target = target;
    spec.commit_records = 40;
    spec.quiet = true;

    allocations = 0;
    fail_at = at;
    counting = true;
    status = md_convert(&spec, team, result, err);
    counting = false;
    return status;
}

/* runs: a prime; about half as many allocations are tried where there are more than twice of it. */
static void fail_everywhere(const md_convert_spec *spec, long runs)
{
    md_convert_result whole, resumed;
    rt_team_spec team_spec = {0};
    rt_team *team = NULL;
    char *dir = temp_dir_make();
    long total;

    assert_int_equal(rt_team_create(&team_spec, &team, NULL), RT_OK);
    {
        char *target = rt_path_join(dir, "whole");

        assert_int_equal(convert_failing_at(spec, target, team, -1, &whole, NULL), RT_OK);
        free(target);
    }
    total = allocations;
    assert_true(total > 50);
    /* Most allocations are names of tensors and tokens, one like the other: a prime stride. */
    for (long at = 0; at<total; at += total> 2 * runs ? total / runs * 2 + 1 : 1) {
        char name[32];
        char *target;
        rt_err err = {0};
        rt_status status;

        snprintf(name, sizeof(name), "t%ld", at);
        target = rt_path_join(dir, name);
        status = convert_failing_at(spec, target, team, at, &resumed, &err);
        if (status != RT_OK && status != RT_ENOMEM)
            fail_msg("allocation %ld: %s: %s", at, rt_status_name(status), err.text);
        if (status != RT_OK) {
            if (convert_failing_at(spec, target, team, -1, &resumed, &err) != RT_OK)
                fail_msg("after allocation %ld: %s", at, err.text);
        }
        assert_memory_equal(resumed.model_id, whole.model_id, sizeof(whole.model_id));
        free(target);
    }
    rt_team_free(team);
    temp_dir_remove(dir);
}

static void out_of_memory_anywhere_is_reported_and_resumed(void **state)
{
    md_convert_spec spec = {
        .source = MOESAIC_FIXTURES "/nano-fp8", .expert_format = KN_Q4, .dense_format = KN_Q8};

    (void)state;
    fail_everywhere(&spec, 997);
}

static void an_import_is_resumed_as_well(void **state)
{
    char *dir = temp_dir_make();
    md_convert_spec spec = {
        .source = dir, .import = true, .indexer_from = MOESAIC_FIXTURES "/nano-bf16"};

    (void)state;
    colibri_model_write(MOESAIC_FIXTURES, "nano-bf16", 4, dir);
    fail_everywhere(&spec, 199);
    temp_dir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(out_of_memory_anywhere_is_reported_and_resumed),
        cmocka_unit_test(an_import_is_resumed_as_well),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
