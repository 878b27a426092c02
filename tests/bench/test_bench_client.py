"""Timed requests: tokens are counted by the server, not by chunks; failures are answers, not exceptions."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import Script, serving

from dflash_backend.bench.client import Answer, Ask, open_session, send
from dflash_backend.bench.measures import figures_of
from dflash_backend.core.errors import UsageError
from dflash_backend.sglang.meta_info import RequestMeta, SpecStats

META = RequestMeta(prompt_tokens=20, completion_tokens=9, finish_reason="length")


async def ask(script: Script, *, timeout: float = 20.0, **changes: Any) -> Answer:
    async with serving(script) as (_, url), open_session() as session:
        return await send(session, url, Ask(prompt="p", output_tokens=8, **changes), timeout=timeout)


async def test_native_stream() -> None:
    answer = await ask(Script(chunks=[1, 4, 3]))
    assert answer.ok
    assert [tokens for _, tokens in answer.chunks] == [1, 5, 8]
    assert answer.meta.completion_tokens == 8
    assert answer.meta.spec is not None
    assert (answer.meta.spec.verify_ct, answer.meta.spec.accept_length) == (4, 2.0)
    assert answer.meta.finish_reason == "length"
    assert answer.sent <= answer.chunks[0][0] <= answer.chunks[-1][0]


async def test_without_speculation() -> None:
    answer = await ask(Script(verify_ct=None))
    assert answer.meta.spec is None
    figures = figures_of(answer)
    assert figures is not None
    assert figures.accept_length is None


@pytest.mark.parametrize("route", ["completions", "chat"])
async def test_openai_routes_count_by_running_usage(route: Any) -> None:
    answer = await ask(Script(meta_info_in_openai=True), route=route)
    assert answer.ok
    assert answer.counted
    assert [tokens for _, tokens in answer.chunks] == [1, 5, 8]
    assert answer.meta.spec is not None
    assert answer.meta.spec.accept_length == 2.0
    assert answer.meta.prompt_tokens == 20


async def test_openai_route_without_running_usage_tells_no_time_per_token() -> None:
    answer = await ask(Script(usage_in_chunks=False), route="completions")
    figures = figures_of(answer)
    assert figures is not None
    assert not answer.counted
    assert (figures.tokens, figures.chunks) == (8, 3)
    assert (figures.tpot_ms, figures.user_tok_s, figures.itl_ms) == (None, None, ())
    assert len(figures.icl_ms) == 2


@pytest.mark.parametrize(
    ("script", "part"),
    [
        (Script(fail_status=503), "HTTP 503"),
        (Script(break_after=2), "Connection|Payload|Disconnected"),
        (Script(finish={"type": "abort", "message": "out of tokens"}), "out of tokens"),
        (Script(raw=b"data: {broken\n\n"), "not an event stream"),
        (Script(raw=b"<html>hello</html>"), "no token"),
        (Script(raw=b'data: {"error": {"message": "too long"}}\n\n'), "too long"),
        (Script(raw=b'data: {"text": "a", "meta_info": {"completion_tokens": 1}}\n\n'), "in the middle"),
        (
            Script(raw=b'data: {"text": "a", "meta_info": {"completion_tokens": "many"}}\n\n'),
            "not an event stream",
        ),
        (Script(raw=b""), "no token"),
    ],
)
async def test_failures_are_told(script: Script, part: str) -> None:
    answer = await ask(script)
    assert not answer.ok
    assert answer.error is not None
    assert any(word in answer.error for word in part.split("|"))
    assert "abcd-secret" not in answer.error
    assert figures_of(answer) is None


async def test_nobody_there() -> None:
    async with serving(Script()) as (_, url):
        pass
    async with open_session() as session:
        answer = await send(session, url, Ask(prompt="p", output_tokens=8), timeout=20)
    assert answer.error is not None
    assert answer.chunks == ()


async def test_time_out() -> None:
    answer = await ask(Script(gate=asyncio.Event()), timeout=0.3)
    assert answer.error == "no end after 0.3 s"


async def test_cancelling_closes_the_connection() -> None:
    async with serving(Script(gate=asyncio.Event())) as (server, url), open_session() as session:
        task = asyncio.create_task(send(session, url, Ask(prompt="p", output_tokens=8), timeout=60))
        await server.first_chunks.get()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.disconnected.wait(), 20)


def test_a_key_that_cannot_be_sent_is_refused() -> None:
    with pytest.raises(UsageError, match="API key"):
        open_session(api_key="abc\n")


async def test_what_is_sent() -> None:
    async with serving(Script()) as (server, url), open_session(api_key="k-123456") as session:
        await send(
            session, url, Ask(prompt="hello", output_tokens=7, temperature=0.5, ignore_eos=True), timeout=20
        )
        await send(session, url, Ask(prompt="hi", output_tokens=7, route="chat", model="m"), timeout=20)
    native, chat = server.bodies
    assert native["text"] == "hello"
    assert native["sampling_params"] == {"max_new_tokens": 7, "temperature": 0.5, "ignore_eos": True}
    assert chat["messages"] == [{"role": "user", "content": "hi"}]
    assert chat["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


def answer_of(times: list[tuple[float, int]], **changes: Any) -> Answer:
    return Answer(scheduled=9.5, sent=10.0, chunks=tuple(times), meta=changes.pop("meta", META), **changes)


def test_definitions_on_known_times() -> None:
    figures = figures_of(answer_of([(10.2, 3), (10.4, 5), (11.0, 9)]))
    assert figures is not None
    assert figures.ttft_ms == pytest.approx(200)
    assert figures.e2e_ms == pytest.approx(1000)
    assert figures.queue_ms == pytest.approx(500)
    # Six tokens after the first chunk of three, in 0.8 s.
    assert figures.tpot_ms == pytest.approx(800 / 6)
    assert figures.user_tok_s == pytest.approx(6 / 0.8)
    assert figures.icl_ms == pytest.approx([200, 600])
    assert figures.itl_ms == pytest.approx([100, 100, 150, 150, 150, 150])
    assert (figures.tokens, figures.first_chunk_tokens, figures.chunks) == (9, 3, 3)


def test_one_chunk_has_no_time_per_token() -> None:
    figures = figures_of(answer_of([(10.2, 9)]))
    assert figures is not None
    assert (figures.tpot_ms, figures.user_tok_s, figures.itl_ms, figures.icl_ms) == (None, None, (), ())


@given(
    st.lists(st.tuples(st.floats(0.001, 5), st.integers(1, 20)), min_size=2, max_size=30),
)
def test_gaps_spread_over_tokens_add_up(steps: list[tuple[float, int]]) -> None:
    now, total, chunks = 10.0, 0, []
    for gap, tokens in steps:
        now, total = now + gap, total + tokens
        chunks.append((now, total))
    meta = RequestMeta(
        completion_tokens=total, spec=SpecStats(completion_tokens=total, verify_ct=3, accept_length=total / 3)
    )
    figures = figures_of(answer_of(chunks, meta=meta))
    assert figures is not None
    assert figures.tpot_ms is not None
    assert len(figures.itl_ms) == total - steps[0][1]
    assert math.fsum(figures.itl_ms) == pytest.approx(math.fsum(figures.icl_ms))
    assert figures.tpot_ms == pytest.approx(math.fsum(figures.itl_ms) / len(figures.itl_ms))
    assert figures.ttft_ms + math.fsum(figures.icl_ms) == pytest.approx(figures.e2e_ms)
