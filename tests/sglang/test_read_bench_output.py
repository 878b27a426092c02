"""SGLang's benchmark summaries, printed and as JSONL."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_backend.sglang.bench_output import read_bench_jsonl, read_bench_text

DATA = Path(__file__).parent.parent / "data"


def test_block() -> None:
    (run,) = read_bench_text((DATA / "samples/37_bench_serving_block.txt").read_text(encoding="utf-8"))
    assert (run.backend, run.request_rate, run.max_concurrency) == ("sglang", "inf", 1)
    assert (run.completed, run.duration_s, run.input_tokens, run.output_tokens) == (20, 27.11, 2041, 2560)
    assert (run.output_tok_s, run.accept_length) == (94.44, None)
    assert run.figures["peak_output_tok_s"] == 145.0
    assert run.figures["request_throughput_req_s"] == 0.74


def test_whole_output_of_a_real_run() -> None:
    text = (DATA / "captures/sglang-0.5.14-cpu-dflash/bench_serving.stdout.txt").read_text(encoding="utf-8")
    (run,) = read_bench_text(text)
    assert (run.completed, run.max_concurrency, run.accept_length) == (8, 4, 1.0)
    assert (run.output_tok_s, run.figures["median_ttft_ms"], run.figures["max_itl_ms"]) == (
        37.29,
        210.81,
        422.76,
    )


def test_jsonl_of_a_real_run() -> None:
    text = (DATA / "captures/sglang-0.5.23-cpu/bench_serving.jsonl").read_text(encoding="utf-8")
    (run,), skipped = read_bench_jsonl(text)
    assert skipped == 0
    assert (run.backend, run.dataset, run.request_rate) == ("sglang", "random-ids", "inf")
    assert (run.completed, run.output_tokens, run.max_concurrency) == (8, 551, 4)
    assert run.output_tok_s == pytest.approx(3.6569735305)
    assert run.accept_length is None
    assert run.figures["median_ttft_ms"] == pytest.approx(2538.442843)
    assert run.server["model_path"] == "/models/target"


def test_peak_below_average_is_pointed_out() -> None:
    (run,) = read_bench_text(
        "============ Serving Benchmark Result ============\n"
        "Output token throughput (tok/s):         414.75\n"
        "Peak output token throughput (tok/s):    111.00\n"
        "Max request concurrency:                 not set\n"
        "Accept length:                           4.10\n"
    )
    assert run.max_concurrency is None
    assert run.warnings == ("peak below average: the peak counts chunks, not tokens",)


def test_broken_lines_and_secrets_of_jsonl() -> None:
    record = {
        "completed": 1,
        "duration": 2.0,
        "output_throughput": 3.0,
        "server_info": {"api_key": "abcd-secret"},
    }
    runs, skipped = read_bench_jsonl(json.dumps(record) + "\n{broken\n[]\n\n")
    assert (len(runs), skipped) == (1, 2)
    assert "abcd-secret" not in repr(runs)


@given(st.text(max_size=200))
def test_no_text_raises(text: str) -> None:
    read_bench_text("== Serving Benchmark Result ==\n" + text)
    read_bench_jsonl(text)
