#!/usr/bin/env python3
"""The heat kept beside a model, as its user meets it: heat.py MOESAIC FIXTURES WORKDIR."""
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys

moesaic, fixtures, work = sys.argv[1:4]
model = os.path.join(work, "model")
heat_file = os.path.join(model, "heat.bin")
ids = "1,2,3,4,5,6,7,8,9,10,11,12"
MOE_LAYERS, EXPERTS, TOPK, DENSE = 5, 16, 4, 2  # of tiny-fp8


def call(*args, **kw):
    return subprocess.run([moesaic, *map(str, args)], input="", capture_output=True, text=True, timeout=60, **kw)


def run(*more, tokens=9, **kw):
    return call("run", model, "--ids", ids, "-n", tokens, "--temp", 0, "--print-ids", "--ignore-eos", *more, **kw)


def want(condition, what, done=None):
    if not condition:
        detail = f"\n  exit {done.returncode}\n  stdout {done.stdout!r}\n  stderr {done.stderr!r}" if done else ""
        raise AssertionError(what + detail)


def forget():
    for name in (heat_file, heat_file + ".lock"):
        if os.path.isdir(name):
            os.rmdir(name)
        elif os.path.lexists(name):
            os.remove(name)


def figures(*more):
    done = call("heat", model, "--json", "--top", 10000, *more)
    want(done.returncode == 0, "heat --json", done)
    return json.loads(done.stdout)


def usage(text, name="usage.txt"):
    path = os.path.join(work, name)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def check_a_run_is_counted():
    done = run()
    want(done.returncode == 0 and "heat" not in done.stderr, "quiet", done)
    heat = figures()
    rows = 12 + 8  # the last token needs no pass
    want(heat["found"] and heat["tokens"] == rows, f"tokens {heat['tokens']}")
    want(heat["selections"] == rows * TOPK * MOE_LAYERS, f"selections {heat['selections']}")
    by_layer = {layer["layer"]: layer for layer in heat["layers"]}
    for layer in range(DENSE, DENSE + MOE_LAYERS):
        want(by_layer[layer]["selections"] == rows * TOPK, f"layer {layer}")
        cover = by_layer[layer]["coverage"]
        want(0.25 < cover["25"] <= cover["50"] <= cover["75"] <= 1, f"coverage {cover}")
        top = [e for e in heat["top"] if e["layer"] == layer]
        want(sum(e["selections"] for e in top) == rows * TOPK and all(e["selections"] <= rows for e in top),
             "a token chooses an expert once")
    want(heat["top"] == sorted(heat["top"], key=lambda e: (-e["selections"], e["layer"], e["expert"])), "order")
    want(0 < heat["confidence"] < 1, "confidence")


def check_the_next_run_adds_to_it_and_ages_it():
    run()
    first = figures()
    run()
    second = figures()
    aged = first["selections"] * 0.5 ** (first["tokens"] / first["half_life_tokens"])
    want(second["tokens"] == 2 * first["tokens"], "tokens")
    want(abs(second["selections"] - aged - first["selections"]) < 1e-6 and second["selections"] != 2 * first["selections"],
         f"{second['selections']}")
    want(second["confidence"] > first["confidence"], "confidence grows")


def check_runs_that_end_together_lose_nothing():
    many = [subprocess.Popen([moesaic, "run", model, "--ids", ids, "-n", "2", "--temp", "0", "--ignore-eos",
                              "--ctx-size", "64", "--threads", "1"], stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL) for _ in range(8)]
    want(all(child.wait(timeout=60) == 0 for child in many), "all ran")
    want(figures()["tokens"] == 8 * 13, f"{figures()['tokens']}")


def check_an_interrupted_run_is_counted_too():
    child = subprocess.Popen([moesaic, "run", model, "--ids", ids, "-n", "100000", "--ignore-eos", "--print-ids",
                              "--ctx-size", "20000"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                             stdin=subprocess.DEVNULL)
    child.stdout.read(16)
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=30)
    want(child.returncode == 1 and figures()["tokens"] >= 12, f"{child.returncode}")


def check_none_keeps_nothing_and_a_file_keeps_it_there():
    want(run("--heat", "none").returncode == 0 and not os.path.exists(heat_file), "none")
    elsewhere = os.path.join(work, "elsewhere.bin")
    want(run("--heat", elsewhere).returncode == 0 and not os.path.exists(heat_file), "elsewhere")
    want(figures("--heat", elsewhere)["tokens"] == 20, "read from there")
    os.remove(elsewhere)
    os.remove(elsewhere + ".lock")


