#!/usr/bin/env python3
"""plan, doctor and status as a new user meets them: plan.py MOESAIC FIXTURES WORKDIR. Each check_* is one
claim: too little RAM, no model, half a model, a full disk; and that a plan books what a run books."""
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time

moesaic, fixtures, work = map(os.path.abspath, sys.argv[1:4])
glm = os.path.join(fixtures, "configs", "glm-5.2.json")
nano = os.path.join(fixtures, "nano-bf16")
model = os.path.join(work, "model")
rates = ("--read-rate", "40G", "--disk-rate", "2G", "--flop-rate", 100, "--link-rate", "1G")


class Skip(Exception):
    pass


def call(*args, **kw):
    return subprocess.run([moesaic, *map(str, args)], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=60, **kw)


def want(condition, what, done=None):
    if not condition:
        detail = f"\n  exit {done.returncode}\n  stdout {done.stdout}\n  stderr {done.stderr}" if done else ""
        raise AssertionError(what + detail)


def asked(verb, *args, code=0):
    """The JSON of a verb that must exit with `code`."""
    done = call(verb, *args, "--json")
    want(done.returncode == code, f"{verb} {' '.join(map(str, args))}: exit {code}", done)
    return json.loads(done.stdout)


def plan(*args, code=0):
    return asked("plan", *args, *rates, code=code)


def rows(*args, code=0):
    found = asked("doctor", *args, code=code)
    want(found["verdict"] == {0: "ok", 1: "failed", 3: "degraded"}[code], f"verdict of {found}")
    for row in found["rows"]:
        want(row["level"] == "ok" or row.get("advice"), f"what to do about {row}")
    return {row["name"]: row for row in found["rows"]}


def place(name):
    path = os.path.join(work, name)
    shutil.rmtree(path, ignore_errors=True)
    return path


def copy(source, name):
    path = place(name)
    shutil.copytree(source, path)
    return path


# ---- plan, from a config alone

def check_plan_knows_glm_5_2_from_its_config_alone():
    out = plan(glm, "--ram", "1T")
    want(out["source"] == {"bytes": 755617140416, "tensors": 118629, "bytes_here": 0}, f"download {out['source']}")
    want(out["experts"] == 19200 and out["container"]["record_bytes"] == 20054016, f"experts of {out['container']}")
    want(out["container"]["experts_bytes"] == 19200 * 20054016, "expert bytes")
    parts = sum(out["container"][f"{p}_bytes"] for p in ("experts", "dense", "mtp", "embed"))
    want(parts == out["container"]["bytes"] < out["container"]["file_bytes"], "the parts add up")
    # 18.60 G parameters beside the experts, 0.95 G of them the embedding; 17 bits in 16 for q8.
    want(18.0e9 < out["container"]["dense_bytes"] < 19.5e9, f"dense {out['container']['dense_bytes']}")
    want(out["container"]["embed_bytes"] == 154880 * 6144 * 2, "embedding")
    want(out["context"] == 32768 and out["hit_rate"] == 1 and out["nodes_for_all"] == 1, "everything fits in 1 TiB")
    kv = [p["bytes"] for p in out["placement"] if p["part"] == "kv cache"][0]
    want(abs(kv / 32768 - 95232) < 200, f"95,232 bytes a token, found {kv / 32768}")


def check_plan_text_says_download_container_placement_speed_and_advice():
    done = call("plan", glm, "--ram", "64G", *rates)
    want(done.returncode == 0 and done.stderr == "", "exit 0", done)
    for word in ("download   755.6 GB", "FP8", "container  415", "dense weights", "kv cache", "VRAM", "hit rate",
                 "GLM-5.2's heat curve", "tokens/s; the limit: experts from the disk", "advice", "mpirun -n",
                 "--consume"):
        want(word in done.stdout, word, done)


def check_more_ram_is_never_worse():
    last = {"hit_rate": 0, "slow_tok_s": 0, "fast_tok_s": 0, "experts_in_ram": 0}
    for ram in ("24G", "32G", "64G", "128G", "256G", "384G", "512G"):
        out = plan(glm, "--ram", ram)
        now = {**out, **out["speed"]}
        for key in last:
            want(now[key] >= last[key], f"{key} at {ram}: {now[key]} after {last[key]}")
            last[key] = now[key]
        booked = sum(p["bytes"] for p in out["placement"] if p["tier"] == "ram")
        want(booked <= out["machine"]["ram_bytes"], f"within {ram}: {booked}")
        want(sum(p["records"] for p in out["placement"]) == 19200, "every expert has a place")
    want(last["hit_rate"] == 1, "512 GiB hold everything")


