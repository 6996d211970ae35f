/* conversion.h - whole conversions in a test's own process, what they wrote, and what they refuse.
 *
 * Threads: one test. A surprise fails the test. */
#ifndef TESTS_SUPPORT_CONVERSION_H
#define TESTS_SUPPORT_CONVERSION_H

#include "model/convert/convert.h"
#include "tests/support/safetensors_file.h"

#include <stdbool.h>
#include <stdint.h>

/* From source to target with experts at q4 and the rest at q8. */
md_convert_spec conversion_standard(const char *source, const char *target);

/* Converts quietly with a team of `threads` (0: as rt_team_create chooses); err may be NULL. */
RT_MUST_CHECK rt_status conversion_run(const md_convert_spec *asked, uint32_t threads,
                                       md_convert_result *result, rt_err *err);
/* The same, and it must succeed. */
md_convert_result conversion_ok(const md_convert_spec *spec, uint32_t threads);
/* The same, and it must fail with `status` and a message that contains `says`. */
void conversion_expect_failure(const md_convert_spec *spec, rt_status status, const char *says);

/* Entries of a folder but for hidden ones. */
int conversion_count_files(const char *path);
/* Every byte of both folders' files is the same. */
void conversion_expect_same_files(const char *left, const char *right);

/* A source that the test makes odd, to see what the conversion says. */
typedef struct {
    char *source, *dir, *target; /* owned; target is dir/t, which is not made */
    st_checkpoint checkpoint;    /* as in source; write it again after a change */
    md_convert_spec spec;        /* the standard one, from source to target */
} conversion_odd;

/* Begins with a good copy of the fixture nano-fp8; fixtures: the folder of them all. */
conversion_odd conversion_odd_begin(const char *fixtures);
/* Expects the failure and removes everything. untouched: nothing may have been written, because
 * `status` was found before the work began. */
void conversion_odd_end(conversion_odd *o, rt_status status, const char *says, bool untouched);

#endif
