#!/usr/bin/env python3
"""make_reference.py OUT - a reference run of the checkpoint in OUT, in numpy float32.

OUT is what dequantise.py wrote: a checkpoint and prompts.json. Adds reference.json and
reference.safetensors in the format of tests/fixtures: every prompt's greedy continuation (the argmax
of one full forward, repeated), logits at every row, chosen experts and weights, the indexer's
positions, and hidden states of one prompt. And per row the gap between the last chosen and the first
not chosen (p<i>.layer<l>.router_gap over experts, .index_gap over positions, +inf where there is no
choice), so that rows whose choice hangs on a rounding can be told apart.

The model is written from its published definition and shares nothing with the program under test.
"""
import json
import os
import sys

import numpy as np

from checkpoint import F, Checkpoint, write_tensors

INDEX_NORM_EPS = 1e-6


def rms_norm(x, weight, eps):
    mean = np.mean(x * x, -1, keepdims=True, dtype=F)
    return weight * (x * (F(1) / np.sqrt(mean + F(eps))))


def layer_norm(x, weight, bias, eps):
    d = x - x.mean(-1, keepdims=True, dtype=F)
    return d / np.sqrt((d * d).mean(-1, keepdims=True, dtype=F) + F(eps)) * weight + bias


def sigmoid(x):
    return F(1) / (F(1) + np.exp(-x))


def silu(x):
    return x / (F(1) + np.exp(-x))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True, dtype=F)


def rope(x, pos, theta):
    """Pairs (2j, 2j+1) of the last axis turned by pos * theta^(-2j/D); written as two halves."""
    dim = x.shape[-1]
    inv = (F(1) / (F(theta) ** (np.arange(0, dim, 2, dtype=F) / F(dim)))).astype(F)
    angle = (pos.astype(F)[:, None] * inv[None]).astype(F)
    cos, sin = np.cos(angle), np.sin(angle)
    a, b = x[..., 0::2], x[..., 1::2]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def choose(scores, k):
    """The k largest, ties to the lower index, ascending; and the gap to the next one."""
    order = np.argsort(-scores, kind="stable")
    gap = scores[order[k - 1]] - scores[order[k]] if k < len(scores) else np.inf
    return np.sort(order[:k]), gap


