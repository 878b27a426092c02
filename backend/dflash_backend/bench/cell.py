"""One cell: one point of a job's grid, measured cleanly or marked as not clean, with the reasons.

Order within a repeat: wait until idle, flush the prefix cache, warm up with other prompts at the cell's
concurrency and length, flush, measure, compare counters.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import aiohttp

from dflash_backend.bench.client import Answer, Ask, send
from dflash_backend.bench.guards import LagWatch, LogWatch, Measured, graph_share, unclean_reasons
from dflash_backend.bench.job import Job
from dflash_backend.bench.measures import RequestFigures, figures_of
from dflash_backend.bench.prompts import warm_up, with_nonce
from dflash_backend.bench.server import BenchServer
from dflash_backend.bench.stats import Spread, median_mad, spread

Phase = Literal["waiting", "flushing", "warm-up", "measuring"]
IDLE_TIMEOUT_S = 60.0
MAX_ERRORS = 5
UNSTEADY = 0.1
"""Share of the median that the deviation of the repeats may have without a note."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellProgress:
    """How far a cell is. ``tok_s`` is over the running repeat; ``done``/``total`` count its requests."""

    key: str
    concurrency: int
    index: int
    cells: int
    phase: Phase
    repeat: int
    repeats: int
    done: int = 0
    total: int = 0
    failed: int = 0
    tok_s: float | None = None
    accept_length: float | None = None
    elapsed_s: float = 0.0
    eta_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """One measured repeat."""

    output_tok_s: float | None
    request_s: float | None
    """Requests per second."""
    duration_s: float
    requests: int
    failed: int
    output_tokens: int
    prompt_tokens: int | None
    cached_tokens: int | None
    accept_length: float | None
    client_lag_ms: float
    """Longest time that this client's event loop was busy with something else."""
    graph_share: float | None = None
    """Share 0..1 of decode passes that ran from a captured graph."""
    unclean: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """A finished cell. Latencies are milliseconds, rates tokens per second; see ``measures.DEFINITIONS``.

    ``unclean`` are the reasons why the figures should not be compared; empty when they may.
    """

    key: str
    concurrency: int
    output_tokens_asked: int
    started_at: float
    finished_at: float
    requests: int
    failed: int
    errors: tuple[str, ...] = ()
    output_tok_s: float | None = None
    output_tok_s_mad: float | None = None
    accept_length: float | None = None
    accept_p10: float | None = None
    accept_p50: float | None = None
    accept_histogram: tuple[int, ...] = ()
    output_tokens: int = 0
    finish: dict[str, int] = field(default_factory=dict)
    ttft_ms: Spread | None = None
    tpot_ms: Spread | None = None
    itl_ms: Spread | None = None
    icl_ms: Spread | None = None
    e2e_ms: Spread | None = None
    queue_ms: Spread | None = None
    user_tok_s: Spread | None = None
    repeats: tuple[Repeat, ...] = ()
    unclean: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    rows: tuple[RequestFigures, ...] = ()
    """Every answered request of every repeat; its per-token gaps are in the spreads only."""

    @property
    def clean(self) -> bool:
        """True when nothing speaks against comparing these figures."""
        return not self.unclean


Report = Callable[[CellProgress], None]


