/* variants.h - running a test under every kernel variant that this machine has. */
#ifndef TESTS_SUPPORT_VARIANTS_H
#define TESTS_SUPPORT_VARIANTS_H

#include "base/check.h"
#include "kernels/select.h"

/* Selects the variant; false when this processor cannot run it.
 *     for (int v = 0; v < KN_VARIANT_COUNT; v++)
 *         if (test_variant_select(v)) ...                                                     */
static inline bool test_variant_select(int variant)
{
    rt_status status;

    if (!kn_variant_supported((kn_variant)variant)) return false;
    status = kn_select(kn_variant_name((kn_variant)variant), NULL);
    RT_ASSERT(status == RT_OK);
    return true;
}

#endif
