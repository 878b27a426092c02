"""The draft tree of DDTree (arXiv:2604.12989): the best B continuations under a factorised draft.

The drafter gives L independent marginals, one per position. A node at depth d is a choice of one token at
each of the positions 1..d; its probability is the product of theirs. The best tree of B nodes under the sum
of node probabilities (the expected accepted drafts, if the draft were right) is the B most probable nodes:
a node is never more probable than its parent, so the set is closed under prefixes.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from .attention import NEVER
from .weights import F32


@dataclass(frozen=True, slots=True)
class Tree:
    """Nodes in the order they were added; node 0 is the root, the bonus token. Parents come first."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    """Index of each node's parent; -1 for the root."""
    depths: tuple[int, ...]
    """0 for the root: a node stands at position n + depth."""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def drafts(self) -> int:
        """Nodes without the root: what the budget counts."""
        return len(self.tokens) - 1

    def children(self) -> dict[tuple[int, int], int]:
        """(parent, token) -> node."""
        return {(p, t): i for i, (p, t) in enumerate(zip(self.parents, self.tokens, strict=True)) if i}

    def leading_paths(self) -> list[int]:
        """For each node its first (most probable) child, or -1."""
        first = [-1] * len(self.tokens)
        for i in range(len(self.tokens) - 1, 0, -1):
            first[self.parents[i]] = i
        return first

    def bias(self) -> F32 | None:
        """Ancestor-only mask ``[N, N]`` as additive values: a node sees itself and its ancestors."""
        N = len(self.tokens)
        if N == 1:
            return None
        bias = np.full((N, N), NEVER, dtype=np.float32)
        for i, parent in enumerate(self.parents):
            if i:
                bias[i] = bias[parent]
            bias[i, i] = 0.0
        return bias


def root_only(bonus: int) -> Tree:
    """No drafts: verifying this tree is one autoregressive step."""
    return Tree((bonus,), (-1,), (0,))


def chain(bonus: int, logits: F32) -> Tree:
    """DFlash: the best token of every slot, one after the other. ``logits [L, vocabulary]``."""
    L = len(logits)
    return Tree((bonus, *logits.argmax(axis=-1).tolist()), tuple(range(-1, L)), tuple(range(L + 1)))


def best_first(bonus: int, logits: F32, budget: int, topk: int | None = None) -> Tree:
    """DDTree: the ``budget`` most probable nodes. ``logits [L, vocabulary]``, slots 1..L.

    Best-first search on cumulative log-probability with ``topk`` candidates per position (None: enough for
    the budget). Popping a node offers its next sibling and its first child. Ties go to the smaller depth,
    then to the parent added first, then to the smaller token: the same logits always give the same tree.
    Fewer than ``budget`` nodes only if the candidates allow no more.
    """
    candidates = _Candidates(logits, min(topk or budget, logits.shape[1]))
    L = len(logits)
    tokens, parents, depths = [bonus], [-1], [0]
    # (-score, depth, parent, rank, score of the parent): rank is last that can differ, so ties never
    # compare it
    heap = [(-candidates.log_prob(0, 0), 1, 0, 0, 0.0)]
    while heap and len(tokens) <= budget:
        negative, depth, parent, rank, above = heapq.heappop(heap)
        node = len(tokens)
        tokens.append(candidates.token(depth - 1, rank))
        parents.append(parent)
        depths.append(depth)
        if rank + 1 < candidates.limit:
            score = above + candidates.log_prob(depth - 1, rank + 1)
            heapq.heappush(heap, (-score, depth, parent, rank + 1, above))
        if depth < L:
            score = candidates.log_prob(depth, 0) - negative
            heapq.heappush(heap, (-score, depth + 1, node, 0, -negative))
    return Tree(tuple(tokens), tuple(parents), tuple(depths))


class _Candidates:
    """Tokens of each slot by falling probability, found one at a time: a tree asks for few of them."""

    def __init__(self, logits: F32, limit: int) -> None:
        self.limit = limit
        self._logits = logits.copy()
        top = np.maximum.reduce(logits, axis=-1, keepdims=True)
        shifted = np.exp(logits - top)
        self._log_total = (np.log(np.add.reduce(shifted, axis=-1)) + top[:, 0]).tolist()
        self._found: list[list[tuple[int, float]]] = [[] for _ in range(len(logits))]

    def _get(self, slot: int, rank: int) -> tuple[int, float]:
        found = self._found[slot]
        while len(found) <= rank:
            row = self._logits[slot]
            token = int(row.argmax())  # the smallest token among equals
            found.append((token, float(row[token]) - self._log_total[slot]))
            row[token] = NEVER
        return found[rank]

    def token(self, slot: int, rank: int) -> int:
        return self._get(slot, rank)[0]

    def log_prob(self, slot: int, rank: int) -> float:
        return self._get(slot, rank)[1]
