/* select.h - which variant of the kernels runs: chosen once by cpuid, or forced by name.
 *
 * Threads: kn_select once, from main, before any kernel. Without it the first kernel call selects
 * the best variant. */
#ifndef KERNELS_SELECT_H
#define KERNELS_SELECT_H

#include "base/status.h"

typedef enum { KN_REF, KN_AVX2, KN_AVX512, KN_VARIANT_COUNT } kn_variant;

/* name: "auto", "ref", "avx2", "avx512".
 *   Errors  RT_EINVAL        not a variant's name; the text lists them
 *           RT_EUNSUPPORTED  this processor cannot run it
 * "auto" on a processor without AVX2 logs one warning and uses the references. */
RT_MUST_CHECK rt_status kn_select(const char *name, rt_err *err);
kn_variant kn_selected(void);
const char *kn_variant_name(kn_variant variant);
bool kn_variant_supported(kn_variant variant);

#endif