def check_nodes_hold_what_one_machine_does_not():
    one = plan(glm, "--ram", "64G")
    many = plan(glm, "--ram", "64G", "--nodes", one["nodes_for_all"])
    fewer = plan(glm, "--ram", "64G", "--nodes", one["nodes_for_all"] - 1)
    want(one["hit_rate"] < 1 and many["hit_rate"] == 1 and fewer["hit_rate"] < 1, "the fewest nodes")
    want(many["speed"]["slow_tok_s"] > one["speed"]["fast_tok_s"], "nodes beat the disk")
    sliced = plan(glm, "--ram", "64G", "--nodes", one["nodes_for_all"], "--slices")
    want(sliced["speed"]["terms"]["experts"]["seconds"] < many["speed"]["terms"]["experts"]["seconds"], "balance")
    text = call("plan", glm, "--ram", "64G", "--nodes", 9, *rates)
    want("total, attention node" in text.stdout and "total, expert node" in text.stdout, "both tables", text)


def check_formats_and_context_change_the_plan():
    q4, q8 = plan(glm, "--ram", "1T"), plan(glm, "--ram", "1T", "--experts", "q8")
    want(1.9 < q8["container"]["experts_bytes"] / q4["container"]["experts_bytes"] < 2, "q8 experts")
    small = plan(glm, "--ram", "1T", "--dense", "q4")
    want(small["container"]["dense_bytes"] < .6 * q4["container"]["dense_bytes"], "q4 dense")
    long = plan(glm, "--ram", "1T", "--ctx-size", 131072, "--kv", "f32")
    cache = {p["part"]: p["bytes"] for p in long["placement"]}["kv cache"]
    want(abs(cache / 131072 - 2 * 95232) < 400, f"f32 cache {cache}")
    done = call("plan", glm, "--ctx-size", 2000000, *rates)
    want(done.returncode == 1 and "2000000" in done.stderr and "1048576" in done.stderr, "beyond the model's", done)


def check_too_little_ram_says_how_much_is_needed_and_what_to_do():
    done = call("plan", glm, "--ram", "16G", *rates)
    want(done.returncode == 1 and "Too little RAM" in done.stdout and "more than there is" in done.stdout, "text", done)
    out = plan(glm, "--ram", "16G", code=1)
    want(not out["fits"] and out["speed"] is None, "no speed then")
    want(out["needed_bytes"] == out["missing_bytes"] + 16 * 2**30, "needed and missing")
    want(plan(glm, "--ram", out["needed_bytes"], "--ctx-size", out["context"])["fits"], "needed is enough")
    plan(glm, "--ram", out["needed_bytes"] - 1, "--ctx-size", out["context"], code=1)


def check_too_little_ram_weighs_the_ways_out():
    for ram, word in (("16G", "which fits"), ("8G", "still too much")):
        done = call("plan", glm, "--ram", ram, *rates)
        want("--dense q4 it needs 11." in done.stdout and word in done.stdout, f"--dense q4 at {ram}", done)
        want("more nodes do not make this less" in done.stdout, "what does not help", done)
    want(plan(glm, "--ram", "16G", "--dense", "q4")["fits"], "and so it is")
    want("on the attention node" in call("plan", glm, "--ram", "16G", "--nodes", 3, *rates).stdout, "whose RAM")


def check_the_numbers_of_a_plan_add_up():
    for ram, code in (("8G", 1), ("16G", 1), ("32G", 0), ("64G", 0), ("128G", 0), ("1T", 0)):
        out = plan(glm, "--ram", ram, code=code)
        booked = sum(p["bytes"] for p in out["placement"] if p["tier"] == "ram")
        want(out["fits"] == (code == 0), f"fits at {ram}")
        if code == 1:
            want(booked == out["needed_bytes"], f"parts {booked} of {out['needed_bytes']} needed at {ram}")
            continue
        speed, machine = out["speed"], out["machine"]
        seconds = {name: term["seconds"] for name, term in speed["terms"].items()}
        work = sum(seconds.values()) - seconds["disk"]
        want(abs(speed["fast_tok_s"] * max(work, seconds["disk"]) - 1) < 1e-9, f"fast of {speed}")
        want(abs(speed["slow_tok_s"] * (work + seconds["disk"]) / 0.6 - 1) < 1e-9, f"slow of {speed}")
        want(seconds[speed["limit"]] == max(seconds.values()), f"limit of {speed}")
        for name, rate in (("dense", "read_rate"), ("experts", "read_rate"), ("disk", "disk_rate")):
            term = speed["terms"][name]
            want(abs(term["seconds"] * machine[rate] - term["bytes"]) < 1, f"{name} at {ram}: {term}")


def check_a_gpu_is_refused_plainly():
    done = call("plan", glm, "--vram", "24G")
    want(done.returncode == 1 and "no GPU tier" in done.stderr and done.stdout == "", "refused", done)
    want(plan(glm, "--ram", "64G", "--vram", "0")["fits"], "0 is what it is")


