/* select.h - which variant of the kernels runs: chosen once by cpuid, or forced by name.
 *
 * Each variant wants all that it names and AVX2, FMA and F16C:
 *   avx2     products of bytes by maddubs
 *   avxvnni  AVX-VNNI: products of bytes by the 256-bit dpbusd, all else as avx2
 *   avx512   F, BW, DQ, VL and VNNI: products of bytes, float products and attention in 512 bits
 * "auto" takes the last of these that the processor has. One with AVX-512 but without VNNI (Skylake
 * and its like) runs avx2: 512-bit registers alone gain it nothing at one token, which memory
 * bounds, and lower its clock in all that it does.
 *
 * Threads: kn_select once, from main, before any kernel. Without it the first kernel call selects
 * the best variant. */
#ifndef KERNELS_SELECT_H
#define KERNELS_SELECT_H

#include "base/status.h"

/* In the order of preference, the best last. */
typedef enum { KN_REF, KN_AVX2, KN_AVXVNNI, KN_AVX512, KN_VARIANT_COUNT } kn_variant;

/* What kn_select takes, in the notation of an option's choices. */
#define KN_VARIANT_CHOICES "auto|ref|avx2|avxvnni|avx512"

/* name: one of KN_VARIANT_CHOICES.
 *   Errors  RT_EINVAL        not a variant's name; the text lists them
 *           RT_EUNSUPPORTED  this processor cannot run it
 * "auto" on a processor without AVX2 logs one warning and uses the references. */
RT_MUST_CHECK rt_status kn_select(const char *name, rt_err *err);
kn_variant kn_selected(void);
const char *kn_variant_name(kn_variant variant);
bool kn_variant_supported(kn_variant variant);

#endif
