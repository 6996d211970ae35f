"""Writes tests/fixtures/container/: container files made from docs/container.md alone.

The golden test compares what the program writes with these bytes, so this script must not look at the
program. Needs the PyPI package xxhash.

    python3 tools/make_container_golden.py
"""
import hashlib
import json
import pathlib
import struct

import xxhash

ROOT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "fixtures"
OUT = ROOT / "container"
TOKENIZER = b"tokenizer image\n"
TEMPLATE = "42994f78b64752fe472149dd7e20410d"
Q = [0, 13, -4, 11]
EPS = 1e-6


def record(index, length):
    return bytes((index * 31 + i * 7 + 1) & 0xFF for i in range(length))


def hash128(data):
    value = xxhash.xxh3_128_intdigest(data)
    return value & (2**64 - 1), value >> 64


def key(layer, kind, index):
    return struct.pack("<HHI", layer, kind, index)


def up(value):
    return (value + 4095) // 4096 * 4096


def header(magic, entry_bytes, count, file_bytes, body):
    head = struct.pack("<8sIIQQQQQ", magic, 1, entry_bytes, count, file_bytes,
                       xxhash.xxh3_64_intdigest(body), 0, 0)
    return head + struct.pack("<Q", xxhash.xxh3_64_intdigest(head))


def pack():
    records = [((7, 67, 2), record(2, 4096)), ((7, 67, 4), record(4, 3)), ((7, 67, 9), record(9, 5000))]
    index, body = b"", b""
    begin = up(64 + 40 * len(records))
    for where, data in records:
        index += key(*where) + struct.pack("<QQQQ", len(data), begin + len(body), *hash128(data))
        body += data + bytes(up(len(data)) - len(data))
    head = header(b"MOEPACK\n", 40, len(records), begin + len(body), index)
    return (head + index).ljust(begin, b"\0") + body


def entries():
    listed = [((0, 18, 0), 1000, (1, 2)), ((1, 67, 0), 2000, (3, 4)), ((1, 67, 1), 2000, (5, 6)),
              ((0xFFFF, 1, 0), 3000, (7, 8))]
    return b"".join(key(*where) + struct.pack("<QQQ", size, *digest) for where, size, digest in listed)


def model_id(config, listed):
    low, high = hash128(TOKENIZER)
    eps_bits = struct.unpack("<I", struct.pack("<f", EPS))[0]
    fields = struct.pack("<16sIIIIIIIIII40sQQQQQ", b"moesaic model 1\n", 1, 1, 1, 4, 3, 2, 16, eps_bits, 0,
                         len(Q), TEMPLATE.encode(), len(TOKENIZER), low, high, len(config),
                         len(listed) // 32)
    assert len(fields) == 136
    return hashlib.sha256(fields + struct.pack("<4b", *Q) + config + listed).hexdigest()


def description(config, listed):
    low, high = hash128(TOKENIZER)
    shape = json.loads(config)
    fields = {
        "container_version": 1, "layout_id": 1, "conversion_id": 1, "model_type": "glm_moe_dsa",
        "model_id": model_id(config, listed), "expert_format": "q4", "dense_format": "q8",
        "embed_format": "bf16", "slice_width": 16,
        "latent_eps": {"bits": struct.pack(">f", EPS).hex(), "decimal": "%.9g" % struct.unpack(
            "<f", struct.pack("<f", EPS))[0]},
        "grid": {"kind": "std", "q": Q}, "template_id": TEMPLATE,
        "tokenizer": {"bytes": len(TOKENIZER), "xxh3_128": "%016x%016x" % (high, low)},
        "groups": {"expert_inter": 16, "hidden": 64, "inter": 32},
        "shapes": {
            "expert_inter": shape["moe_intermediate_size"], "experts": shape["n_routed_experts"],
            "heads": shape["num_attention_heads"], "hidden": shape["hidden_size"],
            "index_layers": shape["indexer_types"].count("full"), "layers": shape["num_hidden_layers"],
            "moe_layers": shape["mlp_layer_types"].count("sparse"), "mtp_layers": 1,
            "shared_experts": 1, "topk": shape["num_experts_per_tok"], "vocab": shape["vocab_size"]},
    }
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def main():
    config = (ROOT / "nano-bf16" / "config.json").read_bytes()
    listed = entries()
    OUT.mkdir(exist_ok=True)
    (OUT / "experts-007.bin").write_bytes(pack())
    (OUT / "manifest.bin").write_bytes(header(b"MOEMANI\n", 32, 4, 64 + len(listed), listed) + listed)
    (OUT / "moesaic.json").write_bytes(description(config, listed))


main()
