"""A small HTTP server with SGLang's streaming surface whose answers are scripted: what it counts is known."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer


@dataclass
class Script:
    """How the server behaves. ``chunks`` are the tokens per chunk of every answer."""

    chunks: list[int] = field(default_factory=lambda: [1, 4, 3])
    verify_ct: int | None = 4
    cached: int = 0
    retractions: int = 0
    finish: Any = field(default_factory=lambda: {"type": "length", "length": 8})
    fail_status: int = 0
    fail_every: int = 0
    """Every n-th request gets ``fail_status``."""
    break_after: int | None = None
    """Chunks after which the connection is closed in the middle of the answer."""
    raw: bytes | None = None
    """Sent in place of the stream."""
    metrics: bool = True
    loads: bool = True
    busy: int = 0
    """Other requests that /v1/loads tells of."""
    extra_tokens: int = 0
    """Tokens that somebody else generates with every request."""
    flush_refusals: int = 0
    usage_in_chunks: bool = True
    meta_info_in_openai: bool = False
    gate: asyncio.Event | None = None
    """Answers stop after their first chunk until it is set."""
    server_info: dict[str, Any] = field(default_factory=dict)


class ScriptedServer:
    """Routes, and what was seen: ``events`` in order, ``prompts`` by request."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.events: list[str] = []
        self.prompts: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self.idle = asyncio.Event()
        self.idle.set()
        self.disconnected = asyncio.Event()
        self.generated = 0
        self.verified = 0
        self.headers: list[str | None] = []
        self.first_chunks = asyncio.Queue[None]()

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/generate", self.generate)
        app.router.add_post("/v1/completions", self.openai)
        app.router.add_post("/v1/chat/completions", self.openai)
        app.router.add_post("/flush_cache", self.flush)
        app.router.add_get("/server_info", self.info)
        app.router.add_get("/v1/models", self.models)
        if self.script.loads:
            app.router.add_get("/v1/loads", self.load)
        if self.script.metrics:
            app.router.add_get("/metrics", self.metrics)
        return app

    async def info(self, request: web.Request) -> web.Response:
        self.headers.append(request.headers.get("Authorization"))
        return web.json_response(
            {
                "model_path": "m",
                "version": "0.5.14",
                "speculative_algorithm": "DFLASH",
                "speculative_num_draft_tokens": 8,
                "internal_states": [],
                **self.script.server_info,
            }
        )

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "served-name"}]})

    async def load(self, request: web.Request) -> web.Response:
        running = self.in_flight + self.script.busy
        return web.json_response({"loads": [{"num_running_reqs": running, "num_waiting_reqs": 0}]})

    async def flush(self, request: web.Request) -> web.Response:
        if self.script.flush_refusals:
            self.script.flush_refusals -= 1
            return web.Response(status=400, text="busy")
        self.events.append("flush")
        return web.Response(text="Cache flushed.")

    async def metrics(self, request: web.Request) -> web.Response:
        return web.Response(
            text=f"sglang:generation_tokens_total {float(self.generated)}\n"
            f"sglang:spec_verify_calls_total {float(self.verified)}\n"
        )

    def _refused(self) -> bool:
        number = len(self.prompts)
        return bool(self.script.fail_status and number % max(1, self.script.fail_every) == 0)

    async def generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        return await self._answer(request, body, body["text"], self._native)

    async def openai(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        prompt = body["prompt"] if "prompt" in body else body["messages"][0]["content"]
        return await self._answer(request, body, prompt, self._openai)

    async def _answer(self, request: web.Request, body: dict[str, Any], prompt: str, events: Any) -> Any:
        self.bodies.append(body)
        self.prompts.append(prompt)
        self.events.append("ask")
        if self._refused():
            return web.Response(status=self.script.fail_status, text="no: --api-key abcd-secret-1")
        self.in_flight += 1
        self.idle.clear()
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        try:
            await response.prepare(request)
            if self.script.raw is not None:
                await response.write(self.script.raw)
                return response
            for number, event in enumerate(events()):
                if self.script.break_after is not None and number >= self.script.break_after:
                    assert request.transport is not None
                    request.transport.close()
                    return response
                await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
                if number == 0:
                    self.first_chunks.put_nowait(None)
                    if self.script.gate is not None:
                        await self.script.gate.wait()
            await response.write(b"data: [DONE]\n\n")
            self.generated += sum(self.script.chunks) + self.script.extra_tokens
            self.verified += self.script.verify_ct or 0
        except (ConnectionResetError, asyncio.CancelledError):
            self.disconnected.set()
            raise
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self.idle.set()
        return response

    def _meta(self, tokens: int, last: bool) -> dict[str, Any]:
        meta: dict[str, Any] = {
            "prompt_tokens": 20,
            "completion_tokens": tokens,
            "cached_tokens": self.script.cached,
            "finish_reason": self.script.finish if last else None,
            "num_retractions": self.script.retractions,
        }
        if last and self.script.verify_ct is not None:
            meta |= {"spec_verify_ct": self.script.verify_ct, "spec_correct_drafts_histogram": [1, 0, 3]}
        return meta

    def _native(self) -> list[dict[str, Any]]:
        total, events = 0, []
        for number, tokens in enumerate(self.script.chunks):
            total += tokens
            last = number == len(self.script.chunks) - 1
            events.append({"text": "w" * total, "meta_info": self._meta(total, last)})
        return events

    def _openai(self) -> list[dict[str, Any]]:
        total, events = 0, []
        for number, tokens in enumerate(self.script.chunks):
            total += tokens
            last = number == len(self.script.chunks) - 1
            choice: dict[str, Any] = {
                "index": 0,
                "text": "w" * tokens,
                "finish_reason": "length" if last else None,
            }
            if last and self.script.meta_info_in_openai:
                choice["meta_info"] = self._meta(total, last)
            usage = {"prompt_tokens": 20, "completion_tokens": total} if self.script.usage_in_chunks else None
            events.append({"choices": [choice], "usage": usage})
        events.append({"choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": total}})
        return events


@asynccontextmanager
async def serving(script: Script) -> AsyncIterator[tuple[ScriptedServer, str]]:
    """The server on a free port of 127.0.0.1, and its address."""
    scripted = ScriptedServer(script)
    server = TestServer(scripted.app())
    await server.start_server()
    try:
        yield scripted, str(server.make_url("")).rstrip("/")
    finally:
        if script.gate is not None:
            script.gate.set()
        await server.close()