def check_a_heat_that_cannot_be_kept_warns_once_and_fails_nothing():
    plain = run("--heat", "none")
    done = run("--heat", os.path.join(work, "no such folder", "heat.bin"))
    want(done.returncode == 0 and done.stdout == plain.stdout, "the answer is whole", done)
    want(done.stderr.count("heat not kept") == 1 and "no such folder" in done.stderr, "one warning", done)
    os.mkdir(heat_file + ".lock")
    done = run()
    want(done.returncode == 0 and done.stderr.count("heat not kept") == 1, "no lock, one warning", done)


def check_a_damaged_file_is_named_kept_and_reset():
    run()
    good = open(heat_file, "rb").read()
    for bad in (good[:-8], b"", good[:200] + b"\xff" + good[201:], b"other bytes " * 40):
        with open(heat_file, "wb") as file:
            file.write(bad)
        done = call("heat", model)
        want(done.returncode == 1 and done.stdout == "" and "heat.bin" in done.stderr and "reset" in done.stderr,
             "named, with the advice", done)
        done = run()
        want(done.returncode == 0 and done.stderr.count("heat not kept") == 1, "run only warns", done)
        want(open(heat_file, "rb").read() == bad, "kept")
    done = call("heat", "reset", model)
    want(done.returncode == 0 and not os.path.exists(heat_file), "reset", done)
    want(call("heat", "reset", model).returncode == 0, "twice is no failure")


def check_another_models_heat_is_refused():
    other = os.path.join(work, "other")
    if not os.path.isdir(other):
        want(call("convert", os.path.join(fixtures, "tiny-fp8"), other, "--experts", "q8").returncode == 0, "convert")
    call("run", other, "--ids", ids, "-n", 2, "--temp", 0, "--ctx-size", 64)
    shutil.copy(os.path.join(other, "heat.bin"), heat_file)
    done = call("heat", model)
    want(done.returncode == 1 and "model" in done.stderr and "found that of" in done.stderr, "both ids", done)


def check_without_a_heat_it_is_said_and_json_is_zero():
    done = call("heat", model)
    want(done.returncode == 0 and done.stdout == "" and "no " in done.stderr and "heat.bin" in done.stderr, "said", done)
    heat = figures()
    want(not heat["found"] and heat["tokens"] == 0 and heat["top"] == [] and heat["coverage"]["50"] == 0, "zero")


def check_the_text_names_the_hottest_and_every_layer():
    run()
    done = call("heat", model, "--top", 3)
    want(done.returncode == 0 and "20 tokens" in done.stdout and "hottest 25 %" in done.stdout, "head", done)
    lines = done.stdout.splitlines()
    first, second = (i for i, line in enumerate(lines) if line.split()[:1] == ["layer"])
    want(len([line for line in lines[first + 1:second] if line.strip()]) == 3, "three experts", done)
    want(len(lines) - second - 1 == MOE_LAYERS + 1, "a line for each MoE layer, MTP too", done)


def check_a_usage_text_is_imported():
    run()
    before = figures()
    done = call("heat", "import", model, usage("-1 7 16\n-2 1 cafe\n2 3 1000\n6 15 40\n"))
    want(done.returncode == 0 and "1040" in done.stderr, "said", done)
    after = figures()
    top = after["top"][0]
    had = sum(e["selections"] for e in before["top"] if (e["layer"], e["expert"]) == (2, 3))
    want(top["layer"] == 2 and top["expert"] == 3 and top["selections"] == 1000 + had, f"{top}")
    want(after["selections"] == before["selections"] + 1040, "added, nothing aged")
    want(after["tokens"] == before["tokens"] + 1000 / TOPK, f"{after['tokens']}")


def check_more_than_a_heat_can_hold_is_scaled_down():
    done = call("heat", "import", model, usage("2 3 3000000000\n2 4 1000000000\n"))
    want(done.returncode == 0 and "counted at" in done.stderr, "said", done)
    heat = figures()
    limit = heat["half_life_tokens"] / 0.6931471805599453 * TOPK
    want(abs(heat["selections"] / limit - 1) < 1e-6, f"{heat['selections']} of {limit}")
    want(abs(heat["top"][0]["selections"] / heat["selections"] - 0.75) < 1e-6, "proportions stay")


def check_a_bad_usage_text_is_refused_by_line_and_changes_nothing():
    run()
    before = open(heat_file, "rb").read()
    for text, expected in (("2 3 5\n2 4\n", "line 2"), ("2 3 5\nx y z\n", "line 2"), ("-1 78 256\n2 3 5\n", "78 of 256"),
                           ("2 16 1\n", "expert below 16"), ("0 1 1\n", "no experts"), ("99 1 1\n", "layer below 8"),
                           ("2 3 5\n2 3 5\n", "listed before"), ("", "found none")):
        done = call("heat", "import", model, usage(text, "bad.txt"))
        want(done.returncode == 1 and expected in done.stderr and "bad.txt" in done.stderr, f"{text!r}", done)
        want(open(heat_file, "rb").read() == before, "unchanged")
    done = call("heat", "import", model, os.path.join(work, "missing.txt"))
    want(done.returncode == 1 and "missing.txt" in done.stderr, "missing", done)


