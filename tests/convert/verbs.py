#!/usr/bin/env python3
"""verbs.py MOESAIC FIXTURES WORK - convert and inspect as a user meets them: exit codes, what goes to
stdout and what to stderr, JSON, damage, partial copies, interruption."""
import json
import os
import re
import shutil
import signal
import subprocess
import sys

moesaic, fixtures, work = sys.argv[1:]
failures = []


def run(*args, code=0, env=None):
    done = subprocess.run([moesaic, *args], capture_output=True, text=True, timeout=100,
                          env=dict(os.environ, **(env or {})))
    if done.returncode != code:
        failures.append(f"{' '.join(args)}: expected exit {code}, found {done.returncode}: "
                        f"{done.stderr.strip()}")
    return done


def check(what, condition, shown=""):
    if not condition:
        failures.append(f"{what} {shown}")


def place(name):
    path = os.path.join(work, name)
    shutil.rmtree(path, ignore_errors=True)
    return path


nano, wide = os.path.join(fixtures, "nano-bf16"), os.path.join(fixtures, "wide-bf16")
shutil.rmtree(work, ignore_errors=True)
os.makedirs(work)

# A dry run makes nothing.
target = place("dry")
done = run("convert", nano, target, "--dry-run", "--json")
check("dry run: json", json.loads(done.stdout)["dry_run"] is True)
check("dry run: target", not os.path.exists(target))

# It prints what it checked, as a result.
done = run("convert", wide, target, "--dry-run", "--consume")
for words in ("5 shards, 1486 tensors", "580 to convert", "in reserve", "fits", "at once",
              "deletes 5 shards", "nothing was written"):
    check("dry run: says", words in done.stdout, words + ": " + done.stdout)
found = json.loads(run("convert", wide, target, "--dry-run", "--consume", "--json").stdout)
check("dry run: plan", found["shards"] == 5 and found["tensors"] == 1486 and
      found["consume"]["shards"] == 5 and found["consume"]["bytes"] == found["source_bytes"] and
      found["needed_bytes"] > found["reserve_bytes"] > 0 and
      0 < found["buffer_bytes"] <= found["memory_bytes"], found)
check("dry run: no consume", "consume" not in
      json.loads(run("convert", wide, target, "--dry-run", "--json").stdout))

# What the run would refuse, the dry run refuses: a missing parent, a folder of something else, a
# folder that is not ours to write.
for extra in ((), ("--dry-run",)):
    done = run("convert", nano, os.path.join(work, "no", "target"), *extra, code=1)
    check("parent: named", "no does not exist: create it first" in done.stderr, done.stderr)
    foreign = place("foreign")
    shutil.copytree(wide, foreign)
    before = open(os.path.join(foreign, "config.json")).read()
    done = run("convert", nano, foreign, *extra, code=1)
    check("foreign: named", "config.json" in done.stderr and "choose another TARGET" in done.stderr,
          done.stderr)
    check("foreign: kept", open(os.path.join(foreign, "config.json")).read() == before and
          sorted(os.listdir(foreign)) == sorted(os.listdir(wide)))
    locked = place("locked")
    os.mkdir(locked, 0o555)
    if os.geteuid() != 0:
        done = run("convert", nano, os.path.join(locked, "t"), *extra, code=1)
        check("locked: named", "nothing can be written" in done.stderr, done.stderr)
check("help: memory", "2G unless given (MOESAIC_MEMORY)" in
      " ".join(run("convert", "--help").stdout.split()))

# Results on stderr, JSON on stdout, the same id each time.
target = place("nano")
done = run("convert", nano, target)
check("convert: stdout is empty", done.stdout == "", done.stdout)
check("convert: says the id", "model id " in done.stderr, done.stderr)
first = json.loads(run("convert", nano, place("again"), "--json", "--threads", "2").stdout)
check("convert: counts", first["records_done"] == first["records_total"] == 96, first)
check("convert: the id", first["model_id"] in done.stderr)
done = run("convert", nano, target, "--json")
check("complete: says so", "is complete" in done.stderr, done.stderr)
check("complete: nothing done", json.loads(done.stdout)["records_done"] == 0)
done = run("convert", nano, target, "--experts", "f32", code=1)
check("other options: named", "--experts: the target holds q4, asked f32" in done.stderr,
      done.stderr)
check("other options: advice", done.stderr.rstrip().endswith("choose another TARGET"), done.stderr)
done = run("convert", target, place("x"), code=1)
check("a container as source", "is a container already" in done.stderr, done.stderr)
done = run("convert", nano, target, "--verify-only", "--json")
check("verify-only", json.loads(done.stdout)["mismatches"] == 0, done.stdout)
done = run("convert", nano, place("eps"), "--latent-eps", "1e-6", "--json")
check("another eps, another id", json.loads(done.stdout)["model_id"] != first["model_id"])
done = run("convert", nano, place("env"), "--json", env={"MOESAIC_LATENT_EPS": "1e-6"})

# Usage.
run("convert", code=2)
run("convert", nano, code=2)
run("convert", nano, place("x"), "--experts", "q5", code=2)
run("convert", nano, place("x"), "--unknown", code=2)
run("convert", nano, place("x"), "--dry-run", "--verify-only", code=2)
run("convert", nano, place("x"), "--consume", "--verify-only", code=2)
run("inspect", code=2)
for verb in ("convert", "inspect"):
    check(f"{verb} --help", "Usage" in run(verb, "--help").stdout)
