#!/usr/bin/env python3
"""verify fails when something is wrong: refusals.py MOESAIC FIXTURES WORKDIR. Each check_* is a claim.

One value of a good reference is changed at a time; verify has to notice and to name it.
"""
import math
import os
import shutil
import sys

from oracle import Failure, convert, verify
from reference_dir import ReferenceDir

moesaic, fixtures, work = sys.argv[1:4]
source = os.path.join(fixtures, "nano-bf16")
container = os.path.join(work, "container")


def want(condition, what, *seen):
    if not condition:
        raise AssertionError(": ".join([what, *(str(value) for value in seen)]))


def changed(name, change):
    """Verifies against a copy of the reference that `change` has edited."""
    reference = ReferenceDir(source)
    change(reference)
    return verify(moesaic, container, reference.write(os.path.join(work, name)))


def edit(tensor, index, value):
    def change(reference):
        values = reference.get(tensor)
        values[index] = value(values[index])
        reference.set(tensor, values)

    return change


def check_the_unchanged_copy_passes():
    code, result, _ = changed("same", lambda reference: None)
    want(code == 0 and result["pass"], "passes", code, result)
    want(result["first_deviation"] == "", "no deviation", result)


def check_another_latent_eps_exceeds_the_tolerance_and_is_said():
    other = os.path.join(work, "eps")
    convert(moesaic, source, other, "f32", eps=1e-5)
    code, result, errors = verify(moesaic, other, source)
    want(code == 1 and not result["pass"], "exit 1", code, result)
    want(1e-4 < result["max_logit_diff"] < 1e-3, "2e-4 in logits", result)
    want(result["first_deviation"].startswith("layer "), "a first deviation", result)
    want("latent eps differs" in errors and "--latent-eps 1e-06" in errors, "advice", errors)


def check_a_changed_expert_id_makes_its_router_set_differ():
    name = "p1.layer1.router_idx"
    topk = ReferenceDir(source).shape(name)[1]
    first = 4 * topk  # row 4

    def change(reference):
        values = reference.get(name)
        chosen = values[first:first + topk]
        unused = next(i for i in range(len(chosen) + 1) if i not in chosen)
        values[first:first + topk] = sorted([*chosen[1:], unused])
        reference.set(name, values)

    code, result, _ = changed("router", change)
    count = result["router_sets"]
    want(code == 1 and count["equal"] == count["total"] - 1, "one set differs", code, result)


def check_a_changed_position_makes_its_index_set_differ():
    name = "p2.layer2.topk"
    chosen = ReferenceDir(source).shape(name)[1]
    first = 30 * chosen  # row 30 chooses `chosen` of 31

    def change(reference):
        values = reference.get(name)
        row = values[first:first + chosen]
        unused = next(i for i in range(31) if i not in row)
        values[first:first + chosen] = sorted([*row[1:], unused])
        reference.set(name, values)

    code, result, _ = changed("index", change)
    count = result["index_sets"]
    want(code == 1 and count["equal"] == count["total"] - 1, "one set differs", code, result)


def check_a_changed_logit_exceeds_the_tolerance():
    code, result, _ = changed("logit", edit("p2.logits", 5, lambda x: x + 2e-4))
    want(code == 1 and 1.5e-4 < result["max_logit_diff"] < 2.5e-4, "the change", code, result)


def check_a_logit_that_is_not_a_number_does_not_pass():
    code, result, _ = changed("nan", edit("p1.logits", 7, lambda x: math.nan))
    want(code == 1 and not result["pass"], "exit 1", code, result)


def check_a_changed_greedy_token_is_counted():
    def change(reference):
        greedy = reference.info["prompts"][1]["greedy"]
        greedy[2] = (greedy[2] + 1) % 300

    code, result, _ = changed("greedy", change)
    count = result["greedy"]
    want(code == 1 and count["equal"] == count["total"] - 1, "one token differs", code, result)


def check_a_changed_hidden_state_is_named_by_layer_and_tensor():
    _, result, _ = changed("hidden", edit("dbg.layer1.mlp", 70, lambda x: x + 0.01))
    want(result["first_deviation"].startswith("layer 1 mlp"), "named", result)
    want(result["max_hidden_diff"] > 0.009, "measured", result)


def check_a_wider_tolerance_lets_the_changed_logit_pass():
    reference = ReferenceDir(source)
    edit("p2.logits", 5, lambda x: x + 2e-4)(reference)
    path = reference.write(os.path.join(work, "tolerance"))
    code, result, _ = verify(moesaic, container, path, "--tolerance", "1e-3")
    want(code == 0 and result["pass"], "passes", code, result)


def check_only_rows_with_a_small_gap_are_exempt():
    def change(reference):
        rows = reference.shape("p1.ids")[0]
        begin = len(reference.data)
        reference.data += bytes(4 * rows)
        reference.header["p1.layer1.router_gap"] = {
            "dtype": "F32", "shape": [rows], "data_offsets": [begin, begin + 4 * rows]}
        gaps = [1.0] * rows
        gaps[4] = 0.9e-5
        reference.set("p1.layer1.router_gap", gaps)
        columns = reference.shape("p1.logits")[1]
        for row in (4, 6):  # 4 is exempt, 6 is not
            edit("p1.logits", row * columns, lambda x: x + 1)(reference)

    code, result, _ = changed("gap", change)
    want(code == 1 and result["exempt_rows"] == 1, "row 6 fails, row 4 is exempt", code, result)
    want(result["positions"]["exempt"] == 1, "counted apart", result)


def check_integer_activations_deviate_by_their_rounding():
    """q8 with and without --float-activations: the option matters, and int8 costs about 1 %."""
    quantised = os.path.join(work, "q8")
    convert(moesaic, source, quantised, "q8")
    _, integer, _ = verify(moesaic, quantised, source)
    _, floating, _ = verify(moesaic, quantised, source, "--float-activations")
    want(integer != floating, "the option changes nothing", integer)
    for result in (integer, floating):
        name, _, rest = result["first_deviation"].partition(": ")
        want(name == "layer 0 q_resid", "the first projection rounds", result)
        want(1e-3 < float(rest.split()[0]) < 0.1, "by about 1 % of values near 1", result)


def check_a_tensor_of_other_columns_is_named_and_not_read():
    def narrower(name):
        def change(reference):
            rows, columns = reference.shape(name)
            reference.header[name]["shape"] = [rows * columns // 2, 2] if columns % 2 == 0 else [rows, 1]

        return change

    for name in ("dbg.embed", "dbg.final_norm", "dbg.layer1.out", "dbg.layer0.kv_latent"):
        try:
            changed("narrow", narrower(name))
        except Failure as failure:
            want(f"{name}: expected" in str(failure), "named", failure)
        else:
            raise AssertionError(f"a result for a {name} of other columns")


def check_a_reference_of_another_model_is_named():
    try:
        verify(moesaic, container, os.path.join(fixtures, "tiny-fp8"))
    except Failure as failure:
        want("vocabulary of 2048, the model 384" in str(failure), "named", failure)
    else:
        raise AssertionError("a result for another model's reference")


def main():
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(work)
    convert(moesaic, source, container, "f32")
    bad = 0
    for name, check in sorted(globals().items()):
        if not name.startswith("check_"):
            continue
        try:
            check()
            print(f"ok   {name[6:]}")
        except (AssertionError, Failure) as failure:
            bad += 1
            print(f"FAIL {name[6:]}: {failure}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
