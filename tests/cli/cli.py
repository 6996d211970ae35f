#!/usr/bin/env python3
"""The program as its user meets it: cli.py MOESAIC FIXTURES WORKDIR. Each check_* is one claim."""
import json
import os
import shutil
import signal
import subprocess
import sys
import time

moesaic, fixtures, work = sys.argv[1:4]
model = os.path.join(work, "model")
ids = "1,2,3,4,5,6,7,8,9,10,11,12"


def call(*args, stdin="", **kw):
    return subprocess.run([moesaic, *map(str, args)], input=stdin, capture_output=True, text=True,
                          timeout=60, **kw)


def want(condition, what, done=None):
    if not condition:
        detail = f"\n  exit {done.returncode}\n  stdout {done.stdout!r}\n  stderr {done.stderr!r}" if done else ""
        raise AssertionError(what + detail)


def check_no_verb_is_a_usage_error():
    done = call()
    want(done.returncode == 2 and done.stdout == "" and "run" in done.stderr, "exit 2, help on stderr", done)


def check_an_unknown_verb_is_named_with_the_known_ones():
    done = call("rnu")
    want(done.returncode == 2 and "'rnu'" in done.stderr and "run" in done.stderr, "named", done)


def check_every_verb_has_help_on_stdout():
    for verb in ("run", "verify", "convert", "inspect", "version"):
        done = call(verb, "--help")
        want(done.returncode == 0 and "Usage" in done.stdout and done.stderr == "", f"{verb} --help", done)


def check_an_unknown_option_names_the_nearest():
    done = call("run", model, "--promt", "x")
    want(done.returncode == 2 and "--prompt" in done.stderr, "nearest name", done)


def check_a_value_out_of_range_names_expected_and_found():
    done = call("run", model, "--prompt", "x", "--top-p", "1.5")
    want(done.returncode == 2 and "top-p" in done.stderr and "1.5" in done.stderr, "named", done)


def check_a_missing_model_is_named():
    done = call("run", os.path.join(work, "nowhere"), "--prompt", "x")
    want(done.returncode == 1 and "nowhere" in done.stderr and done.stdout == "", "named", done)


def check_a_checkpoint_is_no_container_and_says_what_to_do():
    done = call("run", os.path.join(fixtures, "nano-bf16"), "--prompt", "x")
    want(done.returncode == 1 and "convert" in done.stderr, "advice", done)


def check_run_streams_text_and_ends_with_one_line_of_figures():
    done = call("run", model, "--prompt", "hello", "-n", 8, "--temp", 0)
    want(done.returncode == 0 and done.stdout.endswith("\n"), "text", done)
    last = done.stderr.strip().splitlines()[-1]
    want("prefill" in last and "decode" in last and "waited" in last, "closing line", done)


def check_json_holds_what_was_promised():
    done = call("run", model, "--ids", ids, "-n", 8, "--temp", 0, "--json", "--ignore-eos")
    want(done.returncode == 0, "exit 0", done)
    out = json.loads(done.stdout)
    want(len(out["ids"]) == 8 and out["finish"] == "length" and out["prompt_tokens"] == 12
         and isinstance(out["text"], str) and "decode_tok_s" in out["timings"], f"fields of {out}")
    plain = call("run", model, "--ids", ids, "-n", 8, "--temp", 0, "--print-ids", "--ignore-eos")
    want([int(i) for i in plain.stdout.split()] == out["ids"], "the same ids as --print-ids", plain)


def check_the_phases_of_a_profile_add_up_to_the_wall():
    args = ("run", model, "--ids", ids, "-n", 33, "--temp", 0, "--ignore-eos", "--json")
    done = call(*args, "--profile")
    want(done.returncode == 0, "exit 0", done)
    out = json.loads(done.stdout)
    plain = json.loads(call(*args).stdout)
    want("profile" not in plain and plain["ids"] == out["ids"], "no profile, same ids without --profile")
    for half, tokens in (("prefill", 12), ("decode", 32)):
        part = out["profile"][half]
        total = sum(phase["s"] for phase in part["phases"].values())
        want(part["tokens"] == tokens and 0.95 * part["wall_s"] <= total <= 1.05 * part["wall_s"],
             f"{half}: phases {total} s of {part['wall_s']} s", done)
        for phase in ("router", "dispatch", "experts_ram", "attention_projections", "attention", "head",
                      "dense_mlp", "shared_expert"):
            want(part["phases"][phase]["s"] > 0, f"{half}: time of {phase} in {part}")
        want(part["phases"]["disk"]["s"] == 0 and part["phases"]["remote"]["s"] == 0, "all in RAM, alone")
        want(part["phases"]["experts_ram"]["bytes"] > 0 and part["bytes"] > 0, "bytes are counted")
        want("the wall is " in part["sentence"] and part["sentence"] in done.stderr, f"{half}: the sentence", done)
    want(out["profile"]["decode"]["phases"]["sampling"]["s"] > 0, "sampling is a phase of decode")


def check_the_same_seed_gives_the_same_ids_and_another_does_not():
    def run(seed):
        return call("run", model, "--ids", ids, "-n", 16, "--temp", 1, "--seed", seed, "--print-ids",
                    "--ignore-eos").stdout
    want(run(1) == run(1) != "", "same seed")
    want(len({run(s) for s in range(1, 5)}) > 1, "other seeds")


