"""RMSNorm, rotary positions and masked attention, as the Qwen3 layers of target and drafter use them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .weights import F32, FArray

NEVER = np.float32(-np.inf)
"""Additive mask value of what a row must not see."""

COLUMN_STEP = 16
"""Attention columns are computed in whole steps: BLAS treats a ragged edge with another kernel."""

C64 = npt.NDArray[np.complex64]


def rms_norm(x: F32, weight: F32, eps: float) -> F32:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last axis."""
    mean = np.add.reduce(x * x, axis=-1, keepdims=True)
    mean /= x.shape[-1]
    mean += eps
    np.sqrt(mean, out=mean)
    y: F32 = np.divide(x, mean, dtype=np.float32)
    y *= weight
    return y


def rotary_table(theta: float, head_dim: int, positions: int) -> C64:
    """``exp(i * position * frequency)``, ``[positions, head_dim / 2]``; angles in float32 like
    transformers.
    """
    steps = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    frequencies = np.float32(1.0) / np.float32(theta) ** steps
    angles = np.arange(positions, dtype=np.float32)[:, None] * frequencies
    table = np.empty(angles.shape, dtype=np.complex64)
    table.real, table.imag = np.cos(angles), np.sin(angles)
    return table


def paired(head_dim: int) -> npt.NDArray[np.intp]:
    """Order of a head's dimensions in which each rotated pair (i, i + head_dim / 2) lies side by side.

    Queries and keys are kept in this order (dot products do not notice), so that a rotation is one complex
    product: view ``[..., head_dim]`` float32 as ``[..., head_dim / 2]`` complex64.
    """
    half = head_dim // 2
    return np.arange(head_dim).reshape(2, half).T.reshape(-1)


def rotate(x: F32, turns: C64) -> F32:
    """Rotate heads ``x [M, H, D]`` (paired order) by ``turns [M, D / 2]``."""
    return (x.view(np.complex64) * turns[:, None]).view(np.float32)


def silu_gate(gate_up: F32, width: int) -> F32:
    """``silu(gate) * up`` for ``[M, 2 * width]`` holding gate and up side by side."""
    gate, up = gate_up[:, :width], gate_up[:, width:]
    with np.errstate(over="ignore"):  # exp(-gate) = inf is right: silu is 0 there
        y = np.exp(-gate)
    y += 1.0
    np.divide(gate, y, out=y)
    y *= up
    return y


def attend(q: F32, keys: FArray, values: FArray, bias: F32 | None, used: int) -> F32:
    """Grouped-query attention of M rows over the first ``used`` columns.

    ``q [M, H, D]`` scaled by 1/sqrt(D); ``keys [Hkv, D, T]``; ``values [Hkv, T, D]``, T >= used;
    ``bias [M, own]`` is added to the last ``own`` of the used columns (0 or NEVER; None: all visible).
    Returns ``[M, H * D]`` float32.

    The weighted sum runs in the dtype of ``values``. With float64 it does not depend, after rounding to
    float32, on where in the columns a token lies: a draft verified inside a tree and the same token decoded
    alone get the same numbers.
    """
    M, H, D = q.shape
    Hkv = len(keys)
    G = H // Hkv
    if M * G == 1:  # never one row: see linear.py
        return attend(np.repeat(q, 2, axis=0), keys, values, _doubled(bias), used)[:1]
    grouped = q.reshape(M, Hkv, G, D).transpose(1, 2, 0, 3).reshape(Hkv, G * M, D)
    scores = np.matmul(grouped, keys)  # [Hkv, G*M, T]
    if bias is not None:
        own = bias.shape[1]
        scores.reshape(Hkv, G, M, -1)[..., used - own : used] += bias
    scores[..., used:] = NEVER
    scores -= np.maximum.reduce(scores, axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    weights = scores.astype(values.dtype, copy=False)
    mixed = np.matmul(weights, values)
    mixed /= np.add.reduce(weights, axis=-1, keepdims=True)
    joined = mixed.reshape(Hkv, G, M, D).transpose(2, 0, 1, 3).reshape(M, H * D)
    return np.asarray(joined, dtype=np.float32)


def _doubled(bias: F32 | None) -> F32 | None:
    return None if bias is None else np.repeat(bias, 2, axis=0)
