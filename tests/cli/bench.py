#!/usr/bin/env python3
"""`moesaic bench` as its user meets it: bench.py MOESAIC. Each check_* is one claim; no figure is judged."""
import json
import subprocess
import sys

moesaic = sys.argv[1]


def call(*args):
    return subprocess.run([moesaic, *args], input="", capture_output=True, text=True, timeout=240)


def want(condition, what, done):
    if not condition:
        raise AssertionError(f"{what}\n  exit {done.returncode}\n  stdout {done.stdout!r}\n"
                             f"  stderr {done.stderr!r}")


def variants():
    return json.loads(call("version", "--json").stdout)["kernels"]


def check_the_self_check_covers_every_kernel_under_every_variant_of_the_processor():
    done = call("bench", "--selfcheck", "--json")
    want(done.returncode == 0, "exit 0", done)
    out = json.loads(done.stdout)
    want(out["ok"] is True and all(row["ok"] and row["found"] == row["expected"] for row in out["rows"]),
         "every row is right", done)
    kernels = {row["kernel"] for row in out["rows"]}
    found = {(row["kernel"], row["variant"]) for row in out["rows"]}
    want(found == {(kernel, variant) for kernel in kernels for variant in variants()}, "complete", done)
    want(len(found) == len(out["rows"]), "no row twice", done)


def check_the_self_check_prints_a_row_for_each_kernel_with_its_variants():
    done = call("bench", "--selfcheck")
    want(done.returncode == 0 and done.stderr == "", "exit 0", done)
    rows = done.stdout.splitlines()[:-1]
    want(len(rows) > 20 and all(row.startswith("[ok]") for row in rows), "rows", done)
    want(all(row.split()[-len(variants()):] == variants() for row in rows), "variants", done)
    want("numerics id" in done.stdout.splitlines()[-1], "closing line", done)


def check_figures_are_there_for_one_and_for_all_threads():
    done = call("bench", "--json", "--threads", "2", "--kernels", variants()[-1])
    want(done.returncode == 0 and done.stderr == "", "exit 0", done)
    out = json.loads(done.stdout)
    want(out["kernels"] == variants()[-1] and out["threads"] == 2, "what was asked", done)
    for pair in (out["read_gb_s"], out["q8_gb_s"], *out["expert_ms"]):
        want(all(value > 0 for value in pair), "positive", done)
    want([len(row) for row in out["expert_ms"]] == [len(out["expert_tokens"])] * 2, "one time a batch", done)
    want(all(out[name] > 0 for name in ("peak_gflop_s", "attention_ms", "index_ms", "topk_ms")), "positive", done)


def check_a_variant_that_does_not_exist_is_a_usage_error_with_the_choices():
    done = call("bench", "--kernels", "sse")
    want(done.returncode == 2 and "avxvnni" in done.stderr and "sse" in done.stderr, "named", done)


def check_an_argument_is_a_usage_error():
    done = call("bench", "model")
    want(done.returncode == 2 and done.stdout == "", "exit 2", done)


def main():
    failures = 0
    for name, check in sorted(globals().items()):
        if not name.startswith("check_"):
            continue
        try:
            check()
            print("ok  ", name[6:].replace("_", " "))
        except (AssertionError, subprocess.TimeoutExpired) as error:
            failures += 1
            print("FAIL", name[6:].replace("_", " "), "\n ", error)
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
