#!/usr/bin/env bash
# Installs the Debian packages that are missing, configures and builds build/moesaic in Release.
# Usage: deploy/build.sh            with gcc into build/
#        CC=clang BUILD=build-clang deploy/build.sh [cmake options]
#        PACKAGES="deploy/packages-build.txt deploy/packages-test.txt" deploy/build.sh
# Idempotent: run it again at any time.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build=${BUILD:-build}
jobs=${JOBS:-$(env -u OMP_NUM_THREADS nproc)} # nproc counts OMP_NUM_THREADS too
say() { echo "build.sh: $*" >&2; }

missing=()
if command -v dpkg-query >/dev/null; then
    while read -r package; do
        case $package in '' | '#'*) continue ;; esac
        dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
    done < <(cat ${PACKAGES:-deploy/packages-build.txt})
    if [ ${#missing[@]} -gt 0 ]; then
        if [ "$(id -u)" -eq 0 ]; then
            sudo=
        elif command -v sudo >/dev/null; then
            sudo=sudo
        else
            say "missing packages and no right to install them; run as root:"
            say "  apt-get install ${missing[*]}"
            exit 1
        fi
        say "installing ${missing[*]}"
        export DEBIAN_FRONTEND=noninteractive
        log=$(mktemp)
        if ! { $sudo apt-get update -q && $sudo apt-get install -y -q --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
            tail -20 "$log" >&2
            rm -f "$log"
            say "apt-get failed (its last lines are above)"
            exit 1
        fi
        rm -f "$log"
    fi
else
    say "not a Debian system; needed are the packages of ${PACKAGES:-deploy/packages-build.txt}"
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
generator=()
[ -f "$build/CMakeCache.txt" ] || generator=(-G Ninja -DCMAKE_BUILD_TYPE=Release)
if ! cmake -S . -B "$build" "${generator[@]}" "$@" >"$log" 2>&1; then
    cat "$log" >&2
    say "configuring $build failed"
    exit 1
fi
say "building $build with $jobs jobs (a minute or two the first time)"
if [ -t 2 ]; then
    cmake --build "$build" -j "$jobs" >&2
else
    cmake --build "$build" -j "$jobs" -- --quiet >&2
fi
say "$build/moesaic is ready"
