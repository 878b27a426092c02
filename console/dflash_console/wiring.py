"""The real services behind the screens: thin adapters from the control plane to ``tui.services``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING

from dflash_backend.audit.badges import Entry
from dflash_backend.audit.measurement import Measurement, Progress
from dflash_backend.control.contract import Action, Decision, Outcome, Plan, Step
from dflash_backend.control.plane import ControlPlane
from dflash_backend.core.errors import ConsoleError, RefusedError, UsageError
from dflash_backend.core.profile import Profile
from dflash_backend.telemetry.replay import Replay
from dflash_console.bench_states import next_state, stored_state
from dflash_console.tui.services import BenchJob, BenchState, Finding, KeyOffer, ProfileSummary, Services

if TYPE_CHECKING:
    from dflash_backend.bench.job import Job

REPLAY_REASON = "this is a replay: nothing can be changed"


class RunLogs:
    """``LogSource``: the log of a server's living run, else of its newest one."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    async def follow(self, server: str) -> AsyncIterator[list[str]]:
        """See ``LogSource.follow``."""
        now = self._plane.fleet.snapshot().server(server)
        runs = self._plane.runs(self._plane.inventory.servers[server].host)
        run_id = now.run.run_id if now is not None and now.run is not None else None
        if run_id is None:
            own = [run for run in await runs.list_runs() if run.server == server]
            if not own:
                raise UsageError(f"{server} never had a run: there is no log", where=server)
            run_id = own[0].run_id
        async with aclosing(runs.follow_log(run_id)) as batches:
            async for batch in batches:
                yield batch


class StoredProfiles:
    """``ProfileCatalog`` over the profile store; files are read once, when the list is first wanted."""

    def __init__(self, plane: ControlPlane) -> None:
        self._store = plane.profiles
        self._summaries: tuple[ProfileSummary, ...] | None = None

    def names(self) -> tuple[ProfileSummary, ...]:
        """See ``ProfileCatalog.names``."""
        if self._summaries is None:
            self._summaries = tuple(self._summary(entry.name) for entry in self._store.entries())
        return self._summaries

    def _summary(self, name: str) -> ProfileSummary:
        try:
            profile = self._store.load(name)
        except ConsoleError as error:
            return ProfileSummary(name=name, problem=error.lines()[0])
        return ProfileSummary(
            name=name, description=profile.description, origin=profile.origin, shipped=profile.shipped
        )

    def get(self, name: str) -> Profile:
        """See ``ProfileCatalog.get``."""
        return self._store.load(name)


class PoolHosts:
    """``HostCare`` over the SSH pool and the doctor."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    async def offered_key(self, host: str) -> KeyOffer:
        """See ``HostCare.offered_key``; with jumps, the first key on the way that is not trusted."""
        report = (await self._plane.pool.key_reports(host))[-1]
        known = report.known[0].fingerprint if report.known else None
        return KeyOffer(
            host=host,
            address=report.name,
            key_type=report.type,
            fingerprint=report.fingerprint,
            known_fingerprint=known,
            compare_with=report.compare,
        )

    async def trust(self, host: str, fingerprint: str) -> None:
        """See ``HostCare.trust``. A changed key is replaced from the command line only."""
        from dflash_backend.ssh.hostkeys import Verdict

        self._demand(Action.TRUST_KEY, host, "no key was remembered")
        report = (await self._plane.pool.key_reports(host))[-1]
        if report.fingerprint != fingerprint:
            raise RefusedError(
                f"the host shows {report.fingerprint} now, not {fingerprint}",
                where=host,
                unchanged="no key was remembered",
            )
        if report.verdict is Verdict.CHANGED:
            raise RefusedError(
                f"{report.name} shows another key than the one that is remembered",
                where=host,
                unchanged="no key was remembered; the old one is still the one that is expected",
                next_step=f"if the change is genuine: dflash-console hosts trust {host} --replace",
            )
        with self._logged(Action.TRUST_KEY, host, {"key": report.line}):
            await self._plane.pool.trust(report)

    async def forget(self, host: str) -> None:
        """See ``HostCare.forget``."""
        self._demand(Action.FORGET_KEY, host, "no key was forgotten")
        with self._logged(Action.FORGET_KEY, host, {}):
            await self._plane.pool.forget(host)

    def _demand(self, action: Action, host: str, unchanged: str) -> None:
        decision = self._plane.operator.decide(action, host=host)
        if not decision.allowed:
            raise RefusedError(decision.reason, where=host, unchanged=unchanged)

    @contextmanager
    def _logged(self, action: Action, host: str, details: dict[str, object]) -> Iterator[None]:
        log, ok = self._plane.log, False
        ident = log.begin(action, server="", host=host, details=details)
        try:
            yield
            ok = True
        finally:
            log.end(ident, action, server="", host=host, ok=ok, details={})

    async def retry(self, host: str) -> None:
        """See ``HostCare.retry``."""
        await self._plane.pool.link(host).retry_now()

    async def check(self, host: str) -> AsyncIterator[Finding]:
        """See ``HostCare.check``."""
        from dflash_backend.doctor.check import check_host, needs_sglang

        servers = [s for s in self._plane.inventory.servers.values() if s.host == host]
        report = await check_host(
            self._plane.pool.link(host),
            ports=[server.port for server in servers],
            sglang=await asyncio.to_thread(needs_sglang, servers, self._plane.profiles),
        )
        for finding in report.findings:
            yield Finding(
                name=finding.name,
                level={"ok": "ok", "warn": "warning", "fail": "failed"}.get(finding.status, "info"),  # type: ignore[arg-type]
                text=finding.text,
                next_step=finding.next_step,
            )


class PlaneBench:
    """``BenchSource``: jobs beside the configuration file and the first look, runs in the data folder."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    def _load(self, name: str) -> Job:
        from dflash_backend.bench.jobs import named_job

        return named_job(name, self._plane.inventory.path)

    async def jobs(self) -> tuple[BenchJob, ...]:
        """See ``BenchSource.jobs``."""
        from dflash_backend.bench.jobs import job_names

        found = []
        for name in await asyncio.to_thread(job_names, self._plane.inventory.path):
            try:
                job = await asyncio.to_thread(self._load, name)
            except ConsoleError as error:
                found.append(BenchJob(name=name, problem=error.lines()[0]))
            else:
                found.append(
                    BenchJob(
                        name=name,
                        description=job.description,
                        cells=len(job.concurrency),
                        origin=job.origin,
                    )
                )
        return tuple(found)

    async def runs(self) -> tuple[BenchState, ...]:
        """See ``BenchSource.runs``."""
        from dflash_backend.bench.results import list_runs, load_run

        return await asyncio.to_thread(
            lambda: tuple(stored_state(load_run(info.id)) for info in list_runs()[:20])
        )

    async def run(self, job: str, server: str) -> AsyncIterator[BenchState]:
        """See ``BenchSource.run``."""
        from dflash_backend.control.benching import ServerBench

        loaded = await asyncio.to_thread(self._load, job)
        state: BenchState | None = None
        async with aclosing(ServerBench(self._plane, loaded, server).events()) as events:
            async for event in events:
                state = next_state(state, event, at=time.time())
                yield state


