"""The scheduler log's reader against real lines of all ages; values were read off the files by eye."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_backend.sglang.log import (
    DecodeLine,
    PrefillLine,
    ThroughputFilter,
    read_batch_line,
    read_batch_lines,
    split_line,
    stamp_seconds,
)

DATA = Path(__file__).parent.parent / "data"


def lines(name: str) -> list[str]:
    return (DATA / name).read_text(encoding="utf-8").splitlines()


def decode(line: str) -> DecodeLine:
    found = read_batch_line(line)
    assert isinstance(found, DecodeLine)
    return found


def prefill(line: str) -> PrefillLine:
    found = read_batch_line(line)
    assert isinstance(found, PrefillLine)
    return found


def test_plain_decode_line() -> None:
    line = decode(lines("samples/01_decode_plain.txt")[1])
    assert line.stamp == "2026-06-25 09:35:19"
    assert (line.running_req, line.token, line.queue_req) == (1, 144, 0)
    assert line.gen_throughput == 147.64
    assert line.graph is True
    assert line.graph_kind == "cuda"
    assert line.accept_len is None
    assert line.retracted_req is None
    assert line.other == {}


def test_trailing_comma_and_graph_change() -> None:
    found = [decode(line) for line in lines("samples/02_decode_trailing_comma.txt")]
    assert [f.graph for f in found] == [False, False, True, True]
    assert [f.gen_throughput for f in found] == [1447.08, 1262.64, 1086.59, 895.36]
    assert found[0].token_usage == 0.19
    assert all(f.queue_req == 0 and f.other == {} for f in found)


def test_hybrid_model_with_speculation() -> None:
    line = decode(lines("samples/04_decode_mamba_spec.txt")[2])
    assert (line.full_token, line.mamba_num, line.mamba_usage) == (11584, 36, 0.60)
    assert (line.accept_len, line.accept_rate) == (3.04, 0.68)
    assert line.usage == 0.60
    assert line.token is None
    assert decode(lines("samples/04_decode_mamba_spec.txt")[0]).ranks == {"tp": 0}


def test_prefill_on_an_npu() -> None:
    line = prefill(lines("samples/06_prefill_mamba_npu.txt")[0])
    assert (line.new_seq, line.new_token, line.cached_token, line.pending_token) == (12, 43008, 0, 109585)
    assert (line.graph, line.graph_kind) == (False, "npu")
    assert line.input_throughput == 15734.14
    assert (line.full_token_usage, line.mamba_usage) == (0.14, 0.20)


def test_prefill_of_2024_has_a_full_stop_a_percent_sign_and_a_clock_only() -> None:
    line = prefill(lines("samples/07_prefill_2024_cachehit.txt")[2])
    assert line.stamp == "16:43:30"
    assert line.cache_hit_rate == pytest.approx(0.1416)
    assert (line.new_seq, line.queue_req, line.token_usage) == (6, 34, 0.18)


def test_access_log_lines_are_no_batches() -> None:
    found = [read_batch_line(line) for line in lines("samples/08_mixed_access.txt")]
    assert [type(f) for f in found] == [DecodeLine, type(None), PrefillLine]


def test_disaggregated_decode() -> None:
    found = read_batch_lines(lines("samples/10_decode_pd_2025.txt"))
    assert len(found) == 6
    first = found[0]
    assert isinstance(first, DecodeLine)
    assert first.ranks == {"dp": 0, "tp": 0, "ep": 0}
    assert (first.preallocated_usage, first.retracted_req, first.token) == (0.63, 0, 1201280)
    last = found[-1]
    assert (last.prealloc_req, last.transfer_req) == (0, 0)


def test_shortened_lines_keep_what_they_have() -> None:
    line = decode(lines("samples/13_collapse_after_retract.txt")[3])
    assert (line.full_token, line.swa_token_usage, line.gen_throughput) == (2435792, 0.09, 36.34)
    assert line.usage == 0.92
    assert line.graph is None
    assert line.queue_req is None


def test_fragments_without_a_head() -> None:
    found = [decode(line) for line in lines("samples/38_logcompare_eagle_dflash.txt")]
    assert [f.accept_len for f in found] == [4.50, 2.36]
    assert [f.gen_throughput for f in found] == [604.01, 200.93]
    assert all(f.fragment for f in found)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "[2026-09-01T10:11:12.345Z DP1 TP4 PP2 EP3] Decode batch, #running-req: 2",
            {"dp": 1, "tp": 4, "pp": 2, "ep": 3},
        ),
        ("[2026-09-01 10:11:12.345 TP3 DP1] Decode batch, #running-req: 2", {"tp": 3, "dp": 1}),
        ("(Scheduler pid=77) [2026-09-01 10:11:12 TP1] Decode batch, #running-req: 2", {"tp": 1}),
        ("sglang-0 | [2026-09-01 10:11:12] [ERROR] Decode batch, #running-req: 2", {}),
        ("\x1b[32m[10:11:12 TP0]\x1b[0m \x1b[1mDecode batch\x1b[0m, #running-req: 2", {"tp": 0}),
        ("Decode batch [4711], #running-req: 2", {}),
        ("INFO:sglang.srt: Decode batch, #running-req: 2", {}),
        ("2026-09-01 10:11:12 INFO [TP0] Decode batch, #running-req: 2", {"tp": 0}),
        ("[2026-09-01 10:11:12,123 tp0] Decode batch. #running-req: 2", {"tp": 0}),
        (
            "Nov 30 10:00:01 h bash[12]: [2026-11-30 10:00:03 DP0 TP0] Decode batch, #running-req: 2",
            {"dp": 0, "tp": 0},
        ),
        ("[2026-09-01 10:11:12] Request text='Decode batch, #running-req: 2'", None),
        ("[2026-09-01 10:11:12] Predecode batch, #running-req: 2", None),
    ],
)
def test_what_stands_in_front(line: str, expected: dict[str, int] | None) -> None:
    found = read_batch_line(line)
    if expected is None:
        # A prompt that is logged is no batch line.
        assert found is None
        return
    assert isinstance(found, DecodeLine)
    assert found.running_req == 2
    assert found.ranks == expected


def test_the_stamp_is_the_one_of_sglang() -> None:
    line = decode("Nov 30 09:59:59 h bash[12]: [2026-11-30 10:00:03.5 TP0] Decode batch, #running-req: 2")
    assert line.stamp == "2026-11-30 10:00:03.5"


def test_iteration_suffixes_and_unknown_keys() -> None:
    line = decode(
        "[2026-11-01 00:00:01 TP0] Decode batch [88], #running-req: 3, #token: 70, token usage: 0.01, "
        "accept len: 4.10, accept rate: 0.52, cap len: 6.00, block accept len: 3.90, cuda graph: True, "
        "gen throughput (token/s): 300.50, #queue-req: 0, est. decode TFLOPS/s (per GPU): 12.50, "
        "new thing: yes"
    )
    assert line.iteration == 88
    assert (line.cap_len, line.block_accept_len) == (6.0, 3.9)
    assert line.other == {"est. decode TFLOPS/s (per GPU)": 12.5, "new thing": "yes"}


def test_odd_cells_become_none_and_the_line_stays() -> None:
    line = decode(
        "Decode batch, #running-req: x, #token: , token usage: nan, "
        "gen throughput (token/s): inf, #queue-req: 3"
    )
    assert (line.running_req, line.token, line.token_usage, line.gen_throughput) == (None, None, None, None)
    assert line.queue_req == 3


def test_first_throughput_after_a_pause_is_not_trusted() -> None:
    keep = ThroughputFilter()
    found = [keep.feed(line) for line in read_batch_lines(lines("samples/10_decode_pd_2025.txt"))]
    assert found == [None, 305.75, None, None, 78.20, 77.89]


def test_throughput_of_a_second_rank_is_not_trusted() -> None:
    keep = ThroughputFilter()
    text = "[2026-09-01 10:11:1{} DP1 TP{}] Decode batch, #running-req: 2, gen throughput (token/s): {}"
    rows = [(1, 4, 10.0), (1, 5, 11.0), (2, 4, 12.0), (2, 5, 13.0)]
    assert [keep.feed(decode(text.format(*row))) for row in rows] == [None, None, 12.0, None]


def test_prefill_that_met_an_idle_scheduler_means_a_pause() -> None:
    keep = ThroughputFilter()
    log = (DATA / "captures/sglang-0.5.11-h200/dflash.log").read_text(encoding="utf-8").splitlines()
    trusted = [keep.feed(line) for line in read_batch_lines(log)]
    assert 2.49 not in trusted
    assert 227.08 not in trusted
    assert 254.46 in trusted


def test_every_throughput_of_the_captures_is_read() -> None:
    logs = sorted(DATA.glob("captures/*/*.log"))
    assert len(logs) == 7
    text = [line for log in logs for line in log.read_text(encoding="utf-8").splitlines()]
    with_rate = [line for line in text if "gen throughput (token/s)" in line]
    assert len(with_rate) > 70
    assert all(decode(line).gen_throughput is not None and not decode(line).other for line in with_rate)


def test_clock() -> None:
    assert stamp_seconds("2026-09-01T10:11:12.5Z") == 10 * 3600 + 11 * 60 + 12.5
    assert stamp_seconds(None) is None
    assert stamp_seconds("soon") is None


def test_split_keeps_the_message() -> None:
    split = split_line('[2026-11-30 10:25:35] INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK')
    assert split.text.startswith("INFO:     127.0.0.1:1 - ")
    assert split_line("[2026-11-30 10:25:35 TP0] WARNING: hot").level == "WARNING"


@given(st.text(max_size=300))
def test_no_line_raises(text: str) -> None:
    read_batch_line(text)
    read_batch_line("Decode batch, " + text)
    found = read_batch_line(f"[10:11:12 TP0] Prefill batch, #new-seq: 3, {text}")
    assert isinstance(found, PrefillLine)


@given(
    st.lists(
        st.sampled_from(
            [
                "#running-req: 7", "#token: 70", "token usage: 0.5", "accept len: 3.5", "cuda graph: True",
                "gen throughput (token/s): 9.5", "#queue-req: 2", "mamba num: 4", "x y: z",
            ]
        ),
        unique=True,
        min_size=1,
    )
)  # fmt: skip
def test_order_and_presence_do_not_matter(fields: list[str]) -> None:
    line = decode("[10:11:12] Decode batch, " + ", ".join(fields))
    assert line.running_req == (7 if "#running-req: 7" in fields else None)
    assert line.gen_throughput == (9.5 if "gen throughput (token/s): 9.5" in fields else None)
    assert line.accept_len == (3.5 if "accept len: 3.5" in fields else None)
    assert line.graph == (True if "cuda graph: True" in fields else None)
    assert line.other == ({"x y": "z"} if "x y: z" in fields else {})
