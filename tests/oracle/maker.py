#!/usr/bin/env python3
"""tools/make_reference.py against transformers: maker.py FIXTURES WORKDIR.

The references for quantised weights are made by our own numpy forward pass. Run on checkpoints that
transformers ran too, it has to give the same references; else the q8 and q4 tests would prove nothing.
"""
import json
import os
import shutil
import sys

from oracle import TOLERANCE, TOOLS, Failure, must, numpy_python
from reference_dir import ReferenceDir

fixtures, work = sys.argv[1:3]


def compare(name):
    source = os.path.join(fixtures, name)
    copy = os.path.join(work, name)
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(source, copy)
    for file in os.scandir(copy):
        os.chmod(file.path, 0o644)
    info = ReferenceDir(source).info
    asked = {"mla_latent_norm_eps": info["mla_latent_norm_eps"], "dbg_prompt": info["dbg_prompt"],
             "prompts": [{"prompt": p["prompt"], "text": "", "ids": p["ids"],
                          "greedy_count": len(p["greedy"])} for p in info["prompts"]]}
    with open(os.path.join(copy, "prompts.json"), "w", encoding="utf-8") as file:
        json.dump(asked, file)
    must([numpy_python(), os.path.join(TOOLS, "make_reference.py"), copy])
    expected, made = ReferenceDir(source), ReferenceDir(copy)
    if made.header == expected.header and made.data == expected.data:
        raise Failure(f"{name}: the reference is still transformers' own")
    compared = 0
    for tensor in expected.names(r"p\d+\.(ids|logits|layer\d+\.(router_idx|topk))"):
        if tensor not in made.header:
            raise Failure(f"{name}: made no {tensor}")
        if made.shape(tensor) != expected.shape(tensor):
            raise Failure(f"{name}: {tensor} is {made.shape(tensor)}, expected "
                          f"{expected.shape(tensor)}")
        worst = max(abs(a - b) for a, b in zip(made.get(tensor), expected.get(tensor)))
        if not worst <= (TOLERANCE if tensor.endswith("logits") else 0):
            raise Failure(f"{name}: {tensor} differs by {worst:.3g}")
        compared += 1
    for a, b in zip(made.info["prompts"], expected.info["prompts"]):
        if a["greedy"] != b["greedy"]:
            raise Failure(f"{name}: greedy {a['greedy']}, expected {b['greedy']}")
    print(f"ok   {name}: {compared} tensors")


def main():
    os.makedirs(work, exist_ok=True)
    for name in ("nano-bf16", "nano-bf16-eps1e5", "tiny-fp8"):
        compare(name)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failure as failure:
        print("FAIL", failure)
        sys.exit(1)
