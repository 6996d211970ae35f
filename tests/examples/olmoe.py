#!/usr/bin/env python3
"""olmoe.py OLMOE FIXTURE WORK - the example says what transformers says, out of a cache that is too
small, and says what is wrong with files that are. Each check_* is a claim."""
import fcntl
import json
import os
import re
import shutil
import struct
import subprocess
import sys

olmoe, fixture, work = sys.argv[1:]
config = json.load(open(os.path.join(fixture, "config.json")))
reference = json.load(open(os.path.join(fixture, "reference.json")))
LAYERS, EXPERTS, TOPK = config["num_hidden_layers"], config["num_experts"], config["num_experts_per_tok"]
RECORD = 3 * config["hidden_size"] * config["intermediate_size"] * 4
TOKENS = sum(len(p["ids"]) + len(p["greedy"]) for p in reference["prompts"])
GREEDY = sum(len(p["greedy"]) for p in reference["prompts"])


def want(condition, what, *seen):
    if not condition:
        raise AssertionError(": ".join([what, *(str(value) for value in seen)]))


def run(*args, code=0):
    done = subprocess.run([olmoe, *args], capture_output=True, text=True, timeout=100)
    want(done.returncode == code, f"exit {code}", args, done.returncode, done.stdout, done.stderr)
    return done


def place(name):
    return os.path.join(work, name)


def copy(name, change=None):
    """A copy of the fixture; change edits its config."""
    target = place(name)
    shutil.copytree(fixture, target, copy_function=shutil.copyfile)
    os.chmod(target, 0o755)
    if change is not None:
        edited = dict(config)
        change(edited)
        with open(os.path.join(target, "config.json"), "w") as file:
            json.dump(edited, file)
    return target


def patch(path, offset, data):
    with open(path, "r+b") as file:
        file.seek(offset, os.SEEK_END if offset < 0 else os.SEEK_SET)
        file.write(data)


def pack(name):
    """A good pack of the fixture."""
    path = place(name)
    run(fixture, "--ids", "65", "-n", "1", "--pack", path)
    return path


def verify(*args, source=fixture, code=0):
    """-> equal, all, uses, hits, reads, bytes read, stdout"""
    done = run(source, "--verify", *args, code=code)
    said = re.fullmatch(r"(\d+)/(\d+) greedy tokens equal, logits differ by at most (\S+)\n", done.stdout)
    counted = re.search(r"(\d+) uses, (\d+) hits .* (\d+) reads of (\d+) records, (\d+) bytes read", done.stderr)
    want(said and counted, "says tokens and counts", done.stdout, done.stderr)
    want(int(counted[4]) == LAYERS * EXPERTS, "counts the records", counted[4])
    return [int(said[1]), int(said[2]), *(int(counted[i]) for i in (1, 2, 3, 5)), done.stdout]


def refuses(args, *words, code=1):
    """One line that has all the words, no result."""
    done = run(*args, code=code)
    lines = [line for line in done.stderr.splitlines() if "first run" not in line]
    want(done.stdout == "", "no result", args, done.stdout)
    want(len(lines) == 1 and lines[0].startswith("olmoe: "), "one line", args, done.stderr)
    for word in words:
        want(word in lines[0], f"says {word}", args, lines[0])


def check_every_greedy_token_is_equal_with_two_slots_a_layer():
    equal, count, uses, hits, reads, size, _ = verify("--pack", place("two.pack"), "--threads", "1")
    want(equal == count == GREEDY == 22, "all equal", equal, count)
    want(uses == hits + reads == TOKENS * LAYERS * TOPK, "every use is a hit or a read", uses, hits, reads)
    want(reads > LAYERS * EXPERTS, "experts were evicted and read again", reads)
    want(hits > 0, "the cache is of use", hits)
    want(size == reads * RECORD, "bytes", size)


def check_threads_and_cache_size_change_no_bit():
    path = pack("threads.pack")
    one = verify("--pack", path, "--threads", "1")
    want(verify("--pack", path, "--threads", "2") == one, "two threads", one)
    want(verify("--pack", path) == one, "default threads", one)
    for slots in (1, EXPERTS, 4096):
        other = verify("--pack", path, "--threads", "2", "--cache", str(slots))
        want(other[:3] == one[:3] and other[6] == one[6], f"{slots} slots", other, one)
    want(other[4] <= LAYERS * EXPERTS, "with room for all nothing is read twice", other)


def check_bf16_records_lose_nothing_and_q4_ones_do():
    f32 = verify("--pack", pack("formats.pack"))
    bf16 = verify("--pack", place("bf16.pack"), "--experts", "bf16")
    want(bf16[6] == f32[6], "a bf16 checkpoint's weights are the same in bf16", bf16, f32)
    want(2 * bf16[5] == f32[5], "half the bytes", bf16, f32)
    q4 = verify("--pack", place("q4.pack"), "--experts", "q4", code=1)
    want(q4[6] != f32[6] and q4[1] == GREEDY, "q4 runs and is noticed", q4)


