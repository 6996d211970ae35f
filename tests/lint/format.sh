#!/bin/sh
# format.sh [ROOT] - fails when clang-format would change a source; 77 when it is not installed.
set -u
root=${1:-$(dirname "$0")/../..}
cd "$root" || exit 1
tool=${CLANG_FORMAT:-clang-format}
command -v "$tool" >/dev/null 2>&1 || {
    echo "clang-format is not installed: skipped"
    exit 77
}
wrong=$(find . \( -name .git -o -name 'build*' -o -path ./tests/fixtures \) -type d -prune -o \
    -type f \( -name '*.c' -o -name '*.h' -o -name '*.cu' \) -print0 |
    xargs -0 -r "$tool" --style=file --dry-run 2>&1 |
    sed -nE 's#^(\./)?([^:]+):([0-9]+):[0-9]+: (warning|error): .*#\2:\3#p' | sort -t: -k1,1 -k2,2n -u)
[ -z "$wrong" ] && exit 0
echo "clang-format -i would change:"
echo "$wrong" | awk -F: '{ lines[$1] = lines[$1] " " $2 } END { for (f in lines) print "  " f " (lines" lines[f] ")" }' |
    sort | cut -c1-160
exit 1
