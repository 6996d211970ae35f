#!/bin/sh
# layers.sh [ROOT] - fails when a folder includes a folder it may not know about.
# The table is the architecture: docs/ARCHITECTURE.md explains it.
set -u
root=${1:-$(dirname "$0")/../..}
cd "$root" || exit 1

folders='base kernels model transport placement expert_node attention_node coordinator app tests bench tools examples'

# What the files of a folder may include, by folder.
allowed() {
    case $1 in
    base) echo base ;;
    kernels) echo base kernels ;;
    model) echo base kernels model ;;
    transport) echo base transport ;;
    placement) echo base placement ;;
    expert_node) echo base kernels model transport placement expert_node ;;
    attention_node) echo base kernels model transport placement attention_node ;;
    coordinator) echo base model transport placement coordinator ;;
    app) echo base kernels model transport placement expert_node attention_node coordinator app ;;
    examples) echo base kernels model examples ;;
    tests | bench | tools) echo "$folders" ;;
    esac
}

# Exceptions to the table, both ways: FILE INCLUDED.
is_forbidden_anyway() {
    case "$1 $2" in
    'expert_node/'*' model/text/'*) return 0 ;; # an expert node never sees text
    esac
    return 1
}
is_allowed_anyway() {
    case "$1 $2" in
    'coordinator/server/'*' attention_node/engine.h') return 0 ;;
    esac
    return 1
}

bad=0
fail() {
    echo "$1"
    bad=1
}

files=$(find . \( -name .git -o -name 'build*' -o -path ./tests/fixtures \) -type d -prune -o \
    -type f \( -name '*.c' -o -name '*.h' -o -name '*.cu' \) -print | sed 's#^\./##' | sort)
for file in $files; do
    folder=${file%%/*}
    may=" $(allowed "$folder") "
    if [ "$may" = '  ' ]; then
        fail "$file: a source outside the folders of the architecture"
        continue
    fi
    includes=$(sed -nE 's/^[[:space:]]*#[[:space:]]*include[[:space:]]*["<]([^">]+)[">].*/\1/p' "$file")
    quoted=$(sed -nE 's/^[[:space:]]*#[[:space:]]*include[[:space:]]*"([^"]+)".*/\1/p' "$file")
    for included in $includes; do
        target=${included%%/*}
        case " $folders " in *" $target "*) ;; *) continue ;; esac
        is_forbidden_anyway "$file" "$included" && fail "$file: may not include $included"
        is_allowed_anyway "$file" "$included" && continue
        case $may in
        *" $target "*) ;;
        *) fail "$file: $folder/ may not include $included" ;;
        esac
    done
    for included in $quoted; do
        case $included in
        *.pb-c.h) ;; # generated into the build tree
        ../* | ./*) fail "$file: \"$included\" is not relative to the root" ;;
        */*) ;;
        *) fail "$file: \"$included\" is not relative to the root" ;;
        esac
    done
done
exit $bad
