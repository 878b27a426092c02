"""What the console knows of one run's log: its clean end, the start-up stage, the last trusted throughput."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from dflash_backend.core.samples import Stage
from dflash_backend.core.text import MAX_LINE, redact, sanitise
from dflash_backend.sglang.log import DecodeLine, ThroughputFilter, read_batch_line
from dflash_backend.sglang.startup import StartupTracker

TAIL_CHARACTERS = 8 * 1024
KEPT_LINES = 1000
"""For finding the reason of a failure, which may stand far above the end."""
THROUGHPUT_AGE_S = 15.0
"""A decode line tells the throughput of the interval before it: older ones say nothing of now."""


class RunLog:
    """Takes the pieces that the monitor sends. Memory is bounded."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._partial = ""
        self._tracker = StartupTracker()
        self._filter = ThroughputFilter()
        self._begun = False
        self._decode: tuple[float, DecodeLine, float | None] | None = None

    def take(self, piece: Mapping[str, object], at: float) -> None:
        """Adds what is new; ``at`` is when it came. A piece that cannot be read is left out."""
        text, partial = piece.get("text"), piece.get("partial")
        if piece.get("reset"):
            self._lines.clear()
            self._filter = ThroughputFilter()
        if isinstance(text, str):
            # What was in the log before we looked tells no throughput of now.
            fresh = self._begun and not piece.get("reset")
            for line in sanitise(text).split("\n"):
                if line:
                    self._line(redact(line[:MAX_LINE]), at if fresh else None)
        self._begun = True
        self._partial = ""
        if isinstance(partial, str):
            self._partial = redact(sanitise(partial, multiline=False, limit=MAX_LINE))
            if "%" in self._partial and "|" in self._partial:
                # A progress bar's newest step has no line end yet.
                self._tracker.feed(self._partial)

    def _line(self, line: str, at: float | None) -> None:
        self._lines.append(line)
        self._tracker.feed(line)
        batch = read_batch_line(line)
        if batch is None:
            return
        throughput = self._filter.feed(batch)
        if isinstance(batch, DecodeLine) and at is not None:
            self._decode = (at, batch, throughput)

    @property
    def stage(self) -> Stage:
        """Where the start is, as far as the log tells."""
        return self._tracker.stage

    @property
    def lines(self) -> tuple[str, ...]:
        """The kept lines, oldest first, with the unfinished last one."""
        return (*self._lines, self._partial) if self._partial else tuple(self._lines)

    def tail(self) -> str:
        """The end of the log for a sample, whole lines."""
        kept: list[str] = []
        size = 0
        for line in reversed(self.lines):
            size += len(line) + 1
            if kept and size > TAIL_CHARACTERS:
                break
            kept.append(line)
        return "\n".join(reversed(kept))

    def decode(self, now: float) -> tuple[DecodeLine, float | None] | None:
        """The last decode line and its trusted throughput, while they still speak of now."""
        if self._decode is None or now - self._decode[0] > THROUGHPUT_AGE_S:
            return None
        return self._decode[1], self._decode[2]
