"""Statistics over raw values. Percentiles are never averaged over runs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Distribution of raw values; percentiles by linear interpolation between the closest ranks."""

    n: int
    mean: float
    p10: float
    p50: float
    p90: float
    p99: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread | None:
    """The distribution of ``values``; None when there is none."""
    if not values:
        return None
    ordered = sorted(values)
    return Spread(
        n=len(ordered),
        mean=statistics.fmean(ordered),
        p10=percentile(ordered, 10),
        p50=percentile(ordered, 50),
        p90=percentile(ordered, 90),
        p99=percentile(ordered, 99),
        low=ordered[0],
        high=ordered[-1],
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """The ``share`` percentile (0..100) of sorted values, at least one."""
    place = (len(ordered) - 1) * share / 100.0
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def median_mad(values: Sequence[float]) -> tuple[float, float] | None:
    """Median, and median absolute deviation from it; None when there are no values."""
    if not values:
        return None
    middle = statistics.median(values)
    return middle, statistics.median(abs(value - middle) for value in values)
