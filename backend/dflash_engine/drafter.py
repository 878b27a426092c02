"""The DFlash drafter: a block of draft tokens in one pass, from the target's hidden states.

With n committed tokens and the bonus token at position n (DFlash's block diffusion with one denoising step):

* context K/V at positions 0..n-1: ``hidden_norm(fc(features))`` through each layer's K/V projections, the
  features being the target's hidden states after ``target_layer_ids``;
* block input: the target's embeddings of [bonus, mask x (block - 1)] at positions n..n + block - 1;
* the logits of slot i >= 1 (target head over ``norm(x)``) predict the token at position n + i, each slot on
  its own: marginals, not conditioned on the slots before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .api import EngineConfigError, LayerWindow, WindowMode
from .attention import C64, NEVER, attend, paired, rms_norm, rotary_table, rotate
from .config import SLIDING, DrafterConfig
from .kv_cache import DraftCache
from .layer import Layer, layer_shapes, pair_rows
from .linear import Linear, pad_rows
from .target import Target
from .weights import F32, load_tensors


@dataclass(frozen=True, slots=True)
class DraftWindows:
    """What every layer attends to: one ``LayerWindow`` per layer, and how they came about."""

    mode: WindowMode
    asked: int | None
    """The size as given; kept through IGNORED, which does not use it."""
    size: int | None
    """CLAMPED: the window in force. DECLARED: the further limit, or None. IGNORED: None."""
    layers: tuple[LayerWindow, ...]

    def keep(self) -> tuple[int | None, ...]:
        """Context rows per layer that some slot of the next block sees; None: all."""
        return tuple(_context_rows(w) for w in self.layers)


def _context_rows(layer: LayerWindow) -> int | None:
    """Context rows that the block's first slot sees: a causal window counts the slot itself."""
    if layer.window is None:
        return None
    return layer.window - 1 if layer.causal else layer.window


def resolve_windows(config: DrafterConfig, mode: WindowMode, asked: int | None) -> DraftWindows:
    """The layers' windows for a mode. ``EngineConfigError``: a size below the block, or none to clamp to."""
    size = asked
    if size is not None and size < config.block_size:
        raise EngineConfigError(
            "window_size", f"window_size={size} must be >= block_size={config.block_size}"
        )
    if mode is WindowMode.IGNORED:
        layers = [LayerWindow(i, t, None, causal=False) for i, t in enumerate(config.layer_types)]
        return DraftWindows(mode, asked, None, tuple(layers))
    if mode is WindowMode.CLAMPED:
        size = config.sliding_window if size is None else size
        if size is None:
            raise EngineConfigError("window_size", "needed: the drafter's config declares no sliding_window")
        layers = [LayerWindow(i, t, size, causal=False) for i, t in enumerate(config.layer_types)]
        return DraftWindows(mode, asked, size, tuple(layers))
    layers = []
    for i, kind in enumerate(config.layer_types):
        causal = kind == SLIDING
        window = config.sliding_window if causal else None
        if size is not None:  # a limit on context rows: size + 1 with the slot itself
            window = min(window or size + 1, size + 1) if causal else size
        layers.append(LayerWindow(i, kind, window, causal))
    return DraftWindows(mode, asked, size, tuple(layers))


