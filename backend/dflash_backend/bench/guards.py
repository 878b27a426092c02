"""What makes a measurement not clean, and the watching that finds it out."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from types import TracebackType

from dflash_backend.bench.client import Answer
from dflash_backend.bench.job import Job
from dflash_backend.bench.server import Counters
from dflash_backend.core.errors import ConsoleError
from dflash_backend.sglang.log import DecodeLine, read_batch_line

MIN_SUCCESS = 0.99
MAX_CACHED_SHARE = 0.02
CACHED_ALLOWED = {"generate": 8, "completions": 8, "chat": 64}
"""Prompt tokens per request that may be cached: a start token, and the chat template's head."""
MAX_LAG_MS = 100.0
MAX_COUNTER_GAP = 0.02
LAG_EVERY_S = 0.02

_JIT = re.compile(
    r"took [\d.]+ s to compile after serving started|JIT compil|Compiling .*kernel", re.IGNORECASE
)
_RETRACT = re.compile(r"Retract requests|KV cache pool is full", re.IGNORECASE)


class LagWatch:
    """How long the event loop of this client was ever late: the client must not be what is measured."""

    def __init__(self) -> None:
        self.longest_ms = 0.0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> LagWatch:
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _watch(self) -> None:
        while True:
            due = time.perf_counter() + LAG_EVERY_S
            await asyncio.sleep(LAG_EVERY_S)
            self.longest_ms = max(self.longest_ms, (time.perf_counter() - due) * 1000.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCounts:
    """Telling lines of the server's log so far."""

    compiled: int = 0
    retracted: int = 0
    with_graph: int = 0
    without_graph: int = 0

    def since(self, before: LogCounts) -> LogCounts:
        """What came after ``before``."""
        return LogCounts(
            compiled=self.compiled - before.compiled,
            retracted=self.retracted - before.retracted,
            with_graph=self.with_graph - before.with_graph,
            without_graph=self.without_graph - before.without_graph,
        )


class LogWatch:
    """Follows the server's log while a benchmark runs. Without a log it counts nothing and says so."""

    def __init__(self, lines: AsyncIterator[list[str]] | None = None) -> None:
        self._lines = lines
        self._task: asyncio.Task[None] | None = None
        self._counts = LogCounts()
        self.watching = lines is not None
        self.lost = ""

    async def __aenter__(self) -> LogWatch:
        if self._lines is not None:
            self._task = asyncio.create_task(self._follow(self._lines))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        close = getattr(self._lines, "aclose", None)
        if close is not None:
            await close()

    def seen(self) -> LogCounts:
        """The counts so far."""
        return self._counts

    async def _follow(self, lines: AsyncIterator[list[str]]) -> None:
        try:
            async for batch in lines:
                for line in batch:
                    self._line(line)
        except ConsoleError as error:
            self.lost = error.what  # the log is gone; the server may still be there
        self.watching = False

    def _line(self, line: str) -> None:
        now = self._counts
        batch = read_batch_line(line)
        decode = isinstance(batch, DecodeLine) and batch.graph is not None
        self._counts = LogCounts(
            compiled=now.compiled + bool(_JIT.search(line)),
            retracted=now.retracted + bool(_RETRACT.search(line)),
            with_graph=now.with_graph + (decode and batch is not None and batch.graph is True),
            without_graph=now.without_graph + (decode and batch is not None and batch.graph is False),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One repeat as it was measured, with everything that was seen around it."""

    job: Job
    concurrency: int
    answers: Sequence[Answer]
    before: Counters
    after: Counters
    log: LogCounts
    log_watched: bool
    lag_ms: float
    said: tuple[str, ...] = ()


def unclean_reasons(measured: Measured) -> tuple[str, ...]:
    """Why a repeat's figures should not be compared; empty when they may."""
    return tuple(
        reason
        for reason in (
            *measured.said,
            _failures(measured),
            _cached(measured),
            _length(measured),
            _retracted(measured),
            _compiled(measured),
            _other_traffic(measured),
            _verify_steps(measured),
            _lag(measured),
        )
        if reason
    )


def _failures(measured: Measured) -> str | None:
    failed = sum(1 for answer in measured.answers if not answer.ok)
    total = len(measured.answers)
    if failed and (total - failed) / total < MIN_SUCCESS:
        return f"{failed} of {total} requests failed"
    return None


def _cached(measured: Measured) -> str | None:
    good = [answer.meta for answer in measured.answers if answer.ok]
    told = [meta for meta in good if meta.cached_tokens is not None]
    cached = sum(meta.cached_tokens or 0 for meta in told)
    prompts = sum(meta.prompt_tokens or 0 for meta in told)
    allowed = max(CACHED_ALLOWED[measured.job.route] * len(told), MAX_CACHED_SHARE * prompts)
    return f"{cached} of {prompts} prompt tokens came from the prefix cache" if cached > allowed else None


def _length(measured: Measured) -> str | None:
    if not measured.job.ignore_eos:
        return None
    asked = measured.job.output_tokens
    told = [a.meta.completion_tokens for a in measured.answers if a.ok]
    wrong = sum(1 for tokens in told if tokens is not None and tokens != asked)
    return f"{wrong} answers do not have the {asked} tokens that were asked for" if wrong else None


def _retracted(measured: Measured) -> str | None:
    told = sum(answer.meta.retractions or 0 for answer in measured.answers)
    before, after = measured.before.retracted, measured.after.retracted
    counted = after - before if before is not None and after is not None and after >= before else 0.0
    count = max(told, int(counted), measured.log.retracted)
    return f"{count} retraction(s): the KV pool was too small for this load" if count else None


def _compiled(measured: Measured) -> str | None:
    count = measured.log.compiled
    return f"{count} kernel(s) were compiled during the measurement" if count else None


def _other_traffic(measured: Measured) -> str | None:
    before, after = measured.before.generated, measured.after.generated
    if before is None or after is None:
        return None
    if after < before:
        return "the server's counters fell: it was restarted during the measurement"
    # Counted when a request completes, so ours are all in; those that failed here may be in or not.
    ours = sum(answer.meta.completion_tokens or 0 for answer in measured.answers if answer.ok)
    lost = sum(measured.job.output_tokens for answer in measured.answers if not answer.ok)
    extra = (after - before) - ours - lost
    if extra > max(MAX_COUNTER_GAP * ours, 32):
        return f"the server generated {int(extra)} more tokens than were asked for here: other traffic"
    return None


def _verify_steps(measured: Measured) -> str | None:
    before, after = measured.before.verify_calls, measured.after.verify_calls
    if before is None or after is None or after < before:
        return None
    told = sum(a.meta.spec.verify_ct for a in measured.answers if a.ok and a.meta.spec is not None)
    whole = all(answer.ok for answer in measured.answers)
    if told and whole and abs((after - before) - told) > max(0.05 * told, 16):
        return f"the server counted {after - before:.0f} verify steps, the answers tell {told}"
    return None


def graph_share(measured: Measured) -> float | None:
    """Share 0..1 of decode passes that ran from a captured graph; None when nothing tells."""
    before, after = measured.before.graph_passes or {}, measured.after.graph_passes or {}
    passes = {
        mode: count - before.get(mode, 0.0) for mode, count in after.items() if mode.startswith("decode")
    }
    total = sum(passes.values())
    if total > 0 and all(count >= 0 for count in passes.values()):
        return 1.0 - passes.get("decode_none", 0.0) / total
    seen = measured.log.with_graph + measured.log.without_graph
    return measured.log.with_graph / seen if seen else None


def _lag(measured: Measured) -> str | None:
    if measured.lag_ms > MAX_LAG_MS:
        return f"this client was busy for {measured.lag_ms:.0f} ms at a stretch: its times are late"
    return None
