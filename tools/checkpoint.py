"""checkpoint.py - safetensors files in numpy: reading (F32, BF16, I32, F8_E4M3) and writing (F32, I32).

An own reader, so that nothing an oracle is made with shares code with the program under test.
"""
import json
import os
import struct

import numpy as np

F = np.float32
BLOCK = 128


def e4m3_table():
    table = np.zeros(256, F)
    for byte in range(256):
        exponent, mantissa = byte >> 3 & 15, byte & 7
        if exponent == 15 and mantissa == 7:
            value = np.nan  # the only NaN encodings; there is no infinity
        elif exponent == 0:
            value = mantissa * 2.0 ** -9
        else:
            value = (1 + mantissa / 8.0) * 2.0 ** (exponent - 7)
        table[byte] = -value if byte >> 7 else value
    return table


E4M3 = e4m3_table()


def read_header(path):
    with open(path, "rb") as f:
        length = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(length))
    header.pop("__metadata__", None)
    return header, 8 + length


def read_tensors(path):
    """All tensors of one file with plain dtypes (references)."""
    header, begin = read_header(path)
    with open(path, "rb") as f:
        data = f.read()
    out = {}
    for name, entry in header.items():
        a, b = entry["data_offsets"]
        dtype = {"F32": "<f4", "I32": "<i4"}[entry["dtype"]]
        out[name] = np.frombuffer(data[begin + a:begin + b], dtype).reshape(entry["shape"])
    return out


def write_tensors(path, tensors):
    """tensors: name -> float32 or int32 array, written in name order, F32 first."""
    header, offset = {}, 0
    order = sorted(tensors, key=lambda n: (tensors[n].dtype != F, n))
    for name in order:
        t = tensors[name]
        if t.dtype not in (np.float32, np.int32):
            raise ValueError(f"{name}: {t.dtype}")
        header[name] = {"dtype": "F32" if t.dtype == np.float32 else "I32",
                        "shape": list(t.shape), "data_offsets": [offset, offset + t.nbytes]}
        offset += t.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)))
        f.write(text)
        for name in order:
            f.write(np.ascontiguousarray(tensors[name]).tobytes())


class Checkpoint:
    """Tensors of a sharded checkpoint by name, as float32."""

    def __init__(self, folder):
        self.entries, self.cache = {}, {}
        for name in sorted(os.listdir(folder)):
            if name.startswith("model") and name.endswith(".safetensors"):
                path = os.path.join(folder, name)
                header, begin = read_header(path)
                for key, entry in header.items():
                    a, b = entry["data_offsets"]
                    self.entries[key] = (path, begin + a, b - a, entry["dtype"], entry["shape"])

    def __contains__(self, name):
        return name in self.entries

    def __getitem__(self, name):
        if name not in self.cache:
            self.cache[name] = self.load(name)
        return self.cache[name]

    def load(self, name):
        path, offset, length, dtype, shape = self.entries[name]
        with open(path, "rb") as f:
            f.seek(offset)
            data = f.read(length)
        if dtype == "F32":
            value = np.frombuffer(data, "<f4")
        elif dtype == "BF16":
            value = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(F)
        elif dtype == "F8_E4M3":
            rows, cols = shape
            scale = self[name + "_scale_inv"]
            value = E4M3[np.frombuffer(data, np.uint8)].reshape(shape)
            value = value * np.repeat(np.repeat(scale, BLOCK, 0)[:rows], BLOCK, 1)[:, :cols]
        else:
            raise ValueError(f"{name}: dtype {dtype}")
        return np.ascontiguousarray(value.reshape(shape), F)