def check_a_prompt_comes_from_stdin_too():
    piped = call("run", model, "-n", 6, "--temp", 0, "--print-ids", stdin="hello")
    given = call("run", model, "-n", 6, "--temp", 0, "--print-ids", "--prompt", "hello")
    want(piped.returncode == 0 and piped.stdout == given.stdout != "", "stdin", piped)


def check_an_empty_prompt_is_refused():
    done = call("run", model, "--raw", stdin="")
    want(done.returncode == 1 and "no tokens" in done.stderr, "refused", done)


def check_ids_that_are_no_ids_are_refused():
    for bad in ("1,x", "-1", "99999999999", "1;2"):
        done = call("run", model, "--ids", bad)
        want(done.returncode == 1 and "--ids: expected" in done.stderr, bad, done)
    done = call("run", model, "--ids", "400000")
    want(done.returncode == 1 and "400000" in done.stderr and "vocabulary" in done.stderr, "range", done)


def check_a_prompt_longer_than_the_context_is_refused_with_both_numbers():
    done = call("run", model, "--ids", ids, "--ctx-size", 8)
    want(done.returncode == 1 and "12" in done.stderr and "8" in done.stderr, "numbers", done)


def check_a_budget_too_small_prints_the_table():
    done = call("run", model, "--ids", ids, "--ram", "1M")
    want(done.returncode == 1 and "dense weights" in done.stderr, "table", done)


def check_a_closed_stdout_ends_quietly():
    child = subprocess.Popen([moesaic, "run", model, "--ids", ids, "-n", "100000", "--ignore-eos",
                              "--ctx-size", "20000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             stdin=subprocess.DEVNULL)
    child.stdout.read(16)
    child.stdout.close()
    err = child.stderr.read().decode()
    want(child.wait(timeout=30) == 0 and "EPIPE" not in err and "Broken" not in err, f"quiet: {err!r}")


def check_an_interrupt_says_that_the_answer_is_incomplete():
    child = subprocess.Popen([moesaic, "run", model, "--ids", ids, "-n", "100000", "--ignore-eos",
                              "--ctx-size", "20000", "--json"], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    line = child.stderr.readline().decode()
    want("prompt 12" in line, f"settings line: {line!r}")
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=30)
    want(child.returncode == 1 and out == b"" and b"INCOMPLETE" in err, f"{child.returncode} {out!r} {err!r}")


def check_environment_twins_count_and_the_command_line_wins():
    env = dict(os.environ, MOESAIC_TOKENS="3", MOESAIC_TEMP="0")
    three = call("run", model, "--ids", ids, "--print-ids", "--ignore-eos", env=env)
    five = call("run", model, "--ids", ids, "--print-ids", "--ignore-eos", "-n", 5, env=env)
    want(len(three.stdout.split()) == 3 and len(five.stdout.split()) == 5, "twins", three)


def check_a_damaged_record_is_named():
    bad = os.path.join(work, "damaged")
    shutil.copytree(model, bad)
    with open(os.path.join(bad, "dense.bin"), "r+b") as f:
        f.seek(os.path.getsize(f.name) // 2)
        f.write(b"\xa5" * 9000)  # longer than any padding between records
    done = call("run", bad, "--ids", ids, "-n", 2)
    want(done.returncode == 1 and "dense.bin" in done.stderr and done.stdout == "", "named", done)
    done = call("inspect", bad, "--deep")
    want(done.returncode == 1, "inspect --deep fails", done)
    want(call("inspect", bad).returncode == 0, "a quick look does not read records")


def check_verify_passes_and_fails_with_its_exit_code():
    oracle = os.path.join(work, "oracle")
    source = os.path.join(fixtures, "nano-bf16")
    want(call("convert", source, oracle, "--experts", "f32", "--dense", "f32", "--grid", "fine",
              "--latent-eps", "1e-6").returncode == 0, "convert")
    done = call("verify", oracle, "--reference", source, "--kv", "f32", "--json")
    want(done.returncode == 0 and json.loads(done.stdout)["pass"], "pass", done)
    done = call("verify", model, "--reference", source)
    want(done.returncode == 1 and "FAIL" in done.stdout and "latent eps differs" in done.stderr, "fail", done)
    done = call("verify", oracle)
    want(done.returncode == 2 and "--reference" in done.stderr, "usage", done)
    done = call("verify", oracle, "--reference", os.path.join(fixtures, "tiny-fp8"))
    want(done.returncode == 1 and "2048" in done.stderr and "384" in done.stderr, "other model", done)


def main():
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(work)
    done = call("convert", os.path.join(fixtures, "nano-bf16"), model)
    want(done.returncode == 0, "convert", done)
    failed = 0
    for name, check in list(globals().items()):
        if not name.startswith("check_"):
            continue
        begin = time.monotonic()
        try:
            check()
            print(f"ok   {name[6:]} ({time.monotonic() - begin:.1f} s)")
        except (AssertionError, subprocess.TimeoutExpired, json.JSONDecodeError, OSError) as e:
            failed += 1
            print(f"FAIL {name[6:]}: {e}")
    return 1 if failed else 0


sys.exit(main())
