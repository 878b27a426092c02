"""Carries plans out: start, stop, restart, apply, adopt. Every step is told, every action is logged twice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from typing import Protocol

from dflash_backend.control.action_log import ActionLog, who
from dflash_backend.control.contract import Action, Decision, Outcome, Plan, Step
from dflash_backend.control.granted import compare
from dflash_backend.control.planner import Planner
from dflash_backend.control.policy import Policy
from dflash_backend.control.start_times import StartTimes
from dflash_backend.core.clock import Clock, wall
from dflash_backend.core.errors import ConsoleError, FailedError, RefusedError
from dflash_backend.core.inventory import Inventory
from dflash_backend.core.samples import RunStatus, ServerSnapshot, Snapshot
from dflash_backend.core.states import ServerState, StageName
from dflash_backend.profiles.secrets import resolve_env
from dflash_backend.profiles.serialise import profile_to_toml
from dflash_backend.runs.contract import LaunchSpec, RunService, StopReport
from dflash_backend.telemetry.contract import FleetView

READ_BACK_S = 10.0
"""So long a server that serves is asked for its settings; it is not given up for want of them."""

Told = AsyncGenerator[Step | Outcome, None]
Steps = AsyncGenerator[Step, None]


class RunsOf(Protocol):
    """Gives the run service of a host."""

    def __call__(self, host: str) -> RunService: ...


class ActedOn(FleetView, Protocol):
    """The fleet as the operator needs it."""

    def set_draining(self, server: str, draining: bool) -> None:
        """Says that an action waits for the server's requests to finish."""
        ...


