"""A folder with reference.json and reference.safetensors: what a comparison with it must count.

Standard library only: the expectations must not come from the code that made the reference.
"""
import json
import os
import re
import struct

FORMAT = {"F32": "f", "I32": "i"}


class ReferenceDir:
    def __init__(self, path):
        self.path = path
        with open(os.path.join(path, "reference.json"), encoding="utf-8") as file:
            self.info = json.load(file)
        with open(os.path.join(path, "reference.safetensors"), "rb") as file:
            header_bytes = struct.unpack("<Q", file.read(8))[0]
            self.header = json.loads(file.read(header_bytes))
            self.data = bytearray(file.read())
        self.header.pop("__metadata__", None)

    def _place(self, name):
        tensor = self.header[name]
        begin, end = tensor["data_offsets"]
        return begin, f"<{(end - begin) // 4}{FORMAT[tensor['dtype']]}"

    def shape(self, name):
        return self.header[name]["shape"]

    def get(self, name):
        """The values of a tensor, flat."""
        begin, fmt = self._place(name)
        return list(struct.unpack_from(fmt, self.data, begin))

    def set(self, name, values):
        begin, fmt = self._place(name)
        struct.pack_into(fmt, self.data, begin, *values)

    def names(self, pattern):
        return sorted(name for name in self.header if re.fullmatch(pattern, name))

    def write(self, path):
        os.makedirs(path, exist_ok=True)
        header = json.dumps(self.header).encode()
        header += b" " * (-len(header) % 8)
        with open(os.path.join(path, "reference.json"), "w", encoding="utf-8") as file:
            json.dump(self.info, file)
        with open(os.path.join(path, "reference.safetensors"), "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header + self.data)
        return path

    def expected_totals(self):
        """What verify has to compare: equal + unequal + exempt of each count."""
        totals = dict.fromkeys(("positions", "greedy", "router_sets", "index_sets"), 0)
        for name in self.names(r"p\d+\.logits"):
            totals["positions"] += self.shape(name)[0]
        for name in self.names(r"p\d+\.layer\d+\.router_idx"):
            totals["router_sets"] += self.shape(name)[0]
        # Positions are chosen from the row on that sees more than index_topk of them.
        for name in self.names(r"p\d+\.layer\d+\.topk"):
            rows, chosen = self.shape(name)
            totals["index_sets"] += max(0, rows - chosen)
        totals["greedy"] = sum(len(prompt["greedy"]) for prompt in self.info["prompts"])
        return totals
