#!/bin/sh
# size.sh [ROOT] - fails on what a line-by-line look can find: files too long, a source included by
# another, getenv or exit in the wrong place, unfinished work, paths of one machine.
set -u
root=${1:-$(dirname "$0")/../..}
cd "$root" || exit 1

lines_max=1000
bad=0

# sources FOLDERS-TO-LEAVE-OUT...
sources() {
    find . \( -name .git -o -name 'build*' -o -path ./tests/fixtures \) -type d -prune -o \
        -type f \( -name '*.c' -o -name '*.h' -o -name '*.cu' \) -print | sed 's#^\./##' | sort |
        while read -r file; do
            for left_out in "$@"; do
                case $file in "$left_out"*) continue 2 ;; esac
            done
            echo "$file"
        done
}

# search WHAT PATTERN FILES...: every hit is a failure.
search() {
    what=$1 pattern=$2
    shift 2
    [ $# -gt 0 ] || return 0
    hits=$(grep -nHE "$pattern" "$@")
    [ -n "$hits" ] || return 0
    echo "$what:"
    echo "$hits" | sed 's/^/  /'
    bad=1
}

for file in $(sources); do
    lines=$(wc -l <"$file")
    if [ "$lines" -gt $lines_max ]; then
        echo "$file: expected at most $lines_max lines, found $lines"
        bad=1
    fi
done

# Tests and benches stand outside the program and may end themselves.
search 'a source includes a source' '^[[:space:]]*#[[:space:]]*include[[:space:]]*["<][^">]+\.c[">]' \
    $(sources)
search 'getenv outside base/options.c' '\b(secure_)?getenv\(' \
    $(sources tests/ bench/ base/options.c)
search 'exit, abort or perror outside app/main.c and base/check.c' \
    '(^|[^_[:alnum:]"])(exit|quick_exit|abort|perror)\(' \
    $(sources tests/ bench/ app/main.c base/check.c)
search 'unfinished work' '\b([Tt][Oo][Dd][Oo]|FIXME|XXX|[Ss]tub(s|bed)?|[Pp]laceholder|[Nn]ot implemented)\b' \
    $(sources)

texts=$(find . \( -name .git -o -name 'build*' -o -path ./tests/fixtures \) -type d -prune -o \
    -type f -size -1024k -print | sed 's#^\./##' | sort)
# shellcheck disable=SC2086
hits=$(grep -nHIE '(^|[^A-Za-z0-9_.$}-])/(work|root|farm|home)/' $texts)
if [ -n "$hits" ]; then
    echo 'a path of one machine:'
    echo "$hits" | sed 's/^/  /'
    bad=1
fi
exit $bad
