#!/usr/bin/env python3
"""dequantise.py CONTAINER SOURCE OUT - the checkpoint that a container's weights amount to.

Reads the container's packs as docs/container.md lays them out (in numpy, no code shared with the
program), and writes OUT as a checkpoint in the release's names: every tensor F32, exactly the weights
that the kernels see (scale * q rounded to float32), kv_b put together again from uk_t and uv. A
reference made from OUT (make_reference.py OUT) is the oracle for the container: q8 and q4 with
--float-activations must reproduce it.

SOURCE is the checkpoint that was converted; its reference.json names the prompts.
"""
import json
import os
import shutil
import struct
import sys

import numpy as np

from checkpoint import F, write_tensors

TILE, LINE, ALIGN, NO_LAYER = 16, 64, 4096, 0xFFFF
KINDS = {1: "embed", 2: "lm_head", 3: "final_norm", 4: "rope_inv_freq", 16: "input_norm",
         17: "post_norm", 18: "q_a", 19: "q_a_norm", 20: "q_b", 21: "kv_a", 22: "kv_a_norm",
         23: "uk_t", 24: "uv", 25: "o", 32: "index_q", 33: "index_k", 34: "index_k_norm",
         35: "index_weight", 48: "gate", 49: "up", 50: "down", 64: "router", 65: "router_bias",
         66: "shared", 67: "expert", 80: "enorm", 81: "hnorm", 82: "head_norm", 83: "eh_proj"}


def round_up(value, multiple):
    return (value + multiple - 1) // multiple * multiple


def group_of(width, limit=0):
    for group in (64, 32, 16):
        if width % group == 0 and (not limit or group <= limit):
            return group
    return 16


