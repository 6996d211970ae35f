#!/usr/bin/env python3
"""Runs one model in many ways and demands the same token ids from all of them.

  identity.py MOESAIC FIXTURES FORMAT WORKDIR

The factors (ranks, placement, chunk, kernels, threads, share of rank 0, memory, fixture) are combined
to a pairwise cover: every pair of two factors' values occurs in some run. Each run generates greedily
and by sampling, from a prompt longer than index_topk, and prints ids. The baseline is one process
with the reference kernels. Exit 0: all equal; 1: a difference or a failed run, named.
"""
import itertools
import json
import os
import shutil
import subprocess
import sys

TOKENS = 24
FACTORS = {
    "ranks": [1, 2, 3, 4, 5, 7, 8],
    "sliced": [False, True],
    "chunk": [1, 7, 64],
    "kernels": [],  # what this machine runs
    "threads": [1, 2],
    "here": [0.0, 0.3],
    "memory": ["all", "disk"],  # experts in RAM, or most of them read from disk for every layer
    "model": ["wide-bf16", "tiny-fp8"],
}


def pairwise(factors):
    """Greedy cover: deterministic, each row takes the values that cover most of the open pairs."""
    names = list(factors)
    open_pairs = {
        ((a, x), (b, y))
        for a, b in itertools.combinations(names, 2)
        for x in factors[a]
        for y in factors[b]
    }
    rows = []
    while open_pairs:
        row = dict(sorted(open_pairs, key=str)[0])
        for name in names:
            if name in row:
                continue

            def gain(value):
                pairs = (
                    tuple(sorted([(name, value), item], key=lambda p: names.index(p[0])))
                    for item in row.items()
                )
                return sum(p in open_pairs for p in pairs)

            row[name] = max(factors[name], key=gain)
        covered = {
            tuple(p) for p in itertools.combinations([(n, row[n]) for n in names], 2)
        }
        open_pairs -= covered
        rows.append(row)
    return rows


def call(command, timeout=120):
    env = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
               OMPI_MCA_btl_vader_single_copy_mechanism="none")
    return subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=timeout + 30)


MPIRUN = ["timeout", "-k", "5", "110", "mpirun", "--oversubscribe", "--bind-to", "none"]


def least_memory(moesaic, container):
    """Bytes with which a process alone, a head and a node just start, so that experts come from disk."""
    base = [moesaic, "run", container, "--ids", "1,2,3", "-n", "2", "--ignore-eos", "--temp", "0", "--json",
            "--ctx-size", "512", "--chunk", "64", "--threads", "2"]

    def least(command):
        low, high = 1 << 16, 1 << 28  # low fails, high works
        while high - low > max(low // 16, 1 << 14):
            middle = (low + high) // 2
            if call(command(middle)).returncode == 0:
                high = middle
            else:
                low = middle
        return high

    def share_from_disk(command):
        return 1 - json.loads(call(command).stdout)["timings"]["ram_hit_share"]

    def on_ranks(head, node):
        shell = f'[ "$OMPI_COMM_WORLD_RANK" = 0 ] || set -- "$@" --ram {node}; exec "$@"'
        return [*MPIRUN, "-n", "2", "sh", "-c", shell, "sh", *base, "--experts-here", "0.3", "--ram", str(head)]

    alone = least(lambda size: [*base, "--ram", str(size)])
    head = least(lambda size: on_ranks(size, 1 << 28))
    node = least(lambda size: on_ranks(1 << 28, size))
    shares = (share_from_disk([*base, "--ram", str(alone)]), share_from_disk(on_ranks(head, node)))
    print(f"least memory: alone {alone}, head {head}, node {node} bytes; from disk then "
          f"{shares[0]:.0%} and {shares[1]:.0%} of the experts", flush=True)
    assert min(shares) > 0.2, "too little is read from disk to say anything"
    return alone, head, node


def main():
    moesaic, fixtures, fmt, work = sys.argv[1:5]
    dense = "f32" if fmt == "f32" else "q8"
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(work)
    containers, prompts = {}, {}
    for model in FACTORS["model"]:
        source = os.path.join(fixtures, model)
        containers[model] = os.path.join(work, model)
        done = call([moesaic, "convert", source, containers[model], "--experts", fmt, "--dense", dense])
        if done.returncode != 0:
            print(f"convert {model}: exit {done.returncode}\n{done.stderr}")
            return 1
        reference = json.load(open(os.path.join(source, "reference.json")))
        prompts[model] = max((p["ids"] for p in reference["prompts"]), key=len)

    tight = {model: least_memory(moesaic, containers[model]) for model in FACTORS["model"]}
    version = json.loads(call([moesaic, "version", "--json"]).stdout)
    FACTORS["kernels"] = version["kernels"]
    sampling = (["--temp", "0"], ["--temp", "1", "--top-p", "0.95", "--seed", "11"])

    def run(row):
        """The ids of the greedy and of the sampled run, or None with a message."""
        out = []
        for sample in sampling:
            command = [moesaic, "run", containers[row["model"]], "--ids",
                       ",".join(map(str, prompts[row["model"]])), "-n", str(TOKENS), "--ignore-eos",
                       "--print-ids", "--ctx-size", "512", "--kernels", row["kernels"], "--chunk",
                       str(row["chunk"]), "--threads", str(row["threads"]), *sample]
            if row["memory"] == "disk":
                alone, head, node = tight[row["model"]]
                command += ["--ram", str(alone if row["ranks"] == 1 else head)]
            if row["ranks"] > 1:
                if row["sliced"]:
                    command.append("--slices")
                if row["here"] > 0:
                    command += ["--experts-here", str(row["here"])]
                if row["memory"] == "disk":  # the other ranks load no dense weights and get less
                    command = ["sh", "-c", f'[ "$OMPI_COMM_WORLD_RANK" = 0 ] || set -- "$@" --ram {node};'
                               ' exec "$@"', "sh", *command]
                command = [*MPIRUN, "-n", str(row["ranks"]), *command]
            done = call(command)
            if done.returncode != 0:
                return None, f"exit {done.returncode}: {' '.join(command)}\n{done.stderr[-2000:]}"
            out.append([int(i) for i in done.stdout.split()])
        return out, ""

    baseline = {}
    for model in FACTORS["model"]:
        row = dict(ranks=1, sliced=False, chunk=64, kernels="ref", threads=1, here=0.0, memory="all",
                   model=model)
        baseline[model], message = run(row)
        if baseline[model] is None or len(baseline[model][0]) != TOKENS:
            print(f"baseline {model}: {message or baseline[model]}")
            return 1
        if len(set(baseline[model][0])) < 3:
            print(f"baseline {model} repeats itself, so equality would say little: {baseline[model][0]}")
            return 1

    bad = 0
    rows = pairwise(FACTORS)
    for row in rows:
        ids, message = run(row)
        equal = ids == baseline[row["model"]]
        bad += not equal
        print(("equal  " if equal else "DIFFERS"), row, flush=True)
        if message:
            print(message)
        elif not equal:
            print("  expected", baseline[row["model"]], "\n  found   ", ids)
    print(f"{len(rows) - bad} of {len(rows)} runs equal ({fmt}, dense {dense}, {len(sampling)} samplings "
          f"each, kernels {','.join(FACTORS['kernels'])})")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
