#!/bin/sh
# headers.sh [ROOT] - fails when a header does not compile alone, or one of base/ and kernels/ (which
# .cu files include) leaves the common subset of C and C++. CC and CXX choose the compilers; without
# a C++ compiler that half is left out.
set -u
root=${1:-$(dirname "$0")/../..}
cd "$root" || exit 1
cc=${CC:-cc}
cxx=${CXX:-c++}
bad=0

command -v "$cxx" >/dev/null 2>&1 || {
    echo "no C++ compiler ($cxx): base/ and kernels/ are checked as C alone"
    cxx=
}
for header in $(find . \( -name .git -o -name 'build*' -o -path ./tests/fixtures \) -type d -prune -o \
    -type f -name '*.h' -print | sed 's#^\./##' | sort); do
    # Included twice: a missing guard shows as a redefinition.
    printf '#include "%s"\n#include "%s"\n' "$header" "$header" |
        $cc -std=c17 -D_GNU_SOURCE -I. -Wall -Wextra -Werror -fsyntax-only -x c - ||
        { echo "$header: does not compile alone"; bad=1; }
    case $header in
    base/* | kernels/*)
        [ -n "$cxx" ] || continue
        printf 'extern "C" {\n#include "%s"\n}\n' "$header" |
            $cxx -std=c++17 -D_GNU_SOURCE -I. -fsyntax-only -x c++ - ||
            { echo "$header: does not compile as C++"; bad=1; }
        ;;
    esac
done
exit $bad
