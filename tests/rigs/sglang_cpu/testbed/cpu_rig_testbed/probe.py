"""Attention probes: which cached tokens can change what a draft layer computes, found out by changing them.

With CPU_RIG_PROBE=FILE set, the first draft block over a cache of at least CPU_RIG_PROBE_MIN tokens is probed
in every layer: the key and value of one token after another are altered and the layer's attention computed
again. One JSON object per layer is appended to FILE:

    {"layer": 0, "cached": 700, "rows": 16, "seen": [[first, last], ...]}

``seen`` has, for each query row, the first and the last position (cached tokens from 0 on, then the block's
own rows) whose change altered that row; "holes" counts the positions between them that altered nothing.
"""

import json
import os

import torch


class Probe:
    """Probes each layer once."""

    def __init__(self, path: str, least: int):
        self.path, self.least, self.done = path, least, set()

    @classmethod
    def from_environment(cls) -> "Probe | None":
        """None when no probe is asked for."""
        path = os.environ.get("CPU_RIG_PROBE")
        return cls(path, int(os.environ.get("CPU_RIG_PROBE_MIN", "0"))) if path else None

    def look(self, layer_id, rows, keys, values, attend) -> None:
        """Writes what layer ``layer_id`` sees; ``attend(keys, values)`` computes its rows."""
        if layer_id in self.done or rows.cached < self.least:
            return
        self.done.add(layer_id)
        before = attend(keys, values)
        changed = torch.zeros(rows.slots.numel(), rows.count, dtype=torch.bool)
        for position, slot in enumerate(rows.slots.tolist()):
            kept = keys[slot].clone(), values[slot].clone()
            keys[slot] = -kept[0]
            values[slot] = kept[1] + 1
            changed[position] = (attend(keys, values) != before).flatten(1).any(1)
            keys[slot], values[slot] = kept
        seen, holes = [], 0
        for row in range(rows.count):
            positions = changed[:, row].nonzero().flatten().tolist()
            seen.append([positions[0], positions[-1]] if positions else None)
            holes += positions[-1] - positions[0] + 1 - len(positions) if positions else 0
        line = {"layer": layer_id, "cached": rows.cached, "rows": rows.count, "seen": seen, "holes": holes}
        with open(self.path, "a") as out:
            out.write(json.dumps(line) + "\n")
