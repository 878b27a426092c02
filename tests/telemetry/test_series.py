"""Ring buffers and thinning: what a chart shows is what was measured."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_backend.telemetry.series import History, Ring, bucket_width, finite, thin, total

samples = st.lists(
    st.tuples(
        st.floats(min_value=0.01, max_value=1e5),
        st.none() | st.floats(min_value=-1e6, max_value=1e6),
    ),
    max_size=300,
)


def build(steps: list[tuple[float, float | None]]) -> tuple[list[float], list[float | None]]:
    times: list[float] = []
    at = 1.7e9
    for step, _ in steps:
        at += step
        times.append(at)
    return times, [value for _, value in steps]


@given(samples, st.integers(0, 400))
def test_thinning_keeps_minimum_and_maximum_of_every_bucket(
    steps: list[tuple[float, float | None]], points: int
) -> None:
    times, values = build(steps)
    got_times, got_values = thin(times, values, points)
    assert len(got_times) == len(got_values) <= points
    assert list(got_times) == sorted(got_times)
    present = dict(zip(times, values, strict=True))
    for at, value in zip(got_times, got_values, strict=True):
        assert value is None or present[at] == value
    if points < 2 or len(times) <= points:
        return
    width = bucket_width(times[-1] - times[0], points // 2)
    buckets: dict[int, list[float]] = {}
    for at, value in present.items():
        if value is not None:
            buckets.setdefault(math.floor(at / width), []).append(value)
    kept = {value for value in got_values if value is not None}
    for inside in buckets.values():
        assert min(inside) in kept
        assert max(inside) in kept


@given(samples, st.integers(1, 50))
def test_a_ring_holds_the_newest_samples_in_order(steps: list[tuple[float, float | None]], size: int) -> None:
    times, values = build(steps)
    ring = Ring(size)
    for at, value in zip(times, values, strict=True):
        ring.append(at, value)
    assert len(ring) == min(size, len(times))
    for start in [0.0, *times[-3:], times[len(times) // 2] if times else 0.0]:
        expected = [(t, v) for t, v in zip(times, values, strict=True) if t >= start][-size:]
        assert list(zip(*ring.since(start), strict=True)) == expected


def test_a_clock_set_back_does_not_fold_the_chart() -> None:
    ring = Ring(10)
    assert ring.append(100.0, 1.0)
    assert not ring.append(99.0, 2.0)
    assert not ring.append(100.0, 2.0)
    assert not ring.append(math.nan, 2.0)
    assert ring.since(0.0) == ([100.0], [1.0])


def test_a_stretch_without_samples_breaks_the_line() -> None:
    times = [float(i) for i in range(100)] + [float(i) for i in range(500, 600)]
    got_times, got_values = thin(times, [1.0] * 200, 40)
    gap = got_values.index(None)
    assert got_times[gap - 1] < 100 < got_times[gap] < 500 <= got_times[gap + 1]


def test_buckets_do_not_move_with_the_window() -> None:
    values = [float((i * 7919) % 101) for i in range(1300)]

    def chart(now: int) -> dict[float, float | None]:
        times = [float(i) for i in range(now - 600, now)]
        return dict(zip(*thin(times, [values[int(t)] for t in times], 120), strict=True))

    before, after = chart(1000), chart(1001)
    # All but the first and the last bucket are the same points.
    changed = set(before.items()) ^ set(after.items())
    assert all(at < 430 or at > 980 for at, _ in changed)


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf, True, "x", 10**400])
def test_only_finite_numbers_pass(value: object) -> None:
    assert finite(value) is None  # type: ignore[arg-type]
    ring = Ring(2)
    ring.append(1.0, value)  # type: ignore[arg-type]
    assert ring.since(0) == ([1.0], [None])


def test_history_keeps_servers_figures_and_gpus_apart() -> None:
    history = History(capacity=5)
    for at in range(10):
        history.add("a", "gpu_memory_mib", at, at, gpu=0)
        history.add("a", "gpu_memory_mib", at, at * 10, gpu=1)
    history.mark("a", 3.0, "profile x")
    history.mark("a", 8.0, "profile y")
    assert history.series("a", "gpu_memory_mib", since=8, points=99, gpu=1).values == (80.0, 90.0)
    assert history.series("a", "decode_tok_s", since=0, points=99).values == ()
    assert history.series("b", "gpu_memory_mib", since=0, points=99, gpu=0).times == ()
    assert [mark.text for mark in history.marks("a", since=5.0)] == ["profile y"]
    assert history.marks("b", since=0) == ()


def test_a_sum_with_a_missing_part_is_missing() -> None:
    assert total([1, 2.5]) == 3.5
    assert total([1, None]) is None
    assert total([]) is None
