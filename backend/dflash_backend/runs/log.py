"""The log of a run as clean lines: decoded, sanitised, redacted, in batches that a screen keeps up with."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Sequence

from dflash_backend.core.errors import FailedError
from dflash_backend.core.text import LineDecoder, redact
from dflash_backend.ssh.link import RemoteProcess
from dflash_backend.ssh.programs import result

BATCH_S = 1 / 60
"""Lines are gathered for so long: at most about sixty batches per second reach the screen."""
MAX_BATCH = 4000
"""Lines in one batch; what is more waits on the host."""
QUEUE = 4
"""Chunks of at most 64 KiB between the connection and the reader; then the host is held up."""
MAX_MESSAGE = 4 * 1024 * 1024


async def clean_batches(
    process: RemoteProcess, *, host: str, secrets: Sequence[str] = ()
) -> AsyncGenerator[list[str], None]:
    """Batches of clean lines from the ``follow`` operation of the host's program, until it ends.

    Memory is bounded by some chunks and one batch, whatever the host sends and however slow the reader is.
    """
    chunks: asyncio.Queue[bytes | None] = asyncio.Queue(QUEUE)
    pump = asyncio.create_task(_pump(process, chunks))
    messages = _Messages(host)
    decoder = LineDecoder()
    clock = asyncio.get_running_loop().time
    try:
        chunk = await chunks.get()
        while chunk is not None:
            lines = decoder.feed(messages.feed(chunk))
            until = clock() + BATCH_S
            chunk = b""
            while chunk is not None and len(lines) < MAX_BATCH:
                try:
                    async with asyncio.timeout_at(until):
                        chunk = await chunks.get()
                except TimeoutError:
                    break
                if chunk is not None:
                    lines += decoder.feed(messages.feed(chunk))
            if lines:
                yield [redact(line, secrets) for line in lines]
            if chunk is not None:
                chunk = await chunks.get()
        await pump  # raises what ended the stream, if it was not its end
        last = decoder.close()
        if last:
            yield [redact(line, secrets) for line in last]
    finally:
        pump.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await pump


async def _pump(process: RemoteProcess, chunks: asyncio.Queue[bytes | None]) -> None:
    try:
        async for chunk in process.chunks():
            for begin in range(0, len(chunk), 65536):
                await chunks.put(chunk[begin : begin + 65536])
    except Exception:
        await chunks.put(None)  # wakes the reader, which then meets the error in this task
        raise
    await chunks.put(None)


class _Messages:
    """Takes the log's text out of the JSON lines around it."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._rest = b""

    def feed(self, chunk: bytes) -> bytes:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > MAX_MESSAGE:
            raise FailedError("the host sent a line without an end", where=self._host)
        return b"".join(self._text(line) for line in lines if line)

    def _text(self, line: bytes) -> bytes:
        try:
            message = json.loads(line)
        except ValueError as problem:
            raise FailedError("the host answered something that is not JSON", where=self._host) from problem
        text = message.get("log") if isinstance(message, dict) else None
        if isinstance(text, str):
            return text.encode("utf-8", "replace")
        result(message, host=self._host)  # raises what {"error": …} stands for
        return b""
