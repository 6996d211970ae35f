#!/usr/bin/env python3
"""bit_width_table.py MOESAIC FIXTURES [WORKDIR] - what the weight formats cost, as a markdown table.

Converts tiny-fp8 and wide-bf16 at several formats of experts and of all else (grid fine), verifies each
against its checkpoint's float32 reference (KV f32, activations as the format computes: int8 for q8 and
q4) and prints how many positions have the reference's most likely token. The models are tiny with
random weights: near ties are common there, so the figures compare formats and say little about a
trained model.
"""
import json
import os
import subprocess
import sys
import tempfile

FORMATS = (("f32", "f32"), ("q8", "q8"), ("q4", "q8"), ("q4", "q4"), ("q8", "q4"))
FIXTURES = ("tiny-fp8", "wide-bf16")


def convert(moesaic, source, target, experts, dense, eps):
    subprocess.run([moesaic, "convert", source, target, "--experts", experts, "--dense", dense,
                    "--grid", "fine", "--latent-eps", f"{eps:g}"], check=True,
                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def verify(moesaic, container, source):
    """Exit 1 is expected: a quantised model is not its source."""
    done = subprocess.run([moesaic, "verify", container, "--reference", source, "--kv", "f32",
                           "--json"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode not in (0, 1) or not done.stdout:
        sys.exit(f"verify {container}: exit {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout)


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    moesaic, fixtures = sys.argv[1:3]
    with tempfile.TemporaryDirectory(dir=sys.argv[3] if len(sys.argv) == 4 else None) as work:
        print("| experts / dense | " + " | ".join(
            f"{name}: positions equal | max logit diff" for name in FIXTURES) + " |")
        print("|---|" + "---|---|" * len(FIXTURES))
        for experts, dense in FORMATS:
            cells = []
            for name in FIXTURES:
                source = os.path.join(fixtures, name)
                with open(os.path.join(source, "reference.json"), encoding="utf-8") as file:
                    eps = json.load(file)["mla_latent_norm_eps"]
                container = os.path.join(work, f"{name}-{experts}-{dense}")
                convert(moesaic, source, container, experts, dense, eps)
                result = verify(moesaic, container, source)
                equal, total = result["positions_equal"], result["positions_total"]
                cells += [f"{equal}/{total} ({100 * equal / total:.1f} %)",
                          f"{result['max_logit_diff']:.2g}"]
            print(f"| {experts} / {dense} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
