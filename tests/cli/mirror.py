#!/usr/bin/env python3
"""A second copy of the model on another disk, as its user meets it: mirror.py MOESAIC FIXTURES WORKDIR."""
import glob
import os
import shutil
import subprocess
import sys

moesaic, fixtures, work = sys.argv[1:4]
model, copy, other = (os.path.join(work, name) for name in ("model", "copy", "other"))
ids = "1,2,3,4,5,6,7,8,9,10,11,12"


def call(*args):
    return subprocess.run([moesaic, *map(str, args)], input="", capture_output=True, text=True, timeout=60)


def want(condition, what, done):
    if not condition:
        raise AssertionError(f"{what}\n  exit {done.returncode}\n  stdout {done.stdout!r}\n  stderr {done.stderr!r}")


def run(*more):
    return call("run", model, "--ids", ids, "-n", 9, "--temp", 0, "--print-ids", "--ignore-eos", "--heat", "none", *more)


def damage(directory):
    """Flips a bit in every record of every pack of experts: whichever is read first is bad."""
    for pack in glob.glob(os.path.join(directory, "experts-*.bin")):
        with open(pack, "r+b") as file:
            head = file.read(64)
            count = int.from_bytes(head[16:24], "little")
            for i in range(count):
                file.seek(64 + 40 * i + 16)
                offset = int.from_bytes(file.read(8), "little")
                file.seek(offset + 1000)
                byte = file.read(1)[0]
                file.seek(offset + 1000)
                file.write(bytes([byte ^ 1]))


def fresh_copies():
    for directory in (model, copy):
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(os.path.join(work, "sound"), directory)


def check_a_mirror_changes_no_token(expected):
    fresh_copies()
    done = run("--mirror", copy)
    want(done.returncode == 0 and done.stdout == expected, "sound copies", done)


def check_a_bad_copy_is_an_error_that_names_it():
    fresh_copies()
    damage(model)
    done = run()
    want(done.returncode == 1 and done.stdout == "", "no token of a bad record", done)
    want("hash" in done.stderr and "experts-" in done.stderr and "expected" in done.stderr, "what is bad", done)
    lines = done.stderr.strip().splitlines()
    errors = [line for line in lines if line.startswith("moesaic run:")]
    want(len(errors) == 1 and lines[-1] == errors[0], "one error, last", done)


def check_the_mirror_serves_what_is_bad(expected):
    """Both ways round: the model bad, then the mirror, and with the model's packs gone."""
    fresh_copies()
    damage(model)
    done = run("--mirror", copy)
    want(done.returncode == 0 and done.stdout == expected, "the model is bad", done)
    want(done.stderr.count("hash") >= 1, "the user is warned", done)
    fresh_copies()
    damage(copy)
    done = run("--mirror", copy)
    want(done.returncode == 0 and done.stdout == expected, "the mirror is bad", done)
    fresh_copies()
    for pack in glob.glob(os.path.join(model, "experts-*.bin")):
        os.remove(pack)
    done = run("--mirror", copy)
    want(done.returncode == 0 and done.stdout == expected, "the packs are on the mirror alone", done)


def check_both_bad_is_one_error():
    fresh_copies()
    damage(model)
    damage(copy)
    done = run("--mirror", copy)
    want(done.returncode == 1 and done.stdout == "" and "hash" in done.stderr, "both are bad", done)


def check_another_model_is_refused_with_both_ids():
    fresh_copies()
    done = run("--mirror", other)
    want(done.returncode == 1 and done.stdout == "", "another model", done)
    named = [word for word in done.stderr.replace(",", " ").split() if len(word) >= 12 and
             all(c in "0123456789abcdef" for c in word)]
    want(len(set(named)) >= 2, "both ids", done)
    done = run("--mirror", os.path.join(work, "nowhere"))
    want(done.returncode == 1 and "nowhere" in done.stderr, "no such copy", done)


def main():
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(work)
    for name, source, formats in (("sound", "tiny-fp8", "q8"), ("other", "tiny-fp8", "q4")):
        done = call("convert", os.path.join(fixtures, source), os.path.join(work, name), "--experts", formats, "--dense", "q8")
        want(done.returncode == 0, "convert", done)
    fresh_copies()
    done = run()
    want(done.returncode == 0 and len(done.stdout.split()) >= 1, "a run without mirror", done)
    check_a_mirror_changes_no_token(done.stdout)
    check_a_bad_copy_is_an_error_that_names_it()
    check_the_mirror_serves_what_is_bad(done.stdout)
    check_both_bad_is_one_error()
    check_another_model_is_refused_with_both_ids()
    shutil.rmtree(work, ignore_errors=True)


main()
