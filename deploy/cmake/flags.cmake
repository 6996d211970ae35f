# One interface target carries every flag, so that no folder can drift from another.
add_library(moesaic_flags INTERFACE)
target_compile_features(moesaic_flags INTERFACE c_std_17)
target_compile_definitions(moesaic_flags INTERFACE _GNU_SOURCE)
target_include_directories(moesaic_flags INTERFACE ${CMAKE_SOURCE_DIR})
# Contraction is off everywhere: clang 14 fuses a*b+c by default and gcc 12 -std=c17 does not, so
# leaving it to the compiler would make two nodes disagree. See docs/numerics.md, R1.
target_compile_options(moesaic_flags INTERFACE
    -Wall -Wextra -Werror -Wshadow -Wconversion -Wvla -Wundef -Wstrict-prototypes
    -Wmissing-prototypes -ffp-contract=off -fno-math-errno -fno-trapping-math
    -fstack-protector-strong -fstack-clash-protection -fcf-protection=full)
target_link_options(moesaic_flags INTERFACE -Wl,-z,relro,-z,now -Wl,-z,noexecstack -pie)
if(MOESAIC_SANITIZE)
    target_compile_options(moesaic_flags INTERFACE -fsanitize=address,undefined
        -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
    target_link_options(moesaic_flags INTERFACE -fsanitize=address,undefined)
    target_compile_definitions(moesaic_flags INTERFACE RT_DEBUG_CHECKS)
else()
    target_compile_definitions(moesaic_flags INTERFACE $<$<CONFIG:Release>:_FORTIFY_SOURCE=2>)
    target_compile_definitions(moesaic_flags INTERFACE $<$<CONFIG:Debug>:RT_DEBUG_CHECKS>)
endif()
if(MOESAIC_FUZZ)
    target_compile_options(moesaic_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