def check_texts_of_other_systems_are_read_and_rubbish_is_not_printed():
    for text in ("2 3 5\r\n2 4 6\r\n", "\ufeff2 3 5\n2 4 6", "\t2\t3  5 \n# end\n\n2 4 6\n"):
        forget()
        done = call("heat", "import", model, usage(text))
        want(done.returncode == 0 and figures()["selections"] == 11, f"{text!r}", done)
    path = os.path.join(work, "rubbish.txt")
    with open(path, "wb") as file:
        file.write(bytes(range(1, 256)) * 40)
    done = subprocess.run([moesaic, "heat", "import", model, path], capture_output=True, timeout=60)
    want(done.returncode == 1 and b"line 1" in done.stderr, f"{done}")
    want(all(c == 10 or 32 <= c < 127 for c in done.stderr), f"only what a terminal shows: {done.stderr}")
    for text in ("2 3 -5\n", "2 3 99999999999999999999\n", "2 3 1.5\n"):
        done = call("heat", "import", model, usage(text, "bad.txt"))
        want(done.returncode == 1 and "whole numbers up to 2^53" in done.stderr, f"{text!r}", done)


def check_actions_give_json_too():
    done = call("heat", "import", model, usage("2 3 5\n"), "--json")
    out = json.loads(done.stdout)
    want(done.returncode == 0 and out["imported"] == heat_file and out["selections"] == 5, "import", done)
    want(json.loads(call("heat", "reset", model, "--json").stdout) == {"reset": heat_file, "existed": True}, "reset")
    want(json.loads(call("heat", "reset", model, "--json").stdout)["existed"] is False, "again")
    done = call("heat", "import", model, usage("2 3\n"), "--json")
    want(done.returncode == 1 and json.loads(done.stdout)["error"] in done.stderr, "a failure", done)


def check_reset_removes_nothing_but_heat():
    note = usage("keep me", "note.txt")
    done = call("heat", "reset", model, "--heat", note)
    want(done.returncode == 1 and "not removed" in done.stderr and os.path.exists(note), "kept", done)
    done = call("heat", model, "--heat", note)
    want(done.returncode == 1 and "reset" not in done.stderr, "nor is it advised", done)
    other = os.path.join(work, "other.heat")
    want(call("heat", "import", model, usage("2 3 5\n"), "--heat", other).returncode == 0, "import elsewhere")
    os.truncate(other, 40)
    want(call("heat", "reset", model, "--heat", other).returncode == 0 and not os.path.exists(other), "a damaged one")


def open_inodes(pid):
    """Of a process that opens and closes files meanwhile: what is gone is not open."""
    found = set()
    for fd in descriptors(pid):
        try:
            found.add(os.stat(f"/proc/{pid}/fd/{fd}").st_ino)
        except FileNotFoundError:
            pass
    return found


def check_an_import_waits_for_the_lock():
    path = usage("2 3 10\n")
    with open(heat_file + ".lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        child = subprocess.Popen([moesaic, "heat", "import", model, path], stderr=subprocess.DEVNULL)
        inode = os.fstat(lock.fileno()).st_ino
        while child.poll() is None and inode not in open_inodes(child.pid):
            pass
        want(child.poll() is None and not os.path.exists(heat_file), "it waits")
    want(child.wait(timeout=30) == 0 and figures()["selections"] == 10, "then imports")


def descriptors(pid):
    """Those that can be looked at now: the list changes while it is read."""
    found = []
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                os.stat(f"/proc/{pid}/fd/{fd}")
                found.append(fd)
            except OSError:
                pass
    except OSError:
        pass
    return found


def check_wrong_arguments_are_usage_errors():
    for arguments in (("import", model), ("reset",), ("reset", model, "x"), (model, "x"), (), ("import",)):
        done = call("heat", *arguments)
        want(done.returncode == 2 and "MODEL" in done.stderr and done.stdout == "", f"{arguments}", done)
    done = call("heat", model, "--heat", "none")
    want(done.returncode == 1 and "expected a file" in done.stderr, "none is no file", done)
    done = call("heat", os.path.join(work, "nowhere"))
    want(done.returncode == 1 and "nowhere" in done.stderr, "no model", done)


def main():
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(work)
    done = call("convert", os.path.join(fixtures, "tiny-fp8"), model)
    want(done.returncode == 0, "convert", done)
    failures = 0
    for name, check in sorted(globals().items()):
        if not name.startswith("check_"):
            continue
        forget()
        try:
            check()
            print("ok  ", name[6:].replace("_", " "))
        except (AssertionError, subprocess.TimeoutExpired) as error:
            failures += 1
            print("FAIL", name[6:].replace("_", " "), "\n ", error)
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
