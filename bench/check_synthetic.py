#!/usr/bin/env python3
"""Runs a synthetic model and holds its routing against the heat it was made from.

check_synthetic.py MOESAIC MODEL USAGE WORKDIR [TOKENS [POINTS]]

The prompt is TOKENS random ids (default 1024). Per MoE layer it prints the share of choices that fall on
the hottest 25, 50 and 75 % of the experts, run and real, and the correlation of the experts' frequencies.
Exits 1 when a coverage is more than POINTS (default 4) off, or a correlation below 0.9. A run sees few
tokens, so the run's own hottest would flatter it: coverage counts the experts that are hottest in USAGE.
"""
import json
import math
import os
import random
import subprocess
import sys


def read_usage(path):
    heat = {}
    for line in open(path, encoding="utf-8"):
        fields = line.split()
        if not fields or fields[0].startswith(("#", "-")):
            continue
        layer, expert, count = map(int, fields)
        heat.setdefault(layer, {})[expert] = count
    return heat


def shares_of(counts, experts, topk):
    """As bench/synthetic_router.c has them: every k-th expert of the real layer, capped at 0.9."""
    known = len(counts)
    share = [counts[e * known // experts if experts < known else e % known] + 0.25 for e in range(experts)]
    capped, left = set(), float(topk)
    while True:
        free = [e for e in range(experts) if e not in capped]
        factor = left / sum(share[e] for e in free)
        over = {e for e in free if share[e] * factor > 0.9}
        if not over:
            return [0.9 if e in capped else share[e] * factor for e in range(experts)]
        capped |= over
        left -= 0.9 * len(over)


def correlation(a, b):
    ma, mb = sum(a) / len(a), sum(b) / len(b)
    cov = sum((x - ma) * (y - mb) for x, y in zip(a, b))
    return cov / math.sqrt(sum((x - ma) ** 2 for x in a) * sum((y - mb) ** 2 for y in b))


def main():
    if not 5 <= len(sys.argv) <= 7:
        sys.exit(__doc__.strip())
    moesaic, model, usage, work = sys.argv[1:5]
    tokens = int(sys.argv[5]) if len(sys.argv) > 5 else 1024
    points = float(sys.argv[6]) if len(sys.argv) > 6 else 4
    config = json.load(open(os.path.join(model, "config.json"), encoding="utf-8"))
    experts, topk = config["n_routed_experts"], config["num_experts_per_tok"]
    first = config["moesaic_synthetic"]["first_layer"]
    os.makedirs(work, exist_ok=True)
    heat_file = os.path.join(work, "heat.bin")
    if os.path.exists(heat_file):
        os.remove(heat_file)
    rng = random.Random(7)
    ids = ",".join(str(rng.randrange(config["vocab_size"])) for _ in range(tokens))
    subprocess.run([moesaic, "run", model, "--ids", ids, "-n", "1", "--temp", "0", "--ctx-size",
                    str(tokens + 8), "--heat", heat_file], check=True, stdout=subprocess.DEVNULL)
    out = json.loads(subprocess.run([moesaic, "heat", model, "--heat", heat_file, "--json", "--top", "100000"],
                                    check=True, capture_output=True, text=True).stdout)
    counts = {l["layer"]: [0.0] * experts for l in out["layers"]}
    for entry in out["top"]:
        counts[entry["layer"]][entry["expert"]] = entry["selections"]

    real, bad = read_usage(usage), False
    print("layer,real_layer,run_25,real_25,run_50,real_50,run_75,real_75,correlation")
    for place, layer in enumerate(sorted(counts)):
        if layer >= config["num_hidden_layers"]:
            continue  # MTP: not run
        source = 3 + (first - 3 + place) % 75
        share = shares_of(real[source], experts, topk)
        order = sorted(range(experts), key=lambda e: -share[e])
        total, row = sum(counts[layer]), [str(layer), str(source)]
        for part in (0.25, 0.5, 0.75):
            hottest = order[:int(experts * part)]
            run = 100 * sum(counts[layer][e] for e in hottest) / total
            wanted = 100 * sum(share[e] for e in hottest) / topk
            bad |= abs(run - wanted) > points
            row += [f"{run:.1f}", f"{wanted:.1f}"]
        same = correlation(counts[layer], share)
        bad |= same < 0.9
        print(",".join(row + [f"{same:.3f}"]))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
