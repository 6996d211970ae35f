#!/usr/bin/env bash
# Builds with gcc and clang and runs the tests; prints ctest's closing lines. Idempotent.
#   1. gcc, Release: every test        2. clang, Release: unit, golden, oracle
#   3. gcc, ASan + UBSan: unit, golden 4. gcc without MPI: it builds, and refuses to run as one of N
# Long soaks, big seeds and fuzzing are targets of their own (docs/operations.md).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export PACKAGES="deploy/packages-build.txt deploy/packages-test.txt"
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

failed=0
run() { # run TITLE BUILD_DIR ctest-args...
    local title=$1 build=$2
    shift 2
    echo "== $title"
    ctest --test-dir "$build" --output-on-failure -j 2 "$@" || failed=1
}

BUILD=build deploy/build.sh
BUILD=build-clang CC=clang deploy/build.sh
BUILD=build-asan deploy/build.sh -DMOESAIC_SANITIZE=ON -DCMAKE_BUILD_TYPE=Debug
BUILD=build-nompi deploy/build.sh -DMOESAIC_MPI=OFF

run "clang, Release" build-clang -L 'unit|golden|oracle'
# LeakSanitizer needs ptrace, which some containers deny; then everything but leaks is checked.
run "gcc, ASan and UBSan" build-asan -L 'unit|golden'
run "gcc, without MPI" build-nompi -L 'nompi'
run "gcc, Release: all" build

exit $failed
