"""Time series in bounded memory, and their thinning for a chart that has fewer columns than samples."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable

from dflash_backend.telemetry.contract import Mark, Series, SeriesName

CAPACITY = 2 * 3600
"""Samples kept of one series: two hours at 1 Hz, 115 kB."""

MARKS = 512
"""Marks kept of one server."""


def finite(value: float | int | None) -> float | None:
    """``value`` as a float, or None when it is missing, NaN or infinite.

    The one filter between sources and figures: SGLang prints ``NaN`` and ``+Inf``, drivers print worse.
    """
    if value is None or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


class Ring:
    """The newest ``capacity`` samples of one figure. Appending is O(1); memory grows up to the capacity.

    Times must not go backwards: a sample that is not newer than the last one is dropped (a clock that was
    set back would otherwise fold the chart onto itself). A gap is stored as None.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        if capacity < 1:
            raise ValueError("capacity must be positive")
        self._capacity = capacity
        self._times = array("d")
        self._values = array("d")
        self._head = 0  # index of the oldest sample once the ring is full

    def __len__(self) -> int:
        return len(self._times)

    def append(self, at: float, value: float | None) -> bool:
        """Adds a sample; False when it was dropped because it is not newer than the last one."""
        count = len(self._times)
        if not math.isfinite(at) or (count and at <= self._times[self._head - 1]):
            return False
        number = finite(value)
        stored = math.nan if number is None else number
        if count < self._capacity:
            self._times.append(at)
            self._values.append(stored)
        else:
            self._times[self._head] = at
            self._values[self._head] = stored
            self._head = (self._head + 1) % self._capacity
        return True

    def since(self, start: float) -> tuple[list[float], list[float | None]]:
        """Times and values from ``start`` on, ascending."""
        # Only a full ring has a head other than 0; both halves are ascending.
        old, new = self._times[self._head :], self._times[: self._head]
        if new and new[0] <= start:
            first = self._head  # nothing of the older half is wanted
            skip = bisect_left(new, start)
            times, values = new[skip:], self._values[skip:first]
        else:
            skip = bisect_left(old, start)
            times = old[skip:] + new
            values = self._values[self._head + skip :] + self._values[: self._head]
        return times.tolist(), [None if math.isnan(v) else v for v in values]


def bucket_width(span: float, buckets: int) -> float:
    """The width of a bucket in seconds: a round number, so that it stays the same while time goes on.

    Buckets stand at multiples of their width. A chart that is drawn again one second later then differs only
    where data is new; nothing else flickers.
    """
    if buckets < 2 or span <= 0:
        return math.inf
    least = span / (buckets - 1)
    power = 10.0 ** math.floor(math.log10(least))
    return next((f * power for f in (1, 1.5, 2, 3, 4, 5, 6, 8) if f * power >= least), 10 * power)


def thin(
    times: list[float], values: list[float | None], points: int
) -> tuple[tuple[float, ...], tuple[float | None, ...]]:
    """At most ``points`` samples that keep the minimum and the maximum of every time bucket.

    A bucket gives its smallest and its largest value in the order in which they came (one sample when they
    are the same one); a bucket in which every sample is missing gives one None, and so does a stretch
    without samples, so that a line is broken there. Fewer samples than ``points`` are returned as they are.
    """
    if points <= 0 or not times:
        return (), ()
    if len(times) <= points:
        return tuple(times), tuple(values)
    if points == 1:
        return (times[-1],), (values[-1],)
    width = bucket_width(times[-1] - times[0], points // 2)
    out_times: list[float] = []
    out_values: list[float | None] = []
    position, previous = 0, 0.0
    while position < len(times):
        # With an infinite width everything is in bucket 0.
        bucket = math.floor(times[position] / width)
        end = position + 1
        while end < len(times) and math.floor(times[end] / width) == bucket:
            end += 1
        if out_times and bucket - previous > 1 and out_values[-1] is not None:
            out_times.append((previous + 1) * width)
            out_values.append(None)
        low, high = _extremes(values, position, end)
        if low is None or high is None:
            out_times.append(times[position])
            out_values.append(None)
        else:
            for index in sorted({low, high}):
                out_times.append(times[index])
                out_values.append(values[index])
        position, previous = end, bucket
    return tuple(out_times), tuple(out_values)


def _extremes(values: list[float | None], start: int, end: int) -> tuple[int | None, int | None]:
    low = high = None
    low_value, high_value = math.inf, -math.inf
    for index in range(start, end):
        value = values[index]
        if value is None:
            continue
        if value < low_value:
            low, low_value = index, value
        if value > high_value:
            high, high_value = index, value
    return low, high


class History:
    """All series and marks of a fleet, by server. ``gpu`` tells series of one figure per GPU apart."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._rings: dict[tuple[str, SeriesName, int | None], Ring] = {}
        self._marks: dict[str, deque[Mark]] = {}

    def add(
        self, server: str, name: SeriesName, at: float, value: float | None, *, gpu: int | None = None
    ) -> None:
        """Adds one sample."""
        key = (server, name, gpu)
        ring = self._rings.get(key)
        if ring is None:
            ring = self._rings[key] = Ring(self._capacity)
        ring.append(at, value)

    def mark(self, server: str, at: float, text: str) -> None:
        """Puts a mark on the time axis of a server."""
        self._marks.setdefault(server, deque(maxlen=MARKS)).append(Mark(at=at, text=text))

    def series(
        self, server: str, name: SeriesName, *, since: float, points: int, gpu: int | None = None
    ) -> Series:
        """See ``FleetView.series``. An unknown server or figure gives an empty series.

        GPU memory without ``gpu`` is the sum over the server's GPUs at each moment.
        """
        ring = self._rings.get((server, name, gpu))
        if ring is None:
            return Series(name=name)
        times, values = thin(*ring.since(since), points)
        return Series(name=name, times=times, values=values)

    def marks(self, server: str, *, since: float) -> tuple[Mark, ...]:
        """Marks of a server from ``since`` on, oldest first."""
        found = (mark for mark in self._marks.get(server, ()) if mark.at >= since)
        # A start is told when it is seen, with the time at which it was.
        return tuple(sorted(found, key=lambda mark: mark.at))


def total(values: Iterable[float | None]) -> float | None:
    """The sum, or None when any part is missing: a sum of some parts is a wrong figure."""
    result = 0.0
    seen = False
    for value in values:
        if value is None:
            return None
        result += value
        seen = True
    return result if seen else None
