"""One streaming request, timed. A chunk is not a token: tokens are those that the server counts.

Times are seconds on ``time.perf_counter``. What is derived from them is defined in ``measures``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field

import aiohttp
import msgspec

from dflash_backend.bench.job import Route
from dflash_backend.core.errors import UsageError
from dflash_backend.core.text import redact, sanitise
from dflash_backend.sglang.decode import mapping_or_empty
from dflash_backend.sglang.meta_info import RequestMeta, read_meta_info, read_usage

READ_BUFFER = 4 * 1024 * 1024
"""A native stream repeats the whole text in each event; a small buffer would measure the client."""
MAX_EVENT = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request to send. ``scheduled``: when it was due, for the client's queueing time."""

    prompt: str
    output_tokens: int
    temperature: float = 0.0
    ignore_eos: bool = False
    route: Route = "generate"
    model: str = "default"
    scheduled: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back. ``chunks`` are (arrival, tokens counted by the server so far).

    ``counted`` is false when the route tells no running token count: then per-token times are unknown.
    """

    scheduled: float
    sent: float
    chunks: tuple[tuple[float, int], ...] = ()
    meta: RequestMeta = field(default_factory=RequestMeta)
    counted: bool = True
    error: str | None = None

    @property
    def ok(self) -> bool:
        """True when the request was answered to its end."""
        return self.error is None


class _Meta(msgspec.Struct):
    completion_tokens: int | None = None
    finish_reason: object = None


class _Native(msgspec.Struct):
    """The part of a native event that is needed while it streams; the text is skipped unread."""

    meta_info: _Meta | None = None
    error: object = None


_native = msgspec.json.Decoder(_Native)
_any = msgspec.json.Decoder()
_PATHS: dict[Route, str] = {
    "generate": "/generate",
    "completions": "/v1/completions",
    "chat": "/v1/chat/completions",
}


def body(ask: Ask) -> dict[str, object]:
    """The JSON that is sent."""
    if ask.route == "generate":
        return {
            "text": ask.prompt,
            "sampling_params": {
                "max_new_tokens": ask.output_tokens,
                "temperature": ask.temperature,
                "ignore_eos": ask.ignore_eos,
            },
            "stream": True,
        }
    common: dict[str, object] = {
        "model": ask.model,
        "max_tokens": ask.output_tokens,
        "temperature": ask.temperature,
        "ignore_eos": ask.ignore_eos,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "return_meta_info": True,  # from 0.5.13 on; ignored before
    }
    if ask.route == "chat":
        return {**common, "messages": [{"role": "user", "content": ask.prompt}]}
    return {**common, "prompt": ask.prompt}


def open_session(*, api_key: str | None = None, limit: int = 0) -> aiohttp.ClientSession:
    """A session for measuring: no connection limit unless told, no total time-out, large read buffer.

    Raises UsageError for an API key that cannot be sent.
    """
    if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
        raise UsageError(
            "the API key holds characters that no HTTP header may have",
            next_step="check the secret that the reference leads to: often it ends in a line end",
        )
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    return aiohttp.ClientSession(
        headers=headers,
        connector=aiohttp.TCPConnector(limit=limit, force_close=False),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=15),
        read_bufsize=READ_BUFFER,
        trust_env=False,
    )


async def send(
    session: aiohttp.ClientSession,
    base_url: str,
    ask: Ask,
    *,
    timeout: float,
    on_tokens: Callable[[int], None] | None = None,
) -> Answer:
    """Sends one request and reads its stream to the end.

    Never raises for what the server or the network does: that is the answer's ``error``, without secrets.
    ``on_tokens`` is told each growth of the token count. A cancelled call closes the connection, upon which
    SGLang ends the request.
    """
    reader = _StreamReader(ask.route, on_tokens)
    payload = msgspec.json.encode(body(ask))
    sent = time.perf_counter()
    scheduled = sent if ask.scheduled is None else ask.scheduled
    error: str | None = None
    try:
        async with asyncio.timeout(timeout):
            async with session.post(
                base_url + _PATHS[ask.route],
                data=payload,
                headers={"Content-Type": "application/json"},
            ) as response:
                if response.status != 200:
                    error = f"HTTP {response.status}: {_short(await response.content.read(2000))}"
                else:
                    async for event in _events(response.content):
                        reader.feed(event)
                    error = reader.problem()
    except TimeoutError:
        error = f"no end after {timeout:g} s"
    except aiohttp.ClientError as problem:
        error = f"{type(problem).__name__}: {_short(str(problem))}"
    except OSError as problem:
        error = f"connection failed: {_short(str(problem))}"
    except ValueError as problem:
        error = f"not an event stream: {_short(str(problem))}"
    return Answer(
        scheduled=scheduled,
        sent=sent,
        chunks=tuple(reader.chunks),
        meta=reader.meta(),
        counted=reader.counted,
        error=error,
    )


def _short(text: str | bytes) -> str:
    return redact(sanitise(text, multiline=False, limit=300))


async def _events(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Payloads of ``data:`` lines. Reads whatever has arrived, so that waiting is the server's alone."""
    rest = bytearray()
    async for piece in stream.iter_any():
        rest += piece
        if b"\n" not in piece:
            if len(rest) > MAX_EVENT:
                raise ValueError("one event is larger than 64 MiB")
            continue
        *lines, tail = bytes(rest).split(b"\n")
        rest = bytearray(tail)
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()
    if rest.startswith(b"data:"):
        yield bytes(rest[5:]).strip()


