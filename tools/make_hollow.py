#!/usr/bin/env python3
"""make_hollow.py OUT [--config config.json] [--shards N] [--bf16] [--filled] - a checkpoint of holes.

Writes shards with the release's tensor names and shapes whose data are holes of a sparse file (all
weights zero), so that planning, disk checks and memory can be tried at full size: the default is
GLM-5.2 in FP8, 756 GB that take a few MB of disk. --filled writes random weights instead (take a small
config then). The tokenizer is not made: copy one into OUT.
"""
import argparse
import json
import os
import struct

import numpy as np

GLM_5_2 = {
    "architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa", "dtype": "bfloat16",
    "vocab_size": 154880, "hidden_size": 6144, "num_hidden_layers": 78, "intermediate_size": 12288,
    "moe_intermediate_size": 2048, "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 75,
    "first_k_dense_replace": 3, "moe_layer_freq": 1, "n_routed_experts": 256,
    "num_experts_per_tok": 8, "n_shared_experts": 1, "scoring_func": "sigmoid",
    "topk_method": "noaux_tc", "norm_topk_prob": True, "routed_scaling_factor": 2.5, "n_group": 1,
    "topk_group": 1, "num_attention_heads": 64, "num_key_value_heads": 64, "q_lora_rank": 2048,
    "kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "qk_head_dim": 256,
    "v_head_dim": 256, "attention_bias": False, "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": 8000000, "rope_type": "default"}, "rope_interleave": True,
    "indexer_rope_interleave": True, "max_position_embeddings": 1048576, "index_n_heads": 32,
    "index_head_dim": 128, "index_topk": 2048, "index_topk_freq": 4, "index_skip_topk_offset": 3,
    "indexer_types": ["full" if max(i - 2, 0) % 4 == 0 else "shared" for i in range(78)],
    "num_nextn_predict_layers": 1, "hidden_act": "silu", "tie_word_embeddings": False,
    "eos_token_id": [154820, 154827, 154829], "pad_token_id": 154820,
}


def tensors(c):
    """(name, shape, quantised) of every tensor."""
    hidden, heads = c["hidden_size"], c["num_attention_heads"]
    nope, rope, value = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    q_rank, rank, layers = c["q_lora_rank"], c["kv_lora_rank"], c["num_hidden_layers"]
    index_dim, index_heads = c["index_head_dim"], c["index_n_heads"]
    yield "model.embed_tokens.weight", (c["vocab_size"], hidden), False
    yield "lm_head.weight", (c["vocab_size"], hidden), False
    yield "model.norm.weight", (hidden,), False
    for layer in range(layers + c.get("num_nextn_predict_layers", 0)):
        p, mtp = f"model.layers.{layer}.", layer >= layers
        yield p + "input_layernorm.weight", (hidden,), False
        yield p + "post_attention_layernorm.weight", (hidden,), False
        a = p + "self_attn."
        yield a + "q_a_proj.weight", (q_rank, hidden), True
        yield a + "q_a_layernorm.weight", (q_rank,), False
        yield a + "q_b_proj.weight", (heads * (nope + rope), q_rank), True
        yield a + "kv_a_proj_with_mqa.weight", (rank + rope, hidden), True
        yield a + "kv_a_layernorm.weight", (rank,), False
        yield a + "kv_b_proj.weight", (heads * (nope + value), rank), True
        yield a + "o_proj.weight", (hidden, heads * value), True
        if mtp or c["indexer_types"][layer] == "full":
            i = a + "indexer."
            yield i + "wq_b.weight", (index_heads * index_dim, q_rank), True
            yield i + "wk.weight", (index_dim, hidden), True
            yield i + "k_norm.weight", (index_dim,), False
            yield i + "k_norm.bias", (index_dim,), False
            yield i + "weights_proj.weight", (index_heads, hidden), False
        m = p + "mlp."
        if not mtp and c["mlp_layer_types"][layer] == "dense":
            places = [(m, c["intermediate_size"])]
        else:
            yield m + "gate.weight", (c["n_routed_experts"], hidden), False
            yield m + "gate.e_score_correction_bias", (c["n_routed_experts"],), None
            inter = c["moe_intermediate_size"]
            places = [(f"{m}experts.{e}.", inter) for e in range(c["n_routed_experts"])]
            places.append((m + "shared_experts.", inter * c["n_shared_experts"]))
        for prefix, inter in places:
            yield prefix + "gate_proj.weight", (inter, hidden), True
            yield prefix + "up_proj.weight", (inter, hidden), True
            yield prefix + "down_proj.weight", (hidden, inter), True
        if mtp:
            for name in ("enorm", "hnorm", "shared_head.norm"):
                yield f"{p}{name}.weight", (hidden,), False
            yield p + "eh_proj.weight", (hidden, 2 * hidden), False


def stored(c, bf16):
    """(name, dtype, shape) as they lie in the files."""
    for name, shape, quantised in tensors(c):
        if quantised is None:
            yield name, "F32", shape
        elif quantised and not bf16:
            yield name, "F8_E4M3", shape
            yield name + "_scale_inv", "F32", tuple((n + 127) // 128 for n in shape)
        else:
            yield name, "BF16", shape


SIZES = {"F32": 4, "BF16": 2, "F8_E4M3": 1}


def fill(f, dtype, count, random):
    while count > 0:
        n = min(count, 1 << 22)
        values = random.standard_normal(n, dtype=np.float32) * np.float32(0.02)
        if dtype == "BF16":
            f.write((values.view(np.uint32) >> 16).astype("<u2").tobytes())
        elif dtype == "F8_E4M3":
            f.write(random.integers(0, 0x70, n, np.uint8).tobytes())
        else:
            f.write(np.abs(values).tobytes())
        count -= n


def write_shard(path, items, filled):
    header, offset = {}, 0
    for name, dtype, shape in items:
        size = SIZES[dtype] * int(np.prod(shape, dtype=np.int64))
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    random = np.random.default_rng(len(text))
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        if filled:
            for name, dtype, shape in items:
                fill(f, dtype, int(np.prod(shape, dtype=np.int64)), random)
        else:
            f.truncate(8 + len(text) + offset)
    return offset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--config")
    parser.add_argument("--shards", type=int, default=141)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--filled", action="store_true")
    asked = parser.parse_args()
    config = json.load(open(asked.config)) if asked.config else GLM_5_2
    os.makedirs(asked.out, exist_ok=True)
    items = list(stored(config, asked.bf16))
    per = (len(items) + asked.shards - 1) // asked.shards
    shards = [items[i:i + per] for i in range(0, len(items), per)]
    weight_map, total = {}, 0
    for i, part in enumerate(shards):
        name = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        total += write_shard(os.path.join(asked.out, name), part, asked.filled)
        weight_map.update({item[0]: name for item in part})
    json.dump({"metadata": {"total_size": total}, "weight_map": weight_map},
              open(os.path.join(asked.out, "model.safetensors.index.json"), "w"), indent=1)
    json.dump(config, open(os.path.join(asked.out, "config.json"), "w"), indent=1)
    print(f"{len(items)} tensors, {len(shards)} shards, {total} bytes")


if __name__ == "__main__":
    main()
