"""From counters to rates: what happens at a restart, a gap, a missing or impossible value.

Both classes take the time of reading on the console's clock and never divide by a time that they did not
see pass. Nothing here is ever 0 because something was missing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

from dflash_backend.telemetry.series import finite

Cause = Literal["", "first", "gap", "restart", "missing", "clock"]

NOTES: dict[Cause, str] = {
    "": "",
    "first": "first value: a rate needs two",
    "gap": "first value after a gap dropped",
    "restart": "counter fell: the server restarted",
    "missing": "the server does not report it",
    "clock": "two readings at one moment",
}


@dataclass(frozen=True, slots=True)
class Delta:
    """What a counter did over ``seconds``. ``amount`` is None with the cause when nothing can be said."""

    amount: float | None = None
    seconds: float = 0.0
    cause: Cause = ""

    @property
    def rate(self) -> float | None:
        """Per second, or None."""
        return None if self.amount is None or self.seconds <= 0 else self.amount / self.seconds

    @property
    def note(self) -> str:
        """Why there is no amount; empty when there is one."""
        return NOTES[self.cause]


class Counter:
    """A counter of a server, read about once per second, seen through a window of a few seconds.

    The window smooths what the server adds in steps. ``max_gap_s``: readings further apart than this do not
    belong together, because the pause in between is not the server's.
    """

    def __init__(self, *, window_s: float = 3.0, max_gap_s: float = 10.0) -> None:
        self._window = window_s
        self._gap = max_gap_s
        self._seen: deque[tuple[float, float]] = deque()

    def update(self, at: float, value: float | None) -> Delta:
        """Takes a reading and returns the change over the window that ends with it."""
        number = finite(value)
        if number is None:
            self._seen.clear()
            return Delta(cause="missing")
        if not self._seen:
            self._seen.append((at, number))
            return Delta(cause="first")
        last_at, last = self._seen[-1]
        if at <= last_at:
            if at < last_at:
                self._restart(at, number)
            return Delta(cause="clock")
        if number < last:
            self._restart(at, number)
            return Delta(cause="restart")
        if at - last_at > self._gap:
            self._restart(at, number)
            return Delta(cause="gap")
        self._seen.append((at, number))
        # One reading at or before the window's start stays: it is where the window begins.
        while len(self._seen) > 2 and self._seen[1][0] <= at - self._window:
            self._seen.popleft()
        first_at, first = self._seen[0]
        return Delta(amount=number - first, seconds=at - first_at)

    def reset(self) -> None:
        """Forgets what was seen: the next reading is a first one."""
        self._seen.clear()

    def _restart(self, at: float, number: float) -> None:
        self._seen.clear()
        self._seen.append((at, number))


class Ratio:
    """Quotient of what two counters did over the same window, such as tokens per verify step."""

    def __init__(self, *, window_s: float, max_gap_s: float = 10.0) -> None:
        self._above = Counter(window_s=window_s, max_gap_s=max_gap_s)
        self._below = Counter(window_s=window_s, max_gap_s=max_gap_s)

    def update(self, at: float, above: float | None, below: float | None) -> float | None:
        """The quotient over the window, or None when either is missing or nothing was counted below."""
        if finite(above) is None or finite(below) is None:
            self.reset()
            return None
        upper, lower = self._above.update(at, above), self._below.update(at, below)
        if upper.cause == "restart" or lower.cause == "restart":
            # They are counters of one process: when one fell, both began again.
            self.reset()
            self._above.update(at, above)
            self._below.update(at, below)
            return None
        if upper.amount is None or lower.amount is None or lower.amount <= 0:
            return None
        return upper.amount / lower.amount

    def reset(self) -> None:
        """Forgets both."""
        self._above.reset()
        self._below.reset()
