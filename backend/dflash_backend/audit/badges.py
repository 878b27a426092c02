"""Audits servers once per run, in the background, and keeps what was said: for badges, panels and screens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace

from dflash_backend.audit.live import LiveAudit
from dflash_backend.audit.measured import has_gap, with_measurement
from dflash_backend.audit.measurement import Measurement
from dflash_backend.audit.report import AuditReport, Verdict
from dflash_backend.core.clock import Clock, wall
from dflash_backend.core.errors import ConsoleError
from dflash_backend.core.samples import AuditSummary, ServerSnapshot, Snapshot
from dflash_backend.core.states import ServerState

log = logging.getLogger(__name__)

AT_ONCE = 2
RETRY_S = 30.0
RETRY_MOST_S = 600.0
CLOSE_S = 3.0
_SERVING = frozenset({ServerState.READY, ServerState.FOREIGN, ServerState.DRAINING})
_UNSEEN = frozenset({ServerState.UNREACHABLE, ServerState.UNKNOWN})
_TOLD = ("dflash_sglang", "version", "model_path")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The newest audit of a server, or why there is none. ``at``: when it was tried."""

    at: float
    audit: LiveAudit | None = None
    problem: str = ""


class AuditKeeper:
    """Keeps one entry per server and run. ``audit`` does the work; ``changes`` gives the fleet's snapshots.

    A server that gets ready is audited once by itself; again when its settings change, or when asked. A
    failure is kept as an entry with its reason and tried again later, less and less often.
    """

    def __init__(
        self,
        audit: Callable[[str], Awaitable[LiveAudit]],
        changes: Callable[[], AsyncIterator[Snapshot]],
        clock: Clock = wall,
    ) -> None:
        self._audit = audit
        self._changes = changes
        self._clock = clock
        self._entries: dict[str, Entry] = {}
        self._keys: dict[str, object] = {}
        self._tries: dict[str, int] = {}
        self._running: dict[str, asyncio.Task[Entry]] = {}
        self._room = asyncio.Semaphore(AT_ONCE)
        self._watch: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to watch the fleet. Returns at once."""
        if self._watch is None:
            self._watch = asyncio.create_task(self._follow(), name="audits")

    async def close(self) -> None:
        """Ends what is going on; bounded in time."""
        tasks = [*self._running.values(), *((self._watch,) if self._watch is not None else ())]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_S)

    def entry(self, server: str) -> Entry | None:
        """The newest audit of a server's present run; no I/O."""
        return self._entries.get(server)

    def summary(self, server: str) -> AuditSummary | None:
        """The same in a line, for the fleet; no I/O."""
        entry = self._entries.get(server)
        if entry is None:
            return None
        if entry.audit is None:
            return AuditSummary(verdict=Verdict.UNKNOWN, text=entry.problem, at=entry.at)
        return summary_of(entry.audit.report)

    async def get(self, server: str, *, fresh: bool = False) -> Entry:
        """The kept entry, or a new one; two callers share one audit. Raises what the audit raises."""
        kept = self._entries.get(server)
        if kept is not None and kept.audit is not None and not fresh:
            return kept
        task = self._running.get(server)
        if task is None:
            task = self._begin(server)
        return await asyncio.shield(task)

    async def settle(self, snapshot: Snapshot, timeout: float) -> None:
        """Waits until every server that serves has been audited, at most ``timeout`` seconds."""
        names = [s.name for s in snapshot.servers if s.state in _SERVING and key_of(s) is not None]
        for server in snapshot.servers:
            self._look(server)
        waiting = [asyncio.ensure_future(self.get(name)) for name in names]
        if waiting:
            done, late = await asyncio.wait(waiting, timeout=timeout)
            for one in late:
                one.cancel()
            await asyncio.gather(*done, *late, return_exceptions=True)

    def measured(self, server: str, measurement: Measurement) -> None:
        """Keeps a measurement with the audit of the present run."""
        kept = self._entries.get(server)
        if kept is not None and kept.audit is not None:
            report = with_measurement(kept.audit.report, measurement)
            audit = replace(kept.audit, report=report, measurement=measurement)
            self._entries[server] = replace(kept, audit=audit)

    def pending(self) -> bool:
        """True while an audit is going on."""
        return bool(self._running)

    def _begin(self, server: str) -> asyncio.Task[Entry]:
        task = asyncio.create_task(self._run(server), name=f"audit {server}")
        self._running[server] = task
        task.add_done_callback(lambda done: self._done(server, done))
        return task

    def _done(self, server: str, task: asyncio.Task[Entry]) -> None:
        self._running.pop(server, None)
        if not task.cancelled() and task.exception() is not None:
            error = task.exception()
            if not isinstance(error, ConsoleError):
                log.error("the audit of %s failed", server, exc_info=error)

    async def _run(self, server: str) -> Entry:
        async with self._room:
            try:
                audit = await self._audit(server)
            except ConsoleError as error:
                self._fail(server, error.lines()[0])
                raise
            except Exception as error:
                self._fail(server, f"{type(error).__name__}: see the console's log")
                raise
            kept = self._entries.get(server)
            if kept is not None and kept.audit is not None and kept.audit.measurement is not None:
                # Read again, the same run: what was measured of it still holds.
                measurement = kept.audit.measurement
                report = with_measurement(audit.report, measurement)
                audit = replace(audit, report=report, measurement=measurement)
            entry = Entry(at=self._clock(), audit=audit)
            self._entries[server] = entry
            self._tries[server] = 0
            return entry

    def _fail(self, server: str, problem: str) -> None:
        kept = self._entries.get(server)
        if kept is None or kept.audit is None:
            self._entries[server] = Entry(at=self._clock(), problem=problem)
        self._tries[server] = self._tries.get(server, 0) + 1

    async def _follow(self) -> None:
        async for snapshot in self._changes():
            for server in snapshot.servers:
                self._look(server)

    def _look(self, server: ServerSnapshot) -> None:
        if server.state in _UNSEEN:
            return  # it may still be what it was
        if server.state not in _SERVING:
            self._forget(server.name)
            return
        key = key_of(server)
        if key is None:
            return  # its settings are still being read
        if self._keys.get(server.name) != key:
            self._forget(server.name)
            self._keys[server.name] = key
        if server.name not in self._running and self._due(server.name):
            self._begin(server.name)

    def _due(self, server: str) -> bool:
        entry = self._entries.get(server)
        if entry is None:
            return True
        pause = min(RETRY_MOST_S, RETRY_S * 2 ** max(0, self._tries.get(server, 0) - 1))
        return entry.audit is None and self._clock() - entry.at >= pause

    def _forget(self, server: str) -> None:
        if self._keys.pop(server, None) is not None:
            self._entries.pop(server, None)
            self._tries.pop(server, None)


def key_of(server: ServerSnapshot) -> object | None:
    """What an audit holds for: one run, and the settings that a live switch may change."""
    settings = server.settings
    if settings is None:
        return None
    engine = settings.raw.get("dflash_engine")
    told = {name: value for name, value in settings.raw.items() if name.startswith("speculative_")}
    told.update((name, settings.raw.get(name)) for name in _TOLD)
    if isinstance(engine, dict):
        told["layers"] = engine.get("layer_windows")
    return (server.run.run_id if server.run is not None else None, repr(sorted(told.items())))


def summary_of(report: AuditReport) -> AuditSummary:
    """A report in a line."""
    declared = [row.declared for row in report.layers if row.declared is not None]
    worst = next((f for f in report.findings if f.severity == "gap"), None)
    text = worst.text if worst is not None else report.findings[0].text if report.findings else ""
    if report.verdict is Verdict.UNKNOWN and report.missing:
        text = report.missing[0]
    remedy = next((r.command or r.text for r in report.remedies if r.kind != "none"), "")
    return AuditSummary(
        verdict=str(report.verdict),
        gap=has_gap(report),
        window=max(declared, default=None),
        text=text,
        remedy=remedy,
        at=report.at,
    )
