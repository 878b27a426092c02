"""One server asked over HTTP: a real server with captured pages, slow, odd and half there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from captured_server import Server

from dflash_backend.core.errors import UnreachableError
from dflash_backend.core.inventory import ServerConfig
from dflash_backend.core.profile import Algorithm
from dflash_backend.core.states import StageName
from dflash_backend.telemetry import server_poll
from dflash_backend.telemetry.figures import NO_METRICS
from dflash_backend.telemetry.run_log import RunLog
from dflash_backend.telemetry.server_poll import ServerPoller

CAPTURES = Path(__file__).parent.parent / "data" / "captures"
DFLASH = CAPTURES / "sglang-0.5.14-cpu-dflash"


class Straight:
    """The part of a link that polling needs, without SSH: a forward to this machine's own port."""

    async def forward(self, remote_port: int) -> int:
        return remote_port


class Unreached:
    async def forward(self, remote_port: int) -> int:
        raise UnreachableError("the connection was lost")


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


Serve = Callable[[web.Application], Awaitable[int]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    async with contextlib.AsyncExitStack() as stack:

        async def start(app: web.Application) -> int:
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            port: int = runner.addresses[0][1]
            return port

        yield start


class Now:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def now() -> Now:
    return Now()


def poller(
    port: int, client: aiohttp.ClientSession, now: Now, link: Any = None, **options: Any
) -> ServerPoller:
    config = ServerConfig(name="s", host="h", port=port)
    return ServerPoller(config, link or Straight(), lambda: client, clock=now, **options)


async def rounds(one: ServerPoller, now: Now, count: int, log: RunLog | None = None) -> None:
    for _ in range(count):
        now.at += 1.0
        await one.poll(log)


def starting_log() -> RunLog:
    log = RunLog()
    log.take({"reset": True, "text": "Load weight begin. avail mem=1.00 GB\n", "partial": ""}, 1.0)
    assert log.stage.name is StageName.WEIGHTS
    return log


@pytest.mark.parametrize("capture", ["sglang-0.5.11-cpu", "sglang-0.5.14-cpu-dflash", "sglang-0.5.23-cpu"])
async def test_a_server_becomes_ready_and_tells_figures_and_settings(
    serve: Serve, client: aiohttp.ClientSession, now: Now, capture: str
) -> None:
    server = Server(CAPTURES / capture)
    one = poller(await serve(server.app()), client, now)
    server.state["health"] = 503
    log = starting_log()
    await rounds(one, now, 2, log)
    assert not one.answer.ready
    assert one.answer.answered == now.at
    assert one.figures is None
    assert set(server.asked) == {"/health"}
    server.state.update(health=200, running=4, values={"realtime_tokens_total/decode": 100})
    await rounds(one, now, 1, log)
    server.state["values"] = {"realtime_tokens_total/decode": 250}
    await rounds(one, now, 1, log)
    assert one.answer.ready
    assert one.figures is not None
    assert one.figures.decode_tok_s == pytest.approx(150)
    assert one.figures.running == 4
    assert one.settings is not None
    assert one.settings.algorithm is (Algorithm.DFLASH if "dflash" in capture else Algorithm.NONE)
    # /health runs a request on the server: never again once it has said that it serves.
    await rounds(one, now, 5, log)
    assert server.asked["/health"] == 3
    assert server.asked["/server_info"] == 1
    assert server.asked["/metrics"] == server.asked["/v1/loads"] == 7


async def test_a_server_that_has_run_for_long_is_known_in_one_round_without_a_request_on_it(
    serve: Serve, client: aiohttp.ClientSession, now: Now
) -> None:
    server = Server(DFLASH)
    one = poller(await serve(server.app()), client, now)
    await rounds(one, now, 1)
    assert one.answer.ready
    assert one.figures is not None
    assert one.settings is not None
    assert dict(server.asked) == {"/v1/models": 1, "/v1/loads": 1, "/metrics": 1, "/server_info": 1}


async def test_a_server_without_metrics_is_said_so_and_not_asked_each_time(
    serve: Serve, client: aiohttp.ClientSession, now: Now
) -> None:
    server = Server(DFLASH)
    server.state.update(missing=["/metrics"], running=2)
    one = poller(await serve(server.app()), client, now)
    await rounds(one, now, 5)
    assert one.figures is not None
    assert one.figures.running == 2
    assert (one.figures.decode_tok_s, one.figures.decode_source) == (
        pytest.approx(44.54, abs=50),
        "gauge-last",
    )
    assert NO_METRICS in one.figures.notes["decode_tok_s"]
    assert server.asked["/metrics"] == 1
    server.state["missing"] = []
    now.at += 120
    await rounds(one, now, 2)
    assert server.asked["/metrics"] > 1
    assert one.figures.decode_tok_s is not None


async def test_counters_that_fall_make_the_settings_be_read_again(
    serve: Serve, client: aiohttp.ClientSession, now: Now
) -> None:
    server = Server(DFLASH)
    server.state["values"] = {"realtime_tokens_total/decode": 1000}
    one = poller(await serve(server.app()), client, now)
    await rounds(one, now, 3)
    assert server.asked["/server_info"] == 1
    server.state.update(values={"realtime_tokens_total/decode": 5}, info={"speculative_num_draft_tokens": 4})
    await rounds(one, now, 2)
    assert server.asked["/server_info"] == 2
    assert one.figures is not None
    assert one.settings is not None
    assert one.settings.block_size == 4
    one.refresh_settings()
    await rounds(one, now, 1)
    assert server.asked["/server_info"] == 3


async def test_a_live_change_starts_the_accept_length_anew(
    serve: Serve, client: aiohttp.ClientSession, now: Now
) -> None:
    server = Server(DFLASH)
    server.state["running"] = 1
    one = poller(await serve(server.app()), client, now)

    async def count(tokens: int, steps: int) -> float | None:
        server.state["values"] = {"generation_tokens_total": tokens, "spec_verify_calls_total": steps}
        await rounds(one, now, 1)
        assert one.figures is not None
        return one.figures.accept_length

    await count(0, 0)
    assert await count(300, 100) == pytest.approx(3.0)
    server.state["info"] = {"speculative_num_draft_tokens": 4}
    one.refresh_settings()
    await count(300, 100)
    assert await count(350, 150) == pytest.approx(1.0)


async def test_a_slow_page_is_a_missing_value_and_the_rest_is_there(
    serve: Serve, client: aiohttp.ClientSession, now: Now
) -> None:
    server = Server(DFLASH)
    one = poller(await serve(server.app()), client, now, timeout_s=0.3)
    await rounds(one, now, 1)
    server.state["delays"] = {"/v1/loads": 30}
    await rounds(one, now, 1)
    assert one.answer.ready
    assert one.figures is not None
    assert one.figures.decode_tok_s is not None
    assert "scheduler" in one.figures.notes["running"]


async def test_a_busy_server_that_answers_nothing_else_still_breathes(
    serve: Serve, client: aiohttp.ClientSession, now: Now
) -> None:
    server = Server(DFLASH)
    one = poller(await serve(server.app()), client, now, timeout_s=0.3)
    await rounds(one, now, 1)
    server.state["delays"] = {"/v1/loads": 30, "/metrics": 30}
    await rounds(one, now, 1)
    assert one.answer.answered == now.at
    assert one.figures is not None
    assert one.figures.decode_tok_s is None
    assert "no answer within" in one.figures.notes["running"]


async def test_silence_keeps_the_time_of_the_last_answer(
    serve: Serve, client: aiohttp.ClientSession, now: Now
) -> None:
    server = Server(DFLASH)
    runner = web.AppRunner(server.app(), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    one = poller(runner.addresses[0][1], client, now)
    await rounds(one, now, 2)
    last = now.at
    await runner.cleanup()
    await rounds(one, now, 2)
    assert one.answer.answered == last
    assert one.answer.asked == now.at
    assert one.answer.message
    assert one.figures is None
    one.reset()
    assert one.answer.answered is None
    assert one.settings is None


async def test_no_connection_to_the_host_is_not_an_answer(client: aiohttp.ClientSession, now: Now) -> None:
    one = poller(1, client, now, link=Unreached())
    await rounds(one, now, 1)
    assert one.answer.answered is None
    assert one.answer.message == "the connection was lost"


@pytest.mark.parametrize("body", [b"", b"\xff\xfe<html>", b"[" * 100_000, b"null", b'{"loads": "x"}'])
async def test_something_else_on_the_port(
    serve: Serve, client: aiohttp.ClientSession, now: Now, body: bytes
) -> None:
    async def anything(request: web.Request) -> web.Response:
        return web.Response(body=body)

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", anything)
    one = poller(await serve(app), client, now)
    await rounds(one, now, 3)
    assert one.settings is None
    assert one.figures is not None
    assert one.figures.running is None
    assert one.figures.decode_tok_s is None


async def test_no_http_at_all(client: aiohttp.ClientSession, now: Now) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-\x1b[31mnot http\r\n\r\n")
        await writer.drain()
        writer.close()

    listener = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with listener:
        one = poller(listener.sockets[0].getsockname()[1], client, now)
        await rounds(one, now, 1)
    assert one.answer.answered is None
    assert one.answer.message
    assert "\x1b" not in one.answer.message


async def test_a_page_without_end_is_bounded(
    serve: Serve, client: aiohttp.ClientSession, now: Now, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_poll, "MAX_PAGE", 100_000)
    server = Server(DFLASH)
    server.metrics = server.metrics * 10
    one = poller(await serve(server.app()), client, now)
    await rounds(one, now, 2)
    assert one.figures is not None
    assert one.figures.running is not None
    assert one.figures.decode_tok_s is None
    assert "longer than" in one.figures.notes["prefill_tok_s"]


async def test_a_server_that_asks_for_a_key(serve: Serve, client: aiohttp.ClientSession, now: Now) -> None:
    server = Server(DFLASH)

    @web.middleware
    async def guard(request: web.Request, handler: Any) -> web.StreamResponse:
        guarded = request.path.startswith("/v1") or request.path == "/server_info"
        if guarded and request.headers.get("Authorization") != "Bearer abc":
            return web.Response(status=401)
        response: web.StreamResponse = await handler(request)
        return response

    app = server.app()
    app.middlewares.insert(0, guard)
    port = await serve(app)
    without = poller(port, client, now)
    await rounds(without, now, 2)
    assert without.answer.ready
    assert without.settings is None
    assert without.figures is not None
    assert without.figures.decode_tok_s is not None
    with_key = poller(port, client, now, api_key=lambda: "abc")
    await rounds(with_key, now, 2)
    assert with_key.settings is not None
