"""The /metrics reader: rank rules, ages of names, odd values; figures were read off the pages by eye."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_backend.sglang.metrics import MetricsReading, is_metrics, read_metrics

DATA = Path(__file__).parent.parent / "data"


def page(name: str) -> MetricsReading:
    return read_metrics((DATA / name).read_bytes())


def test_a_page_of_2025() -> None:
    reading = page("samples/18_metrics_sglang_2025.prom")
    assert reading.model == "Qwen-32B"
    assert (reading.running, reading.used_tokens, reading.token_usage) == (1, 1, 0.0)
    assert reading.gen_throughput == pytest.approx(0.8371284457403783)
    assert reading.queued is None
    assert reading.accept_length is None


def test_several_ranks_and_replicas() -> None:
    reading = page("samples/20_metrics_multi_rank.prom")
    assert reading.running == 2  # 2 on both ranks of replica 0, 0 on those of replica 1
    assert reading.token_usage == pytest.approx(0.15)
    assert reading.token_usage_max == 0.20
    assert reading.gen_throughput == 150.0
    assert (reading.cached_prefill_tokens_total, reading.prefill_tokens_total) == (900.0, 100.0)
    assert reading.decode_tokens_total is None
    assert reading.cached_tokens_total == 5.11430304e09 + 1.729396096e09
    assert reading.prompt_tokens_total == 1000.0
    assert (reading.accept_length, reading.accept_rate) == (1.55, 0.55)
    assert reading.verify_calls_total == 50.0
    assert reading.aborted_total == 7.0
    assert (reading.ttft_seconds_sum, reading.ttft_count) == (1.0e6, 100.0)


def test_names_of_2024() -> None:
    reading = page("samples/21_metrics_2024.prom")
    assert reading.queued == 0
    assert reading.cache_hit_rate == pytest.approx(0.8758777633)
    assert reading.max_running_requests == 2231
    assert reading.prompt_tokens_total == 230794.0
    assert reading.running is None


@pytest.mark.parametrize(
    ("folder", "accept", "verify", "running", "used"),
    [
        ("sglang-0.5.11-cpu", None, None, 4, 122),
        ("sglang-0.5.11-cpu-dflash", 1.0, None, 4, 122),
        ("sglang-0.5.14-cpu", None, None, 4, 122),
        ("sglang-0.5.14-cpu-dflash", 1.0, 177.0, 4, 182),
        ("sglang-0.5.23-cpu", None, None, 0, 0),
    ],
)
def test_real_servers(
    folder: str, accept: float | None, verify: float | None, running: int, used: int
) -> None:
    reading = page(f"captures/{folder}/metrics-load.txt")
    assert reading.model == "tiny-qwen3"
    assert reading.accept_length == accept
    assert reading.verify_calls_total == verify
    assert (reading.running, reading.used_tokens, reading.queued) == (running, used, 0)
    assert reading.decode_tokens_total == 177.0
    assert reading.generation_tokens_total == 184.0
    assert reading.max_total_tokens == 8192
    assert reading.graph_passes["decode_none"] == 84.0
    assert reading.skipped_lines == 0


def test_graph_memory_by_phase_is_added() -> None:
    reading = read_metrics(
        'sglang:graph_memory_usage_gb{phase="prefill",tp_rank="0"} 0.25\n'
        'sglang:graph_memory_usage_gb{phase="decode",tp_rank="0"} 1.5\n'
        'sglang:graph_memory_usage_gb{phase="decode",tp_rank="1"} 1.5\n'
    )
    assert reading.graphs_gb == 1.75


def test_drafter_engine_is_left_out_and_the_underscore_prefix_is_known() -> None:
    reading = read_metrics(
        'sglang_num_running_reqs{engine_type="draft"} 9\n'
        'sglang_num_running_reqs{engine_type="unified"} 3\n'
        "sglang_spec_accept_length 4.5\n"
    )
    assert reading.running == 3
    assert reading.accept_length == 4.5


def test_not_a_number_is_missing() -> None:
    reading = read_metrics(
        "sglang:num_running_reqs NaN\nsglang:gen_throughput +Inf\n"
        "sglang:token_usage 0.5\nsglang:spec_accept_length 0.0\n"
    )
    assert (reading.running, reading.gen_throughput, reading.accept_length) == (None, None, None)
    assert reading.token_usage == 0.5


def test_a_broken_line_costs_the_line_only() -> None:
    reading = read_metrics(
        'sglang:num_running_reqs{model_name="a" 3\n'
        'sglang:num_queue_reqs{model_name="a"} 5\n'
        "sglang:gen_throughput{} twelve\n"
        'sglang:token_usage{model_name="a"} 0.25\n'
    )
    assert (reading.queued, reading.token_usage) == (5, 0.25)
    assert (reading.running, reading.gen_throughput) == (None, None)
    assert reading.skipped_lines == 2


def test_labels_with_braces_escapes_and_hostile_text() -> None:
    reading = read_metrics('sglang:num_running_reqs{model_name="a}\\"b\x1b[31m"} 3\n')
    assert reading.running == 3
    assert reading.model == 'a}"b'


@pytest.mark.parametrize(
    "text", ["", "<html>404</html>", "# HELP nothing\n", "vllm:num_requests_running 3\n"]
)
def test_pages_without_sglang(text: str) -> None:
    assert read_metrics(text).families == 0
    assert not is_metrics(text)


def test_recognised() -> None:
    assert is_metrics((DATA / "samples/20_metrics_multi_rank.prom").read_bytes())


@given(st.binary(max_size=400))
def test_no_bytes_raise(noise: bytes) -> None:
    read_metrics(noise)
    read_metrics(b"sglang:num_running_reqs " + noise)
    read_metrics(b'sglang:num_running_reqs{model_name="' + noise)
    after = read_metrics(noise.replace(b"sglang", b"") + b"\nsglang:num_queue_reqs 5\n")
    assert after.queued == 5


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 1000))
def test_tensor_ranks_never_add_up_and_replicas_do(replicas: int, width: int, running: int) -> None:
    lines = [
        f'sglang:num_running_reqs{{dp_rank="{dp}",tp_rank="{dp * width + tp}"}} {float(running)}'
        for dp in range(replicas)
        for tp in range(width)
    ]
    assert read_metrics("\n".join(lines)).running == running * replicas
