"""Counters to rates: a restart, a gap or a missing value never becomes a figure."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_backend.telemetry.rates import Counter, Ratio


def test_a_steady_counter_gives_its_rate() -> None:
    counter = Counter()
    assert counter.update(100.0, 1000).cause == "first"
    assert counter.update(101.0, 1050).rate == pytest.approx(50)
    assert counter.update(102.0, 1100).rate == pytest.approx(50)


def test_the_window_smooths_steps_and_forgets() -> None:
    counter = Counter(window_s=3.0)
    for second in range(20):
        # The server adds 300 tokens every third second.
        delta = counter.update(float(second), 300.0 * (second // 3))
    assert delta.rate == pytest.approx(100)
    assert delta.seconds == 3.0
    for second in range(20, 25):
        delta = counter.update(float(second), 300.0 * 6)
    assert delta.rate == 0.0  # counted, and nothing came: this is a true zero


def test_a_restart_gives_no_rate_and_starts_again() -> None:
    counter = Counter()
    counter.update(1.0, 5000)
    counter.update(2.0, 5100)
    assert counter.update(3.0, 10) == counter.update(3.0, 10).__class__(cause="restart")
    assert counter.update(4.0, 30).rate == pytest.approx(20)


def test_the_first_value_after_a_gap_is_dropped() -> None:
    counter = Counter(max_gap_s=10)
    counter.update(1.0, 0)
    counter.update(2.0, 100)
    delta = counter.update(200.0, 20_000)
    assert delta.rate is None
    assert delta.cause == "gap"
    assert counter.update(201.0, 20_100).rate == pytest.approx(100)


@pytest.mark.parametrize("bad", [None, math.nan, math.inf])
def test_a_missing_value_is_never_zero(bad: float | None) -> None:
    counter = Counter()
    counter.update(1.0, 100)
    delta = counter.update(2.0, bad)
    assert delta.rate is None
    assert delta.cause == "missing"
    # What was counted in between cannot be placed: the next value is a first one.
    assert counter.update(3.0, 900).cause == "first"


def test_a_clock_set_back_gives_no_rate() -> None:
    counter = Counter()
    counter.update(100.0, 10)
    assert counter.update(50.0, 20).rate is None
    assert counter.update(51.0, 30).rate == pytest.approx(10)


@given(
    st.lists(
        st.tuples(
            st.floats(-20, 50, allow_nan=False),
            st.none() | st.floats(allow_nan=True, allow_infinity=True) | st.integers(0, 10**12),
        )
    )
)
def test_a_rate_is_finite_and_not_negative_or_missing_with_a_cause(
    readings: list[tuple[float, float | None]],
) -> None:
    counter = Counter()
    at = 1000.0
    for step, value in readings:
        at += step
        delta = counter.update(at, value)
        if delta.rate is None:
            assert delta.cause
            assert delta.note
        else:
            assert delta.rate >= 0
            assert math.isfinite(delta.rate) or abs(value or 0) > 1e300


def test_accept_length_is_tokens_over_verify_steps() -> None:
    ratio = Ratio(window_s=30)
    assert ratio.update(1.0, 0, 0) is None
    assert ratio.update(2.0, 430, 100) == pytest.approx(4.3)
    assert ratio.update(3.0, 860, 200) == pytest.approx(4.3)
    # Nothing verified: no quotient, not zero.
    quiet = Ratio(window_s=5)
    quiet.update(1.0, 10, 5)
    assert quiet.update(2.0, 10, 5) is None
    # One of the two fell: both begin again.
    assert ratio.update(4.0, 5, 300) is None
    assert ratio.update(5.0, 25, 310) == pytest.approx(2.0)
    assert ratio.update(6.0, None, 320) is None
