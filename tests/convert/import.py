#!/usr/bin/env python3
"""import.py MOESAIC FIXTURES WORK - `moesaic import` as a user meets it.

Models of the colibri engine are made from the test checkpoints (tools/make_colibri.py), imported, and
every weight of the container (tools/dequantise.py) is compared, bit for bit, with integer times scale of
the source. Then runs over ranks, a reference in numpy, interruption, and what is refused.
"""
import json
import os
import shutil
import signal
import struct
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
TOOLS = os.path.join(HERE, "..", "..", "tools")
try:
    import numpy as np
except ImportError:  # the interpreter that was found first may be a bare one; the system's has it
    if sys.executable == "/usr/bin/python3" or not os.path.exists("/usr/bin/python3"):
        sys.exit("numpy is missing: install python3-numpy (deploy/packages-test.txt)")
    os.execv("/usr/bin/python3", ["/usr/bin/python3", "-B", *sys.argv])
sys.path.insert(0, TOOLS)
from checkpoint import F, Checkpoint, read_header  # noqa: E402
from dequantise import Container, rebuild  # noqa: E402

moesaic, fixtures, work = sys.argv[1:4]
nano, wide = (os.path.join(fixtures, n) for n in ("nano-bf16", "wide-bf16"))
tiny = os.path.join(fixtures, "tiny-fp8")
failures = []
ENV = dict(os.environ, OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1",
           OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")


def check(what, condition, shown=""):
    if not condition:
        failures.append(f"{what} {shown}")


def call(command, code=0, env=None):
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=120,
                          env=dict(ENV, **(env or {})))
    if done.returncode != code:
        failures.append(f"{' '.join(command)}: expected exit {code}, found {done.returncode}: "
                        f"{done.stdout[-300:]} {done.stderr[-500:]}")
    return done


def run(*args, code=0, env=None):
    return call([moesaic, *args], code, env)


def result(*args, **more):
    """The JSON object that a verb prints; an empty one when it failed."""
    done = run(*args, "--json", **more)
    try:
        return json.loads(done.stdout)
    except ValueError:
        raise SystemExit("\n".join(failures + [f"{' '.join(args)}: no result"])) from None


def place(name):
    path = os.path.join(work, name)
    shutil.rmtree(path, ignore_errors=True)
    return path


def make(name, checkpoint, *options):
    out = place(name)
    call([sys.executable, "-B", os.path.join(TOOLS, "make_colibri.py"), checkpoint, out, *options])
    return out


def refused(what, words, *args, env=None):
    """Refused with these words, and nothing is left in the target."""
    done = run("import", *args, code=1, env=env)
    for word in words:
        check(f"{what}: says", word in done.stderr, f"'{word}': {done.stderr}")
    check(f"{what}: no container", not os.path.exists(os.path.join(args[1], "moesaic.json")))


# ---- the source, read by the test itself ----

