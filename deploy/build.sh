#!/usr/bin/env bash
# Installs the Debian packages that are missing, configures and builds build/moesaic in Release.
# Usage: deploy/build.sh            everything with gcc into build/
#        CC=clang BUILD=build-clang deploy/build.sh [cmake options]
# Idempotent: run it again at any time.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build=${BUILD:-build}
jobs=${JOBS:-$(nproc)}

missing=()
if command -v dpkg-query >/dev/null; then
    while read -r package; do
        case $package in '' | '#'*) continue ;; esac
        dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
    done < deploy/packages.txt
    if [ ${#missing[@]} -gt 0 ]; then
        if [ "$(id -u)" -eq 0 ]; then
            sudo=
        elif command -v sudo >/dev/null; then
            sudo=sudo
        else
            echo "build.sh: missing packages and no right to install them; run as root:" >&2
            echo "  apt-get install ${missing[*]}" >&2
            exit 1
        fi
        echo "build.sh: installing ${missing[*]}" >&2
        export DEBIAN_FRONTEND=noninteractive
        $sudo apt-get update -q >/dev/null
        $sudo apt-get install -y -q --no-install-recommends "${missing[@]}" >/dev/null
    fi
else
    echo "build.sh: not a Debian system; needed are the packages of deploy/packages.txt" >&2
fi

if [ ! -f "$build/CMakeCache.txt" ]; then
    cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release "$@" >"$build.configure.log" 2>&1 || {
        cat "$build.configure.log" >&2
        exit 1
    }
    rm -f "$build.configure.log"
elif [ $# -gt 0 ]; then
    cmake -S . -B "$build" "$@" >/dev/null
fi
cmake --build "$build" -j "$jobs" -- --quiet 
echo "build.sh: $build/moesaic is ready" >&2