def check_nothing_is_no_rate_but_a_full_disk_is_one():
    for option in ("--read-rate", "--disk-rate", "--flop-rate", "--link-rate"):
        done = call("plan", glm, "--ram", "64G", option, 0)
        want(done.returncode == 2 and option in done.stderr and "more than 0" in done.stderr, option, done)
    for value in ("2GB", "2G/s", "10Gbit", "-1", "", "fast"):
        done = call("plan", glm, "--disk-rate", value)
        want(done.returncode == 2 and "a size such as" in done.stderr, value, done)
    done = call("plan", glm, "--ram", "64G", "--disk", 0, *rates)
    want(done.returncode == 0 and "only 0 B is free" in done.stdout, "a full disk", done)


def check_configs_that_are_none_are_named():
    path = os.path.join(work, "config.json")
    config = json.load(open(glm))
    for change, word in ((lambda c: c.update(model_type="llama"), "llama"),
                         (lambda c: c.pop("num_hidden_layers"), "num_hidden_layers"),
                         (lambda c: c.update(scoring_func="softmax"), "scoring_func")):
        bad = json.loads(json.dumps(config))
        change(bad)
        json.dump(bad, open(path, "w"))
        done = call("plan", path)
        want(done.returncode == 1 and word in done.stderr and done.stdout == "", word, done)
    open(path, "w").write("{ not json")
    for verb in ("plan", "status", "doctor"):
        done = call(verb, path)
        want(done.returncode == 1 and "JSON" in done.stdout + done.stderr, f"{verb}: not JSON", done)
    os.remove(path)


def check_a_smaller_model_of_the_family_is_planned_too():
    config = json.load(open(glm))
    config.update(num_hidden_layers=40, n_routed_experts=64)
    for key in ("indexer_types", "mlp_layer_types"):
        config[key] = config[key][:40]
    config.pop("quantization_config")
    folder = place("smaller")
    os.makedirs(folder)
    json.dump(config, open(os.path.join(folder, "config.json"), "w"))
    out = plan(folder, "--ram", "1T")
    want(out["experts"] == 37 * 64 and out["model"]["from"] == "config", f"{out['model']}")
    want(out["source"]["bytes"] > 2 * 37 * 64 * 37748736, "BF16 where the config names no quantisation")


# ---- no model, half a model

verbs = ("plan", "doctor", "status", "heat")


def refused(path, *words, begun=False):
    """Every verb says what is wrong and what to do, for people and, as one object, for scripts."""
    for verb in verbs:
        done = call(verb, path)
        text = done.stdout + done.stderr
        want(done.returncode == (3 if verb == "status" and begun else 1), f"{verb} {path}: exit", done)
        for word in words:
            want(word in text, f"{verb} {path}: {word}", done)
        done = call(verb, path, "--json")
        lines = done.stdout.splitlines()
        want(len(lines) == 1, f"{verb} {path}: one line of JSON", done)
        found = json.loads(lines[0])
        if verb in ("plan", "heat"):
            want(found["error"] in done.stderr and found["next"] in done.stderr, f"{verb} {path}: {found}")
        want(all(word in lines[0] for word in words), f"{verb} {path}: JSON", done)


def check_no_model_is_named_with_what_to_give():
    refused(os.path.join(work, "nowhere"), "nowhere: No such file", "made by moesaic convert", "downloads nothing")
    refused("", "found an empty text", "made by moesaic convert")
    os.makedirs(place("empty"))
    refused(os.path.join(work, "empty"), "found neither", "made by moesaic convert")
    refused("/dev/null", "expected a regular file", "a config.json")


def check_a_file_that_is_no_config_names_what_to_give():
    path = os.path.join(work, "notes.txt")
    open(path, "w").write("hello\n")
    refused(path, "notes.txt: expected JSON", "or a config.json")
    for name in ("moesaic.json", "dense.bin"):
        refused(os.path.join(model, name), f"{name}: ", f"give the container's directory, {model}")


def check_packs_without_a_description_are_no_config():
    torn = copy(model, "torn")
    os.remove(os.path.join(torn, "moesaic.json"))
    refused(torn, "expected moesaic.json beside", "copy moesaic.json")
    for name in ("manifest.bin", "config.json", "generation_config.json", "tokenizer.bin"):
        os.remove(os.path.join(torn, name))
    refused(torn, "expected moesaic.json beside", "what is left of a conversion")


