# moesaic_folder(NAME NEEDS lib... [SOURCES generated...])
# One folder is one static library. Its NEEDS list is what it may include; tests/lint/layers.sh
# checks the includes themselves. Sources are globbed: a file in the folder is part of the library.
function(moesaic_folder name)
    cmake_parse_arguments(arg "" "" "SOURCES;NEEDS" ${ARGN})
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.c)
    add_library(${name} STATIC ${sources} ${arg_SOURCES})
    target_link_libraries(${name} PUBLIC moesaic_flags ${arg_NEEDS})
endfunction()

# moesaic_test(FILE LABEL label NEEDS lib...): one cmocka executable, named label.<folder>.<file>.
# A line "/* wrap: calloc malloc */" in the file links it with --wrap for these functions, so that it
# can define __wrap_calloc and make it fail.
function(moesaic_test file)
    cmake_parse_arguments(arg "" "LABEL;TIMEOUT" "NEEDS" ${ARGN})
    file(RELATIVE_PATH rel ${CMAKE_SOURCE_DIR}/tests/${arg_LABEL} ${file})
    string(REPLACE ".c" "" stem ${rel})
    string(REPLACE "/test_" "." test_name ${stem})
    string(REPLACE "test_" "" test_name ${test_name})
    string(REPLACE "/" "_" target ${stem})
    set(target ${arg_LABEL}_${target})
    if(NOT arg_TIMEOUT)
        set(arg_TIMEOUT 120)
    endif()
    add_executable(${target} ${file})
    target_link_libraries(${target} PRIVATE ${arg_NEEDS} PkgConfig::cmocka)
    file(STRINGS ${file} wraps REGEX "^/\\* wrap: [a-z_ ]+ \\*/$")
    string(REGEX REPLACE "^/\\* wrap: | \\*/$" "" wraps "${wraps}")
    string(REPLACE " " ";" wraps "${wraps}")
    foreach(wrapped ${wraps})
        target_link_options(${target} PRIVATE -Wl,--wrap=${wrapped})
    endforeach()
    target_compile_definitions(${target} PRIVATE
        MOESAIC_FIXTURES="${CMAKE_SOURCE_DIR}/tests/fixtures")
    add_test(NAME ${arg_LABEL}.${test_name} COMMAND ${target})
    set_tests_properties(${arg_LABEL}.${test_name} PROPERTIES LABELS ${arg_LABEL}
        TIMEOUT ${arg_TIMEOUT} SKIP_RETURN_CODE 77)
endfunction()

# Every tests/<label>/<folder>/test_*.c becomes a test of that folder's library.
function(moesaic_tests label)
    foreach(folder base kernels model transport placement expert_node attention_node)
        file(GLOB_RECURSE files CONFIGURE_DEPENDS
            ${CMAKE_SOURCE_DIR}/tests/${label}/${folder}/test_*.c)
        foreach(file ${files})
            moesaic_test(${file} LABEL ${label} NEEDS support ${folder})
        endforeach()
    endforeach()
endfunction()