class CellRunner:
    """Measures one cell. Cancelling ``run`` ends its requests at once and leaves nothing running here."""

    def __init__(
        self,
        job: Job,
        concurrency: int,
        *,
        key: str,
        session: aiohttp.ClientSession,
        server: BenchServer,
        model: str,
        log: LogWatch,
        report: Report,
        index: int = 0,
        cells: int = 1,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._job = job
        self._session = session
        self._server = server
        self._model = model
        self._log = log
        self._clock = clock
        self._report = report
        self._begun = time.perf_counter()
        self._progress = CellProgress(
            key=key,
            concurrency=concurrency,
            index=index,
            cells=cells,
            phase="waiting",
            repeat=0,
            repeats=job.repeats,
        )

    async def run(self) -> CellResult:
        """Measures every repeat. Raises UnreachableError when the server cannot be reached at all."""
        started = self._clock()
        answers: list[Answer] = []
        repeats: list[Repeat] = []
        for number in range(self._job.repeats):
            self._tell(
                "waiting",
                repeat=number,
                done=0,
                total=0,
                failed=0,
                tok_s=None,
                accept_length=None,
                eta_s=None,
            )
            repeat, given = await self._repeat(number)
            repeats.append(repeat)
            answers += given
        return self._result(started, repeats, answers)

    def _tell(self, phase: Phase, **changes: object) -> None:
        elapsed = time.perf_counter() - self._begun
        self._progress = replace(self._progress, phase=phase, elapsed_s=elapsed, **changes)  # type: ignore[arg-type]
        self._report(self._progress)

    async def _repeat(self, number: int) -> tuple[Repeat, list[Answer]]:
        concurrency = self._progress.concurrency
        reasons = [await self._server.wait_idle(IDLE_TIMEOUT_S)]
        self._tell("flushing")
        reasons.append(await self._server.flush_cache())
        warm = self._job.warmups_at(concurrency)
        if warm:
            self._tell("warm-up", total=warm)
            await self._drive(self._asks(warm_up(), warm), concurrency)
            self._tell("flushing")
            reasons.append(await self._server.flush_cache())
        else:
            reasons.append("no warm-up was asked for: the first requests may include compilation")
        before, log_before = await self._server.counters(), self._log.seen()
        total = self._job.requests_at(concurrency)
        self._tell("measuring", total=total)
        self._live_started = time.perf_counter()
        self._live_tokens = self._live_done = self._live_failed = 0
        self._live_spec = [0, 0]
        lag = LagWatch()
        async with lag:
            answers = await self._drive(self._asks(self._job.prompts, total), concurrency, live=True)
        if answers and not any(answer.ok for answer in answers):
            # A server that refuses everything gives a cell; one that is gone ends the run.
            await self._server.info()
        after, log_after = await self._server.counters(), self._log.seen()
        measured = Measured(
            job=self._job,
            concurrency=concurrency,
            answers=answers,
            before=before,
            after=after,
            log=log_after.since(log_before),
            log_watched=self._log.watching,
            lag_ms=lag.longest_ms,
            said=tuple(reason for reason in reasons if reason),
        )
        return _repeat_of(measured), answers

    def _asks(self, prompts: Sequence[str], count: int) -> list[Ask]:
        return [
            Ask(
                prompt=with_nonce(prompt, secrets.token_hex(6)),
                output_tokens=self._job.output_tokens,
                temperature=self._job.temperature,
                ignore_eos=self._job.ignore_eos,
                route=self._job.route,
                model=self._model,
            )
            for prompt in itertools.islice(itertools.cycle(prompts), count)
        ]

    async def _drive(self, asks: list[Ask], concurrency: int, *, live: bool = False) -> list[Answer]:
        """Sends ``asks`` ``concurrency`` at a time: each stream takes the next one when it is free."""
        queue = iter(enumerate(asks))
        answers: list[Answer | None] = [None] * len(asks)

        async def stream() -> None:
            for place, ask in queue:
                answer = await send(
                    self._session,
                    self._server.base_url,
                    replace(ask, scheduled=time.perf_counter()),
                    timeout=self._job.request_timeout_s,
                    on_tokens=self._count if live else None,
                )
                answers[place] = answer
                if live:
                    self._ended(answer)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, len(asks))):
                group.create_task(stream())
        return [answer for answer in answers if answer is not None]

    def _count(self, tokens: int) -> None:
        self._live_tokens += tokens
        now = time.perf_counter()
        if now - self._begun - self._progress.elapsed_s >= 0.25:
            self._tell("measuring", tok_s=self._live_tokens / max(now - self._live_started, 1e-6))

    def _ended(self, answer: Answer) -> None:
        self._live_done += 1
        self._live_failed += not answer.ok
        spec = answer.meta.spec
        if spec is not None:
            self._live_spec[0] += spec.completion_tokens
            self._live_spec[1] += spec.verify_ct
        gone = time.perf_counter() - self._live_started
        total = self._progress.total
        self._tell(
            "measuring",
            done=self._live_done,
            failed=self._live_failed,
            tok_s=self._live_tokens / gone if gone > 0 and self._live_tokens else None,
            accept_length=self._live_spec[0] / self._live_spec[1] if self._live_spec[1] else None,
            eta_s=gone / self._live_done * (total - self._live_done),
        )

    def _result(self, started: float, repeats: list[Repeat], answers: list[Answer]) -> CellResult:
        rows = [row for answer in answers if (row := figures_of(answer)) is not None]
        rates = [r.output_tok_s for r in repeats if r.output_tok_s is not None]
        middle = median_mad(rates)
        accepts = [row.accept_length for row in rows if row.accept_length is not None]
        accept_spread = spread(accepts)
        finish: dict[str, int] = {}
        for row in rows:
            finish[row.finish or "unknown"] = finish.get(row.finish or "unknown", 0) + 1
        errors = [answer.error for answer in answers if answer.error is not None]
        notes = []
        if not self._log.watching:
            why = f" ({self._log.lost})" if self._log.lost else ""
            notes.append(f"the server's log was not watched{why}: compilation would not be seen")
        if middle and middle[0] > 0 and middle[1] / middle[0] > UNSTEADY:
            notes.append(f"the repeats differ: MAD is {middle[1] / middle[0]:.0%} of the median")
        if any(not answer.counted for answer in answers):
            notes.append("this route tells no running token count: time per token is not known")
        return CellResult(
            key=self._progress.key,
            concurrency=self._progress.concurrency,
            output_tokens_asked=self._job.output_tokens,
            started_at=started,
            finished_at=self._clock(),
            requests=len(answers),
            failed=len(errors),
            errors=tuple(dict.fromkeys(errors))[:MAX_ERRORS],
            output_tok_s=middle[0] if middle else None,
            output_tok_s_mad=middle[1] if middle and len(rates) > 1 else None,
            accept_length=accept_length(answers),
            accept_p10=accept_spread.p10 if accept_spread else None,
            accept_p50=accept_spread.p50 if accept_spread else None,
            accept_histogram=_histogram(answers),
            output_tokens=sum(row.tokens for row in rows),
            finish=finish,
            ttft_ms=spread([row.ttft_ms for row in rows]),
            tpot_ms=spread([row.tpot_ms for row in rows if row.tpot_ms is not None]),
            itl_ms=spread([gap for row in rows for gap in row.itl_ms]),
            icl_ms=spread([gap for row in rows for gap in row.icl_ms]),
            e2e_ms=spread([row.e2e_ms for row in rows]),
            queue_ms=spread([row.queue_ms for row in rows]),
            user_tok_s=spread([row.user_tok_s for row in rows if row.user_tok_s is not None]),
            repeats=tuple(repeats),
            unclean=tuple(dict.fromkeys(reason for repeat in repeats for reason in repeat.unclean)),
            notes=tuple(notes),
            rows=tuple(replace(row, itl_ms=(), icl_ms=()) for row in rows),
        )