def check_a_mistake_of_the_command_line_is_json_too():
    for arguments, word in ((("plan", glm, "--vram", "24G"), "GPU"), (("plan", glm, "--ctx-size", 2000000), "2000000"),
                            (("status", model, "--ctx-size", 99999999), "99999999"),
                            (("heat", "import", model, "nowhere.txt"), "nowhere.txt"),
                            (("inspect", "nowhere"), "nowhere")):
        done = call(*arguments, "--json")
        want(done.returncode == 1 and word in json.loads(done.stdout)["error"] and word in done.stderr, word, done)


def as_nobody():
    """Arguments of subprocess.run for a user who is not root; what permissions forbid, root may."""
    if os.geteuid() != 0:
        return {}
    everyone = {"user": 65534, "group": 65534, "extra_groups": []}
    try:
        if subprocess.run([moesaic, "version"], capture_output=True, **everyone).returncode == 0:
            return everyone
    except OSError:
        pass
    raise Skip("another user cannot run the program from here")


def check_what_may_not_be_read_is_said_to_be_that():
    everyone = as_nobody()
    locked = copy(model, "locked")
    source = copy(nano, "locked-source")
    shard = sorted(f for f in os.listdir(source) if f.endswith(".safetensors"))[0]
    os.chmod(os.path.join(source, shard), 0)
    for path, what in (("experts-001.bin", locked), ("moesaic.json", locked)):
        os.chmod(os.path.join(what, path), 0)
        for verb in verbs:
            done = call(verb, what, **everyone)
            text = done.stdout + done.stderr
            want(done.returncode == 1 and f"{path}: Permission denied" in text and "uid" in text, verb, done)
            want("copy" not in text, "nothing is wrong with the file", done)
    os.chmod(locked, 0o600)
    for verb in verbs:
        done = call(verb, locked, **everyone)
        text = done.stdout + done.stderr
        want(done.returncode == 1 and "Permission denied" in text and "let this user" in text, verb, done)
    os.chmod(locked, 0o700)
    done = call("status", source, **everyone)
    want(done.returncode == 3 and "not usable yet" in done.stdout and shard in done.stdout, "a checkpoint", done)


def check_a_folder_that_cannot_be_written_keeps_no_heat():
    everyone = as_nobody()
    fixed = copy(model, "fixed")
    os.chmod(fixed, 0o555)
    want("--heat FILE" in call("status", fixed, **everyone).stdout, "status")
    done = call("doctor", fixed, **everyone)
    want(done.returncode == 3 and "[warn] heat" in done.stdout and "--heat FILE" in done.stdout, "doctor", done)
    elsewhere = ("--heat", "/tmp/some.heat")
    want(call("doctor", fixed, *elsewhere, **everyone).returncode == 0, "heat elsewhere, doctor")
    want("none yet" in call("status", fixed, *elsewhere, **everyone).stdout, "heat elsewhere, status")
    done = call("doctor", cwd=fixed, **everyone)
    want(done.returncode == 3 and "no file can be written" in done.stdout, "no scratch file", done)
    os.chmod(fixed, 0o755)


