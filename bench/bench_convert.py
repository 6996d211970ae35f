#!/usr/bin/env python3
"""bench_convert.py MOESAIC FIXTURES WORKDIR [EXPERTS] - MB of source converted per second and core.

Makes a checkpoint whose experts have GLM-5.2's shape (2048 x 6144 x 3) and whose rest is tiny, in BF16
and in FP8 with block scales, with Gaussian weights, and converts it by the clock: experts q4 and q8,
one thread and two. EXPERTS (default 8) are 75 MB of BF16 or 38 MB of FP8 each. The source is in the
page cache, as it was just written; what is written goes to WORKDIR's disk and is part of the time.
mb_per_cpu_s, source over processor time of all threads, holds also when others use the machine.
Prints CSV after a header of '#' lines. Needs numpy.
"""
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import time

import numpy as np

HIDDEN, INTER, LAYERS, SHARD_BYTES = 6144, 2048, 2, 1 << 28
TINY = {"hidden_size": HIDDEN, "moe_intermediate_size": INTER, "num_hidden_layers": LAYERS,
        "num_nextn_predict_layers": 0, "mlp_layer_types": ["dense", "sparse"],
        "indexer_types": ["full", "shared"], "first_k_dense_replace": 1, "dtype": "bfloat16"}


def shapes(c):
    """name -> shape of every tensor of the checkpoint; the shared expert is an expert too."""
    hidden, heads, rank, q_rank = HIDDEN, c["num_attention_heads"], c["kv_lora_rank"], c["q_lora_rank"]
    nope, rope, value = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    out = {"model.embed_tokens.weight": (c["vocab_size"], hidden), "model.norm.weight": (hidden,),
           "lm_head.weight": (c["vocab_size"], hidden)}
    for layer in range(LAYERS):
        p = f"model.layers.{layer}."
        a = p + "self_attn."
        out |= {p + "input_layernorm.weight": (hidden,),
                p + "post_attention_layernorm.weight": (hidden,),
                a + "q_a_proj.weight": (q_rank, hidden), a + "q_a_layernorm.weight": (q_rank,),
                a + "q_b_proj.weight": (heads * (nope + rope), q_rank),
                a + "kv_a_proj_with_mqa.weight": (rank + rope, hidden),
                a + "kv_a_layernorm.weight": (rank,),
                a + "kv_b_proj.weight": (heads * (nope + value), rank),
                a + "o_proj.weight": (hidden, heads * value)}
        if c["indexer_types"][layer] == "full":
            dim, i = c["index_head_dim"], a + "indexer."
            out |= {i + "wq_b.weight": (c["index_n_heads"] * dim, q_rank), i + "wk.weight": (dim, hidden),
                    i + "k_norm.weight": (dim,), i + "k_norm.bias": (dim,),
                    i + "weights_proj.weight": (c["index_n_heads"], hidden)}
        if c["mlp_layer_types"][layer] == "dense":
            parts = {p + "mlp.": c["intermediate_size"]}
        else:
            out |= {p + "mlp.gate.weight": (c["n_routed_experts"], hidden),
                    p + "mlp.gate.e_score_correction_bias": (c["n_routed_experts"],)}
            parts = {f"{p}mlp.experts.{e}.": INTER for e in range(c["n_routed_experts"])}
            parts[p + "mlp.shared_experts."] = INTER
        for prefix, inter in parts.items():
            out |= {prefix + "gate_proj.weight": (inter, hidden), prefix + "up_proj.weight": (inter, hidden),
                    prefix + "down_proj.weight": (hidden, inter)}
    return out


class Weights:
    """Bytes of a tensor out of one block of Gaussian values, each tensor from another offset."""

    def __init__(self):
        random = np.random.default_rng(1)
        values = (random.standard_normal(1 << 23) * 0.02).astype(np.float32)
        self.bf16 = (values.view(np.uint32) >> 16).astype(np.uint16)
        magnitude = np.array([(m / 8 * 2.0 ** -6) if e == 0 else (1 + m / 8) * 2.0 ** (e - 7)
                              for e in range(16) for m in range(8)][:127])
        index = np.searchsorted((magnitude[1:] + magnitude[:-1]) / 2, np.abs(values) * 3000)
        self.fp8 = (index.astype(np.uint8) | (values < 0).astype(np.uint8) << 7)
        self.next = 0

    def take(self, block, count):
        self.next = (self.next + 999983) % block.size
        whole = np.concatenate([block[self.next:], block[:self.next]])
        return np.resize(whole, count).tobytes()