class Drafter:
    """Weights and the two passes: ``add_context`` after each commit, ``block_logits`` before each tree."""

    def __init__(self, folder: Path, config: DrafterConfig, target: Target, *, positions: int) -> None:
        self.config = config
        stack = config.stack
        hidden = stack.hidden_size
        shapes: dict[str, tuple[int, ...]] = {
            "fc.weight": (hidden, len(config.target_layer_ids) * hidden),
            "hidden_norm.weight": (hidden,),
            "norm.weight": (hidden,),
        }
        for i in range(stack.layers):
            shapes |= layer_shapes(stack, i)
        tensors = load_tensors(folder, shapes)
        self.parameters = sum(t.size for t in tensors.values())
        self._target = target
        self._layers = [Layer(stack, tensors, i) for i in range(stack.layers)]
        self._fc = Linear(tensors["fc.weight"])
        self._hidden_norm, self._norm = tensors["hidden_norm.weight"], tensors["norm.weight"]
        # The context goes through the K/V projections of all layers: one product for all of them.
        self._context_kv = Linear(np.concatenate(list(_context_rows_of_weights(tensors, config))))
        self._k_norm = np.stack(
            [
                np.tile(
                    tensors[f"layers.{i}.self_attn.k_norm.weight"][paired(stack.head_dim)],
                    (stack.kv_heads, 1),
                )
                for i in range(stack.layers)
            ]
        ).reshape(-1, stack.head_dim)  # [L * Hkv, D]
        self._turns = rotary_table(stack.rope_theta, stack.head_dim, positions)

    @property
    def nbytes(self) -> int:
        own = self._fc.nbytes + self._context_kv.nbytes + self._turns.nbytes
        norms = self._hidden_norm.nbytes + self._norm.nbytes + self._k_norm.nbytes
        return own + norms + sum(layer.nbytes for layer in self._layers)

    def new_cache(self, windows: DraftWindows, *, compact: bool, capacity: int) -> DraftCache:
        stack = self.config.stack
        keep = windows.keep() if compact else (None,) * stack.layers
        return DraftCache(stack.kv_heads, stack.head_dim, keep, capacity, self.config.block_size)

    def add_context(self, caches: Sequence[DraftCache], counts: Sequence[int], features: F32) -> None:
        """Append context rows: ``counts[i]`` rows of ``features [M, layers * hidden]`` belong to
        ``caches[i]``.
        """
        stack, rows = self.config.stack, len(features)
        if rows == 0:
            return
        context = rms_norm(self._fc(pad_rows(features)), self._hidden_norm, stack.rms_norm_eps)
        kv = self._context_kv(context)[:rows].reshape(rows, 2, stack.layers * stack.kv_heads, stack.head_dim)
        positions = np.concatenate(
            [np.arange(c.length, c.length + n) for c, n in zip(caches, counts, strict=True)]
        )
        k = rotate(rms_norm(kv[:, 0], self._k_norm, stack.rms_norm_eps), self._turns[positions])
        k, v = (y.reshape(rows, stack.layers, stack.kv_heads, stack.head_dim) for y in (k, kv[:, 1]))
        start = 0
        for cache, count in zip(caches, counts, strict=True):
            cache.append(k[start : start + count], v[start : start + count])
            start += count

    def block_logits(
        self, caches: Sequence[DraftCache], bonus: Sequence[int], windows: DraftWindows, slots: int
    ) -> F32:
        """Draft logits of slots 1..``slots`` of one block per request: ``[R, slots, vocabulary]``.

        Slots that no tree can reach cost nothing after the last layer's K/V.
        """
        stack, Q = self.config.stack, self.config.block_size
        R = len(caches)
        tokens = np.full((R, Q), self.config.mask_token_id)
        tokens[:, 0] = bonus
        x = self._target.embedding[tokens.reshape(-1)]
        starts = np.array([c.length for c in caches])
        turns: C64 = self._turns[(starts[:, None] + np.arange(Q)).reshape(-1)]
        wanted = (np.arange(R)[:, None] * Q + np.arange(1, slots + 1)).reshape(-1)
        for i, (layer, window) in enumerate(zip(self._layers, windows.layers, strict=True)):
            q, k, v = layer.qkv(x, turns)
            last = i == stack.layers - 1
            a, b = (1, slots + 1) if last else (0, Q)
            mixed = np.empty((R * (b - a), q.shape[1] * q.shape[2]), dtype=np.float32)
            for r, cache in enumerate(caches):
                rows = slice(r * Q, (r + 1) * Q)
                mixed[r * (b - a) : (r + 1) * (b - a)] = self._attend_block(
                    i, cache, window, q[rows][a:b], k[rows], v[rows], first_slot=a
                )
            x = layer.finish(pad_rows(x[wanted]) if last else x, pad_rows(mixed))
        normed = rms_norm(x[: R * slots], self._norm, stack.rms_norm_eps)
        return self._target.head_of(normed).reshape(R, slots, -1)

    def _attend_block(
        self, layer: int, cache: DraftCache, window: LayerWindow, q: F32, k: F32, v: F32, *, first_slot: int
    ) -> F32:
        """Attention of slots ``first_slot ..`` of one block over its visible context and the block."""
        n, Q, rows = cache.length, len(k), len(q)
        context = _context_rows(window)
        keys, values, used = cache.view(layer, 0 if context is None else n - context, k, v)
        if not window.causal:
            return attend(q, keys, values, None, used)
        bias = np.zeros((rows, used), dtype=np.float32)
        slot = np.arange(first_slot, first_slot + rows)[:, None]
        bias[:, used - Q :][np.arange(Q) > slot] = NEVER
        if window.window is not None:  # slot i stands i positions later, so its window starts i later
            position = np.arange(n - (used - Q), n)
            bias[:, : used - Q][position <= n + slot - window.window] = NEVER
        return attend(q, keys, values, bias, used)


def _context_rows_of_weights(tensors: dict[str, F32], config: DrafterConfig) -> list[F32]:
    """K projections of all layers (paired order), then V projections of all layers."""
    D = config.stack.head_dim
    names = [f"layers.{i}.self_attn." for i in range(config.stack.layers)]
    return [pair_rows(tensors[n + "k_proj.weight"], D) for n in names] + [
        tensors[n + "v_proj.weight"] for n in names
    ]