def stop_conversion(target, source, want_records):
    """A conversion that is held by SIGSTOP while its ledger is there; None when it was too fast."""
    child = subprocess.Popen([moesaic, "convert", source, target, "--threads", "1"],
                             stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    ledger, least = os.path.join(target, "convert.ledger"), 65536 if want_records else 64
    while child.poll() is None:
        try:
            if os.path.getsize(ledger) > least or (not want_records and os.path.getsize(ledger) > 0):
                break
        except OSError:
            pass
    child.send_signal(signal.SIGSTOP)
    time.sleep(0.01)
    if os.path.exists(os.path.join(target, "moesaic.json")) or not os.path.exists(ledger):
        child.kill()
        child.wait()
        return None
    return child


def check_half_a_conversion_says_how_far_it_is_and_to_run_it_again():
    source = os.path.join(fixtures, "wide-bf16")
    for _ in range(50):
        target = place("half")
        child = stop_conversion(target, source, False)
        if child:
            break
    want(child, "a conversion could be stopped")
    running = asked("status", target, code=3)
    child.kill()
    child.wait()
    want(running["converting"] and "wait" in running["next"], f"the lock is seen: {running['next']}")
    stopped = asked("status", target, code=3)
    want(stopped["state"] == "unfinished conversion" and not stopped["converting"], f"{stopped}")
    want(0 <= stopped["records_here"] < stopped["records"], f"{stopped['records_here']} of {stopped['records']}")
    want("moesaic convert SOURCE" in stopped["next"] and "--experts q4 --dense q8" in stopped["next"], stopped["next"])
    done = call("status", target)
    want("unfinished conversion" in done.stdout and "moesaic convert" in done.stdout, "text", done)
    done = call("plan", target)
    want(done.returncode == 1 and "unfinished conversion" in done.stderr and "run convert again" in done.stderr,
         "plan", done)
    refused(target, "unfinished conversion", "run convert again", begun=True)
    row = rows(target, code=1)["model"]
    want(row["level"] == "fail" and "run convert again" in row["advice"], f"doctor {row}")
    command = stopped["next"].split("moesaic convert SOURCE ")[1].split()
    want(call("convert", source, *command).returncode == 0, "the command that was named finishes it")
    want(asked("status", target)["ready"], "and then it is ready")


def check_a_ledger_that_is_damaged_is_named():
    target = place("ledger")
    os.makedirs(target)
    open(os.path.join(target, "convert.ledger"), "wb").close()  # a conversion that died at its start
    out = asked("status", target, code=3)
    want(out["records"] == 0 and "run convert again" in out["next"], f"{out}")
    open(os.path.join(target, "convert.ledger"), "wb").write(b"not a ledger at all" * 10)
    open(os.path.join(target, "dense.bin"), "wb").write(b"\0" * 4096)
    out = asked("status", target, code=1)
    want(out["state"] == "broken" and "convert.ledger" in out["reason"] and "delete" in out["next"], f"{out}")
    want("delete" in rows(target, code=1)["model"]["advice"], "doctor")


def check_a_download_that_is_not_complete_is_named():
    part = copy(nano, "part")
    first = sorted(f for f in os.listdir(part) if f.endswith(".safetensors") and f.startswith("model"))[0]
    os.remove(os.path.join(part, first))
    out = asked("status", part, code=3)
    want(out["state"] == "checkpoint" and out["shards_missing"] == 1 and first in out["next"], f"{out}")
    row = rows(part, code=1)["model"]
    want(row["level"] == "fail" and first in row["advice"], f"doctor {row}")
    want(any(first in line for line in plan(part, "--ram", "8G")["advice"]), "plan")
    whole = copy(nano, "whole")
    want("moesaic convert" in asked("status", whole, code=3)["next"], "a whole one is to be converted")
    os.remove(os.path.join(whole, "tokenizer.json"))
    want("tokenizer.json" in asked("status", whole, code=3)["next"], "the tokenizer is missed")


def check_a_partial_copy_names_the_packs_it_lacks():
    # What is removed, and what doctor says: an expert rank can do without the last two.
    for names, level in ((["experts-002.bin"], "fail"), (["dense.bin", "experts-001.bin"], "fail"),
                         (["dense.bin"], "warn"), (["tokenizer.bin"], "warn")):
        partial = copy(model, "partial")
        for name in names:
            os.remove(os.path.join(partial, name))
        out = asked("status", partial, code=3)
        want(out["missing"] == names and not out["ready"], f"{names}: {out}")
        done = call("status", partial)
        for name in names:
            want(done.stdout.count("\nmissing ") == len(names) and name in done.stdout, f"{name} once", done)
        want(rows(partial, code=1 if level == "fail" else 3)["model"]["level"] == level, f"doctor without {names}")
        want(any("not whole" in line for line in plan(partial, "--ram", "8G")["advice"]), f"plan without {names}")
        done = call("run", partial, "--ids", "1,2,3", "-n", 1)
        want(done.returncode == 1, f"a run without {names}", done)


def check_without_the_mtp_experts_a_copy_runs():
    source = os.path.join(fixtures, "tiny-fp8")
    partial = place("no-mtp")
    want(call("convert", source, partial).returncode == 0, "convert")
    os.remove(os.path.join(partial, "experts-007.bin"))
    out = asked("status", partial)
    want(out["ready"] and out["missing"] == ["experts-007.bin"] and "run it" in out["next"], f"{out}")
    want("MTP" in rows(partial)["model"]["found"], "doctor")
    want(call("run", partial, "--ids", "1,2,3", "-n", 1).returncode == 0, "a run")


def check_damage_is_found_and_named():
    bad = copy(model, "damaged")
    for name in ("experts-001.bin", "dense.bin"):
        with open(os.path.join(bad, name), "r+b") as f:
            f.seek(os.path.getsize(f.name) // 2)
            f.write(b"\xa5" * 9000)
    found = rows(bad, "--deep", code=1)["hashes"]
    want(found["level"] == "fail" and "damaged" in found["found"] and "copy" in found["advice"], f"{found}")
    want(rows(model, "--deep")["hashes"]["level"] == "ok", "a whole one passes")
    os.truncate(os.path.join(bad, "manifest.bin"), 100)
    for verb in ("status", "plan", "doctor"):
        done = call(verb, bad)
        want(done.returncode == 1 and "manifest.bin" in done.stdout + done.stderr, verb, done)


# ---- a container

def check_status_of_a_complete_container_is_quick_and_says_run():
    begin = time.monotonic()
    out = asked("status", model)
    want(out["ready"] and out["state"] == "container" and out["next"].startswith("run it: moesaic run"), f"{out}")
    want(out["records"] == out["records_here"] == 96 and out["memory"]["runs"], f"{out}")
    text = call("status", model)
    want(text.returncode == 0 and "complete container" in text.stdout and "formats    experts q4, dense q8" in
         text.stdout, "text", text)
    print(f"       status twice: {time.monotonic() - begin:.2f} s")


def check_heat_is_used_once_it_knows_enough():
    usage, hot = os.path.join(work, "usage.txt"), copy(model, "hot")
    # Three MoE layers of the fixture; expert 0 takes nearly all.
    layers = [l for l in range(1, 4)]
    with open(usage, "w") as f:
        for l in layers:
            for e in range(8):
                f.write(f"{l} {e} {4000 if e == 0 else 100}\n")
    done = call("heat", "import", hot, usage)
    if done.returncode != 0:  # which layers have experts is the fixture's matter
        open(usage, "w").writelines(f"{l} {e} {4000 if e == 0 else 100}\n" for l in (1, 2) for e in range(8))
        done = call("heat", "import", hot, usage)
    want(done.returncode == 0, "import", done)
    out = plan(hot, "--ram", "8G")
    want(out["heat"] == "file" and out["heat_tokens"] > 0, f"{out['heat']}")
    want(plan(hot, "--ram", "8G", "--heat", "none")["heat"] == "glm-5.2", "none is looked at")
    want(asked("status", hot)["heat"]["tokens"] > 0, "status knows it")
    open(os.path.join(hot, "heat.bin"), "wb").write(b"not a heat file" * 20)
    want("error" in asked("status", hot, code=3)["heat"], "a broken one is reported")
    want(rows(hot, code=3)["heat"]["level"] == "warn", "doctor")
    out = plan(hot, "--ram", "8G")
    want(out["heat"] == "glm-5.2" and "heat.bin" in out["heat_error"] and "reset" in out["heat_error"],
         f"plan goes on without: {out['heat_error']}")
    want(any("not used" in line for line in out["advice"]), "and says so")


def check_a_plan_books_what_a_run_books():
    line = re.compile(r"memory \S+ (.*) bytes (\d+)$")
    cases = (("nano-bf16", ()), ("tiny-fp8", ("--kv", "f32")), ("wide-bf16", ("--ctx-size", "777", "--chunk", "33")),
             ("nano-mtp", ("--threads", "3")))
    for name, options in cases:
        container = place(f"booked-{name}")
        want(call("convert", os.path.join(fixtures, name), container).returncode == 0, name)
        ran = call("run", container, "--ids", "1,2,3", "-n", 1, "--ram", "3G", "--log", "info", *options)
        want(ran.returncode == 0, f"run {name}", ran)
        booked = {m[1]: int(m[2]) for m in map(line.search, ran.stderr.splitlines()) if m}
        for source in (container, os.path.join(fixtures, name)):
            planned = plan(source, "--ram", "3G", *options)
            parts = {p["part"]: p["bytes"] for p in planned["placement"]}
            parts["experts"] = sum(p["bytes"] for p in planned["placement"]
                                   if p["tier"] == "ram" and p["part"].startswith("experts"))
            for part in ("dense weights", "kv cache", "attention scratch", "expert scratch", "experts"):
                want(parts[part] == booked[part], f"{source}: {part}: planned {parts[part]}, booked {booked[part]}")
            want(planned["machine"]["ram_bytes"] == booked["limit"], "limit")


def check_a_plan_says_how_many_experts_a_run_keeps():
    container = place("kept")
    want(call("convert", os.path.join(fixtures, "wide-bf16"), container).returncode == 0, "convert")
    whole = plan(container, "--ram", "1G", "--ctx-size", 512)
    fixed = whole["all_bytes"] - whole["experts"] * whole["container"]["record_bytes"]
    for share in (0.02, 0.1, 0.3, 0.5, 0.77, 0.99):
        ram = fixed + int(share * whole["experts"] * whole["container"]["record_bytes"])
        options = ("--ram", ram, "--ctx-size", 512)
        planned = plan(container, *options)
        ran = call("run", container, "--ids", "1,2,3", "-n", 1, "--log", "info", *options)
        want(ran.returncode == 0, "run", ran)
        kept = re.search(r"experts (\d+) in ram (\d+)", ran.stderr)
        want((int(kept[1]), int(kept[2])) == (planned["experts"], planned["experts_in_ram"]),
             f"at {share}: planned {planned['experts_in_ram']} of {planned['experts']}, kept {kept[0]}")
        booked = int(re.search(r"memory \S+ experts bytes (\d+)", ran.stderr)[1])
        slots = sum(p["bytes"] for p in planned["placement"] if p["tier"] == "ram" and p["part"].startswith("experts"))
        want(booked == slots, f"at {share}: planned {slots} bytes of slots, booked {booked}")
        want(asked("doctor", container, "--ram", ram, "--ctx-size", 512, code=3), "doctor warns")


def check_what_plan_says_is_enough_is_enough():
    container = place("booked-nano-bf16")
    want(call("convert", nano, container).returncode == 0, "convert")
    out = plan(container, "--ram", "1M", "--ctx-size", 512, code=1)
    run = ("run", container, "--ids", "1,2,3", "-n", 1, "--ctx-size", 512, "--ram")
    done = call(*run, out["needed_bytes"])
    want(done.returncode == 0, "a run with what plan needs", done)
    done = call(*run, out["needed_bytes"] - 1)
    want(done.returncode == 1, "and not with a byte less", done)


def check_a_limit_of_the_process_is_what_there_is():
    limit = 400 << 20
    small = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit))}
    done = call("plan", model, "--json", **small)
    if "Sanitizer" in done.stderr:
        raise Skip("a sanitizer needs more address space than that")
    want(done.returncode == 0 and json.loads(done.stdout)["machine"]["ram_bytes"] < limit, "plan", done)
    done = call("doctor", model, **small)
    want(done.returncode == 3 and "[warn] ulimit" in done.stdout and "ulimit -v" in done.stdout, "doctor", done)
    done = call("status", glm, "--json", **small)
    memory = json.loads(done.stdout)["memory"]
    want(not memory["runs"] and memory["available_bytes"] < limit < memory["least_bytes"], "status", done)


