"""Requests: what is refused, how they end, and that they do not disturb each other."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dflash_engine.api import (
    Algorithm,
    EngineConfigError,
    Request,
    RequestError,
    SamplingParams,
    StepKind,
    WindowMode,
)
from engine.pairs import BLOCK, VOCAB, TinyPair, drain, generate, outputs

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.mark.parametrize(
    ("prompt", "sampling", "words"),
    [
        ([], {}, "empty"),
        ([VOCAB], {}, "outside the vocabulary"),
        ([-1], {}, "outside the vocabulary"),
        ([True], {}, "outside the vocabulary"),
        (["a"], {}, "outside the vocabulary"),
        ([1] * 256, {"max_new_tokens": 1}, "longer than the model's context length (256 tokens)"),
        ([1] * 200, {"max_new_tokens": 57}, "You requested a total of 257 tokens: 200 tokens from the input"),
        ([1], {"max_new_tokens": -1}, "max_new_tokens must be at least 0"),
        ([1], {"max_new_tokens": 2.5}, "max_new_tokens must be at least 0"),
        ([1], {"temperature": -0.1}, "temperature"),
        ([1], {"temperature": float("nan")}, "temperature"),
        ([1], {"temperature": float("inf")}, "temperature"),
        ([1], {"temperature": "hot"}, "temperature"),
        ([1], {"top_p": 0.0}, "top_p"),
        ([1], {"top_p": 1.01}, "top_p"),
        ([1], {"seed": -1}, "seed"),
        ([1], {"seed": 1.5}, "seed"),
    ],
)
def test_bad_requests_are_refused_and_the_engine_lives_on(
    tiny: TinyPair, prompt: list[Any], sampling: dict[str, Any], words: str
) -> None:
    engine = tiny.load(Algorithm.DDTREE, budget=4)
    request = Request("bad", prompt, SamplingParams(**{"max_new_tokens": 5, **sampling}))
    for call in (engine.check, engine.add):
        with pytest.raises(RequestError) as caught:
            call(request)
        assert words in caught.value.message
        assert caught.value.status == 400
    assert not engine.has_work
    assert len(generate(engine, PROMPT, max_new_tokens=5)) == 5


def test_request_larger_than_the_whole_pool(tiny: TinyPair) -> None:
    engine = tiny.load(max_total_tokens=100)
    with pytest.raises(RequestError, match="needs 110 tokens of KV cache, the engine has 100"):
        engine.add(Request("r", PROMPT, SamplingParams(max_new_tokens=102)))


def test_id_in_use_and_full_queue(tiny: TinyPair) -> None:
    engine = tiny.load(max_running_requests=1, max_queued_requests=1)
    engine.add(Request("a", PROMPT))
    with pytest.raises(RequestError) as caught:
        engine.add(Request("a", PROMPT))
    assert caught.value.status == 409
    engine.step()
    with pytest.raises(RequestError) as caught:
        engine.add(Request("a", PROMPT))
    assert caught.value.status == 409
    engine.add(Request("b", PROMPT))
    with pytest.raises(RequestError) as caught:
        engine.add(Request("c", PROMPT))
    assert caught.value.status == 503
    drain(engine)
    engine.add(Request("a", PROMPT))


@pytest.mark.parametrize(("algorithm", "extra"), [(Algorithm.NONE, {}), (Algorithm.DDTREE, {"budget": 12})])
def test_a_stop_token_ends_the_request_with_it(
    tiny: TinyPair, algorithm: Algorithm, extra: dict[str, int]
) -> None:
    engine = tiny.load(algorithm, **extra)
    free = generate(engine, PROMPT, max_new_tokens=60)
    stop = free[9]
    at = free.index(stop)
    engine.add(Request("r", PROMPT, SamplingParams(max_new_tokens=60, stop_token_ids=frozenset({stop}))))
    reports = drain(engine)
    last = reports[-1].outputs[-1]
    got = outputs(reports)["r"]
    if 0 not in free[:at]:
        assert got == free[: at + 1]
        assert last.finish is not None
        assert (last.finish.type, last.finish.matched) == ("stop", stop)
    assert not engine.has_work
    assert engine.stats.used_tokens == 0


def test_end_of_text_token_of_the_model(breakable: TinyPair) -> None:
    free = generate(breakable.load(), PROMPT, max_new_tokens=30)
    eos = free[12]
    breakable.edit("target", eos_token_id=[eos])
    engine = breakable.load(Algorithm.DFLASH)
    assert engine.eos_token_ids == {eos}
    assert generate(engine, PROMPT, max_new_tokens=30, ignore_eos=False) == free[: free.index(eos) + 1]
    assert generate(engine, PROMPT, max_new_tokens=30, ignore_eos=True) == free


@pytest.mark.parametrize("new", [0, 1, 2, 7])
def test_length_limit_is_exact(tiny: TinyPair, new: int) -> None:
    engine = tiny.load(Algorithm.DDTREE, budget=12)
    engine.add(Request("r", PROMPT, SamplingParams(max_new_tokens=new, ignore_eos=True)))
    reports = drain(engine)
    finish = reports[-1].outputs[-1].finish
    assert len(outputs(reports)["r"]) == new
    assert finish is not None
    assert (finish.type, finish.length) == ("length", new)


def test_context_can_be_filled_to_the_last_token(tiny: TinyPair) -> None:
    for algorithm, extra in ((Algorithm.NONE, {}), (Algorithm.DDTREE, {"budget": 30})):
        engine = tiny.load(algorithm, context_length=64, **extra)
        assert len(generate(engine, PROMPT, max_new_tokens=56)) == 56


many = st.lists(
    st.tuples(
        st.lists(st.integers(1, VOCAB - 1), min_size=1, max_size=40),
        st.integers(0, 25),
        st.sampled_from([0.0, 1.0]),
    ),
    min_size=1,
    max_size=9,
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(many, st.sampled_from([(Algorithm.NONE, None), (Algorithm.DFLASH, None), (Algorithm.DDTREE, 7)]))
def test_a_request_gets_the_same_tokens_in_any_company(
    tiny: TinyPair, requests: list[tuple[list[int], int, float]], arm: tuple[Algorithm, int | None]
) -> None:
    """Batched, queued and in small chunks, or alone: the same tokens."""
    algorithm, budget = arm
    crowd = tiny.load(algorithm, budget=budget, max_running_requests=3, chunked_prefill_size=16)
    alone = tiny.load(algorithm, budget=budget)
    expected = {}
    for i, (prompt, new, temperature) in enumerate(requests):
        params = SamplingParams(temperature, max_new_tokens=new, ignore_eos=True, seed=i)
        crowd.add(Request(str(i), prompt, params))
        alone.add(Request(str(i), prompt, params))
        expected.update(outputs(drain(alone)))
    assert outputs(drain(crowd)) == expected


def test_sixty_four_requests_at_once(tiny: TinyPair) -> None:
    engine = tiny.load(Algorithm.DDTREE, budget=5, max_running_requests=8)
    for i in range(64):
        engine.add(Request(str(i), [1 + i % 20, 2, 3], SamplingParams(max_new_tokens=12, ignore_eos=True)))
    assert engine.stats.queued == 64
    most = 0
    finished: list[str] = []
    while engine.has_work:
        report = engine.step()
        most = max(most, engine.stats.running)
        finished += [o.id for o in report.outputs if o.finish is not None]
    assert most == 8
    assert sorted(finished) == sorted(str(i) for i in range(64))
    stats = engine.stats
    assert (stats.running, stats.queued, stats.used_tokens, stats.reserved_tokens) == (0, 0, 0, 0)
    assert (stats.requests_total, stats.generated_tokens_total) == (64, 64 * 12)
    assert stats.target_kv_bytes == stats.draft_kv_bytes == 0


def test_capacity_holds_requests_back(tiny: TinyPair) -> None:
    engine = tiny.load(max_total_tokens=70)
    for i in range(4):
        engine.add(Request(str(i), PROMPT, SamplingParams(max_new_tokens=22, ignore_eos=True)))
    while engine.has_work:
        engine.step()
        assert engine.stats.reserved_tokens <= 70
        assert engine.stats.running <= 2


def test_prefill_and_decode_take_turns(tiny: TinyPair) -> None:
    engine = tiny.load(chunked_prefill_size=10)
    engine.add(Request("first", PROMPT, SamplingParams(max_new_tokens=30, ignore_eos=True)))
    engine.step()
    engine.add(Request("long", [1] * 100, SamplingParams(max_new_tokens=2, ignore_eos=True)))
    kinds = [engine.step().kind for _ in range(8)]
    assert (
        kinds == [StepKind.DECODE, StepKind.PREFILL] * 4 or kinds == [StepKind.PREFILL, StepKind.DECODE] * 4
    )


def test_step_report_of_a_prefill_and_of_a_verify(tiny: TinyPair) -> None:
    engine = tiny.load(Algorithm.DDTREE, budget=5, chunked_prefill_size=5)
    engine.add(Request("r", PROMPT, SamplingParams(max_new_tokens=20, ignore_eos=True)))
    first, second, third = engine.step(), engine.step(), engine.step()
    assert (first.kind, first.prefill_tokens, first.new_requests, first.committed) == (
        StepKind.PREFILL,
        5,
        1,
        0,
    )
    assert first.outputs[0].token_ids == ()
    assert (second.prefill_tokens, second.new_requests, second.committed) == (3, 0, 1)
    output = third.outputs[0]
    assert (third.kind, third.verify_passes) == (StepKind.DECODE, 1)
    assert output.proposed_drafts == 5
    assert output.accepted_drafts is not None
    assert len(output.token_ids) == output.accepted_drafts + 1 == third.committed
    assert output.committed_tokens == len(PROMPT) + output.accepted_drafts + 1
    parts = third.timings
    assert parts.total >= parts.draft + parts.tree + parts.target + parts.sample + parts.commit - 1e-6
    assert min(parts.draft, parts.tree, parts.target, parts.sample, parts.commit) > 0


def test_plain_decoding_reports_no_drafts(tiny: TinyPair) -> None:
    engine = tiny.load()
    engine.add(Request("r", PROMPT, SamplingParams(max_new_tokens=3)))
    for report in drain(engine):
        assert report.verify_passes == 0
        assert all(o.accepted_drafts is None and o.proposed_drafts is None for o in report.outputs)
    assert engine.stats.layer_windows == ()
    assert engine.drafter is None


def test_abort_queued_running_and_unknown(tiny: TinyPair) -> None:
    engine = tiny.load(Algorithm.DFLASH, max_running_requests=2)
    for name in "abcd":
        engine.add(Request(name, PROMPT, SamplingParams(max_new_tokens=50, ignore_eos=True)))
    engine.step()
    assert engine.abort("a")
    assert engine.abort("d")
    assert not engine.abort("d")
    assert not engine.abort("nobody")
    report = engine.step()
    aborted = {o.id: o.finish for o in report.outputs if o.finish is not None and o.finish.type == "abort"}
    assert set(aborted) == {"a", "d"}
    rest = outputs(drain(engine))
    assert len(rest["b"]) + 1 >= 50 - BLOCK
    assert len(rest["c"]) == 50
    assert engine.stats.aborted_total == 2
    assert engine.stats.used_tokens == 0


def test_an_abort_of_the_last_request_is_still_reported(tiny: TinyPair) -> None:
    engine = tiny.load()
    engine.add(Request("a", PROMPT))
    assert not engine.flush()
    assert engine.abort_all() == 1
    assert engine.flush()
    assert engine.has_work
    report = engine.step()
    assert report.kind is StepKind.IDLE
    assert [o.id for o in report.outputs] == ["a"]
    assert not engine.has_work
    assert engine.step().outputs == ()


def test_live_changes_keep_the_output(tiny: TinyPair) -> None:
    """Budget, top-k and window change in mid-request; the tokens do not."""
    plain = generate(tiny.load(), PROMPT, max_new_tokens=120)
    engine = tiny.load(Algorithm.DDTREE, budget=3, compact_draft_cache=True)
    changes: list[dict[str, Any]] = [
        {"budget": 60},
        {"window_mode": WindowMode.CLAMPED},
        {"window_mode": WindowMode.IGNORED, "budget": 2},
        {"topk": 2, "budget": 40},
        {"window_mode": WindowMode.DECLARED, "window_size": 20, "topk": 0},
        {"window_size": 0},
        {"budget": 200},
    ]
    engine.add(Request("r", PROMPT, SamplingParams(max_new_tokens=120, ignore_eos=True)))
    tokens: list[int] = []
    step = 0
    while engine.has_work:
        tokens += [t for o in engine.step().outputs for t in o.token_ids]
        if step % 3 == 2 and step // 3 < len(changes):
            engine.reconfigure(**changes[step // 3])
        step += 1
    assert tokens == plain
    assert step // 3 >= len(changes)


def test_reconfigure_shows_in_stats_and_is_all_or_nothing(tiny: TinyPair) -> None:
    engine = tiny.load(Algorithm.DDTREE, budget=3)
    engine.reconfigure(budget=9, topk=4, window_mode=WindowMode.CLAMPED, window_size=12)
    stats = engine.stats
    assert (stats.budget, stats.topk, stats.window_mode, stats.window_size) == (9, 4, WindowMode.CLAMPED, 12)
    with pytest.raises(EngineConfigError):
        engine.reconfigure(budget=20, window_size=BLOCK - 1)
    assert engine.stats == stats
    engine.reconfigure(topk=0, window_size=0)
    assert (engine.stats.topk, engine.stats.window_size) == (None, 8)
    engine.reconfigure(window_mode=WindowMode.IGNORED, window_size=13)
    assert engine.stats.window_size is None
    engine.reconfigure(window_mode=WindowMode.CLAMPED)
    assert engine.stats.window_size == 13


@pytest.mark.parametrize(
    ("algorithm", "changes", "field"),
    [
        (Algorithm.NONE, {"budget": 4}, "budget"),
        (Algorithm.NONE, {"window_mode": WindowMode.CLAMPED}, "window_mode"),
        (Algorithm.DFLASH, {"budget": 4}, "budget"),
        (Algorithm.DFLASH, {"topk": 0}, "topk"),
        (Algorithm.DDTREE, {"budget": 0}, "budget"),
        (Algorithm.DDTREE, {"budget": 1025}, "budget"),
        (Algorithm.DDTREE, {"topk": VOCAB + 1}, "topk"),
        (Algorithm.DDTREE, {"window_size": -1}, "window_size"),
    ],
)
def test_bad_live_changes(tiny: TinyPair, algorithm: Algorithm, changes: dict[str, Any], field: str) -> None:
    engine = tiny.load(algorithm)
    before = engine.stats
    with pytest.raises(EngineConfigError) as caught:
        engine.reconfigure(**changes)
    assert caught.value.field == field
    assert engine.stats == before


def test_widening_a_compacted_window_says_what_is_missing(tiny: TinyPair) -> None:
    engine = tiny.load(Algorithm.DFLASH, compact_draft_cache=True, window_mode=WindowMode.CLAMPED)
    engine.add(Request("r", [1] * 60, SamplingParams(max_new_tokens=30, ignore_eos=True)))
    engine.step()
    assert engine.reconfigure(window_size=9)[0].startswith("1 running request(s) gave back draft KV rows")
    assert engine.reconfigure(window_size=8) == ()
    drain(engine)
    assert engine.reconfigure(window_mode=WindowMode.IGNORED) == ()


def test_startup_stages_come_in_order(tiny: TinyPair) -> None:
    from dflash_engine.engine import load_engine

    stages = []
    load_engine(tiny.config(Algorithm.DFLASH), stages.append)
    assert [s.name for s in stages] == ["target_weights", "drafter_weights", "kv_pool", "warmup"]
    assert all(s.seconds >= 0 for s in stages)
    assert stages[1].detail["block_size"] == BLOCK


def test_the_warm_up_leaves_no_trace(tiny: TinyPair) -> None:
    stats = tiny.load(Algorithm.DFLASH).stats
    assert (stats.requests_total, stats.generated_tokens_total, stats.verify_passes_total) == (0, 0, 0)