def tensors_of(name, shape, fp8, weights):
    """[(name, dtype, shape, bytes)]: one tensor, and its block scales in FP8."""
    count = int(np.prod(shape))
    if name.endswith("e_score_correction_bias"):
        return [(name, "F32", shape, bytes(4 * count))]
    if not fp8 or not re.search(r"mlp\.(experts|shared)", name):
        return [(name, "BF16", shape, weights.take(weights.bf16, count))]
    blocks = tuple(-(-n // 128) for n in shape)
    scale = np.full(blocks, 1 / 3000, np.float32).tobytes()
    return [(name, "F8_E4M3", shape, weights.take(weights.fp8, count)),
            (name + "_scale_inv", "F32", blocks, scale)]


def write_shard(path, tensors):
    header, offset = {}, 0
    for name, dtype, shape, data in tensors:
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for *_, data in tensors:
            file.write(data)


def make_source(fixtures, folder, experts, fp8):
    """Returns the bytes of its shards."""
    base = os.path.join(fixtures, "nano-bf16")
    os.makedirs(folder)
    with open(os.path.join(base, "config.json"), encoding="utf-8") as file:
        config = json.load(file) | TINY | {"n_routed_experts": experts}
    if fp8:
        config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3",
                                         "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copyfile(os.path.join(base, name), os.path.join(folder, name))
    weights, shard, size, total, number = Weights(), [], 0, 0, 0
    pending = list(shapes(config).items())
    for at, (name, shape) in enumerate(pending):
        made = tensors_of(name, shape, fp8, weights)
        shard += made
        size += sum(len(data) for *_, data in made)
        if size >= SHARD_BYTES or at == len(pending) - 1:
            number += 1
            path = os.path.join(folder, f"model-{number:05d}-of-99999.safetensors")
            write_shard(path, shard)
            total += os.path.getsize(path)
            shard, size = [], 0
    return total


def cpu_name():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        lines = dict(line.rstrip("\n").replace("\t", "").split(": ", 1) for line in file if ": " in line)
    flags = lines.get("flags", "").split()
    return f"{lines.get('model name', '?')}; avx2 {'avx2' in flags}, avx512 {'avx512f' in flags}"


def convert(moesaic, source, target, experts, threads):
    shutil.rmtree(target, ignore_errors=True)
    begin = time.monotonic()
    process = subprocess.Popen([moesaic, "convert", source, target, "--experts", experts, "--threads",
                                str(threads)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True)
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - begin
    if status != 0:
        sys.exit(f"convert: {errors}")
    return seconds, usage.ru_utime + usage.ru_stime


def main():
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    moesaic, fixtures, work = sys.argv[1:4]
    experts = int(sys.argv[4]) if len(sys.argv) == 5 else 8
    if experts < 2:  # two are chosen for a token
        sys.exit(f"EXPERTS: expected 2 or more, found {experts}")
    print(f"# {cpu_name()}\n# cpus usable {len(os.sched_getaffinity(0))}")
    print("source,experts_format,threads,source_mb,seconds,cpu_seconds,mb_per_s,mb_per_cpu_s")
    for fp8 in (False, True):
        source, target = os.path.join(work, "source"), os.path.join(work, "target")
        shutil.rmtree(source, ignore_errors=True)
        size = make_source(fixtures, source, experts, fp8)
        for fmt in ("q4", "q8"):
            for threads in (1, 2):
                seconds, cpu = convert(moesaic, source, target, fmt, threads)
                print(f"{'fp8' if fp8 else 'bf16'},{fmt},{threads},{size * 1e-6:.0f},{seconds:.2f},"
                      f"{cpu:.2f},{size * 1e-6 / seconds:.0f},{size * 1e-6 / cpu:.0f}", flush=True)
        shutil.rmtree(source)
        shutil.rmtree(target)


if __name__ == "__main__":
    main()