def accept_length(answers: Sequence[Answer]) -> float | None:
    """Sum of completion tokens over sum of verify steps, of the answered requests that tell both."""
    told = [answer.meta.spec for answer in answers if answer.ok and answer.meta.spec is not None]
    steps = sum(spec.verify_ct for spec in told)
    return sum(spec.completion_tokens for spec in told) / steps if steps else None


def _histogram(answers: Sequence[Answer]) -> tuple[int, ...]:
    columns = [a.meta.spec.histogram for a in answers if a.ok and a.meta.spec is not None]
    return tuple(sum(counts) for counts in itertools.zip_longest(*columns, fillvalue=0))


def _repeat_of(measured: Measured) -> Repeat:
    answers = measured.answers
    rows = [row for answer in answers if (row := figures_of(answer)) is not None]
    good = [answer for answer in answers if answer.ok and answer.chunks]
    duration = max(a.chunks[-1][0] for a in good) - min(a.sent for a in good) if good else 0.0
    tokens = sum(row.tokens for row in rows)
    prompt = [row.prompt_tokens for row in rows if row.prompt_tokens is not None]
    cached = [row.cached_tokens for row in rows if row.cached_tokens is not None]
    return Repeat(
        output_tok_s=tokens / duration if duration > 0 else None,
        request_s=len(good) / duration if duration > 0 else None,
        duration_s=duration,
        requests=len(answers),
        failed=sum(1 for answer in answers if not answer.ok),
        output_tokens=tokens,
        prompt_tokens=sum(prompt) if prompt else None,
        cached_tokens=sum(cached) if cached else None,
        accept_length=accept_length(answers),
        client_lag_ms=round(measured.lag_ms, 1),
        graph_share=graph_share(measured),
        unclean=unclean_reasons(measured),
    )
