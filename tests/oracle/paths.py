#!/usr/bin/env python3
"""Other ways through the same model agree with the oracle too: paths.py MOESAIC FIXTURES WORKDIR.

Prefill in odd chunks, row by row, other kernels, threads and memory give the very same result, to
the last bit of the largest difference; the result itself is held against the oracle.
"""
import json
import os
import sys

from oracle import Failure, convert, must, problems, verify
from reference_dir import ReferenceDir

moesaic, fixtures, work = sys.argv[1:4]
WAYS = (["--chunk", "3"], ["--chunk", "1"], ["--kernels", "ref"], ["--threads", "1", "--chunk", "64"])


def main():
    os.makedirs(work, exist_ok=True)
    bad = 0
    kernels = json.loads(must([moesaic, "version", "--json"]).stdout)["kernels"]
    for name in ("nano-bf16", "tiny-fp8"):
        source = os.path.join(fixtures, name)
        container = os.path.join(work, name)
        convert(moesaic, source, container, "f32")
        _, base, _ = verify(moesaic, container, source)
        for way in [*WAYS, *(["--kernels", k, "--chunk", "7"] for k in kernels)]:
            code, result, _ = verify(moesaic, container, source, *way)
            found = problems(code, result, ReferenceDir(source), False)
            if result != base:
                found.append(f"differs from the default way: expected {base}, found {result}")
            print(("ok  " if not found else "FAIL"), name, *way, *found, sep=" ", flush=True)
            bad += len(found) > 0
    return 1 if bad else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failure as failure:
        print(failure)
        sys.exit(1)
