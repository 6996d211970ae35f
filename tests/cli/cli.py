#!/usr/bin/env python3
"""The program as its user meets it: cli.py MOESAIC FIXTURES WORKDIR. Each check_* is one claim."""
import json
import os
import re
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
    want("prefill" in last and "decode 8 tokens" in last and "experts took" in last, "closing line", done)
    want("this process" not in last and "waited" not in last, "alone it waits for nobody", done)


def check_settings_come_before_the_answer_and_figures_after_its_newline():
    done = subprocess.run([moesaic, "run", model, "--prompt", "hello", "-n", "8", "--temp", "0", "--ignore-eos"],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    lines = done.stdout.split(b"\n")
    want(lines[0].startswith(b"moesaic: model ") and lines[-2].startswith(b"moesaic: prefill ") and lines[-1] == b""
         and len(lines) >= 4, f"order: {lines}")


def check_json_holds_what_was_promised():
    done = call("run", model, "--ids", ids, "-n", 8, "--temp", 0, "--json", "--ignore-eos")
    want(done.returncode == 0, "exit 0", done)
    out = json.loads(done.stdout)
    want(len(out["ids"]) == 8 and out["finish"] == "length" and out["prompt_tokens"] == 12
         and isinstance(out["text"], str) and "decode_tok_s" in out["timings"], f"fields of {out}")
    want(out["stop_reason"] == "length" and out["seed"] is None and len(out["model"]) == 64
         and out["reasoning"] is None and out["content"] == out["text"], f"fields of {out}")
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
        want(part["wall_s"] >= 0.999 * out["timings"][f"{half}_s"] and part["processor_s"] > 0,
             f"{half}: the profile covers all of {out['timings']}", done)
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
    for arguments, text in (((), ""), ((), "\n"), (("--raw",), "")):
        done = call("run", model, *arguments, stdin=text)
        want(done.returncode == 1 and "the prompt is empty" in done.stderr, "refused", done)
    done = call("run", model, "--prompt", "")
    want(done.returncode == 2 and "--prompt: the prompt is empty" in done.stderr, "usage", done)


def check_one_newline_at_the_end_of_stdin_is_dropped_and_no_more():
    def prompt_tokens(text):
        return json.loads(call("run", model, "--raw", "-n", 1, "--temp", 0, "--json", stdin=text).stdout)["prompt_tokens"]
    want(prompt_tokens("hello") == prompt_tokens("hello\n") < prompt_tokens("hello\n\n"), "newlines")


def check_ids_that_are_no_ids_are_refused():
    for bad in ("1,x", "32 abc", "-1", "99999999999", "1;2", "", ", "):
        done = call("run", os.path.join(work, "nowhere"), "--ids", bad)  # before the model is looked at
        want(done.returncode == 2 and "--ids: expected" in done.stderr, bad, done)
    done = call("run", model, "--ids", "400000")
    want(done.returncode == 1 and "400000" in done.stderr and "vocabulary" in done.stderr, "range", done)
    want("INCOMPLETE" not in done.stderr and "prefill" not in done.stderr, "nothing ran", done)


def check_a_prompt_longer_than_the_context_is_refused_with_both_numbers():
    done = call("run", model, "--ids", ids, "--ctx-size", 8)
    want(done.returncode == 1 and "12" in done.stderr and "8" in done.stderr, "numbers", done)


def check_a_budget_too_small_prints_the_table():
    done = call("run", model, "--ids", ids, "--ram", "1M")
    want(done.returncode == 1, "exit 1", done)
    for row in ("dense weights", "kv cache", "attention scratch", "expert scratch", "experts, at least",
                "raise --ram", "--ctx-size", "--chunk"):
        want(row in done.stderr, row, done)
    want("--kv bf16" not in done.stderr, "it is that already", done)
    done = call("run", model, "--ids", ids, "--ram", "1M", "--kv", "f32")
    want("--kv bf16" in done.stderr, "advice", done)


def run_context(*arguments):
    done = call("run", model, "--ids", ids, "-n", 2, "--temp", 0, "--heat", "none", *arguments)
    found = re.search(r"context (\d+),", done.stderr)
    return int(found.group(1)) if done.returncode == 0 and found else None


def check_without_a_context_what_fits_is_taken_and_plan_says_the_same():
    low, high = 1 << 16, 1 << 28
    while high - low > 1 << 14:
        middle = (low + high) // 2
        low, high = (low, middle) if run_context("--ram", middle, "-c", 64) else (middle, high)
    want(run_context("--ram", high) == 64, f"the least context at {high} bytes")
    for size in (high * 11 // 10, high * 13 // 10, high * 2):
        context = run_context("--ram", size)
        want(context is not None, f"{size} bytes are enough for some context")
        plan = json.loads(call("plan", model, "--ram", size, "--json", "--read-rate", "10G", "--disk-rate", "1G",
                               "--flop-rate", 10).stdout)
        want(plan["context"] == context, f"plan {plan['context']}, run {context} at {size} bytes")


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
    want(b"stopped by signal 2" in err and b"waiting for" not in err, f"alone it waits for nobody: {err!r}")


def check_environment_twins_count_and_the_command_line_wins():
    env = dict(os.environ, MOESAIC_TOKENS="3", MOESAIC_TEMP="0")
    three = call("run", model, "--ids", ids, "--print-ids", "--ignore-eos", env=env)
    five = call("run", model, "--ids", ids, "--print-ids", "--ignore-eos", "-n", 5, env=env)
    want(len(three.stdout.split()) == 3 and len(five.stdout.split()) == 5, "twins", three)


def check_the_command_line_wins_over_the_twin_of_what_it_excludes():
    env = dict(os.environ, MOESAIC_PROMPT="x", MOESAIC_NO_THINK="1", MOESAIC_TEMP="0")
    done = call("run", model, "--ids", ids, "-n", 3, "--json", env=env)
    want(done.returncode == 0 and json.loads(done.stdout)["prompt_tokens"] == 12, "the ids", done)
    done = call("run", model, "-n", 3, env=dict(os.environ, MOESAIC_PROMPT="x", MOESAIC_IDS="1"))
    want(done.returncode == 2 and "MOESAIC_PROMPT" in done.stderr and "MOESAIC_IDS" in done.stderr, "both", done)


def check_an_unknown_variable_is_named_with_the_nearest():
    env = dict(os.environ, MOESAIC_TMEP="0", MOESAIC_GLM5_TOKENIZER_JSON="x", MOESAIC_FLOP_RATE="5")
    done = call("version", env=env)
    want(done.returncode == 0 and done.stderr.count("\n") == 1 and "MOESAIC_TMEP" in done.stderr
         and "MOESAIC_TEMP?" in done.stderr, "one warning", done)


def check_usage_errors_are_exit_2_and_say_where_to_read_on():
    for arguments, words in ((("--top-p", 0), "--top-p"), (("--stop=",), "--stop"), (("--nonsense",), "--nonsense"),
                             (("--raw", "--system", "x"), "--raw --system"), (("--raw", "--no-think"), "--no-think"),
                             (("--top-k", 1 << 33), "--top-k"), (("--json", "--print-ids"), "--print-ids"),
                             (("--stop", "x" * 2000), "--stop")):
        done = call("run", model, "--prompt", "x", *arguments)
        want(done.returncode == 2 and "see moesaic run --help" in done.stderr, f"{arguments}", done)
        want(all(word in done.stderr for word in words.split()), words, done)
    for arguments in (("--system", "x"), ("--no-think",), ("--template-compat",), ("--prompt", "x")):
        done = call("run", model, "--ids", ids, *arguments)
        want(done.returncode == 2 and "--ids" in done.stderr and arguments[0] in done.stderr, f"{arguments}", done)


def check_a_context_beyond_the_models_names_the_option():
    done = call("run", model, "--ids", ids, "-c", 99999999)
    want(done.returncode == 1 and "--ctx-size" in done.stderr and "99999999" in done.stderr, "named", done)


def check_zero_threads_are_the_usable_cores():
    for arguments in (("run", model, "--ids", ids, "-n", 2), ("inspect", model, "--deep"), ("plan", model),
                      ("convert", os.path.join(fixtures, "nano-bf16"), os.path.join(work, "dry"), "--dry-run"),
                      ("doctor",)):
        done = call(*arguments, "--threads", 0)
        want(done.returncode in (0, 3), f"{arguments[0]} --threads 0", done)


def check_help_of_a_verb_shows_choices_and_each_default_once():
    for verb in ("run", "verify", "convert", "heat", "inspect", "plan", "doctor", "bench", "status", "version"):
        done = call("help", verb)
        want(done.returncode == 0 and done.stdout == call(verb, "--help").stdout != "", f"help {verb}", done)
        text = " ".join(done.stdout.split())
        for option in re.split(r" --", text):
            want(len(re.findall("default", option.split("MOESAIC_")[0])) <= 1, f"{verb}: twice: {option}")
    text = " ".join(call("help", "run").stdout.split())
    for part in ("KV cache: f32|bf16 (default bf16", "error|warn|info|debug", "default 0: until the context is full",
                 "one newline at its end"):
        want(part in text, f"{part} in {text}")
    want("f32|bf16|q8|q4 (default q4, MOESAIC_EXPERTS)" in " ".join(call("convert", "--help").stdout.split()), "convert")
    done = call("help", "rnu")
    want(done.returncode == 2 and "'rnu'" in done.stderr, "unknown verb", done)


RESULTS = (("--help",), ("help", "run"), ("version",), ("version", "--json"), ("inspect", "MODEL"),
           ("inspect", "MODEL", "--json"), ("plan", "MODEL", "--json"), ("status", "MODEL"),
           ("heat", "MODEL", "--json"), ("doctor", "--json"), ("convert", "SOURCE", "MODEL", "--json"),
           ("run", "MODEL", "--ids", "1,2", "-n", "4"), ("run", "MODEL", "--ids", "1,2", "-n", "4", "--json"))


def results():
    names = {"MODEL": model, "SOURCE": os.path.join(fixtures, "nano-bf16")}
    for arguments in RESULTS:
        yield [names.get(a, a) for a in arguments]


def check_a_full_disk_under_stdout_is_exit_1_and_named():
    for arguments in results():
        with open("/dev/full", "w") as full:
            done = subprocess.run([moesaic, *arguments], stdin=subprocess.DEVNULL, stdout=full, text=True,
                                  stderr=subprocess.PIPE, timeout=60)
        want(done.returncode == 1 and "stdout: No space left on device" in done.stderr, f"{arguments}", done)


def check_a_pipe_without_reader_is_quiet():
    for arguments in results():
        read_end, write_end = os.pipe()
        os.close(read_end)
        done = subprocess.run([moesaic, *arguments], stdin=subprocess.DEVNULL, stdout=write_end, text=True,
                              stderr=subprocess.PIPE, timeout=60)
        os.close(write_end)
        want(done.returncode in (0, 3) and "stdout" not in done.stderr, f"{arguments}", done)


def check_closed_descriptors_are_not_taken_by_files():
    for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
        command = f'exec "$0" "$@" {closed}'
        done = subprocess.run(["sh", "-c", command, moesaic, "run", model, "--ids", ids, "-n", "4"],
                              capture_output=True, text=True, timeout=60)
        want(done.returncode == 0, closed, done)
    want(call("inspect", model, "--deep").returncode == 0, "nothing was written into the container")


def check_thinking_is_said_and_parted_in_json():
    done = call("run", model, "--prompt", "hello", "-n", 4, "--temp", 0, "--json")
    out = json.loads(done.stdout)
    want("thinking on (--no-think switches it off)" in done.stderr, "said", done)
    whole = out["reasoning"] + "</think>" + out["content"] if "</think>" in out["text"] else out["reasoning"]
    want(out["text"] == whole, f"parts of {out}")
    done = call("run", model, "--prompt", "hello", "-n", 4, "--temp", 0, "--json", "--no-think")
    out = json.loads(done.stdout)
    want("thinking" not in done.stderr and out["reasoning"] is None and out["content"] == out["text"], "off", done)


def check_quiet_leaves_results_and_errors_alone():
    done = call("run", model, "--prompt", "hello", "-n", 4, "--temp", 0, "--quiet")
    want(done.returncode == 0 and done.stdout.strip() != "" and done.stderr == "", "quiet", done)
    done = call("run", model, "--prompt", "hello", "-q", "-c", 2)
    want(done.returncode == 1 and "--ctx-size" in done.stderr, "errors still", done)


def check_info_shows_the_life_of_a_process_alone():
    done = call("run", model, "--ids", ids, "-n", 2, "--log", "info")
    for event in ("opened", "dense weights loaded", "experts", "limit bytes", "ready", "closing"):
        want(event in done.stderr, event, done)


def check_one_token_has_no_decode_rate():
    done = call("run", model, "--ids", ids, "-n", 1, "--temp", 0, "--ignore-eos")
    want("decode 1 token, experts" in done.stderr, "no rate", done)


def check_the_seed_in_json_repeats_the_run():
    first = json.loads(call("run", model, "--ids", ids, "-n", 8, "--temp", 1, "--json", "--ignore-eos").stdout)
    again = json.loads(call("run", model, "--ids", ids, "-n", 8, "--temp", 1, "--json", "--ignore-eos", "--seed",
                            first["seed"]).stdout)
    want(first["ids"] == again["ids"] and first["seed"] == again["seed"], f"{first} {again}")


def mpirun(ranks, *arguments, stdin=""):
    env = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    return subprocess.run(["timeout", "-k", "5", "60", "mpirun", "--oversubscribe", "--bind-to", "none", "-n",
                           str(ranks), *map(str, arguments)], input=stdin, capture_output=True, text=True,
                          timeout=90, env=env)


def have_mpi():
    return json.loads(call("version", "--json").stdout)["mpi"] and shutil.which("mpirun") is not None


def check_under_mpirun_a_bad_prompt_ends_all_ranks_before_they_load():
    if not have_mpi():
        return
    for arguments, text in ((("--ids", ids, "-c", 8), "12 tokens"), (("--raw",), "the prompt is empty"),
                            (("--ids", "400000"), "vocabulary")):
        begin = time.monotonic()
        done = mpirun(3, moesaic, "run", model, *arguments, "--log", "info")
        want(done.returncode == 1 and text in done.stderr, text, done)
        want("INCOMPLETE" not in done.stderr and "loaded" not in done.stderr and "PMIX" not in done.stderr,
             "ended in order", done)
        want(time.monotonic() - begin < 30, "at once")


def check_under_mpirun_a_nodes_table_stays_readable():
    if not have_mpi():
        return
    done = mpirun(2, "sh", "-c", '[ "$OMPI_COMM_WORLD_RANK" = 0 ] || set -- "$@" --ram 8K; exec "$@"', "sh",
                  moesaic, "run", model, "--ids", ids)
    line = next((l for l in done.stderr.splitlines() if "rank 1" in l and "memory" in l), "")
    want(done.returncode == 1 and "; expert scratch" in line and "raise --ram" in line and "?" not in line, line, done)


def check_under_mpirun_a_wrong_option_is_told_once_by_whom_it_concerns():
    if not have_mpi():
        return
    done = mpirun(3, moesaic, "run", model, "--ids", ids, "--chunk", "0x")
    want(done.returncode == 2 and done.stderr.count("--chunk") == 1 and "has a command line" not in done.stderr,
         "of all ranks: once", done)
    done = mpirun(2, moesaic, "inspect", model, "--depp")
    want(done.returncode == 2 and done.stderr.count("--depp") == 1, "of any verb", done)
    for prefix in ('set -- "$@" --chunk 0x', "export MOESAIC_CHUNK=0x"):
        done = mpirun(2, "sh", "-c", f'[ "$OMPI_COMM_WORLD_RANK" = 0 ] || {prefix}; exec "$@"', "sh",
                      moesaic, "run", model, "--ids", ids)
        want(done.returncode == 2 and done.stdout == "", "exit code", done)
        want("moesaic: rank 1 (host " in done.stderr and "0x" in done.stderr, "of one rank: by it", done)


def check_a_missing_tokenizer_is_named():
    part = os.path.join(work, "no-tokenizer")
    shutil.copytree(model, part)
    os.remove(os.path.join(part, "tokenizer.bin"))
    done = call("run", part, "--prompt", "x", "-n", 2)
    want(done.returncode == 1 and "tokenizer.bin is missing" in done.stderr, "named", done)


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
    want("--experts f32 --dense f32 --grid fine" in done.stderr and "--kv f32" in done.stderr, "hint", done)
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
