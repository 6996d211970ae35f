#!/usr/bin/env python3
"""make_colibri.py CHECKPOINT OUT - a model of the colibri engine from a checkpoint in the release's layout.

What `moesaic import` reads, written from that engine's own description of its files: shards
out-NNNNN.safetensors (out-mtp-, out-idx- for the MTP layer and the indexer), names of the release, a
quantised matrix as U8 bytes with F32 scales in `<name>.qs`; norms, router and biases stay F32. No shard
says which format a tensor has, unless --stamp. Deterministic.

    --bits 8|4        routed experts and all else that has no option of its own      (4)
    --group N         columns per scale of int4; 0: one scale per row                (0)
    --attention-bits, --attention-group, --io-bits, --io-group, --mtp-bits, --mtp-group,
    --indexer-bits, --indexer-group    the same for attention, embedding and head, the MTP layer, the
                      indexer; default: as --bits and --group, io and mtp and indexer 8 bits
    --no-indexer      leave the indexers of the main layers out, as that engine's converter does
    --no-mtp-indexer  leave the MTP layer's indexer out, as it always does
    --no-mtp          leave the MTP layer out
    --keep PATTERN    keep matrices whose name has PATTERN in it as F32
    --stamp           write the format of each quantised tensor into the shards' headers
    --shards N        shards of the main layers                                      (2)
"""
import argparse
import json
import os
import shutil
import struct

import numpy as np

from checkpoint import F, Checkpoint


def int8_row(w):
    scale = np.maximum(np.abs(w).max(1) / F(127), F(1e-8)).astype(F)
    q = np.clip(np.rint(w / scale[:, None]), -127, 127).astype(np.int8)
    return q.view(np.uint8).reshape(-1), scale, "int8-row"


def int4(w, group):
    rows, cols = w.shape
    size = group or cols
    groups = (cols + size - 1) // size
    wide = np.zeros((rows, groups * size), F)
    wide[:, :cols] = w
    wide = wide.reshape(rows, groups, size)
    scale = np.maximum(np.abs(wide).max(2) / F(7), F(1e-8)).astype(F)
    q = np.clip(np.rint(wide / scale[:, :, None]), -8, 7).astype(np.int32) + 8
    q = q.reshape(rows, -1)[:, :cols]
    if cols % 2:
        q = np.concatenate([q, np.full((rows, 1), 0, np.int32)], 1)
    packed = (q[:, 0::2] | q[:, 1::2] << 4).astype(np.uint8)
    return packed.reshape(-1), scale.reshape(-1), "int4-grouped" if groups > 1 else "int4-row"


def write_shard(path, tensors, stamps):
    """tensors: name -> array of float32 or uint8; F32 first, then names in order."""
    header, offset = {}, 0
    if stamps:
        header["__metadata__"] = {"colibri.fmt": json.dumps(stamps, sort_keys=True)}
    order = sorted(tensors, key=lambda n: (tensors[n].dtype != np.float32, n))
    for name in order:
        t = tensors[name]
        header[name] = {"dtype": "F32" if t.dtype == np.float32 else "U8", "shape": list(t.shape),
                        "data_offsets": [offset, offset + t.nbytes]}
        offset += t.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)))
        f.write(text)
        for name in order:
            f.write(np.ascontiguousarray(tensors[name]).tobytes())


class Maker:
    def __init__(self, options, config):
        self.o, self.layers = options, config["num_hidden_layers"]

    def part(self, name):
        """main, mtp or indexer; None: left out."""
        words = name.split(".")
        layer = int(words[2]) if name.startswith("model.layers.") else -1
        indexer = ".indexer." in name
        if layer >= self.layers:
            out = self.o.no_mtp or (indexer and self.o.no_mtp_indexer)
            return None if out else "mtp"
        if indexer:
            return None if self.o.no_indexer else "indexer"
        return "main"

    def widths(self, name, part):
        if part == "mtp":
            return self.o.mtp_bits, self.o.mtp_group
        if part == "indexer":
            return self.o.indexer_bits, self.o.indexer_group
        if name in ("model.embed_tokens.weight", "lm_head.weight"):
            return self.o.io_bits, self.o.io_group
        if ".self_attn." in name:
            return self.o.attention_bits, self.o.attention_group
        return self.o.bits, self.o.group

    def stays(self, name, w):
        return (w.ndim != 2 or name.endswith("norm.weight") or name.endswith("mlp.gate.weight") or
                name.endswith("e_score_correction_bias") or
                any(pattern in name for pattern in self.o.keep))

    def add(self, out, stamps, name, w, part):
        if self.stays(name, w):
            out[name] = w.astype(F)
            return
        bits, group = self.widths(name, part)
        out[name], out[name + ".qs"], kind = int8_row(w) if bits == 8 else int4(w, group)
        if self.o.stamp:
            stamps[name] = kind


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkpoint")
    parser.add_argument("out")
    parser.add_argument("--bits", type=int, choices=(4, 8), default=4)
    parser.add_argument("--group", type=int, default=0)
    for name, bits in (("attention", None), ("io", 8), ("mtp", 8), ("indexer", 8)):
        parser.add_argument(f"--{name}-bits", type=int, choices=(4, 8), default=bits)
        parser.add_argument(f"--{name}-group", type=int)
    for name in ("no-indexer", "no-mtp-indexer", "no-mtp", "stamp"):
        parser.add_argument("--" + name, action="store_true")
    parser.add_argument("--keep", action="append", default=[])
    parser.add_argument("--shards", type=int, default=2)
    o = parser.parse_args()
    for name in ("attention", "io", "mtp", "indexer"):
        if getattr(o, name + "_bits") is None:
            setattr(o, name + "_bits", o.bits)
        if getattr(o, name + "_group") is None:
            setattr(o, name + "_group", o.group)
    return o


def main():
    o = parse()
    source = Checkpoint(o.checkpoint)
    config = json.load(open(os.path.join(o.checkpoint, "config.json")))
    maker = Maker(o, config)
    shards = {f"out-{i:05}": ({}, {}) for i in range(o.shards)}
    shards.update({"out-mtp-00000": ({}, {}), "out-idx-00000": ({}, {})})
    names = [n for n in sorted(source.entries) if not n.endswith("_scale_inv")]
    for i, name in enumerate(names):
        part = maker.part(name)
        if part is None:
            continue
        shard = {"mtp": "out-mtp-00000", "indexer": "out-idx-00000"}.get(
            part, f"out-{i * o.shards // len(names):05}")
        maker.add(*shards[shard], name, source[name], part)
    os.makedirs(o.out, exist_ok=True)
    for shard, (tensors, stamps) in shards.items():
        if tensors:
            write_shard(os.path.join(o.out, shard + ".safetensors"), tensors, stamps)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        if os.path.exists(os.path.join(o.checkpoint, name)):
            shutil.copyfile(os.path.join(o.checkpoint, name), os.path.join(o.out, name))


if __name__ == "__main__":
    main()
