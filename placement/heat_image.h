/* heat_image.h - a heat as bytes: what is kept beside the model. Versioned, checksummed, bound to the
 * model id, little-endian.
 *
 *   0   8 bytes  "MOEHEAT\n"           64  u64  XXH3-64 of the counts
 *   8   u32      version, 1            72  f64  tokens seen
 *   12  u32      layers                80  u64  0
 *   16  u32      experts               88  u64  XXH3-64 of bytes 0..87
 *   20  u32      layers with experts   96  layers x u8: 1 with experts, 0 without; zeros up to a
 *   24  u64      bytes of the image        multiple of 8
 *   32  32 bytes model id              then f64 [layers with experts][experts] decayed selections
 *
 * The counts' checksum covers the bytes from 96 on. Pure: app/heat_file.h does the reading, locking and
 * replacing.
 *
 * Threads: any. */
#ifndef PLACEMENT_HEAT_IMAGE_H
#define PLACEMENT_HEAT_IMAGE_H

#include "placement/heat.h"

#include <stddef.h>

#define PL_HEAT_IMAGE_MAGIC "MOEHEAT\n"

enum {
    PL_HEAT_IMAGE_VERSION = 1,
    PL_HEAT_IMAGE_BYTES_MAX =
        96 + PL_HEAT_LAYERS_MAX + PL_HEAT_LAYERS_MAX * PL_HEAT_EXPERTS_MAX * 8 /* 33 MB */
};

/* malloc'd bytes. RT_ENOMEM. */
RT_MUST_CHECK rt_status pl_heat_image_write(const pl_heat *heat, const uint8_t model_id[32],
                                            unsigned char **out, size_t *bytes, rt_err *err);

/* Adds the image's counts and tokens to *heat, which is of the model's shape; it is unchanged on an
 * error. `name` is for the text only.
 *   Errors  RT_EFORMAT       damaged, cut short, or a count that is none
 *           RT_EINVAL        of another model: id or shape (expected and found)
 *           RT_EUNSUPPORTED  a newer version */
RT_MUST_CHECK rt_status pl_heat_image_read(const void *image, size_t bytes,
                                           const uint8_t model_id[32], const char *name,
                                           pl_heat *heat, rt_err *err);

#endif
