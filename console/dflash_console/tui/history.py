"""Series of the fleet made ready for a chart; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dflash_backend.telemetry.contract import Series
from dflash_console.tui.plot import Line

SPANS: tuple[float, ...] = (600.0, 3600.0, 21600.0)
"""Spans of the charts in seconds; ``t`` goes through them."""

_HOLD_S = 5.0


def chart_end(at: float, span: float, columns: int) -> float:
    """The right edge of a chart: it moves by whole columns of dots, so that old dots stay where they are."""
    step = span / max(1, columns)
    return math.ceil(at / step) * step


def as_line(series: Series, role: str = "accent") -> Line:
    """One series as a line."""
    return Line(series.times, series.values, role)


def total(parts: Sequence[Series], start: float, end: float, buckets: int) -> Line:
    """The sum of several series on one grid of moments.

    Each part counts with its mean in a bucket, or with its newest value for ``_HOLD_S`` seconds, so that
    servers that are read at different moments do not make the sum jump. A bucket in which no part has a
    value is a gap.
    """
    step = (end - start) / max(1, buckets)
    sums: list[float | None] = [None] * buckets
    for part in parts:
        inside: dict[int, list[float]] = {}
        for at, value in zip(part.times, part.values, strict=False):
            if value is not None and math.isfinite(value) and start <= at < end:
                inside.setdefault(int((at - start) / step), []).append(value)
        held, held_at = None, -math.inf
        for index in range(buckets):
            values = inside.get(index)
            if values:
                mean = sum(values) / len(values)
                held, held_at = values[-1], start + (index + 1) * step
            elif held is not None and start + index * step - held_at < max(_HOLD_S, step):
                mean = held
            else:
                continue
            sums[index] = (sums[index] or 0.0) + mean
    times = tuple(start + (index + 0.5) * step for index in range(buckets))
    return Line(times, tuple(sums))
