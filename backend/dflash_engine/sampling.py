"""How a target token is chosen from its logits: greedily, or by temperature and top-p."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .api import SamplingParams
from .weights import F32, F64

Choose = Callable[[F32], int]
"""Logits ``[vocabulary]`` of one position -> the token there."""


def chooser(sampling: SamplingParams, seed: int) -> Choose:
    """The rule for one request.

    A sampling rule draws one random number per call. The walk calls it once per committed token, in order,
    with logits that do not depend on the drafts: so the i-th token depends on the seed and the prompt
    alone, and speculative sampling gives not just the distribution but the very tokens of plain sampling.
    """
    if sampling.temperature == 0.0:
        return greedy
    random = np.random.Generator(np.random.PCG64(seed)).random

    def sample(logits: F32) -> int:
        return pick(probabilities(logits, sampling.temperature, sampling.top_p), random())

    return sample


def greedy(logits: F32) -> int:
    """The most probable token; the smallest among equals."""
    return int(logits.argmax())


def probabilities(logits: F32, temperature: float, top_p: float) -> F64:
    """``[vocabulary]``, sum 1: softmax(logits / temperature), cut to the smallest set with mass >= top_p."""
    scaled = logits.astype(np.float64) / temperature
    scaled -= scaled.max()
    p: F64 = np.exp(scaled)
    p /= p.sum()
    if top_p < 1.0:
        order = np.argsort(-p, kind="stable")
        before = np.cumsum(p[order]) - p[order]
        p[order[before >= top_p]] = 0.0
        p /= p.sum()
    return p


def pick(p: F64, u: float) -> int:
    """The token whose stretch of the cumulative distribution holds ``u`` in [0, 1)."""
    total = np.cumsum(p)
    return int(min(np.searchsorted(total, u * total[-1], side="right"), np.flatnonzero(p)[-1]))
