#!/usr/bin/env bash
# Builds Moesaic, converts the small trained model in demo/, runs it in one process and over four ranks
# of mpirun, and compares the token ids. Idempotent; the container is kept in build/demo-model.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

deploy/build.sh
moesaic=build/moesaic
model=build/demo-model
prompt=${1:-What is a violin?}
tokens=${DEMO_TOKENS:-48}

echo
echo "1. Convert the checkpoint in demo/ (FP8, three shards) into a container with 4-bit experts."
$moesaic convert demo "$model"
$moesaic inspect "$model"

echo
echo "2. One process: $prompt"
$moesaic run "$model" --prompt "$prompt" --no-think --temp 0 -n "$tokens"

echo
echo "3. Four ranks: an attention node and three expert nodes, the same prompt."
# One thread a rank, so that a small machine is not overrun.
mpi=(timeout -k 10 120 mpirun --oversubscribe --bind-to none -n 4)
"${mpi[@]}" $moesaic run "$model" --prompt "$prompt" --no-think --temp 0 -n "$tokens" --threads 1

echo
echo "4. The token ids of both, and of four ranks that hold slices instead of whole experts:"
one=$($moesaic run "$model" --prompt "$prompt" --no-think --temp 0 -n "$tokens" --print-ids 2>/dev/null)
four=$("${mpi[@]}" $moesaic run "$model" --prompt "$prompt" --no-think --temp 0 -n "$tokens" --threads 1 --print-ids 2>/dev/null)
sliced=$("${mpi[@]}" $moesaic run "$model" --prompt "$prompt" --no-think --temp 0 -n "$tokens" --threads 1 --slices --print-ids 2>/dev/null)
echo "  one process:    $one"
echo "  four ranks:     $four"
echo "  four, sliced:   $sliced"
if [ -n "$one" ] && [ "$one" = "$four" ] && [ "$one" = "$sliced" ]; then
    echo "demo: the same tokens, wherever the experts are."
else
    echo "demo: the token ids differ" >&2
    exit 1
fi
