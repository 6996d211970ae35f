/* philox.c - Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers, 2011). */
#include "model/text/sampler.h"

#include <string.h>

enum { ROUNDS = 10 };
static const uint32_t multiplier[2] = {0xd2511f53u, 0xcd9e8d57u};
static const uint32_t weyl[2] = {0x9e3779b9u, 0xbb67ae85u};

void md_philox4x32_10(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t x[4], k[2] = {key[0], key[1]};

    memcpy(x, counter, sizeof(x));
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t a = (uint64_t)multiplier[0] * x[0];
        uint64_t b = (uint64_t)multiplier[1] * x[2];
        uint32_t next[4] = {
            (uint32_t)(b >> 32) ^ x[1] ^ k[0],
            (uint32_t)b,
            (uint32_t)(a >> 32) ^ x[3] ^ k[1],
            (uint32_t)a,
        };

        memcpy(x, next, sizeof(x));
        k[0] += weyl[0];
        k[1] += weyl[1];
    }
    memcpy(out, x, sizeof(x));
}
