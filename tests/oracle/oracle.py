#!/usr/bin/env python3
"""Containers of the test checkpoints against reference runs of another engine.

  oracle.py MOESAIC FIXTURES WORKDIR FORMAT FIXTURE
  oracle.py MOESAIC FIXTURES WORKDIR table [FIXTURE...]

FORMAT f32 compares with the checkpoint's own reference (transformers, float32). q8 and q4 dequantise
the container (tools/dequantise.py) and compare with a numpy run of that (tools/make_reference.py), so
that what quantising costs is not part of the difference. `table` prints docs/numerics.md's table.

Passes when the largest logit difference is within 1e-4, all greedy tokens, router sets and index sets
are equal, and as many of each were compared as the reference holds.
"""
import json
import os
import shutil
import subprocess
import sys

from reference_dir import ReferenceDir

HERE = os.path.dirname(os.path.abspath(__file__))
TOOLS = os.path.join(HERE, "..", "..", "tools")
TOLERANCE = 1e-4
EXEMPT_SHARE_MAX = 0.05  # of the positions: more, and the comparison would say little
FIXTURES = ("nano-bf16", "nano-f32", "nano-fp8", "nano-bf16-eps1e5", "nano-mtp", "tiny-fp8",
            "wide-bf16")


class Failure(Exception):
    pass


def call(command, timeout=600):
    # Tests run side by side: numpy's threads would only spin against each other.
    env = dict(os.environ, OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
    return subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=timeout)


def must(command):
    done = call(command)
    if done.returncode != 0:
        raise Failure(f"exit {done.returncode}: {' '.join(command)}\n{done.stdout[-1000:]}"
                      f"{done.stderr[-2000:]}")
    return done


def latent_eps(source):
    """What the reference was computed with; a checkpoint does not tell."""
    return ReferenceDir(source).info["mla_latent_norm_eps"]


def convert(moesaic, source, target, fmt, eps=None, dense=None):
    shutil.rmtree(target, ignore_errors=True)
    must([moesaic, "convert", source, target, "--experts", fmt, "--dense", dense or fmt, "--grid",
          "fine", "--latent-eps", f"{eps if eps is not None else latent_eps(source):g}"])


def verify(moesaic, container, reference, *options):
    """(exit code, result, stderr). A run that prints no result is a failure."""
    done = call([moesaic, "verify", container, "--reference", reference, "--kv", "f32", "--json",
                 *options])
    try:
        return done.returncode, json.loads(done.stdout), done.stderr
    except ValueError:
        raise Failure(f"verify {container}: exit {done.returncode}, no result\n{done.stdout[-500:]}"
                      f"{done.stderr[-2000:]}") from None


def numpy_python():
    """An interpreter that has numpy: this one, or the system's (deploy/packages-test.txt)."""
    for python in (sys.executable, "/usr/bin/python3"):
        if os.path.exists(python) and call([python, "-c", "import numpy"]).returncode == 0:
            return python
    raise Failure("numpy is missing: install python3-numpy (deploy/packages-test.txt)")


def dequantised_reference(container, source, target):
    """A checkpoint of the very weights that the container holds, with its own reference."""
    shutil.rmtree(target, ignore_errors=True)
    python = numpy_python()
    must([python, os.path.join(TOOLS, "dequantise.py"), container, source, target])
    must([python, os.path.join(TOOLS, "make_reference.py"), target])
    return target


def problems(code, result, reference, quantised):
    """What is wrong with a verify result, in words; an empty list when it passes."""
    found = []
    for name, total in reference.expected_totals().items():
        count = result[name]
        if count["equal"] != count["total"]:
            found.append(f"{name}: {count['equal']} of {count['total']} equal")
        if count["total"] + count["exempt"] != total:
            found.append(f"{name}: compared {count['total']} + {count['exempt']} exempt, the "
                         f"reference has {total}")
        if count["total"] == 0:
            found.append(f"{name}: nothing was compared")
    if not result["max_logit_diff"] <= TOLERANCE:
        found.append(f"max_logit_diff {result['max_logit_diff']:.3g}, expected at most {TOLERANCE}")
    if result["max_logit_diff"] == 0:
        found.append("max_logit_diff is 0: another engine never agrees to the last bit")
    exempt = result["positions"]["exempt"]
    if exempt > (EXEMPT_SHARE_MAX * reference.expected_totals()["positions"] if quantised else 0):
        found.append(f"{exempt} positions are exempt")
    if (code != 0) or not result["pass"]:
        found.append(f"exit {code}, pass {result['pass']}, deviation "
                     f"'{result['first_deviation']}'")
    return found


def run_case(moesaic, fixtures, work, fmt, name):
    source = os.path.join(fixtures, name)
    container = os.path.join(work, f"{name}-{fmt}")
    convert(moesaic, source, container, fmt)
    options, reference = [], source
    if fmt != "f32":
        options = ["--float-activations"]
        reference = dequantised_reference(container, source, container + "-dequantised")
        if len(ReferenceDir(reference).info["prompts"]) != len(ReferenceDir(source).info["prompts"]):
            raise Failure("the made reference has other prompts than the checkpoint's own")
    code, result, errors = verify(moesaic, container, reference, *options)
    found = problems(code, result, ReferenceDir(reference), fmt != "f32")
    if "latent eps differs" in errors:
        found.append(errors.strip())
    return result, found


def row(fmt, name, result):
    def cell(count):
        return f"{count['equal']}/{count['total']}"

    return (f"| {name} | {fmt} | {result['max_logit_diff']:.2g} | {cell(result['greedy'])} | "
            f"{cell(result['positions'])} | {cell(result['router_sets'])} | "
            f"{cell(result['index_sets'])} | {result['exempt_rows']} |")


def main():
    if len(sys.argv) < 5 or sys.argv[4] not in ("f32", "q8", "q4", "table"):
        print(__doc__, file=sys.stderr)
        return 2
    moesaic, fixtures, work, what = sys.argv[1:5]
    names = sys.argv[5:] or list(FIXTURES)
    os.makedirs(work, exist_ok=True)
    print("| checkpoint | weights | max logit diff | greedy | positions | router sets | index sets "
          "| exempt rows |\n|---|---|---|---|---|---|---|---|")
    bad = 0
    for fmt in ("f32", "q8", "q4") if what == "table" else (what,):
        for name in names:
            try:
                result, found = run_case(moesaic, fixtures, work, fmt, name)
                print(row(fmt, name, result), flush=True)
            except Failure as failure:
                found = [str(failure)]
            for line in found:
                print(f"FAIL {name} {fmt}: {line}", flush=True)
            bad += len(found) > 0
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
