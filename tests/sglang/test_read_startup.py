"""Start-up stages and facts, from whole logs and from tails of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_backend.core.states import StageName
from dflash_backend.sglang.startup import StartupTracker, read_draft_runner

DATA = Path(__file__).parent.parent / "data"
STARTS = sorted(DATA.glob("captures/*/*.log"))


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace").replace("\r", "\n")


def stages(text: str) -> list[str]:
    tracker = StartupTracker()
    seen = [tracker.stage.text()]
    for line in text.split("\n"):
        stage = tracker.feed(line).text()
        if stage != seen[-1]:
            seen.append(stage)
    return seen


def test_a_start_on_a_gpu_up_to_0_5_13_captures_graphs_before_the_drafter_loads() -> None:
    assert stages(read(DATA / "captures/sglang-0.5.11-h200/dflash.log")) == [
        "launch", "weights", "weights 0/1", "weights 1/1", "kv-pool",
        "graphs", "graphs 0/4", "graphs 1/4", "graphs 3/4", "graphs 4/4",
        "draft-weights", "draft-weights 0/1", "draft-weights 1/1",
        "graphs", "graphs 0/4", "graphs 1/4", "graphs 4/4", "warm-up", "ready",
    ]  # fmt: skip


def test_a_start_of_0_5_14_loads_the_drafter_before_the_kv_pool() -> None:
    assert stages(read(DATA / "captures/sglang-0.5.14-cpu-dflash/server.log")) == [
        "launch", "weights", "weights 0/1", "weights 1/1", "draft-weights", "draft-weights 0/1",
        "draft-weights 1/1", "kv-pool", "warm-up", "ready",
    ]  # fmt: skip


def test_bars_of_every_kind() -> None:
    assert stages(read(DATA / "samples/14_startup_ok.txt")) == [
        "launch", "kv-pool", "graphs", "graphs 0/12", "graphs 0/8", "graphs 1/8", "graphs 52/52",
        "graphs 0/58", "warm-up", "ready",
    ]  # fmt: skip


def test_facts_of_a_dflash_start() -> None:
    tracker = StartupTracker()
    for line in read(DATA / "captures/sglang-0.5.11-h200/dflash.log").split("\n"):
        tracker.feed(line)
    facts = tracker.facts
    runner = facts.draft_runner
    assert runner is not None
    assert (runner.algorithm, runner.attention_backend, runner.model) == (
        "DFLASH",
        "triton",
        "DFlashDraftModel",
    )
    assert (runner.block_size, runner.window, runner.compact_cache) == (8, 256, True)
    assert (runner.mask_token, runner.mask_token_id) == ("<|MASK|>", 511)
    assert (facts.target_class, facts.draft_class) == ("Qwen3ForCausalLM", "DFlashDraftModel")
    assert (facts.kv_cache_gb, facts.draft_kv_cache_gb) == (30.3, 11.36)
    assert facts.graphs_gb == pytest.approx(0.09)
    assert (facts.max_total_tokens, facts.max_running_requests, facts.context_length) == (7942198, 48, 16384)
    assert facts.available_gb == 97.16
    assert any(w.startswith("Max running requests is reset to 48") for w in facts.warnings)


def test_the_runner_line_says_none_where_windows_may_be_in_force() -> None:
    runner = read_draft_runner(read(DATA / "captures/sglang-0.5.14-cpu-dflash/server.log").split("\n"))
    assert runner is not None
    assert (runner.window, runner.compact_cache, runner.mask_token_id) == (None, False, 511)
    assert runner.other == {"mask_token_id_override": "511"}


def test_a_runner_of_another_algorithm_and_with_new_keys() -> None:
    line = (
        "[2026-11-30 10:00:00 TP0] Initialized DDTREE draft runner. attention_backend=None, model=M, "
        "block_size=16, draft_window_size=2048, compact_cache=True, budget=8, windows=[255, 255, -1]"
    )
    runner = read_draft_runner([line])
    assert runner is not None
    assert (runner.algorithm, runner.attention_backend, runner.window) == ("DDTREE", None, 2048)
    assert runner.other == {"budget": "8", "windows": "[255, 255, -1]"}


@pytest.mark.parametrize("path", STARTS, ids=lambda p: f"{p.parent.name}-{p.stem}")
@pytest.mark.parametrize("step", [137, 700, 5000])
def test_tails_end_where_the_whole_log_does(path: Path, step: int) -> None:
    text = read(path)
    whole = StartupTracker()
    for line in text.split("\n"):
        whole.feed(line)
    tails = StartupTracker()
    for end in range(step, len(text) + step, step):
        tails.feed_tail(text[max(0, end - 8192) : end])
    assert tails.ready
    assert tails.facts == whole.facts


@pytest.mark.parametrize("path", STARTS, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_seeing_the_same_tail_again_changes_nothing(path: Path) -> None:
    text = read(path)
    tracker = StartupTracker()
    for end in range(300, len(text), 300):
        tail = text[max(0, end - 8192) : end]
        first = tracker.feed_tail(tail)
        assert tracker.feed_tail(tail) == first


def test_the_newest_step_of_a_bar_counts_before_its_line_ends() -> None:
    tracker = StartupTracker()
    tracker.feed_tail(
        "Load weight begin. avail mem=100 GB\n"
        "Loading safetensors checkpoint shards:  25% Completed | 1/4 [00:0"
    )
    assert tracker.stage.text() == "weights 1/4"


def test_other_ranks_do_not_count() -> None:
    tracker = StartupTracker()
    tracker.feed("[2026-11-30 10:00:00 TP0] Load weight begin. avail mem=100 GB")
    tracker.feed("[2026-11-30 10:00:00 TP1] Load weight begin. avail mem=100 GB")
    assert tracker.stage.name is StageName.WEIGHTS


def test_ready_is_final() -> None:
    tracker = StartupTracker()
    tracker.feed("The server is fired up and ready to roll!")
    tracker.feed("Capture cuda graph begin. This can take up to several minutes.")
    assert tracker.ready


def test_warnings_hold_no_secret_and_are_bounded() -> None:
    tracker = StartupTracker()
    for n in range(500):
        tracker.feed(f"block size mismatch {n} --api-key sk-verysecretvalue{n}")
    assert len(tracker.facts.warnings) == 50
    assert not any("verysecret" in w for w in tracker.facts.warnings)


@given(st.lists(st.text(max_size=80), max_size=20))
def test_no_text_raises(parts: list[str]) -> None:
    tracker = StartupTracker()
    for part in parts:
        tracker.feed(part)
        tracker.feed("Capturing batches (bs=1): " + part)
        tracker.feed_tail(part)
    assert re.fullmatch(r"[a-z-]+(?: \d+/\d+)?", tracker.stage.text())