def check_a_cgroup_that_leaves_hardly_any_memory_kills_nobody():
    group = "/sys/fs/cgroup/memory/moesaic-test"  # v1; elsewhere this needs a delegated subtree
    try:
        os.makedirs(group, exist_ok=True)
        open(os.path.join(group, "memory.limit_in_bytes"), "w").write(str(24 << 20))
    except OSError as why:
        raise Skip(f"no memory group can be made here: {why}") from why
    try:
        small = {"preexec_fn": lambda: open(os.path.join(group, "cgroup.procs"), "w").write(str(os.getpid()))}
        if "Sanitizer" in call("version", **small).stderr or call("version", **small).returncode != 0:
            raise Skip("not even version runs in it")
        done = call("plan", model, "--json", **small)
        out = json.loads(done.stdout)
        want(out["fits"] and out["machine"]["ram_bytes"] < 24 << 20, "plan", done)
        want(out["machine"]["read_rate_source"] == "assumed", "a cache is no memory", done)
        done = call("doctor", model, **small)
        want(done.returncode == 3 and "[warn] cgroup" in done.stdout and "0 failures" in done.stdout, "doctor", done)
        want(call("status", model, **small).returncode == 0, "status")
        want(call("plan", glm, **small).returncode == 1, "plan of what does not fit")
    finally:
        os.rmdir(group)


