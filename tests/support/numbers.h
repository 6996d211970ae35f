/* numbers.h - repeatable random numbers and comparison of float results, for tests of arithmetic.
 *
 * Threads: one owner per generator. */
#ifndef TESTS_SUPPORT_NUMBERS_H
#define TESTS_SUPPORT_NUMBERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint64_t state;
} test_random;

uint64_t test_random_bits(test_random *random);
uint32_t test_random_below(test_random *random, uint32_t limit); /* limit > 0 */
float test_random_normal(test_random *random);                   /* mean 0, variance 1 */
void test_random_fill(test_random *random, float *x, size_t n, float scale);

/* The same bits, except that every NaN equals every NaN. On a difference the first index and both
 * values are printed with `what`. */
bool test_floats_equal(const char *what, const float *found, const float *expected, size_t n);

/* Distance of x from the exact value in units of x's last place. */
double test_ulps(float x, double exact);

#endif
