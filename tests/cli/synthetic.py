#!/usr/bin/env python3
"""bench/make_synthetic as its user meets it: synthetic.py MAKE MOESAIC SOURCE WORKDIR."""
import fcntl
import json
import os
import shutil
import subprocess
import sys

make, moesaic, source, work = sys.argv[1:5]
model = os.path.join(work, "model")
usage = os.path.join(source, "data", "glm52_heat.usage")


def call(*args):
    return subprocess.run([*map(str, args)], input="", capture_output=True, text=True, timeout=120)


def synthetic(directory, *more):
    return call(make, "--small", "--quiet", directory, *more)


def want(condition, what, done=None):
    if not condition:
        detail = f"\n  exit {done.returncode}\n  stdout {done.stdout!r}\n  stderr {done.stderr!r}" if done else ""
        raise AssertionError(what + detail)


def model_id(directory):
    done = call(moesaic, "inspect", directory, "--json")
    want(done.returncode == 0, "inspect", done)
    return json.loads(done.stdout)["model_id"]


def check_every_record_has_its_bytes():
    done = call(moesaic, "inspect", "--deep", model)
    want(done.returncode == 0 and "held       all packs" in done.stdout, "inspect --deep", done)
    want(not os.path.exists(model + ".part"), "nothing is left beside it")


def check_the_model_runs_and_samples_many_tokens():
    done = call(moesaic, "run", model, "--ids", "1,2,3", "-n", 64, "--seed", 1, "--temp", 1, "--print-ids",
                "--ignore-eos", "--ctx-size", 128, "--heat", "none")
    want(done.returncode == 0 and len(set(done.stdout.split())) > 32, "many different tokens", done)


def check_it_takes_text():
    done = call(moesaic, "run", model, "-p", "hello", "-n", 4, "--temp", 0, "--ctx-size", 128, "--heat", "none")
    want(done.returncode == 0, "chat template and tokenizer", done)


def check_its_routing_follows_the_real_heat():
    done = call(sys.executable, os.path.join(source, "bench", "check_synthetic.py"), moesaic, model, usage,
                os.path.join(work, "check"), 2048, 5)
    want(done.returncode == 0 and len(done.stdout.splitlines()) == 4, "coverage of three layers", done)


def check_what_cannot_become_a_model_is_refused_before_anything_is_written():
    other = os.path.join(work, "other")
    for more, word in ((["--seed", 1 << 63], "--seed"), (["--usage", "/nonexistent"], "/nonexistent"),
                       (["--dry-run", "--usage", "/nonexistent"], "/nonexistent")):
        done = synthetic(other, *more)
        want(done.returncode == 1 and word in done.stderr, word, done)
    done = synthetic("")
    want(done.returncode == 1 and "name of a directory" in done.stderr, "no name", done)
    want(not os.path.exists(other) and not os.path.exists(other + ".part"), "nothing is left")


def check_two_runs_do_not_write_one_model():
    other = os.path.join(work, "locked")
    os.makedirs(other + ".part")
    open(os.path.join(other + ".part", "experts-199.bin"), "w").close()  # of a larger model
    fd = os.open(other + ".part", os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    done = synthetic(other, "--layers", 1)
    want(done.returncode == 1 and "another run" in done.stderr, "said", done)
    os.close(fd)
    done = synthetic(other, "--layers", 1)
    want(done.returncode == 0 and not os.path.exists(os.path.join(other, "experts-199.bin")), "anew", done)


def check_the_same_model_is_not_made_twice():
    before = os.stat(os.path.join(model, "dense.bin")).st_mtime_ns
    done = synthetic(model + "/")
    want(done.returncode == 0 and "already" in done.stderr, "said", done)
    want(os.stat(os.path.join(model, "dense.bin")).st_mtime_ns == before, "untouched")


def check_the_id_follows_from_the_options():
    for name, more in (("again", ("--threads", 1)), ("seed", ("--seed", 2)), ("layer", ("--first-layer", 40)),
                       ("q8", ("--experts", "q8"))):
        done = synthetic(os.path.join(work, name), *more)
        want(done.returncode == 0, name, done)
    ids = [model_id(os.path.join(work, name)) for name in ("again", "seed", "layer", "q8")]
    want(ids[0] == model_id(model), "the same, with another number of threads")
    want(len(set(ids)) == 4, "others are others")


def check_another_model_is_not_overwritten():
    done = synthetic(model, "--seed", 2)
    want(done.returncode == 1 and "another model" in done.stderr, "refused", done)
    plain = os.path.join(work, "plain")
    os.makedirs(plain)
    done = synthetic(plain)
    want(done.returncode == 1 and "no container" in done.stderr, "a folder of something else", done)


def check_an_interrupted_one_is_begun_anew():
    target = os.path.join(work, "broken")
    os.makedirs(target + ".part")
    with open(os.path.join(target + ".part", "experts-001.bin"), "wb") as file:
        file.write(b"half of another size")
    done = synthetic(target)
    want(done.returncode == 0 and model_id(target) == model_id(model), "whole", done)


def check_a_full_disk_is_told_before_anything_is_written():
    target = os.path.join(work, "huge")
    done = call(make, target, "--layers", 200, "--experts-per-layer", 4096, "--experts", "f32")
    want(done.returncode == 1 and "free" in done.stderr and not os.path.exists(target + ".part"), "numbers", done)
    done = call(make, "--dry-run", target)
    want(done.returncode == 0 and "17." in done.stderr and not os.path.exists(target), "dry run", done)


def check_options_that_do_not_fit_are_named():
    for more, expected in ((("--hidden", 100), "multiple of 64"), (("--experts-per-layer", 20), "multiple of 16"),
                           (("--topk", 32, "--experts-per-layer", 32), "--topk"), (("--tokenizer", "no.json"), "no.json"),
                           (("--usage", os.path.join(source, "CMakeLists.txt")), "line 1")):
        done = synthetic(os.path.join(work, "bad"), *more)
        want(done.returncode == 1 and expected in done.stderr, f"{more}", done)
    want(call(make).returncode == 2, "no folder")


def check_other_shapes_run_too():
    for name, more in (("mtp", ("--mtp", "--dense", "bf16")), ("wide", ("--hidden", 192, "--experts-per-layer", 272,
                       "--topk", 3, "--expert-inter", 320)), ("floats", ("--experts", "f32", "--dense", "f32")),
                       ("deep", ("--layers", 12, "--dense-layers", 0))):
        directory = os.path.join(work, name)
        want(synthetic(directory, *more).returncode == 0, name)
        done = call(moesaic, "run", directory, "--ids", "5,6,7", "-n", 8, "--temp", 0, "--print-ids", "--ignore-eos",
                    "--ctx-size", 64, "--heat", "none")
        want(done.returncode == 0 and len(done.stdout.split()) == 8, name, done)


def main():
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(work)
    done = synthetic(model)
    want(done.returncode == 0, "make", done)
    failures = 0
    for name, check in sorted(globals().items()):
        if not name.startswith("check_"):
            continue
        try:
            check()
            print("ok  ", name[6:].replace("_", " "))
        except (AssertionError, subprocess.TimeoutExpired, OSError) as error:
            failures += 1
            print("FAIL", name[6:].replace("_", " "), "\n ", error)
    shutil.rmtree(work, ignore_errors=True)
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
