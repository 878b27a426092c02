"""Ways through a source: where a condition is unknown both answers are followed, within bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dflash_backend.audit.values import GaveUpError, RaisedError

MAX_PATHS = 96
MAX_STEPS = 100_000
"""Of one path. The largest stock release needs 6,500."""
MAX_TOTAL_STEPS = 1_000_000
"""Of all paths together: a hostile source is left after some seconds."""


class Budget:
    """Steps that all paths of one exploration share."""

    def __init__(self, total: int = MAX_TOTAL_STEPS) -> None:
        self.left = total

    def spend(self) -> None:
        """Counts one step. Raises GaveUpError when there are none left."""
        self.left -= 1
        if self.left < 0:
            raise GaveUpError("the source takes too many steps to follow")


class Oracle:
    """Decides unknown conditions along one path; the same condition is decided once a path."""

    def __init__(self, script: Sequence[bool] = (), budget: Budget | None = None) -> None:
        self.script = list(script)
        self.taken: list[tuple[str, bool]] = []
        self.budget = budget or Budget()
        self._known: dict[str, bool] = {}
        self._steps = 0

    def decide(self, question: str) -> bool:
        """The answer on this path."""
        if question not in self._known:
            place = len(self.taken)
            answer = self.script[place] if place < len(self.script) else False
            self.taken.append((question, answer))
            self._known[question] = answer
        return self._known[question]

    def tick(self) -> None:
        """Counts one step of the path. Raises GaveUpError."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise GaveUpError("one way through the source takes too many steps")
        self.budget.spend()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one path gave: a value, or the error that the source raises on it."""

    conditions: tuple[tuple[str, bool], ...]
    value: Any = None
    raised: RaisedError | None = None


def explore(run: Callable[[Oracle], Any]) -> list[Outcome]:
    """Runs ``run`` once for every combination of answers to unknown conditions.

    What the source raises is an outcome. Raises GaveUpError when there are too many paths or steps, or when
    the source is nested too deeply; no other exception.
    """
    outcomes: list[Outcome] = []
    waiting: list[list[bool]] = [[]]
    budget = Budget()
    while waiting:
        if len(outcomes) >= MAX_PATHS:
            raise GaveUpError(f"more than {MAX_PATHS} ways through the source")
        script = waiting.pop()
        oracle = Oracle(script, budget)
        try:
            value, raised = run(oracle), None
        except RaisedError as error:
            value, raised = None, error
        except (RecursionError, MemoryError):
            raise GaveUpError("the source is nested too deeply") from None
        outcomes.append(Outcome(tuple(oracle.taken), value, raised))
        for place in range(len(script), len(oracle.taken)):
            waiting.append([answer for _, answer in oracle.taken[:place]] + [True])
    return outcomes
