/* fuzz_config.c - config.json and generation_config.json as an attacker may write them.
 *
 * A config that parses must be one that the rest can compute with: slices, layouts and record sizes
 * are derived from it, and their invariants asserted. */
#include "base/check.h"
#include "model/container/shape.h"

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_layers(const md_config *config)
{
    RT_ASSERT(config->index_full[0]);
    for (uint32_t i = 0; i < md_config_layers_total(config); i++) {
        RT_ASSERT(config->index_source[i] <= i);
        RT_ASSERT(config->index_full[config->index_source[i]]);
        RT_ASSERT(config->index_full[i] == (config->index_source[i] == i));
    }
    for (uint32_t i = 0; i < config->eos_count; i++)
        RT_ASSERT(config->eos[i] < config->vocab);
}

static void check_records(const md_config *config)
{
    md_container_info info = {.expert_format = KN_Q4,
                              .dense_format = KN_Q8,
                              .embed_format = KN_BF16,
                              .slice_width = md_slice_width(config)};

    RT_ASSERT(md_slice_width_fits(config, info.slice_width));
    for (uint32_t layer = 0; layer < md_config_layers_total(config); layer++) {
        for (uint16_t kind = 0; kind < 100; kind++) {
            md_shape shape;

            if (!md_record_shape(config, &info, (md_key){(uint16_t)layer, kind, 0}, &shape))
                continue;
            RT_ASSERT(shape.bytes > 0 && shape.bytes < 1ull << 48);
            RT_ASSERT(shape.count > 0 && shape.rows > 0 && shape.cols > 0);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    md_generation generation = {.top_p = 1.0f};
    md_config config;
    rt_err err;

    if (md_config_parse((const char *)data, size, &config, &err) == RT_OK) {
        check_layers(&config);
        check_records(&config);
    }
    if (md_generation_parse((const char *)data, size, &generation, &err) == RT_OK) {
        RT_ASSERT(generation.top_p >= 0.0f && generation.top_p <= 1.0f);
        RT_ASSERT(generation.eos_count <= MD_EOS_MAX);
    }
    return 0;
}
