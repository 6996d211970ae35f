/* conversion.c - md_convert with a team of its own, and comparisons of what it wrote. */
#include "tests/support/conversion.h"

#include "base/file.h"
#include "tests/support/temp_dir.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

rt_status conversion_run(const md_convert_spec *asked, uint32_t threads, md_convert_result *result,
                         rt_err *err)
{
    rt_team_spec team_spec = {.threads = threads};
    md_convert_spec spec = *asked;
    rt_team *team = NULL;
    rt_status status;

    spec.quiet = true;
    assert_int_equal(rt_team_create(&team_spec, &team, NULL), RT_OK);
    status = md_convert(&spec, team, result, err);
    rt_team_free(team);
    return status;
}

md_convert_spec conversion_standard(const char *source, const char *target)
{
    return (md_convert_spec){
        .source = source, .target = target, .expert_format = KN_Q4, .dense_format = KN_Q8};
}

md_convert_result conversion_ok(const md_convert_spec *spec, uint32_t threads)
{
    md_convert_result result = {0};
    rt_err err = {0};

    if (conversion_run(spec, threads, &result, &err) != RT_OK) fail_msg("%s", err.text);
    return result;
}

void conversion_expect_failure(const md_convert_spec *spec, rt_status status, const char *says)
{
    md_convert_result result = {0};
    rt_err err = {0};
    rt_status found = conversion_run(spec, 1, &result, &err);

    if (found != status || strstr(err.text, says) == NULL)
        fail_msg("expected %s (%s), found %s: %s", rt_status_name(status), says,
                 rt_status_name(found), err.text);
}

int conversion_count_files(const char *path)
{
    struct dirent *entry;
    DIR *dir = opendir(path);
    int count = 0;

    assert_non_null(dir);
    while ((entry = readdir(dir)) != NULL)
        count += entry->d_name[0] != '.';
    closedir(dir);
    return count;
}

void conversion_expect_same_files(const char *left, const char *right)
{
    struct dirent *entry;
    DIR *dir = opendir(left);

    assert_non_null(dir);
    assert_int_equal(conversion_count_files(left), conversion_count_files(right));
    while ((entry = readdir(dir)) != NULL) {
        char *a = rt_path_join(left, entry->d_name), *b = rt_path_join(right, entry->d_name);
        char *x = NULL, *y = NULL;
        size_t x_bytes = 0, y_bytes = 0;

        if (entry->d_name[0] != '.') {
            assert_int_equal(rt_file_read(a, 1 << 28, &x, &x_bytes, NULL), RT_OK);
            assert_int_equal(rt_file_read(b, 1 << 28, &y, &y_bytes, NULL), RT_OK);
            if (x_bytes != y_bytes || memcmp(x, y, x_bytes) != 0)
                fail_msg("%s and %s differ", a, b);
        }
        free(x);
        free(y);
        free(a);
        free(b);
    }
    closedir(dir);
}

conversion_odd conversion_odd_begin(const char *fixtures)
{
    conversion_odd o = {.source = temp_dir_make(), .dir = temp_dir_make()};

    o.target = rt_path_join(o.dir, "t");
    o.checkpoint = st_checkpoint_load(fixtures, "nano-fp8");
    st_checkpoint_write(&o.checkpoint, o.source, true);
    o.spec = conversion_standard(o.source, o.target);
    return o;
}

void conversion_odd_end(conversion_odd *o, rt_status status, const char *says, bool untouched)
{
    conversion_expect_failure(&o->spec, status, says);
    if (untouched) assert_int_equal(conversion_count_files(o->dir), 0);
    st_checkpoint_free(&o->checkpoint);
    free(o->target);
    temp_dir_remove(o->source);
    temp_dir_remove(o->dir);
}
