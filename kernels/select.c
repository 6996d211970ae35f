/* select.c - the variant tables and the choice among them. */
#include "kernels/select.h"

#include "base/check.h"
#include "base/log.h"
#include "kernels/ops.h"

#include <stdatomic.h>
#include <string.h>
#if KN_X86
#include <cpuid.h>
#endif

static const kn_ops ref_ops = {
#define X(name, result, args) .name = kn_ref_##name,
    KN_OPS(X)
#undef X
};
#if KN_X86
static const kn_ops avx2_ops = {
#define X(name, result, args) .name = kn_avx2_##name,
    KN_OPS(X)
#undef X
};
static const kn_ops avxvnni_ops = {
#define X(name, result, args) .name = kn_avxvnni_##name,
    KN_OPS_INT(X)
#undef X
#define X(name, result, args) .name = kn_avx2_##name,
        KN_OPS_FLOAT(X) KN_OPS_OTHER(X)
#undef X
};
/* Only products and attention are worth wider registers; the rest is the AVX2 code. */
static const kn_ops avx512_ops = {
#define X(name, result, args) .name = kn_avx512_##name,
    KN_OPS_WIDE(X)
#undef X
#define X(name, result, args) .name = kn_avx2_##name,
        KN_OPS_OTHER(X)
#undef X
};
#endif

static const kn_ops *const tables[KN_VARIANT_COUNT] = {
    [KN_REF] = &ref_ops,
#if KN_X86
    [KN_AVX2] = &avx2_ops,
    [KN_AVXVNNI] = &avxvnni_ops,
    [KN_AVX512] = &avx512_ops,
#endif
};
static const char *const names[KN_VARIANT_COUNT] = {
    [KN_REF] = "ref", [KN_AVX2] = "avx2", [KN_AVXVNNI] = "avxvnni", [KN_AVX512] = "avx512"};

/* -1: not chosen yet. Two threads that choose at once choose the same. */
static atomic_int selected = -1;

const char *kn_variant_name(kn_variant variant)
{
    RT_ASSERT((unsigned)variant < KN_VARIANT_COUNT);
    return names[variant];
}

#if KN_X86
/* clang 14 does not know "f16c" in __builtin_cpu_supports; avx2 says the OS saves the registers. */
static bool cpu_has_f16c(void)
{
    unsigned eax, ebx, ecx, edx;

    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & (1U << 29)) != 0;
}

static bool cpu_has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && cpu_has_f16c();
}

/* Nor does it know "avxvnni". */
static bool cpu_has_avxvnni(void)
{
    unsigned eax, ebx, ecx, edx;

    return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & (1U << 4)) != 0;
}
#endif

bool kn_variant_supported(kn_variant variant)
{
    switch (variant) {
    case KN_REF:
        return true;
#if KN_X86
    case KN_AVX2:
        return cpu_has_avx2();
    case KN_AVXVNNI:
        return cpu_has_avx2() && cpu_has_avxvnni();
    case KN_AVX512:
        return cpu_has_avx2() && __builtin_cpu_supports("avx512f") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
#else
    case KN_AVX2:
    case KN_AVXVNNI:
    case KN_AVX512:
        return false;
#endif
    case KN_VARIANT_COUNT:
        break;
    }
    return false;
}

static kn_variant best_variant(void)
{
    int variant = KN_VARIANT_COUNT - 1;

    while (variant > KN_REF && !kn_variant_supported((kn_variant)variant))
        variant--;
    return (kn_variant)variant;
}

rt_status kn_select(const char *name, rt_err *err)
{
    kn_variant variant = KN_REF;

    if (strcmp(name, "auto") == 0) {
        variant = best_variant();
        if (variant == KN_REF)
            rt_log_warn("kernels", "this processor has no avx2, fma and f16c: using the slow "
                                   "reference kernels");
        atomic_store(&selected, (int)variant);
        return RT_OK;
    }
    while (variant < KN_VARIANT_COUNT && strcmp(name, names[variant]) != 0)
        variant++;
    if (variant == KN_VARIANT_COUNT)
        return rt_fail(err, RT_EINVAL, "kernels: expected " KN_VARIANT_CHOICES ", found \"%s\"",
                       name);
    if (!kn_variant_supported(variant))
        return rt_fail(err, RT_EUNSUPPORTED, "kernels: this processor cannot run \"%s\"", name);
    atomic_store(&selected, (int)variant);
    return RT_OK;
}

size_t kn_prefetch_bytes(void)
{
#if KN_X86
    return __builtin_cpu_is("intel") ? 2048 : 0;
#else
    return 0;
#endif
}

kn_variant kn_selected(void)
{
    int variant = atomic_load_explicit(&selected, memory_order_relaxed);

    if (variant < 0) {
        rt_status status = kn_select("auto", NULL);

        RT_ASSERT(status == RT_OK);
        variant = atomic_load(&selected);
    }
    return (kn_variant)variant;
}

const kn_ops *kn_ops_active(void)
{
    return tables[kn_selected()];
}