class _StreamReader:
    """Turns events into token counts and times."""

    def __init__(self, route: Route, on_tokens: Callable[[int], None] | None) -> None:
        self._native = route == "generate"
        self._on_tokens = on_tokens
        self.chunks: list[tuple[float, int]] = []
        self.counted = True
        self._last: bytes = b""
        self._usage: Mapping[str, object] = {}
        self._meta: Mapping[str, object] = {}
        self._finished: object = None
        self._error: str | None = None
        self._done = False

    def feed(self, event: bytes) -> None:
        """Takes one event as it arrives. Raises ValueError when it is no JSON of the expected form."""
        now = time.perf_counter()
        if event == b"[DONE]":
            self._done = True
        elif self._native:
            self._feed_native(event, now)
        else:
            self._feed_openai(event, now)

    def _feed_native(self, event: bytes, now: float) -> None:
        chunk = _native.decode(event)
        if chunk.error is not None:
            self._error = _short(str(mapping_or_empty(chunk.error).get("message") or chunk.error))
            return
        self._last = event
        if chunk.meta_info is not None:
            self._finished = chunk.meta_info.finish_reason or self._finished
            self._count(chunk.meta_info.completion_tokens, now)

    def _feed_openai(self, event: bytes, now: float) -> None:
        chunk = mapping_or_empty(_any.decode(event))
        if chunk.get("error") is not None:
            self._error = _short(str(mapping_or_empty(chunk["error"]).get("message") or chunk["error"]))
            return
        usage = mapping_or_empty(chunk.get("usage"))
        self._usage = usage or self._usage
        choices = chunk.get("choices")
        choice = mapping_or_empty(choices[0]) if isinstance(choices, list) and choices else {}
        for holder in (choice, chunk, mapping_or_empty(chunk.get("sglext"))):
            self._meta = mapping_or_empty(holder.get("meta_info")) or self._meta
        self._finished = choice.get("finish_reason") or self._finished
        delta = mapping_or_empty(choice.get("delta"))
        content = choice.get("text") or delta.get("content") or delta.get("reasoning_content")
        tokens = read_usage(usage).completion_tokens if usage else None
        if tokens is not None and choice:
            self._count(tokens, now)
        elif content:
            # Without a running count a chunk's tokens are unknown: only first and last time are of use.
            self.counted = False
            self.chunks.append((now, self.chunks[-1][1] if self.chunks else 0))

    def _count(self, tokens: int | None, now: float) -> None:
        before = self.chunks[-1][1] if self.chunks else 0
        if tokens is None or tokens <= before:
            return
        self.chunks.append((now, tokens))
        if self._on_tokens is not None:
            self._on_tokens(tokens - before)

    def meta(self) -> RequestMeta:
        """What the server said about the request in the end."""
        if self._native:
            try:
                last = mapping_or_empty(_any.decode(self._last)) if self._last else {}
            except ValueError:
                last = {}
            return read_meta_info(last.get("meta_info"))
        usage = read_usage(self._usage)
        if not self._meta:
            return usage
        meta = read_meta_info({**self._usage_fields(usage), **self._meta, "finish_reason": self._finished})
        return meta

    @staticmethod
    def _usage_fields(usage: RequestMeta) -> dict[str, object]:
        return {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cached_tokens": usage.cached_tokens,
        }

    def problem(self) -> str | None:
        """Why the stream is no whole answer; None when it is."""
        if self._error is not None:
            return self._error
        meta = self.meta()
        if meta.finish_reason == "abort":
            return f"the server ended it: {meta.finish_message or 'abort'}"
        if not self.chunks:
            return "no token came back"
        if self._finished is None:
            return "the stream ended in the middle of the answer"
        return None