done = run("convert", os.path.join(work, "nothing"), place("x"), code=1)
check("no source: named", "nothing" in done.stderr, done.stderr)

# Names from files do not reach the terminal as they are.
source = place("escapes")
shutil.copytree(nano, source)
index = os.path.join(source, "model.safetensors.index.json")
with open(index, "w") as f:
    json.dump({"weight_map": {"a\x1b[31m": "b\x1b[31m\n.safetensors"}}, f)
done = run("convert", source, place("x"), code=1)
check("escapes: replaced", "\x1b" not in done.stderr and "?[31m" in done.stderr, done.stderr)

# Inspecting.
done = run("inspect", target)
for word in ("model id   " + first["model_id"], "experts q4, dense q8, embedding bf16",
             "8 routed, top 2", "all packs"):
    check("inspect: says", word in done.stdout, word)
done = run("inspect", target, "--deep", "--json")
found = json.loads(done.stdout)
check("inspect: json", found["model_id"] == first["model_id"] and found["damaged"] == [], found)
check("inspect: sizes", found["bytes"] == sum(p["bytes"] for p in found["parts"].values()))
check("inspect: packs", [p["file"] for p in found["packs"]] ==
      ["experts-001.bin", "experts-002.bin", "experts-003.bin", "dense.bin"] or
      sorted(p["file"] for p in found["packs"]) ==
      ["dense.bin", "experts-001.bin", "experts-002.bin", "experts-003.bin"], found["packs"])
run("inspect", nano, code=1)

# A partial copy says what it holds, and is whole in what it holds.
partial = place("partial")
shutil.copytree(target, partial)
os.remove(os.path.join(partial, "experts-002.bin"))
done = run("inspect", partial, "--deep")
check("partial: named", "experts-002.bin: 0 of 8 records held" in done.stdout, done.stdout)
found = json.loads(run("inspect", partial, "--json").stdout)
check("partial: json", found["records_held"] == found["records"] - 8, found)

# Damage is found by --deep alone, and named.
damaged = place("damaged")
shutil.copytree(target, damaged)
with open(os.path.join(damaged, "experts-001.bin"), "r+b") as f:
    f.seek(4096 + 100)
    byte = f.read(1)
    f.seek(4096 + 100)
    f.write(bytes([byte[0] ^ 1]))
run("inspect", damaged)
done = run("inspect", damaged, "--deep", code=1)
check("damage: named", "layer 1 expert 0" in done.stderr and "experts-001.bin" in done.stderr,
      done.stderr)
check("damage: hashes", re.search("expected hash [0-9a-f]{32}, found [0-9a-f]{32}\n", done.stderr),
      done.stderr)
check("damage: advice", "copy these packs again" in done.stderr, done.stderr)
done = run("inspect", damaged, "--deep", "--json", code=1)
check("damage: json", json.loads(done.stdout)["damaged"] == ["layer 1 expert 0"], done.stdout)
done = run("convert", nano, damaged, "--verify-only", code=1)
check("damage: verify-only", "layer 1 expert 0 in experts-001.bin is damaged" in done.stderr and
      "another TARGET" in done.stderr, done.stderr)
done = run("convert", nano, partial, "--verify-only")
check("partial: verify-only", "8 records are not held" in done.stderr and
      "layer 2 expert 0 in experts-002.bin" in done.stderr and
      "(8 by the manifest alone)" in done.stderr, done.stderr)

# SIGINT: exit 1 and "run again"; or it was already done. Either way running again completes.
target = place("stopped")
child = subprocess.Popen([moesaic, "convert", wide, target, "--threads", "1"],
                         stderr=subprocess.PIPE, text=True)
while child.poll() is None and not os.path.exists(os.path.join(target, "convert.ledger")):
    pass
child.send_signal(signal.SIGINT)
text = child.communicate(timeout=60)[1]
check("stopped: exit code", child.returncode in (0, 1), child.returncode)
if child.returncode == 1:
    check("stopped: says run again, once", text.count("run again to resume") == 1, text)
    done = run("inspect", target, code=1)
    check("stopped: not a container yet", "unfinished" in done.stderr, done.stderr)
resumed = json.loads(run("convert", wide, target, "--json").stdout)
whole = json.loads(run("convert", wide, place("whole"), "--json").stdout)
check("stopped: same id", resumed["model_id"] == whole["model_id"])

# Consuming.
source = place("consumed")
shutil.copytree(wide, source)
done = json.loads(run("convert", source, place("from-consumed"), "--consume", "--json").stdout)
check("consume: five shards", done["shards_deleted"] == 5, done)
check("consume: same id", done["model_id"] == whole["model_id"])
check("consume: index stays", os.path.exists(os.path.join(source, "model.safetensors.index.json")))
done = run("convert", source, os.path.join(work, "from-consumed"), "--consume")
check("consume: nothing kept", "kept" not in done.stderr, done.stderr)
source = place("kept")
shutil.copytree(wide, source)
done = run("convert", source, os.path.join(work, "from-consumed"), "--consume")
check("consume: complete", "is complete" in done.stderr and "5 shards" in done.stderr and
      "delete them yourself" in done.stderr, done.stderr)
check("consume: shards stay", len([f for f in os.listdir(source) if f.startswith("model-")]) == 5)

shutil.rmtree(work, ignore_errors=True)
for failure in failures:
    print(failure)
sys.exit(1 if failures else 0)