class LocalOperator:
    """The operator of this console (see ``control.contract.Operator``).

    The host is asked again before every change: a plan may be minutes old. Cancelling an execution leaves a
    launched server starting and a requested stop going on (the host finishes it); the action log says so.
    """

    def __init__(
        self,
        *,
        inventory: Inventory,
        fleet: ActedOn,
        planner: Planner,
        runs: RunsOf,
        log: ActionLog,
        start_times: StartTimes,
        read_only: bool = False,
        clock: Clock = wall,
        ticks: Clock = time.monotonic,
    ) -> None:
        """``clock`` stamps what is told; ``ticks`` measures, so that a clock that is set ends no action."""
        self._ticks = ticks
        self._inventory = inventory
        self._fleet = fleet
        self._planner = planner
        self._runs = runs
        self._log = log
        self._start_times = start_times
        self._clock = clock
        self._busy: dict[str, Action] = {}
        self.policy = Policy(inventory, fleet.snapshot, self._busy, read_only=read_only)

    def decide(self, action: Action, server: str | None = None, host: str | None = None) -> Decision:
        """See :class:`Policy`."""
        return self.policy.decide(action, server, host)

    async def plan(self, action: Action, server: str, profile: str | None = None) -> Plan:
        """See :meth:`Planner.plan`; allowed in read-only mode, since it changes nothing."""
        return await self._planner.plan(action, server, profile)

    async def execute(self, plan: Plan, *, drain_s: float = 0.0) -> Told:
        """Runs ``plan``; the last item is an :class:`Outcome`.

        Raises RefusedError before anything happens when the action is not allowed or the plan has refusals.
        Errors during the action become a failed Outcome with the exit code of the error.
        """
        decision = self.decide(plan.action, plan.server)
        if not decision.allowed:
            raise RefusedError(decision.reason, where=plan.server, unchanged="nothing was done")
        if plan.refusals:
            raise RefusedError(
                "; ".join(plan.refusals),
                where=f"{plan.server} with {plan.profile.name}",
                unchanged="nothing was done",
            )
        details: Mapping[str, object] = {
            "profile": plan.profile.name,
            "from": plan.from_profile,
            "command": plan.command,
        }
        ident = self._log.begin(plan.action, server=plan.server, host=plan.host, details=details)
        self._busy[plan.server] = plan.action
        outcome = Outcome(ok=False, summary="interrupted", exit_code=130)
        try:
            async with aclosing(self._steps(plan, drain_s)) as steps:
                async for item in steps:
                    if isinstance(item, Outcome):
                        outcome = item
                    yield item
        finally:
            del self._busy[plan.server]
            self._log.end(
                ident,
                plan.action,
                server=plan.server,
                host=plan.host,
                ok=outcome.ok,
                details={"summary": outcome.summary, "exit_code": outcome.exit_code},
            )

    async def _steps(self, plan: Plan, drain_s: float) -> Told:
        stopped_profile: str | None = None
        try:
            match plan.action:
                case Action.START:
                    async for item in self._start(plan):
                        yield item
                case Action.STOP:
                    async for step in self._stop(plan, drain_s):
                        yield step
                    yield Outcome(ok=True, summary=f"{plan.server} is stopped")
                case Action.ADOPT:
                    async for item in self._adopt(plan):
                        yield item
                case Action.APPLY | Action.RESTART:
                    async for step in self._stop(plan, drain_s):
                        if step.name == "stop" and step.state == "done":
                            stopped_profile = plan.from_profile or "what ran before"
                        yield step
                    async for item in self._start(plan):
                        if isinstance(item, Outcome) and not item.ok and stopped_profile:
                            item = _not_restored(item, stopped_profile)
                        yield item
                case _:
                    raise FailedError(f"{plan.action} is not an action on a server")
        except ConsoleError as error:
            code = 6 if stopped_profile else error.exit_code
            first, *rest = error.lines()
            if stopped_profile:
                rest.append(f"not restored: {stopped_profile} was stopped before and is not running")
            yield Outcome(ok=False, summary=first, exit_code=code, details=tuple(rest))

    async def _live_run(self, plan: Plan) -> RunStatus | None:
        runs = await self._runs(plan.host).list_runs()
        return next((run for run in runs if run.server == plan.server and (run.alive or run.left)), None)

    async def _stop(self, plan: Plan, drain_s: float) -> Steps:
        run = await self._live_run(plan)
        if run is None:
            now = self._fleet.snapshot().server(plan.server)
            if now is not None and now.state is ServerState.FOREIGN:
                raise RefusedError(
                    f"port {now.port} is held by a server that this console did not start",
                    where=plan.server,
                    unchanged="nothing was stopped",
                    next_step=f"adopt it first: dflash-console adopt {plan.server}",
                )
            yield Step(name="stop", state="skipped", text="nothing of ours is running")
            return
        if run.alive and run.run_id != plan.from_run:
            by = f" by {run.started_by}" if run.started_by else ""
            raise RefusedError(
                f"run {run.run_id} ({run.profile or 'adopted'}) was started{by} after this was planned",
                where=plan.server,
                unchanged=f"{plan.server} runs as it did",
                next_step="look at it, then plan anew",
            )
        async for step in self._drain(plan, drain_s):
            yield step
        yield Step(name="stop", state="running", text=f"TERM to run {run.run_id}", at=self._clock())
        report = await self._runs(plan.host).stop(run.run_id, grace_s=plan.profile.stop_grace_s)
        if not report.complete:
            yield Step(name="stop", state="failed", text=_left(report), at=self._clock())
            raise FailedError(
                f"run {run.run_id} could not be stopped completely: {_left(report)}",
                where=plan.server,
                unchanged="nothing was launched",
                next_step="look at the processes named above on the host; stop again once they are gone",
            )
        yield Step(name="stop", state="done", text=_proof(report), at=self._clock())

    async def _drain(self, plan: Plan, drain_s: float) -> Steps:
        def in_flight() -> int | None:
            now = self._fleet.snapshot().server(plan.server)
            if now is None or now.figures is None or now.figures.running is None:
                return None
            return now.figures.running + (now.figures.queued or 0)

        left = in_flight()
        if drain_s <= 0 or not left:
            text = "number of requests in flight unknown" if left is None else f"{left} requests in flight"
            yield Step(name="drain", state="skipped", text=text, at=self._clock())
            return
        deadline = self._ticks() + drain_s
        yield Step(name="drain", state="running", text=f"{left} requests in flight", at=self._clock())
        self._fleet.set_draining(plan.server, True)
        try:
            async with aclosing(self._changes_until(deadline)) as changes:
                async for _ in changes:
                    seen, left = left, in_flight()
                    if left == 0:
                        break
                    # Unknown is not none: a server deep in a prefill says nothing for a while.
                    if left is not None and left != seen:
                        text = f"{left} requests in flight"
                        yield Step(name="drain", state="running", text=text, at=self._clock())
        finally:
            self._fleet.set_draining(plan.server, False)
        yield Step(
            name="drain",
            state="done" if left == 0 else "failed",
            text=f"{'an unknown number' if left is None else left} left after {drain_s:.0f} s at most",
            at=self._clock(),
        )

    async def _start(self, plan: Plan) -> Told:
        profile = plan.profile
        config = self._inventory.servers[plan.server]
        yield Step(name="launch", state="running", at=self._clock())
        plain, secret = await asyncio.to_thread(resolve_env, profile)
        spec = LaunchSpec(
            server=plan.server,
            profile=profile.name,
            profile_digest=profile.digest,
            profile_toml=profile_to_toml(profile),
            argv=plan.argv,
            port=config.port,
            env={**self._inventory.hosts[plan.host].env, **plan.env, **plain},
            secret_env=secret,
            started_by=who(),
        )
        run = await self._runs(plan.host).launch(spec)
        began = self._ticks()
        text = f"run {run.run_id}, pid {run.pid}"
        yield Step(name="launch", state="done", text=text, at=self._clock())
        # Cancelled from here on, what was launched goes on starting; the caller says so.
        async for item in self._until_ready(plan, run, began):
            yield item

    async def _until_ready(self, plan: Plan, run: RunStatus, began: float) -> Told:
        seen = ""
        now: ServerSnapshot | None = None
        ready_at: float | None = None
        async with aclosing(self._changes_until(began + plan.profile.ready_timeout_s)) as changes:
            async for snapshot in changes:
                now = snapshot.server(plan.server)
                if now is None or now.run is None or now.run.run_id != run.run_id:
                    continue
                stage = now.stage
                # The launch itself was told already.
                if stage is not None and stage.name is not StageName.LAUNCH and stage.text() != seen:
                    seen = stage.text()
                    progress = stage.done / stage.total if stage.total and stage.done is not None else None
                    yield Step(
                        name=stage.name, state="running", text=seen, at=self._clock(), progress=progress
                    )
                if now.state is ServerState.FAILED:
                    yield Step(name="ready", state="failed", text=now.message, at=self._clock())
                    yield Outcome(
                        ok=False,
                        summary=f"{plan.server} failed to start: {now.message}",
                        exit_code=5,
                        details=(f"log: {run.log_path}", "nothing of it is left running"),
                    )
                    return
                if now.state is not ServerState.READY:
                    ready_at = None
                    continue
                ready_at = self._ticks() if ready_at is None else ready_at
                if now.settings is None and self._ticks() - ready_at < READ_BACK_S:
                    continue
                for item in self._ready(plan, now, ready_at - began):
                    yield item
                return
        if now is not None and ready_at is not None:
            for item in self._ready(plan, now, ready_at - began):
                yield item
            return
        state = now.state if now is not None else ServerState.UNKNOWN
        if state is ServerState.UNREACHABLE:
            yield Outcome(
                ok=False,
                summary=f"{plan.host} does not answer; run {run.run_id} was launched and may be starting",
                exit_code=3,
                details=(f"next: dflash-console status {plan.server}",),
            )
            return
        yield Step(
            name="ready", state="failed", text=f"not ready within {plan.profile.ready_timeout_s:.0f} s"
        )
        report = await self._runs(plan.host).stop(run.run_id, grace_s=plan.profile.stop_grace_s)
        yield Step(name="stop", state="done" if report.complete else "failed", text=_proof(report))
        yield Outcome(
            ok=False,
            summary=f"{plan.server} was not ready within {plan.profile.ready_timeout_s:.0f} s "
            f"(last stage: {seen or 'launch'}); it was stopped again",
            exit_code=5 if report.complete else 6,
            details=(
                *((now.message,) if now is not None and now.message else ()),
                f"log: {run.log_path}",
                "next: look at the log, or raise ready_timeout_s in the profile",
            ),
        )

    def _ready(self, plan: Plan, now: ServerSnapshot, took: float) -> Iterator[Step | Outcome]:
        """It serves: what it was asked for beside what it says of itself, if it says so."""
        self._start_times.add(plan.host, plan.profile.digest, took)
        yield Step(name="ready", state="done", text=f"after {took:.0f} s", at=self._clock())
        if now.settings is None:
            text = "its settings could not be read back"
            yield Step(name="read back", state="failed", text=text, at=self._clock())
            yield Outcome(ok=True, summary=f"{plan.server} is ready with {plan.profile.name}; {text}")
            return
        granted = compare(plan.profile, now.settings)
        bad = [line.name for line in granted if not line.ok]
        text = f"differs: {', '.join(bad)}" if bad else "granted as asked"
        yield Step(name="read back", state="done", text=text, at=self._clock())
        yield Outcome(
            ok=True,
            summary=f"{plan.server} is ready with {plan.profile.name} ({text})",
            granted=granted,
        )

    async def _adopt(self, plan: Plan) -> Told:
        yield Step(name="adopt", state="running", at=self._clock())
        config = self._inventory.servers[plan.server]
        run = await self._runs(plan.host).adopt(
            server=plan.server, port=config.port, profile="", started_by=who()
        )
        text = f"run {run.run_id}: pid {run.pid}, {' '.join(run.argv[:6])}"
        yield Step(name="adopt", state="done", text=text, at=self._clock())
        yield Outcome(ok=True, summary=f"{plan.server} is adopted ({text}); it can be stopped from here now")

    async def _changes_until(self, deadline: float) -> AsyncGenerator[Snapshot, None]:
        """Snapshots until ``deadline`` in ticks; then simply ends."""
        stream = self._fleet.changes()
        pending: asyncio.Task[Snapshot] | None = None
        try:
            while (left := deadline - self._ticks()) > 0:
                # A task of its own, so that running out of time does not tear the stream.
                pending = asyncio.ensure_future(anext(stream))
                done, _ = await asyncio.wait({pending}, timeout=left)
                if not done:
                    return
                try:
                    yield pending.result()
                except StopAsyncIteration:
                    return
        finally:
            if pending is not None:
                pending.cancel()
                await asyncio.wait({pending})
            if isinstance(stream, AsyncGenerator):
                await stream.aclose()


def _not_restored(outcome: Outcome, before: str) -> Outcome:
    return Outcome(
        ok=False,
        summary=outcome.summary,
        granted=outcome.granted,
        exit_code=6,
        details=(*outcome.details, f"not restored: {before} was stopped before and is not running"),
    )


def _left(report: StopReport) -> str:
    parts = [] if report.group_gone else ["processes of the group are left"]
    if not report.port_free:
        parts.append("the port is still held")
    if report.gpu_free is False:
        parts.append("GPU memory is still held")
    return "; ".join([*parts, *report.notes]) or "unknown"


def _proof(report: StopReport) -> str:
    gpu = {True: "GPU memory free", False: "GPU memory still held", None: "no GPU seen"}[report.gpu_free]
    how = "KILL was needed" if report.killed else "TERM was enough"
    return (
        f"group gone, port free, {gpu}; {how}; {report.seconds:.1f} s" if report.complete else _left(report)
    )
