"""The thread that owns the engine: runs steps, hands tokens to waiting requests, counts, logs."""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter as Histogram
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

from dflash_engine.api import Engine, EngineStats, FinishReason, Request, RequestOutput, StepKind, StepReport
from dflash_engine.server import log
from dflash_engine.server.metrics import Metrics

T = TypeVar("T")
Sink = Callable[["Progress"], None]


@dataclass(slots=True)
class RequestRecord:
    """What is known of one request while it lives. Owned by the loop's thread."""

    id: str
    prompt_tokens: int
    sink: Sink
    received: float
    """``time.monotonic`` at arrival, like the other times here."""
    first_token: float | None = None
    last_token: float | None = None
    completion_tokens: int = 0
    verify_passes: int = 0
    accepted: int = 0
    proposed: int = 0
    histogram: Histogram[int] = field(default_factory=Histogram)


@dataclass(frozen=True, slots=True)
class SpecFigures:
    """Speculation of one request so far. ``histogram[k]``: verify passes that accepted ``k`` drafts."""

    verify_passes: int
    accepted: int
    proposed: int
    histogram: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Progress:
    """New tokens of one request; the last one has ``finish`` set."""

    token_ids: tuple[int, ...]
    completion_tokens: int
    finish: FinishReason | None
    spec: SpecFigures | None


@dataclass(frozen=True, slots=True)
class LoopFigures:
    """What the scheduler's gauges show: of the last log interval, kept while idle as SGLang does."""

    gen_throughput: float = 0.0
    accept_length: float | None = None
    accept_rate: float | None = None


class EngineLoop:
    """Runs ``engine`` in a thread of its own until :meth:`close`.

    Everything that touches the engine goes through :meth:`call`. Sinks are called in the engine's thread and
    must only hand over. An exception in a step ends all requests with ``abort`` and is told to ``on_crash``.
    """

    def __init__(
        self,
        engine: Engine,
        metrics: Metrics,
        *,
        log_interval: int,
        on_crash: Callable[[BaseException], None],
    ) -> None:
        self._engine = engine
        self._metrics = metrics
        self._interval = log_interval
        self._on_crash = on_crash
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._records: dict[str, RequestRecord] = {}
        self._speculative = engine.drafter is not None
        self._steps = self._tokens = self._passes = self._accepted = self._proposed = 0
        self._since = time.monotonic()
        self._last_prefill = time.monotonic()
        self.figures = LoopFigures()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def close(self, timeout: float = 10.0) -> None:
        """Ends the thread after the current step."""
        self._inbox.put(None)
        self._thread.join(timeout)

    def call(self, function: Callable[[Engine], T]) -> Future[T]:
        """Runs ``function`` on the engine between two steps."""
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function(self._engine))
            except BaseException as error:
                future.set_exception(error)

        self._inbox.put(work)
        return future

    def submit(self, request: Request, sink: Sink) -> Future[None]:
        """Adds a request; its future fails with RequestError when the engine refuses it."""
        received = time.monotonic()

        def add(engine: Engine) -> None:
            engine.add(request)
            self._records[request.id] = RequestRecord(request.id, len(request.token_ids), sink, received)

        return self.call(add)

    def abort(self, request_id: str) -> Future[bool]:
        """Ends a request; False when there is none of that id."""
        return self.call(lambda engine: engine.abort(request_id))

    def stats(self) -> Future[EngineStats]:
        """The engine's figures, taken between two steps."""
        return self.call(lambda engine: engine.stats)

    def _run(self) -> None:
        try:
            while True:
                work = self._next_work()
                if work is None:
                    return
                work()
                if self._engine.has_work:
                    self._account(self._engine.step())
        except BaseException as error:
            for record in list(self._records.values()):
                self._finish(record, FinishReason("abort", message=f"the engine stopped: {error}"), ())
            self._on_crash(error)

    def _next_work(self) -> Callable[[], None] | None:
        """A command, or nothing to do but step; None ends the loop. Blocks only while the engine is idle."""
        if not self._engine.has_work:
            return self._inbox.get()
        try:
            return self._inbox.get_nowait()
        except queue.Empty:
            return _nothing

    def _account(self, report: StepReport) -> None:
        now = time.monotonic()
        if report.kind is StepKind.PREFILL:
            self._metrics.prefill_tokens.inc(report.prefill_tokens)
            elapsed = max(now - self._last_prefill, 1e-9)
            self._last_prefill = now
            stats = self._engine.stats
            log.logger.info(log.prefill_line(report, stats, 0, report.prefill_tokens / elapsed))
        if report.committed:
            self._metrics.decode_tokens.inc(report.committed)
        for output in report.outputs:
            record = self._records.get(output.id)
            if record is not None:
                self._deliver(record, output, now)
        if report.kind is StepKind.DECODE:
            self._tokens += report.committed
            self._passes += report.verify_passes
            self._steps += 1
            if self._steps >= self._interval:
                self._log_decode(report, now)

    def _log_decode(self, report: StepReport, now: float) -> None:
        rate = self._tokens / max(now - self._since, 1e-9)
        length = accept_rate = None
        if self._speculative and self._passes:
            length = 1.0 + self._accepted / self._passes
            accept_rate = self._accepted / self._proposed if self._proposed else 0.0
        self.figures = LoopFigures(rate, length, accept_rate)
        log.logger.info(
            log.decode_line(
                self._engine.stats,
                running=report.batch_size,
                rate=rate,
                accept_length=length,
                accept_rate=accept_rate,
            )
        )
        self._steps = self._tokens = self._passes = self._accepted = self._proposed = 0
        self._since = now

    def _deliver(self, record: RequestRecord, output: RequestOutput, now: float) -> None:
        if output.token_ids:
            if record.first_token is None:
                record.first_token = now
                self._metrics.ttft.observe(now - record.received)
            elif record.last_token is not None:
                gap = (now - record.last_token) / len(output.token_ids)
                for _ in output.token_ids:
                    self._metrics.itl.observe(gap)
            record.last_token = now
            record.completion_tokens += len(output.token_ids)
        if output.accepted_drafts is not None:
            # Drafts beyond the end of the output were cut: they do not count as accepted by the request.
            counted = min(output.accepted_drafts, max(len(output.token_ids) - 1, 0))
            record.verify_passes += 1
            record.accepted += counted
            record.proposed += output.proposed_drafts or 0
            record.histogram[counted] += 1
            self._accepted += counted
            self._proposed += output.proposed_drafts or 0
        if output.finish is not None:
            self._finish(record, output.finish, output.token_ids)
        elif output.token_ids:
            record.sink(Progress(output.token_ids, record.completion_tokens, None, self._spec(record)))

    def _spec(self, record: RequestRecord) -> SpecFigures | None:
        if not self._speculative:
            return None
        top = max(record.histogram, default=-1)
        counts = tuple(record.histogram[k] for k in range(top + 1))
        return SpecFigures(record.verify_passes, record.accepted, record.proposed, counts)

    def _finish(self, record: RequestRecord, finish: FinishReason, token_ids: tuple[int, ...]) -> None:
        self._records.pop(record.id, None)
        self._metrics.requests.inc()
        self._metrics.prompt_tokens.inc(record.prompt_tokens)
        self._metrics.generation_tokens.inc(record.completion_tokens)
        self._metrics.verify_calls.inc(record.verify_passes)
        self._metrics.e2e.observe(time.monotonic() - record.received)
        if finish.type == "abort":
            self._metrics.aborted.inc()
        record.sink(Progress(token_ids, record.completion_tokens, finish, self._spec(record)))


def _nothing() -> None:
    """No command is waiting."""
