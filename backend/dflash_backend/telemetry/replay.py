"""A recording as a fleet: screens and commands cannot tell it from a live one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

from dflash_backend.core.errors import UsageError
from dflash_backend.core.samples import Snapshot
from dflash_backend.telemetry.broadcast import Newest
from dflash_backend.telemetry.contract import Mark, Series, SeriesName
from dflash_backend.telemetry.history import Chronicle
from dflash_backend.telemetry.record import Recording


class Replay:
    """``FleetView`` over a recording. Time is the recording's: give ``clock`` to everything that shows ages.

    ``speed`` 2.0 plays twice as fast. After the end the last snapshot stays; ``finished`` says so.
    """

    def __init__(
        self, path: Path, *, speed: float = 1.0, monotonic: Callable[[], float] | None = None
    ) -> None:
        """Reads up to the first snapshot. Raises ConfigError for what is no recording, UsageError."""
        if not 0 < speed <= 1000:
            raise UsageError(f"the speed must be above 0 and at most 1000, not {speed:g}")
        self._recording = Recording(path)
        self._rest: Iterator[Snapshot] = self._recording.snapshots()
        self._monotonic = monotonic or (lambda: asyncio.get_running_loop().time())
        self._speed = speed
        self._now = next(self._rest)
        self._first_at = self._now.at
        self._began: float | None = None
        self._chronicle = Chronicle()
        self._chronicle.add(self._now)
        self._newest: Newest[Snapshot] = Newest()
        self._newest.put(self._now)
        self._task: asyncio.Task[None] | None = None
        self.finished = asyncio.Event()

    @property
    def problems(self) -> tuple[str, ...]:
        """Lines that were left out so far, in words."""
        return tuple(self._recording.problems)

    def clock(self) -> float:
        """The present of the recording, in seconds since the epoch; it stands still after the end."""
        if self._began is None or self.finished.is_set():
            return self._now.at
        return max(self._now.at, self._first_at + (self._monotonic() - self._began) * self._speed)

    def snapshot(self) -> Snapshot:
        """The newest snapshot that was played."""
        return self._now

    def series(
        self, server: str, name: SeriesName, *, since: float, points: int, gpu: int | None = None
    ) -> Series:
        """History of what was played so far."""
        return self._chronicle.history.series(server, name, since=since, points=points, gpu=gpu)

    def marks(self, server: str, *, since: float) -> tuple[Mark, ...]:
        """Marks of what was played so far."""
        return self._chronicle.history.marks(server, since=since)

    def changes(self) -> AsyncIterator[Snapshot]:
        """Snapshots as they are played, newest only."""
        return self._newest.read()

    async def start(self) -> None:
        """Begins to play. Returns at once."""
        if self._task is None:
            self._began = self._monotonic()
            self._task = asyncio.create_task(self._play(), name="replay")

    async def close(self) -> None:
        """Stops playing."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        self._newest.close()

    async def _play(self) -> None:
        while (snapshot := await asyncio.to_thread(next, self._rest, None)) is not None:
            if snapshot.at > self.clock():
                await asyncio.sleep((snapshot.at - self.clock()) / self._speed)
            self._now = snapshot
            self._chronicle.add(snapshot)
            self._newest.put(snapshot)
        self.finished.set()