class Model:
    def __init__(self, folder, latent_eps):
        self.c = c = json.load(open(os.path.join(folder, "config.json")))
        self.w = Checkpoint(folder)
        self.layers, self.eps, self.latent_eps = (c["num_hidden_layers"], c["rms_norm_eps"],
                                                  latent_eps)
        rope_parameters = c.get("rope_parameters") or {"rope_theta": c["rope_theta"]}
        self.theta = rope_parameters["rope_theta"]
        self.heads, self.nope, self.rope = (c["num_attention_heads"], c["qk_nope_head_dim"],
                                            c["qk_rope_head_dim"])
        self.value, self.rank = c["v_head_dim"], c["kv_lora_rank"]
        self.scale = F((self.nope + self.rope) ** -0.5)

    def index_scores(self, layer, x, resid, pos):
        w, p = self.w, f"model.layers.{layer}.self_attn.indexer."
        heads, dim = self.c["index_n_heads"], self.c["index_head_dim"]

        def turn(v):
            return np.concatenate([rope(v[..., :self.rope], pos, self.theta), v[..., self.rope:]],
                                  -1)
        key = turn(layer_norm(x @ w[p + "wk.weight"].T, w[p + "k_norm.weight"],
                              w[p + "k_norm.bias"], INDEX_NORM_EPS))
        query = (resid @ w[p + "wq_b.weight"].T).reshape(len(x), heads, dim).transpose(1, 0, 2)
        score = np.maximum((turn(query) @ key.T) * F(dim ** -0.5), 0)
        weight = (x @ w[p + "weights_proj.weight"].T) * F(heads ** -0.5)
        return np.einsum("sh,hst->st", weight, score).astype(F)

    def select(self, layer, x, resid, pos, rec):
        """Each row's visible positions that its softmax runs over."""
        k, rows = self.c["index_topk"], len(pos)
        scores = self.index_scores(layer, x, resid, pos)
        picked = [choose(scores[t, :t + 1], min(k, t + 1)) for t in range(rows)]
        if rows > k:
            table = np.full((rows, k), -1, np.int32)
            for t, (chosen, _) in enumerate(picked):
                table[t, :len(chosen)] = chosen
            rec[f"layer{layer}.topk"] = table
            rec[f"layer{layer}.index_gap"] = np.array([gap for _, gap in picked], F)
        return [chosen for chosen, _ in picked]

    def attention(self, layer, x, pos, selected, rec):
        w, p = self.w, f"model.layers.{layer}.self_attn."
        rows = len(x)
        resid = rms_norm(x @ w[p + "q_a_proj.weight"].T, w[p + "q_a_layernorm.weight"],
                         self.latent_eps)
        query = (resid @ w[p + "q_b_proj.weight"].T).reshape(rows, self.heads, -1)
        query = query.transpose(1, 0, 2)
        latent_rope = x @ w[p + "kv_a_proj_with_mqa.weight"].T
        latent = rms_norm(latent_rope[:, :self.rank], w[p + "kv_a_layernorm.weight"],
                          self.latent_eps)
        rec[f"layer{layer}.q_resid"], rec[f"layer{layer}.kv_latent"] = resid, latent
        if p + "indexer.wk.weight" in w:
            selected = self.select(layer, x, resid, pos, rec)
        kv_b = w[p + "kv_b_proj.weight"].reshape(self.heads, self.nope + self.value, self.rank)
        key = np.einsum("tk,hdk->htd", latent, kv_b[:, :self.nope], optimize=True)
        value = np.einsum("tk,hdk->htd", latent, kv_b[:, self.nope:], optimize=True)
        turned_key = rope(latent_rope[:, self.rank:], pos, self.theta)
        turned = rope(query[..., self.nope:], pos, self.theta)
        score = (query[..., :self.nope] @ key.transpose(0, 2, 1) + turned @ turned_key.T)
        mask = np.full((rows, rows), -np.inf, F)
        for t, chosen in enumerate(selected):
            mask[t, chosen] = 0
        out = softmax(score * self.scale + mask) @ value
        out = out.transpose(1, 0, 2).reshape(rows, -1)
        return out @ w[p + "o_proj.weight"].T, selected

    def ffn(self, prefix, x):
        w = self.w
        h = silu(x @ w[prefix + "gate_proj.weight"].T) * (x @ w[prefix + "up_proj.weight"].T)
        return h @ w[prefix + "down_proj.weight"].T

    def moe(self, layer, x, rec):
        w, p, c = self.w, f"model.layers.{layer}.mlp.", self.c
        score = sigmoid(x @ w[p + "gate.weight"].T)
        biased = score + w[p + "gate.e_score_correction_bias"]
        picked = [choose(row, c["num_experts_per_tok"]) for row in biased]
        index = np.stack([chosen for chosen, _ in picked])
        weight = np.take_along_axis(score, index, 1)
        if c["norm_topk_prob"]:
            weight = weight / (weight.sum(-1, keepdims=True, dtype=F) + F(1e-20))
        weight = weight * F(c["routed_scaling_factor"])
        rec[f"layer{layer}.router_idx"] = index.astype(np.int32)
        rec[f"layer{layer}.router_w"] = weight.astype(F)
        rec[f"layer{layer}.router_gap"] = np.array([gap for _, gap in picked], F)
        y = np.zeros_like(x)
        for e in np.unique(index):
            row, place = np.where(index == e)
            y[row] += self.ffn(f"{p}experts.{e}.", x[row]) * weight[row, place][:, None]
        return y + self.ffn(p + "shared_experts.", x)

    def forward(self, ids):
        """All rows at once: logits [rows][vocab] and everything recorded on the way."""
        w, rec, pos = self.w, {}, np.arange(len(ids))
        x, selected = w["model.embed_tokens.weight"][np.asarray(ids)], None
        rec["embed"] = x
        for layer in range(self.layers):
            p = f"model.layers.{layer}."
            h = rms_norm(x, w[p + "input_layernorm.weight"], self.eps)
            attn, selected = self.attention(layer, h, pos, selected, rec)
            x = x + attn
            h = rms_norm(x, w[p + "post_attention_layernorm.weight"], self.eps)
            sparse = p + "mlp.gate.weight" in w
            mlp = self.moe(layer, h, rec) if sparse else self.ffn(p + "mlp.", h)
            x = x + mlp
            rec[f"layer{layer}.attn"], rec[f"layer{layer}.mlp"] = attn, mlp
            rec[f"layer{layer}.out"] = x
        h = rms_norm(x, w["model.norm.weight"], self.eps)
        rec["final_norm"] = h
        return (h @ w["lm_head.weight"].T).astype(F), rec


def continue_greedily(model, ids, count):
    ids = list(ids)
    for _ in range(count):
        logits, _ = model.forward(ids)
        ids.append(int(logits[-1].argmax()))
    return ids


def is_row_record(name):
    return name.endswith((".router_idx", ".router_w", ".router_gap", ".topk", ".index_gap"))


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = sys.argv[1]
    asked = json.load(open(os.path.join(folder, "prompts.json")))
    model = Model(folder, asked["mla_latent_norm_eps"])
    tensors, prompts, smallest = {}, [], np.inf
    for prompt in asked["prompts"]:
        i, begin = prompt["prompt"], len(prompt["ids"])
        ids = continue_greedily(model, prompt["ids"], prompt["greedy_count"])
        logits, rec = model.forward(ids)
        if begin and not (logits[begin - 1:-1].argmax(-1) == np.array(ids[begin:])).all():
            sys.exit(f"prompt {i}: the argmax of the whole run is not that of its steps")
        tensors[f"p{i}.ids"] = np.array(ids, np.int32)
        tensors[f"p{i}.logits"] = logits
        for name, value in rec.items():
            if is_row_record(name):
                tensors[f"p{i}.{name}"] = value
        if i == asked["dbg_prompt"]:
            for name, value in rec.items():
                if not is_row_record(name):
                    tensors["dbg." + name] = np.ascontiguousarray(value, F)
        top = np.sort(logits, -1)
        gap = float((top[:, -1] - top[:, -2]).min())
        smallest = min(smallest, gap)
        prompts.append({"prompt": i, "text": prompt["text"], "prompt_len": begin,
                        "ids": prompt["ids"], "greedy": ids[begin:], "logits_first_row": 0,
                        "min_argmax_gap": gap})
    write_tensors(os.path.join(folder, "reference.safetensors"), tensors)
    json.dump({"mla_latent_norm_eps": asked["mla_latent_norm_eps"],
               "dbg_prompt": asked["dbg_prompt"], "dtype": "float32, dequantised weights",
               "summary": {"min_argmax_gap": smallest}, "prompts": prompts},
              open(os.path.join(folder, "reference.json"), "w"), indent=1)


if __name__ == "__main__":
    main()