def check_generating_gives_the_reference_tokens():
    path = pack("generate.pack")
    for prompt in reference["prompts"]:
        ids, greedy = prompt["ids"], prompt["greedy"]
        done = run(fixture, "--pack", path, "--ids", ",".join(map(str, ids)), "-n", str(len(greedy)))
        want(done.stdout == ",".join(map(str, greedy)) + "\n", "tokens", done.stdout, greedy)


def check_the_pack_is_written_once_and_whole():
    source = copy("once")
    path = os.path.join(source, "olmoe-experts-f32.pack")
    with open(path + ".partial", "wb") as file:
        file.write(b"what an interrupted run left")
    want("first run" in run(source, "--ids", "65", "-n", "1").stderr, "first")
    want(not os.path.exists(path + ".partial"), "nothing is left beside it")
    before = os.stat(path)
    want("first run" not in run(source, "--ids", "65", "-n", "1").stderr, "second")
    want(os.stat(path).st_mtime_ns == before.st_mtime_ns, "not written again")


def check_verify_can_fail():
    path = pack("fail.pack")

    def theta(edited):
        edited["rope_theta"] = 1e6

    want(verify("--pack", path, source=copy("theta", theta), code=1)[0] < GREEDY, "another rope")
    source = copy("token")
    edited = json.load(open(os.path.join(source, "reference.json")))
    edited["prompts"][1]["greedy"][-1] ^= 1
    json.dump(edited, open(os.path.join(source, "reference.json"), "w"))
    equal, count, *_ = verify("--pack", path, source=source, code=1)
    want((equal, count) == (GREEDY - 1, GREEDY), "one token", equal, count)
    for name, value in (("logit", 9.0), ("nan", float("nan"))):
        source = copy(name)
        tensors = os.path.join(source, "reference.safetensors")
        with open(tensors, "rb") as file:
            header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
            start = file.tell() + header["p0.logits"]["data_offsets"][0]
        patch(tensors, start, struct.pack("<f", value))
        want(verify("--pack", path, source=source, code=1)[0] == GREEDY, name)


