"""What makes a repeat unclean, one thing at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dflash_backend.bench.client import Answer
from dflash_backend.bench.guards import LogCounts, Measured, graph_share, unclean_reasons
from dflash_backend.bench.job import parse_job
from dflash_backend.bench.server import Counters
from dflash_backend.sglang.meta_info import RequestMeta, SpecStats

SPEC = SpecStats(completion_tokens=100, verify_ct=40, accept_length=2.5)
META = RequestMeta(
    prompt_tokens=50, completion_tokens=100, cached_tokens=1, finish_reason="length", spec=SPEC
)
GOOD = Answer(scheduled=0.0, sent=0.0, chunks=((1.0, 1), (2.0, 100)), meta=META)
BAD = replace(GOOD, error="HTTP 500", chunks=())
CLEAN = Measured(
    job=parse_job(""),
    concurrency=1,
    answers=(GOOD,) * 10,
    before=Counters(generated=500.0, verify_calls=10.0, retracted=0.0, graph_passes={"decode_none": 5.0}),
    after=Counters(
        generated=1500.0,
        verify_calls=410.0,
        retracted=0.0,
        graph_passes={"decode_none": 105.0, "decode_cuda_graph": 300.0},
    ),
    log=LogCounts(),
    log_watched=True,
    lag_ms=5.0,
)


def test_clean() -> None:
    assert unclean_reasons(CLEAN) == ()


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"answers": (GOOD,) * 9 + (BAD,)}, "1 of 10 requests failed"),
        (
            {"answers": (replace(GOOD, meta=replace(META, cached_tokens=20)),) * 10},
            "200 of 500 prompt tokens",
        ),
        ({"answers": (replace(GOOD, meta=replace(META, retractions=1)),) * 10}, "10 retraction"),
        ({"after": replace(CLEAN.after, retracted=2.0)}, "2 retraction"),
        ({"log": LogCounts(retracted=1)}, "1 retraction"),
        ({"log": LogCounts(compiled=2)}, "2 kernel"),
        ({"after": replace(CLEAN.after, generated=1700.0)}, "200 more tokens"),
        ({"after": replace(CLEAN.after, generated=100.0)}, "restarted"),
        ({"after": replace(CLEAN.after, verify_calls=900.0)}, "890 verify steps"),
        ({"lag_ms": 250.0}, "250 ms"),
        ({"said": ("not flushed",)}, "not flushed"),
        ({"job": parse_job("ignore_eos = true\noutput_tokens = 99")}, "10 answers do not have the 99"),
    ],
)
def test_each_reason(changes: dict[str, Any], part: str) -> None:
    (reason,) = unclean_reasons(replace(CLEAN, **changes))
    assert part in reason


def test_little_things_are_let_pass() -> None:
    hundred = replace(
        CLEAN,
        answers=(GOOD,) * 199 + (BAD,),
        before=Counters(),
        after=Counters(generated=5.0),
        lag_ms=99.0,
    )
    assert unclean_reasons(hundred) == ()


def test_graph_share_from_counters_else_from_the_log() -> None:
    assert graph_share(CLEAN) == 0.75
    log_only = replace(
        CLEAN, before=Counters(), after=Counters(), log=LogCounts(with_graph=1, without_graph=3)
    )
    assert graph_share(log_only) == 0.25
    assert graph_share(replace(log_only, log=LogCounts())) is None
