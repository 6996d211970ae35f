/* source_size.h - how large a checkpoint of this shape is in the release's layout, before any of it is
 * here: what there is to download.
 *
 * Counts what the files of SPEC 2.2 hold: FP8 weights with a scale per 128 x 128 block where the
 * release has them, BF16 elsewhere, F32 router biases. File headers (some 10 MB in 756 GB) are left
 * out, and so are the copies that some makers put into MTP layers.
 *
 * Threads: pure. */
#ifndef MODEL_CONVERT_SOURCE_SIZE_H
#define MODEL_CONVERT_SOURCE_SIZE_H

#include "model/config.h"

typedef struct {
    uint64_t bytes, tensors;
    uint64_t parameters; /* without scales and router biases, as the release counts */
} md_source_size;

/* RT_ENOMEM. */
RT_MUST_CHECK rt_status md_source_size_of(const md_config *config, bool fp8, md_source_size *out,
                                          rt_err *err);

#endif
