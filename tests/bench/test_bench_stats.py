"""Statistics on values whose answers are known."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_backend.bench.stats import median_mad, percentile, spread

FLOATS = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50)


def test_known_values() -> None:
    found = spread([4.0, 1.0, 3.0, 2.0, 5.0])
    assert found is not None
    assert (found.n, found.mean, found.p50, found.low, found.high) == (5, 3.0, 3.0, 1.0, 5.0)
    assert (found.p10, found.p90) == pytest.approx((1.4, 4.6))
    assert spread([]) is None


def test_median_and_deviation() -> None:
    assert median_mad([1.0, 2.0, 3.0, 100.0]) == (2.5, 1.0)
    assert median_mad([7.0]) == (7.0, 0.0)
    assert median_mad([]) is None


@given(FLOATS)
def test_percentiles_are_ordered_and_inside(values: list[float]) -> None:
    found = spread(values)
    assert found is not None
    assert found.low <= found.p10 <= found.p50 <= found.p90 <= found.p99 <= found.high
    assert found.p50 == pytest.approx(statistics.median(values))


@given(FLOATS.filter(lambda v: len(v) > 1))
def test_percentiles_agree_with_the_standard_library(values: list[float]) -> None:
    quantiles = statistics.quantiles(values, n=10, method="inclusive")
    assert percentile(sorted(values), 90) == pytest.approx(quantiles[8], abs=1e-6)
