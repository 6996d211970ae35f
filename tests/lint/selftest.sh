#!/bin/bash
# selftest.sh - proves that each lint can fail: a made-up tree passes, and each violation put into it
# is found by the script meant for it, with a message that says so.
set -u
here=$(cd "$(dirname "$0")" && pwd)
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
failures=0

# A small tree that obeys every rule.
fresh() {
    rm -rf "$tree" && mkdir -p "$tree"/{base,kernels,model/text,transport,expert_node,app,tests/lint}
    cp "$here/../../.clang-format" "$tree/"
    put base/a.h '#ifndef BASE_A_H' '#define BASE_A_H' '' 'int rt_a(void);' '' '#endif'
    put base/a.c '#include "base/a.h"' '' 'int rt_a(void)' '{' '    return 1;' '}'
    put kernels/k.h '#ifndef KERNELS_K_H' '#define KERNELS_K_H' '' '#include "base/a.h"' '' \
        'int kn_k(void);' '' '#endif'
    put model/text/t.h '#ifndef MODEL_TEXT_T_H' '#define MODEL_TEXT_T_H' '' '#include "kernels/k.h"' \
        '' 'int md_t(void);' '' '#endif'
    put app/main.c '#include "model/text/t.h"' '' '#include <stdlib.h>' '' 'int main(void)' '{' \
        '    exit(md_t());' '}'
    put README.md 'Text with a path: build/moesaic.'
}

# put FILE LINES...
put() {
    local file=$tree/$1
    shift
    mkdir -p "$(dirname "$file")"
    printf '%s\n' "$@" >"$file"
}

# body LINES: a function of that many lines, braces included.
body() {
    echo 'int rt_long(int x)'
    echo '{'
    for ((i = 0; i < $1 - 3; i++)); do echo '    x++;'; done
    echo '    return x;'
    echo '}'
}

passes() {
    local output
    output=$("$here/$1.sh" "$tree" 2>&1) || {
        echo "$1.sh fails on a tree that obeys ($2):"
        echo "$output"
        failures=1
    }
}

# finds SCRIPT MESSAGE: the script fails and says MESSAGE; then the tree is made new.
finds() {
    local output status
    output=$("$here/$1.sh" "$tree" 2>&1)
    status=$?
    if [ $status -eq 0 ] || [ $status -eq 77 ]; then
        echo "$1.sh did not find: $2"
        failures=1
    elif ! grep -qF -- "$2" <<<"$output"; then
        echo "$1.sh failed without saying \"$2\":"
        echo "$output"
        failures=1
    fi
    fresh
}

fresh
passes layers 'as made'
put kernels/bad.c '#include "model/text/t.h"'
finds layers 'kernels/bad.c: kernels/ may not include model/text/t.h'
put base/bad.h '#  include <kernels/k.h>'
finds layers 'base/bad.h: base/ may not include kernels/k.h'
put expert_node/bad.c '#include "model/text/t.h"'
finds layers 'expert_node/bad.c: may not include model/text/t.h'
put expert_node/bad.c '#include "attention_node/engine.h"'
finds layers 'may not include attention_node/engine.h'
put transport/bad.c '#include "model/x.h"'
finds layers 'may not include model/x.h'
put model/bad.c '#include "app/verbs.h"'
finds layers 'may not include app/verbs.h'
put app/bad.c '#include "tests/support/x.h"'
finds layers 'may not include tests/support/x.h'
put base/bad.c '#include "a.h"'
finds layers '"a.h" is not relative to the root'
put base/bad.c '#include "../base/a.h"'
finds layers '"../base/a.h" is not relative to the root'
put somewhere/bad.c 'int x;'
finds layers 'somewhere/bad.c: a source outside the folders'
put coordinator/server/ok.c '#include "attention_node/engine.h"'
put expert_node/ok.c '#include "model/x.h"' '#include "transport/f.h"' '#include "control.pb-c.h"'
put tests/unit/ok.c '#include "app/x.h"' '#include "tests/support/x.h"'
passes layers 'what the architecture allows'

fresh
passes size 'as made'
for ((i = 0; i < 1001; i++)); do echo '/* line */'; done >"$tree/base/bad.c"
finds size 'base/bad.c: expected at most 1000 lines, found 1001'
put base/bad.c '#include "base/a.c"'
finds size 'a source includes a source'
put base/bad.c 'const char *x = getenv("HOME");'
finds size 'getenv outside base/options.c'
put model/bad.c 'void md_x(void) { exit(1); }'
finds size 'exit, abort or perror'
put model/bad.c '    abort();'
finds size 'exit, abort or perror'
put model/bad.c '    perror("x");'
finds size 'exit, abort or perror'
put app/verb_x.c '    exit(2);'
finds size 'exit, abort or perror'
put base/bad.c "/* TO""DO: later */"
finds size 'unfinished work'
put base/bad.c "/* FIX""ME */"
finds size 'unfinished work'
put base/bad.c "/* a st""ub */"
finds size 'unfinished work'
put docs/bad.md "See /wo""rk/notes."
finds size 'a path of one machine'
put deploy/bad.sh "cd /ho""me/me/x"
finds size 'a path of one machine'
put base/options.c 'const char *x = getenv("X");'
put tests/ok.c 'int x(void) { exit(1); }'
put base/stop.c 'static void f(void) { _exit(3); }' 'void rt_team_exit(int);'
passes size 'calls in their places'

fresh
passes headers 'as made'
put model/bad.h '#ifndef M' '#define M' 'size_t md_size(void);' '#endif'
finds headers 'model/bad.h: does not compile alone'
put model/bad.h 'typedef struct {' '    int x;' '} md_bad;'
finds headers 'model/bad.h: does not compile alone'
if command -v "${CXX:-c++}" >/dev/null 2>&1; then
    put kernels/bad.h '#ifndef K' '#define K' 'int kn_new(int class);' '#endif'
    finds headers 'kernels/bad.h: does not compile as C++'
fi

fresh
passes functions 'as made'
body 81 >"$tree/base/bad.c"
finds functions 'base/bad.c:2: rt_long: expected at most 80 lines, found 81'
body 80 >"$tree/base/ok.c"
passes functions 'a function of 80 lines'
body 90 >"$tree/base/ok.c"
put tests/lint/functions_allowed.txt '# comment' 'base/ok.c rt_long a table of cases'
passes functions 'an allowed function'
put tests/lint/functions_allowed.txt 'base/a.c rt_a reason'
finds functions 'base/a.c rt_a is not over 80 lines'
body 90 >"$tree/base/ok.c"
put tests/lint/functions_allowed.txt 'base/ok.c rt_long'
finds functions 'expected FILE FUNCTION REASON'

if command -v "${CLANG_FORMAT:-clang-format}" >/dev/null 2>&1; then
    passes format 'as made'
    put base/bad.c 'int   rt_x( void );'
    finds format 'base/bad.c'
fi
CLANG_FORMAT=no-such-clang-format "$here/format.sh" "$tree" >/dev/null 2>&1
[ $? -eq 77 ] || { echo 'format.sh without clang-format: expected to be skipped'; failures=1; }
exit $failures
