"""Key and value rows of one request, for the target and for the drafter.

Columns are token positions. Keys lie transposed (``[..., D, T]``) so that scores are plain products.
Capacity is rounded to whole attention steps and zeroed: columns past the used ones are computed and then
masked.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .attention import COLUMN_STEP
from .weights import F32, F64

_SLACK = 256
"""Columns that a compacted layer lets pile up before it moves its rows to the front."""


def _steps(columns: int) -> int:
    return -(-columns // COLUMN_STEP) * COLUMN_STEP


def _columns(rows: int, room: int) -> int:
    """Buffer size for ``rows`` columns anywhere in it, ``room`` after them and padding to a whole step."""
    return _steps(rows + room) + COLUMN_STEP


class TargetCache:
    """Target KV of one request: ``length`` committed columns, then the columns of the pass in progress.

    Keys ``[L, Hkv, D, T]`` float32, values ``[L, Hkv, T, D]`` float64 (see ``attention.attend``).
    """

    def __init__(self, layers: int, kv_heads: int, head_dim: int, capacity: int) -> None:
        columns = _steps(capacity)
        self.keys: F32 = np.zeros((layers, kv_heads, head_dim, columns), dtype=np.float32)
        self.values: F64 = np.zeros((layers, kv_heads, columns, head_dim), dtype=np.float64)
        self.length = 0

    @property
    def bytes_held(self) -> int:
        """Bytes of the committed columns."""
        columns: int = self.keys.shape[-1]
        return self.length * (self.keys.nbytes + self.values.nbytes) // columns

    def reserve(self, rows: int) -> None:
        """Make room for ``rows`` columns after the committed ones."""
        have, need = self.keys.shape[-1], _steps(self.length + rows)
        if need > have:
            more = _steps(need + have // 2) - have
            self.keys = np.pad(self.keys, ((0, 0), (0, 0), (0, 0), (0, more)))
            self.values = np.pad(self.values, ((0, 0), (0, 0), (0, more), (0, 0)))

    def write(self, layer: int, k: F32, v: F32) -> None:
        """Put ``k, v [M, Hkv, D]`` into the columns after the committed ones (``reserve`` first)."""
        a, b = self.length, self.length + len(k)
        self.keys[layer, :, :, a:b] = k.transpose(1, 2, 0)
        self.values[layer, :, a:b] = v.transpose(1, 0, 2)

    def view(self, layer: int, used: int) -> tuple[F32, F64]:
        """Keys and values of one layer, ``used`` columns rounded up to whole steps."""
        columns = _steps(used)
        return self.keys[layer, :, :, :columns], self.values[layer, :, :columns]

    def commit(self, rows: Sequence[int]) -> None:
        """Keep the given rows of the last pass (rising indices), in this order, and drop the others."""
        n, count = self.length, len(rows)
        if rows[-1] != count - 1:
            index = [n + r for r in rows]
            self.keys[..., n : n + count] = self.keys[..., index]
            self.values[:, :, n : n + count] = self.values[:, :, index]
        self.length += count


class DraftCache:
    """Draft KV of one request, one buffer per layer: context rows, then scratch columns for the block.

    ``keep[layer]``: context rows that a later block can still see; older ones are given back. None: keep all.
    """

    def __init__(
        self, kv_heads: int, head_dim: int, keep: Sequence[int | None], capacity: int, block_size: int
    ) -> None:
        self._shape = (kv_heads, head_dim)
        self._block = block_size
        self.length = 0
        """Context tokens seen so far; the next block starts at this position."""
        self._layers = [_LayerRows(kv_heads, head_dim) for _ in keep]
        self.set_keep(keep, capacity)

    def set_keep(self, keep: Sequence[int | None], capacity: int) -> None:
        """Change what is kept. Rows already given back stay away; buffers get the size that is now needed."""
        self._keep = tuple(keep)
        for rows, kept in zip(self._layers, self._keep, strict=True):
            if kept is not None:
                rows.drop_before(self.length - kept)
            size = capacity if kept is None else min(capacity, kept + _SLACK)
            rows.resize(_columns(max(size, rows.held), self._block))

    def append(self, k: F32, v: F32) -> None:
        """Add context rows ``k, v [M, L, Hkv, D]`` for the next M positions."""
        self.length += len(k)
        for layer, (rows, kept) in enumerate(zip(self._layers, self._keep, strict=True)):
            first = 0 if kept is None else max(0, len(k) - kept)
            if first:
                rows.skip_to(self.length - (len(k) - first))
            rows.append(k[first:, layer], v[first:, layer], room=self._block)
            if kept is not None:
                rows.drop_before(self.length - kept)

    def view(self, layer: int, since: int, k: F32, v: F32) -> tuple[F32, F32, int]:
        """Put a block's ``k, v [Q, Hkv, D]`` after the context; return keys, values and the used columns.

        The columns are the held context positions >= ``since``, then the block, then padding to a whole step.
        """
        return self._layers[layer].with_block(since, k, v)

    @property
    def bytes_held(self) -> int:
        """Bytes of the context rows held."""
        return sum(rows.held for rows in self._layers) * self._row_bytes

    @property
    def bytes_allocated(self) -> int:
        """Bytes of the buffers: rows held, room for growth and the block's scratch columns."""
        return sum(rows.keys.nbytes + rows.values.nbytes for rows in self._layers)

    @property
    def bytes_uncompacted(self) -> int:
        """What one row per context token and layer takes."""
        return len(self._layers) * self.length * self._row_bytes

    @property
    def lacks_rows(self) -> bool:
        """True when a layer no longer holds a context row that it is to keep."""
        wanted = [0 if kept is None else max(0, self.length - kept) for kept in self._keep]
        return any(rows.first > first for rows, first in zip(self._layers, wanted, strict=True))

    @property
    def _row_bytes(self) -> int:
        kv_heads, head_dim = self._shape
        return 2 * kv_heads * head_dim * np.dtype(np.float32).itemsize