def check_a_damaged_pack_is_named():
    path = pack("damage.pack")
    size = os.path.getsize(path)
    patch(path, size - 2 * 4096, b"\xff" * 64)  # the last expert; behind it one page, the stamp
    refuses([fixture, "--verify", "--pack", path], path, "layer 2", "expert 7", "hash")
    refuses([fixture, "--verify", "--cache", "8", "--pack", path], path, "layer 2", "expert 7")
    for name, change in (("cut.pack", lambda p: os.truncate(p, size // 2)),
                         ("empty.pack", lambda p: os.truncate(p, 0)),
                         ("index.pack", lambda p: patch(p, 64 + 20, b"\1")),
                         ("zeros.pack", lambda p: patch(p, 0, bytes(64))),
                         ("magic.pack", lambda p: patch(p, 0, b"GARBAGE\n"))):
        path = pack(name)
        change(path)
        refuses([fixture, "--verify", "--pack", path], path)
    refuses([fixture, "--verify", "--pack", work], work)
    refuses([fixture, "--verify", "--pack", place("no/such/folder.pack")], "folder.pack")


def check_a_pack_of_something_else_is_refused():
    path = pack("other.pack")
    refuses([fixture, "--verify", "--experts", "bf16", "--pack", path], path, "another")
    source = copy("weights")
    patch(os.path.join(source, "model-00002-of-00002.safetensors"), -8, b"\0\0\0\0")
    refuses([source, "--verify", "--pack", path], path, "another checkpoint")

    def shape(edited):
        edited["num_experts"] = 4

    refuses([copy("fewer", shape), "--verify", "--pack", path], "mlp.gate.weight")


def check_settings_that_are_not_computed_are_refused_by_name():
    for key, value in (("norm_topk_prob", True), ("attention_bias", True), ("clip_qkv", 8.0),
                       ("rope_scaling", {"type": "yarn"}), ("model_type", "mixtral"),
                       ("hidden_act", "gelu"), ("tie_word_embeddings", True),
                       ("num_key_value_heads", 2), ("num_experts_per_tok", 9),
                       ("num_hidden_layers", 0), ("vocab_size", 1 << 40), ("rms_norm_eps", "x"),
                       ("rope_theta", None)):
        source = copy(f"{key}-{value}", lambda edited: edited.__setitem__(key, value))
        refuses([source, "--ids", "65"], "config.json", f"{key}: expected")
    for heads in (3, 64):  # no whole heads; heads of one value
        source = copy(f"heads-{heads}", lambda edited: edited.update(
            num_attention_heads=heads, num_key_value_heads=heads))
        refuses([source, "--ids", "65"], "config.json", "hidden_size: expected heads")


def check_a_damaged_checkpoint_is_named():
    refuses([place("nowhere"), "--ids", "65"], "config.json")
    for name, spoil, word in (
            ("no-json", lambda d: patch(os.path.join(d, "config.json"), 0, b"]"), "config.json"),
            ("no-shard", lambda d: os.unlink(os.path.join(d, "model-00002-of-00002.safetensors")), "model-00002"),
            ("short-shard", lambda d: os.truncate(os.path.join(d, "model-00001-of-00002.safetensors"), 30000), "model-00001"),
            ("header", lambda d: patch(os.path.join(d, "model-00001-of-00002.safetensors"), 0, b"\xff" * 8), "model-00001")):
        source = copy(name)
        spoil(source)
        refuses([source, "--ids", "65"], word)
    source = copy("layers", lambda edited: edited.__setitem__("num_hidden_layers", 4))
    refuses([source, "--ids", "65"], "model.layers.3.")
    source = copy("huge", lambda edited: edited.__setitem__("vocab_size", 1 << 20))
    refuses([source, "--ids", "65"], "embed_tokens")
    # An expert is only looked for when the pack is written: nothing may be left of that one.
    source = copy("nan-weight")
    shard = os.path.join(source, "model-00002-of-00002.safetensors")
    with open(shard, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        start = file.tell() + header["model.layers.2.mlp.experts.7.down_proj.weight"]["data_offsets"][0]
    patch(shard, start, b"\x80\x7f")
    refuses([source, "--ids", "65"], "model.layers.2.mlp.experts.7.down_proj.weight")
    want(not [name for name in os.listdir(source) if "pack" in name], "no pack is left", os.listdir(source))


def check_a_damaged_reference_is_named():
    path = pack("reference.pack")

    def edited(name, change):
        source = copy(name)
        root = json.load(open(os.path.join(source, "reference.json")))
        change(root)
        json.dump(root, open(os.path.join(source, "reference.json"), "w"))
        return [source, "--verify", "--pack", path]

    refuses(edited("none", lambda root: root.pop("prompts")), "reference", "prompts")
    refuses(edited("id", lambda root: root["prompts"][0]["ids"].__setitem__(0, 384)), "ids", "384")
    refuses(edited("text", lambda root: root["prompts"][0]["greedy"].__setitem__(0, "a")), "greedy")
    refuses(edited("longer", lambda root: root["prompts"][0]["greedy"].append(1)), "p0.logits")
    refuses(edited("fourth", lambda root: root["prompts"].append(root["prompts"][0])), "p3.logits")
    refuses(edited("few", lambda root: root["prompts"][2].pop("ids")), "prompt 2")
    for name in ("reference.json", "reference.safetensors"):
        source = copy("without-" + name)
        os.unlink(os.path.join(source, name))
        refuses([source, "--verify", "--pack", path], name)


def check_wrong_ids_and_counts_are_refused():
    path = pack("ids.pack")
    for ids in ("", ",", "1,", "384", "1,-2", "x", "1 2", "99999999999999999999999"):
        refuses([fixture, "--pack", path, "--ids", ids], "expected ids below 384")
    refuses([fixture, "--pack", path, "--ids", "1", "-n", "4096"], "4096", "4097")
    refuses([fixture], "--ids", code=2)
    refuses([fixture, "--verify", "--ids", "1"], "--verify", code=2)
    refuses([fixture, "--ids", "1", "--cache", "0"], "cache", code=2)
    refuses([fixture, "--ids", "1", "--experts", "q5"], "q5", code=2)
    refuses(["--ids", "1"], code=2)
    want("CHECKPOINT" in run("--help").stdout, "help")


def check_two_first_runs_do_not_write_one_pack():
    path = pack("locked.pack")
    for name in (path, path + ".partial"):
        if os.path.exists(name):
            os.unlink(name)
    with open(path + ".partial", "wb") as file:
        file.write(b"of another run")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        refuses([fixture, "--ids", "65", "--pack", path], "another run is writing")
        want(os.path.getsize(path + ".partial") == 14, "the other's file is as it was")
    run(fixture, "--ids", "65", "--pack", path)
    want(not os.path.exists(path + ".partial"), "begun anew and renamed")


def check_tokens_that_cannot_be_written_are_an_error():
    path = pack("full.pack")
    with open("/dev/full", "w") as full:
        done = subprocess.run([olmoe, fixture, "--ids", "65", "--pack", path], stdout=full,
                              stderr=subprocess.PIPE, text=True, timeout=100)
    want(done.returncode == 1 and "olmoe: stdout: No space" in done.stderr, "said", done)


shutil.rmtree(work, ignore_errors=True)
os.makedirs(work)
failed = 0
for name, check in [(k, v) for k, v in globals().items() if k.startswith("check_")]:
    try:
        check()
    except AssertionError as error:
        failed += 1
        print(f"{name}: {error}")
shutil.rmtree(work, ignore_errors=True)
sys.exit(failed > 0)
