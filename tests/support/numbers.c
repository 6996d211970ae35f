#include "tests/support/numbers.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* splitmix64 */
uint64_t test_random_bits(test_random *random)
{
    uint64_t z = random->state += 0x9e3779b97f4a7c15U;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9U;
    z = (z ^ z >> 27) * 0x94d049bb133111ebU;
    return z ^ z >> 31;
}

uint32_t test_random_below(test_random *random, uint32_t limit)
{
    return (uint32_t)((test_random_bits(random) >> 32) * limit >> 32);
}

float test_random_normal(test_random *random)
{
    double sum = 0;

    for (int i = 0; i < 12; i++)
        sum += (double)(test_random_bits(random) >> 11) * 0x1p-53;
    return (float)(sum - 6);
}

void test_random_fill(test_random *random, float *x, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++)
        x[i] = test_random_normal(random) * scale;
}

bool test_floats_equal(const char *what, const float *found, const float *expected, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (memcmp(&found[i], &expected[i], sizeof(float)) == 0) continue;
        if (isnan(found[i]) && isnan(expected[i])) continue;
        printf("%s: value %zu of %zu is %a, expected %a\n", what, i, n, (double)found[i],
               (double)expected[i]);
        return false;
    }
    return true;
}

double test_ulps(float x, double exact)
{
    int exponent;

    frexp(exact, &exponent);
    return fabs((double)x - exact) / ldexp(1, (exponent < -125 ? -125 : exponent) - 24);
}
