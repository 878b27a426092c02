"""The target: a Qwen3 causal language model with a KV cache per request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .attention import attend, rms_norm, rotary_table
from .config import TargetConfig
from .kv_cache import TargetCache
from .layer import Layer, layer_shapes
from .linear import Linear, pad_rows
from .weights import F32, load_tensors

_ATTENTION_CELLS = 1 << 20
"""Rows x columns of one attention call: bounds the memory of a long prompt's scores."""


@dataclass(frozen=True, slots=True)
class Segment:
    """The rows of one request in a pass: ``count`` rows, written after the cache's committed columns."""

    cache: TargetCache
    count: int
    bias: F32 | None
    """``[count, count]`` additive mask among the rows themselves; None for a single row."""


class Target:
    """Weights and forward pass. ``feature_layers``: layers whose outputs feed the drafter (may be empty)."""

    def __init__(
        self, folder: Path, config: TargetConfig, *, positions: int, feature_layers: Sequence[int] = ()
    ) -> None:
        self.config = config
        stack = config.stack
        embedding = {"embed_tokens.weight": (stack.vocab_size, stack.hidden_size)}
        head = {} if config.tied else {"lm_head.weight": (stack.vocab_size, stack.hidden_size)}
        shapes: dict[str, tuple[int, ...]] = {**embedding, **head, "norm.weight": (stack.hidden_size,)}
        for i in range(stack.layers):
            shapes |= layer_shapes(stack, i)
        tensors = load_tensors(folder, shapes, prefix="model.")
        self.parameters = sum(t.size for t in tensors.values())
        self.embedding: F32 = tensors["embed_tokens.weight"]
        self._head = Linear(tensors["embed_tokens.weight" if config.tied else "lm_head.weight"])
        self._norm = tensors["norm.weight"]
        self._layers = [Layer(stack, tensors, i) for i in range(stack.layers)]
        self._turns = rotary_table(stack.rope_theta, stack.head_dim, positions)
        self._features = tuple(feature_layers)

    @property
    def nbytes(self) -> int:
        """Bytes of the weights held."""
        own = self.embedding.nbytes + self._head.nbytes + self._norm.nbytes + self._turns.nbytes
        return own + sum(layer.nbytes for layer in self._layers)

    def new_cache(self, capacity: int) -> TargetCache:
        stack = self.config.stack
        return TargetCache(stack.layers, stack.kv_heads, stack.head_dim, capacity)

    def forward(
        self, tokens: Sequence[int], positions: Sequence[int], segments: Sequence[Segment]
    ) -> tuple[F32, F32]:
        """One pass over the rows of all segments, M in all; their K/V are written but not committed.

        Returns hidden states before the final norm ``[M, hidden]`` and the features for the drafter
        ``[M, len(feature_layers) * hidden]``.
        """
        rows = len(tokens)
        x = pad_rows(self.embedding[np.asarray(tokens)])
        turns = self._turns[np.asarray(positions)]
        if rows == 1:
            turns = np.repeat(turns, 2, axis=0)
        for segment in segments:
            segment.cache.reserve(segment.count)
        features = []
        for i, layer in enumerate(self._layers):
            q, k, v = layer.qkv(x, turns)
            mixed = np.empty((len(x), q.shape[1] * q.shape[2]), dtype=np.float32)
            start = 0
            for segment in segments:
                stop = start + segment.count
                segment.cache.write(i, k[start:stop], v[start:stop])
                mixed[start:stop] = _attend_segment(i, segment, q[start:stop])
                start = stop
            mixed[rows:] = mixed[:1]  # the doubled row, if there is one
            x = layer.finish(x, mixed)
            if i in self._features:
                features.append(x[:rows])
        joined = np.concatenate(features, axis=1) if features else np.empty((rows, 0), dtype=np.float32)
        return x[:rows], joined

    def head(self, hidden: F32) -> F32:
        """Logits ``[M, vocabulary]`` of hidden states ``[M, hidden]`` before the final norm."""
        return self.head_of(rms_norm(hidden, self._norm, self.config.stack.rms_norm_eps))

    def head_of(self, normed: F32) -> F32:
        """Logits of normed states: the drafter has a final norm of its own."""
        return self._head(pad_rows(normed))[: len(normed)]


def _attend_segment(layer: int, segment: Segment, q: F32) -> F32:
    """Attention of one request's rows over its committed columns and, as the bias allows, its own rows."""
    base, count = segment.cache.length, segment.count
    block = max(1, _ATTENTION_CELLS // ((base + count) * q.shape[1]))
    if count <= block:
        keys, values = segment.cache.view(layer, base + count)
        return attend(q, keys, values, segment.bias, base + count)
    parts = []
    for a in range(0, count, block):  # long prompts: a block of rows at a time, each over its own past only
        b = min(a + block, count)
        keys, values = segment.cache.view(layer, base + b)
        bias = None if segment.bias is None else segment.bias[a:b, :b]
        parts.append(attend(q[a:b], keys, values, bias, base + b))
    return np.concatenate(parts)


def causal_bias(rows: int) -> F32 | None:
    """``[rows, rows]``: each row sees itself and the rows before it."""
    if rows == 1:
        return None
    bias: npt.NDArray[np.float32] = np.zeros((rows, rows), dtype=np.float32)
    bias[np.triu_indices(rows, 1)] = -np.inf
    return bias