class Colibri:
    """Weights of such a directory as float32: integer times scale, from byte counts alone."""

    def __init__(self, folder, shapes):
        self.raw, self.shapes = {}, shapes
        for name in sorted(os.listdir(folder)):
            if not name.endswith(".safetensors"):
                continue
            path = os.path.join(folder, name)
            header, begin = read_header(path)
            data = open(path, "rb").read()
            for key, entry in header.items():
                a, b = entry["data_offsets"]
                dtype = {"F32": "<f4", "U8": np.uint8}[entry["dtype"]]
                self.raw[key] = np.frombuffer(data[begin + a:begin + b], dtype).reshape(entry["shape"])

    def __getitem__(self, name):
        raw = self.raw[name]
        if raw.dtype != np.uint8:
            return raw
        rows, cols = self.shapes[name]
        if raw.size == rows * cols:
            q = raw.view(np.int8).reshape(rows, cols)
        else:
            packed = raw.reshape(rows, (cols + 1) // 2).astype(np.int16)
            q = np.stack([packed & 15, packed >> 4], 2).reshape(rows, -1)[:, :cols] - 8
        scale = self.raw[name + ".qs"].reshape(rows, -1)
        size = 2
        while -(-cols // size) > scale.shape[1]:
            size *= 2
        wide_scale = scale if scale.shape[1] == 1 else np.repeat(scale, size, 1)[:, :cols]
        return q.astype(F) * wide_scale


def shapes_of(checkpoint):
    return {name: entry[4] for name, entry in Checkpoint(checkpoint).entries.items()}


def compare(what, container, source, checkpoint):
    """Every tensor of the container is the source's, bit for bit; those that the source lacks are few."""
    held, theirs = rebuild(Container(container)), Colibri(source, shapes_of(checkpoint))
    missing = [n for n in held if n not in theirs.raw]
    wrong = [n for n in held if n not in missing and
             not np.array_equal(np.ascontiguousarray(held[n]).view(np.uint32),
                                np.ascontiguousarray(theirs[n]).view(np.uint32))]
    check(f"{what}: weights are the source's", not wrong, wrong[:3])
    return missing


# ---- each format, and the mixture that people have ----

CASES = (  # name, checkpoint, how it is made, formats of the container
    ("int8-row", nano, ["--bits", "8"], "q8f32", "q8f32"),
    ("int4-row", nano, ["--bits", "4", "--io-bits", "4", "--mtp-bits", "4", "--indexer-bits", "4"],
     "q4f32", "q4f32"),
    ("int4-grouped", wide, ["--bits", "4", "--group", "64", "--io-bits", "4", "--mtp-bits", "4",
                            "--indexer-bits", "4"], "q4f32", "q4f32"),
    ("int4-odd", tiny, ["--bits", "4", "--group", "64", "--io-bits", "4", "--mtp-bits", "4",
                        "--indexer-bits", "4", "--stamp", "--shards", "3"], "q4f32", "q4f32"),
    ("mixed", wide, ["--bits", "4", "--group", "64", "--attention-bits", "8"], "q4f32", "q8f32"),
)


def formats():
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(work)
    for name, checkpoint, options, experts, dense in CASES:
        source, target = make(name, checkpoint, *options), place(name + ".moesaic")
        found = result("import", source, target, "--grid", "fine",
                               "--latent-eps", "1e-6")
        check(f"{name}: formats", (found["import"]["expert_format"], found["import"]["dense_format"])
              == (experts, dense), found)
        check(f"{name}: nothing from elsewhere", found["import"]["indexer_elsewhere"] == 0, found)
        missing = compare(name, target, source, checkpoint)
        check(f"{name}: every tensor is compared", not missing, missing)
        again = place(name + ".again")
        second = result("import", source, again, "--grid", "fine", "--latent-eps",
                                "1e-6", "--threads", "1")
        check(f"{name}: the same bytes again", second["model_id"] == found["model_id"])
        verified = result("import", source, target, "--verify-only")
        check(f"{name}: verifies", verified["mismatches"] == 0 and
              verified["records_total"] == found["records_total"])
        shutil.rmtree(again)


def ids(target, *options, ranks=1):
    command = [moesaic, "run", target, "--ids", "5,9,14,3,77,21,8,101,44,6,2,90", "--ignore-eos",
               "--tokens", "12", "--temp", "0", "--json", "--heat", "none", "--threads", "1",
               *options]
    if ranks > 1:
        command = ["mpirun", "-n", str(ranks), "--oversubscribe", "--bind-to", "none", *command]
    # MPI itself leaks at its end, which would fail a build with sanitizers.
    done = call(command, env={"ASAN_OPTIONS": "detect_leaks=0"} if ranks > 1 else None)
    try:
        return json.loads(done.stdout.splitlines()[-1])["ids"]
    except (ValueError, KeyError, IndexError):
        failures.append(f"{' '.join(command)}: {done.stdout[-300:]} {done.stderr[-300:]}")
        return None


def runs():
    for name in ("int8-row", "mixed"):
        target = os.path.join(work, name + ".moesaic")
        alone = ids(target)
        check(f"{name}: runs", alone and len(alone) == 12, alone)
        if shutil.which("mpirun"):
            check(f"{name}: 3 ranks", ids(target, ranks=3) == alone)
            check(f"{name}: 3 ranks, slices", ids(target, "--slices", ranks=3) == alone)
        check(f"{name}: plain kernels", ids(target, "--kernels", "ref") == alone)


def reference():
    """The weights themselves in numpy: what the program computes with them is right."""
    sys.path.insert(0, os.path.join(HERE, "..", "oracle"))
    from oracle import dequantised_reference, problems, verify
    from reference_dir import ReferenceDir
    for name, checkpoint in (("int4-row", nano), ("int8-row", nano)):
        target = os.path.join(work, name + ".moesaic")
        made = dequantised_reference(target, checkpoint, place(name + ".reference"))
        code, result, _ = verify(moesaic, target, made, "--float-activations")
        found = problems(code, result, ReferenceDir(made), True)
        check(f"{name}: agrees with numpy", not found, found)


def views():
    target = os.path.join(work, "mixed.moesaic")
    for verb in (["inspect", "--deep"], ["status"], ["plan"]):
        done = run(*verb, target)
        check(f"{verb[0]}: names the formats", "q4f32" in done.stdout and "q8f32" in done.stdout,
              done.stdout)
    done = run("doctor", target, "--json", code=0)
    check("doctor: no failure", '"fail"' not in done.stdout, done.stdout)
    # The source itself is known as what it is, and plan counts what import would make of it.
    source = os.path.join(work, "mixed")
    for verb, code in (("status", 3), ("plan", 0), ("doctor", 3)):
        done = run(verb, source, code=code)
        check(f"{verb}: knows the source", "model of the colibri engine" in done.stdout, done.stdout)
    check("plan: formats of the source", all(f in run("plan", source).stdout
                                             for f in ("q4f32", "q8f32")))
    check("status: says what to do", f"moesaic import {source} TARGET" in run(
        "status", source, code=3).stdout)


# ---- what the source lacks ----

def elsewhere():
    bare = make("bare", nano, "--bits", "8", "--no-indexer", "--no-mtp-indexer", "--no-mtp")
    half = make("half", nano, "--bits", "8", "--no-indexer", "--no-mtp-indexer")
    target = place("elsewhere")
    refused("no indexer", ["tensors of the indexer", "tensors of the MTP layer", "--indexer-from"],
            bare, target)
    done = run("status", bare, code=3)
    check("no indexer: status tells", "--indexer-from" in done.stdout, done.stdout)
    refused("no indexer: dry run", ["--indexer-from"], half, target, "--dry-run")
    check("no indexer: nothing is made", not os.path.exists(target))
    done = result("import", bare, target, "--indexer-from", nano)
    check("elsewhere: counted", done["import"]["indexer_elsewhere"] > 0 and
          done["import"]["mtp_elsewhere"] > 0 and done["import"]["indexer_from"] == nano, done)
    missing = compare("elsewhere", target, bare, nano)
    layers = json.load(open(os.path.join(nano, "config.json")))["num_hidden_layers"]
    check("elsewhere: only these", missing and all(
        ".indexer." in n or n.startswith(f"model.layers.{layers}.") for n in missing), missing)
    check("elsewhere: runs", ids(target))
    # Of the checkpoint only what is needed has to be there.
    part = place("part")
    shutil.copytree(nano, part)
    os.chmod(part, 0o755)
    index = json.load(open(os.path.join(nano, "model.safetensors.index.json")))["weight_map"]
    needed = {index[n] for n in missing}
    unneeded = set(index.values()) - needed
    os.remove(os.path.join(part, sorted(needed)[0]))
    refused("shard missing", [sorted(needed)[0], "put them there"], bare, place("gone"),
            "--indexer-from", part)
    for name in unneeded:
        os.remove(os.path.join(part, name))
    shutil.copy(os.path.join(nano, sorted(needed)[0]), part)
    part_of = result("import", bare, place("part.moesaic"), "--indexer-from", part)
    check("some shards are enough", part_of["model_id"] == done["model_id"])
    refused("another model", ["another model", "hidden_size"], bare, place("other"),
            "--indexer-from", wide)
    refused("not there either", ["neither in"], bare, place("other"), "--indexer-from", bare)


# ---- damage ----

def edit(path, change):
    """change(header, data) -> data, on a shard's parsed header and bytes."""
    raw = open(path, "rb").read()
    length = struct.unpack("<Q", raw[:8])[0]
    header, data = json.loads(raw[8:8 + length]), bytearray(raw[8 + length:])
    data = change(header, data)
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def broken(what, words, change, *options, shard="out-00000.safetensors", source=nano):
    folder = make("broken", source, "--bits", "8", *options)
    edit(os.path.join(folder, shard), change)
    refused(what, words, folder, place("broken.moesaic"))


def with_stamp(name, fmt):
    def change(header, data):
        header["__metadata__"] = {"colibri.fmt": json.dumps({name: fmt})}
        return data
    return change


def resize(name, size):
    """The tensor's bytes cut or grown to size; what follows moves."""
    def change(header, data):
        a, b = header[name]["data_offsets"]
        moved = size - (b - a)
        data = data[:a] + (data[a:b] + bytes(size))[:size] + data[b:]
        header[name]["data_offsets"] = [a, a + size]
        header[name]["shape"] = [size if header[name]["dtype"] == "U8" else size // 4]
        for other, entry in header.items():
            if other != name and other != "__metadata__" and entry["data_offsets"][0] >= b:
                entry["data_offsets"] = [v + moved for v in entry["data_offsets"]]
        return data
    return change


def poke(name, at, raw):
    def change(header, data):
        a = header[name]["data_offsets"][0] + at
        data[a:a + len(raw)] = raw
        return data
    return change


def damage():
    gate = "model.layers.0.mlp.gate_proj.weight"  # [96, 64]
    broken("byte count", [gate, "fit no format", "6144"], resize(gate, 5000))
    broken("int2", ["int2-row", "moesaic convert"], resize(gate, 96 * 16))
    broken("int3", ["int3-g64", "moesaic convert"], resize(gate, 96 * 24))
    broken("scale count", [gate, "fit no format"], resize(gate + ".qs", 95 * 4))
    broken("stamp", [gate, "int4-row", "damaged"], with_stamp(gate, "int4-row"))
    broken("unknown stamp", [gate, "int9"], with_stamp(gate, "int9"))
    broken("stamp of a format that is not read", ["mxfp4"], with_stamp(gate, "mxfp4"))
    broken("stamps that are none", ["colibri.fmt"], lambda header, data: (
        header.update(__metadata__={"colibri.fmt": "{"}), data)[1])
    broken("-128", [gate, "row 2, column 3", "-128"], poke(gate, 2 * 64 + 3, b"\x80"))
    broken("NaN scale", [gate + ".qs", "row 5", "finite"],
           poke(gate + ".qs", 5 * 4, struct.pack("<f", float("nan"))))
    broken("huge scale", [gate + ".qs", "row 5"], poke(gate + ".qs", 5 * 4, struct.pack("<f", 3e38)))
    broken("hostile header", ["offsets"], lambda header, data: (
        header[gate].update(data_offsets=[0, 1 << 62]), data)[1])
    broken("values among integers", ["down_proj", "one format"], lambda header, data: data, "--keep",
           "experts.3.down_proj")
    broken("metadata that is no text", ["colibri.fmt", "expected a text"], lambda header, data: (
        header.update(__metadata__={"colibri.fmt": {gate: "int8-row"}}), data)[1])
    # A norm may be integers with groups of any size: it has none of ours.
    norm = "model.layers.0.input_layernorm.weight"
    folder = make("norm", nano, "--bits", "8")

    def as_integers(header, data):
        data += bytes(range(16, 48)) + struct.pack("<4f", 0.5, 0.25, 1, 2)
        end = max(e["data_offsets"][1] for n, e in header.items() if n != norm)
        header["old." + norm] = header.pop(norm)
        header[norm] = {"dtype": "U8", "shape": [32], "data_offsets": [end, end + 32]}
        header[norm + ".qs"] = {"dtype": "F32", "shape": [4], "data_offsets": [end + 32, end + 48]}
        return data
    edit(os.path.join(folder, "out-00000.safetensors"), as_integers)
    result("import", folder, place("norm.moesaic"))
    packed = np.arange(16, 48, dtype=np.uint8).astype(np.int16)
    held = rebuild(Container(os.path.join(work, "norm.moesaic")))[norm]
    check("norm of integers", np.array_equal(held, (np.stack([packed & 15, packed >> 4], 1).reshape(-1) - 8) *
                                             np.repeat(np.array([0.5, 0.25, 1, 2], F), 16)), held)
    refused("no TARGET", ["TARGET", "name of a directory"], folder, "")
    folder = make("long", nano, "--bits", "8")
    os.rename(os.path.join(folder, "out-00001.safetensors"),
              os.path.join(folder, "o" * 120 + ".safetensors"))
    refused("a file's name too long", ["at most 113 bytes"], folder, place("long.moesaic"))
    os.symlink("nowhere", os.path.join(make("link", nano, "--bits", "8"), "z.safetensors"))
    refused("a broken link", ["z.safetensors", "broken link"], os.path.join(work, "link"), place("no"))
    # --json gives an object in any case, whatever the bytes of a name.
    done = run("import", folder, place("no"), "--json", code=1)
    check("--json: an error too", "113 bytes" in json.loads(done.stdout or "{}").get("error", ""), done)
    latin = os.path.join(os.fsencode(work), b"lat\xe9n")
    shutil.rmtree(latin, ignore_errors=True)
    shutil.copytree(os.fsencode(nano), latin)
    found = result("import", os.path.join(work, "bare"), place("latin.moesaic"), "--indexer-from", latin)
    check("--json: a name that is no UTF-8", found["import"]["indexer_from"].endswith("lat?n"), found)
    # The same tensor twice, and a shard that ends early.
    folder = make("twice", nano, "--bits", "8")
    shutil.copy(os.path.join(folder, "out-00001.safetensors"), os.path.join(folder, "x.safetensors"))
    refused("twice", ["two shards"], folder, place("twice.moesaic"))
    folder = make("short", nano, "--bits", "8")
    path = os.path.join(folder, "out-00001.safetensors")
    os.truncate(path, os.path.getsize(path) - 100)
    refused("short", ["out-00001.safetensors", "outside"], folder, place("short.moesaic"))
    # Groups of 16 where ours are of 64, and numbers that two formats fit.
    refused("group", ["each 16 columns", "multiple of 64"],
            make("group", wide, "--bits", "4", "--group", "16"), place("group.moesaic"))
    refused("ambiguous", ["may be int4-grouped or int3-g64"],
            make("ambiguous", tiny, "--bits", "4", "--group", "64"), place("ambiguous.moesaic"))
    # A checkpoint is no such model, a container neither; and the other way round.
    refused("a container", ["is a container already"], os.path.join(work, "mixed.moesaic"),
            place("no"))
    done = run("convert", os.path.join(work, "mixed"), place("no"), code=1)
    check("convert: says", "model*.safetensors" in done.stderr, done.stderr)
    run("import", nano, place("no"), "--dry-run", "--verify-only", code=2)


# ---- interruption ----

def interruption():
    source, target = os.path.join(work, "mixed"), place("stopped")
    whole = result("import", source, place("whole"))["model_id"]
    for attempt in range(40):
        shutil.rmtree(target, ignore_errors=True)
        process = subprocess.Popen([moesaic, "import", source, target, "--threads", "1"], env=ENV,
                                   stderr=subprocess.DEVNULL)
        while not os.path.exists(os.path.join(target, "dense.bin")) and process.poll() is None:
            pass
        process.send_signal(signal.SIGINT if attempt % 2 else signal.SIGTERM)
        process.wait()
        if not os.path.exists(os.path.join(target, "moesaic.json")):
            break
    check("interruption: stopped in the middle",
          os.path.exists(os.path.join(target, "convert.ledger")))
    done = run("convert", wide, target, code=1)
    check("interruption: convert leaves it", "moesaic import" in done.stderr, done.stderr)
    done = run("status", target, code=3)
    check("interruption: status says what to do", f"moesaic import SOURCE {target}" in done.stdout,
          done.stdout)
    # Not with other files of the same config, nor with fewer, although all tensors are there.
    names = [n for n in sorted(os.listdir(source)) if n.endswith(".safetensors")]
    renamed = place("renamed")
    shutil.copytree(source, renamed)
    for name in names:
        os.rename(os.path.join(renamed, name), os.path.join(renamed, "x" + name))
    refused("interruption: other files", ["is not one of the files"], renamed, target)
    fewer = place("fewer")
    shutil.copytree(source, fewer)
    os.remove(os.path.join(fewer, "out-idx-00000.safetensors"))
    plain = place("plain")  # without an index, so that its files are only more of a download
    shutil.copytree(wide, plain)
    os.chmod(plain, 0o755)
    os.remove(os.path.join(plain, "model.safetensors.index.json"))
    refused("interruption: a file less", ["out-idx-00000.safetensors", "no longer there"], fewer, target,
            "--indexer-from", plain)
    resumed = result("import", source, target)
    check("interruption: the same model", resumed["model_id"] == whole, resumed)


def change():
    """A source that is written to while it is read is neither the old nor the new one."""
    source, target = place("changing"), place("changed")
    for _ in range(40):
        shutil.rmtree(source, ignore_errors=True)
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(os.path.join(work, "mixed"), source)
        process = subprocess.Popen([moesaic, "import", source, target, "--threads", "1"], env=ENV,
                                   stderr=subprocess.PIPE, text=True)
        while not os.path.exists(os.path.join(target, "dense.bin")) and process.poll() is None:
            pass
        process.send_signal(signal.SIGSTOP)
        path = os.path.join(source, "out-00001.safetensors")
        with open(path, "r+b") as file:
            file.seek(-1, os.SEEK_END)
            last = file.read(1)[0]
            file.seek(-1, os.SEEK_END)
            file.write(bytes([last ^ 16]))
        process.send_signal(signal.SIGCONT)
        error = process.communicate()[1]
        if process.returncode != 0:
            break
    check("change: noticed", "out-00001.safetensors changed while it was read" in error, error)
    check("change: no container", not os.path.exists(os.path.join(target, "moesaic.json")))
    refused("change: not resumed", ["not the file that this conversion began with"], source, target)
    # When the file is what it was, nothing that was made of the other state counts.
    with open(path, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last]))
    redone = result("import", source, target)
    whole = json.load(open(os.path.join(work, "whole", "moesaic.json")))["model_id"]
    check("change: all is made again", (redone["model_id"], redone["records_resumed"]) == (whole, 0), redone)


if __name__ == "__main__":
    for step in (formats, runs, reference, views, elsewhere, damage, interruption, change):
        step()
    for failure in failures:
        print(failure)
    sys.exit(1 if failures else 0)
