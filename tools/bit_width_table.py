#!/usr/bin/env python3
"""bit_width_table.py MOESAIC FIXTURES [WORKDIR] - what the weight formats cost, as a markdown table.

Converts tiny-fp8, wide-bf16 and the demo model at several formats of experts and of all else (grid
fine), verifies each against a float32 reference of its checkpoint (KV f32, activations as the format
computes: int8 for q8 and q4) and prints how many positions have the reference's most likely token. The
demo has no reference of its own with logits; one is made (make_reference.py).

tiny and wide are random weights with sharp choices of experts and positions: any noise flips some, and
a flip changes everything after it. They compare formats; the trained demo says more about a model.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

FORMATS = (("f32", "f32"), ("q8", "q8"), ("q4", "q8"), ("q4", "q4"), ("q8", "q4"))
FIXTURES = ("tiny-fp8", "wide-bf16")
HERE = os.path.dirname(os.path.abspath(__file__))
DEMO = os.path.join(HERE, "..", "demo")


def run(command):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"exit {done.returncode}: {' '.join(command)}\n{done.stderr}")


def numpy_python():
    for python in (sys.executable, shutil.which("python3", path="/usr/bin:/bin")):
        if python and subprocess.run([python, "-c", "import numpy"], capture_output=True).returncode == 0:
            return python
    sys.exit("numpy is missing: install python3-numpy")


def convert(moesaic, source, target, experts, dense):
    with open(os.path.join(source, "reference.json"), encoding="utf-8") as file:
        eps = json.load(file)["mla_latent_norm_eps"]
    run([moesaic, "convert", source, target, "--experts", experts, "--dense", dense, "--grid", "fine",
         "--latent-eps", f"{eps:g}"])


def demo_reference(moesaic, work):
    """A float32 reference of the demo: of its f32 container, which holds exactly its weights."""
    container, out = os.path.join(work, "demo-exact"), os.path.join(work, "demo-reference")
    convert(moesaic, DEMO, container, "f32", "f32")
    python = numpy_python()
    run([python, "-B", os.path.join(HERE, "dequantise.py"), container, DEMO, out])
    run([python, "-B", os.path.join(HERE, "make_reference.py"), out])
    return out


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
        models = [(name, os.path.join(fixtures, name), os.path.join(fixtures, name))
                  for name in FIXTURES]
        models.append(("demo", DEMO, demo_reference(moesaic, work)))
        print("| experts / dense | " + " | ".join(
            f"{name}: positions equal | max logit diff" for name, _, _ in models) + " |")
        print("|---|" + "---|---|" * len(models))
        for experts, dense in FORMATS:
            cells = []
            for name, source, reference in models:
                container = os.path.join(work, f"{name}-{experts}-{dense}")
                convert(moesaic, source, container, experts, dense)
                result = verify(moesaic, container, reference)
                shutil.rmtree(container)
                equal, total = result["positions_equal"], result["positions_total"]
                cells += [f"{equal}/{total} ({100 * equal / total:.1f} %)",
                          f"{result['max_logit_diff']:.2g}"]
            print(f"| {experts} / {dense} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