def check_status_says_when_memory_does_not_do():
    done = call("status", model, "--ram", "1M", "--ctx-size", 512)
    want(done.returncode == 3 and "too little" in done.stdout and "at least" in done.stdout, "text", done)
    want("moesaic plan" in done.stdout.splitlines()[-1] and "moesaic run" not in done.stdout, "next", done)
    out = asked("status", model, "--ram", "1M", "--ctx-size", 512, code=3)
    least = out["memory"]["least_bytes"]
    want(plan(model, "--ram", "1M", "--ctx-size", 512, code=1)["needed_bytes"] == least, f"plan agrees: {least}")
    want(asked("status", model, "--ram", least, "--ctx-size", 512)["ready"], "least is enough")


# ---- doctor

def check_a_path_may_be_any_bytes():
    path = os.path.join(os.fsencode(work), b"mod\xe8le")
    shutil.copytree(os.fsencode(model), path)
    for verb in ("status", "doctor", "plan"):
        done = subprocess.run([os.fsencode(moesaic), verb.encode(), path, b"--json"], capture_output=True, timeout=60)
        want(done.returncode == 0 and json.loads(done.stdout), f"{verb}: {done.stderr}")
    done = subprocess.run([os.fsencode(moesaic), b"status", path + b"\xff", b"--json"], capture_output=True, timeout=60)
    want(done.returncode == 1 and "mod?le?" in json.loads(done.stdout)["reason"], f"{done}")


def check_doctor_without_a_model_leaves_nothing_behind():
    folder = place("here")
    os.makedirs(folder)
    done = call("doctor", "--json", cwd=folder)
    want(done.returncode in (0, 3), "nothing fails", done)
    found = {r["name"] for r in json.loads(done.stdout)["rows"]}
    want({"cpu", "kernels", "bits", "huge pages", "memlock", "ram", "cgroup", "disk", "mpi", "ucx", "cuda"} <= found, f"{found}")
    want(os.listdir(folder) == [], f"left behind: {os.listdir(folder)}")
    want(call("doctor", "--deep").returncode == 2, "--deep needs a model")


