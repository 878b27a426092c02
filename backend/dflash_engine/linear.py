"""Matrix products whose rows do not depend on how many rows are computed together.

Speculative decoding is lossless only if verifying 17 tokens at once gives the numbers that decoding them
one by one gives. BLAS does not promise that: it picks another kernel, and so another order of additions,
for one row (GEMV), for few rows and for many. Three measures remove the differences on OpenBLAS' AVX-512
kernels (measured bit for bit in tests/engine/test_linear.py); on other kernels about one unit in the last
place remains.

* never one row: a single row is doubled (``pad_rows``), so that GEMV is not used;
* weights in tiles of 64 output columns, which also keeps products of a few rows in the kernels for small
  matrices: those skip the copy of the weights that the general kernel makes on each call (2 to 5 times
  faster);
* at most 384 additions in one product, so that no kernel cuts the sum at a place of its own choice.
"""

from __future__ import annotations

import numpy as np

from .weights import F32

TILE = 64
MAX_DEPTH = 384


def pad_rows(x: F32) -> F32:
    """``[M, ...]`` with M >= 2: a single row is doubled."""
    return x if len(x) > 1 else np.repeat(x, 2, axis=0)


class Linear:
    """``y = x @ W.T`` for a weight ``W [N, K]`` as Hugging Face stores it (no bias)."""

    def __init__(self, weight: F32) -> None:
        outputs, depth = weight.shape
        self.outputs = outputs
        tiles = -(-outputs // TILE)
        columns = np.zeros((depth, tiles * TILE), dtype=np.float32)
        columns[:, :outputs] = weight.T
        parts = -(-depth // MAX_DEPTH)
        self._cuts = [depth * i // parts for i in range(parts + 1)]
        by_tile = columns.reshape(depth, tiles, TILE).transpose(1, 0, 2)
        self._parts = [
            np.ascontiguousarray(by_tile[:, a:b])  # [tiles, K of the part, TILE]
            for a, b in zip(self._cuts[:-1], self._cuts[1:], strict=True)
        ]

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self._parts)

    def __call__(self, x: F32) -> F32:
        """``x [M, K]`` with M >= 2, last axis contiguous -> ``[M, N]``."""
        rows = len(x)
        tiles = len(self._parts[0])
        y = np.empty((rows, tiles * TILE), dtype=np.float32)
        by_tile = y.reshape(rows, tiles, TILE).transpose(1, 0, 2)
        np.matmul(x[:, : self._cuts[1]], self._parts[0], out=by_tile)
        for part, start in zip(self._parts[1:], self._cuts[1:-1], strict=True):
            y += _untile(np.matmul(x[:, start : start + part.shape[1]], part))
        return y if y.shape[1] == self.outputs else y[:, : self.outputs]


def _untile(y: F32) -> F32:
    """``[tiles, M, TILE] -> [M, tiles * TILE]``."""
    return y.transpose(1, 0, 2).reshape(y.shape[1], -1)