class PlaneAudits:
    """``AuditSource`` over what the control plane keeps."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    def entry(self, server: str) -> Entry | None:
        """See ``AuditSource.entry``."""
        return self._plane.audits.entry(server)

    async def audit(self, server: str, *, fresh: bool) -> Entry:
        """See ``AuditSource.audit``."""
        return await self._plane.audits.get(server, fresh=fresh)

    async def measure(self, server: str, *, force: bool) -> AsyncIterator[Progress | Measurement]:
        """See ``AuditSource.measure``."""
        from dflash_backend.control.measuring import measure_window

        async with aclosing(measure_window(self._plane, server, force=force)) as items:
            async for item in items:
                yield item


def live_services(plane: ControlPlane, *, label: str = "") -> Services:
    """The services of a live fleet."""
    inventory = plane.inventory
    return Services(
        fleet=plane.fleet,
        operator=plane.operator,
        logs=RunLogs(plane),
        profiles=StoredProfiles(plane),
        bench=PlaneBench(plane),
        hosts=PoolHosts(plane),
        audit=PlaneAudits(plane),
        read_only=plane.operator.policy.read_only,
        ascii=inventory.ascii,
        theme=inventory.theme,
        keymap=inventory.keymap,
        pinned=inventory.pinned,
        config_path=inventory.path,
        label=label,
    )


class NoOperator:
    """The operator of a replay: it explains that there is nothing to change."""

    def decide(self, action: Action, server: str | None = None, host: str | None = None) -> Decision:
        """Never allowed."""
        return Decision(allowed=False, reason=REPLAY_REASON)

    async def plan(self, action: Action, server: str, profile: str | None = None) -> Plan:
        """Raises RefusedError."""
        raise RefusedError(REPLAY_REASON, where=server)

    def execute(self, plan: Plan) -> AsyncIterator[Step | Outcome]:
        """Raises RefusedError."""
        raise RefusedError(REPLAY_REASON, where=plan.server)


class RecordedLogs:
    """``LogSource`` of a replay: what the recording holds of each log's end."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay

    async def follow(self, server: str) -> AsyncIterator[list[str]]:
        """See ``LogSource.follow``."""
        shown = ""
        async for snapshot in self._replay.changes():
            now = snapshot.server(server)
            tail = now.run.log_tail if now is not None and now.run is not None else ""
            if tail == shown:
                continue
            anchor = shown[-200:]
            place = tail.rfind(anchor) if anchor else -1
            new = tail[place + len(anchor) :] if place >= 0 else tail
            shown = tail
            if lines := [line for line in new.split("\n") if line]:
                yield lines


def replay_services(replay: Replay, *, ascii_only: bool = False, theme: str | None = None) -> Services:
    """The services of a recording: everything can be looked at, nothing changed."""
    return Services(
        fleet=replay,
        operator=NoOperator(),
        logs=RecordedLogs(replay),
        profiles=_NoProfiles(),
        clock=replay.clock,
        read_only=True,
        ascii=ascii_only,
        theme=theme,
        label="replay",
    )


class _NoProfiles:
    def names(self) -> tuple[ProfileSummary, ...]:
        return ()

    def get(self, name: str) -> Profile:
        raise UsageError(REPLAY_REASON, where=name)
