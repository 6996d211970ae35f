#!/bin/sh
# ranks.sh CODE TEXT COMMAND... - runs an mpirun bounded in time. Its exit code must be CODE, its output
# must have a line that matches TEXT (if not empty), and no process of it may be left; they are found by
# a mark in their environment.
expected=$1
text=$2
shift 2
mark=moesaic-ranks-$$
output=$(mktemp)
trap 'rm -f "$output"' EXIT

MOESAIC_TEST_MARK=$mark timeout -k 5 60 "$@" >"$output" 2>&1
code=$?
cat "$output"

# Prints the processes that carry the mark.
marked() {
    for environ in /proc/[0-9]*/environ; do
        if tr '\0' '\n' 2>/dev/null <"$environ" | grep -qx "MOESAIC_TEST_MARK=$mark"; then
            pid=${environ#/proc/}
            echo "${pid%/environ}"
        fi
    done
}

# A killed rank may take a moment to be gone.
tries=0
while left=$(marked) && [ -n "$left" ] && [ $tries -lt 50 ]; do
    tries=$((tries + 1))
    sleep 0.1
done
if [ -n "$left" ]; then
    echo "processes left behind:" $left
    kill -9 $left
    exit 1
fi
if [ "$code" != "$expected" ]; then
    echo "mpirun: expected exit code $expected, found $code"
    exit 1
fi
if [ -n "$text" ] && ! grep -qE "$text" "$output"; then
    echo "output: expected a line matching: $text"
    exit 1
fi
