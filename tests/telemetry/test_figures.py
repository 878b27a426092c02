"""Live figures: where each comes from, and why one is missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dflash_backend.core.profile import Algorithm
from dflash_backend.sglang.loads import LoadsReading, RankLoad, read_loads
from dflash_backend.sglang.log import DecodeLine
from dflash_backend.sglang.metrics import MetricsReading, read_metrics
from dflash_backend.telemetry.figures import IDLE, NO_METRICS, FigureMaker, Readings

CAPTURES = Path(__file__).parent.parent / "data" / "captures"


def loads(running: int | None = 2, **more: object) -> LoadsReading:
    return LoadsReading(ranks=(RankLoad(running=running, waiting=1, **more),))  # type: ignore[arg-type]


def test_the_decode_counter_comes_first() -> None:
    maker = FigureMaker("s")
    first = maker.make(Readings(at=1.0, metrics=MetricsReading(decode_tokens_total=100), loads=loads()))
    assert first.decode_tok_s is None
    assert "first value" in first.notes["decode_tok_s"]
    for second in range(2, 6):
        got = maker.make(
            Readings(
                at=float(second),
                metrics=MetricsReading(
                    decode_tokens_total=100.0 * second, generation_tokens_total=5, gen_throughput=7
                ),
                loads=loads(gen_throughput=9.0),
                log=(DecodeLine(gen_throughput=8), 8.0),
            )
        )
    assert (got.decode_tok_s, got.decode_source) == (pytest.approx(100), "counter")
    assert "decode_tok_s" not in got.notes


def test_one_look_at_a_busy_server_tells_its_rate_from_the_log() -> None:
    metrics = MetricsReading(decode_tokens_total=100)
    log = (DecodeLine(gen_throughput=80), 80.0)
    busy = FigureMaker("s").make(Readings(at=1.0, metrics=metrics, loads=loads(), log=log))
    assert (busy.decode_tok_s, busy.decode_source) == (80.0, "log")
    assert "from the log" in busy.notes["decode_tok_s"]
    idle = FigureMaker("s").make(Readings(at=1.0, metrics=metrics, loads=loads(running=0), log=log))
    assert idle.decode_tok_s is None


def test_a_restart_and_a_gap_give_no_rate_and_say_so() -> None:
    maker = FigureMaker("s")
    for at, total in ((1.0, 500.0), (2.0, 600.0)):
        maker.make(Readings(at=at, metrics=MetricsReading(decode_tokens_total=total)))
    fell = maker.make(Readings(at=3.0, metrics=MetricsReading(decode_tokens_total=10)))
    assert fell.decode_tok_s is None
    assert "restarted" in fell.notes["decode_tok_s"]
    assert maker.restarted
    gap = maker.make(Readings(at=300.0, metrics=MetricsReading(decode_tokens_total=90_000)))
    assert gap.decode_tok_s is None
    assert "gap" in gap.notes["decode_tok_s"]
    assert not maker.restarted


def test_completed_tokens_are_the_second_choice_and_their_silence_is_no_zero() -> None:
    maker = FigureMaker("s")
    totals = [0, 0, 400, 400]
    seen = [
        maker.make(
            Readings(
                at=float(at),
                metrics=MetricsReading(generation_tokens_total=total),
                loads=loads(),
                log=(DecodeLine(gen_throughput=80), 80.0),
            )
        )
        for at, total in enumerate(totals)
    ]
    # Before the first completion the log is asked; then the counter speaks.
    assert (seen[1].decode_tok_s, seen[1].decode_source) == (80.0, "log")
    assert (seen[2].decode_tok_s, seen[2].decode_source) == (pytest.approx(200), "counter")
    assert "completes" in seen[2].notes["decode_tok_s"]


def test_without_metrics_the_log_then_the_last_throughput() -> None:
    maker = FigureMaker("s")
    base = Readings(at=1.0, metrics_problem=NO_METRICS, loads=loads(gen_throughput=42.5))
    from_log = maker.make(replace(base, log=(DecodeLine(gen_throughput=80), 80.0)))
    assert (from_log.decode_tok_s, from_log.decode_source) == (80.0, "log")
    assert NO_METRICS in from_log.notes["decode_tok_s"]
    dropped = maker.make(replace(base, at=2.0, log=(DecodeLine(gen_throughput=0.38), None)))
    assert dropped.decode_tok_s is None
    assert dropped.decode_source == ""
    assert "pause dropped" in dropped.notes["decode_tok_s"]
    last = maker.make(replace(base, at=3.0))
    assert (last.decode_tok_s, last.decode_source) == (42.5, "gauge-last")


def test_gauges_are_stale_when_nothing_runs() -> None:
    maker = FigureMaker("s")
    got = maker.make(
        Readings(
            at=1.0,
            metrics_problem=NO_METRICS,
            loads=loads(0, gen_throughput=42.5, accept_length=3.3),
            log=(DecodeLine(gen_throughput=80, accept_len=3.1), 80.0),
        )
    )
    assert (got.running, got.queued) == (0, 1)
    assert got.decode_tok_s is None
    assert got.accept_length is None
    assert IDLE in got.notes["decode_tok_s"]
    assert got.notes["accept_length"] == IDLE


def test_accept_length_is_counted_where_it_can_be() -> None:
    maker = FigureMaker("s")
    metrics = MetricsReading(generation_tokens_total=0, verify_calls_total=0, accept_length=9.0)
    maker.make(Readings(at=1.0, metrics=metrics, loads=loads()))
    counted = maker.make(
        Readings(
            at=2.0,
            metrics=replace(metrics, generation_tokens_total=430, verify_calls_total=100),
            loads=loads(),
        )
    )
    assert counted.accept_length == pytest.approx(4.3)
    assert "accept_length" not in counted.notes
    gauge = FigureMaker("s").make(Readings(at=1.0, metrics=MetricsReading(accept_length=2.5), loads=loads()))
    assert gauge.accept_length == 2.5
    assert "interval" in gauge.notes["accept_length"]
    logged = FigureMaker("s").make(
        Readings(at=1.0, metrics_problem=NO_METRICS, loads=loads(), log=(DecodeLine(accept_len=2.25), 8.0))
    )
    assert (logged.accept_length, logged.notes["accept_length"]) == (2.25, "from the log")
    plain = FigureMaker("s").make(
        Readings(at=1.0, metrics=MetricsReading(accept_length=2.5), loads=loads(), algorithm=Algorithm.NONE)
    )
    assert (plain.accept_length, plain.notes["accept_length"]) == (None, "no speculation")


def test_nothing_known_is_nothing_shown() -> None:
    got = FigureMaker("s").make(Readings(at=1.0, metrics_problem="HTTP 500", loads_problem="HTTP 502"))
    values = (
        got.decode_tok_s, got.prefill_tok_s, got.accept_length, got.running, got.queued, got.token_usage,
        got.kv_tokens, got.cache_hit_rate, got.retracted,
    )  # fmt: skip
    assert values == (None,) * len(values)
    assert got.notes["running"] == "HTTP 502"
    assert got.notes["decode_tok_s"] == "HTTP 500"


@pytest.mark.parametrize(
    "folder", sorted(p.name for p in CAPTURES.iterdir() if (p / "metrics-load.txt").exists())
)
def test_captured_pages_give_figures(folder: str) -> None:
    maker = FigureMaker("s")
    readings = Readings(
        at=1.0,
        metrics=read_metrics((CAPTURES / folder / "metrics-load.txt").read_bytes()),
        loads=read_loads((CAPTURES / folder / "v1-loads-load.json").read_bytes()),
    )
    maker.make(readings)
    got = maker.make(replace(readings, at=2.0))
    assert got.running is not None
    assert got.queued is not None
    assert got.token_usage is not None
    assert got.decode_tok_s == 0.0