def check_doctor_judges_a_model_on_this_machine():
    found = rows(model)
    want({"model", "memory", "disk", "space", "hashes", "heat", "speed"} <= set(found), f"{set(found)}")
    row = rows(model, "--ram", "1M", code=1)["memory"]
    want(row["level"] == "fail" and "too little" in row["found"], f"{row}")
    done = call("doctor", model)
    want(done.returncode == 0 and "[ok]" in done.stdout and "0 failures" in done.stdout, "text", done)
    done = call("doctor", glm, "--ram", "24G")
    want(done.returncode in (1, 3) and "[warn] memory" in done.stdout and "->" in done.stdout, "advice", done)


# ---- a full disk: a small tmpfs in a mount namespace of its own

def on_small_disk(script, megabytes):
    folder = place("tmpfs")
    os.makedirs(folder)
    unshare = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
    inside = f"mount -t tmpfs -o size={megabytes}m tmpfs {folder} && cd {folder} || exit 99\n{script}"
    if not shutil.which("unshare"):
        raise Skip("there is no unshare(1) to mount a small disk with")
    done = subprocess.run([*unshare, "sh", "-c", inside], capture_output=True, text=True, timeout=60,
                          stdin=subprocess.DEVNULL)
    if done.returncode == 99 or "unshare" in done.stderr:
        raise Skip(f"no small disk can be mounted here: {done.stderr.strip()}")
    return done


fill = "dd if=/dev/zero of=filler bs=4k >/dev/null 2>&1;"


def check_a_full_disk_is_warned_of_and_the_model_still_runs():
    done = on_small_disk(f"cp -r {model} m; {fill} {moesaic} doctor m", 8)
    want(done.returncode == 3 and "the disk is full" in done.stdout and "make room" in done.stdout, "doctor", done)
    want("a filesystem in memory" in done.stdout, "a tmpfs is no disk", done)
    done = on_small_disk(f"cp -r {model} m; {fill} {moesaic} status m", 8)
    want(done.returncode == 0 and "0 B free: full" in done.stdout, "status", done)
    done = on_small_disk(f"cp -r {model} m; {fill} {moesaic} plan m --ram 4G", 8)
    want(done.returncode == 0 and "The disk is full" in done.stdout, "plan", done)
    done = on_small_disk(f"cp -r {model} m; {fill} echo 1 1 5 > /tmp/usage.$$; {moesaic} heat import m /tmp/usage.$$; "
                         "code=$?; rm /tmp/usage.$$; exit $code", 8)
    want(done.returncode == 1 and "make room" in done.stderr and "--heat FILE" in done.stderr, "heat", done)
    done = on_small_disk(f"{fill} {moesaic} doctor", 8)
    want(done.returncode == 3 and "too little to measure" in done.stdout, "doctor without a model", done)


def check_a_disk_too_small_for_the_conversion_is_told_beforehand():
    done = on_small_disk(f"cp -r {nano} s; {fill} {moesaic} plan s --ram 4G", 4)
    want(done.returncode == 0 and "use a larger disk" in done.stdout, "plan", done)
    done = on_small_disk(f"cp -r {nano} s; {fill} {moesaic} doctor s", 4)
    want(done.returncode == 1 and "[fail] space" in done.stdout, "doctor", done)
    done = on_small_disk(f"cp -r {nano} s; {fill} {moesaic} convert s t", 4)
    want(done.returncode == 1 and "free" in done.stderr, "convert", done)
    out = plan(nano, "--ram", "4G", "--disk", 1)
    want(out["disk"]["free_bytes"] == 1 and out["disk"]["needed_bytes"] > 1, "given")


def main():
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(work)
    want(call("convert", nano, model).returncode == 0, "convert")
    failed = skipped = 0
    for name, check in list(globals().items()):
        if not name.startswith("check_"):
            continue
        begin = time.monotonic()
        try:
            check()
            print(f"ok   {name[6:]} ({time.monotonic() - begin:.1f} s)")
        except Skip as reason:
            skipped += 1
            print(f"SKIP {name[6:]}: {reason}")
        except (AssertionError, subprocess.TimeoutExpired, json.JSONDecodeError, OSError, KeyError) as e:
            failed += 1
            print(f"FAIL {name[6:]}: {type(e).__name__} {e}")
    print(f"{failed} failed, {skipped} skipped")
    shutil.rmtree(work, ignore_errors=True)
    return 1 if failed else 0


sys.exit(main())
