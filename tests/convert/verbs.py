#!/usr/bin/env python3
"""verbs.py MOESAIC FIXTURES WORK - convert and inspect as a user meets them: exit codes, what goes to
stdout and what to stderr, JSON, damage, partial copies, interruption."""
import json
import os
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
done = run("inspect", damaged, "--deep", "--json", code=1)
check("damage: json", json.loads(done.stdout)["damaged"] == ["layer 1 expert 0"], done.stdout)
done = run("convert", nano, damaged, "--verify-only", code=1)
check("damage: verify-only", "layer 1 expert 0 is damaged" in done.stderr, done.stderr)

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
    check("stopped: says run again", "run again to resume" in text, text)
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

shutil.rmtree(work, ignore_errors=True)
for failure in failures:
    print(failure)
sys.exit(1 if failures else 0)