class _LayerRows:
    """Rows of one layer: columns ``begin..end`` of the buffer hold positions ``first..first + held``."""

    def __init__(self, kv_heads: int, head_dim: int) -> None:
        self.keys: F32 = np.zeros((kv_heads, head_dim, 0), dtype=np.float32)
        self.values: F32 = np.zeros((kv_heads, 0, head_dim), dtype=np.float32)
        self.first = 0
        self.begin = 0
        self.end = 0

    @property
    def held(self) -> int:
        return self.end - self.begin

    def resize(self, columns: int) -> None:
        """Move the rows to the front of a buffer of another size."""
        if columns == self.keys.shape[-1]:
            return
        keys = np.zeros((*self.keys.shape[:2], columns), dtype=np.float32)
        values = np.zeros((len(self.values), columns, self.values.shape[2]), dtype=np.float32)
        keys[..., : self.held] = self.keys[..., self.begin : self.end]
        values[:, : self.held] = self.values[:, self.begin : self.end]
        self.keys, self.values = keys, values
        self.begin, self.end = 0, self.held

    def skip_to(self, position: int) -> None:
        """Forget all rows; the next one is for ``position``."""
        self.begin = self.end = 0
        self.first = position

    def drop_before(self, position: int) -> None:
        count = min(self.held, position - self.first)
        if count > 0:
            self.begin += count
            self.first += count

    def append(self, k: F32, v: F32, *, room: int) -> None:
        """Add rows ``[M, Hkv, D]`` and leave ``room`` columns (and the padding) after them."""
        have, rows = self.keys.shape[-1], self.held + len(k)
        if _columns(self.end + len(k), room) > have:
            if _columns(rows, room) > have:
                self.resize(_columns(rows + rows // 2, room))
            else:
                self._move_to_front()
        stop = self.end + len(k)
        self.keys[..., self.end : stop] = k.transpose(1, 2, 0)
        self.values[:, self.end : stop] = v.transpose(1, 0, 2)
        self.end = stop

    def _move_to_front(self) -> None:
        held = self.held
        self.keys[..., :held] = self.keys[..., self.begin : self.end].copy()
        self.values[:, :held] = self.values[:, self.begin : self.end].copy()
        self.begin, self.end = 0, held

    def with_block(self, since: int, k: F32, v: F32) -> tuple[F32, F32, int]:
        start = self.begin + max(0, min(since - self.first, self.held))
        stop = self.end + len(k)
        self.keys[..., self.end : stop] = k.transpose(1, 2, 0)
        self.values[:, self.end : stop] = v.transpose(1, 0, 2)
        used = stop - start
        padded = start + _steps(used)
        return self.keys[..., start:padded], self.values[:, start:padded], used
