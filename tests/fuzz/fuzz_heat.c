/* fuzz_heat.c - heat files and usage texts as an attacker may write them.
 *
 * The first byte chooses: a usage text; a heat image as it is; an image whose checksums are made right,
 * so that the checks behind them are reached. What is accepted must be numbers that can be used. */
#include "base/check.h"
#include "placement/heat_image.h"
#include "placement/heat_usage.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAIN = 4, LAYERS = 5, EXPERTS = 16, HEADER = 96, HEADER_HASHED = 88 };

static const bool sparse[LAYERS] = {false, true, true, true, true};
static const uint8_t id[32] = {0x3f, 0x0a};

static pl_heat *make(void)
{
    pl_heat_spec spec = {.layers = LAYERS, .sparse = sparse, .experts = EXPERTS};
    pl_heat *heat = NULL;

    RT_ASSERT(pl_heat_create(&spec, &heat, NULL) == RT_OK);
    return heat;
}

/* All figures of an accepted heat are finite, and it can be written and read again. */
static void use(pl_heat *heat)
{
    pl_heat *again = make();
    pl_heat_entry top[4];
    unsigned char *image;
    double skew, share;
    uint32_t found;
    size_t bytes;

    RT_ASSERT(isfinite(pl_heat_total(heat)) && pl_heat_total(heat) >= 0);
    RT_ASSERT(pl_heat_confidence(heat) >= 0 && pl_heat_confidence(heat) <= 1);
    RT_ASSERT(pl_heat_coverage(heat, PL_HEAT_ALL, 0.5, &share) == RT_OK);
    RT_ASSERT(share >= 0 && share <= 1 + 1e-9);
    RT_ASSERT(pl_heat_skew(heat, 1, &skew) == RT_OK && isfinite(skew));
    RT_ASSERT(pl_heat_top(heat, top, 4, &found) == RT_OK && found == 4);
    pl_heat_append(heat, again);
    pl_heat_advance(heat, 1e6);
    RT_ASSERT(pl_heat_image_write(heat, id, &image, &bytes, NULL) == RT_OK);
    RT_ASSERT(pl_heat_image_read(image, bytes, id, "again", again, NULL) == RT_OK);
    free(image);
    pl_heat_free(again);
}

static void read_usage(const uint8_t *data, size_t size)
{
    pl_heat *heat = make();
    pl_heat_usage usage;
    rt_err err;

    if (pl_heat_usage_read((const char *)data, size, MAIN, "usage", heat, &usage, &err) == RT_OK) {
        RT_ASSERT(usage.lines > 0 && usage.lines <= LAYERS * EXPERTS);
        use(heat);
    } else {
        RT_ASSERT(pl_heat_total(heat) == 0);
    }
    pl_heat_free(heat);
}

static void read_image(const uint8_t *data, size_t size)
{
    pl_heat *heat = make();
    rt_err err;

    if (pl_heat_image_read(data, size, id, "image", heat, &err) == RT_OK)
        use(heat);
    else
        RT_ASSERT(pl_heat_total(heat) == 0 && pl_heat_tokens(heat) == 0);
    pl_heat_free(heat);
}

static void read_repaired(const uint8_t *data, size_t size)
{
    uint64_t hash, bytes = size;
    uint8_t *copy;

    if (size < HEADER) return;
    copy = malloc(size);
    RT_ASSERT(copy != NULL);
    memcpy(copy, data, size);
    memcpy(copy, "MOEHEAT\n", 8);
    memcpy(copy + 24, &bytes, 8);
    memcpy(copy + 32, id, sizeof(id));
    hash = XXH3_64bits(copy + HEADER, size - HEADER);
    memcpy(copy + 64, &hash, 8);
    hash = XXH3_64bits(copy, HEADER_HASHED);
    memcpy(copy + HEADER_HASHED, &hash, 8);
    read_image(copy, size);
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1) return 0;
    switch (data[0] % 3) {
    case 0:
        read_usage(data + 1, size - 1);
        break;
    case 1:
        read_image(data + 1, size - 1);
        break;
    default:
        read_repaired(data + 1, size - 1);
        break;
    }
    return 0;
}