def inter_group_of(inter):
    return group_of(inter, max(inter // 2, 1))


# ---- matrices ----

def scale_bytes(fmt):
    return TILE * (4 if fmt in ("q8f32", "q4f32") else 2)


def group_bytes(fmt, group):
    return scale_bytes(fmt) + group * TILE // (2 if fmt in ("q4", "q4f32") else 1)


def tile_bytes(fmt, cols, group):
    if fmt == "f32":
        return cols * TILE * 4
    if fmt == "bf16":
        return (cols + cols % 2) * TILE * 2
    groups = (cols + group - 1) // group
    return round_up(groups * group_bytes(fmt, group), LINE)


def matrix_bytes(fmt, rows, cols, group):
    return (rows + TILE - 1) // TILE * tile_bytes(fmt, cols, group)


def unpack_tile(fmt, data, cols, group):
    """One tile's bytes -> [16][cols] float32."""
    if fmt == "f32":
        return np.frombuffer(data, "<f4").reshape(cols, TILE).T
    if fmt == "bf16":
        bits = np.frombuffer(data, "<u2").reshape(-1, TILE)[:cols].T
        return (bits.astype(np.uint32) << 16).view(F)
    groups = (cols + group - 1) // group
    size, scales = group_bytes(fmt, group), scale_bytes(fmt)
    raw = np.frombuffer(data[:groups * size], np.uint8).reshape(groups, size)
    scale = raw[:, :scales].copy().view("<f2" if scales == 32 else "<f4").astype(F)  # [groups][16]
    body = raw[:, scales:]
    if fmt in ("q8", "q8f32"):
        q = body.view(np.int8).reshape(groups, group // 4, TILE, 4).transpose(2, 0, 1, 3)
        q = q.reshape(TILE, groups, group)
    else:
        body = body.reshape(groups, group // 8, TILE, 4)
        q = np.stack([body & 15, body >> 4], 3)  # [groups][k/8][16][2][4]
        q = q.transpose(2, 0, 1, 3, 4).reshape(TILE, groups, group).astype(np.int16) - 8
    return (q.astype(F) * scale.T[:, :, None]).reshape(TILE, groups * group)[:, :cols]


def unpack(fmt, data, rows, cols, group):
    size = tile_bytes(fmt, cols, group)
    tiles = [unpack_tile(fmt, data[i * size:(i + 1) * size], cols, group)
             for i in range((rows + TILE - 1) // TILE)]
    return np.ascontiguousarray(np.concatenate(tiles)[:rows], F)


# ---- packs ----

class Container:
    def __init__(self, folder):
        self.info = json.load(open(os.path.join(folder, "moesaic.json")))
        self.config = json.load(open(os.path.join(folder, "config.json")))
        self.records = {}
        for name in sorted(os.listdir(folder)):
            if name == "dense.bin" or (name.startswith("experts-") and name.endswith(".bin")):
                self.read_index(os.path.join(folder, name))

    def read_index(self, path):
        with open(path, "rb") as f:
            magic, version, entry_bytes, count = struct.unpack("<8sIIQ", f.read(24))
            if magic != b"MOEPACK\n" or version != 1 or entry_bytes != 40:
                raise ValueError(f"{path}: not a pack")
            f.seek(64)
            for _ in range(count):
                layer, kind, index, length, offset, _, _ = struct.unpack("<HHIQQQQ", f.read(40))
                self.records[(layer, KINDS[kind], index)] = (path, offset, length)

    def read(self, layer, kind, index=0):
        path, offset, length = self.records[(layer, kind, index)]
        with open(path, "rb") as f:
            f.seek(offset)
            return f.read(length)

    def vector(self, layer, kind, shape):
        return np.frombuffer(self.read(layer, kind), "<f4").reshape(shape).copy()

    def matrix(self, layer, kind, rows, cols, fmt=None, group=None):
        fmt = fmt or self.info["dense_format"]
        return unpack(fmt, self.read(layer, kind), rows, cols, group or group_of(cols))

    def heads(self, layer, kind, count, rows, cols):
        fmt, group = self.info["dense_format"], group_of(cols)
        if kind == "uk_t" and fmt in ("q8f32", "q4f32"):
            fmt = "f32"
        size, data = matrix_bytes(fmt, rows, cols, group), self.read(layer, kind)
        return np.stack([unpack(fmt, data[h * size:(h + 1) * size], rows, cols, group)
                         for h in range(count)])

    def expert(self, layer, kind, index, fmt, hidden, inter):
        """gate, up, down of an expert record: its slices back to back."""
        width, data = self.info["slice_width"], self.read(layer, kind, index)
        group, inter_group = group_of(hidden), inter_group_of(inter)
        while width % inter_group:
            inter_group //= 2
        gate, up, down, at = [], [], [], 0
        for begin in range(0, inter, width):
            neurons = min(width, inter - begin)
            rows_size = matrix_bytes(fmt, neurons, hidden, group)
            down_size = matrix_bytes(fmt, hidden, neurons, inter_group)
            gate.append(unpack(fmt, data[at:at + rows_size], neurons, hidden, group))
            up.append(unpack(fmt, data[at + rows_size:at + 2 * rows_size], neurons, hidden, group))
            begin_down = at + 2 * rows_size
            down.append(unpack(fmt, data[begin_down:begin_down + down_size], hidden, neurons,
                               inter_group))
            at += round_up(2 * rows_size + down_size, ALIGN)
        if at != len(data):
            raise ValueError(f"layer {layer} {kind} {index}: {len(data)} bytes, read {at}")
        return np.concatenate(gate), np.concatenate(up), np.concatenate(down, 1)


# ---- tensors in the release's names ----

def attention(box, c, layer, out):
    p, heads = f"model.layers.{layer}.", c["num_attention_heads"]
    nope, rope, value = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    hidden, rank, q_rank = c["hidden_size"], c["kv_lora_rank"], c["q_lora_rank"]
    out[p + "input_layernorm.weight"] = box.vector(layer, "input_norm", hidden)
    out[p + "post_attention_layernorm.weight"] = box.vector(layer, "post_norm", hidden)
    a = p + "self_attn."
    out[a + "q_a_proj.weight"] = box.matrix(layer, "q_a", q_rank, hidden)
    out[a + "q_a_layernorm.weight"] = box.vector(layer, "q_a_norm", q_rank)
    out[a + "q_b_proj.weight"] = box.matrix(layer, "q_b", heads * (nope + rope), q_rank)
    out[a + "kv_a_proj_with_mqa.weight"] = box.matrix(layer, "kv_a", rank + rope, hidden)
    out[a + "kv_a_layernorm.weight"] = box.vector(layer, "kv_a_norm", rank)
    keys = box.heads(layer, "uk_t", heads, rank, nope).transpose(0, 2, 1)
    values = box.heads(layer, "uv", heads, value, rank)
    out[a + "kv_b_proj.weight"] = np.concatenate([keys, values], 1).reshape(-1, rank)
    out[a + "o_proj.weight"] = box.matrix(layer, "o", hidden, heads * value)
    if (layer, "index_q", 0) in box.records:
        i, dim, index_heads = a + "indexer.", c["index_head_dim"], c["index_n_heads"]
        out[i + "wq_b.weight"] = box.matrix(layer, "index_q", index_heads * dim, q_rank)
        out[i + "wk.weight"] = box.matrix(layer, "index_k", dim, hidden)
        norm = box.vector(layer, "index_k_norm", (2, dim))
        out[i + "k_norm.weight"], out[i + "k_norm.bias"] = norm
        out[i + "weights_proj.weight"] = box.matrix(layer, "index_weight", index_heads, hidden,
                                                    "f32")


def mlp(box, c, layer, out):
    p, hidden = f"model.layers.{layer}.mlp.", c["hidden_size"]
    if (layer, "gate", 0) in box.records:
        inter = c["intermediate_size"]
        out[p + "gate_proj.weight"] = box.matrix(layer, "gate", inter, hidden)
        out[p + "up_proj.weight"] = box.matrix(layer, "up", inter, hidden)
        out[p + "down_proj.weight"] = box.matrix(layer, "down", hidden, inter,
                                                 group=inter_group_of(inter))
        return
    inter, experts = c["moe_intermediate_size"], c["n_routed_experts"]
    dense, mtp = box.info["dense_format"], layer >= c["num_hidden_layers"]
    out[p + "gate.weight"] = box.matrix(layer, "router", experts, hidden, "f32")
    out[p + "gate.e_score_correction_bias"] = box.vector(layer, "router_bias", experts)
    places = [("shared", 0, "shared_experts", inter * c["n_shared_experts"], dense)]
    places += [("expert", e, f"experts.{e}", inter, dense if mtp else box.info["expert_format"])
               for e in range(experts)]
    for kind, index, name, width, fmt in places:
        parts = box.expert(layer, kind, index, fmt, hidden, width)
        for part, value in zip(("gate", "up", "down"), parts):
            out[f"{p}{name}.{part}_proj.weight"] = value


def rebuild(box):
    c, out = box.config, {}
    vocab, hidden, layers = c["vocab_size"], c["hidden_size"], c["num_hidden_layers"]
    raw = box.read(NO_LAYER, "embed")
    if box.info["embed_format"] == "f32":
        embed = np.frombuffer(raw, "<f4")
    else:
        embed = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(F)
    out["model.embed_tokens.weight"] = embed.reshape(vocab, hidden)
    out["lm_head.weight"] = box.matrix(NO_LAYER, "lm_head", vocab, hidden)
    out["model.norm.weight"] = box.vector(NO_LAYER, "final_norm", hidden)
    for layer in range(layers + c.get("num_nextn_predict_layers", 0)):
        attention(box, c, layer, out)
        mlp(box, c, layer, out)
        if layer >= layers:
            p = f"model.layers.{layer}."
            for name, kind in (("enorm", "enorm"), ("hnorm", "hnorm"),
                               ("shared_head.norm", "head_norm")):
                out[f"{p}{name}.weight"] = box.vector(layer, kind, hidden)
            out[p + "eh_proj.weight"] = box.matrix(layer, "eh_proj", hidden, 2 * hidden)
    return out


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    container, source, folder = sys.argv[1:]
    box = Container(container)
    os.makedirs(folder, exist_ok=True)
    write_tensors(os.path.join(folder, "model-00001-of-00001.safetensors"), rebuild(box))
    config = dict(box.config, dtype="float32")
    config.pop("quantization_config", None)
    json.dump(config, open(os.path.join(folder, "config.json"), "w"), indent=1)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        if os.path.exists(os.path.join(source, name)):
            shutil.copyfile(os.path.join(source, name), os.path.join(folder, name))
    reference = json.load(open(os.path.join(source, "reference.json")))
    bits = int(box.info["latent_eps"]["bits"], 16)
    asked = {"mla_latent_norm_eps": float(np.uint32(bits).view(F)),
             "dbg_prompt": reference.get("dbg_prompt", -1),
             "prompts": [{"prompt": p["prompt"], "text": p.get("text", ""), "ids": p["ids"],
                          "greedy_count": len(p["greedy"])} for p in reference["prompts"]]}
    json.dump(asked, open(os.path.join(folder, "prompts.json"), "w"), indent=1)


if __name__ == "__main__":
    main()
