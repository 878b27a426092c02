"""The passes over the models: a prefill chunk, and one round of drafting, verifying and committing.

AR, chain and tree share one round; they differ in the tree only. AR verifies the bonus token alone, the
chain is a tree that is a path.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from .api import Algorithm, StepTimings
from .drafter import Drafter
from .kv_cache import DraftCache
from .requests import Sequence
from .settings import Live
from .target import Segment, Target, causal_bias
from .tree import Tree, best_first, chain, root_only
from .verify import Accepted, walk
from .weights import F32


@dataclass(frozen=True, slots=True)
class Round:
    """What a decode round did, request by request."""

    trees: tuple[Tree, ...]
    accepted: tuple[Accepted, ...]
    timings: StepTimings


class Decoder:
    """Target and drafter working on a batch of requests. Holds no state between calls."""

    def __init__(self, target: Target, drafter: Drafter | None, algorithm: Algorithm) -> None:
        self._target = target
        self._drafter = drafter
        self._algorithm = algorithm

    def prefill(self, pieces: Seq[tuple[Sequence, int]]) -> tuple[list[tuple[int, ...]], StepTimings]:
        """Compute the next ``count`` prompt tokens of each request.

        Returns each request's new output tokens: its first one when its prompt is done (and it wants any).
        """
        clock = _Clock()
        tokens: list[int] = []
        positions: list[int] = []
        segments: list[Segment] = []
        for sequence, count in pieces:
            start = sequence.prefilled
            tokens += sequence.prompt[start : start + count]
            positions += range(start, start + count)
            segments.append(Segment(sequence.cache, count, causal_bias(count)))
        hidden, features = self._target.forward(tokens, positions, segments)
        clock.lap("target")
        self._commit([s for s, _ in pieces], [range(n) for _, n in pieces], features)
        clock.lap("commit")
        ends = np.cumsum([n for _, n in pieces]) - 1
        for sequence, count in pieces:
            sequence.prefilled += count
        wanting = [
            i for i, (s, _) in enumerate(pieces) if not s.prefilling and s.request.sampling.max_new_tokens > 0
        ]
        first: list[tuple[int, ...]] = [() for _ in pieces]
        if wanting:
            logits = self._target.head(hidden[ends[wanting]])
            clock.lap("target")
            for i, row in zip(wanting, logits, strict=True):
                first[i] = (pieces[i][0].choose(row),)
            clock.lap("sample")
        return first, clock.timings()

    def decode(self, sequences: Seq[Sequence], live: Live) -> Round:
        """Draft, build trees, verify them in one target pass, walk, keep the accepted rows."""
        clock = _Clock()
        trees = self._trees(sequences, live, clock)
        tokens: list[int] = []
        positions: list[int] = []
        segments: list[Segment] = []
        for sequence, tree in zip(sequences, trees, strict=True):
            n = sequence.cache.length
            tokens += tree.tokens
            positions += [n + d for d in tree.depths]
            segments.append(Segment(sequence.cache, len(tree), tree.bias()))
        clock.lap("tree")
        hidden, features = self._target.forward(tokens, positions, segments)
        clock.lap("target")
        stops = np.cumsum([len(t) for t in trees]).tolist()
        starts = [0, *stops[:-1]]
        accepted = walk(
            trees,
            [hidden[a:b] for a, b in zip(starts, stops, strict=True)],
            self._target,
            [s.choose for s in sequences],
        )
        clock.lap("sample")
        kept = [start + node for start, a in zip(starts, accepted, strict=True) for node in a.path]
        self._commit(sequences, [a.path for a in accepted], features[kept])
        clock.lap("commit")
        return Round(tuple(trees), tuple(accepted), clock.timings())

    def _trees(self, sequences: Seq[Sequence], live: Live, clock: _Clock) -> list[Tree]:
        if self._drafter is None or live.windows is None:
            return [root_only(s.bonus) for s in sequences]
        slots = self._drafter.config.block_size - 1
        if live.budget is not None:
            slots = min(slots, live.budget)  # B nodes reach no deeper than B
        logits = self._drafter.block_logits(
            _draft_caches(sequences), [s.bonus for s in sequences], live.windows, slots
        )
        clock.lap("draft")
        return [self._tree(s.bonus, rows, live) for s, rows in zip(sequences, logits, strict=True)]

    def _tree(self, bonus: int, logits: F32, live: Live) -> Tree:
        if self._algorithm is Algorithm.DDTREE and live.budget is not None:
            return best_first(bonus, logits, live.budget, live.topk)
        return chain(bonus, logits)

    def _commit(self, sequences: Seq[Sequence], rows: Seq[Seq[int]], features: F32) -> None:
        """Keep the target's K/V of ``rows`` and give the drafter their features, in the same order."""
        for sequence, kept in zip(sequences, rows, strict=True):
            sequence.cache.commit(kept)
        if self._drafter is not None:
            self._drafter.add_context(_draft_caches(sequences), [len(r) for r in rows], features)


def _draft_caches(sequences: Seq[Sequence]) -> list[DraftCache]:
    return [s.draft_cache for s in sequences if s.draft_cache is not None]


class _Clock:
    """Wall-clock seconds by part of a step."""

    def __init__(self) -> None:
        self._start = self._last = perf_counter()
        self._parts: dict[str, float] = {}

    def lap(self, part: str) -> None:
        now = perf_counter()
        self._parts[part] = self._parts.get(part, 0.0) + now - self._last
        self._last = now

    def timings(self) -> StepTimings:
        return StepTimings(**self._parts, total=self._last - self._start)
