/* container_check.h - for tests of opening: a tiny container that must open, or must be refused.
 *
 * Needs cmocka: a failed expectation fails the test, with the message that was found.
 *
 * Threads: one test. */
#ifndef TESTS_SUPPORT_CONTAINER_CHECK_H
#define TESTS_SUPPORT_CONTAINER_CHECK_H

#include "model/container/container.h"

/* tiny_model's default model with MTP, its numbers from seed. Free with temp_dir_remove. */
char *container_check_build(uint64_t seed);

/* Opens what must open; close with md_container_close. */
md_container *container_check_open(const char *dir);

/* Opening must fail with status and a message that holds both texts (second NULL: only first). */
void container_check_refused(const char *dir, rt_status status, const char *first,
                             const char *second);

#endif
