#!/bin/sh
# functions.sh [ROOT] - fails on functions over 80 lines, but for those of functions_allowed.txt.
# Reads the shape that clang-format gives: a body opens and closes by a brace alone in column 1.
# clang-tidy knows the same rule and takes minutes for it.
set -u
root=${1:-$(dirname "$0")/../..}
cd "$root" || exit 1
list=tests/lint/functions_allowed.txt
[ -f "$list" ] || list=/dev/null

find . \( -name .git -o -name 'build*' -o -path ./tests/fixtures \) -type d -prune -o \
    -type f \( -name '*.c' -o -name '*.h' -o -name '*.cu' \) -print | sed 's#^\./##' | sort |
    xargs -r awk -v limit=80 -v list="$list" '
    BEGIN {
        while ((getline line < list) > 0) {
            if (line ~ /^#/ || line ~ /^[ \t]*$/) continue
            n = split(line, word, " ")
            if (n < 3) {
                print list ": expected FILE FUNCTION REASON, found \"" line "\""
                bad = 1
            }
            allowed[word[1] " " word[2]] = 1
        }
    }
    FNR == 1 { inside = 0 }
    # The last line in column 1 with a parenthesis names the function.
    /^[A-Za-z_].*\(/ && !inside {
        name = $0
        sub(/\(.*/, "", name)
        sub(/.*[ *]/, "", name)
    }
    /^\{$/ { inside = 1; first = FNR }
    /^\}$/ && inside {
        inside = 0
        lines = FNR - first + 1
        key = FILENAME " " name
        if (lines <= limit) next
        if (key in allowed) { used[key] = 1; next }
        print FILENAME ":" first ": " name ": expected at most " limit " lines, found " lines
        bad = 1
    }
    END {
        for (key in allowed) {
            if (key in used) continue
            print list ": " key " is not over " limit " lines: take it off"
            bad = 1
        }
        exit bad
    }'
