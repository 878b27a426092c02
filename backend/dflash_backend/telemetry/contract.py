"""What screens, the status command and the recorder read: the fleet as it is now, and how it got there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal, Protocol

from dflash_backend.core.samples import Snapshot

SeriesName = Literal[
    "decode_tok_s", "accept_length", "running", "queued", "token_usage", "gpu_memory_mib", "rss_mib"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A series for a chart: ``times`` in seconds since the epoch, ascending; a gap is a None value."""

    name: SeriesName
    times: tuple[float, ...] = ()
    values: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that happened at a moment and belongs on the time axis: a profile change, a start."""

    at: float
    text: str


class FleetView(Protocol):
    """Live fleet or replay: the screens cannot tell."""

    def snapshot(self) -> Snapshot:
        """The newest state of everything; cheap, no I/O."""
        ...

    def series(
        self, server: str, name: SeriesName, *, since: float, points: int, gpu: int | None = None
    ) -> Series:
        """History for one chart, thinned to at most ``points`` by minimum and maximum per bucket."""
        ...

    def marks(self, server: str, *, since: float) -> tuple[Mark, ...]: ...

    def changes(self) -> AsyncIterator[Snapshot]:
        """Snapshots as they come, newest only: a slow reader skips, never lags."""
        ...

    async def start(self) -> None:
        """Begins watching. Returns at once."""
        ...

    async def close(self) -> None:
        """Stops watching; bounded in time."""
        ...
