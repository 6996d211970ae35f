/* container_check.c - opening a container and saying what was found instead. */
#include "tests/support/container_check.h"

#include "tests/support/tiny_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

char *container_check_build(uint64_t seed)
{
    tiny_model_spec spec = tiny_model_default();

    spec.seed = seed;
    spec.mtp = true;
    return tiny_model_build(&spec);
}

md_container *container_check_open(const char *dir)
{
    md_container *container = NULL;
    rt_err err = {RT_OK, ""};

    if (md_container_open(dir, &container, &err) != RT_OK) fail_msg("%s", err.text);
    return container;
}

void container_check_refused(const char *dir, rt_status status, const char *first,
                             const char *second)
{
    md_container *container = NULL;
    rt_err err = {RT_OK, ""};

    assert_int_equal(md_container_open(dir, &container, &err), status);
    assert_null(container);
    if (strstr(err.text, first) == NULL || (second != NULL && strstr(err.text, second) == NULL))
        fail_msg("expected %s and %s in: %s", first, second != NULL ? second : "-", err.text);
}
